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
use std::time::Duration;

use linux::host::Host;
use text::lang::Lang;
use verdict::{Refusal, Warning};

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
pub use rule::{Expects, Lines, Ranks, Reaction, Rule, Time};
use site::Site;
use stated::Candidate;
pub use value::duration;
use variables::OwnVariables;
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
        warnings.extend(options.unused.iter().map(|(option, value)| refuse::unused(option, value)));
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

/// The profile to load if none is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unnamed {
    /// The one in the usual folders.
    Searched,
    Nothing,
}

/// The layers that the platform and the user give: files, variables and flags.
struct Given<'a> {
    options: &'a cli::Options,
    variables: OwnVariables,
    /// The profile over the platform's file.
    profile: Option<Profile>,
    /// The name of the platform's file.
    site: Option<String>,
    /// The keys of the platform's file, and those of the profile alone.
    stated: [Vec<Candidate>; 2],
}

impl<'a> Given<'a> {
    fn new(options: &'a cli::Options, host: &Host, warnings: &mut Vec<Warning>) -> Given<'a> {
        let variables = OwnVariables::read(host, warnings);
        Given { options, variables, profile: None, site: None, stated: Default::default() }
    }

    /// Reads the platform's file.
    fn load_site(&mut self, host: &Host, warnings: &mut Vec<Warning>) -> Result<(), Refusal> {
        let Some(Site { name, profile }) = site::load(host, &self.variables, warnings)? else {
            return Ok(());
        };
        self.site = Some(name);
        self.stated[0] = profile.stated();
        self.profile = Some(profile);
        Ok(())
    }

    /// Reads the profile that is asked for or found, over the platform's file; gives its name.
    fn load_profile(
        &mut self,
        host: &Host,
        embedded: &[(&str, &str)],
        unnamed: Unnamed,
        warnings: &mut Vec<Warning>,
    ) -> Result<Option<String>, Refusal> {
        let asked = self.value("profile")?;
        let found = match asked.is_some() || unnamed == Unnamed::Searched {
            true => extends::load(asked.as_ref(), host, embedded, warnings)?,
            false => None,
        };
        let Some((name, profile)) = found else { return Ok(None) };
        self.stated[1] = profile.stated();
        self.profile = Some(match self.profile.take() {
            Some(site) => profile.over(site),
            None => profile,
        });
        Ok(Some(name))
    }

    fn locked(&self) -> &[Sourced<String>] {
        self.profile.as_ref().map_or(&[], |profile| &profile.locked)
    }

    fn site_file(&self) -> Option<SiteFile> {
        let locked = self.locked().iter().map(|lock| lock.value.clone()).collect();
        self.site.clone().map(|file| SiteFile { file, locked })
    }

    /// The keys of all layers.
    ///
    /// # Errors
    /// A layer changes a key that the platform's file locks.
    fn unlocked(&self, host: &Host) -> Result<Vec<Stated>, Refusal> {
        let [of_site, of_profile] = &self.stated;
        let typed = self.typed();
        let locked = self.locked();
        let keys = locked.iter().map(|lock| lock.value.as_str());
        let of_container = stated::of_container(keys, host);
        for of_tenant in [of_profile, &of_container, &typed, &self.of_torchrun(host)] {
            site::refuse_overrides(locked, of_site, of_tenant)?;
        }
        let of_files = self.profile.as_ref().map(Profile::stated).unwrap_or_default();
        let is_locked = |key: &str| locked.iter().any(|lock| lock.value == key);
        let keys = of_files.iter().map(|one| one.stated.key.as_str());
        let of_files = stated::over(stated::of_container(keys, host), of_files);
        let all = stated::over(typed, of_files).into_iter().map(|one| one.stated);
        Ok(all.map(|one| Stated { locked: is_locked(&one.key), ..one }).collect())
    }

    /// The keys that variables and flags set, weakest first.
    fn typed(&self) -> Vec<Candidate> {
        let mut all = Vec::new();
        for row in TABLE {
            match row.take {
                Take::One(_) if row.table.is_some() => {
                    let layers = [self.of_variable(row), self.of_flag(row)].into_iter().flatten();
                    all.extend(layers.map(|one| {
                        Candidate::of_row(row, one.value.to_string_lossy().trim(), &one.source)
                    }));
                }
                Take::Entries(separators) => {
                    let entries = self.entries(row, separators).into_iter();
                    all.extend(
                        entries.map(|one| Candidate::of_entry(row, &one.value, &one.source)),
                    );
                }
                Take::One(_) | Take::Apart => {}
            }
        }
        all
    }

    /// The flag, else the variable, unparsed.
    fn strongest(&self, row: &SettingRow) -> Option<Sourced<OsString>> {
        self.of_flag(row).or_else(|| self.of_variable(row))
    }

    fn of_flag(&self, row: &SettingRow) -> Option<Sourced<OsString>> {
        let typed = (*(row.flag?)(self.options).last()?).to_owned();
        Some(Sourced::new(typed, Source::Flag(format!("--{}", row.name))))
    }

    fn of_variable(&self, row: &SettingRow) -> Option<Sourced<OsString>> {
        let name = row.variable()?;
        let value = self.variables.get(&name)?.to_owned();
        Some(Sourced::new(value, Source::Environment(name)))
    }

    /// The strongest value of a setting as text.
    fn value(&self, name: &str) -> Result<Option<Sourced<String>>, Refusal> {
        let Some(row) = row(name) else { return Ok(None) };
        match self.strongest(row) {
            Some(raw) => checked(row, raw).map(Some),
            None => Ok(self.profile.as_ref().and_then(|profile| profile.values.get(name)).cloned()),
        }
    }

    fn put(&self, row: &SettingRow, settings: &mut Settings) -> Result<(), Refusal> {
        if !matches!(row.take, Take::One(_)) {
            return Ok(());
        }
        let Some(value) = self.value(row.name)? else { return Ok(()) };
        for other in table::others(row.name) {
            if self.value(other)?.is_some_and(|it| it.source.is_stronger_than(&value.source)) {
                return Ok(());
            }
        }
        put(row, settings, value)
    }

    /// torchrun's own variables, where no layer sets the row.
    fn torchrun(
        &self,
        host: &Host,
    ) -> impl Iterator<Item = (&'static SettingRow, Sourced<String>)> {
        TABLE.iter().filter_map(move |row| {
            let is_free = || matches!(self.value(row.name), Ok(None));
            let claim = torchrun_options::setting(host, row.name).filter(|_| is_free())?;
            let source = Source::Environment(claim.variable);
            Some((row, Sourced::new(claim.value.trim().to_owned(), source)))
        })
    }

    fn put_torchrun(&self, host: &Host, settings: &mut Settings) -> Result<(), Refusal> {
        self.torchrun(host).try_for_each(|(row, value)| put(row, settings, value))
    }

    fn of_torchrun(&self, host: &Host) -> Vec<Candidate> {
        let of_row = |(row, value): (_, Sourced<String>)| {
            Candidate::of_row(row, &value.value, &value.source)
        };
        self.torchrun(host).filter(|(row, _)| row.table.is_some()).map(of_row).collect()
    }

    /// All entries of a repeatable setting, weakest first.
    fn entries(&self, row: &SettingRow, separators: &[char]) -> Vec<Sourced<OsString>> {
        let of_variable = row.variable().and_then(|name| {
            let entries = table::split_entries(self.variables.get(&name)?, separators).into_iter();
            let source = Source::Environment(name);
            Some(entries.map(move |entry| Sourced::new(entry, source.clone())))
        });
        let typed = row.flag.map(|flag| flag(self.options)).unwrap_or_default().into_iter();
        let source = Source::Flag(format!("--{}", row.name));
        let of_flags = typed.map(|entry| Sourced::new(entry.to_owned(), source.clone()));
        of_variable.into_iter().flatten().chain(of_flags).collect()
    }
}

/// Parses a value into the settings.
fn put(row: &SettingRow, settings: &mut Settings, given: Sourced<String>) -> Result<(), Refusal> {
    let Take::One(put) = row.take else { return Ok(()) };
    let Sourced { value, source } = given;
    put(settings, &value, source.clone())
        .ok_or_else(|| refuse::not_allowed(row, value.as_ref(), &source))
}

/// The options that were given more than once, with the value that counts.
fn repeated(options: &cli::Options) -> Vec<Repeated> {
    let of = |(name, times): &(String, usize)| {
        let value = row(name).and_then(|row| row.flag)?(options).last().map(|v| quoted(v))?;
        Some(Repeated { option: format!("--{name}"), times: *times, value })
    };
    options.repeated.iter().filter_map(of).collect()
}

/// The value as text, since settings are names, numbers and paths that appear in messages and
/// JSON.
fn checked(row: &SettingRow, raw: Sourced<OsString>) -> Result<Sourced<String>, Refusal> {
    let Sourced { value, source } = raw;
    match value.into_string() {
        // A variable that was read from a file often ends in a newline.
        Ok(text) if matches!(source, Source::Environment(_)) => {
            Ok(Sourced::new(text.trim().to_owned(), source))
        }
        Ok(text) => Ok(Sourced::new(text, source)),
        Err(value) => Err(refuse::not_allowed(row, &value, &source)),
    }
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

/// Five minutes are longer than the pauses of most jobs, and shorter than the limits of torch, after
/// which no rank can be asked any more: 10 minutes with NCCL, 30 with gloo.
const HANG_AFTER: Duration = Duration::from_secs(300);

/// The longest notice that a cloud's spot machine gets is that of AWS, two minutes: a job that saves within it saves
/// everywhere.
const NOTICE_LEAD: Duration = Duration::from_secs(120);

fn defaults(host: &Host) -> Settings {
    Settings {
        lang: Lang::from_environment(|name| host.variable(name)),
        log_cap_rank: Sourced::default_value(256 << 20),
        log_cap_node: Sourced::default_value(4 << 30),
        wait_timeout: Sourced::default_value(Duration::from_secs(30 * 60)),
        grace: Sourced::default_value(variables::grace_within(GRACE_OF_A_POD)),
        warm: Sourced::default_value(Need::Off),
        hang_after: Sourced::default_value(Some(HANG_AFTER)),
        max_restarts_without_progress: Sourced::default_value(3),
        notice_lead: Sourced::default_value(NOTICE_LEAD),
        ..Settings::default()
    }
}
