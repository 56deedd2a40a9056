//! Decides by a name whether its value is a secret.
//!
//! Takes the name of an option, a variable, a header or a key; gives a [`Secrecy`]. A name is
//! split into words (`HF_TOKEN` → hf, token; `apiKey` → api, key), and the tables of
//! `name_words.rs` decide by these words.

use super::name_words::{
    ABOUT, COUNTED, CREDENTIAL, KEY_AFTER, KEY_BEFORE, KEY_VALUE_OF, KNOWN_OPEN, PAIRS_FOLLOW,
    PASS_BEFORE, SECRET, SECRET_AT_END, SECRET_BEHIND, SECRET_INSIDE, SWITCH, TOKEN_AFTER,
    TOKEN_BEFORE, TOKEN_GLUED,
};

/// Secrecy of a value, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Secrecy {
    Open,
    /// Hidden unless the value is a plain number: `--tokens 4096`.
    UnlessNumber,
    Secret,
}

/// Whether a value with this name must not be shown.
pub(crate) fn is_secret_name(name: &str) -> bool {
    secrecy(name) != Secrecy::Open
}

/// Whether a name has a word of a secret, but also a word that makes the name open: `image_key`.
pub(super) fn is_known_open(name: &str) -> bool {
    const WORDS: &[&str] = &["token", "key", "pass"];
    let is_word = |word: &String| WORDS.contains(&word.as_str()) || SECRET.contains(&word.as_str());
    let words = words(name);
    let is_tokens = words.first().is_some_and(|word| word == "tokens");
    secrecy(name) == Secrecy::Open && (is_tokens || words.iter().any(is_word))
}

pub(super) fn secrecy(name: &str) -> Secrecy {
    if KNOWN_OPEN.contains(&name) {
        return Secrecy::Open;
    }
    let words = words(name);
    let about = |last: &String| words.len() > 1 && ABOUT.contains(&last.as_str());
    if words.last().is_some_and(about) {
        return Secrecy::Open;
    }
    let is_switch = words.first().is_some_and(|word| SWITCH.contains(&word.as_str()));
    let found = (0..words.len()).map(|at| of_word(&words, at));
    match found.max_by_key(|secrecy| *secrecy as u8).unwrap_or(Secrecy::Open) {
        Secrecy::Secret if is_switch => Secrecy::UnlessNumber,
        secrecy => secrecy,
    }
}

/// The secrecy by the word at a position, with its neighbours.
fn of_word(words: &[String], at: usize) -> Secrecy {
    let stripped =
        |word: &'_ String| word.trim_end_matches(|c: char| c.is_ascii_digit()).to_owned();
    let word = words.get(at).map(stripped).unwrap_or_default();
    let before = at.checked_sub(1).and_then(|at| words.get(at)).map_or("", String::as_str);
    let after = words.get(at + 1).map_or("", String::as_str);
    let is_last = at + 1 == words.len();
    let secret_if = |secret: bool| if secret { Secrecy::Secret } else { Secrecy::Open };
    match word.as_str() {
        word if SECRET.contains(&word) => Secrecy::Secret,
        "token" => secret_if(
            CREDENTIAL.contains(&before)
                || !(TOKEN_BEFORE.contains(&before) || TOKEN_AFTER.contains(&after)),
        ),
        "tokens" if CREDENTIAL.contains(&before) => Secrecy::Secret,
        "tokens" if at == 0 && !TOKEN_AFTER.contains(&after) => Secrecy::UnlessNumber,
        "key" if CREDENTIAL.contains(&before) => Secrecy::Secret,
        "key" if after == "value" => {
            let of = words.get(at + 2).map_or("", String::as_str);
            secret_if(!KEY_VALUE_OF.contains(&of) && !KEY_BEFORE.contains(&before))
        }
        "key" => secret_if(!KEY_BEFORE.contains(&before) && !KEY_AFTER.contains(&after)),
        "keys" => secret_if(CREDENTIAL.contains(&before)),
        "pass" if is_last && !PASS_BEFORE.contains(&before) => Secrecy::UnlessNumber,
        "pwd" => Secrecy::Secret,
        "auth" if is_last => Secrecy::UnlessNumber,
        word => {
            let is_behind = |(last, behind): &(&str, &[&str])| {
                *last == word && (behind.is_empty() || behind.contains(&before))
            };
            let is_last = is_last || ["url", "uri"].contains(&after);
            let is_secret = is_last && SECRET_BEHIND.iter().any(is_behind);
            secret_if(is_secret || is_secret_word(word))
        }
    }
}

