//! The command line: the options, their help, and what becomes of the words.
//!
//! Takes arguments; gives [`Cli`], in which every option is still the raw text
//! that was typed, or a [`Stop`] with what to print instead. What an option
//! means is decided in `settings`, where flag, variable and profile share one
//! parser; nothing here may read a file, the environment or a default.

#![expect(
    rustdoc::broken_intra_doc_links,
    rustdoc::invalid_html_tags,
    reason = "the comments of options are help for a terminal"
)]

mod chinese;
mod completions;
mod foreign;
mod mistake;
#[cfg(test)]
mod tests;
mod words;

use std::ffi::OsString;
use std::io;
use std::sync::LazyLock;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};

use crate::lang::Lang;
use crate::verdict::Refusal;

/// How the embedded probe was built (its glibc floor), where the build says so.
pub const PROBE_NOTE: Option<&str> = option_env!("RANKLAUNCH_PROBE_NOTE");

/// The argument of `explain`, by its name in the list of values for [`completions`](fn@completions).
pub const EXPLAINED: &str = "ids";

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cli {
    pub command: Command,
}

#[derive(Debug, Clone, PartialEq, Eq, Subcommand)]
pub enum Command {
    /// Launch this node's part of the job (also what happens without a subcommand)
    ///
    /// Reads what the platform says about the job, looks at the node, clears what an earlier run
    /// left behind, waits for the master, starts the engine and keeps its processes, logs and
    /// verdict in hand until the last byte.
    Run(Options),
    /// Show what run would do and why; change nothing
    Plan(Plan),
    /// Examine this node and its network; launch nothing
    ///
    /// Looks at GPUs, limits, network, RDMA, python and storage, and says of each whether a
    /// launch would fail, warn or go on. Exits with the code of the first check that fails.
    Check(Check),
    /// End stale processes of earlier runs, nothing else
    ///
    /// Ended is what is proven to be left over: what carries the marker of a ranklaunch job whose
    /// agent is dead, and a rank of the same script, user and container whose launcher is dead.
    /// --stale force ends every process of script, user and container, launchers included.
    Clean(Clean),
    /// Wait until HOST:PORT accepts connections, nothing else
    Wait(Wait),
    /// Run any command under the guard: a container's init that also leaves nothing behind
    ///
    /// Passes signals on, reaps orphans, hands the terminal over, and gives the command's exit
    /// code (126 and 127 as shells do, 128 + n for signal n). What the command leaves behind gets
    /// TERM, the grace, and KILL. No settings, no agent. A second interrupt, at least 1 s after
    /// the first, is KILL.
    #[command(override_usage = "ranklaunch init [OPTIONS] -- COMMAND ARGS…")]
    Init(Init),
    /// Find in Kubernetes manifests the mistakes that fail at run time
    ///
    /// Reads Pod, Job, PyTorchJob, HyperPodPyTorchJob, TrainJob, MPIJob, RayJob, Volcano Job,
    /// KubeBrain TrainingJob, JobSet, LeaderWorkerSet and pod templates, and the launcher inside their commands. Exits with 1 when
    /// something was found (what could not be read is said and does not count), 64 when a
    /// manifest is no YAML.
    Lint(Lint),
    /// Say what an id or an exit code means, and what to do about it
    ///
    /// Every check, refusal, warning, cause of an end and rule of lint has an id, which stands in
    /// brackets behind the exit code of a message. Without an argument all of them are listed.
    Explain(Explain),
    /// List, show, begin or check profiles
    Profile {
        #[command(subcommand)]
        action: ProfileAction,
    },
    /// Copy this executable into a folder, for images that hold nothing to copy with
    ///
    /// For an init container that brings the executable to a volume of the pod. The file appears
    /// whole or not at all, is called ranklaunch, and replaces an older one.
    Install {
        /// The folder; made where it does not exist
        #[arg(value_name = "FOLDER")]
        folder: OsString,
    },
    /// Print a completion script for a shell
    Completions {
        /// The shell that will read it
        #[arg(value_name = "SHELL")]
        shell: clap_complete::Shell,
    },
    /// Print the manual page (troff)
    Man {
        /// Language of all messages: en or zh [default: from LC_ALL, LC_MESSAGES, LANG]
        #[arg(long, value_name = "LANG")]
        lang: Option<OsString>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Subcommand)]
