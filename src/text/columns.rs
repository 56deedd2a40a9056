//! Text layout for terminals: width, aligned tables, wrapped lines.
//!
//! Takes words and widths; gives lines.

use std::fmt::Write as _;

use crate::style;
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

/// Rows in aligned columns; the last column is not padded.
pub fn table(out: &mut String, rows: Vec<Vec<String>>) {
    /// Longer cells do not widen their column.
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

/// Terminal columns: Chinese characters and full-width marks take two, colours none.
pub fn columns(text: &str) -> usize {
    style::plain(text).width()
}

fn is_wide(letter: char) -> bool {
    letter.width() == Some(2)
}

pub fn padded(text: &str, wide: usize) -> String {
    format!("{text}{:1$}", "", wide.saturating_sub(columns(text)))
}

/// The longest end of `text` that takes at most `wide` columns.
pub fn end_within(text: &str, wide: usize) -> &str {
    let end = |start: usize| text.get(start..).unwrap_or_default();
    let starts: Vec<usize> = text.char_indices().map(|(start, _)| start).collect();
    let first = starts.partition_point(|start| columns(end(*start)) > wide);
    starts.get(first).map_or("", |start| end(*start))
}

/// The longest beginning of `text`, which has no colours, that takes at most `wide` columns.
pub fn start_within(text: &str, wide: usize) -> &str {
    let ends = text.char_indices().map(|(start, letter)| start + letter.len_utf8());
    let start = |end: &usize| text.get(..*end).unwrap_or_default();
    let mut fitting = ends.take_while(|end| columns(start(end)) <= wide);
    start(&fitting.by_ref().last().unwrap_or(0))
}

/// A path that takes at most `wide` columns: `/mnt/…/envs/training/bin/python`. Whole folders are
/// left out, as few as possible.
pub fn shortened_path(path: &str, wide: usize) -> String {
    if columns(path) <= wide {
        return path.to_owned();
    }
    let first = path.match_indices('/').map(|(at, _)| at + 1).find(|at| *at > 1).unwrap_or(0);
    let head = path.get(..first).filter(|head| columns(head) <= wide / 3).unwrap_or("");
    let room = wide.saturating_sub(columns(head) + 1);
    let tails = path.match_indices('/').filter_map(|(at, _)| path.get(at.max(first)..));
    match tails.filter(|tail| tail.starts_with('/')).find(|tail| columns(tail) <= room) {
        Some(tail) => format!("{head}…{tail}"),
        None => format!("…{}", end_within(path, wide.saturating_sub(1))),
    }
}

/// Folds every line that is wider than `width`. Further lines are indented a little more.
pub fn wrapped(text: &str, width: usize) -> String {
    let mut out = String::with_capacity(text.len() + 64);
    for line in text.split_inclusive('\n') {
        let body = line.strip_suffix('\n').unwrap_or(line);
        if columns(body) <= width {
            out.push_str(line);
            continue;
        }
        let bare = style::plain(body);
        let lead = bare.len() - bare.trim_start().len();
        // Further lines of a heading (`── …`) begin below its words.
        let indent = if bare.starts_with("── ") { 3 } else { lead + 2 };
        fold(&mut out, body, indent, Some(width));
        if body.len() == line.len() {
            out.pop();
        }
    }
    out
}

/// A label with its words beside it, folded to `width`. `indent`: columns before the label.
pub fn labelled(out: &mut String, indent: usize, label: &str, words: &str, width: Option<usize>) {
    const LABEL: usize = 10;
    let line = format!("{:indent$}{}{words}", "", padded(label, LABEL));
    fold(out, &line, indent + LABEL, width);
}

/// Wraps a line at blanks and between Chinese characters to fit `width`, with an indent for
/// further lines. A word longer than a line is not split, so that it can be copied.
pub fn fold(out: &mut String, line: &str, indent: usize, width: Option<usize>) {
    let Some(width) = width.filter(|width| *width > indent + 20) else {
        let _ = writeln!(out, "{}", line.trim_end());
        return;
    };
    // Room for a punctuation mark that may not begin the next line.
    let width = width - 2;
    // `is_new`: the line holds only blanks, so another line would have no more room.
    let (mut at, mut is_new) = (0, true);
    // A colour ends with its line, and begins again on the next.
    let mut active = "";
    let mut gap = String::new();
    let mut rest = line;
    while let Some(first) = rest.chars().next() {
        let end = match first {
            ' ' => rest.find(|letter| letter != ' ').unwrap_or(rest.len()),
            // An opening bracket stays with the following word.
            '（' | '「' | '《' | '[' => {
                first.len_utf8() + word(rest.strip_prefix(first).unwrap_or(""))
            }
            _ => word(rest),
        };
        let (piece, after) = rest.split_at(end);
        rest = after;
        if first == ' ' && at > 0 {
            gap = piece.to_owned();
            continue;
        }
        // Punctuation such as 。 and ， does not begin a line.
        let may_begin = !"。，；：、）」".contains(first);
        if !is_new && may_begin && at + columns(&gap) + columns(piece) > width {
            let end = if active.is_empty() { "" } else { style::END };
            let _ = write!(out, "{end}\n{:indent$}{active}", "");
            (at, is_new) = (indent, true);
            gap.clear();
        }
        let _ = write!(out, "{gap}{piece}");
        at += columns(&gap) + columns(piece);
        active = style::after(active, piece);
        gap.clear();
        is_new &= first == ' ';
    }
    out.push('\n');
}

/// Length in bytes of the first word: one Chinese character, or everything up to a blank or a
/// Chinese character.
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
    fn text_end_never_exceeds_the_columns() {
        for (wide, end) in [(0, ""), (1, "b"), (2, "b"), (3, "点b"), (6, "a节点b"), (99, "a节点b")]
        {
            assert_eq!(end_within("a节点b", wide), end, "{wide}");
        }
        let long = "a/".repeat(100_000);
        assert_eq!(end_within(&long, 7).len(), 7);
    }

    #[test]
    fn text_start_never_exceeds_the_columns() {
        for (wide, start) in
            [(0, ""), (1, "a"), (2, "a"), (3, "a节"), (6, "a节点b"), (99, "a节点b")]
        {
            assert_eq!(start_within("a节点b", wide), start, "{wide}");
        }
    }

    #[test]
    fn paths_lose_their_middle() {
        let path = "/mnt/project_modelware/zhaojian/miniconda3/envs/tiny-vae/bin/python3";
        for (wide, short) in [
            (80, path),
            (60, "/mnt/…/zhaojian/miniconda3/envs/tiny-vae/bin/python3"),
            (40, "/mnt/…/envs/tiny-vae/bin/python3"),
            (20, "/mnt/…/bin/python3"),
            (10, "…/python3"),
            (6, "…thon3"),
        ] {
            let shown = shortened_path(path, wide);
            assert_eq!(shown, short);
            assert!(columns(&shown) <= wide, "{wide}: {shown}");
        }
        assert_eq!(shortened_path("一二三四五六", 7), "…四五六");
        assert_eq!(shortened_path("", 0), "");
    }

    #[test]
    fn colour_ends_with_line_and_resumes_in_next() {
        let line = format!("  {}", style::paint(style::Style::Dim, "one two three four five six"));
        let text = wrapped(&format!("{line}\nshort\n"), 28);
        assert_eq!(text, "  \x1b[2mone two three four five\x1b[0m\n    \x1b[2msix\x1b[0m\nshort\n");
        assert!(!wrapped(&line, 28).ends_with('\n'), "no line end is added");
    }

    #[test]
    fn words_stand_beside_their_label() {
        let mut out = String::new();
        labelled(&mut out, 2, "节点", &"word ".repeat(6), Some(34));
        assert_eq!(out, "  节点      word word word word\n            word word\n");
    }

    #[test]
    fn lines_break_only_where_chinese_text_allows() {
        let folded = |line: &str, width: usize| {
            let mut out = String::new();
            fold(&mut out, line, 0, Some(width));
            out
        };
        for (line, expected) in [
            ("一二三四五六七八九十一二", "一二三四五六七八九十\n一二\n"),
            // No full stop or comma begins a line, and no opening bracket ends one.
            ("一二三四五六七八九十，二", "一二三四五六七八九十，\n二\n"),
            ("一二三四五六七八九（十）", "一二三四五六七八九\n（十）\n"),
            ("一二三四五六七八（json）", "一二三四五六七八\n（json）\n"),
            ("a word at a time is kept", "a word at a time is\nkept\n"),
            ("a wordthatislongerthanaline b", "a\nwordthatislongerthanaline\nb\n"),
            ("  wordthatislongerthanaline b", "  wordthatislongerthanaline\nb\n"),
            ("一（", "一（\n"),
            ("一二三四五六七八九 [默认：a]", "一二三四五六七八九\n[默认：a]\n"),
        ] {
            assert_eq!(folded(line, 22), expected, "{line}");
        }
    }
}
