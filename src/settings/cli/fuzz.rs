//! The parsing of a command line as a function that a fuzzer feeds. Not part of the program.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use super::{Command, Stop, language_of};
use text::lang::Lang;
use verdict::Verdict;

/// Words, parted by line ends, behind the program's name.
///
/// They give a command, a text to show, or a refusal of usage that says in both languages what is wrong; the same words
/// give the same.
pub fn words(data: &[u8]) -> bool {
    let mut line: Vec<OsString> = vec!["ranklaunch".into()];
    let given = data.split(|byte| *byte == b'\n').filter(|word| !word.contains(&0));
    line.extend(given.map(|word| OsString::from_vec(word.to_vec())));
    let parsed = Command::parse(line.iter().cloned());
    assert_eq!(format!("{parsed:?}"), format!("{:?}", Command::parse(line.iter().cloned())));
    language_of(&line);
    match parsed {
        Ok(_) => true,
        Err(Stop::Shown(text)) => {
            assert!(!text.is_empty());
            assert!(!Command::shown(text, &line, Lang::Zh).is_empty());
            true
        }
        Err(Stop::Refused(refusal)) => {
            assert_eq!(refusal.verdict, Verdict::Usage, "{refusal:?}");
            for text in [&refusal.text, &refusal.hint] {
                assert!(!text.en.trim().is_empty() && !text.zh.trim().is_empty(), "{refusal:?}");
            }
            false
        }
    }
}
