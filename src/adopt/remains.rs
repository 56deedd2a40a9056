//! What of a script remains: the last part of its reading.
//!
//! Takes the commands with their classes; decides about pipelines, waiting loops, lines that print sizes, environments
//! and assignments by what stays, and writes the script anew.

use std::collections::BTreeSet;
use std::ops::Range;

use text::order::{InOrder, Ordered};
use text::text;

use crate::classes::{Class, Note, NoteKind};
use crate::commands::{MEMBERSHIP, asks_for_a_peer, of_command, shown_by_plan};
use crate::script::{Item, Script, Slurm};
use crate::shell::is_name;
use crate::stays::is_about_node_0;

impl Script {
    /// What only reads the output of a command that goes, goes with it.
    pub(crate) fn pipelines(&mut self) {
        let mut at = 1;
        while at < self.items.len() {
            let (before, after) = self.items.split_at_mut(at);
            let (Some(before), Some(item)) = (before.last_mut(), after.first()) else { break };
            let goes = before.operator == "|"
                && before.class == Class::Unnecessary
                && item.launches.is_empty();
            if goes {
                before.span.end = item.span.end;
                before.operator.clone_from(&item.operator);
                self.items.remove(at);
            } else {
                at += 1;
            }
        }
    }

    /// Lines that only print what the launch line got as options.
    fn prints(&mut self, text: &str) {
        let mut names: BTreeSet<String> = MEMBERSHIP.iter().map(|name| (*name).to_owned()).in_set();
        for (range, _) in self.edits.iter().filter(|(_, line)| line.contains("ranklaunch")) {
            names.extend(expanded_in(text.get(range.clone()).unwrap_or_default()));
        }
        for item in &mut self.items {
            let source = text.get(item.span.clone()).unwrap_or_default();
            let prints = matches!(source.split_whitespace().next(), Some("echo" | "printf"));
            let elsewhere =
                source.contains(['>', '`']) || source.contains("$(") || item.operator == "|";
            if prints && !elsewhere && expanded_in(source).iter().any(|name| names.contains(name)) {
                item.class = Class::Unnecessary;
                item.why = shown_by_plan();
            }
        }
    }

    /// What is wrong with the way in which Slurm starts the launches.
    fn slurm_mistakes(&mut self) {
        let Slurm { nodes, tasks_per_node: tasks } = self.slurm;
        for launch in self.launches.iter_mut().filter(|launch| !launch.is_tasks) {
            let from = launch.launcher;
            if nodes > 1 && !launch.is_carried {
                launch.notes.push(Note {
                    kind: NoteKind::Wrong,
                    text: text!(
                        "#SBATCH asks for {nodes} nodes, but without srun only the first one runs the line: put `srun --ntasks-per-node=1` before it",
                        "#SBATCH 申请了 {nodes} 个节点，但没有 srun 时只有第一个节点执行该行：请在前面加 `srun --ntasks-per-node=1`"
                    ),
                });
            } else if tasks > 1 && launch.is_carried {
                launch.notes.push(Note {
                    kind: NoteKind::Wrong,
                    text: text!(
                        "#SBATCH asks for {tasks} tasks per node, and each of them starts {from}: --ntasks-per-node=1",
                        "#SBATCH 每个节点申请 {tasks} 个任务，每个都会启动 {from}：应为 --ntasks-per-node=1"
                    ),
                });
            }
        }
    }

    /// A loop that only waits until another node answers goes as a whole.
    pub(crate) fn wait_loops(&mut self, text: &str) {
        let word = |item: &Item| {
            let source = text.get(item.span.clone()).unwrap_or_default();
            source.split([' ', '\n', ';']).next().unwrap_or_default().to_owned()
        };
        let launches = self.items.iter().filter(|item| !item.launches.is_empty());
        let launches: Vec<&str> = launches.filter_map(|item| text.get(item.span.clone())).collect();
        let launches = launches.join("\n");
        let mut at = 0;
        while at < self.items.len() {
            let Some(item) = self.items.get(at) else { break };
            let source = text.get(item.span.clone()).unwrap_or_default();
            let words: Vec<String> = source.split_whitespace().map(str::to_owned).collect();
            let waits = matches!(word(item).as_str(), "while" | "until") && asks_for_a_peer(&words);
            at += 1;
            if !waits {
                continue;
            }
            let body = self.items.get(at..).unwrap_or_default();
            if !is_about_node_0(source, &launches) {
                continue;
            }
            let only_waits = |item: &Item| {
                matches!(
                    word(item).as_str(),
                    "sleep" | "echo" | "printf" | ":" | "break" | "exit" | "[" | "[[" | "test"
                ) || asks_for_a_peer(&[word(item)])
                    || !item.assigns.is_empty()
            };
            let end = body.iter().position(|item| !only_waits(item));
            let is_end = |end: &usize| body.get(*end).is_some_and(|item| word(item) == "done");
            let Some(length) = end.filter(is_end) else { continue };
            let (_, why) = of_command(&["nc".to_owned()]);
            let whole = self.items.get(at - 1).map(|it| it.span.start).unwrap_or_default()
                ..body.get(length).map(|it| it.span.end).unwrap_or_default();
            self.items.drain(at..=at + length);
            if let Some(item) = self.items.get_mut(at - 1) {
                item.span = whole;
                item.depth = item.depth.saturating_sub(1);
                item.class = Class::Unnecessary;
                item.why = why;
            }
        }
    }

