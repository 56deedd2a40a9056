//! Reads the user's settings: profile, environment and flags in one checked type.
//!
//! Takes the parsed command line, the environment, the profile and the platform's file below it; gives
//! [`Settings`], in which every value has its [`Source`]. Order of strength: flag, `RANKLAUNCH_*`, profile,
//! the platform's file; the platform, the node or a default fills the rest later. Reads only these two files,
//! and tests whether the program is an executable. The settings are rows of [`table`].

#![deny(unsafe_code)]

pub mod arguments;
mod assumed;
mod checkpoint;
pub mod cli;
mod condition;
pub mod contract;
mod diagnose_rows;
mod document;
pub mod engine;
mod engine_args;
mod extends;
mod few;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
mod forms;
#[cfg(any(test, feature = "fixtures"))]
pub mod fuzz;
mod given;
pub mod hostlist;
pub mod launchers;
mod layer;
mod locks;
mod min_version;
mod notice;
mod places;
mod platform;
mod profile;
mod program;
mod refuse;
mod rule;
mod site;
mod size_tables;
mod stated;
mod table;
#[cfg(test)]
mod tests;
pub mod torchrun_options;
mod types;
mod value;
mod variables;
mod watch;

use std::collections::BTreeMap;
use std::ffi::OsString;

use linux::host::Host;
use text::lang::Lang;
use verdict::Refusal;

pub use arguments::config_files;
pub use checkpoint::{CheckpointFormat, WithoutCheckpoint};
pub use condition::{Placeholder, PlannedSize};
pub use few::InitSettings;
pub use forms::{Form, forms};
pub use hostlist::split_endpoint;
pub use notice::{NoticeMode, NoticeSignal, NoticeSource};
pub use places::{EMBEDDED, KnownProfile};
use profile::Profile;
use refuse::quoted;
use table::{SettingRow, TABLE, Take, row};
pub use types::*;

pub use crate::engine::Engine;
use given::{Given, Unnamed, defaults};
pub use rule::{Expects, Lines, Ranks, Reaction, Rule, Time};
pub use value::duration;
pub use variables::{GRACE_OF_A_POD, grace_in_container};

impl Settings {
    /// Flags, variables and profile as one checked type.
    pub fn read(options: &cli::Options, host: &Host) -> Result<Settings, Refusal> {
        Settings::read_with(options, host, EMBEDDED)
    }

    /// Settings from a command line and these variables alone, without the files of a node.
    pub fn without_files(
        options: &cli::Options,
        variables: BTreeMap<OsString, OsString>,
        embedded: &[(&str, &str)],
    ) -> Result<Settings, Refusal> {
        Settings::read_with(options, &Host::replayed("/nonexistent", variables), embedded)
    }

