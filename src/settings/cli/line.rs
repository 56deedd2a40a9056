//! The command line and its subcommands as clap types, with the help texts.
//!
//! Every value is raw text; `settings` parses it.

#![expect(
    rustdoc::broken_intra_doc_links,
    reason = "the comments of options are help for a terminal"
)]

use std::ffi::OsString;
use std::sync::{LazyLock, OnceLock};

use clap::{Args, Parser, Subcommand, ValueEnum};

use super::options::Options;
use super::topic::Topic;

/// What the executable's crate says of its build, for `--version`: lines without ends.
static BUILD: OnceLock<Vec<&str>> = OnceLock::new();

#[derive(Debug, Clone, PartialEq, Eq, Subcommand)]
pub enum Command {
    /// Launch this node's part of the job (also without a subcommand)
    ///
    /// Reads what the platform says about the job, checks the node, ends what an earlier run left
    /// behind, waits for the master and starts the engine. Then it supervises every process,
    /// captures all output and reports one verdict.
    #[command(override_usage = usage("run "))]
    Run(Options),
    /// Show what run would do and why; change nothing
    #[command(override_usage = usage("plan "))]
    Plan(Plan),
    /// Examine this node and its network; launch nothing
    ///
    /// Checks GPUs, limits, network, RDMA, python and storage, and tells for each whether a launch
    /// would fail, warn or go on. Exits with the code of the first check that fails.
    #[command(override_usage = usage("check "))]
    Check(Check),
    /// End stale processes of earlier runs and do nothing else
    ///
    /// Ends only what is proven to be left over: processes with the marker of a ranklaunch job
    /// whose agent is dead, and ranks of the same script, user and container whose launcher is
    /// dead. --stale force ends every process of that script, user and container, launchers included.
    #[command(override_usage = usage("clean "))]
    Clean(Clean),
    /// Wait until HOST:PORT accepts connections and do nothing else
    Wait(Wait),
    /// Run any command as a container's init, leaving no process behind
    ///
    /// Forwards signals, reaps orphans, hands over the terminal and exits with the command's exit
    /// code (126 and 127 as shells do, 128 + n for signal n). Processes that the command leaves
    /// behind get TERM and, after the grace period, KILL. There are no settings and no agent. A
    /// second interrupt, at least 1 s after the first, sends KILL.
    #[command(override_usage = "ranklaunch init [OPTIONS] -- COMMAND ARGS…")]
    Init(Init),
    /// Find in manifests and scripts the mistakes that fail at run time
    ///
    /// Reads shell scripts, sbatch files, Compose files, Pod, Job, PyTorchJob, HyperPodPyTorchJob,
    /// TrainJob, MPIJob, RayJob, Volcano Job, KubeBrain TrainingJob, JobSet, LeaderWorkerSet and
    /// pod templates, and the launchers in their commands. Exits with 1 when something was found
    /// (parts that cannot be read are named but do not count), 64 when a manifest is not YAML.
    Lint(Lint),
    /// Turn a start-up script or a launcher's line into ranklaunch's
    ///
    /// Reads shell scripts, sbatch files, Kubernetes manifests, Compose files, and after -- a line
    /// of torchrun, accelerate, deepspeed, mpirun, srun or python -m torch.distributed.launch.
    /// Prints the profile or the lines of ranklaunch in its place, and for every line of the input
    /// whether it is replaced, stays, is no longer needed, is wrong, or was not understood. Runs
    /// and changes nothing.
    #[command(
        override_usage = "ranklaunch adopt [OPTIONS] FILE…\n       ranklaunch adopt [OPTIONS] -- COMMAND ARGS…"
    )]
    Adopt(Adopt),
    /// List the checkpoints below a folder, and which are whole
    ///
    /// Knows the files of torch.save, torch.distributed.checkpoint, safetensors, transformers'
    /// Trainer, accelerate, DeepSpeed, Lightning, Megatron and NeMo. Reads names, sizes, headers and
    /// indices, and no weights; executes nothing and changes nothing. What one lacks is named: a file
    /// or the part of a rank that is missing, cut off, full of zeros, or not renamed yet.
    Checkpoint(Checkpoints),
    /// Name the root cause in a job's logs, or explain an id or a code
    ///
    /// A file, a folder of logs or - for standard input is read as the logs of one job, whatever
    /// started it: torchrun, accelerate, Ray, Slurm, kubectl logs, kubectl describe; gzip and zstd
    /// too. Every check, refusal, warning, cause of an end and lint rule has an id, which messages
    /// show in brackets behind the exit code. Without an argument all ids of this program are
    /// listed.
    Explain(Explain),
    /// Show the Python stacks of a running job's ranks, on all nodes
    ///
    /// Ranks with equal stacks are one group, and the smallest group comes first. The ranks run
    /// on: nothing is attached, stopped or signalled, and python needs no package. CPython 3.8 to
    /// 3.15; of any other process the kernel's state is shown. Run it in the job's container, as
    /// its user or as root.
    Stacks(Stacks),
    /// Watch a running job on all its nodes: ranks, GPUs, logs, stacks
    ///
    /// Shows state, CPU, memory and GPU of each rank, clocks, power and traffic of each node, the
    /// last line of each rank and its age, restarts and findings. Follows the log of a rank, shows
    /// its stacks, and the plan with its reasons. It only looks: to quit it, or to kill it, changes
    /// nothing for the job. ? lists the keys.
    Top(Top),
    /// List the jobs that run here, with all their nodes
    Ps(Ps),
    /// List the nodes that failed in the last seven days
    ///
    /// Launchers remember them beside the logs: nodes that were lost, and nodes whose failure calls for another one. In a job
    /// with --spares a spare is preferred to them. Nothing is drained or deleted.
    Nodes(Nodes),
    /// Print the output of a run, of all its ranks in the order of time
    ///
    /// Of a job that runs, of all its nodes; of a run that has ended, what its log folder holds.
    /// Without RUN it is the job that runs here, of several the one of this folder, else the latest run of the log
    /// folder.
    Logs(LogsOf),
    /// Write a running job's evidence into a folder, for a bug report
    ///
    /// Of all nodes: stacks, torch's flight recorders, plans, journals, the last lines of the ranks
    /// and what the kernel says of them. Secrets are masked. The ranks run on. ranklaunch explain
    /// FOLDER reads the flight recorders. Run it in the job's container, as its user or as root.
    Dump(Dump),
    /// Write the report of a run that is over or was cut off
    ///
    /// From its log folders: one HTML file that holds everything and asks for nothing: verdict with the lines of the log,
    /// timeline, utilisation, plan with its reasons, checks, and where the time went. Each run
    /// writes it by itself: report.html beside run.json, and on node 0 one of the whole job in the
    /// run's folder. This writes it for a run that was killed, or from the folders of several nodes
    /// that were copied to one place.
    Report(Report),
    /// Show what differs between two runs: outcome, plan, variables
    Compare(Compare),
    /// List, show, create or check profiles
    Profile {
        #[command(subcommand)]
        action: ProfileAction,
    },
    /// Copy this executable into a folder, for images without cp
    ///
    /// For an init container that puts the executable on a volume of the pod. The file is named
    /// ranklaunch, appears whole or not at all, and replaces an older one.
    Install {
        /// The folder; created if it does not exist
        #[arg(value_name = "FOLDER")]
        folder: OsString,
    },
    /// Print a completion script for a shell
    Completions {
        /// The shell that the script is for
        #[arg(value_name = "SHELL")]
        shell: clap_complete::Shell,
        /// The words of an unfinished line, for which the script asks at each TAB
        #[arg(last = true, value_name = "WORDS", hide = true)]
        words: Option<Vec<OsString>>,
    },
    /// Print the manual page (troff)
    Man {
        /// Write a page of each command into this folder, in place of one page of all
        #[arg(long, value_name = "DIR")]
        output: Option<OsString>,
        /// Language of all messages: en or zh [default: from LC_ALL, LC_MESSAGES, LANG]
        #[arg(long, value_name = "LANG")]
        lang: Option<OsString>,
    },
    /// Explain a command or a topic, such as layout or hangs
    ///
    /// Without a word it lists all commands and topics.
    Help {
        /// A command, or a topic: layout, membership, hangs or exit-codes
        #[arg(value_name = "COMMAND|TOPIC", value_enum, hide_possible_values = true)]
        topic: Option<Topic>,
        /// Language of all messages: en or zh [default: from LC_ALL, LC_MESSAGES, LANG]
        #[arg(long, value_name = "LANG")]
        lang: Option<OsString>,
    },
}

