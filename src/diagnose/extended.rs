//! The catalogue with the rows of a profile, and the conditions for a sound row.

use std::collections::BTreeSet;
use std::fmt;

use super::catalogue::{Catalogue, catalogue};
use super::fragments::{SHORTEST, fragments};
use super::rows::{Flaw, Row, RowIndex, USER_EXCEPTION};
use text::lang::Text;
use text::nearest::nearest;
use text::pattern::{self, compile};
use text::text;

/// Maximum bytes of all fragments of a profile: each fragment costs memory.
const MOST_FRAGMENTS: usize = 32 * 1024;

/// The flaw of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowFlaw {
    pub id: String,
    /// The key of the row.
    pub key: &'static str,
    /// The value of the key, or the faulty part of the value; empty if there is no value.
    pub value: String,
    pub problem: Text,
    /// The allowed values.
    pub hint: Text,
}

impl fmt::Display for RowFlaw {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RowFlaw { id, key, value, problem, .. } = self;
        write!(out, "row {id}: {key} `{value}` {}", problem.en)
    }
}

impl Catalogue {
    /// The catalogue of this executable with more rows, which win over the rows of the catalogue in
    /// the same line. A row with a known id replaces the row of that id. A row without fragments
    /// gets fragments from its patterns.
    ///
    /// # Errors
    /// The first flaw of a row: a pattern that does not compile, a name in braces that no pattern
    /// captures, an example that contradicts the row.
    pub fn with(rows: &[Row]) -> Result<Catalogue, RowFlaw> {
        let mut all = rows.iter().map(with_fragments).collect::<Result<Vec<Row>, RowFlaw>>()?;
        let long = |row: &Row| row.fragments.iter().map(String::len).sum::<usize>();
        let mut bytes = 0;
        for row in &all {
            bytes += long(row);
            if bytes > MOST_FRAGMENTS {
                return Err(too_many(row));
            }
        }
        let own = all.len();
        let ids: BTreeSet<&str> = rows.iter().map(|row| row.id.as_str()).collect();
        let known = catalogue().rows().iter().filter(|row| !ids.contains(row.id.as_str()));
        all.extend(known.cloned());
        let first = rows.first();
        let whole = Catalogue::of(all).map_err(|flaw| unusable(first, &flaw))?.preferring(own);
        match (0..own).flat_map(|index| whole.flaws_of(RowIndex(index))).next() {
            Some(flaw) => Err(flaw),
            None => Ok(whole),
        }
    }

    /// The flaws of a row in its catalogue: patterns, texts and examples.
    pub(super) fn flaws_of(&self, index: RowIndex) -> Vec<RowFlaw> {
        let Some(row) = self.row(index) else { return Vec::new() };
        let patterns = [("patterns", &row.patterns), ("except", &row.except)];
        let mut flaws = Vec::new();
        let mut groups = BTreeSet::new();
        if row.id == USER_EXCEPTION {
            groups.extend(["type".to_owned(), "message".to_owned()]);
        }
        for (key, pattern) in
            patterns.iter().flat_map(|(key, all)| all.iter().map(move |pattern| (*key, pattern)))
        {
            match compile(pattern) {
                Ok(compiled) => {
                    groups.extend(compiled.capture_names().flatten().map(str::to_owned))
                }
                Err(error) => flaws.push(no_pattern(row, key, pattern, &error)),
            }
        }
        if !flaws.is_empty() {
            return flaws;
        }
        for (key, text) in [("cause", &row.cause), ("remedy", &row.remedy)] {
            let names: BTreeSet<&str> = [&text.en, &text.zh]
                .into_iter()
                .flat_map(|text| placeholders(text))
                .filter(|name| !groups.contains(*name))
                .collect();
            flaws.extend(names.into_iter().map(|name| no_group(row, key, name, &groups)));
        }
        for (key, ids) in [("clears", &row.clears), ("leads_to", &row.leads_to)] {
            let unknown = ids.iter().filter(|id| self.by_id(id).is_none());
            flaws.extend(unknown.map(|id| no_row(self, row, key, id)));
        }
        let holds = |line: &str| self.find(line.as_bytes()).rows.contains(&index);
        for (key, examples, expected) in
            [("matches", &row.matches, true), ("differs", &row.differs, false)]
        {
            let wrong = examples.iter().filter(|lines| lines.lines().any(holds) != expected);
            flaws.extend(wrong.map(|example| contradicts(row, key, example, expected)));
        }
        flaws
    }
}

/// The names in braces.
fn placeholders(text: &str) -> impl Iterator<Item = &str> {
    text.split('{').skip(1).filter_map(|rest| rest.split_once('}')).map(|(name, _)| name)
}

/// The row with its fragments in lower case, or with fragments from its patterns.
fn with_fragments(row: &Row) -> Result<Row, RowFlaw> {
    if row.id == USER_EXCEPTION {
        return Err(reserved(row));
    }
    let mut row = row.clone();
    for fragment in &mut row.fragments {
        fragment.make_ascii_lowercase();
    }
    if let Some(short) = row.fragments.iter().find(|fragment| fragment.len() < SHORTEST) {
        return Err(too_short(&row, short));
    }
    if row.fragments.is_empty() {
        if row.patterns.is_empty() {
            return Err(nothing_to_find(&row));
        }
        for pattern in &row.patterns {
            if let Err(error) = compile(pattern) {
                return Err(no_pattern(&row, "patterns", pattern, &error));
            }
            match fragments(pattern) {
                Some(found) => row.fragments.extend(found),
                None => return Err(no_fragment(&row, pattern)),
            }
        }
        row.fragments.sort_unstable();
        row.fragments.dedup();
    }
    Ok(row)
}

