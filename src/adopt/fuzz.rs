//! The reading of start-up scripts as a function that a fuzzer feeds. Not part of the program.

use super::Adopted;
use text::fuzzing::assert_printable;
use text::lang::Lang;

/// Reads a script and a manifest.
///
/// Every line that is neither blank nor a comment has a class and a reason, and every class is about lines of the
/// input. The texts are printable. The same input gives the same result.
pub fn script(data: &[u8]) -> bool {
    let text = String::from_utf8_lossy(data).replace('\r', "\n");
    for read in [Adopted::of_script, Adopted::of_manifest] {
        let Some(adopted) = read("start.sh", &text) else { continue };
        let last = text.lines().count().max(1);
        for line in &adopted.lines {
            assert!(
                1 <= line.first && line.first <= line.last && line.last <= last,
                "{line:?} of {last}"
            );
            assert!(!line.why.en.is_empty() && !line.why.zh.is_empty(), "{line:?}");
        }
        for (at, line) in text.trim_start_matches('\u{FEFF}').lines().enumerate() {
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
            let again = read("start.sh", &text).expect("the same");
            assert_eq!(adopted.json(lang).to_string(), again.json(lang).to_string());
        }
    }
    Adopted::of_script("start.sh", &text).is_some()
}
