//! Shell scripts, sbatch files and Compose files as manifests, so that the rules about commands and variables hold for
//! them too.
//!
//! Takes the text of a file; gives the text of a manifest with the same commands, and for each of its lines that of the
//! file. Only the rules in [`RULES_OF_SCRIPTS`] are about such a file: it says nothing about a pod.

use std::fmt::Write;

use serde_json::Value;

use adopt::{ContainerWord, InputKind, Service, services};
use text::yaml;
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
        match InputKind::of(name, text) {
            InputKind::Script => {
                rewritten.container(1);
                rewritten.line("    command: [bash, -c]", 1);
                rewritten.line("    args:", 1);
                rewritten.script(text, |at| at + 1);
            }
            InputKind::Compose => {
                let root = yaml::document(text)?;
                services(&root).iter().for_each(|service| rewritten.service(service));
            }
            _ => return None,
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
        self.line("    - |", line(0));
        // The first line gives the indentation.
        self.line("      #", line(0));
        for (at, source) in text.lines().enumerate() {
            let clean: String =
                source.chars().map(|c| if c.is_control() && c != '\t' { ' ' } else { c }).collect();
            self.line(&format!("      {clean}"), line(at));
        }
    }

    fn service(&mut self, service: &Service) {
        let string = |text: &str| Value::String(text.to_owned()).to_string();
        self.container(service.line);
        if !service.words.is_empty() {
            self.line("    command:", service.line);
        }
        for word in &service.words {
            // Compose replaces $NAME by itself, and gives a container `$` for `$$`.
            let text = word.text.replace("$$", "$");
            match text.contains('\n') {
                true => self.script(&text, |at| ContainerWord::line_of(word, at)),
                false => self.line(&format!("    - {}", string(&text)), word.line_of(0)),
            }
        }
        if !service.variables.is_empty() {
            self.line("    env:", service.line);
        }
        for variable in &service.variables {
            let value = variable.value.as_deref().unwrap_or_default();
            let (name, value) = (string(&variable.name), string(value));
            self.line(&format!("    - {{name: {name}, value: {value}}}"), variable.first);
        }
    }
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
