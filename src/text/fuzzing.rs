//! Tools of fuzz targets: choices made from bytes, and a check for text that no target may print; the hiding of
//! secrets as a target. Not part of the program.

use crate::mask::{MASK, mask_args, mask_file, mask_json, mask_value};
use crate::style;
use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;

/// Yields bytes one after the other, then zeros.
#[derive(Debug)]
pub struct Choices<'a>(pub &'a [u8]);

impl<'a> Choices<'a> {
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    pub fn number(&mut self) -> u32 {
        u32::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// A number below `most`, which is at most 256.
    pub fn below(&mut self, most: usize) -> usize {
        usize::from(self.byte()) % most.max(1)
    }

    pub fn of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())].clone()
    }

    /// Bytes up to a NUL byte, or all that are left.
    pub fn until_nul(&mut self) -> &'a [u8] {
        let end = self.0.iter().position(|byte| *byte == 0);
        let (part, rest) = match end {
            Some(end) => (&self.0[..end], &self.0[end + 1..]),
            None => (self.0, &[][..]),
        };
        self.0 = rest;
        part
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Panics if a text holds control characters other than line ends, tabs and our colours: a terminal would obey them.
pub fn assert_printable(text: &str) {
    let plain = style::plain(text);
    let odd = plain.chars().find(|letter| letter.is_control() && !matches!(letter, '\n' | '\t'));
    assert!(odd.is_none(), "{odd:?} is printed: {text:?}");
}

const SECRET: &str = "hunter2-hunter2";

/// The hiding of secrets in a file or a command line. The first byte chooses which.
///
/// A secret under its own name is hidden, whatever its neighbours are. Only hidden parts of the text change.
pub fn mask(data: &[u8]) -> bool {
    let [mode, bytes @ ..] = data else { return false };
    match mode % 4 {
        0 => {
            let text = String::from_utf8_lossy(bytes).into_owned();
            let masked = mask_file(&text);
            // Only hidden parts change: the pieces between the masks are parts of the text, in their order.
            let mut rest = text.as_str();
            for part in masked.split(MASK) {
                let at = rest.find(part).unwrap_or_else(|| panic!("{part:?} of {text:?}"));
                rest = &rest[at + part.len()..];
            }
            // A line of its own in a file of variables.
            let plain = |letter: char| letter.is_alphanumeric() || "_=\n -.".contains(letter);
            if text.chars().all(plain) {
                let masked = mask_file(&format!("{text}\nHF_TOKEN={SECRET}\n"));
                assert!(!masked.contains(SECRET), "{masked}");
            }
            masked != text
        }
        1 => {
            // An option of its own hides its value, whatever the other words are.
            let mut words: Vec<OsString> = words(bytes);
            words.insert(0, "python".into());
            words.push(format!("--api_key={SECRET}").into());
            let masked = mask_args(&words);
            assert_eq!(masked.len(), words.len());
            let last = masked.last().expect("a word").to_string_lossy();
            assert!(!last.contains(SECRET), "{masked:?}");
            masked != words
        }
        2 => {
            let value = OsStr::new(std::str::from_utf8(bytes).unwrap_or_default());
            let masked = mask_value("PLAIN", value);
            assert_eq!(mask_value("HF_TOKEN", OsStr::new(SECRET)), MASK);
            masked != value
        }
        _ => {
            let Ok(inner) = serde_json::from_slice::<Value>(bytes) else { return false };
            let mut document = serde_json::json!({ "a": inner, "HF_TOKEN": SECRET });
            mask_json(&mut document);
            assert!(document["HF_TOKEN"] == MASK, "{document}");
            let once = document.clone();
            mask_json(&mut document);
            assert_eq!(document, once);
            true
        }
    }
}

fn words(bytes: &[u8]) -> Vec<OsString> {
    bytes.split(|byte| *byte == 0).map(|word| OsString::from_vec(word.to_vec())).collect()
}
