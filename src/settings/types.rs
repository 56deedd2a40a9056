//! The types of [`Settings`].

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::checkpoint::{CheckpointFormat, WithoutCheckpoint};
use super::condition::Condition;
use super::notice::{NoticeMode, NoticeSignal};
use super::rule::{Reaction, Rule};
use crate::contract::Platform;
use crate::engine::Engine;
use diagnose::Row;
use text::lang::Lang;
use text::style::Color;
use verdict::{Id, Severity, Warning};

/// The source of a value.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source {
    /// `--nnodes`
    Flag(String),
    /// `RANKLAUNCH_NNODES`, or a variable of the container such as `MASTER_ADDR`.
    Environment(String),
    /// `wan22.toml:12`
    Profile { file: String, line: usize },
    /// `/etc/ranklaunch/site.toml:3`, the platform's file below every profile.
    Site { file: String, line: usize },
    /// The agreement of the nodes.
    Agreement,
    #[default]
    Default,
}

impl Source {
    /// A flag is stronger than a variable, which is stronger than a profile, which is stronger than the platform's file.
    pub fn is_stronger_than(&self, other: &Source) -> bool {
        let strength = |source: &Source| match source {
            Source::Default => 0,
            Source::Site { .. } => 1,
            Source::Profile { .. } => 2,
            Source::Environment(_) => 3,
            Source::Flag(_) => 4,
            Source::Agreement => 5,
        };
        strength(self) > strength(other)
    }

    /// Whether a file says it, which several jobs may read.
    pub fn is_file(&self) -> bool {
        matches!(self, Source::Profile { .. } | Source::Site { .. })
    }

    /// The layer for other programs.
    pub fn layer(&self) -> &'static str {
        match self {
            Source::Default => "default",
            Source::Site { .. } => "site",
            Source::Profile { .. } => "profile",
            Source::Environment(_) => "variable",
            Source::Flag(_) => "flag",
            Source::Agreement => "agreement",
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Flag(name) | Source::Environment(name) => out.write_str(name),
            Source::Profile { file, line } | Source::Site { file, line } => {
                write!(out, "{file}:{line}")
            }
            Source::Agreement => out.write_str("agreement"),
            Source::Default => out.write_str("default"),
        }
    }
}

/// A value and its source.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sourced<T> {
    pub value: T,
    pub source: Source,
}

impl<T> Sourced<T> {
    pub fn new(value: T, source: Source) -> Sourced<T> {
        Sourced { value, source }
    }

    pub fn default_value(value: T) -> Sourced<T> {
        Sourced { value, source: Source::Default }
    }
}

