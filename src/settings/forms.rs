//! The ways to give each setting, for `explain` and completions.

use std::ffi::OsString;

use super::EMBEDDED;
use super::table::{Allowed, SettingRow, TABLE, Toml};
use crate::cli::{self, Command};
use text::lang::{Lang, Text};
use verdict::Id;

/// The ways to give a setting, and the values that it allows.
#[derive(Debug)]
pub struct Form {
    /// The id of the refusal of an invalid value, such as `settings.nnodes`.
    pub id: Id,
    /// The strongest way to give the setting, which is its name: `--nnodes`.
    pub name: String,
    pub allowed: Text,
    /// `--nnodes 2`
    pub flag: Option<String>,
    /// `RANKLAUNCH_NNODES=2`
    pub variable: Option<String>,
    /// `[job] nnodes = 2`, in a profile.
    pub key: Option<String>,
}

/// The form of every setting.
pub fn forms() -> impl Iterator<Item = Form> {
    TABLE.iter().map(|row| {
        let (name, example, key) = (row.name, row.example, row.key());
        let value = match row.toml {
            Toml::Number | Toml::Boolean => example.to_owned(),
            // A regular expression is written without escapes.
            Toml::Text if example.contains('\\') => format!("'{example}'"),
            Toml::Text | Toml::TextOrNumber => format!("\"{example}\""),
            Toml::List => format!("[\"{example}\"]"),
        };
        let is_switch = row.toml == Toml::Boolean;
        let flag = if is_switch { format!("--{name}") } else { format!("--{name} {example}") };
        Form {
            id: row.id(),
            name: if row.flag.is_some() { format!("--{name}") } else { key.clone() },
            allowed: row.allowed.text(),
            flag: row.flag.map(|_| flag),
            variable: row.variable().map(|variable| format!("{variable}={example}")),
            key: row.table.map(|table| format!("[{table}] {key} = {value}")),
        }
    })
}

impl Command {
    /// What may stand at the end of an unfinished line, for the script of a shell. `explained` are the words that
    /// `explain` knows.
    pub fn complete(words: &[OsString], explained: Vec<String>, lang: Lang) -> String {
        let of_row = |row: &SettingRow| match row.allowed {
            Allowed::OneOf(names) if row.toml != Toml::Boolean => {
                Some((row.name, names.iter().map(ToString::to_string).collect()))
            }
            _ => None,
        };
        let ids =
            Id::checks().flat_map(|id| ["fail", "warn", "off"].map(|what| format!("{id}={what}")));
        let profiles: Vec<String> = EMBEDDED.iter().map(|(name, _)| (*name).to_owned()).collect();
        let mut values: Vec<(&str, Vec<String>)> = TABLE.iter().filter_map(of_row).collect();
        values.extend([
            ("severity", ids.collect()),
            ("nproc-per-node", ["auto", "gpu", "cpu"].map(str::to_owned).to_vec()),
            ("ids", explained),
            ("profile", profiles.clone()),
            ("name", profiles),
        ]);
        cli::offered(words, &values, lang)
    }
}
