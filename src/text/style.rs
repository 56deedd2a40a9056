//! Colours of the text for people.
//!
//! Texts are built with colours, and the code that prints them removes the colours if they are not wanted
//! (`src/linux/terminal.rs`). So a text names the role of each word, and nothing else depends on the reader. Files
//! and JSON are built from other values and never hold a colour.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::rank::GlobalRank;

/// Whether texts for people have colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Color {
    /// At a terminal, unless the environment says otherwise.
    #[default]
    Auto,
    Always,
    Never,
}

/// The role of a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// A failure, a refusal.
    Fail,
    /// A warning.
    Warn,
    /// A good end, a check that passed.
    Good,
    /// A remark.
    Info,
    /// The first line of a block.
    Title,
    /// Sources of values, and everything else that is seldom read.
    Dim,
}

impl Style {
    const fn code(self) -> &'static str {
        match self {
            Style::Fail => "1;31",
            Style::Warn => "33",
            Style::Good => "32",
            Style::Info => "36",
            Style::Title => "1",
            Style::Dim => "2",
        }
    }

    /// The sequence that begins the style.
    pub fn begins(self) -> String {
        format!("\x1b[{}m", self.code())
    }
}

/// Ends every style.
pub const END: &str = "\x1b[0m";

/// `words` in a style.
pub fn paint(style: Style, words: &str) -> String {
    format!("{}{words}{END}", style.begins())
}

/// The colours of ranks: the dark and bright colours of the terminal, without red and yellow, which mark failures and
/// warnings, and without black, white and grey.
const RANKS: &[&str] = &["36", "32", "35", "34", "96", "92", "95", "94"];

/// The colour of a rank, the same in each run.
pub fn of_rank(rank: GlobalRank) -> &'static str {
    let count = RANKS.len();
    let at = usize::try_from(rank.0).unwrap_or_default() % count;
    RANKS.get(at).copied().unwrap_or("36")
}

/// The length of a leading sequence that sets a colour (`ESC [ digits ; m`). No other sequence leaves everything else
/// unchanged.
pub fn sequence(bytes: &[u8]) -> Option<usize> {
    let parameters = bytes.strip_prefix(b"\x1b[")?;
    let length = parameters.iter().position(|byte| !matches!(byte, b'0'..=b'9' | b';' | b':'))?;
    (parameters.get(length) == Some(&b'm')).then_some(length + 3)
}

/// The text without colours.
pub fn plain(text: &str) -> Cow<'_, str> {
    if !text.contains('\x1b') {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\x1b') {
        let (before, from) = rest.split_at(at);
        out.push_str(before);
        let length = sequence(from.as_bytes());
        if length.is_none() {
            out.push('\x1b');
        }
        rest = from.get(length.unwrap_or(1)..).unwrap_or_default();
    }
    out.push_str(rest);
    Cow::Owned(out)
}

/// The style that is in effect after `text`, if it began in `before`.
pub fn after<'a>(before: &'a str, text: &'a str) -> &'a str {
    let mut last = before;
    let mut rest = text;
    while let Some(at) = rest.find('\x1b') {
        let from = rest.get(at..).unwrap_or_default();
        let length = sequence(from.as_bytes()).unwrap_or(1);
        last = match from.get(..length) {
            Some("\x1b[m" | END) => "",
            Some(set) if length > 1 => set,
            _ => last,
        };
        rest = from.get(length..).unwrap_or_default();
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_removed_and_nothing_else() {
        let painted = paint(Style::Warn, "warning");
        assert_eq!(painted, "\x1b[33mwarning\x1b[0m");
        assert_eq!(plain(&painted), "warning");
        assert!(matches!(plain("no colour, 训练"), Cow::Borrowed(_)));
        assert_eq!(plain("a\x1b[1;38:5:2mb\x1b[mc\x1b[2Jd\x1b"), "abc\x1b[2Jd\x1b");
    }

    #[test]
    fn the_style_in_effect_is_known() {
        assert_eq!(after("", "a\x1b[33mb"), "\x1b[33m");
        assert_eq!(after("\x1b[33m", "b\x1b[0mc"), "");
        assert_eq!(after("\x1b[33m", "no change"), "\x1b[33m");
    }

    #[test]
    fn neighbour_ranks_differ_in_colour_without_failure_colours() {
        for rank in 0..1000 {
            let (one, next) = (of_rank(GlobalRank(rank)), of_rank(GlobalRank(rank + 1)));
            assert!(one != next && !["31", "33", "91", "93"].contains(&one), "{rank}");
        }
    }
}
