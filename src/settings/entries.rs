//! The two settings that are lists of pairs: variables for the ranks and severities of checks.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use super::{EnvSetting, Settings, Source, Sourced};
use crate::verdict::{Id, Severity};

pub(super) fn severity_of(text: &str) -> Option<Severity> {
    match text {
        "fail" => Some(Severity::Fail),
        "warn" => Some(Severity::Warn),
        "off" => Some(Severity::Off),
        _ => None,
    }
}

/// Whether a process can be given a variable of this name.
pub(super) fn is_variable_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(|c: char| c == '=' || c.is_whitespace() || c.is_control())
}

/// Takes one entry of `--env` or `--severity`. None: not allowed.
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
        _ => None,
    }
}

/// A variable has one value: the later, stronger one.
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