pub enum ProfileAction {
    /// Name the profiles that --profile finds here, and where they are
    List,
    /// Print a profile, to read it or to adapt it: ranklaunch profile show taehv > ranklaunch.toml
    Show {
        /// An embedded profile's name or a TOML file
        #[arg(value_name = "NAME|FILE")]
        name: OsString,
    },
    /// Print the few lines that a profile of your own begins with
    New,
    /// Read a profile as run would, and say what it sets or what is wrong with it
    Check {
        /// An embedded profile's name or a TOML file
        #[arg(value_name = "NAME|FILE")]
        name: OsString,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct Plan {
    /// How the plan is printed: for people, as JSON, or as shell lines that can be pasted
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = Format::Text)]
    pub format: Format,
    /// Plan for a node that is not at hand: gpus=8, or gpus=8,name=H100,memory=80GiB
    #[arg(long, value_name = "FACTS")]
    pub assume: Vec<OsString>,
    #[command(flatten)]
    pub options: Options,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    Text,
    Json,
    Shell,
}

#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct Check {
    /// How the result is printed: a table for people, or JSON
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = ReportFormat::Text)]
    pub format: ReportFormat,
    /// Also list what is in order
    #[arg(long)]
    pub all: bool,
    /// Write the JSON report to this file as well
    #[arg(long, value_name = "FILE")]
    pub report: Option<OsString>,
    /// Also start a short all-reduce: gloo with two ranks on the CPU, NCCL on the GPUs
    #[arg(long)]
    pub torch: bool,
    /// Keep what was read of this node below this folder, for --host-root: a bug report that
    /// others can replay. Secrets are masked
    #[arg(long, value_name = "DIR")]
    pub capture: Option<OsString>,
    #[command(flatten)]
    pub options: Options,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ReportFormat {
    Text,
    Json,
}

#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct Clean {
    /// Show what --stale kill and --stale force would end, and why; send no signal
    #[arg(long)]
    pub dry_run: bool,
    /// How the result is printed: a table for people, or JSON
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = ReportFormat::Text)]
    pub format: ReportFormat,
    #[command(flatten)]
    pub options: Options,
}

#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct Wait {
    /// Name or address and port, such as job-master-0:29500 or [fd00::1]:29500
    #[arg(value_name = "HOST:PORT")]
    pub target: OsString,
    /// Give up after this long: 90s, 30m, 1h30m, or seconds [default: 30m]
    #[arg(long, value_name = "DURATION")]
    pub timeout: Option<OsString>,
    /// Language of all messages: en or zh [default: from LC_ALL, LC_MESSAGES, LANG]
    #[arg(long, value_name = "LANG")]
    pub lang: Option<OsString>,
}

#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct Init {
    /// Time for what the command left behind, from TERM to KILL: 10s, 1m [default: 5s]
    #[arg(long, value_name = "DURATION")]
    pub grace: Option<OsString>,
    /// Language of all messages: en or zh [default: from LC_ALL, LC_MESSAGES, LANG]
    #[arg(long, value_name = "LANG")]
    pub lang: Option<OsString>,
    /// The command and its arguments, after --
    #[arg(last = true, required = true, value_name = "COMMAND ARGS")]
    pub command: Vec<OsString>,
}

#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct Lint {
    /// Manifests to read; - is standard input
    #[arg(value_name = "MANIFEST", required = true)]
    pub manifests: Vec<OsString>,
    /// How findings are printed: for people, as JSON, or as annotations of a GitHub workflow
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = LintFormat::Text)]
    pub format: LintFormat,
    /// Memory that a node can give to pods, such as 256Gi; pods that ask for more are found
    #[arg(long, value_name = "SIZE")]
    pub node_memory: Option<OsString>,
    /// Language of all messages: en or zh [default: from LC_ALL, LC_MESSAGES, LANG]
    #[arg(long, value_name = "LANG")]
    pub lang: Option<OsString>,
}