/// All settings: the user's values, and defaults that need no facts. The defaults of all fields are in
/// `settings::defaults`.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    pub lang: Lang,
    /// Name or path of the profile in use, for the start-up block.
    pub profile: Option<String>,
    /// The platform's file in use.
    pub site: Option<SiteFile>,
    /// The keys that a file, a variable or a flag sets, each with the value that counts.
    pub stated: Vec<Stated>,
    /// Options that were given more than once.
    pub repeated: Vec<Repeated>,
    /// The working folder of the job; absolute if it comes from a profile.
    pub chdir: Option<Sourced<PathBuf>>,

    pub nnodes: Option<Sourced<u32>>,
    /// Nodes that may come beside those with a seat.
    pub spares: Sourced<u32>,
    /// The hosts of the job in the order of their node ranks, the same list on each.
    pub nodes: Option<Sourced<Vec<String>>>,
    pub node_rank: Option<Sourced<u32>>,
    pub master_addr: Option<Sourced<String>>,
    pub master_port: Option<Sourced<u16>>,
    pub world_size_counts: Sourced<WorldSizeCounts>,
    /// Start as a separate job although a launcher of ranks is our ancestor.
    pub nested: bool,

    pub nproc_per_node: Sourced<Nproc>,
    pub min_nproc: Option<Sourced<u32>>,
    pub device: Sourced<Device>,

    pub layout: LayoutSettings,
    pub selects: Vec<Select>,
    /// The node that `plan` assumes.
    pub assumed: Option<Assumed>,
    /// The profile's conditional arguments; none if the command line names a program.
    pub args_if: ConditionalArguments,

    pub engine: Sourced<Engine>,
    /// Further arguments of the engine itself (`accelerate launch --config_file …`); may hold placeholders.
    pub engine_args: Vec<String>,
    pub rdzv: Sourced<Rendezvous>,
    pub python: Option<Sourced<PathBuf>>,
    pub conda_env: Option<Sourced<String>>,
    /// Folders that may hold `envs/<name>`, in order, before the usual places.
    pub conda_roots: Vec<PathBuf>,
    pub program: Option<Sourced<Program>>,
    /// Variables for the ranks. `--env` overrides the container's; a profile's only fill gaps.
    pub env: Vec<EnvSetting>,

    pub log_dir: Option<Sourced<PathBuf>>,
    pub console: Sourced<ConsoleMode>,
    pub console_prefix: Sourced<ConsolePrefix>,
    pub color: Sourced<Color>,
    /// Whether the details of a plan and of a start are shown as well.
    pub verbose: bool,
    /// Bytes kept per rank (stdout and stderr together) on disk.
    pub log_cap_rank: Sourced<u64>,
    /// Bytes kept per node on disk.
    pub log_cap_node: Sourced<u64>,
    /// The limits within which ended runs stay in the log folder.
    pub log_keep: Sourced<LogKeep>,

    pub stale: Sourced<StaleMode>,
    pub muster: Sourced<Need>,
    pub muster_port: Option<Sourced<u16>>,
    pub wait_timeout: Sourced<Duration>,
    /// The whole stop budget, from TERM to the last KILL. By default a margin below the pod's
    /// terminationGracePeriodSeconds, or below 30 s if the container does not know it.
    pub grace: Sourced<Duration>,
    pub max_restarts: Sourced<u32>,
    /// Ids of causes after which another attempt always follows, weakest source first.
    pub retry_on: Vec<Sourced<String>>,
    /// Ids of causes after which no attempt follows.
    pub no_retry_on: Vec<Sourced<String>>,
    pub probe: Sourced<ProbeMode>,
    pub rdma: Sourced<Need>,
    /// By check id (`shm.size`).
    pub severities: BTreeMap<Id, Sourced<Severity>>,
    /// Verdict code → code to exit with.
    pub exit_codes: BTreeMap<i32, i32>,
    /// Further rows of the catalogue of failures.
    pub diagnose: Vec<Sourced<Row>>,
    /// Expectations about the running job.
    pub watch: Vec<Sourced<Rule>>,
    /// The platform that the profile describes.
    pub platform: Option<Sourced<&'static Platform>>,
    pub interactive: Sourced<bool>,
    pub termination_log: Option<Sourced<PathBuf>>,
    /// The lines whose progress is posted to a TrainJob of Kubeflow.
    pub progress: Sourced<TellsProgress>,
    /// The address on which metrics are served.
    pub http: Option<Sourced<SocketAddr>>,
    pub host_root: Option<PathBuf>,
    /// Time limit for each source of facts; None: the limits of a launch.
    pub deadline: Option<Sourced<Duration>>,
    pub bind: Sourced<Bind>,
    /// Whether ranks get torch's worker server without a change of their code: unless its threads would be too many
    /// for the container. Never required.
    pub inject: Sourced<Need>,
    /// Whether the ranks of a node are forked from one interpreter.
    pub warm: Sourced<Need>,
    /// Modules to add to the imports of that interpreter, or to leave out, weakest source first. The
    /// program's text tells the other imports.
    pub warm_modules: Vec<WarmModule>,
    /// Time without a sign of progress after which a job stands still; None: it is never judged.
    pub hang_after: Sourced<Option<Duration>>,
    pub on_hang: Sourced<Reaction>,
    /// The folder in which the program saves its checkpoints.
    pub checkpoint_dir: Option<Sourced<PathBuf>>,
    /// The format of the checkpoints that count.
    pub checkpoint_format: Sourced<CheckpointFormat>,
    /// What follows where there is no checkpoint yet.
    pub checkpoint_missing: Sourced<WithoutCheckpoint>,
    /// So many attempts in a row that end without a newer checkpoint end the job.
    pub max_restarts_without_progress: Sourced<u32>,
    /// Who is asked whether this node or job ends soon.
    pub notice: Sourced<NoticeMode>,
    /// The signal that the main process of each rank gets then.
    pub notice_signal: Sourced<NoticeSignal>,
    /// The time before a known end at which it gets it. By default not less than the grace period.
    pub notice_lead: Sourced<Duration>,
    /// Warnings from reading the settings.
    pub warnings: Vec<Warning>,
}

