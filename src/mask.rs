//! Secrets in arguments and variables, hidden before anything is printed, stored or sent.
//!
//! Takes names, values and argument lists as they are; gives text for people.
//! A name is split into words (`HF_TOKEN` → hf, token; `apiKey` → api, key), and
//! it is the words that count, so that `--tokenizer`, `--max_tokens`, `monkey` and
//! `keyframe` stay readable. Hiding one value too many costs a reader a moment,
//! one too few costs somebody a key: in doubt the value is hidden.

use std::ffi::{OsStr, OsString};

/// What stands in place of a hidden value.
pub const MASK: &str = "***";

/// Words that make a name secret wherever they stand in it.
const SECRET: &[&str] = &[
    "secret",
    "secrets",
    "password",
    "passwords",
    "passwd",
    "passphrase",
    "apikey",
    "accesskey",
    "secretkey",
    "privatekey",
    "authtoken",
    "accesstoken",
];

/// Words that make a name secret unless a neighbour shows that a model's token or key is meant.
const SECRET_ALONE: &[&str] = &["token", "key"];
const MODEL_BEFORE: &[&str] = &[
    "pad", "eos", "bos", "mask", "cls", "sep", "unk", "special", "num", "max", "min", "image",
    "video", "query", "per",
];
const MODEL_AFTER: &[&str] = &[
    "dim",
    "dims",
    "size",
    "len",
    "length",
    "count",
    "frame",
    "frames",
    "value",
    "padding",
    "heads",
    "type",
    "ids",
    "embedding",
    "points",
];

/// Whether a value with this name must not be shown.
pub fn is_secret_name(name: &str) -> bool {
    let words = words(name);
    words.iter().enumerate().any(|(at, word)| {
        let word = word.trim_end_matches(|c: char| c.is_ascii_digit());
        let stands = |list: &[&str], place: Option<usize>| {
            place.and_then(|i| words.get(i)).is_some_and(|other| list.contains(&other.as_str()))
        };
        SECRET.contains(&word)
            || (SECRET_ALONE.contains(&word)
                && !stands(MODEL_BEFORE, at.checked_sub(1))
                && !stands(MODEL_AFTER, Some(at + 1)))
    })
}

/// The value as it may be shown under this name.
pub fn mask_value(name: &str, value: &OsStr) -> String {
    if is_secret_name(name) { MASK.to_owned() } else { mask_text(&value.to_string_lossy()) }
}

/// An argument list as it may be shown: `--token X`, `--api-key=X`, `HF_TOKEN=X`, and the same
/// inside an argument that is a command line itself (`bash -c "HF_TOKEN=X python …"`).
pub fn mask_args(args: &[OsString]) -> Vec<String> {
    let mut value_is_secret = false;
    args.iter()
        .map(|arg| {
            let arg = arg.to_string_lossy();
            // A flag after a flag: the first one was a switch (`--use-token --lr 3`).
            if std::mem::take(&mut value_is_secret) && !arg.starts_with("--") {
                return MASK.to_owned();
            }
            value_is_secret = names_a_secret_value(&arg);
            mask_text(&arg)
        })
        .collect()
}

/// `--token`, whose value is the next word.
fn names_a_secret_value(word: &str) -> bool {
    word.starts_with('-') && is_name(word) && is_secret_name(word)
}

/// `HF_TOKEN=X` as a whole, or each such word of a longer text.
fn mask_text(text: &str) -> String {
    if let Some((name, _)) = secret_assignment(text) {
        return format!("{name}={MASK}");
    }
    if !text.contains(char::is_whitespace) {
        return text.to_owned();
    }
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    let mut value_is_secret = false;
    while !rest.is_empty() {
        let word_at = rest.find(|c: char| !c.is_whitespace()).unwrap_or(rest.len());
        let (space, after) = rest.split_at(word_at);
        shown.push_str(space);
        let (word, left) = after.split_at(word_end(after));
        rest = left;
        if word.is_empty() {
            continue;
        }
        if std::mem::take(&mut value_is_secret) && !word.starts_with("--") {
            shown.push_str(MASK);
        } else if let Some((name, _)) = secret_assignment(word) {
            shown.push_str(name);
            shown.push('=');
            shown.push_str(MASK);
        } else {
            value_is_secret = names_a_secret_value(word);
            shown.push_str(word);
        }
    }
    shown
}

