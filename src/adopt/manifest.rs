//! The commands of containers in Kubernetes manifests and Compose files, read as scripts are.

use std::rc::Rc;

use text::shell::{TokenKind, bare, tokens};
use text::text;
use text::yaml::{self, Node, NodeKind};

use crate::adopted::{Adopted, Line, configs_of, launches_of, lines_of};
use crate::classes::Class;
use crate::commands::of_variable;
use crate::profile;
use crate::script::Script;
use crate::words::quoted;

/// Keys whose value is a command line, in the order in which they form one.
const COMMANDS: [&str; 3] = ["entrypoint", "command", "args"];

struct Reader<'a> {
    file: &'a str,
    adopted: Adopted,
}

pub(crate) fn read(name: &str, text: &str) -> Option<Adopted> {
    let documents = yaml::documents(text);
    let adopted = Adopted {
        name: name.to_owned(),
        launches: Vec::new(),
        profile: None,
        script: String::new(),
        lines: Vec::new(),
        configs: Vec::new(),
    };
    let file = profile::file_of(name);
    let mut reader = Reader { file: &file, adopted };
    for unreadable in &documents.unreadable {
        let (first, why) = (unreadable.line, unreadable.text.clone());
        reader.adopted.lines.push(Line { first, last: first, class: Class::NotUnderstood, why });
    }
    documents.roots.iter().for_each(|root| reader.node(root));
    let mut adopted = reader.adopted;
    if adopted.launches.is_empty() {
        return None;
    }
    others(text, &mut adopted.lines);
    Some(adopted)
}

/// Lines that start nothing stay.
fn others(text: &str, lines: &mut Vec<Line>) {
    let covered =
        |at: usize, lines: &[Line]| lines.iter().any(|line| (line.first..=line.last).contains(&at));
    let mut more: Vec<Line> = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let bare = line.trim();
        let at = at + 1;
        if bare.is_empty() || bare.starts_with('#') || bare == "---" || covered(at, lines) {
            continue;
        }
        match more.last_mut().filter(|before| before.last + 1 == at) {
            Some(before) => before.last = at,
            None => more.push(Line {
                first: at,
                last: at,
                class: Class::Kept,
                why: text!("the manifest: it stays", "清单内容，保持不变"),
            }),
        }
    }
    lines.append(&mut more);
    lines.sort_by_key(|line| (line.first, line.class));
}