/// The forms of a launch, as clap shows usage.
fn usage(command: &str) -> String {
    let forms = ["SCRIPT.py ARGS…", "-m MODULE ARGS…", "-- COMMAND ARGS…"];
    let lines = forms.map(|form| format!("ranklaunch {command}[OPTIONS] {form}"));
    lines.join("\n       ")
}

impl Command {
    /// Sets the lines of `--version` below the first one. Only the first call counts.
    pub fn describe_build(lines: Vec<&'static str>) {
        let _ = BUILD.set(lines);
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Subcommand)]
pub enum ProfileAction {
    /// List the profiles that --profile finds here, with their places
    List,
    /// Print a profile, to read it or to adapt it: ranklaunch profile show taehv > ranklaunch.toml
    Show {
        /// An embedded profile's name or a TOML file
        #[arg(value_name = "NAME|FILE")]
        name: OsString,
    },
    /// Print the first lines of a profile of your own
    New,
    /// Read a profile as run does, and show what it sets or what is wrong with it
    Check {
        /// An embedded profile's name or a TOML file
        #[arg(value_name = "NAME|FILE")]
        name: OsString,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct Plan {
    /// How to print the plan: as text, as JSON, or as shell commands to paste
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = Format::Text)]
    pub format: Format,
    /// Plan for another node than this one: gpus=8, or gpus=8,name=H100,memory=80GiB
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
    /// How to print the result: as a table or as JSON
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = ReportFormat::Text)]
    pub format: ReportFormat,
    /// Also list checks that pass
    #[arg(long)]
    pub all: bool,
    /// Also write the JSON report to this file
    #[arg(long, value_name = "FILE")]
    pub report: Option<OsString>,
    /// Also start a short all-reduce: gloo with two ranks on the CPU, NCCL on the GPUs
    #[arg(long)]
    pub torch: bool,
    /// Save everything read from this node below this folder, to replay with --host-root in a bug
    /// report. Secrets are masked
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
    /// How to print the result: as a table or as JSON
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
    /// Time that leftover processes of the command have from TERM to KILL: 10s, 1m [default: 5s]
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
    /// Manifests, scripts and Compose files to read; - is standard input
    #[arg(value_name = "MANIFEST", required = true)]
    pub manifests: Vec<OsString>,
    /// How to print findings: as text, as JSON, or as annotations of a GitHub workflow
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = AnnotatedFormat::Text)]
    pub format: AnnotatedFormat,
    /// Memory that a node can give to pods, such as 256Gi; pods that request more are reported
    #[arg(long, value_name = "SIZE")]
    pub node_memory: Option<OsString>,
    /// Colours: auto (at a terminal, unless NO_COLOR is set), always or never [default: auto]
    #[arg(long, value_name = "WHEN")]
    pub color: Option<OsString>,
    /// Language of all messages: en or zh [default: from LC_ALL, LC_MESSAGES, LANG]
    #[arg(long, value_name = "LANG")]
    pub lang: Option<OsString>,
}

