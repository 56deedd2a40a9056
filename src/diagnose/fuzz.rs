//! Fuzz targets for logs and for rows of a profile's `[[diagnose]]`. Not part of the program.

use crate::catalogue::{self, Catalogue};
use crate::extended::{SHORTEST, fragments};
use crate::rows::{Domain, Role, Row, Stream};
use crate::{LogScan, Origin, Scanned, diagnose};
use text::fuzzing::Choices;
use text::lang::Text;
use text::pattern::compile;
use verdict::{Owner, Retry};

/// Maximum length of a pattern in `pattern`, in bytes, so that a run takes milliseconds.
const LONGEST_PATTERN: usize = 400;

/// A pattern, then a line behind a NUL byte.
///
/// Every line that the pattern matches holds one of its fragments in any case. A line without a fragment would never
/// be examined.
pub fn pattern(data: &[u8]) -> bool {
    let mut choices = Choices(data);
    let (pattern, line) = (choices.until_nul(), choices.0);
    let Ok(pattern) = std::str::from_utf8(pattern) else { return false };
    if pattern.len() > LONGEST_PATTERN {
        return false;
    }
    let Ok(compiled) = compile(pattern) else { return false };
    let Some(found) = fragments(pattern) else { return false };
    for fragment in &found {
        assert!(fragment.len() >= SHORTEST && *fragment == fragment.to_ascii_lowercase());
    }
    // Lines that are likely to match: the fragments themselves, beside the given lines.
    let mut lines: Vec<Vec<u8>> = line.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    lines.extend(found.iter().map(|fragment| fragment.to_ascii_uppercase().into_bytes()));
    lines.push(pattern.as_bytes().to_vec());
    lines.push(pattern.replace('\\', "").into_bytes());
    for line in lines {
        if !compiled.is_match(&line) {
            continue;
        }
        let lower = line.to_ascii_lowercase();
        let holds = |word: &String| memchr::memmem::find(&lower, word.as_bytes()).is_some();
        assert!(
            found.iter().any(holds),
            "`{pattern}` matches {:?} without any of {found:?}",
            String::from_utf8_lossy(&line)
        );
    }
    true
}

/// A row: its pattern, fragment, words and example, and a log that is searched for the row, separated by NUL bytes.
///
/// The row is refused with a key and a reason in both languages, or the row is found exactly where its pattern
/// matches. The cuts of a log do not change the result.
pub fn catalogue(data: &[u8]) -> bool {
    let mut choices = Choices(data);
    let flags = choices.byte();
    let cut = choices.below(100) + 1;
    let mut text = || String::from_utf8_lossy(choices.until_nul()).into_owned();
    let (pattern, fragment, cause, example) = (text(), text(), text(), text());
    let log = choices.0;
    let some = |text: &str| {
        if text.is_empty() { Vec::new() } else { vec![text.to_owned()] }
    };
    let row = Row {
        id: if flags & 1 == 0 { "own_row" } else { "cuda_oom" }.to_owned(),
        role: if flags & 2 == 0 { Role::Root } else { Role::Cascade },
        domain: Domain::User,
        owner: Owner::Code,
        retry: Retry::SameNodes,
        stream: Stream::Log,
        weak: flags & 4 != 0,
        first_only: flags & 8 != 0,
        last_resort: false,
        versions: Vec::new(),
        waits: false,
        fragments: some(&fragment),
        patterns: some(&pattern),
        except: if flags & 16 == 0 { Vec::new() } else { vec!["never this".to_owned()] },
        clears: if flags & 32 == 0 { Vec::new() } else { vec!["cuda_oom".to_owned()] },
        leads_to: Vec::new(),
        raised_in: Vec::new(),
        cause: Text::same(if cause.is_empty() { "It failed.".to_owned() } else { cause }),
        remedy: Text::same("Look."),
        matches: some(&example),
        differs: Vec::new(),
    };
    let own = match Catalogue::with(std::slice::from_ref(&row)) {
        Ok(own) => own,
        Err(flaw) => {
            let Text { en, zh } = &flaw.problem;
            assert!(!en.is_empty() && !zh.is_empty() && !flaw.key.is_empty(), "{flaw:?}");
            assert!(!flaw.hint.en.is_empty() && !flaw.hint.zh.is_empty(), "{flaw:?}");
            return false;
        }
    };
    let index = own.by_id(&row.id).expect("the row");
    let compiled = (!pattern.is_empty()).then(|| compile(&pattern).expect("a pattern"));
    let except = (flags & 16 != 0).then(|| compile("never this").expect("a pattern"));
    let lower = fragment.to_ascii_lowercase();
    for line in log.split(|byte| *byte == b'\n').take(64) {
        let lowered = line.to_ascii_lowercase();
        let holds = memchr::memmem::find(&lowered, lower.as_bytes()).is_some();
        let expected = (fragment.is_empty() || holds)
            && compiled.as_ref().is_none_or(|one| one.is_match(line))
            && !except.as_ref().is_some_and(|one| one.is_match(line));
        let found = own.find(line).rows.contains(&index);
        assert_eq!(found, expected, "{row:?}: {:?}", String::from_utf8_lossy(line));
    }
    let read = |cut: usize| {
        let mut scan = LogScan::new(&own, 0, Origin::default());
        log.chunks(cut).for_each(|piece| scan.feed(piece));
        scan.finish()
    };
    assert_eq!(diagnose(&own, &[read(usize::MAX)], true), diagnose(&own, &[read(cut)], true));
    true
}

/// Reads the same log whole and in pieces; panics if the results differ. The first byte gives the
/// size of the pieces.
pub fn log(data: &[u8]) -> bool {
    let Some((size, log)) = data.split_first() else { return false };
    let whole = read(std::iter::once(log));
    let cut = read(log.chunks(usize::from(*size) + 1));
    assert_eq!((whole.lines, whole.bytes), (cut.lines, cut.bytes));
    assert_eq!(whole.last_lines(20), cut.last_lines(20));
    let diagnosis = diagnose(catalogue::catalogue(), &[whole], false);
    assert_eq!(diagnosis, diagnose(catalogue::catalogue(), &[cut], false));
    !diagnosis.findings.is_empty()
}

fn read<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Scanned {
    let mut scan = LogScan::new(catalogue::catalogue(), 0, Origin::default());
    pieces.for_each(|piece| scan.feed(piece));
    scan.finish()
}
