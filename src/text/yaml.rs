//! Parses YAML into a tree in which every value has its line.
//!
//! Takes text; gives the documents, and the lines that cannot be parsed. Bounded on any input:
//! size, depth and the expansion of aliases are limited (the tree shares the target of an alias,
//! but a walk visits it each time).

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError};

use crate::lang::Text;
use crate::text;

/// Deeper than any manifest; the tree is walked and dropped by recursion.
const DEEPEST: usize = 200;
/// Most values of a document with aliases expanded; a long text counts as one more value for every
/// [`PIECE`] bytes.
const MOST_NODES: usize = 1 << 18;
const PIECE: usize = 32;
/// Bytes that are parsed again because lines are indented (see [`indented`]), one parse for each.
const MOST_AGAIN: usize = 256 << 20;

/// A value of a document.
#[derive(Debug)]
pub struct Node {
    /// Line in the file, from 1.
    pub line: usize,
    pub kind: NodeKind,
    /// Values below and including this one, aliases expanded.
    weight: usize,
}

#[derive(Debug)]
pub enum NodeKind {
    Scalar {
        text: String,
        /// Quoted or a block: always a string, never null or a number.
        quoted: bool,
        /// A literal block (`|`), which keeps its lines; its first line is that of the node.
        block: bool,
    },
    List(Vec<Rc<Node>>),
    /// In the order of the file.
    Map(Vec<(Rc<Node>, Rc<Node>)>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scalar {
    Text,
    Number,
    Truth,
}

/// Text that is not YAML, or beyond a limit.
#[derive(Debug, PartialEq, Eq)]
pub struct Unreadable {
    pub line: usize,
    pub text: Text,
}

/// A duplicate key of a map.
#[derive(Debug, PartialEq, Eq)]
pub struct Duplicate {
    pub line: usize,
    pub key: String,
}

#[derive(Debug, Default)]
pub struct Documents {
    pub roots: Vec<Rc<Node>>,
    pub duplicates: Vec<Duplicate>,
    /// One for each document that cannot be parsed.
    pub unreadable: Vec<Unreadable>,
}

impl Node {
    /// The value of a key; from a merge key (`<<`) if the map itself has none.
    pub fn get(&self, key: &str) -> Option<&Node> {
        let NodeKind::Map(entries) = &self.kind else { return None };
        // The last of two equal keys counts, as in the parsers of Kubernetes.
        let own = entries.iter().rev().find(|(name, _)| name.text() == Some(key));
        if let Some((_, value)) = own {
            return Some(value);
        }
        let (_, merged) = entries.iter().find(|(name, _)| name.text() == Some("<<"))?;
        match &merged.kind {
            NodeKind::Map(_) => merged.get(key),
            NodeKind::List(maps) => maps.iter().find_map(|map| map.get(key)),
            NodeKind::Scalar { .. } => None,
        }
    }

    /// The value at the end of a path of keys.
    pub fn at(&self, path: &[&str]) -> Option<&Node> {
        path.iter().try_fold(self, |node, key| node.get(key))
    }

    /// A scalar's text; None for null, lists and maps.
    pub fn text(&self) -> Option<&str> {
        match &self.kind {
            NodeKind::Scalar { text, quoted, .. }
                if *quoted || !matches!(text.as_str(), "" | "~" | "null") =>
            {
                Some(text)
            }
            _ => None,
        }
    }

    /// The kind of a scalar; None for null. Kubernetes reads YAML 1.1 (go-yaml 2, resolve.go).
    pub fn scalar(&self) -> Option<Scalar> {
        const TRUTHS: &[&str] = &["y", "yes", "true", "on", "n", "no", "false", "off"];
        let text = self.text()?;
        if matches!(self.kind, NodeKind::Scalar { quoted: true, .. }) {
            return Some(Scalar::Text);
        }
        let small = text.to_ascii_lowercase();
        // `tRUE` is text.
        let tail = text.get(1..).unwrap_or_default();
        let one_case = tail == tail.to_ascii_lowercase() || text == text.to_ascii_uppercase();
        if TRUTHS.contains(&small.as_str()) && one_case {
            return Some(Scalar::Truth);
        }
        let number = small.replace('_', "");
        let number = number.strip_prefix(['+', '-']).unwrap_or(&number);
        let based = [("0x", 16), ("0o", 8), ("0b", 2)].into_iter().any(|(prefix, base)| {
            number.strip_prefix(prefix).is_some_and(|rest| u64::from_str_radix(rest, base).is_ok())
        });
        let is_number = based
            || number.starts_with(|c: char| c.is_ascii_digit() || c == '.')
                && number.parse::<f64>().is_ok();
        Some(if is_number { Scalar::Number } else { Scalar::Text })
    }

    pub fn list(&self) -> &[Rc<Node>] {
        match &self.kind {
            NodeKind::List(items) => items,
            _ => &[],
        }
    }

    /// Keys and values of the map itself, in the order of the file.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &Node, &Node)> {
        let entries: &[_] = match &self.kind {
            NodeKind::Map(entries) => entries,
            _ => &[],
        };
        entries.iter().filter_map(|(key, value)| Some((key.text()?, &**key, &**value)))
    }

    /// Line in the file of the n-th line (from 0) of a scalar's text.
    pub fn line_of(&self, offset: usize) -> usize {
        match &self.kind {
            NodeKind::Scalar { block: true, .. } => self.line + offset,
            _ => self.line,
        }
    }

    pub fn is_block(&self) -> bool {
        matches!(self.kind, NodeKind::Scalar { block: true, .. })
    }

    pub fn is_true(&self) -> bool {
        self.text().is_some_and(|text| matches!(text, "true" | "True" | "TRUE"))
    }

    pub fn is_false(&self) -> bool {
        self.text().is_some_and(|text| matches!(text, "false" | "False" | "FALSE"))
    }
}

/// A list or map that is still open.
struct Open {
    line: usize,
    anchor: usize,
    /// None for a list.
    seen: Option<BTreeSet<String>>,
    items: Vec<Rc<Node>>,
    weight: usize,
}

/// The first document of `text`, if all of it can be parsed.
pub fn document(text: &str) -> Option<Rc<Node>> {
    let read = documents(text);
    read.roots.into_iter().next().filter(|_| read.unreadable.is_empty())
}

/// All documents of `text`. One that cannot be parsed does not hide the others.
pub fn documents(text: &str) -> Documents {
    const MOST_UNREADABLE: usize = 16;
    let mut documents = Documents::default();
    let (mut rest, mut before) = (text, 0);
    while let Err(mut unreadable) = one_stream(rest, before, &mut documents) {
        let failed = unreadable.line;
        unreadable.line += before;
        documents.unreadable.push(unreadable);
        // The next document begins after the line with the error.
        let mut lines =
            rest.split_inclusive('\n').enumerate().skip(failed.saturating_sub(1).max(1));
        let next = lines.find(|(_, line)| line.starts_with("---")).map(|(at, _)| at);
        let Some(skipped) = next.filter(|_| documents.unreadable.len() < MOST_UNREADABLE) else {
            break;
        };
        let bytes: usize = rest.split_inclusive('\n').take(skipped).map(str::len).sum();
        rest = rest.get(bytes..).unwrap_or_default();
        before += skipped;
    }
    documents
}

/// Parses documents up to the first error; `before` lines precede the text.
fn one_stream(text: &str, before: usize, documents: &mut Documents) -> Result<(), Unreadable> {
    let mut text = Cow::Borrowed(text);
    let mut again = 0;
    loop {
        let mut read = Documents::default();
        let end = stream(&text, before, &mut read);
        if again < MOST_AGAIN
            && let Err(error) = &end
            && let Some(indented) = indented(&text, error)
        {
            text = Cow::Owned(indented);
            again += text.len();
            continue;
        }
        documents.roots.append(&mut read.roots);
        documents.duplicates.append(&mut read.duplicates);
        return end.map_err(|error| match error {
            LoadError::Syntax(error) => not_yaml(&error),
            LoadError::Other(unreadable) => unreadable,
        });
    }
}

enum LoadError {
    Syntax(ScanError),
    Other(Unreadable),
}

impl From<Unreadable> for LoadError {
    fn from(unreadable: Unreadable) -> LoadError {
        LoadError::Other(unreadable)
    }
}

/// The text with the failed line indented, if the indentation is the error.
///
/// YAML requires every line of a flow collection to be deeper than its key (1.2.2, 7.4). libyaml,
/// go-yaml and so kubectl also accept `key: [` … `]` with the bracket under the key, and this
/// form is common. Inside brackets the depth has no meaning, so indenting a line changes no
/// value.
fn indented(text: &str, failure: &LoadError) -> Option<String> {
    let LoadError::Syntax(error) = failure else { return None };
    if !error.info().contains("invalid indentation") {
        return None;
    }
    let number = error.marker().line().checked_sub(1)?;
    let mut lines: Vec<&str> = text.split_inclusive('\n').collect();
    let line = *lines.get(number)?;
    let depth = |line: &str| line.len() - line.trim_start_matches(' ').len();
    let above = lines.get(..number)?.iter().rev().find(|line| !line.trim().is_empty())?;
    // The depth of the line above is tried first: one deeper each time would make a staircase of
    // a long list. If that is not enough, the line is moved once more.
    let least = depth(above);
    let wanted = if depth(line) < least { least } else { least + 1 };
    if depth(line) >= wanted || !in_flow(lines.get(..number)?) {
        return None;
    }
    let moved = format!("{}{}", " ".repeat(wanted), line.trim_start_matches(' '));
    *lines.get_mut(number)? = &moved;
    Some(lines.concat())
}

/// Whether a bracket is open at the end of these lines, without comments and quotes.
fn in_flow(lines: &[&str]) -> bool {
    let mut depth = 0usize;
    for line in lines.iter().rev() {
        let mut quote = None;
        let mut before = ' ';
        let (mut opened, mut closed) = (0usize, 0usize);
        for c in line.chars() {
            match quote {
                Some(open) if c == open => quote = None,
                Some(_) => {}
                None if matches!(c, '"' | '\'') && !before.is_alphanumeric() => quote = Some(c),
                None if c == '#' && before.is_whitespace() => break,
                None if matches!(c, '[' | '{') => opened += 1,
                None if matches!(c, ']' | '}') && opened > 0 => opened -= 1,
                None if matches!(c, ']' | '}') => closed += 1,
                None => {}
            }
            before = c;
        }
        if opened > depth {
            return true;
        }
        depth = depth - opened + closed;
        if line.starts_with("---") {
            break;
        }
    }
    false
}

fn stream(text: &str, before: usize, documents: &mut Documents) -> Result<(), LoadError> {
    let mut anchors: BTreeMap<usize, Rc<Node>> = BTreeMap::new();
    let mut open: Vec<Open> = Vec::new();
    let mut total = 0usize;
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(LoadError::Syntax)?;
        let line = span.start.line() + before;
        let mut cost = 1;
        let (anchor, node) = match event {
            Event::DocumentStart(_) => {
                anchors.clear();
                total = 0;
                continue;
            }
            Event::Alias(id) => {
                let named = anchors.get(&id).ok_or_else(|| Unreadable {
                    line: line - before,
                    text: text!("the alias refers to itself", "别名引用了自身"),
                })?;
                cost = named.weight;
                (0, Rc::clone(named))
            }
            Event::Scalar(value, style, anchor, tag) => {
                let block = style == ScalarStyle::Literal;
                let quoted = style != ScalarStyle::Plain || tag.is_some();
                cost = 1 + value.len() / PIECE;
                let kind = NodeKind::Scalar { text: value.into_owned(), quoted, block };
                (anchor, Rc::new(Node { line, kind, weight: cost }))
            }
            Event::SequenceStart(anchor, _) | Event::MappingStart(anchor, _) => {
                if open.len() >= DEEPEST {
                    return Err(LoadError::Other(Unreadable {
                        line: line - before,
                        text: text!("nested deeper than {DEEPEST} levels", "嵌套超过 {DEEPEST} 层"),
                    }));
                }
                let seen = matches!(event, Event::MappingStart(..)).then(BTreeSet::new);
                open.push(Open { line, anchor, seen, items: Vec::new(), weight: 1 });
                continue;
            }
            Event::SequenceEnd | Event::MappingEnd => {
                let Some(Open { line, anchor, seen, items, weight }) = open.pop() else { continue };
                let kind = match seen {
                    None => NodeKind::List(items),
                    Some(_) => NodeKind::Map(pairs(items)),
                };
                (anchor, Rc::new(Node { line, kind, weight }))
            }
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => continue,
        };
        if anchor > 0 {
            anchors.insert(anchor, Rc::clone(&node));
        }
        // An alias counts with its expansion, so that exponential aliases stop early.
        total = total.saturating_add(cost);
        if total > MOST_NODES {
            return Err(LoadError::Other(Unreadable {
                line: line - before,
                text: text!(
                    "more than {MOST_NODES} values, aliases included",
                    "包含别名在内超过 {MOST_NODES} 个值"
                ),
            }));
        }
        match open.last_mut() {
            Some(parent) => {
                let is_key = parent.seen.is_some() && parent.items.len() % 2 == 0;
                if is_key && !matches!(node.kind, NodeKind::Scalar { .. }) {
                    return Err(LoadError::Other(Unreadable {
                        line: line - before,
                        text: text!(
                            "a map or a list in place of a key: an unrendered template?",
                            "键的位置上是映射或列表：是否为未渲染的模板？"
                        ),
                    }));
                }
                if let (true, Some(seen), Some(key)) = (is_key, &mut parent.seen, node.text())
                    && !seen.insert(key.to_owned())
                {
                    documents.duplicates.push(Duplicate { line, key: key.to_owned() });
                }
                parent.weight = parent.weight.saturating_add(node.weight);
                parent.items.push(node);
            }
            None => documents.roots.push(node),
        }
    }
    Ok(())
}