#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct Adopt {
    /// Scripts and manifests to read, with a file of accelerate config if they name one; - is
    /// standard input
    #[arg(value_name = "FILE")]
    pub files: Vec<OsString>,
    /// How to print the result: as text or as JSON
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = ReportFormat::Text)]
    pub format: ReportFormat,
    /// Colours: auto (at a terminal, unless NO_COLOR is set), always or never [default: auto]
    #[arg(long, value_name = "WHEN")]
    pub color: Option<OsString>,
    /// Language of all messages: en or zh [default: from LC_ALL, LC_MESSAGES, LANG]
    #[arg(long, value_name = "LANG")]
    pub lang: Option<OsString>,
    /// The line that starts the job today, after --
    #[arg(last = true, value_name = "COMMAND ARGS")]
    pub command: Vec<OsString>,
}

#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct Checkpoints {
    /// The folder in which the program saves, or one above it
    #[arg(value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    pub dir: OsString,
    /// How to print the list: as text or as JSON
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = ReportFormat::Text)]
    pub format: ReportFormat,
    /// Colours: auto (at a terminal, unless NO_COLOR is set), always or never [default: auto]
    #[arg(long, value_name = "WHEN")]
    pub color: Option<OsString>,
    /// Language of all messages: en or zh [default: from LC_ALL, LC_MESSAGES, LANG]
    #[arg(long, value_name = "LANG")]
    pub lang: Option<OsString>,
}

