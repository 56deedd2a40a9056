//! Reads the user's settings: profile, environment and flags in one checked type.
//!
//! Takes the parsed command line, the environment and the profile; gives [`Settings`], in which
//! every value has its [`Source`]. Order of strength: flag, `RANKLAUNCH_*`, profile; the
//! platform, the node or a default fills the rest later. Reads only the profile, and tests
//! whether the program is an executable. The settings are rows of [`table`].

#![deny(unsafe_code)]

pub mod arguments;
mod assumed;
pub mod cli;
mod condition;
mod config_files;
pub mod contract;
mod diagnose_rows;
mod document;
pub mod endpoint;
pub mod engine;
mod entries;
mod extends;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
mod forms;
pub mod grace;
pub mod hostlist;
pub mod launchers;
mod meeting;
mod owner;
mod places;
mod platform;
mod profile;
mod program;
mod refuse;
mod rule;
mod size_tables;
mod table;
#[cfg(test)]
mod tests;
mod torchrun;
pub mod torchrun_options;
mod types;
mod value;
mod variables;
mod watch;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::time::Duration;

use diagnose::Row;
use linux::host::Host;
use text::lang::Lang;
use text::style::Color;
use text::text;
use verdict::{Id, Refusal};

pub use condition::PlannedSize;
pub use config_files::config_files;
pub use forms::{Form, forms};
pub use places::{EMBEDDED, KnownProfile};
use profile::Profile;
use refuse::quoted;
pub use rule::{Expects, Lines, Ranks, Reaction, Rule, Time};
pub use size_tables::Placeholder;
use table::{SettingRow, TABLE, Take, row};
pub use types::*;

pub use crate::engine::Engine;
pub use value::duration;
use variables::OwnVariables;

impl Settings {
    /// Flags, variables and profile as one checked type.
    pub fn read(options: &cli::Options, host: &Host) -> Result<Settings, Refusal> {
        Settings::read_with(options, host, EMBEDDED)
    }

    /// Like [`Settings::read`], with other embedded profiles.
    pub fn read_with(
        options: &cli::Options,
        host: &Host,
        embedded: &[(&str, &str)],
    ) -> Result<Settings, Refusal> {
        let mut warnings = Vec::new();
        let variables = OwnVariables::read(host, &mut warnings);
        let mut settings = defaults(host);

        let asked = row("profile").and_then(|row| strongest(row, options, &variables));
        let asked = asked.map(|(row, raw)| checked(row, raw)).transpose()?;
        let profile = extends::load(asked.as_ref(), host, embedded, &mut warnings)?.map(|whole| {
            settings.profile = Some(whole.name);
            whole.profile
        });
        if let Some(rank) = profile.as_ref().and_then(|profile| profile.values.get("node-rank")) {
            warnings.push(refuse::rank_in_profile(rank));
        }

        for row in TABLE {
            match row.take {
                Take::Apart => {}
                Take::One(put) => {
                    let given = match strongest(row, options, &variables) {
                        Some((_, raw)) => Some(checked(row, raw)?),
                        None => profile.as_ref().and_then(|p| p.values.get(row.name).cloned()),
                    };
                    if let Some(Sourced { value, source }) = given {
                        put(&mut settings, &value, source.clone())
                            .ok_or_else(|| refuse::not_allowed(row, value.as_ref(), &source))?;
                    }
                }
                Take::Entries(separators) => {
                    if let Some(profile) = &profile {
                        entries_of_profile(&mut settings, row, profile)?;
                    }
                    for Sourced { value, source } in entries(row, separators, options, &variables) {
                        entries::put(&mut settings, row.name, &value, source.clone())
                            .ok_or_else(|| refuse::not_allowed(row, &value, &source))?;
                    }
                }
            }
        }

        if !settings.engine.value.runs_a_command() {
            torchrun_settings(&mut settings, host, options, &variables, profile.as_ref())?;
        }
        settings.repeated = repeated(options);
        let workplace = match &settings.chdir {
            Some(chdir) if host.is_live() => host.working_in(&chdir.value),
            _ => host.clone(),
        };
        let host = &workplace;
        let module = row("module").and_then(|row| strongest(row, options, &variables));
        let module = module.map(|(row, raw)| checked(row, raw)).transpose()?;
        if let (Some(row), Some(name)) = (row("module"), &module)
            && name.value.is_empty()
        {
            return Err(refuse::not_allowed(row, name.value.as_ref(), &name.source));
        }
        settings.program = program::program(
            program::ProgramInputs {
                words: &options.program,
                module,
                profile: profile.as_ref(),
                engine: settings.engine.value,
                start: match settings.engine.value.runs_a_command() {
                    true => torchrun::ProgramStart::default(),
                    false => torchrun::program_start(host)?,
                },
            },
            host,
        )?;
        if let Some(program) = &settings.program {
            program::refuse_unfit(program, settings.engine.value, host)?;
        }

        let conditional = program::conditional(settings.program.as_ref(), profile.as_ref());
        if let Some(profile) = profile {
            settings.layout.heads_table = profile.heads_table;
            settings.selects = profile.selects;
            settings.args_if = conditional;
            settings.engine_args = profile.engine_args.unwrap_or_default();
            settings.conda_roots = profile.conda_roots.unwrap_or_default();
            settings.exit_codes = profile.exit_codes;
            settings.diagnose = profile.diagnose;
            settings.watch = profile.watch;
            settings.platform = profile.platform;
        }
        if settings.grace.source == Source::Default {
            settings.grace = grace::of_pod(&variables, &mut warnings);
        }
        settings.warnings = warnings;
        Ok(settings)
    }
}