/// Words written without a break.
fn is_secret_word(word: &str) -> bool {
    // `passwordless` is the opposite.
    if word.ends_with("less") {
        return false;
    }
    let one = word.strip_suffix('s').unwrap_or(word);
    if SECRET_INSIDE.iter().any(|part| word.contains(part))
        || SECRET_AT_END.iter().any(|end| one.ends_with(end) || word.ends_with(end))
    {
        return true;
    }
    one.strip_suffix("token").is_some_and(|prefix| {
        !prefix.is_empty()
            && !TOKEN_GLUED.contains(&prefix)
            && !COUNTED.iter().any(|counted| prefix.starts_with(counted))
    })
}

/// The words of a name, in lower case. Splits at everything except letters and digits, at a capital after a small
/// letter, and before the last of several capitals if it begins a word (`HFToken`, but not `tokenIDs`).
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let (mut was_small, mut was_capital) = (false, false);
    let mut rest = name.chars();
    while let Some(c) = rest.next() {
        let mut after = rest.clone().take_while(|c| c.is_lowercase());
        let begins_word =
            was_capital && after.next().is_some_and(|c| c != 's' || after.next().is_some());
        if !c.is_alphanumeric() || (c.is_uppercase() && (was_small || begins_word)) {
            words.push(String::new());
        }
        if c.is_alphanumeric()
            && let Some(word) = words.last_mut()
        {
            word.extend(c.to_lowercase());
        }
        (was_small, was_capital) = (c.is_lowercase(), c.is_uppercase());
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Whether a bare word is the name of a secret whose value is the next word: `WANDB.API_KEY x`, `--set hf_token x`. A
/// word with a dash or a folder is something else. A word such as `key` is a name only if names are `expected`.
pub(super) fn is_secret_in_pair(word: &str, expected: bool) -> bool {
    let words = words(word);
    // `train_token.py` is a file.
    let last = words.iter().rposition(|one| !["url", "uri"].contains(&one.as_str()));
    let is_bare = |c: char| c.is_alphanumeric() || "_.".contains(c) || (expected && c == '-');
    let is_clear = || words.len() > 1 || !word.contains(char::is_lowercase);
    word.chars().all(is_bare)
        && word.starts_with(|c: char| c.is_alphabetic() || c == '_')
        && is_secret_name(word)
        && last.is_some_and(|last| of_word(&words, last) != Secrecy::Open)
        && (expected || is_clear())
}

/// Whether options of this name are followed by names and values: `--opts NAME x NAME x`.
pub(super) fn takes_pairs(option: &str) -> bool {
    words(option).last().is_some_and(|last| PAIRS_FOLLOW.contains(&last.as_str()))
}

/// Whether this is a valid name of an option, a variable or a configuration key.
pub(super) fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || "-_.+/:@~".contains(c))
}

/// Whether a word is the name of a variable: `HF_TOKEN`.
pub(super) fn is_variable(word: &str) -> bool {
    word.chars().all(|c| c.is_ascii_uppercase() || c == '_')
}

/// Whether the value cannot be a secret: empty, a truth value, or the name of a variable.
pub(super) fn holds_nothing(value: &str) -> bool {
    let value = value.trim();
    let reference = value.strip_prefix('$').map(|name| {
        let pair = |open, close| name.strip_prefix(open).and_then(|n| n.strip_suffix(close));
        pair('{', '}').or_else(|| pair('(', ')')).unwrap_or(name)
    });
    let is_variable = |name: &str| {
        name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    value.is_empty()
        || ["true", "false", "none", "null"].iter().any(|word| value.eq_ignore_ascii_case(word))
        || reference.is_some_and(is_variable)
}

/// Whether the value under this name must be hidden.
pub(super) fn hides(name: &str, value: &str) -> bool {
    let is_number = || value.trim().parse::<f64>().is_ok();
    match secrecy(name) {
        Secrecy::Open => false,
        _ if holds_nothing(value) => false,
        Secrecy::UnlessNumber => !is_number(),
        Secrecy::Secret => true,
    }
}