#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct Explain {
    /// Logs of one job (files, folders, - for standard input), or ids and exit codes such as
    /// gpu.count or 86 [default: list all ids]
    #[arg(value_name = "LOG|ID|CODE")]
    pub ids: Vec<OsString>,
    /// How to print it: as text, as JSON or, for logs, as annotations of a GitHub workflow
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = AnnotatedFormat::Text)]
    pub format: AnnotatedFormat,
    /// Also know the failures of this profile's [[diagnose]]
    #[arg(long, value_name = "NAME|FILE")]
    pub profile: Option<OsString>,
    /// Colours: auto (at a terminal, unless NO_COLOR is set), always or never [default: auto]
    #[arg(long, value_name = "WHEN")]
    pub color: Option<OsString>,
    /// Language of all messages: en or zh [default: from LC_ALL, LC_MESSAGES, LANG]
    #[arg(long, value_name = "LANG")]
    pub lang: Option<OsString>,
}

#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct Report {
    /// A run's folder, the folders of its nodes, the log folder (its newest run), or a run id
    #[arg(value_name = "RUN", required = true)]
    pub runs: Vec<OsString>,
    /// The file to write; - is standard output [default: report.html in the run's folder]
    #[arg(long, value_name = "FILE")]
    pub output: Option<OsString>,
    /// Language of all messages: en or zh [default: from LC_ALL, LC_MESSAGES, LANG]
    #[arg(long, value_name = "LANG")]
    pub lang: Option<OsString>,
}

#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct Compare {
    /// A run's folder, a log folder (its newest run), or a run id
    #[arg(value_name = "RUN")]
    pub first: OsString,
    /// The run that it is compared with
    #[arg(value_name = "RUN")]
    pub second: OsString,
    /// How to print what differs: as text or as JSON
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = ReportFormat::Text)]
    pub format: ReportFormat,
    /// Language of all messages: en or zh [default: from LC_ALL, LC_MESSAGES, LANG]
    #[arg(long, value_name = "LANG")]
    pub lang: Option<OsString>,
}

#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct Stacks {
    /// The job, by its run id, the beginning of it or its folder [default: the job of this
    /// folder, or the only one that runs here]
    #[arg(value_name = "RUN|DIR")]
    pub run: Option<OsString>,
    /// The job whose run is the newest in this log folder
    #[arg(long, value_name = "DIR")]
    pub log_dir: Option<OsString>,
    /// Only the node with this number
    #[arg(long, value_name = "N")]
    pub node: Option<OsString>,
    /// Only this rank
    #[arg(long, value_name = "N")]
    pub rank: Option<OsString>,
    /// How to print the stacks: as text or as JSON
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = ReportFormat::Text)]
    pub format: ReportFormat,
    /// Language of all messages: en or zh [default: from LC_ALL, LC_MESSAGES, LANG]
    #[arg(long, value_name = "LANG")]
    pub lang: Option<OsString>,
}

#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct Dump {
    /// The job, by its run id, the beginning of it or its folder [default: the job of this
    /// folder, or the only one that runs here]
    #[arg(value_name = "RUN|DIR")]
    pub run: Option<OsString>,
    /// The job whose run is the newest in this log folder
    #[arg(long, value_name = "DIR")]
    pub log_dir: Option<OsString>,
    /// The folder; created if it does not exist [default: ranklaunch-dump-RUN here]
    #[arg(long, value_name = "DIR")]
    pub output: Option<OsString>,
    /// Language of all messages: en or zh [default: from LC_ALL, LC_MESSAGES, LANG]
    #[arg(long, value_name = "LANG")]
    pub lang: Option<OsString>,
}

#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct Top {
    /// The job, by its run id, the beginning of it or the pid of its agent; or the address at which a
    /// node serves its status [default: the job of this folder, or the only one that
    /// runs here]
    #[arg(value_name = "RUN|HOST:PORT")]
    pub run: Option<OsString>,
    /// Language of all messages: en or zh [default: from LC_ALL, LC_MESSAGES, LANG]
    #[arg(long, value_name = "LANG")]
    pub lang: Option<OsString>,
}