#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct Explain {
    /// Ids and exit codes, such as gpu.count or 86 [default: list all]
    #[arg(value_name = "ID|CODE")]
    pub ids: Vec<OsString>,
    /// How it is printed: for people, or as JSON
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = ReportFormat::Text)]
    pub format: ReportFormat,
    /// Language of all messages: en or zh [default: from LC_ALL, LC_MESSAGES, LANG]
    #[arg(long, value_name = "LANG")]
    pub lang: Option<OsString>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LintFormat {
    Text,
    Json,
    Github,
}

const JOB: &str = "The job";
const MEMBERSHIP: &str = "Nodes";
const LAYOUT: &str = "Processes and layout";
const START: &str = "Before the start";
const END: &str = "Stopping and restarting";
const LOGS: &str = "Logs and console";
const PROGRAM: &str = "This program";

/// The options that run, plan, check and clean share, as they were typed.
///
/// Each is also a variable: `--master-port` is RANKLAUNCH_MASTER_PORT.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub struct Options {
    /// Take settings from a profile: the name of an embedded one (wan22, taehv, zimdb) or a TOML
    /// file [default: ranklaunch.toml beside the executable, in the working directory or in
    /// /etc/ranklaunch, where there is one]
    #[arg(long, value_name = "NAME|FILE", help_heading = JOB)]
    pub profile: Option<OsString>,
    /// Run a Python module instead of a script, as python -m does
    #[arg(short, long, value_name = "NAME", help_heading = JOB)]
    pub module: Option<OsString>,
    /// Who starts the ranks: torchrun, accelerate, deepspeed, direct (ranklaunch itself), or
    /// command (the job brings its own launcher, which is run once per node) [default: torchrun]
    #[arg(long, value_name = "ENGINE", help_heading = JOB)]
    pub engine: Option<OsString>,
    /// Python interpreter [default: that of the conda environment, the virtualenv or PATH]
    #[arg(long, value_name = "PATH", help_heading = JOB)]
    pub python: Option<OsString>,
    /// Work in this folder: relative paths (script, arguments, files of the engine, logs) count
    /// from it; only the profile is looked for before [default: where ranklaunch is started]
    #[arg(long, value_name = "DIR", help_heading = JOB)]
    pub chdir: Option<OsString>,
    /// Use this conda environment, found without activating it
    #[arg(long, value_name = "NAME", help_heading = JOB)]
    pub conda_env: Option<OsString>,
    /// Set a variable for the ranks, over what the container has; repeatable
    #[arg(long, value_name = "K=V", help_heading = JOB)]
    pub env: Vec<OsString>,
    /// Leave the terminal to one rank, so that pdb works
    #[arg(long, help_heading = JOB)]
    pub interactive: bool,

    /// Number of nodes [default: what the platform says]
    #[arg(long, value_name = "N", help_heading = MEMBERSHIP)]
    pub nnodes: Option<OsString>,
    /// Rank of this node, from 0 [default: what the platform says]
    #[arg(long, value_name = "N", help_heading = MEMBERSHIP)]
    pub node_rank: Option<OsString>,
    /// Name or address of node 0 [default: what the platform says]
    #[arg(long, value_name = "HOST", help_heading = MEMBERSHIP)]
    pub master_addr: Option<OsString>,
    /// Port on node 0 where the ranks meet [default: what the platform says, else 29500]
    #[arg(long, value_name = "PORT", help_heading = MEMBERSHIP)]
    pub master_port: Option<OsString>,
    /// What a bare WORLD_SIZE counts: auto, nodes or processes [default: auto]
    #[arg(long, value_name = "WHAT", help_heading = MEMBERSHIP)]
    pub world_size_counts: Option<OsString>,
    /// How torchrun's agents meet: static (ranks in node order) or c10d [default: static]
    #[arg(long, value_name = "BACKEND", help_heading = MEMBERSHIP)]
    pub rdzv: Option<OsString>,
    /// Start although a torchrun, or a like launcher, runs above this process: as a job of
    /// its own on this node, whatever that one's variables say
    #[arg(long, help_heading = MEMBERSHIP)]
    pub nested: bool,

    /// Processes per node: auto (the most that the GPUs and the layout allow) or a number
    /// [default: auto]
    #[arg(long, value_name = "auto|N", help_heading = LAYOUT)]
    pub nproc_per_node: Option<OsString>,
    /// Refuse to start with fewer processes per node than this
    #[arg(long, value_name = "N", help_heading = LAYOUT)]
    pub min_nproc: Option<OsString>,
    /// What the ranks compute on: auto, gpu or cpu [default: auto]
    #[arg(long, value_name = "DEVICE", help_heading = LAYOUT)]
    pub device: Option<OsString>,
    /// Which CPUs a rank may run on: none (all that the container has) or numa (those of its GPU's
    /// NUMA node) [default: none]
    #[arg(long, value_name = "HOW", help_heading = LAYOUT)]
    pub bind: Option<OsString>,
    /// How the parallel sizes must fit the world: none, ulysses-world (Wan2.2) or ulysses-ring
    /// (Wan2.1, HunyuanVideo) [default: none]
    #[arg(long, value_name = "RULE", help_heading = LAYOUT)]
    pub layout: Option<OsString>,
    /// Attention heads of the model, which the ulysses size must divide
    #[arg(long, value_name = "N", help_heading = LAYOUT)]
    pub heads: Option<OsString>,

    /// Processes of earlier runs: kill (what is proven to be left over), force (whatever runs the
    /// script, as pkill -f), report or off [default: kill]
    #[arg(long, value_name = "WHAT", help_heading = START)]
    pub stale: Option<OsString>,
    /// Agree with the other nodes before the start: auto, off or required [default: auto]
    #[arg(long, value_name = "MODE", help_heading = START)]
    pub muster: Option<OsString>,
    /// Meet the other nodes on this port of node 0 [default: the master port]
    #[arg(long, value_name = "PORT", help_heading = START)]
    pub muster_port: Option<OsString>,
    /// Wait this long for the master and the other nodes: 90s, 30m, 1h30m [default: 30m]
    #[arg(long, value_name = "DURATION", help_heading = START)]
    pub wait_timeout: Option<OsString>,
    /// RDMA: auto (use what is usable), required (refuse without it) or off [default: auto]
    #[arg(long, value_name = "MODE", help_heading = START)]
    pub rdma: Option<OsString>,
    /// How the driver is asked about GPUs: auto, file, memfd, nvidia-smi or off [default: auto]
    #[arg(long, value_name = "HOW", help_heading = START)]
    pub probe: Option<OsString>,
    /// Wait for no single source of facts longer than this: 10s, 2m [default: 60s for the driver,
    /// 30s for files]
    #[arg(long, value_name = "DURATION", help_heading = START)]
    pub deadline: Option<OsString>,
    /// What a finding of a check does: fail, warn or off, such as shm.size=fail; repeatable
    #[arg(long, value_name = "ID=WHAT", help_heading = START)]
    pub severity: Vec<OsString>,

    /// Time from the first TERM to the last KILL [default: a little less than
    /// TerminationGracePeriodSeconds, or than 30s where that is not set]
    #[arg(long, value_name = "DURATION", help_heading = END)]
    pub grace: Option<OsString>,
    /// Restart all nodes together at most this often [default: 0]
    #[arg(long, value_name = "N", help_heading = END)]
    pub max_restarts: Option<OsString>,

    /// Folder for logs [default: ./ranklaunch-logs, else
    /// $TMPDIR/ranklaunch-<uid>, else /tmp/ranklaunch-<uid>]
    #[arg(long, value_name = "DIR", help_heading = LOGS)]
    pub log_dir: Option<OsString>,
    /// Disk kept for each rank's output, such as 256MiB [default: 256MiB]
    #[arg(long, value_name = "SIZE", help_heading = LOGS)]
    pub log_cap_rank: Option<OsString>,
    /// Disk kept for this node's output, such as 4GiB [default: 4GiB]
    #[arg(long, value_name = "SIZE", help_heading = LOGS)]
    pub log_cap_node: Option<OsString>,
    /// Ranks shown on the console: all, rank0, errors (stderr only) or none [default: all]
    #[arg(long, value_name = "WHICH", help_heading = LOGS)]
    pub console: Option<OsString>,
    /// Begin console lines with the rank: rank or none [default: rank]
    #[arg(long, value_name = "WHAT", help_heading = LOGS)]
    pub console_prefix: Option<OsString>,
    /// Write the verdict to this file as well [default: /dev/termination-log, if it exists]
    #[arg(long, value_name = "PATH", help_heading = LOGS)]
    pub termination_log: Option<OsString>,

    /// Language of all messages: en or zh [default: from LC_ALL, LC_MESSAGES, LANG]
    #[arg(long, value_name = "LANG", help_heading = PROGRAM)]
    pub lang: Option<OsString>,
    /// Read the node's files below this folder instead of / (for bug reports and tests)
    #[arg(long, value_name = "DIR", help_heading = PROGRAM)]
    pub host_root: Option<OsString>,

    /// The program and its arguments, after --
    ///
    /// A .py file, -m MODULE, or any other command. {ulysses_size}, {ring_size}, {world_size},
    /// {nproc_per_node}, {nnodes}, {node_rank}, {run_id}, {timestamp} and the names of the
    /// profile's [[select]] are replaced; {{name}} is the literal. With a profile, arguments
    /// without a program are appended to the profile's.
    #[arg(last = true, value_name = "SCRIPT ARGS")]
    pub program: Vec<OsString>,
    /// Names of the options that were typed more than once, and how often.
    #[arg(skip)]
    pub repeated: Vec<(String, usize)>,
}

