//! The texts of `ranklaunch help TOPIC`: a screen or two each, for a terminal of 80 columns.
//!
//! Takes a topic; gives its text of `topics/`, the one about exit codes with the table of them.

use std::fmt::Write as _;

use crate::findings::ExitCode;
use settings::cli::Topic;
use text::columns::fold;
use text::lang::{Lang, Text};

/// `topics/` as build.rs has deflated it.
static DEFLATED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/topics.zz"));

/// Where the table of exit codes stands in a text.
const CODES: &str = "{codes}";

/// The text of a topic. Empty if it has none, which a test forbids.
pub fn text(topic: Topic, lang: Lang) -> String {
    let ending = match lang {
        Lang::En => "en",
        Lang::Zh => "zh",
    };
    let name = format!("{}.{ending}.txt", topic.name());
    let files = embed::files(DEFLATED).unwrap_or_default();
    let found = files.into_iter().find(|(file, _)| *file == name);
    let text = found.map(|(_, text)| text).unwrap_or_default();
    if text.contains(CODES) { text.replace(CODES, table(lang).trim_end()) } else { text }
}

/// The exit codes with their meaning.
pub fn exit_codes() -> Vec<(String, Text)> {
    let all = ExitCode::all().into_iter();
    all.map(|code| (code.number().to_string(), code.explanation().what)).collect()
}

fn table(lang: Lang) -> String {
    let mut table = String::new();
    for (code, meaning) in exit_codes() {
        let mut line = String::new();
        let _ = write!(line, "  {code:>3}  {}", meaning.get(lang));
        fold(&mut table, &line, 7, Some(80));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use text::columns::columns;

    #[test]
    fn every_topic_fits_two_screens_in_both_languages() {
        for topic in Topic::ALL {
            for lang in [Lang::En, Lang::Zh] {
                let text = text(topic, lang);
                let lines = text.lines().count();
                assert!((15..=52).contains(&lines), "{topic:?} {lang:?}: {lines} lines");
                for line in text.lines() {
                    assert!(columns(line) <= 80, "{topic:?} {lang:?}: {line}");
                }
                assert!(text.ends_with('\n') && !text.contains(CODES));
                // Each ends with the pages that say more.
                let (_, more) = text.rsplit_once("\n\n").expect("paragraphs");
                assert!(more.contains("docs/") && more.contains("ranklaunch explain"), "{more}");
            }
        }
    }

    #[test]
    fn topic_about_exit_codes_has_all_of_them() {
        for lang in [Lang::En, Lang::Zh] {
            let text = text(Topic::ExitCodes, lang);
            for (code, meaning) in exit_codes() {
                let begins: String = meaning.get(lang).chars().take(5).collect();
                assert!(text.contains(&format!(" {code}  {begins}")), "{code} {begins}");
            }
        }
    }
}
