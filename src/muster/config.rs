//! The configuration of one node in a muster.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::protocol::{Hello, JobKey, MemberKind, Memory, Purpose, Secret};
use linux::pace::{Live, Pace};

/// The action to take if another node runs without ranklaunch or without a muster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Without {
    /// When proven, this node continues without a muster too (`--muster auto`).
    Follow,
    /// When proven, the launch is refused (`--muster required`).
    Refuse,
    /// The other node does not belong to this job, whose nodes all run one command or agreed before.
    Wait,
}

/// The configuration of one node.
#[derive(Clone)]
pub struct Config {
    pub purpose: Purpose,
    pub unit: MemberKind,
    pub node: u32,
    pub nnodes: u32,
    /// The names of all nodes in their order if `--nodes` lists them; otherwise empty.
    pub hosts: Vec<String>,
    /// The platform's id of the job, if it has one. Without an id, port and node count identify the job.
    pub job: Option<String>,
    pub master_addr: String,
    /// The port on which node 0 listens: the master port, or `--muster-port`.
    pub port: u16,
    /// Maximum time that nodes wait for each other.
    pub wait_timeout: Duration,
    /// The times at which a wait prints the missing nodes.
    pub pace: Pace,
    /// The display that shows the progress in place of lines.
    pub live: Option<Live>,
    /// Network partitions shorter than this are survived.
    pub peer_timeout: Duration,
    pub secret: Option<Secret>,
    pub without: Without,
    /// The grace period of the ranks. The store of an attempt may live that much longer.
    pub grace: Duration,
    /// The number of nodes came from WORLD_SIZE alone, which counts processes on some platforms.
    pub is_world_size: bool,
    /// This node's memory, read for every heartbeat.
    pub memory: Arc<dyn Fn() -> Option<Memory> + Send + Sync>,
}

impl fmt::Debug for Config {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Config")
            .field("node", &self.node)
            .field("nnodes", &self.nnodes)
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

impl Config {
    pub fn key(&self) -> JobKey {
        JobKey { job: self.job.clone(), port: self.port, nnodes: self.nnodes }
    }

    /// The number of other nodes.
    pub fn others(&self) -> usize {
        usize::try_from(self.nnodes.saturating_sub(1)).unwrap_or(usize::MAX)
    }

    /// The first frame of this node.
    pub fn hello(&self, hostname: &str) -> Hello {
        Hello {
            node: self.node,
            key: self.key(),
            hostname: hostname.to_owned(),
            purpose: self.purpose,
            resume: None,
        }
    }
}
