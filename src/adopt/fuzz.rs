//! The reading of start-up scripts as a function that a fuzzer feeds. Not part of the program.

use super::Adopted;
use super::sizes::Files;
use text::fuzzing::assert_printable;
use text::lang::{Lang, Text};

type Reading = fn(&str, &str, Files<'_>) -> Result<Adopted, Text>;

/// Reads a script and a manifest.
///
/// Every line that is neither blank nor a comment has a class and a reason, and every class is about lines of the
/// input. The texts are printable. The same input gives the same result.
pub fn script(data: &[u8]) -> bool {
    let text = String::from_utf8_lossy(data).replace(['\r', '\0'], "\n");
    let text = text.trim_start_matches('\u{FEFF}');
    let files: Files<'_> = &|_| Ok(text.to_owned());
    let reads: [Reading; 3] = [Adopted::of_script, Adopted::of_manifest, Adopted::of];
    for (read, name) in reads.into_iter().zip(["start.sh", "start.sh", "start"]) {
        let adopted = match read(name, text, files) {
            Ok(adopted) => adopted,
            Err(why) => {
                assert!(!why.en.is_empty() && why.en != why.zh, "{why:?}");
                continue;
            }
        };
        let last = text.lines().count().max(1);
        for line in &adopted.lines {
            assert!(
                1 <= line.first && line.first <= line.last && line.last <= last,
                "{line:?} of {last}"
            );
            assert!(!line.why.en.is_empty() && !line.why.zh.is_empty(), "{line:?}");
        }
        for (at, line) in text.lines().enumerate() {
            let bare = line.trim();
            let named =
                adopted.lines.iter().any(|line| (line.first..=line.last).contains(&(at + 1)));
            assert!(
                named || bare.is_empty() || bare.starts_with('#') || bare == "---",
                "line {}: {line}",
                at + 1
            );
        }
        for lang in [Lang::En, Lang::Zh] {
            assert_printable(&text::escape::printable(&adopted.plain(lang)));
            let again = read(name, text, files).expect("the same");
            assert_eq!(adopted.json(lang).to_string(), again.json(lang).to_string());
        }
    }
    Adopted::of_script("start.sh", text, files).is_ok()
}
