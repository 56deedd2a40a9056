//! What an input becomes, and the lines of it.

use text::lang::Text;
use text::order::Ordered;
use text::text;

use crate::classes::{Class, NoteKind};
use crate::launch::Launch;
use crate::script::Script;

/// What one input becomes.
#[derive(Debug)]
pub struct Adopted {
    pub(crate) name: String,
    pub(crate) launches: Vec<AdoptedLaunch>,
    /// One for a script, one for each different command line of a manifest's containers.
    pub(crate) answers: Vec<Answer>,
    pub(crate) lines: Vec<Line>,
}

/// The input, or the command line of a container, with ranklaunch in it.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The containers of a manifest that it is for.
    pub(crate) containers: Vec<String>,
    pub(crate) script: String,
    /// The profile that replaces all of it, or holds the arguments of its engine.
    pub(crate) profile: Option<AdoptedProfile>,
}

/// One launch line.
#[derive(Debug)]
pub(crate) struct AdoptedLaunch {
    pub(crate) line: usize,
    /// The container of a manifest.
    pub(crate) container: Option<String>,
    pub(crate) launcher: &'static str,
    pub(crate) nodes: Option<String>,
    pub(crate) nproc: Option<String>,
    pub(crate) may_not_run: bool,
    /// Words of ranklaunch, without its name, if all are known.
    pub(crate) argv: Option<Vec<String>>,
}

#[derive(Debug)]
pub(crate) struct AdoptedProfile {
    pub(crate) file: String,
    pub(crate) text: String,
    /// It replaces the whole input.
    pub(crate) is_all: bool,
}

/// What becomes of one or several lines.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    /// From 1; several lines are one command.
    pub(crate) first: usize,
    pub(crate) last: usize,
    pub(crate) class: Class,
    pub(crate) why: Text,
}

impl Adopted {
    /// The input's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Adds a mistake that was found in the input.
    pub fn add_wrong(&mut self, line: usize, why: Text) {
        self.lines.push(Line { first: line, last: line, class: Class::Wrong, why });
        self.lines.order_by_key(|line| line.first);
    }
}

/// The lines of a script that begins `before` lines into its file.
pub(crate) fn lines_of(script: &Script, before: usize) -> Vec<Line> {
    let mut lines = Vec::new();
    for item in &script.items {
        let first = script.lines.at(item.span.start) + before;
        let last = script.lines.at(item.span.end.max(item.span.start + 1) - 1) + before;
        lines.push(Line { first, last, class: item.class, why: item.why.clone() });
        for note in
            item.launches.iter().filter_map(|at| script.launches.get(*at)).flat_map(|it| &it.notes)
        {
            let class = match note.kind {
                NoteKind::Unnecessary => Class::Unnecessary,
                NoteKind::Wrong => Class::Wrong,
                NoteKind::Changes => Class::Replaced,
                NoteKind::NotUnderstood => Class::NotUnderstood,
            };
            lines.push(Line { first, last, class, why: note.text.clone() });
        }
    }
    lines
}

pub(crate) fn launches_of(script: &Script, before: usize) -> Vec<AdoptedLaunch> {
    let places = script.launches.iter().zip(&script.places);
    let of = |(launch, (line, may_not_run)): (&Launch, &(usize, bool))| AdoptedLaunch {
        line: line + before,
        container: None,
        launcher: launch.launcher,
        nodes: launch.sizes.nodes.clone(),
        nproc: launch.sizes.nproc.clone(),
        may_not_run: *may_not_run,
        argv: launch.argv.clone(),
    };
    places.map(of).collect()
}

/// Gives a class to the lines that no command covers: what closes a construct stays, anything else was not read.
pub(crate) fn uncovered(text: &str, lines: &mut Vec<Line>) {
    const CLOSING: &[&str] = &[
        "fi", "done", "esac", "then", "else", "do", "{", "}", "(", ")", "))", ";;", "&", "&&",
        "||", "\\", ";",
    ];
    let mut covered = vec![false; text.lines().count() + 2];
    for line in lines.iter() {
        covered.iter_mut().take(line.last + 1).skip(line.first).for_each(|it| *it = true);
    }
    for (at, line) in text.lines().enumerate() {
        let bare = line.trim();
        if bare.is_empty() || bare.starts_with('#') || covered.get(at + 1) == Some(&true) {
            continue;
        }
        let words = bare.split_whitespace().map(|word| word.trim_matches(['"', '\'']));
        let closes = words.take_while(|word| !word.starts_with('#')).all(|word| {
            word.is_empty()
                || CLOSING.contains(&word)
                || CLOSING.contains(&word.trim_end_matches(';'))
        });
        let (class, why) = match closes {
            true => (Class::Kept, text!("part of a construct", "结构的一部分")),
            false => (Class::NotUnderstood, text!("not read", "未读取")),
        };
        lines.push(Line { first: at + 1, last: at + 1, class, why });
    }
    lines.order_by_key(|line| (line.first, line.class));
}
