//! The reading of a profile as a function that a fuzzer feeds. Not part of the program.

use std::collections::{BTreeMap, BTreeSet};

use crate::closing;
use linux::host::Host;
use settings::cli::Options;
use settings::{Settings, Source};
use text::fuzzing::assert_printable;
use text::lang::Lang;
use verdict::{Refusal, Verdict};

/// A name that no file has.
const NAME: &str = "fuzzed-profile";

/// A profile, as a file of TOML.
///
/// It gives settings, or a refusal of usage in both languages; a line number always names a line of the file. The
/// same text gives the same result, and no two rows of a section have the same id.
pub fn profile(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else { return false };
    let first = of(text);
    let lines = text.bytes().filter(|byte| *byte == b'\n').count() + 1;
    match &first {
        Ok(settings) => {
            let mut ids = BTreeSet::new();
            for row in &settings.diagnose {
                assert!(ids.insert(&row.value.id), "{} twice", row.value.id);
                known(&row.source, lines);
                assert!(!row.value.cause.en.is_empty() && !row.value.remedy.zh.is_empty());
            }
            settings.watch.iter().for_each(|rule| known(&rule.source, lines));
            settings.env.iter().for_each(|one| known(&one.source, lines));
            assert!(settings.exit_codes.values().all(|code| (0..=255).contains(code)));
            let sizes: BTreeSet<String> =
                settings.selects.iter().map(|one| format!("{:?}", one.total_gpus)).collect();
            assert_eq!(sizes.len(), settings.selects.len());
            assert_eq!(format!("{:?}", of(text)), format!("{first:?}"));
        }
        Err(refusal) => refused(refusal, lines),
    }
    first.is_ok()
}

fn of(text: &str) -> Result<Settings, Refusal> {
    let host = Host::replayed("/nonexistent", BTreeMap::new());
    let options = Options { profile: Some(NAME.into()), ..Options::default() };
    Settings::read_with(&options, &host, &[(NAME, text)])
}

fn known(source: &Source, lines: usize) {
    if let Source::Profile { file, line } = source
        && file.starts_with(NAME)
    {
        assert!((1..=lines).contains(line), "{source} of {lines}");
    }
}

fn refused(refusal: &Refusal, lines: usize) {
    assert_eq!(refusal.verdict, Verdict::Usage, "{refusal:?}");
    for text in [&refusal.text, &refusal.hint] {
        assert!(!text.en.trim().is_empty() && !text.zh.trim().is_empty(), "{refusal:?}");
    }
    for lang in [Lang::En, Lang::Zh] {
        // Printed like the output of `say`.
        assert_printable(&text::escape::printable(&closing::refusal(refusal, 64, lang)));
        let text = refusal.text.get(lang);
        let line = text.split_once(NAME).and_then(|(_, rest)| {
            let rest = rest.strip_prefix(".toml").unwrap_or(rest).strip_prefix(':')?;
            let end = rest.find(|digit: char| !digit.is_ascii_digit()).unwrap_or(rest.len());
            rest[..end].parse::<usize>().ok()
        });
        let line = line.unwrap_or_else(|| panic!("no line is named: {text}"));
        assert!((1..=lines).contains(&line), "{line} of {lines}: {text}");
    }
}
