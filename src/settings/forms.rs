//! The ways to give each setting, for `explain` and completions.

use super::EMBEDDED;
use super::table::{Allowed, SettingRow, TABLE, Toml};
use crate::cli::{self, Command, EXPLAINED};
use text::lang::Text;
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
    /// The completion script of a shell. `explained` are the words that `explain` knows.
    pub fn completions(shell: clap_complete::Shell, explained: Vec<String>) -> Vec<u8> {
        let of_row = |row: &SettingRow| match row.allowed {
            Allowed::OneOf(names) if row.toml != Toml::Boolean => {
                Some((row.name, names.iter().map(ToString::to_string).collect()))
            }
            _ => None,
        };
        let ids =
            Id::checks().flat_map(|id| ["fail", "warn", "off"].map(|what| format!("{id}={what}")));
        let mut values: Vec<(&str, Vec<String>)> = TABLE.iter().filter_map(of_row).collect();
        values.push(("severity", ids.collect()));
        values.push(("nproc-per-node", vec!["auto".to_owned()]));
        values.push((EXPLAINED, explained));
        let profiles: Vec<&str> = EMBEDDED.iter().map(|(name, _)| *name).collect();
        cli::completions(shell, &values, &profiles)
    }
}
