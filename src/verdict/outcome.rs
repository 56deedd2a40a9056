//! Ends of processes: the data that supervision gives to the report.

use std::fmt;
use std::process::ExitStatus;
use std::time::{Duration, Instant, SystemTime};

use std::os::unix::process::ExitStatusExt;

use serde::{Deserialize, Serialize};

use text::lang::Text;
use text::rank::{GlobalRank, LocalRank, RankId};
use text::text;

/// The end of one process, as wait(2) reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum End {
    /// exit(n), 0–255.
    Code(i32),
    /// Killed by signal n.
    Signal(i32),
}

impl End {
    pub fn success(self) -> bool {
        self == End::Code(0)
    }

    /// The code that a shell shows: n, or 128 + signal.
    pub const fn shell_code(self) -> i32 {
        match self {
            End::Code(code) => code,
            End::Signal(signal) => 128 + signal,
        }
    }

    /// From the status of a child of std; None for a stop or continue.
    pub fn of(status: ExitStatus) -> Option<End> {
        status.code().map(End::Code).or_else(|| status.signal().map(End::Signal))
    }

    /// From a raw wait status; None for a stop or continue.
    pub fn from_wait(status: rustix::process::WaitStatus) -> Option<End> {
        status.exit_status().map(End::Code).or_else(|| status.terminating_signal().map(End::Signal))
    }
}

/// A shell's exit code for a program that it cannot execute: 127 if it does not exist, else 126.
pub fn exec_code(error: &std::io::Error) -> i32 {
    if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 }
}

/// The reason for cancelling a phase without ranks: a stop from outside, a notice of one, or the loss of the guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Halt {
    Signal(i32),
    GuardGone,
    /// Word came that this node, or the whole job, is to end soon.
    Noticed,
}

/// One rank of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankEnd {
    pub id: RankId,
    /// Pid of the user's process; None when it never started.
    pub pid: Option<i32>,
    /// None: its shim was lost without a report, and we ended the rank.
    pub end: Option<End>,
    /// Time of the end, by this node's clock.
    pub at: SystemTime,
}

impl RankEnd {
    pub fn failed(&self) -> bool {
        !self.end.is_some_and(End::success)
    }
}

/// The reason for ending the job before its ranks ended by themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// The guard received this stop signal.
    Signal(i32),
    /// This rank failed, so the others were stopped.
    RankFailed(GlobalRank),
    /// The engine ended while ranks of it were alive.
    EngineGone(End),
    /// The guard is lost.
    GuardGone,
    /// A rank of another node failed, or the node was lost.
    OtherNode,
    /// This node stood still for so long that the others went on without it: a save of its ranks would come between theirs.
    GivenUp,
    /// The job stood still, and is ended for that.
    StoodStill,
    /// A rule of the profile that ends the job was broken.
    RuleBroken,
    /// Word came that this node, or the whole job, is to end soon, and the ranks handle a signal by which they save.
    Noticed(NoticedStop),
}

/// The stop that follows a notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoticedStop {
    /// The signal for the main processes, which they handle.
    pub signal: i32,
    /// Time from the beginning of the stop to the deadline of the notice.
    pub within: Duration,
}

/// The reason for SIGKILL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KillReason {
    /// The ranks' part of the grace period is over.
    Grace,
    /// A second interrupt.
    Interrupt,
    /// The guard is lost.
    GuardGone,
    /// The other nodes go on without this one.
    GivenUp,
}

/// A process that outlived SIGKILL: it sleeps in the kernel, or we may not signal it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Survivor {
    pub pid: i32,
    /// Escaped for printing.
    pub comm: String,
    /// kill(2) is refused: it belongs to another user, and we have no CAP_KILL.
    pub forbidden: bool,
    pub state: char,
    /// Kernel function in which the process sleeps, if readable.
    pub wait_channel: Option<String>,
}

/// The process that one shim runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RankUnit {
    #[default]
    Rank,
    /// The user's own launcher, once per node; its number is the node rank.
    Command,
}

/// The process whose output a pipe carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Owner {
    Engine,
    Rank(GlobalRank),
    /// The process of engine `command` on the node with this rank.
    Command(u32),
}

