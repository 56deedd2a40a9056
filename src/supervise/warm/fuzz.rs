//! The answer of `scout.py` as a function that a fuzzer feeds. Not part of the program.

use super::scouted::read;
use text::lang::Text;

/// The imports are the modules found, each a single word. Otherwise there is a reason in both languages.
pub fn scout(data: &[u8]) -> bool {
    let Some(scouted) = read(data) else { return false };
    let said = |text: &Text| assert!(!text.en.is_empty() && !text.zh.is_empty(), "{text:?}");
    if let Some(ends) = &scouted.ends {
        said(&ends.why());
    }
    scouted.learned().for_each(|text| said(&text));
    match scouted.imports() {
        Ok(imports) => {
            assert!(!imports.contains('\0'));
            let words: Vec<&str> = imports.split(' ').collect();
            assert_eq!(words, scouted.steps.iter().map(String::as_str).collect::<Vec<_>>());
        }
        Err(why) => said(&why),
    }
    true
}