fn flaw(row: &Row, key: &'static str, value: &str, problem: Text, hint: Text) -> RowFlaw {
    RowFlaw { id: row.id.clone(), key, value: value.to_owned(), problem, hint }
}

fn reserved(row: &Row) -> RowFlaw {
    flaw(
        row,
        "id",
        &row.id,
        text!(
            "is the row of exceptions that no other row explains",
            "是“没有其他条目能解释的异常”所用的条目"
        ),
        text!("choose another id", "请换用其他 id"),
    )
}

fn nothing_to_find(row: &Row) -> RowFlaw {
    flaw(
        row,
        "fragments",
        "",
        text!("is empty, and so is `patterns`", "为空，`patterns` 也为空"),
        text!(
            "write what a line of this failure holds: fragments = [\"loss is nan\"]",
            "请写出该故障的日志行所含的文字：fragments = [\"loss is nan\"]"
        ),
    )
}

fn too_short(row: &Row, fragment: &str) -> RowFlaw {
    flaw(
        row,
        "fragments",
        fragment,
        text!("has fewer than {SHORTEST} bytes", "不足 {SHORTEST} 字节"),
        text!(
            "write words that few lines of a healthy run hold",
            "请写正常运行的日志中很少出现的文字"
        ),
    )
}

fn too_many(row: &Row) -> RowFlaw {
    let most = MOST_FRAGMENTS / 1024;
    flaw(
        row,
        "fragments",
        "",
        text!("brings all fragments above {most} KiB", "使全部片段超过 {most} KiB"),
        text!("write fewer or shorter fragments", "请减少或缩短片段"),
    )
}

fn no_fragment(row: &Row, pattern: &str) -> RowFlaw {
    flaw(
        row,
        "patterns",
        pattern,
        text!(
            "gives no fragment: the lines that it matches share no word of {SHORTEST} bytes or more",
            "无法得出片段：它匹配的各行没有共同的、至少 {SHORTEST} 字节的文字"
        ),
        text!(
            "add fragments = [\"…\"]: patterns are tried only on lines that hold one of them",
            "请加上 fragments = [\"…\"]：只对含有片段的行尝试匹配 patterns"
        ),
    )
}

fn no_pattern(row: &Row, key: &'static str, pattern: &str, error: &regex::Error) -> RowFlaw {
    let why = pattern::flaw(error);
    flaw(
        row,
        key,
        pattern,
        text!("is not a regular expression: {why}", "不是合法的正则表达式：{why}"),
        pattern::syntax(),
    )
}

fn no_group(row: &Row, key: &'static str, name: &str, groups: &BTreeSet<String>) -> RowFlaw {
    let known: Vec<&str> = groups.iter().map(String::as_str).collect();
    let hint = match &known[..] {
        [] => text!(
            "name a group of a pattern: (?P<{name}>…)",
            "请在 patterns 中命名一个分组：(?P<{name}>…)"
        ),
        known => {
            let known = known.join(", ");
            text!(
                "the groups are {known}; another one is written (?P<{name}>…)",
                "已有的分组为 {known}；新的分组写作 (?P<{name}>…)"
            )
        }
    };
    let problem = text!("names no group of a pattern", "不是 patterns 中的分组");
    let shown = format!("{{{name}}}");
    flaw(row, key, &shown, problem, hint)
}

fn no_row(catalogue: &Catalogue, row: &Row, key: &'static str, id: &str) -> RowFlaw {
    let near = nearest(id, catalogue.rows().iter().map(|row| row.id.as_str()));
    let hint = match near {
        Some(near) => text!("did you mean {near}?", "是否想写 {near}？"),
        None => text!("name the id of a row", "请写某个条目的 id"),
    };
    flaw(row, key, id, text!("is not a row", "不是任何条目"), hint)
}

fn contradicts(row: &Row, key: &'static str, example: &str, expected: bool) -> RowFlaw {
    let problem = match expected {
        true => text!("does not match the row", "与该条目不匹配"),
        false => text!("matches the row", "与该条目匹配"),
    };
    let hint = match expected {
        true => text!(
            "a line matches if it holds a fragment, matches a pattern and matches none of `except`",
            "一行须含有某个片段、匹配某个 pattern 且不匹配任何 `except`，才算匹配"
        ),
        false => text!(
            "make the patterns narrower, or name what differs in `except`",
            "请收窄 patterns，或在 `except` 中写出差别"
        ),
    };
    flaw(row, key, example, problem, hint)
}

/// A catalogue that cannot be built, although no single row is at fault.
fn unusable(row: Option<&Row>, flaw: &Flaw) -> RowFlaw {
    let id = row.map(|row| row.id.clone()).unwrap_or_default();
    RowFlaw {
        id,
        key: "id",
        value: String::new(),
        problem: text!("cannot be used: {flaw}", "无法使用：{flaw}"),
        hint: text!("write each id once", "每个 id 只写一次"),
    }
}
