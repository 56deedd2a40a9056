//! Shell scripts, sbatch files and Compose files as manifests, so that the rules about commands and variables hold for
//! them too.
//!
//! Takes the text of a file; gives the text of a manifest with the same commands, and for each of its lines that of the
//! file. Only the rules in [`RULES_OF_SCRIPTS`] are about such a file: it says nothing about a pod.

use std::fmt::Write;

use serde_json::Value;

use adopt::shell::is_name;
use adopt::{ContainerWord, InputKind, Service, services};
use text::yaml;
use verdict::Id;

/// The rules about commands, sizes and variables.
pub(super) const RULES_OF_SCRIPTS: &[Id] = &[
    Id::EnvNccl,
    Id::NodesCount,
    Id::SparesSeats,
    Id::SparesLost,
    Id::LayoutWorld,
    Id::LayoutHeads,
    Id::LayoutAlone,
    Id::ProfileSelect,
    Id::MasterSelf,
    Id::CommandCut,
    Id::CommandString,
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
            match word.text.contains('\n') {
                true => {
                    let text = word.text.replace("$$", "$");
                    self.script(&text, |at| ContainerWord::line_of(word, at));
                }
                false => {
                    let text = as_in_a_pod(&word.text, service);
                    self.line(&format!("    - {}", string(&text)), word.line_of(0));
                }
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

/// Compose replaces `$NAME` and `${NAME:-…}` by variables of its caller, and gives a container `$` for `$$`. A word with
/// the former is unknown, as one with `$(NAME)` in a pod is where the container has no such variable.
fn as_in_a_pod(text: &str, service: &Service) -> String {
    let own = |name: &str| service.variables.iter().any(|variable| variable.name == name);
    let (mut out, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once('$') {
        out.push_str(before);
        let inside = after.strip_prefix('{').and_then(|inside| inside.split_once('}'));
        let (form, left) = inside.unwrap_or_else(|| {
            let end = after.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
            after.split_at(end.unwrap_or(after.len()))
        });
        let name = form.split([':', '-', '?', '+']).next().unwrap_or(form);
        match is_name(name) && !own(name) {
            true => {
                let _ = write!(out, "$({name})");
                rest = left;
            }
            false => {
                out.push('$');
                rest = after.strip_prefix('$').unwrap_or(after);
            }
        }
    }
    out + rest
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
    fn compose_variables_are_unknown() {
        let file = "services:\n  a:\n    environment: {OWN: b}\n    command: [x]\n";
        let services = services(&yaml::document(file).expect("YAML"));
        for (text, expected) in [
            ("--n=${N:-2} $M", "--n=$(N) $(M)"),
            ("$$N $${M}", "$N ${M}"),
            ("${OWN} $OWN", "${OWN} $OWN"),
            ("${N $", "${N $"),
            ("5$ ${} ü$", "5$ ${} ü$"),
        ] {
            assert_eq!(as_in_a_pod(text, &services[0]), expected, "{text}");
        }
    }

    #[test]
    fn compose_command_lines_are_whole() {
        for form in [
            "entrypoint: bash -c \"export NCCL_TIMEOUT=5; torchrun x.py\"",
            "entrypoint: bash -c\n    command: '\"export NCCL_TIMEOUT=5; torchrun x.py\"'",
            "entrypoint: [bash, -c]\n    command: [\"export NCCL_TIMEOUT=5; torchrun x.py\"]",
        ] {
            let manifest = crate::Manifest {
                name: "compose.yaml".to_owned(),
                bytes: format!("services:\n  a:\n    {form}\n").into_bytes(),
            };
            let found = crate::lint(&[manifest], None, settings::EMBEDDED).findings;
            let ids: Vec<Id> = found.iter().map(|one| one.id).collect();
            assert_eq!(ids, [Id::EnvNccl], "{form}: {found:?}");
        }
        let lost = b"services:\n  a:\n    entrypoint: [sh, -c]\n    command: torchrun x.py\n";
        let manifest = crate::Manifest { name: "compose.yaml".to_owned(), bytes: lost.to_vec() };
        let found = crate::lint(&[manifest], None, settings::EMBEDDED).findings;
        assert!(found.iter().any(|one| one.id == Id::CommandString && one.line == 4), "{found:?}");
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