impl Owner {
    /// The name of the owner in a sentence.
    pub fn text(self) -> Text {
        match self {
            Owner::Engine => text!("the engine", "启动引擎"),
            Owner::Rank(rank) => text!("rank {rank}", "rank {rank}"),
            Owner::Command(node) => text!("the command of node {node}", "节点 {node} 的命令"),
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Owner::Engine => out.write_str("engine"),
            Owner::Rank(rank) => write!(out, "rank {rank}"),
            Owner::Command(node) => write!(out, "command of node {node}"),
        }
    }
}

/// Standard output or standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stream {
    Out,
    Err,
}

/// The ranks that the engine was asked to start on this node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Planned {
    pub what: RankUnit,
    /// The first rank.
    pub first: GlobalRank,
    /// Number of ranks.
    pub local: u32,
    /// The world size; None if it is not fixed (an elastic job) or the program starts ranks of
    /// its own.
    pub world: Option<u32>,
}

impl Planned {
    /// The rank with the number `local` on this node.
    pub fn rank(&self, local: LocalRank) -> RankId {
        RankId { global: self.first.plus(local), local }
    }

    /// The process whose output the shim with this number carries.
    pub fn owner(&self, number: GlobalRank) -> Owner {
        match self.what {
            RankUnit::Rank => Owner::Rank(number),
            RankUnit::Command => Owner::Command(number.0),
        }
    }

    /// Whether a rank with this WORLD_SIZE is in another world. Without the variable torch's
    /// frameworks assume a single process.
    pub fn is_other(&self, world_size: Option<u32>) -> bool {
        self.world.is_some_and(|world| world_size.unwrap_or(1) != world)
    }
}

/// A rank whose world size is not the planned one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OtherWorld {
    pub rank: GlobalRank,
    /// WORLD_SIZE of the rank; None: the variable is not set.
    pub world_size: Option<u32>,
}

/// An event to report while the job runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    EngineStarted {
        pid: i32,
    },
    RankStarted {
        rank: RankId,
        pid: i32,
    },
    /// A program is not executed yet after this time: its mount does not answer.
    NotExecuted {
        /// None: the engine, or a process of ours.
        rank: Option<RankId>,
        program: String,
        after: Duration,
        /// Time after which the program is given up; None: only when the job is stopped.
        given_up: Option<Duration>,
    },
    /// A rank started with another world size than the planned one.
    OtherWorld(OtherWorld),
    /// SIGKILL killed a process in a control group that is not ours; reported before the end of the
    /// process.
    KilledIn {
        pid: i32,
        /// The control group of version 2, as /proc names it.
        group: String,
    },
    RankEnded {
        rank: RankId,
        end: Option<End>,
    },
    EngineEnded {
        end: End,
    },
    /// A stop signal came while the ranks save after a notice: so much time is left to them now.
    Sooner {
        signal: i32,
        within: Duration,
    },
    Stopping {
        reason: StopReason,
    },
    /// SIGKILL is sent to the remaining processes.
    Killing {
        why: KillReason,
    },
    /// Leftovers of a rank, the engine or any rank are being ended.
    Leftovers {
        /// The rank that left them; None if unknown.
        rank: Option<RankId>,
        /// Names such as `sleep (31)`, escaped for printing; at most [`Notice::NAMED`].
        names: Vec<String>,
        count: usize,
        /// Time until they are killed, in milliseconds.
        grace_ms: u64,
    },
    /// The streams of this rank could not be received, so its output is lost.
    Unread {
        rank: RankId,
    },
}

impl Notice {
    /// Number of leftovers that are named.
    pub const NAMED: usize = 5;
}

/// The end of the whole launch on this node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// In the order of the global rank.
    pub ranks: Vec<RankEnd>,
    /// The first rank that failed by itself, not because of a stop.
    pub first_failure: Option<GlobalRank>,
    /// The ranks that the engine was asked to start.
    pub planned: Planned,
    /// The first rank that saw another world size than the planned one.
    pub other_world: Option<OtherWorld>,
    /// None for engine `direct` and `command`, whose ranks are our own children.
    pub engine: Option<End>,
    pub stop: Option<StopReason>,
    /// Start of the stop, from which an `EndBudget` counts. None if the ranks ended by themselves.
    pub stopped_at: Option<Instant>,
    /// Time that the stop may take, after a notice; None: the grace period.
    pub stop_within: Option<Duration>,
    /// A stop was requested from outside or the guard is lost, so no attempt may follow.
    pub told: bool,
    /// The rank's program could not be executed: program and errno.
    pub not_executed: Option<(String, i32)>,
    pub survivors: Vec<Survivor>,
}