impl Reader<'_> {
    fn node(&mut self, node: &Node) {
        match &node.kind {
            NodeKind::List(items) => items.iter().for_each(|item| self.node(item)),
            NodeKind::Map(_) => {
                let words: Vec<(&str, &Node)> =
                    COMMANDS.iter().filter_map(|key| Some((*key, node.get(key)?))).collect();
                if !words.is_empty() {
                    self.command(&words);
                }
                if let Some(variables) = node.get("env").or_else(|| node.get("environment")) {
                    self.variables(variables);
                }
                for (key, _, value) in node.entries() {
                    if !COMMANDS.contains(&key) {
                        self.node(value);
                    }
                }
            }
            NodeKind::Scalar { .. } => {}
        }
    }

    fn variables(&mut self, variables: &Node) {
        let mut found: Vec<(String, Option<String>, usize, usize)> = Vec::new();
        for (name, key, value) in variables.entries() {
            found.push((name.to_owned(), value.text().map(str::to_owned), key.line, value.line));
        }
        for item in variables.list() {
            if let Some(name) = item.get("name").and_then(Node::text) {
                let value = item.get("value");
                let last = value.map_or(item.line, |value| value.line);
                let value = value.and_then(Node::text).map(str::to_owned);
                found.push((name.to_owned(), value, item.line, last));
            } else if let Some((name, value)) = item.text().and_then(|text| text.split_once('=')) {
                found.push((name.to_owned(), Some(value.to_owned()), item.line, item.line));
            }
        }
        for (name, value, first, last) in found {
            if let Some((class, why)) = of_variable(&name, value.as_deref()) {
                self.adopted.lines.push(Line { first, last: last.max(first), class, why });
            }
        }
    }

    /// A container's command line.
    fn command(&mut self, parts: &[(&str, &Node)]) {
        // A text is split as a shell splits it.
        let mut words: Vec<(String, &Node)> = Vec::new();
        let mut lines = (usize::MAX, 0);
        for (_, node) in parts {
            lines.0 = lines.0.min(node.line);
            match &node.kind {
                NodeKind::List(items) => {
                    let texts = items.iter().map(Rc::as_ref);
                    words.extend(texts.filter_map(|item| Some((item.text()?.to_owned(), item))));
                }
                NodeKind::Scalar { text, .. } => {
                    let found =
                        tokens(text).into_iter().filter(|token| token.kind == TokenKind::Word);
                    words.extend(found.map(|token| (bare(token.text), *node)));
                }
                NodeKind::Map(_) => return,
            }
        }
        lines.1 = words
            .iter()
            .map(|(text, node)| node.line_of(text.matches('\n').count()))
            .max()
            .unwrap_or(lines.0);
        let shell = words.first().is_some_and(|(word, _)| {
            ["bash", "sh", "dash", "zsh"].contains(&word.rsplit('/').next().unwrap_or_default())
        });
        let option = words.iter().position(|(word, _)| {
            word.starts_with('-') && !word.starts_with("--") && word.contains('c')
        });
        match option.and_then(|at| words.get(at + 1)).filter(|_| shell) {
            Some((script, node)) => self.shell_script(script, node, parts),
            None => self.words(&words, lines, parts),
        }
    }

    fn shell_script(&mut self, text: &str, node: &Node, parts: &[(&str, &Node)]) {
        let script = Script::read(text, self.file);
        if script.launches.is_empty() {
            return;
        }
        let before = node.line_of(0) - 1;
        let mut lines = lines_of(&script, text, before);
        if !node.is_block() {
            lines.iter_mut().for_each(|line| (line.first, line.last) = (node.line, node.line));
        }
        self.adopted.lines.append(&mut lines);
        // What is before the script starts the shell.
        let starts = parts.iter().map(|(_, node)| node.line).filter(|line| *line < node.line);
        for line in starts {
            self.adopted.lines.push(Line {
                first: line,
                last: line,
                class: Class::Kept,
                why: text!("starts the shell of the script", "启动脚本的 shell"),
            });
        }
        self.taken(&script, before, &script.text);
    }

    fn words(&mut self, words: &[(String, &Node)], lines: (usize, usize), parts: &[(&str, &Node)]) {
        // Kubernetes replaces $(NAME) by itself; Compose knows ${NAME}, which is left as it is.
        let names = |(word, _): &(String, &Node)| {
            let names = word.split("$(").skip(1).filter_map(|rest| rest.split(')').next());
            names.map(str::to_owned).collect::<Vec<_>>()
        };
        let names: Vec<String> = words.iter().flat_map(names).collect();
        let to_shell = |word: &str| match word.contains("$(") {
            true => format!("\"{}\"", word.replace("$(", "${").replace(')', "}")),
            false => quoted(word),
        };
        let line: Vec<String> = words.iter().map(|(word, _)| to_shell(word)).collect();
        let line = line.join(" ");
        let script = Script::read(&line, self.file);
        if script.launches.is_empty() {
            return;
        }
        for mut read in lines_of(&script, &line, 0) {
            (read.first, read.last) = lines;
            self.adopted.lines.push(read);
        }
        let found: Vec<String> = tokens(&script.text)
            .iter()
            .filter(|token| token.kind == TokenKind::Word)
            .map(|token| {
                let word = names.iter().fold(bare(token.text), |word, name| {
                    word.replace(&format!("${{{name}}}"), &format!("$({name})"))
                });
                serde_json::Value::String(word).to_string()
            })
            .collect();
        let key = parts.first().map_or("command", |(key, _)| *key);
        self.taken(&script, lines.0 - 1, &format!("{key}: [{}]\n", found.join(", ")));
    }

    fn taken(&mut self, script: &Script, before: usize, text: &str) {
        self.adopted.launches.extend(launches_of(script, before));
        self.adopted.configs.extend(configs_of(script));
        self.adopted.script.push_str(text);
        if !self.adopted.script.ends_with('\n') {
            self.adopted.script.push('\n');
        }
        if self.adopted.profile.is_none() {
            self.adopted.profile = profile::of(script, self.file)
                .filter(|_| script.launches.iter().any(|it| !it.engine_args.is_empty()));
        }
    }
}