/// Launch a node's part of a distributed PyTorch job
///
/// ranklaunch starts on every node, reads what the platform says about the job, looks at the
/// node, chooses the number of processes and the parallel sizes, waits for the master, starts
/// torchrun, and keeps its processes, logs and verdict in hand until the last byte.
#[derive(Debug, Parser)]
#[command(
    name = "ranklaunch",
    version = VERSION.as_str(),
    long_version = LONG_VERSION.as_str(),
    max_term_width = 100,
    args_override_self = true,
    disable_help_subcommand = true,
    override_usage = "ranklaunch [OPTIONS] [-- SCRIPT ARGS…]\n       ranklaunch run|plan|check|clean [OPTIONS] [-- SCRIPT ARGS…]\n       ranklaunch wait HOST:PORT [--timeout DURATION]\n       ranklaunch init -- COMMAND ARGS…\n       ranklaunch lint MANIFEST… [--format text|json|github]\n       ranklaunch explain [ID|CODE…] [--format text|json]\n       ranklaunch profile list|show NAME|new|check FILE",
    after_help = "Every option is also a variable: --master-port is RANKLAUNCH_MASTER_PORT. A flag is \
        stronger than a variable, a variable stronger than the profile, and the profile stronger \
        than what the platform says.\n\n\
        Examples:\n  \
        ranklaunch --profile wan22\n  \
        ranklaunch plan --layout ulysses-world --heads 40 -- generate.py --ulysses_size {ulysses_size}\n  \
        ranklaunch --nnodes 2 --node-rank 1 --master-addr 172.31.0.80 -- train.py --epochs 3"
)]
struct Line {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    options: Options,
}

