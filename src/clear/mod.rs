//! Processes that an earlier run left behind.
//!
//! Owns the question which processes are stale and the act of ending them.
//! Takes a [`Request`]: the job's program, its GPUs, its master port. Gives what
//! was [`Found`], each with the rule that matched, and a [`ClearReport`] or a
//! refusal that names what cannot be ended. Must never signal a process that is
//! not proven to be a leftover of a job like ours: not ourselves or what is
//! above us, not another user's, not another container's, none newer than us,
//! none that merely has the script's name among its arguments, and nothing of a
//! job whose ranklaunch still lives.

mod find;
mod identity;
mod kill;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::time::Duration;

pub use find::find;
pub use kill::clear;

use crate::lang::Text;
use crate::settings::StaleMode;
use crate::text;

pub use crate::procfs::JOB_MARK as MARKER;

/// What the coming launch needs to be free.
#[derive(Debug, Clone)]
pub struct Request {
    /// The job's script, absolute, links resolved.
    pub script: Option<PathBuf>,
    /// The job's module, for `-m NAME`.
    pub module: Option<String>,
    /// N of the `/dev/nvidiaN` that this job will use; empty while they are unknown.
    pub gpu_minors: Vec<u32>,
    /// The port that this node must bind; None on the other nodes.
    pub master_port: Option<u16>,
    pub mode: StaleMode,
    /// Between TERM and KILL.
    pub term_wait: Duration,
    /// Between KILL and giving up.
    pub kill_wait: Duration,
}

impl Request {
    /// Nothing known yet, with the usual patience: 10 s after TERM, 20 s after KILL.
    pub fn new(mode: StaleMode) -> Request {
        Request {
            script: None,
            module: None,
            gpu_minors: Vec::new(),
            master_port: None,
            mode,
            term_wait: Duration::from_secs(10),
            kill_wait: Duration::from_secs(20),
        }
    }
}

/// A process that a rule matched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub pid: i32,
    /// With the pid, the process's identity.
    pub start_ticks: u64,
    /// Arguments with secrets masked.
    pub command: String,
    pub rule: Rule,
    pub judgement: Judgement,
}

/// Why a process was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rule {
    /// It runs the job's script or module.
    Program,
    /// It is torchrun, accelerate or deepspeed.
    Launcher,
    /// It carries the marker of a ranklaunch job.
    Marker { job: String },
    /// It carries TORCHELASTIC_RUN_ID, which only torchrun's ranks have.
    ElasticRank { run_id: String },
    /// It is below, or in the session of, one that is ended.
    PartOf { root: i32 },
    /// It has a GPU of this job open.
    HoldsGpu { minor: u32 },
    /// It listens on the master port.
    HoldsPort { port: u16 },
}

impl Rule {
    pub fn text(&self) -> Text {
        match self {
            Rule::Program => text!("runs this job's program", "运行的正是本任务的程序"),
            Rule::Launcher => text!("is a launcher of ranks", "是 rank 的启动器"),
            Rule::Marker { job } => {
                text!("carries {MARKER} of job {job}", "带有任务 {job} 的 {MARKER} 标记")
            }
            Rule::ElasticRank { run_id } => text!(
                "is a torchrun rank (TORCHELASTIC_RUN_ID={run_id})",
                "是 torchrun 的 rank（TORCHELASTIC_RUN_ID={run_id}）"
            ),
            Rule::PartOf { root } => {
                text!("belongs to the process tree of {root}", "属于进程 {root} 的进程树")
            }
            Rule::HoldsGpu { minor } => {
                text!("has /dev/nvidia{minor} open", "打开着 /dev/nvidia{minor}")
            }
            Rule::HoldsPort { port } => {
                text!("listens on master port {port}", "正在监听主端口 {port}")
            }
        }
    }
}

/// What is to be done, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Judgement {
    /// End it.
    Kill(Text),
    /// Leave it alone and say so.
    Report(Text),
}

impl Found {
    pub fn is_kill(&self) -> bool {
        matches!(self.judgement, Judgement::Kill(_))
    }

    /// One line for a person.
    pub fn text(&self) -> Text {
        let Found { pid, command, .. } = self;
        let rule = self.rule.text();
        let (Judgement::Kill(why) | Judgement::Report(why)) = &self.judgement;
        let (en, zh) = match self.judgement {
            Judgement::Kill(_) => ("stale", "残留进程"),
            Judgement::Report(_) => ("left alone", "不处理"),
        };
        Text::new(
            format!("{en}: pid {pid} ({command}) {}: {}", rule.en, why.en),
            format!("{zh}：pid {pid}（{command}）{}：{}", rule.zh, why.zh),
        )
    }
}

/// What the step did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClearReport {
    pub found: Vec<Found>,
    /// Pids that have gone since.
    pub ended: Vec<i32>,
    /// From the first signal to the last exit.
    pub waited: Duration,
}