impl Settings {
    /// The row of the profile's `[platform]`.
    pub fn own_platform(&self) -> Option<&'static Platform> {
        self.platform.as_ref().map(|platform| platform.value)
    }

    /// How often the nodes start again: unless somebody set it, once for each spare, which would have no use otherwise.
    pub fn restarts(&self) -> u32 {
        match self.max_restarts.source {
            Source::Default => self.max_restarts.value.max(self.spares.value),
            _ => self.max_restarts.value,
        }
    }

    /// Ranks on CPUs do not need the driver, whose answer takes half the time of a quick start.
    /// Device nodes are still listed.
    pub fn probe_mode(&self) -> ProbeMode {
        match self.device.value {
            _ if self.assumed.is_some() => ProbeMode::Off,
            Device::Cpu => ProbeMode::Off,
            Device::Auto | Device::Gpu => self.probe.value,
        }
    }
}

/// A key that a layer of settings sets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stated {
    /// `log_keep`, `severity.shm.size`, `env.NCCL_DEBUG`
    pub key: String,
    /// The value for people, without secrets.
    pub value: String,
    pub source: Source,
    /// No other layer may change it.
    pub locked: bool,
}

/// The platform's file below every profile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SiteFile {
    /// `/etc/ranklaunch/site.toml`
    pub file: String,
    /// The keys that no other layer may change.
    pub locked: Vec<String>,
}

/// An option that was given more than once; the last value counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repeated {
    /// `--wait-timeout`
    pub option: String,
    pub times: usize,
    /// The last value.
    pub value: String,
}

/// The unit that WORLD_SIZE counts without other evidence.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WorldSizeCounts {
    #[default]
    Auto,
    Nodes,
    Processes,
}

/// Processes per node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Nproc {
    #[default]
    Auto,
    /// One per GPU; refused without any.
    Gpu,
    /// One per CPU that the limits of this node allow.
    Cpu,
    Count(u32),
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Device {
    #[default]
    Auto,
    Gpu,
    Cpu,
}

/// The relation of a codebase's parallel sizes to the world size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LayoutRule {
    /// No relation.
    #[default]
    None,
    /// Wan2.2: ulysses = world, heads % world == 0.
    UlyssesWorld,
    /// Wan2.1, HunyuanVideo: ulysses × ring = world, heads % ulysses == 0, ulysses inside a node.
    UlyssesRing,
}

#[derive(Debug, Clone, Default)]
pub struct LayoutSettings {
    pub rule: Sourced<LayoutRule>,
    /// From `--heads`, `RANKLAUNCH_HEADS` or the profile's plain `heads = N`.
    pub heads: Option<Sourced<u32>>,
    /// The profile's table: the value of a script argument (`--task`) names the heads.
    pub heads_table: Option<HeadsTable>,
    /// Script argument with ulysses_size (`--ulysses_size`); a literal there is a constraint.
    pub ulysses_argument: Option<String>,
    /// Script argument with ring_size.
    pub ring_argument: Option<String>,
    /// Script argument that names the checkpoint folder, whose config.json may give the heads.
    pub checkpoint_argument: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeadsTable {
    /// The script argument, such as `--task`.
    pub argument: String,
    /// Value of the argument → heads.
    pub heads: BTreeMap<String, u32>,
    /// The script's default for the argument.
    pub default: Option<String>,
    pub source: Source,
}

/// One row of `[[select]]`: the values of placeholders for this total number of GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Select {
    /// None: all numbers without another row (`"*"`).
    pub total_gpus: Option<u32>,
    pub values: BTreeMap<String, String>,
    pub source: Source,
}