/// Where the first word ends: at white space that no quote of an assignment's value encloses.
fn word_end(text: &str) -> usize {
    let mut quote = None;
    let mut before = '=';
    for (at, c) in text.char_indices() {
        match quote {
            Some(open) if c == open => quote = None,
            Some(_) => {}
            None if c.is_whitespace() => return at,
            // Only after `=` or at the start: the apostrophe of "don't" opens nothing.
            None if matches!(c, '"' | '\'') && before == '=' => quote = Some(c),
            None => {}
        }
        before = c;
    }
    // A quote that never closes encloses nothing more than its own word.
    if quote.is_some() { text.find(char::is_whitespace).unwrap_or(text.len()) } else { text.len() }
}

fn secret_assignment(word: &str) -> Option<(&str, &str)> {
    word.split_once('=').filter(|(name, _)| is_name(name) && is_secret_name(name))
}

/// Whether this can be the name of an option, a variable or a configuration key.
fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || "-_.+/:@~\"'".contains(c))
}

/// The words of a name, in lower case: cut at everything but letters and digits and where
/// a capital follows a small letter.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_small = false;
    for c in name.chars() {
        if !c.is_alphanumeric() || (c.is_uppercase() && was_small) {
            words.push(String::new());
        }
        if c.is_alphanumeric()
            && let Some(word) = words.last_mut()
        {
            word.extend(c.to_lowercase());
        }
        was_small = c.is_lowercase();
    }
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_are_judged_by_their_words() {
        for name in [
            "HF_TOKEN",
            "--token",
            "--api-key",
            "WANDB_API_KEY",
            "AWS_SECRET_ACCESS_KEY",
            "AWS_ACCESS_KEY_ID",
            "db.password",
            "apiKey",
            "hfToken",
            "PASSWORD",
            "API_KEY_2",
            "HUGGING_FACE_HUB_TOKEN",
            "OPENAI_APIKEY",
            "TOKEN1",
            "RANKLAUNCH_SECRET",
            "HF_TOKEN_RO",
        ] {
            assert!(is_secret_name(name), "{name} must be hidden");
        }
        for name in [
            "--tokenizer",
            "--max_tokens",
            "--num_keys",
            "monkey",
            "keyframe",
            "--pad_token_id",
            "key_dim",
            "--key-frames",
            "tokens",
            "PYTHONPATH",
            "--secretary",
            "turkey",
            "",
            "max_token",
        ] {
            assert!(!is_secret_name(name), "{name} must be shown");
        }
    }

    #[test]
    fn values_are_hidden_in_every_way_of_writing_them() {
        for (args, shown) in [
            (vec!["--token", "abc", "--lr", "1"], vec!["--token", "***", "--lr", "1"]),
            (vec!["--api-key=abc"], vec!["--api-key=***"]),
            (vec!["HF_TOKEN=abc def"], vec!["HF_TOKEN=***"]),
            (vec!["+wandb.api_key=abc"], vec!["+wandb.api_key=***"]),
            (vec!["--use-token", "--lr", "1"], vec!["--use-token", "--lr", "1"]),
            (vec!["--token", "a b c"], vec!["--token", "***"]),
            (vec!["--tokenizer", "t5"], vec!["--tokenizer", "t5"]),
            (vec!["--prompt", "the key = love, don't"], vec!["--prompt", "the key = love, don't"]),
            (
                vec!["bash", "-c", "env HF_TOKEN='a b'  python x.py --password abc"],
                vec!["bash", "-c", "env HF_TOKEN=***  python x.py --password ***"],
            ),
            (vec!["export  A_KEY=\"x y"], vec!["export  A_KEY=*** y"]),
            (vec!["--token"], vec!["--token"]),
        ] {
            let args: Vec<OsString> = args.into_iter().map(OsString::from).collect();
            assert_eq!(mask_args(&args), shown);
        }
        assert_eq!(mask_value("HF_TOKEN", "abc".as_ref()), "***");
        assert_eq!(mask_value("HOME", "/root".as_ref()), "/root");
    }

    proptest! {
        #[test]
        fn nothing_but_secrets_changes(args in proptest::collection::vec("\\PC{0,20}", 0..5)) {
            let given: Vec<OsString> = args.iter().map(OsString::from).collect();
            let shown = mask_args(&given);
            prop_assert_eq!(shown.len(), args.len());
            for (shown, arg) in shown.iter().zip(&args) {
                prop_assert!(shown == arg || shown.contains(MASK));
            }
        }
    }
}
