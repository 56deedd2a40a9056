//! The catalogue with the rows of a profile, and the conditions for a sound row.
//! The fragments of a pattern are words: every line that matches the pattern holds at least one of them.

use std::collections::BTreeSet;
use std::fmt;

use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Class, Hir, HirKind};

use super::catalogue::{Catalogue, catalogue};
use super::rows::{Flaw, Row, RowIndex, USER_EXCEPTION};
use text::lang::Text;
use text::nearest::nearest;
use text::order::InOrder;
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
                let most = MOST_FRAGMENTS / 1024;
                return Err(flaw(
                    row,
                    "fragments",
                    "",
                    text!("brings all fragments above {most} KiB", "使全部片段超过 {most} KiB"),
                    text!("write fewer or shorter fragments", "请减少或缩短片段"),
                ));
            }
        }
        let own = all.len();
        let ids: BTreeSet<&str> = rows.iter().map(|row| row.id.as_str()).in_set();
        let known = catalogue().rows().iter().filter(|row| !ids.contains(row.id.as_str()));
        all.extend(known.cloned());
        // No single row is at fault.
        let unusable = |flaw: Flaw| RowFlaw {
            id: rows.first().map(|row| row.id.clone()).unwrap_or_default(),
            key: "id",
            value: String::new(),
            problem: text!("cannot be used: {flaw}", "无法使用：{flaw}"),
            hint: text!("write each id once", "每个 id 只写一次"),
        };
        let whole = Catalogue::of(all, own).map_err(unusable)?;
        match (0..own).flat_map(|index| whole.flaws_of(RowIndex(index))).next() {
            Some(flaw) => Err(flaw),
            None => Ok(whole),
        }
    }

    /// The flaws of a row in its catalogue: patterns, texts and examples.
    pub(super) fn flaws_of(&self, index: RowIndex) -> Vec<RowFlaw> {
        let Some(row) = self.row(index) else { return Vec::new() };
        let mut flaws = Vec::new();
        let mut groups = BTreeSet::new();
        if row.id == USER_EXCEPTION {
            groups.extend(["type", "message", "exception"].map(str::to_owned));
        }
        for (key, patterns) in [("patterns", &row.patterns), ("except", &row.except)] {
            for pattern in patterns {
                match compile(pattern) {
                    Ok(one) => groups.extend(one.capture_names().flatten().map(str::to_owned)),
                    Err(error) => flaws.push(no_pattern(row, key, pattern, &error)),
                }
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
                .in_set();
            flaws.extend(names.into_iter().map(|name| no_group(row, key, name, &groups)));
        }
        for range in row.versions.iter().filter(|range| !range.is_sound()) {
            let problem = text!("is no range of versions", "不是版本范围");
            let hint = text!(
                "for example from = \"2.19\", below = \"2.20\"",
                "例如 from = \"2.19\", below = \"2.20\""
            );
            flaws.push(flaw(row, "versions", &range.component, problem, hint));
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
        return Err(flaw(
            row,
            "id",
            &row.id,
            text!(
                "is the row of exceptions that no other row explains",
                "是“没有其他条目能解释的异常”所用的条目"
            ),
            text!("choose another id", "请换用其他 id"),
        ));
    }
    let mut row = row.clone();
    for fragment in &mut row.fragments {
        fragment.make_ascii_lowercase();
    }
    if let Some(short) = row.fragments.iter().find(|fragment| fragment.len() < SHORTEST) {
        return Err(flaw(
            &row,
            "fragments",
            short,
            text!("has fewer than {SHORTEST} bytes", "不足 {SHORTEST} 字节"),
            text!(
                "write words that few lines of a healthy run hold",
                "请写正常运行的日志中很少出现的文字"
            ),
        ));
    }
    if row.fragments.is_empty() {
        if row.patterns.is_empty() {
            return Err(flaw(
                &row,
                "fragments",
                "",
                text!("is empty, and so is `patterns`", "为空，`patterns` 也为空"),
                text!(
                    "write what a line of this failure holds: fragments = [\"loss is nan\"]",
                    "请写出该故障的日志行所含的文字：fragments = [\"loss is nan\"]"
                ),
            ));
        }
        for pattern in &row.patterns {
            if let Err(error) = compile(pattern) {
                return Err(no_pattern(&row, "patterns", pattern, &error));
            }
            row.fragments.extend(fragments(pattern).ok_or_else(|| {
                flaw(
                    &row,
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
            })?);
        }
        row.fragments.sort_unstable();
        row.fragments.dedup();
    }
    Ok(row)
}

fn flaw(row: &Row, key: &'static str, value: &str, problem: Text, hint: Text) -> RowFlaw {
    RowFlaw { id: row.id.clone(), key, value: value.to_owned(), problem, hint }
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
    let (problem, hint) = match expected {
        true => (
            text!("does not match the row", "与该条目不匹配"),
            text!(
                "a line matches if it holds a fragment, matches a pattern and matches none of `except`",
                "一行须含有某个片段、匹配某个 pattern 且不匹配任何 `except`，才算匹配"
            ),
        ),
        false => (
            text!("matches the row", "与该条目匹配"),
            text!(
                "make the patterns narrower, or name what differs in `except`",
                "请收窄 patterns，或在 `except` 中写出差别"
            ),
        ),
    };
    flaw(row, key, example, problem, hint)
}

/// Minimum bytes of a fragment. A shorter fragment occurs in too many lines.
pub(super) const SHORTEST: usize = 3;
/// Maximum number of fragments of one pattern.
const MOST: usize = 64;

/// The fragments of a pattern, in lower case. None: the pattern matches lines that share no word of
/// [`SHORTEST`] bytes.
pub(super) fn fragments(pattern: &str) -> Option<Vec<String>> {
    let parsed = ParserBuilder::new().unicode(false).utf8(false).build().parse(pattern).ok()?;
    let found = required(&parsed)?;
    found.into_iter().map(|fragment| String::from_utf8(fragment).ok()).collect()
}

/// Words, at least one of which is in every text that `hir` matches.
fn required(hir: &Hir) -> Option<Vec<Vec<u8>>> {
    match hir.kind() {
        HirKind::Capture(group) => required(&group.sub),
        HirKind::Repetition(repeated) => {
            if repeated.min > 0 {
                required(&repeated.sub)
            } else {
                None
            }
        }
        HirKind::Alternation(branches) => {
            let all: Option<Vec<Vec<Vec<u8>>>> = branches.iter().map(required).collect();
            let all = all?.concat();
            (all.len() <= MOST).then_some(all)
        }
        HirKind::Concat(parts) => in_row(parts),
        _ => in_row(std::slice::from_ref(hir)),
    }
}

/// The best words of parts that follow each other.
fn in_row(parts: &[Hir]) -> Option<Vec<Vec<u8>>> {
    let mut found: Vec<Vec<Vec<u8>>> = Vec::new();
    let mut run: Vec<u8> = Vec::new();
    for part in parts {
        if let Some(word) = literal(part) {
            run.extend(word);
            continue;
        }
        found.push(vec![std::mem::take(&mut run)]);
        if matches!(
            part.kind(),
            HirKind::Capture(_) | HirKind::Repetition(_) | HirKind::Alternation(_)
        ) {
            found.extend(required(part));
        }
    }
    found.push(vec![run]);
    let shortest = |words: &Vec<Vec<u8>>| words.iter().map(Vec::len).min().unwrap_or_default();
    found.into_iter().filter(|words| shortest(words) >= SHORTEST).max_by_key(shortest)
}

/// The word that a part matches, in lower case; None if the part matches several words.
fn literal(part: &Hir) -> Option<Vec<u8>> {
    match part.kind() {
        HirKind::Literal(literal) => Some(literal.0.to_ascii_lowercase()),
        HirKind::Class(Class::Bytes(class)) => {
            let bytes = class.ranges().iter().flat_map(|range| range.start()..=range.end());
            let mut bytes = bytes.take(3).map(|byte| byte.to_ascii_lowercase());
            let first = bytes.next()?;
            bytes.all(|other| other == first).then(|| vec![first])
        }
        HirKind::Class(Class::Unicode(class)) => {
            let letters = class.ranges().iter().flat_map(|range| range.start()..=range.end());
            let mut letters = letters.take(3).map(|letter| letter.to_ascii_lowercase());
            let first = letters.next()?;
            letters.all(|other| other == first).then(|| first.to_string().into_bytes())
        }
        HirKind::Capture(group) => literal(&group.sub),
        HirKind::Concat(parts) => {
            parts.iter().map(literal).collect::<Option<Vec<_>>>().map(|words| words.concat())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use text::pattern::compile;

    #[test]
    fn every_match_holds_a_fragment() {
        for (pattern, expected) in [
            ("loss is NaN at step (\\d+)", Some(&["loss is nan at step "][..])),
            ("(?i)Loss is (?:nan|infinite)", Some(&["loss is "])),
            ("(?:shard|bucket) .{0,40}missing", Some(&["missing"])),
            ("^(?:no shard|no bucket)$", Some(&["no shard", "no bucket"])),
            ("(?P<file>\\S+) is (?:truncated)+", Some(&["truncated"])),
            ("数据集 .* 损坏", Some(&["数据集 "])),
            (".*", None),
            ("a\\d", None),
            ("(?:long word)?x", None),
            ("(?:long word|x)", None),
            ("(", None),
        ] {
            let expected: Option<Vec<String>> =
                expected.map(|all| all.iter().map(|one| (*one).to_owned()).collect());
            assert_eq!(fragments(pattern), expected, "{pattern}");
        }
    }

    /// The rows of this program have fragments of their own, chosen by hand. The fragments from
    /// their patterns must hold for their examples as well.
    #[test]
    fn fragments_from_catalogue_patterns_occur_in_examples() {
        let mut seen = 0;
        for row in crate::tests::with_examples().rows() {
            for pattern in &row.patterns {
                let Some(fragments) = fragments(pattern) else { continue };
                let pattern = compile(pattern).expect("a pattern");
                for line in row.matches.iter().flat_map(|example| example.lines()) {
                    let low = line.to_ascii_lowercase();
                    if pattern.is_match(line.as_bytes()) {
                        seen += 1;
                        let held = fragments.iter().any(|one| low.contains(one.as_str()));
                        assert!(held, "{pattern}: {fragments:?} not in {line}");
                    }
                }
            }
        }
        assert!(seen > 100, "{seen}");
    }
}
