//! The properties of a stream: whether it is a terminal, its width, and whether it gets colours.
//!
//! Takes a stream, the setting and the environment; gives a [`Look`], which turns text for people
//! into the text that is written there.

use std::borrow::Cow;
use std::io::{IsTerminal as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use crate::sys::{PollFd, PollFlags, ProcessGroup, poll};
use text::columns;
use text::style::{self, Color};

/// The form of text for people on one stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Look {
    pub colour: bool,
    /// Columns of the terminal; None: lines are not wrapped.
    pub width: Option<usize>,
}

impl Look {
    pub fn of(stream: impl AsFd, color: Color) -> Look {
        let is_terminal = stream.as_fd().is_terminal();
        let colour = has_colour(color, is_terminal, |name| std::env::var(name).ok());
        Look { colour, width: width(stream) }
    }

    /// Lines that do not fit are wrapped at words, below their own beginning.
    pub fn shown<'a>(self, text: &'a str) -> Cow<'a, str> {
        let text = if self.colour { Cow::Borrowed(text) } else { style::plain(text) };
        let fits = |width| text.lines().all(|line| columns::columns(line) <= width);
        match self.width.filter(|width| !fits(*width)) {
            Some(width) => Cow::Owned(columns::wrapped(&text, width)),
            None => text,
        }
    }
}

/// Columns of a terminal; None if the stream is not a terminal, or does not know its width.
pub fn width(stream: impl AsFd) -> Option<usize> {
    let stream = stream.as_fd();
    if !stream.is_terminal() {
        return None;
    }
    let size = rustix::termios::tcgetwinsize(stream).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

/// Whether this launcher's job is in the foreground of the terminal, as its shell sees it: the
/// shell knows the guard, our parent, and not us.
pub fn is_foreground(stream: impl AsFd) -> bool {
    let parent = rustix::process::getppid().and_then(|guard| ProcessGroup::of(guard.as_raw_pid()));
    is_same_group(ProcessGroup::foreground(stream), parent)
}

/// Every group whose leader is outside of our PID namespace has the number 0, so 0 equals no group.
fn is_same_group(shown: Option<ProcessGroup>, ours: Option<ProcessGroup>) -> bool {
    shown == ours && shown.is_some_and(|group| group.0 > 0)
}

/// A stream that may be a terminal, whose width may change.
#[derive(Debug)]
pub struct Screen {
    /// None: it is no terminal.
    terminal: Option<OwnedFd>,
    pub colour: bool,
}

impl Screen {
    /// The screen of a stream that does not exist.
    pub fn none() -> Screen {
        Screen { terminal: None, colour: false }
    }

    pub fn of(stream: impl AsFd, color: Color) -> Screen {
        let colour = Look::of(&stream, color).colour;
        let terminal = stream.as_fd().is_terminal().then(|| stream.as_fd().try_clone_to_owned());
        Screen { terminal: terminal.and_then(Result::ok), colour }
    }

    pub fn is_terminal(&self) -> bool {
        self.terminal.is_some()
    }

    pub fn look(&self) -> Look {
        Look { colour: self.colour, width: self.terminal.as_ref().and_then(width) }
    }
}

/// Whether a line may be drawn and erased: some terminals only print.
pub fn can_draw() -> bool {
    std::env::var("TERM").is_ok_and(|term| !term.is_empty() && term != "dumb")
}

/// Erases from the beginning of the row to the end of the screen. The cursor stands at the beginning
/// of the line that shows the state of the job, and nothing is below that line.
pub const ERASE: &[u8] = b"\r\x1b[J";

/// Erases the last line that the agent has drawn, as its guard: before a shell writes there, or
/// after the agent was lost. Never waits.
pub fn erase_for_agent() {
    erase(is_same_group(ProcessGroup::foreground(std::io::stderr()), Some(ProcessGroup::own())));
}

/// Erases the same line as the agent itself, before its last words.
pub fn erase_own() {
    erase(can_draw() && is_foreground(std::io::stderr()));
}

fn erase(is_ours: bool) {
    let err = std::io::stderr();
    let mut ready = [PollFd::new(&err, PollFlags::OUT)];
    if is_ours && poll(&mut ready, Some(Duration::ZERO)).is_ok_and(|count| count > 0) {
        let _ = err.lock().write_all(ERASE);
    }
}

/// The setting decides. By itself a terminal has colours, unless NO_COLOR (no-color.org), CLICOLOR=0
/// or TERM=dumb forbids them; CLICOLOR_FORCE (bixense.com/clicolors) gives them to any stream.
fn has_colour(color: Color, is_terminal: bool, variable: impl Fn(&str) -> Option<String>) -> bool {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty());
    match color {
        Color::Always => true,
        Color::Never => false,
        Color::Auto if set("NO_COLOR").is_some() => false,
        Color::Auto if set("CLICOLOR_FORCE").is_some_and(|value| value != "0") => true,
        Color::Auto => {
            let is_off = set("CLICOLOR").is_some_and(|value| value == "0");
            is_terminal && !is_off && set("TERM").is_none_or(|term| term != "dumb")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_outside_of_our_pid_namespace_equals_none() {
        for (shown, ours, expected) in [
            (Some(7), Some(7), true),
            (Some(7), Some(8), false),
            (Some(0), Some(0), false),
            (None, None, false),
            (None, Some(7), false),
        ] {
            let [of_it, own] = [shown, ours].map(|group| group.map(ProcessGroup));
            assert_eq!(is_same_group(of_it, own), expected, "{shown:?} {ours:?}");
        }
    }

    #[test]
    fn colours_follow_setting_then_environment_then_terminal() {
        let of = |color, is_terminal, set: &[(&str, &str)]| {
            let find = |name: &str| set.iter().find(|(one, _)| *one == name);
            has_colour(color, is_terminal, |name| find(name).map(|(_, value)| (*value).to_owned()))
        };
        let forced = [("CLICOLOR_FORCE", "1")];
        for (color, is_terminal, set, expected) in [
            (Color::Auto, true, &[][..], true),
            (Color::Auto, false, &[], false),
            (Color::Auto, true, &[("NO_COLOR", "1")], false),
            (Color::Auto, true, &[("NO_COLOR", "")], true),
            (Color::Auto, true, &[("CLICOLOR", "0")], false),
            (Color::Auto, true, &[("TERM", "dumb")], false),
            (Color::Auto, false, &forced, true),
            (Color::Auto, false, &[("CLICOLOR_FORCE", "0")], false),
            (Color::Auto, false, &[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")], false),
            (Color::Always, false, &[("NO_COLOR", "1")], true),
            (Color::Never, true, &forced, false),
        ] {
            assert_eq!(of(color, is_terminal, set), expected, "{color:?} {is_terminal} {set:?}");
        }
    }

    #[test]
    fn only_text_wider_than_terminal_is_wrapped() {
        let look = Look { colour: false, width: Some(40) };
        assert_eq!(look.shown("short\n  also short\n"), "short\n  also short\n");
        assert_eq!(
            look.shown("  hint: \x1b[1mone\x1b[0m two three four five six seven eight\n"),
            "  hint: one two three four five six\n    seven eight\n"
        );
        let whole = Look::default();
        let long = "word ".repeat(60);
        assert_eq!(whole.shown(&long), long);
    }
}
