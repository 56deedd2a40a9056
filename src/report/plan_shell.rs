//! A plan as commands of a shell.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;

use crate::mask::{MASK, mask_args, mask_value};
use crate::plan::{Plan, argv};

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

/// A word quoted for a POSIX shell. Bytes that are not UTF-8 are written by printf, so that the
/// output stays UTF-8.
pub(super) fn quoted(word: &OsStr) -> String {
    let bytes = word.as_bytes();
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-./:=,+@%".contains(byte);
    // A leading `=` or `~` is special in some shells.
    if !bytes.is_empty() && bytes.iter().all(is_plain) && !bytes.starts_with(b"=") {
        return word.to_string_lossy().into_owned();
    }
    let mut out = String::new();
    for chunk in bytes.utf8_chunks() {
        if !chunk.valid().is_empty() || chunk.invalid().is_empty() {
            let _ = write!(out, "'{}'", chunk.valid().replace('\'', r"'\''"));
        }
        if !chunk.invalid().is_empty() {
            out.push_str("\"$(printf '");
            for byte in chunk.invalid() {
                let _ = write!(out, "\\{byte:03o}");
            }
            out.push_str("')\"");
        }
    }
    if out.is_empty() { "''".to_owned() } else { out }
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