/// The settings that only a variable of torchrun gives.
fn torchrun_settings(
    settings: &mut Settings,
    host: &Host,
    options: &cli::Options,
    variables: &OwnVariables,
    profile: Option<&Profile>,
) -> Result<(), Refusal> {
    for row in TABLE {
        let Take::One(put) = row.take else { continue };
        let is_given = || {
            strongest(row, options, variables).is_some()
                || profile.is_some_and(|profile| profile.values.contains_key(row.name))
        };
        if let Some(claim) = torchrun::setting(host, row.name).filter(|_| !is_given()) {
            let source = Source::Environment(claim.variable);
            let value = claim.value.trim();
            put(settings, value, source.clone())
                .ok_or_else(|| refuse::not_allowed(row, value.as_ref(), &source))?;
        }
    }
    Ok(())
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

    /// The rows of `[[diagnose]]` of the named profile; empty if no profile is named.
    pub fn diagnose_rows(&self, host: &Host) -> Result<Vec<Sourced<Row>>, Refusal> {
        let variables = OwnVariables::read(host, &mut Vec::new());
        let asked = row("profile").and_then(|row| strongest(row, self, &variables));
        let Some((row, raw)) = asked else { return Ok(Vec::new()) };
        let asked = checked(row, raw)?;
        let whole = extends::load(Some(&asked), host, EMBEDDED, &mut Vec::new())?;
        Ok(whole.map(|whole| whole.profile.diagnose).unwrap_or_default())
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
            refuse::usage(
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
fn few(names: &[(&str, &str)], options: &cli::Options, host: &Host) -> Result<Settings, Refusal> {
    let variables = OwnVariables::read(host, &mut Vec::new());
    let mut settings = defaults(host);
    for (name, flag) in names {
        let Some((row, raw)) = row(name).and_then(|row| strongest(row, options, &variables)) else {
            continue;
        };
        let Sourced { value, mut source } = checked(row, raw)?;
        if matches!(source, Source::Flag(_)) {
            source = Source::Flag((*flag).to_owned());
        }
        if let Take::One(put) = row.take {
            put(&mut settings, &value, source.clone())
                .ok_or_else(|| refuse::not_allowed(row, value.as_ref(), &source))?;
        }
    }
    Ok(settings)
}

/// The options that were given more than once, with the value that counts.
fn repeated(options: &cli::Options) -> Vec<Repeated> {
    let of = |(name, times): &(String, usize)| {
        let value = row(name).and_then(|row| row.flag)?(options).last().map(|v| quoted(v))?;
        Some(Repeated { option: format!("--{name}"), times: *times, value })
    };
    options.repeated.iter().filter_map(of).collect()
}

/// The flag, else the variable, unparsed.
fn strongest(
    row: &'static SettingRow,
    options: &cli::Options,
    variables: &OwnVariables,
) -> Option<(&'static SettingRow, Sourced<OsString>)> {
    let typed = row.flag.and_then(|flag| flag(options).last().map(|value| (*value).to_owned()));
    let raw = match typed {
        Some(value) => Sourced::new(value, Source::Flag(format!("--{}", row.name))),
        None => {
            let name = row.variable()?;
            Sourced::new(variables.get(&name)?.to_owned(), Source::Environment(name))
        }
    };
    Some((row, raw))
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

/// All entries of a repeatable setting, weakest first.
fn entries(
    row: &SettingRow,
    separators: &[char],
    options: &cli::Options,
    variables: &OwnVariables,
) -> Vec<Sourced<OsString>> {
    let of_variable = row.variable().and_then(|name| {
        let value = variables.get(&name)?;
        let source = Source::Environment(name);
        Some(
            entries::split(value, separators).into_iter().map(move |entry| (entry, source.clone())),
        )
    });
    let typed = row.flag.map(|flag| flag(options)).unwrap_or_default();
    let of_flags = typed
        .into_iter()
        .map(|entry: &OsStr| (entry.to_owned(), Source::Flag(format!("--{}", row.name))));
    of_variable
        .into_iter()
        .flatten()
        .chain(of_flags)
        .map(|(entry, source)| Sourced::new(entry, source))
        .collect()
}

fn entries_of_profile(
    settings: &mut Settings,
    row: &SettingRow,
    profile: &Profile,
) -> Result<(), Refusal> {
    for Sourced { value, source } in profile.lists.get(row.name).into_iter().flatten() {
        entries::put(settings, row.name, value.as_ref(), source.clone())
            .ok_or_else(|| refuse::not_allowed(row, value.as_ref(), source))?;
    }
    match row.name {
        "env" => {
            for setting in &profile.env {
                entries::put_variable(settings, setting.clone());
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

fn defaults(host: &Host) -> Settings {
    Settings {
        lang: Lang::from_environment(|name| host.variable(name)),
        profile: None,
        repeated: Vec::new(),
        chdir: None,
        nnodes: None,
        nodes: None,
        node_rank: None,
        master_addr: None,
        master_port: None,
        world_size_counts: Sourced::default_value(WorldSizeCounts::Auto),
        nested: false,
        nproc_per_node: Sourced::default_value(Nproc::Auto),
        min_nproc: None,
        device: Sourced::default_value(Device::Auto),
        layout: LayoutSettings {
            rule: Sourced::default_value(LayoutRule::None),
            heads: None,
            heads_table: None,
            ulysses_argument: None,
            ring_argument: None,
            checkpoint_argument: None,
        },
        selects: Vec::new(),
        args_if: ConditionalArguments::default(),
        engine: Sourced::default_value(Engine::default()),
        engine_args: Vec::new(),
        rdzv: Sourced::default_value(Rendezvous::Static),
        python: None,
        conda_env: None,
        conda_roots: Vec::new(),
        program: None,
        env: Vec::new(),
        log_dir: None,
        console: Sourced::default_value(ConsoleMode::All),
        console_prefix: Sourced::default_value(ConsolePrefix::Rank),
        color: Sourced::default_value(Color::Auto),
        verbose: false,
        log_cap_rank: Sourced::default_value(256 << 20),
        log_cap_node: Sourced::default_value(4 << 30),
        log_keep: Sourced::default_value(LogKeep::default()),
        stale: Sourced::default_value(StaleMode::Kill),
        muster: Sourced::default_value(Need::Auto),
        muster_port: None,
        wait_timeout: Sourced::default_value(Duration::from_secs(30 * 60)),
        grace: Sourced::default_value(grace::of_period(grace::OF_A_POD)),
        max_restarts: Sourced::default_value(0),
        retry_on: Vec::new(),
        no_retry_on: Vec::new(),
        probe: Sourced::default_value(ProbeMode::Auto),
        rdma: Sourced::default_value(Need::Auto),
        severities: BTreeMap::new(),
        exit_codes: BTreeMap::new(),
        diagnose: Vec::new(),
        watch: Vec::new(),
        platform: None,
        interactive: false,
        termination_log: None,
        progress: Sourced::default_value(TellsProgress::Auto),
        http: None,
        host_root: None,
        deadline: None,
        assumed: None,
        bind: Sourced::default_value(Bind::None),
        inject: Sourced::default_value(Need::Auto),
        warm: Sourced::default_value(Need::Off),
        warm_modules: Vec::new(),
        hang_after: Sourced::default_value(Some(HANG_AFTER)),
        on_hang: Sourced::default_value(Reaction::Report),
        warnings: Vec::new(),
    }
}