static VERSION: LazyLock<String> = LazyLock::new(|| {
    let libc = if cfg!(target_env = "musl") { "musl" } else { "gnu" };
    let link = if cfg!(target_feature = "crt-static") { "static" } else { "dynamic" };
    format!(
        "{} ({}-{}-{libc}, {link})",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::ARCH,
        std::env::consts::OS,
    )
});

/// What `--version` adds, on a line of its own.
static LONG_VERSION: LazyLock<String> =
    LazyLock::new(|| VERSION.lines().chain(PROBE_NOTE).collect::<Vec<_>>().join("\n"));

/// The program ends here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop {
    /// Help or the version was asked for. Ends in a newline.
    Shown(String),
    /// A command line that cannot be read.
    Refused(Refusal),
}

/// Reads the arguments; the first is the program's own name.
pub fn parse(args: impl Iterator<Item = OsString>) -> Result<Cli, Stop> {
    let words::Words { line, repeated } = words::ordered(args.collect()).map_err(Stop::Refused)?;
    let parsed = Line::try_parse_from(&line).map_err(|error| mistake::stop(&error, &line))?;
    let mut command = parsed.command.unwrap_or(Command::Run(parsed.options));
    if let Command::Run(options)
    | Command::Plan(Plan { options, .. })
    | Command::Check(Check { options, .. })
    | Command::Clean(Clean { options, .. }) = &mut command
    {
        options.repeated = repeated;
    }
    Ok(Cli { command })
}