    /// Like [`Settings::read`], with other embedded profiles.
    pub fn read_with(
        options: &cli::Options,
        host: &Host,
        embedded: &[(&str, &str)],
    ) -> Result<Settings, Refusal> {
        let mut warnings = Vec::new();
        let mut settings = defaults(host);
        let mut given = Given::new(options, host, &mut warnings);
        given.load_site(host, &mut warnings)?;
        settings.profile = given.load_profile(host, embedded, Unnamed::Searched, &mut warnings)?;
        settings.site = given.site_file();
        settings.stated = given.unlocked(host)?;
        let rank = given.profile.as_ref().and_then(|profile| profile.values.get("node-rank"));
        warnings.extend(rank.map(refuse::rank_in_profile));

        for row in TABLE {
            given.put(row, &mut settings)?;
            if let Take::Entries(separators) = row.take {
                if let Some(profile) = &given.profile {
                    entries_of_profile(&mut settings, row, profile)?;
                }
                for Sourced { value, source } in given.entries(row, separators) {
                    table::put_entry(&mut settings, row.name, &value, source.clone())
                        .ok_or_else(|| refuse::not_allowed(row, &value, &source))?;
                }
            }
        }

        if !settings.engine.value.runs_a_command() {
            given.put_torchrun(host, &mut settings)?;
        }
        settings.repeated = repeated(options);
        warnings.extend(
            options.unused.iter().map(|(option, value)| torchrun_options::unused(option, value)),
        );
        let workplace = match &settings.chdir {
            Some(chdir) if host.is_live() => host.working_in(&chdir.value),
            _ => host.clone(),
        };
        let host = &workplace;
        let module = given.value("module")?;
        if let (Some(row), Some(name)) = (row("module"), &module)
            && name.value.is_empty()
        {
            return Err(refuse::not_allowed(row, name.value.as_ref(), &name.source));
        }
        let Given { variables, profile, .. } = given;
        settings.program = program::program(
            program::ProgramInputs {
                words: &options.program,
                module,
                profile: profile.as_ref(),
                engine: settings.engine.value,
                start: match settings.engine.value.runs_a_command() {
                    true => torchrun_options::ProgramStart::default(),
                    false => torchrun_options::program_start(host)?,
                },
            },
            host,
        )?;
        if let Some(program) = &settings.program {
            program::refuse_unfit(program, settings.engine.value, host)?;
        }

        let conditional = program::conditional(settings.program.as_ref(), profile.as_ref());
        if let Some(profile) = profile {
            engine_args::put(&profile, &mut settings, &mut warnings)?;
            settings.layout.heads_table = profile.heads_table;
            settings.selects = profile.selects;
            settings.args_if = conditional;
            settings.conda_roots = profile.conda_roots.map(|roots| roots.value).unwrap_or_default();
            let codes = profile.exit_codes.into_iter();
            settings.exit_codes = codes.map(|(verdict, code)| (verdict, code.value)).collect();
            settings.diagnose = profile.diagnose;
            settings.watch = profile.watch;
            settings.platform = profile.platform;
        }
        if settings.grace.source == Source::Default {
            settings.grace = variables::grace_of_pod(&variables, &mut warnings);
        }
        if settings.notice_lead.source == Source::Default {
            // What is saved after a signal is saved within the grace period of a stop as well.
            let lead = settings.notice_lead.value.max(settings.grace.value);
            settings.notice_lead = Sourced::default_value(lead);
        }
        settings.warnings = warnings;
        Ok(settings)
    }
}

impl cli::Options {
    /// The language for a refusal by [`Settings::read`] or of the command line.
    pub fn language(&self, host: &Host) -> Lang {
        match self.lang.as_ref().and_then(|lang| lang.to_str()) {
            Some("en") => Lang::En,
            Some("zh") => Lang::Zh,
            _ => Lang::from_environment(|name| host.variable(name)),
        }
    }

    /// The same for a command line that may be wrong.
    pub fn language_of(arguments: &[OsString], host: &Host) -> Lang {
        cli::Options { lang: cli::language_of(arguments), ..cli::Options::default() }.language(host)
    }
}

/// The options that were given more than once, with the value that counts.
fn repeated(options: &cli::Options) -> Vec<Repeated> {
    let of = |(name, times): &(String, usize)| {
        let value = row(name).and_then(|row| row.flag)?(options).last().map(|v| quoted(v))?;
        Some(Repeated { option: format!("--{name}"), times: *times, value })
    };
    options.repeated.iter().filter_map(of).collect()
}

fn entries_of_profile(
    settings: &mut Settings,
    row: &SettingRow,
    profile: &Profile,
) -> Result<(), Refusal> {
    for Sourced { value, source } in profile.lists.get(row.name).into_iter().flatten() {
        table::put_entry(settings, row.name, value.as_ref(), source.clone())
            .ok_or_else(|| refuse::not_allowed(row, value.as_ref(), source))?;
    }
    match row.name {
        "env" => {
            for setting in &profile.env {
                table::put_variable(settings, setting.clone());
            }
        }
        "severity" => settings.severities.extend(profile.severities.clone()),
        _ => {}
    }
    Ok(())
}
