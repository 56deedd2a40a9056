//! The options that run, plan, check and clean share, with the help texts.
//!
//! Every value is raw text; `settings` parses it.

#![expect(
    rustdoc::broken_intra_doc_links,
    rustdoc::invalid_html_tags,
    reason = "the comments of options are help for a terminal"
)]

use std::ffi::OsString;

use clap::Args;

/// The heading of `-h`.
pub(super) const COMMON: &str = "Common options";
pub(super) const PROGRAM: &str = "The program";
pub(super) const PYTHON: &str = "Python and environment";
pub(super) const NODES: &str = "Nodes";
pub(super) const LAYOUT: &str = "Processes and layout";
pub(super) const CHECKS: &str = "Checks and stale processes";
pub(super) const RESTARTS: &str = "Hangs, restarts and stopping";
pub(super) const LOGS: &str = "Logs and console";
pub(super) const STATUS: &str = "Status for other programs";
pub(super) const MESSAGES: &str = "Language and bug reports";

/// The options that run, plan, check and clean share, as raw text.
///
/// Each is also a variable: `--master-port` is RANKLAUNCH_MASTER_PORT.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub struct Options {
    /// Take settings from a profile: the name of an embedded one (wan22, taehv, zimdb) or a TOML
    /// file [default: ranklaunch.toml beside the executable, in the working directory or in
    /// /etc/ranklaunch, if it exists]
    #[arg(long, value_name = "NAME|FILE", help_heading = PROGRAM)]
    pub profile: Option<OsString>,
    /// Run a Python module instead of a script, as python -m does
    #[arg(short, long, value_name = "NAME", help_heading = PROGRAM)]
    pub module: Option<OsString>,
    /// What starts the ranks: torchrun, accelerate, deepspeed, direct (ranklaunch itself), or
    /// command (the job's own launcher, run once per node) [default: torchrun]
    #[arg(long, value_name = "ENGINE", help_heading = PROGRAM)]
    pub engine: Option<OsString>,
    /// Change to this folder: relative paths (script, arguments, files of the engine, logs) start
    /// there; only the profile is searched before [default: where ranklaunch is started]
    #[arg(long, value_name = "DIR", help_heading = PROGRAM)]
    pub chdir: Option<OsString>,
    /// Give the terminal to the only rank, so that pdb works
    #[arg(long, help_heading = PROGRAM)]
    pub interactive: bool,

    /// Python interpreter [default: that of the conda environment, the virtualenv or PATH]
    #[arg(long, value_name = "PATH", help_heading = PYTHON)]
    pub python: Option<OsString>,
    /// Use this conda environment, found without activating it
    #[arg(long, value_name = "NAME", help_heading = PYTHON)]
    pub conda_env: Option<OsString>,
    /// Set a variable for the ranks, overriding the container's; repeatable
    #[arg(long, value_name = "K=V", help_heading = PYTHON)]
    pub env: Vec<OsString>,
    /// Import once per node what the program imports, and fork the ranks from that interpreter: off, auto
    /// (where that is safe) or required [default: off]
    #[arg(long, value_name = "WHETHER", help_heading = PYTHON)]
    pub warm: Option<OsString>,
    /// A module that --warm imports as well, or does not import: diffusers, -apex; repeatable
    #[arg(long, value_name = "[-]MODULE", help_heading = PYTHON, allow_hyphen_values = true)]
    pub warm_modules: Vec<OsString>,
    /// Start torch's worker server in the Python of each rank, to be asked when the job stands still:
    /// auto or off [default: auto]
    #[arg(long, value_name = "WHETHER", help_heading = PYTHON)]
    pub inject: Option<OsString>,

    /// Number of nodes [default: what the platform says]
    #[arg(long, value_name = "N", help_heading = NODES)]
    pub nnodes: Option<OsString>,
    /// Of the nodes that the platform starts, so many have no seat at first: they park, and take the seat of a
    /// node that is lost. With --nnodes, whose nodes all have a seat, they come beside those [default: 0]
    #[arg(long, value_name = "N", help_heading = NODES)]
    pub spares: Option<OsString>,
    /// All hosts of the job, in order: host0,host1 or host[0-3]. The same line starts every host, which
    /// finds its own place; replaces --nnodes, --node-rank and --master-addr
    #[arg(long, value_name = "HOST,HOST", help_heading = NODES)]
    pub nodes: Option<OsString>,
    /// Rank of this node, from 0 [default: what the platform says]
    #[arg(long, value_name = "N", help_heading = NODES)]
    pub node_rank: Option<OsString>,
    /// Name or address of node 0 [default: what the platform says]
    #[arg(long, value_name = "HOST", help_heading = NODES)]
    pub master_addr: Option<OsString>,
    /// Port on node 0 where the ranks meet [default: what the platform says, else 29500]
    #[arg(long, value_name = "PORT", help_heading = NODES)]
    pub master_port: Option<OsString>,
    /// Wait this long for the master and the other nodes: 90s, 30m, 1h30m [default: 30m]
    #[arg(long, value_name = "DURATION", help_heading = NODES)]
    pub wait_timeout: Option<OsString>,
    /// What WORLD_SIZE counts when no other variable tells: auto, nodes or processes [default: auto]
    #[arg(long, value_name = "WHAT", help_heading = NODES)]
    pub world_size_counts: Option<OsString>,
    /// torchrun's rendezvous: static (ranks in node order) or c10d [default: static]
    #[arg(long, value_name = "BACKEND", help_heading = NODES)]
    pub rdzv: Option<OsString>,
    /// Whether the nodes agree on one plan before the start: auto, off or required [default: auto]
    #[arg(long, value_name = "MODE", help_heading = NODES)]
    pub muster: Option<OsString>,
    /// Meet the other nodes on this port of node 0 [default: the master port]
    #[arg(long, value_name = "PORT", help_heading = NODES)]
    pub muster_port: Option<OsString>,
    /// Allow running inside torchrun or a similar launcher: start a separate job on this node and
    /// ignore the outer launcher's variables
    #[arg(long, help_heading = NODES)]
    pub nested: bool,

    /// Processes per node: auto (the most that the GPUs and the layout allow; 1 without GPUs), gpu
    /// (at most one per GPU), cpu (at most one per CPU) or a number [default: auto]
    #[arg(long, value_name = "auto|gpu|cpu|N", help_heading = LAYOUT)]
    pub nproc_per_node: Option<OsString>,
    /// Refuse to start with fewer processes per node
    #[arg(long, value_name = "N", help_heading = LAYOUT)]
    pub min_nproc: Option<OsString>,
    /// What the ranks compute on: auto, gpu or cpu [default: auto]
    #[arg(long, value_name = "DEVICE", help_heading = LAYOUT)]
    pub device: Option<OsString>,
    /// Which CPUs a rank may run on: none (all that the container has) or numa (those of its GPU's
    /// NUMA node) [default: none]
    #[arg(long, value_name = "HOW", help_heading = LAYOUT)]
    pub bind: Option<OsString>,
    /// How the parallel sizes must fit the world size: none, ulysses-world (Wan2.2) or ulysses-ring
    /// (Wan2.1, HunyuanVideo) [default: none]
    #[arg(long, value_name = "RULE", help_heading = LAYOUT)]
    pub layout: Option<OsString>,
    /// Attention heads of the model, which the ulysses size must divide
    #[arg(long, value_name = "N", help_heading = LAYOUT)]
    pub heads: Option<OsString>,

    /// Processes of earlier runs: kill (end what is proven to be left over), force (end all that
    /// run the script, as pkill -f does), report or off [default: kill]
    #[arg(long, value_name = "WHAT", help_heading = CHECKS)]
    pub stale: Option<OsString>,
    /// Override the severity of a check: fail, warn or off, such as shm.size=fail; repeatable
    #[arg(long, value_name = "ID=WHAT", help_heading = CHECKS)]
    pub severity: Vec<OsString>,
    /// RDMA: auto (use it if possible), required (refuse to start without it) or off [default: auto]
    #[arg(long, value_name = "MODE", help_heading = CHECKS)]
    pub rdma: Option<OsString>,
    /// How to query the GPU driver: auto, file, memfd, nvidia-smi or off [default: auto]
    #[arg(long, value_name = "HOW", help_heading = CHECKS)]
    pub probe: Option<OsString>,
    /// Timeout for each query of the node (driver, file system, name lookup): 10s, 2m [default: 60s
    /// for the driver, 30s for files]
    #[arg(long, value_name = "DURATION", help_heading = CHECKS)]
    pub deadline: Option<OsString>,

    /// A job is said to stand still after this time without a sign of progress: 5m, 1h, or off
    /// [default: 5m]
    #[arg(long, value_name = "TIME", help_heading = RESTARTS)]
    pub hang_after: Option<OsString>,
    /// What is done with a job that stands still: report (it goes on), end (exit code 91) or restart
    /// (within --max-restarts) [default: report]
    #[arg(long, value_name = "WHAT", help_heading = RESTARTS)]
    pub on_hang: Option<OsString>,
    /// Hear that this node or job ends soon, tell all ranks and show the time left: auto (Slurm's end of
    /// the job, and the cloud whose machine this is), off, or slurm, gcp, aws, azure, alibaba, file:/PATH
    /// and signal:NAME with commas [default: auto]
    #[arg(long, value_name = "SOURCE,SOURCE", help_heading = RESTARTS)]
    pub notice: Option<OsString>,
    /// The signal that the main process of each rank gets with a notice, to save: TERM, USR1, USR2, INT,
    /// HUP or RTMIN+N [default: TERM]
    #[arg(long, value_name = "SIGNAL", help_heading = RESTARTS)]
    pub notice_signal: Option<OsString>,
    /// Give the notice so long before an end that is known, such as that of a Slurm job; by default at
    /// least the grace period [default: 2m]
    #[arg(long, value_name = "DURATION", help_heading = RESTARTS)]
    pub notice_lead: Option<OsString>,
    /// The folder in which the program saves: the newest checkpoint that every node can read is
    /// {checkpoint} in arguments, and RANKLAUNCH_RESUME_FROM
    #[arg(long, value_name = "DIR", help_heading = RESTARTS)]
    pub checkpoint_dir: Option<OsString>,
    /// The only format of checkpoints that counts [default: auto]
    #[arg(long, value_name = "FORMAT", help_heading = RESTARTS)]
    pub checkpoint_format: Option<OsString>,
    /// Where there is no checkpoint: omit leaves out the words and variables that name it, refuse
    /// starts nothing [default: omit]
    #[arg(long, value_name = "WHAT", help_heading = RESTARTS)]
    pub checkpoint_missing: Option<OsString>,
    /// End the job with code 93 after so many attempts in a row without a newer checkpoint
    /// [default: 3]
    #[arg(long, value_name = "N", help_heading = RESTARTS)]
    pub max_restarts_without_progress: Option<OsString>,
    /// Restart all nodes together at most this often [default: 0, or once for each of --spares]
    #[arg(long, value_name = "N", help_heading = RESTARTS)]
    pub max_restarts: Option<OsString>,
    /// Start again after this cause even if it would fail again the same way: an id that the verdict
    /// shows, such as cuda_oom or rank.exit; repeatable
    #[arg(long, value_name = "ID", help_heading = RESTARTS)]
    pub retry_on: Vec<OsString>,
    /// Never start again after this cause; repeatable
    #[arg(long, value_name = "ID", help_heading = RESTARTS)]
    pub no_retry_on: Vec<OsString>,
    /// Grace period from the first TERM to the last KILL [default: a little less than
    /// TerminationGracePeriodSeconds, or than 30s where that is not set]
    #[arg(long, value_name = "DURATION", help_heading = RESTARTS)]
    pub grace: Option<OsString>,

    /// Folder for logs [default: ./ranklaunch-logs, else
    /// $TMPDIR/ranklaunch-<uid>, else /tmp/ranklaunch-<uid>]
    #[arg(long, value_name = "DIR", help_heading = LOGS)]
    pub log_dir: Option<OsString>,
    /// Which earlier runs stay in the log folder: a number of runs, an age, a size, or several of them
    /// such as 20,14d,50GiB; a run that lives always stays [default: all]
    #[arg(long, value_name = "KEEP", help_heading = LOGS)]
    pub log_keep: Option<OsString>,
    /// Disk space for each rank's output, such as 256MiB [default: 256MiB]
    #[arg(long, value_name = "SIZE", help_heading = LOGS)]
    pub log_cap_rank: Option<OsString>,
    /// Disk space for this node's output, such as 4GiB [default: 4GiB]
    #[arg(long, value_name = "SIZE", help_heading = LOGS)]
    pub log_cap_node: Option<OsString>,
    /// Ranks shown on the console: all, rank0, errors (stderr only) or none [default: all]
    #[arg(long, value_name = "WHICH", help_heading = LOGS)]
    pub console: Option<OsString>,
    /// Prefix of console lines: rank or none [default: rank]
    #[arg(long, value_name = "WHAT", help_heading = LOGS)]
    pub console_prefix: Option<OsString>,
    /// Colours: auto (at a terminal, unless NO_COLOR is set), always or never [default: auto]
    #[arg(long, value_name = "WHEN", help_heading = LOGS)]
    pub color: Option<OsString>,
    /// Also show the details of the plan: hardware, variables, all remarks
    #[arg(short, long, help_heading = LOGS)]
    pub verbose: bool,

    /// Serve /metrics, /status, /healthz and /readyz of this node at this port of the loopback address, or
    /// at ADDRESS:PORT
    #[arg(long, value_name = "ADDR", help_heading = STATUS)]
    pub http: Option<OsString>,
    /// Lines of rank 0 that tell how far the job is, for the goodput, top and the status of a Kubeflow TrainJob: auto,
    /// off, or a regular expression with the groups step and total, or percent [default: auto]
    #[arg(long, value_name = "PATTERN", help_heading = STATUS)]
    pub progress: Option<OsString>,
    /// Also write the verdict to this file [default: /dev/termination-log, if it exists]
    #[arg(long, value_name = "PATH", help_heading = STATUS)]
    pub termination_log: Option<OsString>,

    /// Language of all messages: en or zh [default: from LC_ALL, LC_MESSAGES, LANG]
    #[arg(long, value_name = "LANG", help_heading = MESSAGES)]
    pub lang: Option<OsString>,
    /// Read the node's files below this folder instead of / (for bug reports and tests)
    #[arg(long, value_name = "DIR", help_heading = MESSAGES)]
    pub host_root: Option<OsString>,

    /// The program and its arguments
    ///
    /// A .py file, -m MODULE, or any other command behind --. {ulysses_size}, {ring_size}, {world_size},
    /// {nproc_per_node}, {nnodes}, {node_rank}, {run_id}, {timestamp}, {checkpoint}, {checkpoint_step}
    /// and the names of the profile's [[select]] are replaced; {{name}} is the literal. With a profile, arguments
    /// without a program are appended to the profile's.
    #[arg(last = true, value_name = "SCRIPT ARGS")]
    pub program: Vec<OsString>,
    /// Names of the options that were given more than once, and how often.
    #[arg(skip)]
    pub repeated: Vec<(String, usize)>,
    /// Options of other launchers that change nothing, with their values.
    #[arg(skip)]
    pub unused: Vec<(String, OsString)>,
}
