//! The command lines and variables of containers, as a Kubernetes manifest or a Compose file writes them.
//!
//! Takes values of YAML; gives words and variables with their lines. Compose splits a text into words by blanks and
//! quotes; every other file gives it to a shell.

use std::collections::BTreeMap;
use std::rc::Rc;

use text::shell::{TokenKind, bare, tokens};
use text::yaml::{Node, NodeKind};

use crate::programs::script_of_shell;

/// Keys whose value is a command line, in the order in which they form one.
pub(crate) const COMMANDS: [&str; 3] = ["entrypoint", "command", "args"];

/// A word of a command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerWord {
    pub text: String,
    /// Line of the file on which it begins.
    line: usize,
    /// Its lines are those of the file.
    is_block: bool,
}

impl ContainerWord {
    fn of(node: &Node) -> ContainerWord {
        let text = node.text().unwrap_or_default().to_owned();
        ContainerWord { text, line: node.line, is_block: node.is_block() }
    }

    /// Line of the file of the n-th line (from 0) of the word.
    pub fn line_of(&self, offset: usize) -> usize {
        if self.is_block { self.line + offset } else { self.line }
    }

    /// The last line of the file that it is on.
    pub(crate) fn last_line(&self) -> usize {
        self.line_of(self.text.trim_end().matches('\n').count())
    }
}

/// What a container runs.
#[derive(Debug)]
pub(crate) enum CommandLine {
    Words(Vec<ContainerWord>),
    /// A script for a shell, in a word of a command line or by itself.
    Script(ContainerWord),
}

impl CommandLine {
    /// Joins the values of [`COMMANDS`].
    pub(crate) fn of(parts: &[(&str, &Node)], is_compose: bool) -> CommandLine {
        if let [(_, one)] = parts
            && !is_compose
            && matches!(one.kind, NodeKind::Scalar { .. })
        {
            return CommandLine::Script(ContainerWord::of(one));
        }
        let words: Vec<_> = parts.iter().flat_map(|(_, node)| words_of(node)).collect();
        let texts: Vec<&str> = words.iter().map(|word| word.text.as_str()).collect();
        match script_of_shell(&texts).and_then(|at| words.get(at)) {
            Some(script) => CommandLine::Script(script.clone()),
            None => CommandLine::Words(words),
        }
    }
}

/// The items of a list, or the words of a text.
fn words_of(node: &Node) -> Vec<ContainerWord> {
    let text = match &node.kind {
        NodeKind::List(items) => {
            let texts = items.iter().filter(|item| item.text().is_some());
            return texts.map(|item| ContainerWord::of(item)).collect();
        }
        NodeKind::Scalar { .. } => node.text().unwrap_or_default(),
        NodeKind::Map(_) => return Vec::new(),
    };
    let mut words: Vec<ContainerWord> = Vec::new();
    let (mut end, mut line) = (0, 0);
    for token in tokens(text) {
        let before = text.get(end..token.at).unwrap_or_default();
        line += before.matches('\n').count();
        let word = bare(token.text);
        match words.last_mut().filter(|_| end == token.at) {
            _ if token.kind == TokenKind::Comment || token.text == "\n" => {}
            // An operator of a shell is a part of the word here.
            Some(last) if before.is_empty() => last.text.push_str(&word),
            _ => words.push(ContainerWord {
                text: word,
                line: node.line_of(line),
                is_block: node.is_block(),
            }),
        }
        line += token.text.matches('\n').count();
        end = token.at + token.text.len();
    }
    words
}

/// A variable of a container.
#[derive(Debug, PartialEq, Eq)]
pub struct ContainerVariable {
    pub name: String,
    /// None: it comes from elsewhere.
    pub value: Option<String>,
    pub first: usize,
    pub(crate) last: usize,
}

