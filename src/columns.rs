//! Text in columns: how wide it is on a terminal, aligned tables, lines broken to fit.
//!
//! Takes words and widths; gives lines. Knows nothing of what they say.

use std::fmt::Write as _;

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

/// Rows in aligned columns; the last column is not padded.
pub(crate) fn table(out: &mut String, rows: Vec<Vec<String>>) {
    /// A longer cell does not widen its column.
    const WIDEST: usize = 44;
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..count)
        .map(|column| {
            rows.iter()
                .filter_map(|row| row.get(column))
                .map(|cell| columns(cell))
                .filter(|width| *width <= WIDEST)
                .max()
                .unwrap_or(0)
        })
        .collect();
    for row in rows {
        let mut line = String::new();
        for (cell, wide) in row.iter().zip(&widths) {
            let _ = write!(line, "  {}", padded(cell, *wide));
        }
        let _ = writeln!(out, "{}", line.trim_end());
    }
}

/// Terminal columns: Chinese characters and full-width marks take two.
pub(crate) fn columns(text: &str) -> usize {
    text.width()
}

fn is_wide(letter: char) -> bool {
    letter.width() == Some(2)
}

pub(crate) fn padded(text: &str, wide: usize) -> String {
    format!("{text}{:1$}", "", wide.saturating_sub(columns(text)))
}

/// A line that is broken at blanks and between Chinese characters to fit `width`, its further
/// lines indented. A word that is longer than a line stays whole, so that it can be copied.
pub(crate) fn fold(out: &mut String, line: &str, indent: usize, width: Option<usize>) {
    let Some(width) = width.filter(|width| *width > indent + 20) else {
        let _ = writeln!(out, "{}", line.trim_end());
        return;
    };
    // A mark that may not begin a line has its place at the end of the one before.
    let width = width - 2;
    let (mut at, mut is_new) = (0, true);
    let mut gap = String::new();
    let mut rest = line;
    while let Some(first) = rest.chars().next() {
        let end = match first {
            ' ' => rest.find(|letter| letter != ' ').unwrap_or(rest.len()),
            // It stays with what it opens.
            '（' | '「' | '《' | '[' => {
                first.len_utf8() + word(rest.strip_prefix(first).unwrap_or(""))
            }
            _ => word(rest),
        };
        let (piece, after) = rest.split_at(end);
        rest = after;
        if first == ' ' && !(at == 0 && is_new) {
            gap = piece.to_owned();
            continue;
        }
        // Marks such as 。 and ， do not begin a line.
        let may_begin = !"。，；：、）」".contains(first);
        if !is_new && may_begin && at + columns(&gap) + columns(piece) > width {
            let _ = write!(out, "\n{:indent$}", "");
            at = indent;
            gap.clear();
        }
        let _ = write!(out, "{gap}{piece}");
        at += columns(&gap) + columns(piece);
        gap.clear();
        is_new = false;
    }
    out.push('\n');
}

/// Bytes of the first word: one Chinese character, or all up to a blank or to the next one.
fn word(text: &str) -> usize {
    let first = text.chars().next().filter(|first| is_wide(*first));
    let end = |letter| letter == ' ' || is_wide(letter);
    first.map_or_else(|| text.find(end).unwrap_or(text.len()), char::len_utf8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chinese_columns_are_aligned() {
        assert_eq!((columns("节点"), columns("node")), (4, 4));
        let mut out = String::new();
        table(&mut out, vec![vec!["节点".into(), "a".into()], vec!["abcde".into(), "b".into()]]);
        assert_eq!(out, "  节点   a\n  abcde  b\n");
    }

    #[test]
    fn lines_end_where_chinese_lines_may() {
        let folded = |line: &str, width: usize| {
            let mut out = String::new();
            fold(&mut out, line, 0, Some(width));
            out
        };
        for (line, expected) in [
            ("一二三四五六七八九十一二", "一二三四五六七八九十\n一二\n"),
            // Neither an end nor a comma begins a line, and no bracket ends one.
            ("一二三四五六七八九十，二", "一二三四五六七八九十，\n二\n"),
            ("一二三四五六七八九（十）", "一二三四五六七八九\n（十）\n"),
            ("一二三四五六七八（json）", "一二三四五六七八\n（json）\n"),
            ("a word at a time is kept", "a word at a time is\nkept\n"),
            ("一（", "一（\n"),
            ("一二三四五六七八九 [默认: a]", "一二三四五六七八九\n[默认: a]\n"),
        ] {
            assert_eq!(folded(line, 22), expected, "{line}");
        }
    }
}
