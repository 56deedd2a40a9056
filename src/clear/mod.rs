//! Processes that an earlier run left behind.
//!
//! Owns the question which processes are stale and the act of ending them. Takes a
//! [`Request`]: the job's program, its GPUs, its master port. Gives what was [`Found`], each
//! with the rule that matched and its [`Fate`], and a [`ClearReport`] or a refusal that names
//! what cannot be ended.
//!
//! The rule. A script that runs may be somebody's healthy job, and `nohup` leaves exactly such
//! processes: orphaned and well. So by default ([`StaleMode::Kill`]) only proof ends a process,
//! with all that it started:
//! - it carries our marker ([`MARKER`]) of a run whose agent is dead; the agent is known by pid
//!   and start time, since pids are used again;
//! - or it runs this job's script, of our user and in our container, has a rank's variables, and
//!   its launcher is dead: PID 1 or a subreaper adopted it. What is proof of that stands in
//!   [`orphan`].
//!
//! Everything else that runs the script, has a GPU of the job open or holds the master port is
//! reported. `--stale force` ([`StaleMode::Force`]) ends what runs the script whoever looks after
//! it, with its launcher and the launcher's tree, as `pkill -f SCRIPT` did.
//!
//! Never ended: ourselves and what is above us, another user's, another container's, what began
//! after us, PID 1, a shell that a person sits at, and what merely names the script (editors,
//! `grep`, `sh -c`). Reads the arguments by their structure, never as text.

mod find;
mod identity;
mod kill;
mod orphan;
mod spread;
mod tell;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::time::Duration;

pub use find::find;
pub use kill::clear;
pub use tell::shown_age;

use crate::lang::Text;
use crate::observe::Claim;
use crate::settings::StaleMode;

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
    /// Whom the driver names as users of these GPUs. Pids of another namespace may be among
    /// them, so each is asked for its open devices.
    pub gpu_users: Vec<i32>,
    /// The port that this node must bind; None on the other nodes.
    pub master_port: Option<u16>,
    /// Of a platform that starts a launcher per rank: the variables that all of them share.
    /// What runs below another of them is of this very job.
    pub siblings: Vec<Claim>,
    pub mode: StaleMode,
    /// Only this process, with what is above and below it; the others wait.
    pub only: Option<i32>,
    /// Between TERM and KILL.
    pub term_wait: Duration,
    /// Between KILL and giving up.
    pub kill_wait: Duration,
}

impl Request {
    /// Nothing known yet, with the usual waits: 10 s after TERM, 20 s after KILL.
    pub fn new(mode: StaleMode) -> Request {
        Request {
            script: None,
            module: None,
            gpu_minors: Vec::new(),
            gpu_users: Vec::new(),
            master_port: None,
            siblings: Vec::new(),
            mode,
            only: None,
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
    /// Since it began; None where /proc/uptime cannot be read.
    pub age: Option<Duration>,
    pub parent: Parent,
    pub rule: Rule,
    /// What of this job's it holds.
    pub holds: Vec<Held>,
    pub fate: Fate,
    /// An ancestor of it shares its fate, so that a line for that one is enough.
    pub inner: bool,
}

/// A process's parent as a person knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parent {
    /// 0: outside of this PID namespace, as after `docker exec`.
    pub pid: i32,
    /// The kernel's short name, escaped.
    pub name: String,
}

/// Something that this job needs for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// It has `/dev/nvidiaN` of this job open.
    Gpu(u32),
    /// It listens on the master port.
    Port(u16),
}

/// Why a process was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rule {
    /// It runs the job's script or module.
    Program,
    /// It is a launcher of the job's script or module.
    Launcher,
    /// It carries the marker of a ranklaunch job.
    Marker { job: String },
    /// It is below, or in the session of, one that is ended, or starts what is ended.
    PartOf { root: i32 },
    /// It holds what the job needs, and nothing else is known of it.
    Holds,
}

/// Which mode ends it, and why that one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// Proven to be left over: ended by `kill` and `force`.
    Leftover(Text),
    /// Perhaps a healthy job: ended by `force` alone.
    Forced(Text),
    /// Ended by no mode.
    Spared(Text),
}

impl Found {
    /// Whether this mode ends it.
    pub fn is_ended_by(&self, mode: StaleMode) -> bool {
        match (&self.fate, mode) {
            (_, StaleMode::Report | StaleMode::Off) | (Fate::Spared(_), _) => false,
            (Fate::Leftover(_), StaleMode::Kill | StaleMode::Force) => true,
            (Fate::Forced(_), mode) => mode == StaleMode::Force,
        }
    }

    pub fn holds_port(&self) -> bool {
        self.holds.iter().any(|held| matches!(held, Held::Port(_)))
    }

    pub fn holds_gpu(&self) -> bool {
        self.holds.iter().any(|held| matches!(held, Held::Gpu(_)))
    }

    pub fn why(&self) -> &Text {
        let (Fate::Leftover(why) | Fate::Forced(why) | Fate::Spared(why)) = &self.fate;
        why
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