/// The completion script of a shell; `values` are those of options that take one of a few.
pub fn completions(
    shell: clap_complete::Shell,
    values: &[(&str, Vec<String>)],
    profiles: &[&str],
) -> Vec<u8> {
    completions::script(shell, Line::command(), values, profiles)
}

/// The language that a line asks for, also one that cannot be read.
pub fn language_of(args: &[OsString]) -> Option<OsString> {
    let ours = args.iter().take_while(|word| *word != "--");
    let mut rest = ours.skip_while(|word| !word.to_string_lossy().starts_with("--lang"));
    let word = rest.next()?.to_string_lossy().into_owned();
    match word.strip_prefix("--lang=") {
        Some(value) => Some(value.into()),
        None => rest.next().filter(|_| word == "--lang").cloned(),
    }
}

/// What [`Stop::Shown`] says, in the language of the reader.
pub fn shown(text: String, args: &[OsString], lang: Lang) -> String {
    /// Fits a terminal of 80 columns behind clap's indentation.
    const WIDE: usize = 68;
    let Ok(words::Words { line, .. }) = words::ordered(args.to_vec()) else { return text };
    match lang {
        Lang::En => text,
        Lang::Zh => {
            match chinese::command(Line::command(), Some(WIDE)).try_get_matches_from(line) {
                Err(error) if !error.use_stderr() => chinese::help(&error.render().to_string()),
                _ => text,
            }
        }
    }
}

/// The options of `ranklaunch run` by their long names, with what help says of each.
#[cfg(test)]
pub(crate) fn descriptions() -> Vec<(String, String)> {
    let line = Line::command();
    let described =
        |arg: &clap::Arg| Some((arg.get_long()?.to_owned(), arg.get_help()?.to_string()));
    line.get_arguments().filter_map(described).collect()
}

/// The manual page in troff.
///
/// One page for all: the generator's references to a page for each subcommand become
/// the subcommands with the arguments that only they have.
pub fn man(lang: Lang) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    let mut line = match lang {
        Lang::En => Line::command(),
        Lang::Zh => chinese::command(Line::command(), None),
    };
    clap_mangen::Man::new(line.clone()).render(&mut page)?;
    line.build();
    let mut page = String::from_utf8_lossy(&page).into_owned();
    for subcommand in line.get_subcommands() {
        let name = subcommand.get_name();
        let mut usage = format!("ranklaunch {name}");
        for own in subcommand.get_arguments() {
            if line.get_arguments().all(|shared| shared.get_id() != own.get_id()) {
                usage.push(' ');
                usage.push_str(&own.to_string().replace('-', "\\-"));
            }
        }
        page = page.replace(&format!("ranklaunch\\-{name}(1)"), &usage);
    }
    Ok(match lang {
        Lang::En => page,
        Lang::Zh => chinese::man(&page),
    }
    .into_bytes())
}
