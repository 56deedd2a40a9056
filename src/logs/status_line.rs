//! The last line of a terminal: the current state of the job, below all other output.
//!
//! Owns the drawn text. The writer of the console erases the line before each write and draws it again afterwards, a
//! few times a second at most. The cursor stays at the beginning of the line, so that one sequence erases the line even
//! after a narrower window has wrapped it. Must never wait: the line is drawn only if the terminal takes bytes at once.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use linux::sys::{PollFd, PollFlags, poll};
use linux::terminal;
use text::columns::{columns, start_within};
use text::style::{END, Style};

/// Minimum time between two drawings.
const PAUSE: Duration = Duration::from_millis(250);
/// Narrower windows have no status line.
const NARROWEST: usize = 20;

#[derive(Debug, Default)]
pub(super) struct StatusLine {
    /// The text of the line; None if there is no line.
    text: Option<String>,
    /// Whether the line is dimmed relative to the other lines.
    dim: bool,
    /// Whether the line is on the screen.
    drawn: bool,
    /// Whether `text` differs from the text drawn last.
    changed: bool,
    last: Option<Instant>,
}

impl StatusLine {
    pub(super) fn set(&mut self, text: Option<&str>, dim: bool) {
        self.dim = dim;
        if self.text.as_deref() != text {
            self.text = text.map(str::to_owned);
            self.changed = true;
        }
    }

    /// Whether there is something to draw or to erase.
    pub(super) fn is_pending(&self) -> bool {
        match self.text {
            Some(_) => self.changed || !self.drawn,
            None => self.drawn,
        }
    }

    /// Whether the line is on the screen and should not be.
    pub(super) fn must_go(&self) -> bool {
        self.drawn && self.text.is_none()
    }

    /// The time at which the line may be drawn; None if the screen is up to date.
    pub(super) fn due(&self) -> Option<Instant> {
        let now = Instant::now();
        let after = self.last.and_then(|last| last.checked_add(PAUSE));
        let due = if self.text.is_none() { now } else { after.unwrap_or(now) };
        self.is_pending().then_some(due)
    }

    /// Whether the line must be erased before anything else is written.
    pub(super) fn take_drawn(&mut self) -> bool {
        std::mem::take(&mut self.drawn)
    }

    /// The bytes to write now, if the terminal is ours and takes them. A line that cannot be drawn is tried again
    /// later.
    pub(super) fn next(&mut self, terminal: &File) -> Vec<u8> {
        self.last = Some(Instant::now());
        let is_ours = terminal::is_foreground(terminal);
        let mut ready = [PollFd::new(terminal, PollFlags::OUT)];
        let takes_bytes = poll(&mut ready, Some(Duration::ZERO)).is_ok_and(|count| count > 0);
        if !is_ours {
            // Text that a shell has written since must not be erased.
            self.drawn = false;
        }
        if !is_ours || !takes_bytes {
            return Vec::new();
        }
        let mut bytes = if self.drawn { terminal::ERASE.to_vec() } else { Vec::new() };
        let width = terminal::width(terminal.as_fd()).filter(|width| *width >= NARROWEST);
        let line =
            self.text.as_deref().zip(width).map(|(text, width)| fitted(text, width, self.dim));
        self.drawn = line.is_some();
        self.changed = false;
        if let Some(line) = line {
            bytes.extend_from_slice(line.as_bytes());
        }
        bytes
    }
}

/// The line with the cursor back at its beginning. It is one column shorter than the terminal, since a full row begins
/// a new row.
fn fitted(text: &str, width: usize, dim: bool) -> String {
    let room = width - 1;
    let shown = match columns(text) <= room {
        true => text.to_owned(),
        false => format!("{}…", start_within(text, room - 1)),
    };
    let begin = if dim { Style::Dim.begins() } else { String::new() };
    format!("{END}{begin}{shown}{END}\r")
}

/// Writes the prepared bytes. An error will affect the next line as well, and is reported then.
pub(super) fn draw(mut terminal: &File, bytes: &[u8]) {
    let _ = terminal.write_all(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use text::style::plain;

    #[test]
    fn status_line_never_fills_the_row() {
        for text in
            ["short", "正在等待节点 1（0:03/30:00）：节点 1 尚未连接，请稍候", &"x".repeat(300)]
        {
            for width in 20..90 {
                let line = fitted(text, width, width % 2 == 0);
                let shown = plain(&line);
                let shown = shown.strip_suffix('\r').expect("the cursor is at the beginning");
                assert!(columns(shown) < width, "{width}: {shown:?}");
                assert!(!shown.contains(['\n', '\r', '\x1b']), "{shown:?}");
            }
        }
        assert_eq!(plain(&fitted("等待节点", 8, true)), "等待节…\r");
    }

    #[test]
    fn changed_status_line_is_due_with_a_pause() {
        let mut line = StatusLine::default();
        assert_eq!((line.due(), line.is_pending()), (None, false));
        line.set(Some("one"), true);
        assert!(line.due().is_some_and(|due| due <= Instant::now()));
        let nowhere = File::open("/dev/null").expect("a file");
        assert!(line.next(&nowhere).is_empty(), "no terminal");
        assert!(line.due().is_some_and(|due| due > Instant::now()), "tried again later");
        line.set(None, true);
        assert!(!line.is_pending(), "nothing was drawn");
    }
}
