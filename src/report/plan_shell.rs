//! A plan as commands of a shell.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;

use plan::{Plan, argv};
use text::letters::is_hidden;
use text::mask::{MASK, mask_args, mask_value};

/// Lines for `sh`: variables to unset, variables to export, the command.
///
/// Masked values are named in a comment, since the user has to fill them in.
pub fn shell(plan: &Plan) -> String {
    let mut out = String::new();
    let (plain, masked) = (argv(plan), mask_args(&argv(plan)));
    let env = masked_env(plan);
    let hides = |(name, value): &(String, OsString)| plan.env.get(name) != Some(value);
    if masked != plain || env.iter().any(hides) {
        let _ = writeln!(out, "# values shown as {MASK} are secrets: fill them in");
    }
    if let Some(folder) = &plan.chdir {
        let _ = writeln!(out, "cd {}", quoted(folder.as_os_str()));
    }
    if !plan.env_remove.is_empty() {
        let names: Vec<&str> =
            plan.env_remove.iter().map(String::as_str).filter(|name| is_name(name)).collect();
        let _ = writeln!(out, "unset {}", names.join(" "));
    }
    for (name, value) in env.into_iter().filter(|(name, _)| is_name(name)) {
        let _ = writeln!(out, "export {name}={}", quoted(&value));
    }
    let words: Vec<String> = masked.iter().map(|word| quoted(word)).collect();
    let _ = writeln!(out, "{}", words.join(" "));
    out
}

/// A word quoted for a POSIX shell. Bytes that are not UTF-8, and letters that a terminal would obey or
/// not show, are written by printf, so that the output is text and reads as what it is.
pub(super) fn quoted(word: &OsStr) -> String {
    let bytes = word.as_bytes();
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-./:=,+@%".contains(byte);
    // A leading `=` or `~` is special in some shells.
    if !bytes.is_empty() && bytes.iter().all(is_plain) && !bytes.starts_with(b"=") {
        return word.to_string_lossy().into_owned();
    }
    let mut out = String::new();
    let is_hidden = |letter: char| is_hidden(letter) && !matches!(letter, '\n' | '\t');
    for chunk in bytes.utf8_chunks() {
        let mut rest = chunk.valid();
        while !rest.is_empty() {
            let plain = rest.find(is_hidden).unwrap_or(rest.len());
            let (shown, after) = rest.split_at(plain);
            if !shown.is_empty() {
                let _ = write!(out, "'{}'", shown.replace('\'', r"'\''"));
            }
            let hidden = after.find(|letter| !is_hidden(letter)).unwrap_or(after.len());
            let (hidden, after) = after.split_at(hidden);
            push_octal(&mut out, hidden.as_bytes());
            rest = after;
        }
        push_octal(&mut out, chunk.invalid());
    }
    if out.is_empty() { "''".to_owned() } else { out }
}

fn push_octal(out: &mut String, bytes: &[u8]) {
    if bytes.is_empty() {
        return;
    }
    out.push_str("\"$(printf '");
    for byte in bytes {
        let _ = write!(out, "\\{byte:03o}");
    }
    out.push_str("')\"");
}

/// Whether a shell can export this name.
fn is_name(name: &str) -> bool {
    !name.starts_with(|first: char| first.is_ascii_digit())
        && !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// The variables of the ranks without secrets.
pub(super) fn masked_env(plan: &Plan) -> Vec<(String, OsString)> {
    plan.env.iter().map(|(name, value)| (name.clone(), mask_value(name, value))).collect()
}
