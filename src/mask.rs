//! Secrets in arguments and variables, hidden before anything is printed, stored or sent.
//!
//! Takes names, values and argument lists as they are; gives text for people.
//! A name is split into words (`HF_TOKEN` → hf, token; `apiKey` → api, key), and
//! it is the words that count, so that `--tokenizer`, `--max_tokens`, `monkey` and
//! `keyframe` stay readable. Hiding one value too many costs a reader a moment,
//! one too few costs somebody a key: in doubt the value is hidden.

use std::ffi::{OsStr, OsString};

use serde_json::Value;

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

/// The value as it may be shown under this name. What a variable holds may be a
/// command line, and is read as one.
pub fn mask_value(name: &str, value: &OsStr) -> OsString {
    if is_secret_name(name) {
        return MASK.into();
    }
    let text = value.to_string_lossy();
    let shown = mask_urls(&Reader::default().first(&text));
    // Bytes that are no UTF-8 stay what they are where nothing is hidden.
    if shown == text { value.to_owned() } else { shown.into() }
}

/// An argument list as it may be shown: `--token X`, `--api-key=X`, `HF_TOKEN=X`, and the same
/// inside an argument that is a command line itself (`bash -c "HF_TOKEN=X python …"`).
///
/// Any other argument with spaces is a sentence, such as a prompt, and passes through.
pub fn mask_args(args: &[OsString]) -> Vec<OsString> {
    let mut reader = Reader::default();
    args.iter()
        .enumerate()
        .map(|(at, arg)| {
            let text = arg.to_string_lossy();
            // A process that wrote itself a title has its whole command line in one word.
            let shown = if at == 0 { reader.first(&text) } else { reader.next(&text) };
            let shown = mask_urls(&shown);
            if shown == text { arg.clone() } else { shown.into() }
        })
        .collect()
}