impl Select {
    /// The number as written in a profile.
    pub fn gpus(&self) -> String {
        self.total_gpus.map_or_else(|| "\"*\"".to_owned(), |number| number.to_string())
    }
}

/// One `[[job.args_if]]`: arguments that are added if the condition holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArgumentsIf {
    pub when: Condition,
    pub args: Vec<OsString>,
    pub source: Source,
}

/// All conditional arguments, and their position.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConditionalArguments {
    pub rows: Vec<ArgumentsIf>,
    /// Number of [`Program::args`] before these arguments: the profile's own.
    pub at: usize,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rendezvous {
    #[default]
    Static,
    C10d,
}

/// The program of the ranks. Arguments are bytes: prompts, JSON and file names are unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Program {
    /// `python -u PATH ARGS…`
    Script { path: OsString, args: Vec<OsString> },
    /// `python -u -m NAME ARGS…`
    Module { name: String, args: Vec<OsString> },
    /// Any other command, unchanged.
    Command { argv: Vec<OsString> },
}

impl Program {
    /// The arguments that may contain placeholders and layout literals.
    pub fn args(&self) -> &[OsString] {
        match self {
            Program::Script { args, .. } | Program::Module { args, .. } => args,
            Program::Command { argv } => argv,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvSetting {
    pub name: String,
    pub value: OsString,
    pub source: Source,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ConsoleMode {
    #[default]
    All,
    Rank0,
    /// Standard error of all ranks, standard output of none.
    Errors,
    None,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ConsolePrefix {
    #[default]
    Rank,
    None,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StaleMode {
    /// Ends proven leftovers.
    #[default]
    Kill,
    /// Ends everything that runs the job's script, after the nodes have agreed.
    Force,
    Report,
    Off,
}

/// Whether a launch uses something that it could do without.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Need {
    Off,
    /// If that is possible and safe.
    #[default]
    Auto,
    /// The launch is refused otherwise.
    Required,
}

/// The way in which the embedded probe is executed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProbeMode {
    /// File, then memfd, then the sources that need no probe.
    #[default]
    Auto,
    File,
    Memfd,
    NvidiaSmi,
    Off,
}

/// A module whose import is added or left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WarmModule {
    /// `package.module`
    pub name: String,
    pub is_imported: bool,
}

/// The runs that stay in the log folder: the newest runs within all of these limits. None: no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogKeep {
    /// Number of runs, including the run that begins.
    pub runs: Option<u32>,
    /// Time since the end of a run.
    pub age: Option<Duration>,
    /// Bytes of all runs together.
    pub bytes: Option<u64>,
}

/// The lines of rank 0 that tell how far the job is.
#[derive(Debug, Clone, Default)]
pub enum TellsProgress {
    /// Progress bars without a title, and `step 3/100`.
    #[default]
    Auto,
    /// No line, so nothing is posted.
    Off,
    /// Lines that match this pattern, which has the groups `step` and `total`, or `percent`.
    Lines(regex::bytes::Regex),
}

impl TellsProgress {
    /// The groups of such a pattern.
    pub const PERCENT: &str = "percent";
    pub const STEPS: &str = "step";
    pub const TOTAL: &str = "total";
}

/// The CPUs that a rank may run on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Bind {
    /// All CPUs of the container, as under plain torchrun.
    #[default]
    None,
    /// The CPUs of its GPU's NUMA node.
    Numa,
}

/// The address that `ranklaunch wait` waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitFor {
    pub lang: Lang,
    pub host: String,
    pub port: u16,
    pub timeout: Duration,
}

/// The GPUs of an assumed node, all of one model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assumed {
    /// 1 to 1024.
    pub gpus: u32,
    pub name: Option<String>,
    /// Bytes of each GPU.
    pub memory: Option<u64>,
}

/// `gpus=8,name=H100,memory=80GiB`
impl fmt::Display for Assumed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "gpus={}", self.gpus)?;
        if let Some(name) = &self.name {
            write!(out, ",name={name}")?;
        }
        match self.memory {
            Some(bytes) if bytes % (1 << 30) == 0 => write!(out, ",memory={}GiB", bytes >> 30),
            Some(bytes) => write!(out, ",memory={bytes}"),
            None => Ok(()),
        }
    }
}
