//! Shell scripts, sbatch files and Compose files as manifests, so that the rules about commands and variables hold for
//! them too.
//!
//! Takes the text of a file; gives the text of a manifest with the same commands, and for each of its lines that of the
//! file. Only the rules in [`RULES_OF_SCRIPTS`] are about such a file: it says nothing about a pod.

use std::fmt::Write;

use serde_json::Value;

use text::yaml::{self, Node};
use verdict::Id;

/// The rules about commands, sizes and variables.
pub(super) const RULES_OF_SCRIPTS: &[Id] = &[
    Id::EnvNccl,
    Id::LayoutWorld,
    Id::LayoutHeads,
    Id::LayoutAlone,
    Id::ProfileSelect,
    Id::MasterSelf,
    Id::CommandCut,
    Id::CommandRefused,
    Id::CommandUnread,
];

/// A file as a manifest.
pub(super) struct Rewritten {
    pub(super) text: String,
    /// Line of the file for each line of the manifest.
    lines: Vec<usize>,
}

impl Rewritten {
    /// None: the file is a manifest already.
    pub(super) fn of(name: &str, text: &str) -> Option<Rewritten> {
        let mut rewritten = Rewritten { text: String::new(), lines: Vec::new() };
        if is_script(name, text) {
            rewritten.container(1);
            rewritten.line("    command: [bash, -c]", 1);
            rewritten.script(text, |at| at + 1);
            return Some(rewritten);
        }
        let root = yaml::document(text)?;
        let services = root.get("services").filter(|_| root.get("kind").is_none())?;
        for (_, key, service) in services.entries() {
            rewritten.service(key.line, service);
        }
        Some(rewritten)
    }

    /// The line of the file for a line of the manifest.
    pub(super) fn line_of(&self, line: usize) -> usize {
        self.lines.get(line.saturating_sub(1)).copied().unwrap_or(1)
    }

    fn line(&mut self, text: &str, of: usize) {
        let _ = writeln!(self.text, "{text}");
        self.lines.push(of);
    }

    fn container(&mut self, of: usize) {
        const HEAD: &[&str] = &[
            "---",
            "apiVersion: v1",
            "kind: Pod",
            "metadata: {name: script}",
            "spec:",
            "  containers:",
            "  - name: script",
            "    image: example/image:1",
        ];
        HEAD.iter().for_each(|line| self.line(line, of));
    }

    /// A script as a literal block, which keeps its lines.
    fn script(&mut self, text: &str, line: impl Fn(usize) -> usize) {
        self.line("    args:", line(0));
        self.line("    - |", line(0));
        // The first line gives the indentation.
        self.line("      #", line(0));
        for (at, source) in text.lines().enumerate() {
            let clean: String =
                source.chars().map(|c| if c.is_control() && c != '\t' { ' ' } else { c }).collect();
            self.line(&format!("      {clean}"), line(at));
        }
    }

    fn service(&mut self, of: usize, service: &Node) {
        self.container(of);
        let string = |text: &str| Value::String(text.to_owned()).to_string();
        for (key, target) in [("entrypoint", "command"), ("command", "args")] {
            match service.get(key) {
                Some(node) if !node.list().is_empty() => {
                    self.line(&format!("    {target}:"), node.line);
                    for item in node.list() {
                        let word = item.text().unwrap_or_default().replace("$$", "$");
                        self.line(&format!("    - {}", string(&word)), item.line);
                    }
                }
                Some(node) if node.text().is_some() => {
                    // Compose splits a text into words, as a shell does.
                    if target == "args" {
                        self.line("    command: [bash, -c]", node.line);
                    }
                    self.script(node.text().unwrap_or_default(), |at| node.line_of(at));
                }
                _ => {}
            }
        }
        let Some(variables) = service.get("environment") else { return };
        self.line("    env:", variables.line);
        let mut found: Vec<(String, String, usize)> = Vec::new();
        for (name, key, value) in variables.entries() {
            found.push((name.to_owned(), value.text().unwrap_or_default().to_owned(), key.line));
        }
        for item in variables.list() {
            if let Some((name, value)) = item.text().and_then(|text| text.split_once('=')) {
                found.push((name.to_owned(), value.to_owned(), item.line));
            }
        }
        for (name, value, line) in found {
            self.line(
                &format!("    - {{name: {}, value: {}}}", string(&name), string(&value)),
                line,
            );
        }
    }
}

/// By its name, its first line, or the lines that a batch system reads.
fn is_script(name: &str, text: &str) -> bool {
    const ENDS: &[&str] = &["sh", "bash", "sbatch", "slurm", "pbs", "lsf"];
    let end = name.rsplit_once('.').map(|(_, end)| end).unwrap_or_default();
    let first = text.lines().next().unwrap_or_default();
    ENDS.contains(&end) || (first.starts_with("#!") && first.contains("sh"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use text::yaml::NodeKind;

    #[test]
    fn lines_are_those_of_the_file() {
        let script = "#!/bin/bash\nexport A=1\n\n  torchrun x.py\n";
        let rewritten = Rewritten::of("a.sh", script).expect("a script");
        let line =
            rewritten.text.lines().position(|line| line.contains("torchrun")).expect("a line");
        assert_eq!(rewritten.line_of(line + 1), 4);
        assert!(yaml::document(&rewritten.text).is_some());
    }

    #[test]
    fn manifests_stay_as_they_are() {
        assert!(Rewritten::of("a.yaml", "kind: Pod\nservices: {}\n").is_none());
        assert!(Rewritten::of("a.yaml", "services:\n  a: {command: torchrun x.py}\n").is_some());
    }

    #[test]
    fn compose_words_keep_their_lines() {
        let file = "services:\n  a:\n    command:\n    - torchrun\n    - x.py\n    environment:\n      B: '1'\n";
        let rewritten = Rewritten::of("compose.yaml", file).expect("a file");
        let of = |word: &str| {
            let line = rewritten.text.lines().position(|line| line.contains(word)).expect("a line");
            rewritten.line_of(line + 1)
        };
        assert_eq!((of("torchrun"), of("x.py"), of("\"B\"")), (4, 5, 7));
        assert!(matches!(yaml::document(&rewritten.text).expect("YAML").kind, NodeKind::Map(_)));
    }
}
