//! The layers of settings that the platform and the user give, and the strongest value of each row.
//!
//! Takes the command line, the variables and the files; gives values with their sources, and refuses what changes a
//! locked key. Which rows are read is the caller's choice.

use std::ffi::OsString;
use std::time::Duration;

use super::extends;
use super::profile::Profile;
use super::refuse;
use super::site::{self, Site};
use super::stated::{self, Candidate};
use super::table::{self, SettingRow, TABLE, Take, row};
use super::torchrun_options;
use super::variables::{self, GRACE_OF_A_POD, OwnVariables};
use super::{Need, Settings, SiteFile, Source, Sourced, Stated, cli};
use linux::host::Host;
use text::lang::Lang;
use verdict::{Refusal, Warning};

/// The profile to load if none is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unnamed {
    /// The one in the usual folders.
    Searched,
    Nothing,
}

/// The layers that the platform and the user give: files, variables and flags.
pub(super) struct Given<'a> {
    options: &'a cli::Options,
    pub(super) variables: OwnVariables,
    /// The profile over the platform's file.
    pub(super) profile: Option<Profile>,
    /// The name of the platform's file.
    site: Option<String>,
    /// The keys of the platform's file, and those of the profile alone.
    pub(super) stated: [Vec<Candidate>; 2],
}

impl<'a> Given<'a> {
    pub(super) fn new(
        options: &'a cli::Options,
        host: &Host,
        warnings: &mut Vec<Warning>,
    ) -> Given<'a> {
        let variables = OwnVariables::read(host, warnings);
        Given { options, variables, profile: None, site: None, stated: Default::default() }
    }

    /// Reads the platform's file.
    pub(super) fn load_site(
        &mut self,
        host: &Host,
        warnings: &mut Vec<Warning>,
    ) -> Result<(), Refusal> {
        let Some(Site { name, profile }) = site::load(host, &self.variables, warnings)? else {
            return Ok(());
        };
        self.site = Some(name);
        self.stated[0] = profile.stated();
        self.profile = Some(profile);
        Ok(())
    }

    /// Reads the profile that is asked for or found, over the platform's file; gives its name.
    pub(super) fn load_profile(
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

    pub(super) fn locked(&self) -> &[Sourced<String>] {
        self.profile.as_ref().map_or(&[], |profile| &profile.locked)
    }

    pub(super) fn site_file(&self) -> Option<SiteFile> {
        let locked = self.locked().iter().map(|lock| lock.value.clone()).collect();
        self.site.clone().map(|file| SiteFile { file, locked })
    }

    /// The keys of all layers.
    ///
    /// # Errors
    /// A layer changes a key that the platform's file locks.
    pub(super) fn unlocked(&self, host: &Host) -> Result<Vec<Stated>, Refusal> {
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
    pub(super) fn typed(&self) -> Vec<Candidate> {
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
    pub(super) fn strongest(&self, row: &SettingRow) -> Option<Sourced<OsString>> {
        self.of_flag(row).or_else(|| self.of_variable(row))
    }

    pub(super) fn of_flag(&self, row: &SettingRow) -> Option<Sourced<OsString>> {
        let typed = (*(row.flag?)(self.options).last()?).to_owned();
        Some(Sourced::new(typed, Source::Flag(format!("--{}", row.name))))
    }

    pub(super) fn of_variable(&self, row: &SettingRow) -> Option<Sourced<OsString>> {
        let name = row.variable()?;
        let value = self.variables.get(&name)?.to_owned();
        Some(Sourced::new(value, Source::Environment(name)))
    }

    /// The strongest value of a setting as text.
    pub(super) fn value(&self, name: &str) -> Result<Option<Sourced<String>>, Refusal> {
        let Some(row) = row(name) else { return Ok(None) };
        match self.strongest(row) {
            Some(raw) => checked(row, raw).map(Some),
            None => Ok(self.profile.as_ref().and_then(|profile| profile.values.get(name)).cloned()),
        }
    }

    pub(super) fn put(&self, row: &SettingRow, settings: &mut Settings) -> Result<(), Refusal> {
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
    pub(super) fn torchrun(
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

    pub(super) fn put_torchrun(&self, host: &Host, settings: &mut Settings) -> Result<(), Refusal> {
        self.torchrun(host).try_for_each(|(row, value)| put(row, settings, value))
    }

    pub(super) fn of_torchrun(&self, host: &Host) -> Vec<Candidate> {
        let of_row = |(row, value): (_, Sourced<String>)| {
            Candidate::of_row(row, &value.value, &value.source)
        };
        self.torchrun(host).filter(|(row, _)| row.table.is_some()).map(of_row).collect()
    }

    /// All entries of a repeatable setting, weakest first.
    pub(super) fn entries(&self, row: &SettingRow, separators: &[char]) -> Vec<Sourced<OsString>> {
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
pub(super) fn put(
    row: &SettingRow,
    settings: &mut Settings,
    given: Sourced<String>,
) -> Result<(), Refusal> {
    let Take::One(put) = row.take else { return Ok(()) };
    let Sourced { value, source } = given;
    put(settings, &value, source.clone())
        .ok_or_else(|| refuse::not_allowed(row, value.as_ref(), &source))
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

/// Five minutes are longer than the pauses of most jobs, and shorter than the limits of torch, after
/// which no rank can be asked any more: 10 minutes with NCCL, 30 with gloo.
const HANG_AFTER: Duration = Duration::from_secs(300);

/// The longest notice that a cloud's spot machine gets is that of AWS, two minutes: a job that saves within it saves
/// everywhere.
const NOTICE_LEAD: Duration = Duration::from_secs(120);

pub(super) fn defaults(host: &Host) -> Settings {
    Settings {
        lang: Lang::from_environment(|name| host.variable(name)),
        log_cap_rank: Sourced::default_value(256 << 20),
        log_cap_node: Sourced::default_value(4 << 30),
        wait_timeout: Sourced::default_value(Duration::from_secs(30 * 60)),
        grace: Sourced::default_value(variables::grace_within(GRACE_OF_A_POD)),
        warm: Sourced::default_value(Need::Off),
        hang_after: Sourced::default_value(Some(HANG_AFTER)),
        max_restarts_without_progress: Sourced::default_value(3),
        spares: Sourced::default_value(0),
        notice_lead: Sourced::default_value(NOTICE_LEAD),
        ..Settings::default()
    }
}
