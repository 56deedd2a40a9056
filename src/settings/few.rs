//! Settings for those that need only a few: `wait`, `init` and `explain`, texts before the settings are read, and a node
//! that is refused and tells the others.
//!
//! Takes and gives what [`Settings::read`] does, without the rest of the rows.

use std::time::Duration;

use super::given::{Given, Unnamed, defaults, put};
use super::refuse::{quoted, usage};
use super::site;
use super::stated::Candidate;
use super::table::row;
use super::value;
use super::{EMBEDDED, Settings, Source, Sourced, WaitFor, cli};
use diagnose::Row;
use linux::host::Host;
use text::lang::Lang;
use text::style::Color;
use text::text;
use verdict::{Id, Refusal, Warning};

impl cli::Options {
    /// `--color` or its variable, for texts before the settings are read and for commands without settings. A
    /// value that is not allowed is refused later, or counts as `auto`.
    pub fn color(&self, host: &Host) -> Color {
        self.checked_color(host).unwrap_or_default()
    }

    /// Reads `--color` or its variable for a command without other settings.
    ///
    /// # Errors
    /// A value that is not allowed.
    pub fn checked_color(&self, host: &Host) -> Result<Color, Refusal> {
        Ok(few(&[("color", "--color")], self, host)?.color.value)
    }

    /// `--deadline` or its variable, before anything else is read; None also if the value is not a duration.
    pub fn deadline(&self, host: &Host) -> Option<Duration> {
        let deadline = few(&[("deadline", "--deadline")], self, host).ok()?.deadline?;
        Some(deadline.value)
    }

    /// The rows of `[[diagnose]]` of the platform's file and of the profile, if one is named, for a reader of
    /// logs: a file that cannot be used is one of the `warnings`, unless a flag names it.
    ///
    /// # Errors
    /// The profile of `--profile` cannot be read, or changes a row that the platform's file locks.
    pub fn diagnose_rows(
        &self,
        host: &Host,
        warnings: &mut Vec<Warning>,
    ) -> Result<Vec<Sourced<Row>>, Refusal> {
        let mut given = Given::new(self, host, &mut Vec::new());
        if let Err(refusal) = given.load_site(host, warnings) {
            warnings.push(refusal.into());
        }
        let rows = |given: &Given<'_>| given.profile.as_ref().map(|file| file.diagnose.clone());
        let of_site = rows(&given);
        let of_profile = given.load_profile(host, EMBEDDED, Unnamed::Nothing, warnings);
        let of_both = match of_profile.and_then(|_| given.unlocked_rows()) {
            Ok(()) => rows(&given),
            Err(refusal) if self.profile.is_some() => return Err(refusal),
            Err(refusal) => {
                warnings.push(refusal.into());
                of_site
            }
        };
        Ok(of_both.unwrap_or_default())
    }
}

impl cli::Wait {
    /// The address that `ranklaunch wait` waits for, and the time limit.
    pub fn read(&self, host: &Host) -> Result<WaitFor, Refusal> {
        let options = cli::Options {
            wait_timeout: self.timeout.clone(),
            lang: self.lang.clone(),
            ..cli::Options::default()
        };
        let settings = few(&[("wait-timeout", "--timeout"), ("lang", "--lang")], &options, host)?;
        let (master, port) = self.target.to_str().and_then(value::endpoint).ok_or_else(|| {
            let target = quoted(&self.target);
            usage(
                Id::SettingsTarget,
                text!(
                    "{target} is not HOST:PORT with a port from 1 to 65535",
                    "{target} 不是 HOST:PORT 的形式，端口应为 1 到 65535"
                ),
                text!(
                    "for example job-master-0:29500 or [fd00::1]:29500",
                    "例如 job-master-0:29500 或 [fd00::1]:29500"
                ),
            )
        })?;
        Ok(WaitFor {
            lang: settings.lang,
            host: master,
            port,
            timeout: settings.wait_timeout.value,
        })
    }
}

/// The settings of `ranklaunch init`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InitSettings {
    pub lang: Lang,
    /// Grace period for leftovers of the command.
    pub grace: Duration,
}

impl cli::Init {
    /// The settings of `ranklaunch init`: its flags and their variables, no profile.
    pub fn read(&self, host: &Host) -> Result<InitSettings, Refusal> {
        let options = cli::Options {
            grace: self.grace.clone(),
            lang: self.lang.clone(),
            ..cli::Options::default()
        };
        let settings = few(&[("grace", "--grace"), ("lang", "--lang")], &options, host)?;
        let grace = match settings.grace.source {
            Source::Default => Duration::from_secs(5),
            _ => settings.grace.value,
        };
        Ok(InitSettings { lang: settings.lang, grace })
    }
}

/// The defaults with only these settings read, given as (row name, flag name).
pub(super) fn few(
    names: &[(&str, &str)],
    options: &cli::Options,
    host: &Host,
) -> Result<Settings, Refusal> {
    let given = Given::new(options, host, &mut Vec::new());
    let mut settings = defaults(host);
    for (row, flag) in names.iter().filter_map(|(name, flag)| Some((row(name)?, flag))) {
        let Some(Sourced { value, mut source }) = given.value(row.name)? else { continue };
        if matches!(source, Source::Flag(_)) {
            source = Source::Flag((*flag).to_owned());
        }
        put(row, &mut settings, Sourced::new(value, source))?;
    }
    Ok(settings)
}

/// The settings for the node rank and the address of node 0.
#[rustfmt::skip]
const OF_MEETING: &[&str] = &[
    "host-root", "lang", "nnodes", "nodes", "node-rank", "master-addr", "master-port",
    "world-size-counts", "nested", "engine", "muster", "muster-port",
];

impl Settings {
    /// Where the nodes meet, for a node whose settings are refused and that has to notify the others: the
    /// defaults with these settings from flags, variables and a readable profile. None if one of them is
    /// itself wrong, since the rest could mislead.
    pub fn read_meeting(options: &cli::Options, host: &Host) -> Option<Settings> {
        let mut given = Given::new(options, host, &mut Vec::new());
        given.value("profile").ok()?;
        // An unreadable file is skipped; the other one or the platform gives these values.
        let _ = given.load_site(host, &mut Vec::new());
        let _ = given.load_profile(host, EMBEDDED, Unnamed::Searched, &mut Vec::new());
        let mut settings = defaults(host);
        for row in OF_MEETING.iter().copied().filter_map(row) {
            given.put(row, &mut settings).ok()?;
        }
        settings.platform = given.profile.and_then(|profile| profile.platform);
        Some(settings)
    }
}

impl Given<'_> {
    /// # Errors
    /// The profile changes a row of `[[diagnose]]` that the platform's file locks.
    fn unlocked_rows(&self) -> Result<(), Refusal> {
        let [of_site, of_profile] = &self.stated;
        let of_rows = |one: &&Candidate| one.stated.key.starts_with("diagnose.");
        let of_profile: Vec<Candidate> = of_profile.iter().filter(of_rows).cloned().collect();
        site::refuse_overrides(self.locked(), of_site, &of_profile)
    }
}