/// The variables in the value of `env` or `environment`: a map, a list of names and values, or of `NAME=value`.
pub(crate) fn variables(node: &Node) -> Vec<ContainerVariable> {
    let text = |value: &Node| value.text().map(str::to_owned);
    let mut found = Vec::new();
    for (name, key, value) in node.entries() {
        let (name, first, last) = (name.to_owned(), key.line, value.line.max(key.line));
        found.push(ContainerVariable { name, value: text(value), first, last });
    }
    for item in node.list() {
        let (first, last) = (item.line, item.get("value").map_or(item.line, |value| value.line));
        if let Some(name) = item.get("name").and_then(Node::text) {
            let value = item.get("value").and_then(text);
            found.push(ContainerVariable { name: name.to_owned(), value, first, last });
        } else if let Some((name, value)) = item.text().and_then(|text| text.split_once('=')) {
            let (name, value) = (name.to_owned(), Some(value.to_owned()));
            found.push(ContainerVariable { name, value, first, last });
        }
    }
    found
}

/// A service of a Compose file.
#[derive(Debug)]
pub struct Service {
    pub line: usize,
    /// Its whole command line.
    pub words: Vec<ContainerWord>,
    pub variables: Vec<ContainerVariable>,
}

/// The services of a Compose file.
pub fn services(root: &Node) -> Vec<Service> {
    let entries = root.get("services").into_iter().flat_map(Node::entries);
    let of = |(_, key, service): (&str, &Node, &Node)| {
        let parts = COMMANDS.iter().filter_map(|key| service.get(key));
        let words = parts.flat_map(words_of).collect();
        let variables = service.get("environment").map(variables).unwrap_or_default();
        Service { line: key.line, words, variables }
    };
    entries.map(of).collect()
}

/// A container with a command line, wherever it is in the file.
pub(crate) struct Container<'a> {
    /// The names around it and its own: an object's, a group's, a service's.
    pub(crate) path: Vec<String>,
    pub(crate) parts: Vec<(&'static str, &'a Node)>,
}

/// All containers below a value, and all variables.
pub(crate) fn containers<'a>(
    node: &'a Node,
    path: &mut Vec<String>,
    found: &mut Vec<Container<'a>>,
    set: &mut Vec<ContainerVariable>,
) {
    // Keys that name no part of a job.
    const FRAMES: &[&str] = &[
        "spec",
        "template",
        "containers",
        "initContainers",
        "metadata",
        "jobTemplate",
        "services",
        "jobs",
        "items",
    ];
    let items: &[Rc<Node>] = node.list();
    items.iter().for_each(|item| containers(item, path, found, set));
    let own = node.get("name").or_else(|| node.at(&["metadata", "name"])).and_then(Node::text);
    path.extend(own.map(str::to_owned));
    let parts: Vec<_> = COMMANDS.iter().filter_map(|key| Some((*key, node.get(key)?))).collect();
    if !parts.is_empty() {
        found.push(Container { path: path.clone(), parts });
    }
    let values = node.get("env").or_else(|| node.get("environment"));
    set.extend(values.into_iter().flat_map(variables));
    for (key, _, value) in node.entries().filter(|(key, ..)| !COMMANDS.contains(key)) {
        let names = !FRAMES.contains(&key);
        path.extend(names.then(|| key.to_owned()));
        containers(value, path, found, set);
        if names {
            path.pop();
        }
    }
    if own.is_some() {
        path.pop();
    }
}

/// The shortest end of each path that no other path has; with the line where there is none.
pub(crate) fn labels(containers: &[&Container<'_>]) -> Vec<String> {
    let end = |one: &Container<'_>, length: usize| {
        one.path.get(one.path.len().saturating_sub(length)..).unwrap_or_default().join("/")
    };
    let longest = containers.iter().map(|one| one.path.len()).max().unwrap_or(0);
    let mut labels: Vec<Option<String>> = vec![None; containers.len()];
    for length in 1..=longest {
        let mut number: BTreeMap<String, usize> = BTreeMap::new();
        containers.iter().for_each(|one| *number.entry(end(one, length)).or_default() += 1);
        for (label, one) in labels.iter_mut().zip(containers).filter(|(label, _)| label.is_none()) {
            *label = Some(end(one, length)).filter(|end| number.get(end) == Some(&1));
        }
    }
    let line = |one: &Container<'_>| one.parts.iter().map(|(_, node)| node.line).min().unwrap_or(1);
    let others = |(label, one): (Option<String>, &&Container<'_>)| {
        label.unwrap_or_else(|| format!("{}:{}", end(one, 1), line(one)))
    };
    labels.into_iter().zip(containers).map(others).collect()
}