    /// Decides about assignments and environments, by what stays.
    pub(crate) fn settle(&mut self, text: &str) {
        if self.launches.is_empty() {
            return;
        }
        self.prints(text);
        self.slurm_mistakes();
        let python = self.items.iter().any(|item| item.runs_python);
        let options: Vec<String> = self
            .items
            .iter()
            .filter(|item| !python && item.depth == 0)
            .filter_map(|item| item.environment.clone())
            .filter(|option| !option.is_empty() && !option.contains('$'))
            .collect();
        let option = options.last().filter(|_| options.len() == 1).cloned();
        let several =
            self.launches.iter().any(|launch| launch.sizes.several && launch.sizes.nodes.is_some());
        let slurm = self.slurm.nodes > 0;
        for item in &mut self.items {
            if item.environment.is_some()
                && let Some(option) = &option
            {
                item.class = Class::Unnecessary;
                item.why =
                    text!("{option} finds it without activation", "{option} 无需激活即可找到");
            }
            let membership = item.assigns.iter().any(|name| MEMBERSHIP.contains(&name.as_str()));
            let reads_flags = self
                .launches
                .iter()
                .all(|launch| !launch.sizes.several || launch.sizes.nodes.is_some());
            if membership && item.class == Class::Unnecessary && several && !slurm && !reads_flags {
                item.class = Class::Kept;
            }
        }
        if let Some(option) = option {
            for (_, line) in &mut self.edits {
                let starts = line.starts_with("ranklaunch") || line.contains(" ranklaunch ");
                if starts && !line.contains(" --python ") {
                    *line = line.replacen("ranklaunch", &format!("ranklaunch {option}"), 1);
                }
            }
            for launch in &mut self.launches {
                if let Some(argv) = &mut launch.argv
                    && !argv.iter().any(|word| word == "--python")
                {
                    let words = option.split(' ').map(str::to_owned);
                    argv.splice(0..0, words);
                }
            }
        }
        self.assignments(text);
    }

    /// An assignment goes if nothing that stays uses its name, and stays if something does.
    fn assignments(&mut self, text: &str) {
        loop {
            let mut used = BTreeSet::new();
            for item in self.items.iter().filter(|item| stays(item)) {
                let own: BTreeSet<&str> = item.assigns.iter().map(String::as_str).in_set();
                let source = self.after(text, &item.span);
                used.extend(
                    names_in(&source).into_iter().filter(|name| !own.contains(name.as_str())),
                );
            }
            let sourced = self.sourced;
            let mut changed = false;
            for item in self
                .items
                .iter_mut()
                .filter(|item| !item.assigns.is_empty() && item.launches.is_empty() && !item.pinned)
            {
                let says = item.class;
                let uses = (sourced && says == Class::Kept)
                    || item.assigns.iter().any(|name| used.contains(name));
                if uses && says == Class::Unnecessary {
                    item.class = Class::Kept;
                    item.why = text!("a line that stays uses it", "保留的行会用到它");
                    changed = true;
                } else if !uses && says == Class::Kept && !item.exports {
                    item.class = Class::Unnecessary;
                    item.why = text!("nothing that stays uses it", "保留的行不会用到它");
                    changed = true;
                }
            }
            if !changed {
                break;
            }
        }
    }

    /// The text of a place after the edits.
    fn after(&self, text: &str, span: &Range<usize>) -> String {
        let mut edits: Vec<_> = self
            .edits
            .iter()
            .filter(|(at, _)| at.start >= span.start && at.end <= span.end)
            .collect();
        edits.order_by_key(|(at, _)| at.start);
        let mut out = String::new();
        let mut at = span.start;
        for (range, line) in edits {
            out.push_str(text.get(at..range.start).unwrap_or_default());
            out.push_str(line);
            at = at.max(range.end);
        }
        out.push_str(text.get(at..span.end).unwrap_or_default());
        out
    }