#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct Ps {
    /// Also list the runs of the log folder that have ended
    #[arg(long, short)]
    pub all: bool,
    /// The folder that --all looks at [default: that of run]
    #[arg(long, value_name = "DIR")]
    pub log_dir: Option<OsString>,
    /// How to print the jobs: as text or as JSON
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = ReportFormat::Text)]
    pub format: ReportFormat,
    /// Language of all messages: en or zh [default: from LC_ALL, LC_MESSAGES, LANG]
    #[arg(long, value_name = "LANG")]
    pub lang: Option<OsString>,
}

#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct Nodes {
    /// This node was repaired: it is as good as any other from now on
    #[arg(long, value_name = "NODE")]
    pub forget: Option<OsString>,
    /// The folder of the logs [default: that of run]
    #[arg(long, value_name = "DIR")]
    pub log_dir: Option<OsString>,
    /// How to print the nodes: as text or as JSON
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = ReportFormat::Text)]
    pub format: ReportFormat,
    /// Language of all messages: en or zh [default: from LC_ALL, LC_MESSAGES, LANG]
    #[arg(long, value_name = "LANG")]
    pub lang: Option<OsString>,
}

#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct LogsOf {
    /// The run, by its id or the beginning of it, or its folder
    #[arg(value_name = "RUN|DIR")]
    pub run: Option<OsString>,
    /// Print what is written from now on as well, until the job ends
    #[arg(long, short)]
    pub follow: bool,
    /// Only these ranks: 3, or 0,4-7
    #[arg(long, value_name = "RANKS")]
    pub rank: Option<OsString>,
    /// Only what was written since then: 10m ago, or 2026-11-23T18:00:00Z
    #[arg(long, value_name = "TIME")]
    pub since: Option<OsString>,
    /// Only lines that match this regular expression
    #[arg(long, value_name = "REGEX")]
    pub grep: Option<OsString>,
    /// Begin each line with the time at which it was written
    #[arg(long, short)]
    pub timestamps: bool,
    /// The folder in which runs are searched [default: that of run]
    #[arg(long, value_name = "DIR")]
    pub log_dir: Option<OsString>,
    /// Language of all messages: en or zh [default: from LC_ALL, LC_MESSAGES, LANG]
    #[arg(long, value_name = "LANG")]
    pub lang: Option<OsString>,
}

/// For what has a line in a file, which a workflow can show beside that line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AnnotatedFormat {
    Text,
    Json,
    Github,
}

/// Launch a node's part of a distributed PyTorch job
///
/// ranklaunch runs on every node. It reads what the platform says about the job, checks the node,
/// chooses the number of processes and the parallel sizes, waits for the master and starts
/// torchrun. Then it supervises every process, captures all output and reports one verdict.
#[derive(Debug, Parser)]
#[command(
    name = "ranklaunch",
    version = VERSION.as_str(),
    long_version = LONG_VERSION.as_str(),
    max_term_width = 100,
    args_override_self = true,
    disable_help_subcommand = true,
    override_usage = usage("") + "\n       ranklaunch COMMAND …",
    after_help = "ranklaunch --help shows all options, ranklaunch help lists topics.",
    after_long_help = "Every option is also a variable: --master-port is RANKLAUNCH_MASTER_PORT. A flag \
        overrides a variable, a variable the profile, and the profile what the platform says.\n\n\
        Examples:\n  \
        ranklaunch train.py --epochs 3\n  \
        ranklaunch --profile wan22\n  \
        ranklaunch plan --layout ulysses-world --heads 40 \\\n  \
        \u{20}   generate.py --ulysses_size {ulysses_size}\n  \
        ranklaunch --nnodes 2 --node-rank 1 --master-addr 172.31.0.80 -m pkg\n  \
        ranklaunch -- ./solver --steps 100"
)]
pub(super) struct Line {
    #[command(subcommand)]
    pub(super) command: Option<Command>,
    #[command(flatten)]
    pub(super) options: Options,
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

/// The additional lines of `--version`.
static LONG_VERSION: LazyLock<String> = LazyLock::new(|| {
    let notes = BUILD.get().into_iter().flatten().copied();
    VERSION.lines().chain(notes).collect::<Vec<_>>().join("\n")
});
