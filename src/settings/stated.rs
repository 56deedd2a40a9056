//! The keys that the layers of settings state, each with its value and source, under one name in all layers:
//! `log_keep`, `severity.shm.size`, `env.NCCL_DEBUG`, `exit.83`, `watch.loss`.
//!
//! Takes profiles, variables and flags before they are merged, for the comparison with locked keys, and after, for
//! people. Decides nothing.

use std::ffi::{OsStr, OsString};

use super::locks::{CONDA_ROOTS, ENGINE_ARGS, PLATFORM, SELECT};
use super::profile::Profile;
use super::table::{SettingRow, TABLE, Take, Toml};
use super::{Expects, Settings, Source, Sourced, Stated};
use linux::host::Host;
use text::mask;

/// A key that a layer sets, as it can be compared with that of another layer.
#[derive(Debug, Clone)]
pub(super) struct Candidate {
    pub(super) stated: Stated,
    /// The value for comparisons.
    raw: String,
    /// The parser of the value; None: only equal texts mean the same.
    row: Option<&'static SettingRow>,
    /// Whether values of several layers add up.
    adds: bool,
}

impl Candidate {
    fn new(key: impl Into<String>, raw: String, source: &Source) -> Candidate {
        let key = key.into();
        let value = mask::mask_value(&key, OsStr::new(&raw)).to_string_lossy().into_owned();
        let source = source.clone();
        let stated = Stated { key, value, source, locked: false };
        Candidate { stated, raw, row: None, adds: false }
    }

    /// A value of a row with a section of the profile.
    pub(super) fn of_row(row: &'static SettingRow, text: &str, source: &Source) -> Candidate {
        let of_text = Candidate::new(row.key(), text.to_owned(), source);
        Candidate { row: Some(row), adds: row.toml == Toml::List, ..of_text }
    }

    /// An entry of a flag or a variable that takes several: an entry of a list, or `NAME=VALUE` of a table of the
    /// profile that is called as the flag is.
    pub(super) fn of_entry(row: &'static SettingRow, entry: &OsStr, source: &Source) -> Candidate {
        let text = entry.to_string_lossy();
        match (row.table, text.split_once('=')) {
            (None, Some((name, value))) => {
                Candidate::new(format!("{}.{name}", row.name), value.to_owned(), source)
            }
            _ => Candidate::of_row(row, text.trim(), source),
        }
    }

    /// The same with other words for people.
    fn shown(mut self, value: &str) -> Candidate {
        value.clone_into(&mut self.stated.value);
        self
    }

    pub(super) fn means_the_same(&self, other: &Candidate) -> bool {
        let effects = || {
            let row = self.row.or(other.row)?;
            Some(effect(row, &self.raw)? == effect(row, &other.raw)?)
        };
        self.raw == other.raw || effects() == Some(true)
    }
}

/// The settings that a text gives on its own; None if it is not allowed.
fn effect(row: &SettingRow, text: &str) -> Option<String> {
    let Take::One(put) = row.take else { return None };
    let mut settings = Settings::default();
    put(&mut settings, text, Source::Default)?;
    Some(format!("{settings:?}"))
}

impl Profile {
    /// All keys of this profile but those of its program.
    pub(super) fn stated(&self) -> Vec<Candidate> {
        // Every field by name, so that a new one does not compile without a decision here.
        let Profile {
            extends: _,
            locked: _,
            values,
            lists,
            // The command line may name another program, which a plan shows.
            program: _,
            args: _,
            args_if: _,
            engine_args,
            engine_of_args: _,
            conda_roots,
            heads_table,
            selects,
            env,
            severities,
            exit_codes,
            diagnose,
            watch,
            platform,
        } = self;
        let mut all = Vec::new();
        for row in TABLE {
            let scalar = values.get(row.name).into_iter();
            let list = lists.get(row.name).into_iter().flatten();
            all.extend(
                scalar.chain(list).map(|one| Candidate::of_row(row, &one.value, &one.source)),
            );
        }
        if let Some(table) = heads_table {
            let what = format!("{} {:?} {:?}", table.argument, table.heads, table.default);
            all.push(Candidate::new("heads", what, &table.source));
        }
        let lines =
            engine_args.iter().map(|words| (ENGINE_ARGS, masked(&words.value), &words.source));
        all.extend(lines.map(|(key, line, source)| Candidate::new(key, line, source)));
        all.extend(conda_roots.iter().map(|roots| {
            let paths: Vec<String> =
                roots.value.iter().map(|path| path.display().to_string()).collect();
            Candidate::new(CONDA_ROOTS, paths.join(" "), &roots.source)
        }));
        all.extend(platform.iter().map(|platform| {
            let raw = format!("{:?}", platform.value);
            Candidate::new(PLATFORM, raw, &platform.source).shown(platform.value.id)
        }));
        all.extend(selects.iter().map(|row| {
            let what = format!("{} GPUs: {:?}", row.gpus(), row.values);
            Candidate { adds: true, ..Candidate::new(SELECT, what, &row.source) }
        }));
        all.extend(env.iter().map(|setting| {
            let value = setting.value.to_string_lossy().into_owned();
            Candidate::new(format!("env.{}", setting.name), value, &setting.source)
        }));
        all.extend(severities.iter().map(|(id, severity)| {
            let name = super::platform::spelled(severity.value);
            Candidate::new(format!("severity.{id}"), name, &severity.source)
        }));
        all.extend(exit_codes.iter().map(|(verdict, code)| {
            Candidate::new(format!("exit.{verdict}"), code.value.to_string(), &code.source)
        }));
        all.extend(diagnose.iter().map(|Sourced { value: row, source }| {
            let key = format!("diagnose.{}", row.id);
            Candidate::new(key, format!("{row:?}"), source).shown(&row.cause.en)
        }));
        all.extend(watch.iter().map(|Sourced { value: rule, source }| {
            let what = match &rule.expects {
                Expects::Line(lines, _) | Expects::Number { lines, .. } => lines.pattern.as_str(),
                Expects::BusyGpus(_) => "gpus_idle",
            };
            let key = format!("watch.{}", rule.id);
            Candidate::new(key, format!("{rule:?}"), source).shown(what)
        }));
        all
    }
}

fn masked(words: &[String]) -> String {
    let words: Vec<OsString> = words.iter().map(OsString::from).collect();
    let words = mask::mask_args(&words);
    words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// The variables of the container, which win over those of `[env]`, for the locked ones.
pub(super) fn of_container<'a>(keys: impl Iterator<Item = &'a str>, host: &Host) -> Vec<Candidate> {
    let of_key = |key: &str| {
        let name = key.strip_prefix("env.")?;
        let source = Source::Environment(name.to_owned());
        Some(Candidate::new(key, host.variable(name)?, &source))
    };
    keys.filter_map(of_key).collect()
}

/// The stronger keys over the weaker ones.
pub(super) fn over(stronger: Vec<Candidate>, mut weaker: Vec<Candidate>) -> Vec<Candidate> {
    for one in stronger {
        match weaker.iter_mut().find(|other| other.stated.key == one.stated.key && !one.adds) {
            Some(other) => *other = one,
            None => weaker.push(one),
        }
    }
    weaker
}
