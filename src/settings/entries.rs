//! The settings with several entries: `--env`, `--severity`, `--retry-on`, `--no-retry-on` and
//! `--warm-modules`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use super::{EnvSetting, Settings, Source, Sourced, WarmModule};
use text::letters::is_hidden;
use verdict::{Id, Severity};

pub(super) fn severity_of(text: &str) -> Option<Severity> {
    match text {
        "fail" => Some(Severity::Fail),
        "warn" => Some(Severity::Warn),
        "off" => Some(Severity::Off),
        _ => None,
    }
}

/// Whether a variable can have this name.
pub(super) fn is_variable_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(|c: char| c == '=' || c.is_whitespace() || is_hidden(c))
}

/// An id without blanks. The catalogue of failures knows whether the id exists.
fn id(entry: &OsStr) -> Option<String> {
    let id = entry.to_str()?.trim();
    let is_letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    (!id.is_empty() && id.chars().all(is_letter)).then(|| id.to_owned())
}

/// Takes one entry. None: not allowed.
pub(super) fn put(settings: &mut Settings, row: &str, entry: &OsStr, source: Source) -> Option<()> {
    match row {
        "env" => {
            let bytes = entry.as_bytes();
            let at = bytes.iter().position(|byte| *byte == b'=')?;
            let (name, value) = bytes.split_at(at);
            let name = std::str::from_utf8(name).ok().filter(|name| is_variable_name(name))?;
            let value = OsStr::from_bytes(value.strip_prefix(b"=")?).to_owned();
            put_variable(settings, EnvSetting { name: name.to_owned(), value, source });
            Some(())
        }
        "severity" => {
            let (id, severity) = entry.to_str()?.split_once('=')?;
            let id = Id::check_named(id)?;
            let severity = Sourced::new(severity_of(severity)?, source);
            settings.severities.insert(id, severity);
            Some(())
        }
        "retry-on" => {
            settings.retry_on.push(Sourced::new(id(entry)?, source));
            Some(())
        }
        "no-retry-on" => {
            settings.no_retry_on.push(Sourced::new(id(entry)?, source));
            Some(())
        }
        "warm-modules" => {
            let module = module(entry)?;
            settings.warm_modules.retain(|other| other.name != module.name);
            settings.warm_modules.push(module);
            Some(())
        }
        _ => None,
    }
}

/// `package.module`, or `-package.module` to leave it out.
fn module(entry: &OsStr) -> Option<WarmModule> {
    let entry = entry.to_str()?.trim();
    let (name, is_imported) = match entry.strip_prefix('-') {
        Some(name) => (name, false),
        None => (entry, true),
    };
    let is_letter = |c: char| c.is_alphanumeric() || c == '_';
    let is_name = |part: &str| {
        part.chars().all(is_letter) && part.chars().next().is_some_and(|c| !c.is_numeric())
    };
    name.split('.').all(is_name).then(|| WarmModule { name: name.to_owned(), is_imported })
}

/// A variable has one value; the later, stronger entry replaces the earlier one.
pub(super) fn put_variable(settings: &mut Settings, setting: EnvSetting) {
    settings.env.retain(|other| other.name != setting.name);
    settings.env.push(setting);
}

/// The entries of a variable that holds several.
pub(super) fn split(value: &OsStr, separators: &[char]) -> Vec<OsString> {
    value
        .as_bytes()
        .split(|byte| separators.contains(&char::from(*byte)))
        .map(OsStr::from_bytes)
        .filter(|entry| !entry.as_bytes().trim_ascii().is_empty())
        .map(OsStr::to_owned)
        .collect()
}
