//! Launch lines inside a word: of `bash -c`, of `$(…)`, of a variable that another line runs.

use std::ops::Range;

use text::lang::Text;
use text::text;

use crate::classes::Class;
use crate::commands::composed;
use crate::programs::{commands_in, names_a_launcher};
use crate::script::{DEEPEST, Item, Part, Script};
use crate::shell::ShellCommand;

impl Script {
    /// `$CMD …`, `eval $CMD`, `srun bash -c "$CMD"`: whether a launch line is in the variable.
    pub(crate) fn runs_a_variable(&self, whole: &str, words: &[String]) -> bool {
        let text = words.join(" ");
        let names = |text: &str, name: &str| {
            text.contains(&format!("${name}")) || text.contains(&format!("${{{name}"))
        };
        let mut made: Vec<&str> = Vec::new();
        for before in self.items.iter().filter(|item| !item.assigns.is_empty()) {
            let source = whole.get(before.span.clone()).unwrap_or_default();
            if !before.launches.is_empty() || made.iter().any(|name| names(source, name)) {
                made.extend(before.assigns.iter().map(String::as_str));
            }
        }
        made.iter().any(|name| names(&text, name))
    }

    /// Launches in `$(…)`, whose output the script reads.
    pub(crate) fn substitutions(
        &mut self,
        part: Part<'_>,
        command: &ShellCommand,
        item: &mut Item,
    ) {
        for span in &command.spans {
            for place in commands_in(part.text.get(span.clone()).unwrap_or_default()) {
                let place = span.start + place.start..span.start + place.end;
                let inside = part.inside(place, false);
                if names_a_launcher(inside.text) {
                    self.follow(inside, item);
                }
            }
        }
    }

    /// Reads a part inside a command; gives its first launch, whose command is replaced with it.
    fn follow(&mut self, part: Part<'_>, item: &mut Item) -> Option<usize> {
        let known = self.launches.len();
        self.items.push(Item::new(0..0, item.class, item.why.clone(), item.depth));
        self.commands(part);
        let launches = self.items.pop().map(|it| it.launches).unwrap_or_default();
        if self.launches.len() == known {
            return None;
        }
        item.launches.extend(launches);
        item.class = Class::Replaced;
        item.why = self.inside();
        Some(known)
    }

    /// The reason of a line with the last launch inside it.
    fn inside(&self) -> Text {
        let inside = self.launches.last().map(|launch| (launch.launcher, launch.line.trim_end()));
        let (from, to) = inside.unwrap_or_default();
        text!("{from} in it becomes `{to} …`", "其中的 {from} 改为 `{to} …`")
    }

    /// The script in a word, such as that of `bash -c`.
    pub(crate) fn nested(
        &mut self,
        part: Part<'_>,
        command: &ShellCommand,
        at: usize,
        script: Range<usize>,
        item: &mut Item,
    ) {
        let Some(start) = command.spans.get(at).map(|span| span.start) else { return };
        let before = part.text.get(start..start + script.start);
        let is_double = before.is_some_and(|before| before.ends_with('"'));
        let inside = part.inside(start + script.start..start + script.end, is_double);
        if part.deep >= DEEPEST || !names_a_launcher(inside.text) {
            return;
        }
        // A shell splits the value of a variable at its line ends too.
        let is_value = before.is_some_and(|before| before.contains('='));
        let text = if is_value { joined(inside.text) } else { inside.text.to_owned() };
        let Some(first) = self.follow(Part { text: &text, ..inside }, item) else {
            (item.class, item.why) = composed();
            return;
        };
        let redirected = self.without_redirections(part, command);
        if let Some(launch) = self.launches.get_mut(first) {
            launch.notes.extend(redirected.note);
        }
    }
}

/// The text with blanks for line ends before an option, which continues the line; every place stays.
fn joined(text: &str) -> String {
    let continues = |rest: &str| rest.trim_start().starts_with('-');
    let mut out = String::new();
    for line in text.split_inclusive('\n') {
        out.push_str(line);
        let ends = line.ends_with('\n') && !line.ends_with("\\\n");
        if ends && text.get(out.len()..).is_some_and(continues) {
            out.pop();
            out.push(' ');
        }
    }
    out
}