fn pairs(items: Vec<Rc<Node>>) -> Vec<(Rc<Node>, Rc<Node>)> {
    let mut items = items.into_iter();
    let mut pairs = Vec::with_capacity(items.len() / 2);
    while let (Some(key), Some(value)) = (items.next(), items.next()) {
        pairs.push((key, value));
    }
    pairs
}

fn not_yaml(error: &ScanError) -> Unreadable {
    let (line, problem) = (error.marker().line(), error.info());
    Unreadable { line, text: text!("not YAML: {problem}", "不是合法的 YAML：{problem}") }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;

    fn one(text: &str) -> Rc<Node> {
        documents(text).roots.into_iter().next().expect("a document")
    }

    #[test]
    fn every_value_knows_its_line() {
        let root = one("a: 1\nb:\n  - x\n  - {c: [p, q]}\nscript: |\n  one\n  two\n");
        assert_eq!(root.get("a").map(|n| n.line), Some(1));
        let list = root.get("b").expect("b").list();
        assert_eq!(list.iter().map(|n| n.line).collect::<Vec<_>>(), [3, 4]);
        let script = root.get("script").expect("script");
        assert_eq!((script.line_of(0), script.line_of(1)), (6, 7));
    }

    #[test]
    fn null_is_text_only_in_quotes() {
        let root = one("a:\nb: null\nc: \"\"\nd: 'null'\ne: ~\n");
        let text = |key| root.get(key).and_then(Node::text);
        assert_eq!(["a", "b", "c", "d", "e"].map(text), [None, None, Some(""), Some("null"), None]);
    }

    #[test]
    fn scalars_have_the_types_of_yaml_1_1() {
        for (text, expected) in [
            ("8", Some(Scalar::Number)),
            ("-0.5", Some(Scalar::Number)),
            ("1e5", Some(Scalar::Number)),
            ("0x1F", Some(Scalar::Number)),
            ("1_000", Some(Scalar::Number)),
            ("true", Some(Scalar::Truth)),
            ("No", Some(Scalar::Truth)),
            ("ON", Some(Scalar::Truth)),
            ("tRUE", Some(Scalar::Text)),
            ("'8'", Some(Scalar::Text)),
            ("!!str 8", Some(Scalar::Text)),
            ("1Gi", Some(Scalar::Text)),
            ("1.2.3", Some(Scalar::Text)),
            (".", Some(Scalar::Text)),
            ("inf", Some(Scalar::Text)),
            ("~", None),
        ] {
            assert_eq!(
                one(&format!("a: {text}\n")).get("a").expect("a").scalar(),
                expected,
                "{text}"
            );
        }
    }

    #[test]
    fn merge_keys_fill_gaps() {
        let root =
            one("base: &b {x: 1, y: 2}\none: {<<: *b, x: 3}\ntwo: {<<: [{z: 5}, *b]}\nalias: *b\n");
        let text = |path: &[&str]| root.at(path).and_then(Node::text).map(str::to_owned);
        assert_eq!(text(&["one", "x"]).as_deref(), Some("3"));
        assert_eq!(text(&["one", "y"]).as_deref(), Some("2"));
        assert_eq!(text(&["two", "z"]).as_deref(), Some("5"));
        assert_eq!(text(&["two", "y"]).as_deref(), Some("2"));
        assert_eq!(text(&["alias", "y"]).as_deref(), Some("2"));
    }

    #[test]
    fn duplicate_keys_are_named() {
        let read = documents("a: 1\nb: {c: 1}\na: 2\n");
        assert_eq!(read.duplicates, [Duplicate { line: 3, key: "a".into() }]);
        assert_eq!(read.roots.first().and_then(|r| r.get("a")?.text()), Some("2"));
    }

    #[test]
    fn bombs_and_depth_are_refused_with_a_line() {
        let mut laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..12 {
            let below = format!("*a{}", level - 1);
            let ten = [below.as_str(); 10].join(", ");
            let _ = writeln!(laughs, "a{level}: &a{level} [{ten}]");
        }
        let first = |text: &str| documents(text).unreadable.into_iter().next().expect("refused");
        let refused = first(&laughs);
        assert!(refused.text.en.contains("aliases") && refused.line < 12, "{refused:?}");

        for deep in [
            "[".repeat(100_000),
            "- ".repeat(50_000),
            "{a: ".repeat(50_000),
            (0..3000).map(|n| format!("{}a:\n", " ".repeat(n))).collect(),
        ] {
            first(&deep);
        }
        let refused = first("a: &a [*a]\n");
        assert!(refused.text.en.contains("itself"), "{refused:?}");
        assert_eq!(first("a: 1\nb: [\n").line, 3);
        assert_eq!(first("a: *nobody\n").line, 1);
    }

    #[test]
    fn bracket_under_its_key_is_accepted() {
        for (text, items) in [
            ("a:\n  b: [\n    x,\n    y,\n  ]\n  c: 1\n", 2),
            ("a:\n  b: [\n    \"x\", # ]\n    y,\n  ]\n  c: 1\n", 2),
            ("a:\n  b: [\n  x,\n y, z\n  ]\n  c: 1\n", 3),
            ("a:\n  b: [\n]\n  c: 1\n", 0),
            ("a:\n  - d: 1\n    b: [\n      x\n    ]\n    c: 1\n", 1),
        ] {
            let read = documents(text);
            assert!(read.unreadable.is_empty(), "{text}{:?}", read.unreadable);
            let root = read.roots.first().expect("a document");
            let a = root.get("a").expect("a");
            let a = a.list().first().map_or(a, |item| &**item);
            assert_eq!(a.get("b").map(|list| list.list().len()), Some(items), "{text}");
            assert_eq!(a.get("c").and_then(Node::text), Some("1"), "{text}");
            let line = text.lines().position(|line| line.contains("c: 1")).expect("c") + 1;
            assert_eq!(a.get("c").map(|c| c.line), Some(line), "{text}");
        }
        // Each line is moved to the depth of the line above it, not deeper.
        let mut text = format!("a:\n  b: [\n{}  ]\n  c: 1\n", "  x,\n".repeat(40));
        while let Err(error) = stream(&text, 0, &mut Documents::default()) {
            text = indented(&text, &error).expect("a line to move");
        }
        let depths = text.lines().map(|line| line.len() - line.trim_start().len());
        assert_eq!(depths.max(), Some(3), "{text}");
        // Without an open bracket the indentation stays an error.
        for wrong in ["a:\n    b: 1\n  c: 2\n", "a: 'x\ny'\nb:\n    c: 1\n  d: 2\n"] {
            assert_eq!(documents(wrong).unreadable.len(), 1, "{wrong}");
        }
    }

    #[test]
    fn broken_document_hides_no_other_document() {
        let read = documents("a: 1\n---\nb: [\n---\nc: 3\n---\nd: }\n---\ne: 5\n");
        let keys: Vec<_> = read
            .roots
            .iter()
            .filter_map(|root| root.entries().next().map(|(key, at, _)| (key.to_owned(), at.line)))
            .collect();
        let expected = [("a", 1), ("c", 5), ("e", 9)].map(|(key, line)| (key.to_owned(), line));
        assert_eq!(keys, expected, "{:?}", read.unreadable);
        assert_eq!(read.unreadable.iter().map(|u| u.line).collect::<Vec<_>>(), [4, 7]);
    }
}
