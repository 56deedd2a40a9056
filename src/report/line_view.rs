//! A line of a rank's output as `ranklaunch logs` and `ranklaunch top` show it.

use std::fmt::Write as _;
use std::time::{Duration, UNIX_EPOCH};

use time::OffsetDateTime;
use time::macros::format_description;

use logs::{LogLine, Writer};
use text::escape::printable;
use text::lang::{Lang, Text};
use text::text;

/// The beginning of each line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LineStyle {
    /// Columns of the number of a rank; 0 names no rank, since there is only one.
    pub width: usize,
    pub timestamps: bool,
    pub lang: Lang,
}

impl LineStyle {
    /// The style for ranks up to this one.
    pub fn of(last_rank: u32, timestamps: bool, lang: Lang) -> LineStyle {
        let width = if last_rank == 0 { 0 } else { last_rank.to_string().len() };
        LineStyle { width, timestamps, lang }
    }
}

/// `[r03!] text`, as on the console, without an end of the line.
pub fn line(line: &LogLine, style: LineStyle) -> String {
    let mut out = String::with_capacity(line.text.len() + 40);
    if style.timestamps {
        let at = line.at_ms.and_then(|ms| UNIX_EPOCH.checked_add(Duration::from_millis(ms)));
        let _ = write!(out, "{} ", at.map(OffsetDateTime::from).map_or("-".to_owned(), stamp));
    }
    out.push_str(&prefix(line, style.width));
    if let Some(text) = left_out(line.left_out) {
        out.push_str(text.get(style.lang));
    }
    out.push_str(&printable(&line.text).replace('\n', " "));
    out
}

/// The mark of a line that is too long to be shown whole.
fn left_out(bytes: u64) -> Option<Text> {
    match bytes {
        0 => None,
        LogLine::COUNTED.. => Some(text!(
            "[ranklaunch: the first {bytes} bytes or more are left out] ",
            "[ranklaunch：省略了开头至少 {bytes} 字节] "
        )),
        _ => Some(text!(
            "[ranklaunch: the first {bytes} bytes are left out] ",
            "[ranklaunch：省略了开头 {bytes} 字节] "
        )),
    }
}

/// UTC, RFC 3339, always of the same width.
fn stamp(at: OffsetDateTime) -> String {
    let format =
        format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:3]Z");
    at.format(format).unwrap_or_default()
}

fn prefix(line: &LogLine, width: usize) -> String {
    let mark = if line.is_err { "!" } else { "" };
    let number = line.number;
    match line.writer {
        Writer::Engine => "[engine] ".to_owned(),
        _ if width == 0 => String::new(),
        Writer::Rank => format!("[r{number:0width$}{mark}] "),
        Writer::Command => format!("[n{number:0width$}{mark}] "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_look_as_on_the_console() {
        let of = |writer, number, is_err| LogLine {
            at_ms: Some(1_500),
            attempt: 0,
            writer,
            number,
            is_err,
            text: "a\x1b[2Jb".to_owned(),
            left_out: 0,
        };
        let style = LineStyle::of(12, false, Lang::En);
        assert_eq!(line(&of(Writer::Rank, 3, true), style), "[r03!] a\\x1b[2Jb");
        assert_eq!(line(&of(Writer::Command, 1, false), style), "[n01] a\\x1b[2Jb");
        assert_eq!(line(&of(Writer::Engine, 0, true), style), "[engine] a\\x1b[2Jb");
        let alone = LineStyle::of(0, true, Lang::En);
        assert_eq!(line(&of(Writer::Rank, 0, false), alone), "1970-01-01T00:00:01.500Z a\\x1b[2Jb");
        let unknown = LogLine { at_ms: None, ..of(Writer::Rank, 0, false) };
        assert_eq!(line(&unknown, alone), "- a\\x1b[2Jb");
        let cut = |left_out| LogLine { left_out, ..of(Writer::Rank, 3, false) };
        assert_eq!(
            line(&cut(7), style),
            "[r03] [ranklaunch: the first 7 bytes are left out] a\\x1b[2Jb"
        );
        let uncounted = LineStyle { lang: Lang::Zh, ..style };
        assert_eq!(
            line(&cut(LogLine::COUNTED + 1), uncounted),
            "[r03] [ranklaunch：省略了开头至少 67108865 字节] a\\x1b[2Jb"
        );
    }
}