    /// The new script.
    pub(crate) fn write(&mut self, text: &str) {
        let mut edits = self.edits.clone();
        let mut tee_of = None;
        for (at, item) in self.items.iter().enumerate() {
            if item.operator == "|" && (item.runs_launch || !item.launches.is_empty()) {
                tee_of = Some(at);
            }
            if !item.launches.is_empty() {
                continue;
            }
            if item.class == Class::Unnecessary {
                let before =
                    tee_of.filter(|before| before + 1 == at).and_then(|it| self.items.get(it));
                let source = text.get(item.span.clone()).unwrap_or_default();
                match before {
                    Some(before) if source.starts_with("tee") => {
                        edits.push((before.span.end..item.span.end, String::new()));
                    }
                    _ => edits.push(removal(text, item)),
                }
            } else if item.class == Class::Wrong && !item.assigns.is_empty() && item.depth == 0 {
                edits.push(removal(text, item));
            } else if item.exports
                && item.assigns.iter().all(|name| MEMBERSHIP.contains(&name.as_str()))
            {
                // It stays for the script, not for the ranks.
                let start = item.span.start;
                let source = text.get(item.span.clone()).unwrap_or_default();
                if source.starts_with("export ") && source.contains('=') {
                    edits.push((start..start + "export ".len(), String::new()));
                }
            }
        }
        edits.order_by_key(|(at, _)| (at.start, at.end));
        let mut out = String::new();
        let mut at = 0;
        for (range, line) in edits {
            if range.start < at {
                continue;
            }
            out.push_str(text.get(at..range.start).unwrap_or_default());
            out.push_str(&line);
            at = range.end;
        }
        out.push_str(text.get(at..).unwrap_or_default());
        self.text = out;
        let one = matches!(self.places.as_slice(), [(_, false)]);
        let plain = |item: &Item| {
            let source = text.get(item.span.clone()).unwrap_or_default();
            let first = source.split_whitespace().next().unwrap_or_default();
            item.class == Class::Replaced
                || !stays(item)
                || (!item.pinned
                    && ((!item.assigns.is_empty() && item.depth == 0)
                        || matches!(first, "cd" | "set" | "export")
                        || (first == "echo" && !source.contains('>') && item.operator != "|")))
        };
        self.only_a_job = one && self.slurm.nodes == 0 && self.items.iter().all(plain);
        let kept: BTreeSet<&String> =
            self.items.iter().filter(|item| stays(item)).flat_map(|item| &item.assigns).in_set();
        let is_member = |name: &String| MEMBERSHIP.contains(&name.as_str());
        self.environment.retain(|(name, _)| kept.contains(name) && !is_member(name));
        self.only_a_job &=
            self.items.iter().filter(|item| item.exports && stays(item)).all(|item| {
                item.assigns.iter().all(|name| {
                    is_member(name) || self.environment.iter().any(|(known, _)| known == name)
                })
            });
    }
}

fn stays(item: &Item) -> bool {
    match item.class {
        Class::Unnecessary => false,
        Class::Wrong => item.assigns.is_empty(),
        Class::Replaced | Class::NotUnderstood | Class::Kept => true,
    }
}

/// The edit that takes a command out: with its lines where it is alone on them.
fn removal(text: &str, item: &Item) -> (Range<usize>, String) {
    let before = text.get(..item.span.start).unwrap_or_default();
    let start = before.rfind('\n').map_or(0, |at| at + 1);
    let rest = text.get(item.span.end..).unwrap_or_default();
    let end = item.span.end + rest.find('\n').map_or(rest.len(), |at| at + 1);
    let alone = before.get(start..).is_some_and(|lead| lead.trim().is_empty());
    let tail = text.get(item.span.end..end).unwrap_or_default().trim();
    let ends = tail.is_empty() || tail.starts_with('#') || tail == ";";
    let inline = text.get(item.span.end..).is_some_and(|rest| rest.starts_with("; "));
    if item.depth == 0
        && inline
        && item.operator == ";"
        && !tail.trim_start_matches(';').trim().is_empty()
    {
        return (item.span.start..item.span.end + 2, String::new());
    }
    if item.depth == 0 && alone && ends && matches!(item.operator.as_str(), "\n" | ";" | "") {
        (start..end, String::new())
    } else {
        (item.span.clone(), ":".to_owned())
    }
}

/// Words that may be names of variables.
fn names_in(source: &str) -> BTreeSet<String> {
    source
        .split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
        .filter(|word| is_name(word))
        .map(str::to_owned)
        .in_set()
}

/// Names after a `$`.
fn expanded_in(source: &str) -> BTreeSet<String> {
    let pieces = source.split('$').skip(1).map(|piece| piece.trim_start_matches(['{', '(', '#']));
    let name = |piece: &str| {
        let end = piece.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        piece.get(..end.unwrap_or(piece.len())).unwrap_or_default().to_owned()
    };
    pieces.map(name).filter(|name| is_name(name)).collect()
}
