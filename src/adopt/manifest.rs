//! The commands of containers in Kubernetes manifests and Compose files, read as scripts are.
//!
//! Each container with a launch has its own answer; equal ones are one.

use std::collections::BTreeMap;

use text::lang::Text;
use text::order::Ordered;
use text::shell::{TokenKind, bare, tokens};
use text::text;
use text::yaml;

use crate::adopted::{Adopted, AdoptedLaunch, Answer, Line, launches_of, lines_of};
use crate::classes::Class;
use crate::commands::{composed, never_closed, of_variable};
use crate::containers::{
    CommandLine, Container, ContainerVariable, ContainerWord, containers, labels,
};
use crate::input::InputKind;
use crate::profile;
use crate::programs::{begins_a_launch, names_a_launcher, no_launch};
use crate::script::{Item, Script};
use crate::sizes::Files;
use crate::words::quoted;

/// The command line of a container, read.
struct Reading {
    answer: Answer,
    launches: Vec<AdoptedLaunch>,
    lines: Vec<Line>,
}

/// # Errors
/// No command in it is a launch.
pub(crate) fn read(name: &str, text: &str, files: Files<'_>) -> Result<Adopted, Text> {
    let documents = yaml::documents(text);
    let is_compose = InputKind::of(name, text) == InputKind::Compose;
    let mut lines: Vec<Line> = Vec::new();
    for unreadable in &documents.unreadable {
        let (first, why) = (unreadable.line, unreadable.text.clone());
        lines.push(Line { first, last: first, class: Class::NotUnderstood, why });
    }
    let (mut found, mut set) = (Vec::new(), Vec::new());
    for root in &documents.roots {
        containers(root, &mut Vec::new(), &mut found, &mut set);
    }
    for ContainerVariable { name, value, first, last } in set {
        if let Some((class, why)) = of_variable(&name, value.as_deref()) {
            lines.push(Line { first, last: last.max(first), class, why });
        }
    }
    let file = profile::file_of(name);
    let of =
        |container: &Container<'_>, file: &str| container_of(container, is_compose, file, files);
    // The containers of each different answer.
    let mut groups: Vec<(Reading, Vec<&Container<'_>>)> = Vec::new();
    let mut known: BTreeMap<(String, Option<String>), usize> = BTreeMap::new();
    for container in &found {
        let Some(reading) = of(container, &file) else { continue };
        if reading.launches.is_empty() {
            lines.extend(reading.lines);
            continue;
        }
        let Answer { script, profile, .. } = &reading.answer;
        let key = (script.clone(), profile.as_ref().map(|profile| profile.text.clone()));
        let at = *known.entry(key).or_insert(groups.len());
        match groups.get_mut(at) {
            Some((same, members)) => {
                same.launches.extend(reading.launches);
                same.lines.extend(reading.lines);
                members.push(container);
            }
            None => groups.push((reading, vec![container])),
        }
    }
    let (mut launches, mut answers) = (Vec::new(), Vec::new());
    let members: Vec<&Container<'_>> = groups.iter().flat_map(|(_, it)| it.clone()).collect();
    let mut names = labels(&members).into_iter();
    let several = groups.len() > 1;
    for (mut reading, members) in groups {
        let labels: Vec<String> = names.by_ref().take(members.len()).collect();
        if several
            && reading.answer.profile.is_some()
            && let (Some(first), Some(label)) = (members.first(), labels.first())
            && let Some(own) = of(first, &profile::file_of_container(&file, label))
        {
            reading.answer = own.answer;
        }
        for launch in &mut reading.launches {
            launch.container = Some(labels.join(", "));
        }
        reading.answer.containers = labels;
        launches.extend(reading.launches);
        lines.extend(reading.lines);
        answers.push(reading.answer);
    }
    if launches.is_empty() {
        let unread = lines.iter().find(|line| line.class == Class::NotUnderstood);
        return Err(match unread {
            Some(Line { first, why: Text { en, zh }, .. }) => {
                text!(
                    "line {first}: {en}; nothing else is a launch",
                    "第 {first} 行：{zh}；其余没有启动命令"
                )
            }
            None => no_launch(text),
        });
    }
    others(text, &mut lines);
    launches.order_by_key(|launch| launch.line);
    Ok(Adopted { name: name.to_owned(), launches, answers, lines })
}

/// Lines that start nothing stay.
fn others(text: &str, lines: &mut Vec<Line>) {
    let mut covered = vec![false; text.lines().count() + 2];
    for line in lines.iter() {
        covered.iter_mut().take(line.last + 1).skip(line.first).for_each(|it| *it = true);
    }
    let mut more: Vec<Line> = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let bare = line.trim();
        let at = at + 1;
        let is_covered = covered.get(at) == Some(&true);
        if bare.is_empty() || bare.starts_with('#') || bare == "---" || is_covered {
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
    lines.order_by_key(|line| (line.first, line.class));
}

/// None: nothing of it is a launch.
fn container_of(
    container: &Container<'_>,
    is_compose: bool,
    file: &str,
    files: Files<'_>,
) -> Option<Reading> {
    let parts = &container.parts;
    match CommandLine::of(parts, is_compose) {
        CommandLine::Script(word) => script_of(&word, parts, file, files),
        CommandLine::Words(words) => words_of(&words, parts, file, files),
    }
}

fn script_of(
    word: &ContainerWord,
    parts: &[(&str, &yaml::Node)],
    file: &str,
    files: Files<'_>,
) -> Option<Reading> {
    let script = Script::read(&word.text, file, files);
    let from = word.line_of(0);
    if script.launches.is_empty() {
        let source = |item: &Item| word.text.get(item.span.clone()).unwrap_or_default();
        let is_launcher = |item: &Item| begins_a_launch(source(item));
        let (first, why) = match script.unclosed.filter(|_| names_a_launcher(&word.text)) {
            Some(unclosed) => (word.line_of(unclosed.line), never_closed(unclosed.open)),
            None if script.items.iter().any(is_launcher) => (from, composed().1),
            None => return None,
        };
        let last = word.last_line().max(first);
        let lines = vec![Line { first, last, class: Class::NotUnderstood, why }];
        let answer = Answer { containers: Vec::new(), script: String::new(), profile: None };
        return Some(Reading { answer, launches: Vec::new(), lines });
    }
    let mut lines = lines_of(&script, from - 1);
    let mut launches = launches_of(&script, from - 1);
    if word.line_of(1) == from {
        lines.iter_mut().for_each(|line| (line.first, line.last) = (from, from));
        launches.iter_mut().for_each(|launch| launch.line = from);
    }
    // What is before the script starts the shell.
    for (_, node) in parts.iter().filter(|(_, node)| node.line < from) {
        let (first, last, class) = (node.line, node.line, Class::Kept);
        let why = text!("starts the shell of the script", "启动脚本的 shell");
        lines.push(Line { first, last, class, why });
    }
    let text = format!("{}\n", script.text.trim_end_matches('\n'));
    Some(reading(&script, text, launches, lines, file))
}

fn words_of(
    words: &[ContainerWord],
    parts: &[(&str, &yaml::Node)],
    file: &str,
    files: Files<'_>,
) -> Option<Reading> {
    // Kubernetes replaces $(NAME) by itself; Compose knows ${NAME}, which is left as it is.
    let names = |word: &ContainerWord| {
        let names = word.text.split("$(").skip(1).filter_map(|rest| rest.split(')').next());
        names.map(str::to_owned).collect::<Vec<_>>()
    };
    let names: Vec<String> = words.iter().flat_map(names).collect();
    // What a template or Compose fills in is no value yet.
    let to_shell = |ContainerWord { text, .. }: &ContainerWord| match text.contains("$(") {
        true => format!("\"{}\"", text.replace("$(", "${").replace(')', "}")),
        false if text.contains('$') && !text.contains(['"', '`', '\\']) => format!("\"{text}\""),
        false => quoted(text),
    };
    let line: Vec<String> = words.iter().map(to_shell).collect();
    let script = Script::read(&line.join(" "), file, files);
    if script.launches.is_empty() {
        return None;
    }
    let first = parts.iter().map(|(_, node)| node.line).min().unwrap_or(1);
    let last = words.iter().map(ContainerWord::last_line).max().unwrap_or(first).max(first);
    let mut lines = lines_of(&script, 0);
    lines.iter_mut().for_each(|line| (line.first, line.last) = (first, last));
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
    let text = format!("{key}: [{}]\n", found.join(", "));
    let launches = launches_of(&script, first - 1);
    Some(reading(&script, text, launches, lines, file))
}

fn reading(
    script: &Script,
    text: String,
    launches: Vec<AdoptedLaunch>,
    lines: Vec<Line>,
    file: &str,
) -> Reading {
    let has_arguments = script.launches.iter().any(|launch| !launch.engine_args.is_empty());
    let profile = profile::of(script, file).filter(|_| has_arguments);
    let answer = Answer { containers: Vec::new(), script: text, profile };
    Reading { answer, launches, lines }
}