/// A configuration file as it may be kept: JSON, or lines of `NAME=value`.
pub fn mask_file(text: &str) -> String {
    if text.trim_start().starts_with('{')
        && let Ok(document) = serde_json::from_str::<Value>(text)
    {
        let mut shown = document.clone();
        mask_json(&mut shown);
        // As it was written where nothing is hidden.
        return if shown == document { text.to_owned() } else { shown.to_string() };
    }
    let line = |line: &str| mask_urls(&mask_assignment(line).unwrap_or_else(|| line.to_owned()));
    text.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

/// Hides what stands under a secret name: `{"HF_TOKEN": "…"}`, and the same as
/// `{"name": "HF_TOKEN", "value": "…"}`.
pub fn mask_json(document: &mut Value) {
    match document {
        Value::Object(entries) => {
            let name = ["name", "variable"].iter().find_map(|key| entries.get(*key)?.as_str());
            let is_secret = name.is_some_and(is_secret_name);
            for (key, value) in entries.iter_mut() {
                match value {
                    Value::String(text) if is_secret_name(key) || (is_secret && key == "value") => {
                        *text = MASK.to_owned();
                    }
                    other => mask_json(other),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(mask_json),
        Value::String(text) => *text = mask_urls(text),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// `http://user:password@proxy:3128` without whose it is.
fn mask_urls(text: &str) -> String {
    const BEFORE: &str = "://";
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(BEFORE) {
        let (scheme, after) = rest.split_at(at + BEFORE.len());
        shown.push_str(scheme);
        let is_end = |c: char| c.is_whitespace() || "/?#,;\"'`|<>\\".contains(c);
        let authority = after.find(is_end).unwrap_or(after.len());
        rest = after;
        if let Some(user) = after.get(..authority).and_then(|authority| authority.rfind('@')) {
            shown.push_str(MASK);
            rest = after.get(user..).unwrap_or_default();
        }
    }
    shown.push_str(rest);
    shown
}

/// A command line as it may be shown, spaces and quotes as they are.
fn mask_command_line(text: &str) -> String {
    let mut reader = Reader::default();
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let word_at = rest.find(|c: char| !c.is_whitespace()).unwrap_or(rest.len());
        let (space, after) = rest.split_at(word_at);
        shown.push_str(space);
        let (word, left) = after.split_at(word_end(after));
        rest = left;
        shown.push_str(&reader.next(word));
    }
    shown
}

/// Reads the words of a command one by one.
#[derive(Debug, Default)]
struct Reader {
    /// The word before was `--token`.
    value_is_secret: bool,
    /// A shell was named: what follows its `-c` is a command line.
    in_shell: bool,
    command_is_next: bool,
}

impl Reader {
    /// A word that is no sentence: one assignment as a whole, or a command line.
    fn first(&mut self, word: &str) -> String {
        match mask_assignment(word) {
            Some(shown) => shown,
            None if word.contains(char::is_whitespace) => mask_command_line(word),
            None => self.next(word),
        }
    }

    fn next(&mut self, word: &str) -> String {
        if std::mem::take(&mut self.command_is_next) {
            return mask_quoted(word);
        }
        // A flag after a flag: the first one was a switch (`--use-token --lr 3`).
        if std::mem::take(&mut self.value_is_secret) && !word.starts_with("--") {
            return MASK.to_owned();
        }
        if let Some(shown) = mask_assignment(word) {
            return shown;
        }
        self.value_is_secret = word.starts_with('-') && is_name(word) && is_secret_name(word);
        self.in_shell |= is_shell(word);
        self.command_is_next = self.in_shell && takes_a_command(word);
        word.to_owned()
    }
}

/// What follows `-c` inside another command line, with its quotes.
fn mask_quoted(word: &str) -> String {
    for quote in ['"', '\''] {
        let inside = word.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote));
        if let Some(inside) = inside {
            return format!("{quote}{}{quote}", mask_command_line(inside));
        }
    }
    mask_command_line(word)
}

/// Programs that take a command line, or code, behind `-c`.
fn is_shell(word: &str) -> bool {
    let name = word.rsplit('/').next().unwrap_or(word);
    let name =
        name.trim_start_matches('-').trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
    matches!(
        name,
        "sh" | "bash"
            | "dash"
            | "ash"
            | "zsh"
            | "ksh"
            | "mksh"
            | "fish"
            | "csh"
            | "tcsh"
            | "busybox"
            | "su"
            | "runuser"
            | "script"
            | "flock"
            | "python"
            | "pypy"
    )
}

/// `-c`, `-lc`, `-ec`, `--command`
fn takes_a_command(word: &str) -> bool {
    word == "--command"
        || word.strip_prefix('-').is_some_and(|flags| {
            flags.ends_with('c') && flags.chars().all(|flag| flag.is_ascii_alphabetic())
        })
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

/// `HF_TOKEN=X`, `--api-key=X` and `--env=HF_TOKEN=X` without the value; None where
/// nothing is hidden.
fn mask_assignment(word: &str) -> Option<String> {
    let (name, value) = word.split_once('=').filter(|(name, _)| is_name(name))?;
    let shown = if is_secret_name(name) { MASK.to_owned() } else { mask_assignment(value)? };
    Some(format!("{name}={shown}"))
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
    use std::os::unix::ffi::OsStringExt;

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
            (vec!["export  A_KEY=\"x y"], vec!["export  A_KEY=*** y"]),
            (vec!["--token"], vec!["--token"]),
            (vec!["--env=HF_TOKEN=abc"], vec!["--env=HF_TOKEN=***"]),
            (vec!["python train.py --token abc"], vec!["python train.py --token ***"]),
        ] {
            let args: Vec<OsString> = args.into_iter().map(OsString::from).collect();
            assert_eq!(mask_args(&args), shown);
        }
        for (name, value, shown) in
            [("HF_TOKEN", "abc", "***"), ("EXTRA_ARGS", "--lr 1 --token abc", "--lr 1 --token ***")]
        {
            assert_eq!(mask_value(name, value.as_ref()), shown);
        }
        assert_eq!(mask_value("HOME", "/root".as_ref()), "/root");
    }

    #[test]
    fn a_url_is_shown_without_its_user() {
        for (text, shown) in [
            ("http://user:abc@proxy:3128", "http://***@proxy:3128"),
            ("http://abc@proxy/x@y", "http://***@proxy/x@y"),
            ("http://user:a@b@proxy", "http://***@proxy"),
            ("http://proxy:3128/a@b", "http://proxy:3128/a@b"),
            ("tcp://10.0.0.1:29500 x@y", "tcp://10.0.0.1:29500 x@y"),
            ("a://b:c@d,e://f:g@h", "a://***@d,e://***@h"),
            ("://", "://"),
        ] {
            assert_eq!(mask_value("X", text.as_ref()), shown);
            assert_eq!(mask_args(&["x".into(), text.into()]), ["x", shown]);
        }
    }

    #[test]
    fn files_keep_all_but_their_secrets() {
        for (text, shown) in [
            ("# c\nNCCL_DEBUG=INFO\nX_TOKEN=a b\n", "# c\nNCCL_DEBUG=INFO\nX_TOKEN=***\n"),
            (
                "{ \"num_heads\": 40, \"bos_token\": \"<s>\" }",
                "{ \"num_heads\": 40, \"bos_token\": \"<s>\" }",
            ),
            (
                "{\"env_vars\": {\"A_KEY\": \"x\", \"B\": \"y\"}}",
                "{\"env_vars\":{\"A_KEY\":\"***\",\"B\":\"y\"}}",
            ),
            (
                "{\"name\": \"API_KEY\", \"value\": \"x\"}",
                "{\"name\":\"API_KEY\",\"value\":\"***\"}",
            ),
            ("{ no json", "{ no json"),
            ("index=https://u:p@host/simple\n", "index=https://***@host/simple\n"),
        ] {
            assert_eq!(mask_file(text), shown);
        }
    }

    #[test]
    fn a_command_line_is_told_from_a_sentence() {
        for (before, text, shown) in [
            // Behind the -c of a shell, also inside another one.
            (
                "bash -c",
                "env HF_TOKEN='a b'  python x.py --password abc",
                "env HF_TOKEN=***  python x.py --password ***",
            ),
            ("/bin/sh -lc", "HF_TOKEN=abc python x.py", "HF_TOKEN=*** python x.py"),
            ("timeout 5 bash -o pipefail -ec", "export A_KEY=abc; x", "export A_KEY=*** x"),
            ("su - me --command", "x --api-key abc", "x --api-key ***"),
            (
                "bash -c",
                "cd /x && sh -c 'env HF_TOKEN=abc python'",
                "cd /x && sh -c 'env HF_TOKEN=*** python'",
            ),
            (
                "bash -c",
                "python x.py --prompt 'the key=is here' --token abc",
                "python x.py --prompt 'the key=is here' --token ***",
            ),
            ("python3.11 -c", "token = f(); api_key='abc'", "token = f(); api_key=***"),
            // A sentence, wherever it stands.
            ("generate.py --prompt", "the key=is here", "the key=is here"),
            ("generate.py -c", "the key=is here", "the key=is here"),
            ("bash run.sh --prompt", "the key=is here", "the key=is here"),
            ("bash -c x", "the --token is here", "the --token is here"),
            ("x", "--prompt=the key=is here", "--prompt=the key=is here"),
        ] {
            let mut args: Vec<OsString> = before.split(' ').map(OsString::from).collect();
            args.push(text.into());
            assert_eq!(mask_args(&args).pop(), Some(shown.into()), "{before}");
        }
    }

    #[test]
    fn bytes_that_are_no_text_stay_what_they_are() {
        let odd = OsString::from_vec(b"\xff mixed \x80".to_vec());
        assert_eq!(mask_value("X", &odd), odd);
        let odd = [odd];
        assert_eq!(mask_args(&odd), odd);
    }

    proptest! {
        #[test]
        fn nothing_but_secrets_changes(args in proptest::collection::vec("\\PC{0,20}", 0..5)) {
            let given: Vec<OsString> = args.iter().map(OsString::from).collect();
            let shown = mask_args(&given);
            prop_assert_eq!(shown.len(), args.len());
            for (shown, arg) in shown.iter().zip(&args) {
                let shown = shown.to_string_lossy();
                prop_assert!(shown == arg.as_str() || shown.contains(MASK));
            }
        }
    }
}
