//! Fragments of a pattern: every line that matches the pattern holds at least one of these words.

use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Class, Hir, HirKind};

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
        for row in crate::catalogue().rows() {
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
