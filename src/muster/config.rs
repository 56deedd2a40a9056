//! How one node takes part in a muster.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::muster::protocol::{Hello, JobKey, Memory, Purpose, Secret, Unit};
use crate::pace::Pace;

/// What a node that runs without ranklaunch, or without a muster, means to this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Without {
    /// Once it is proven, this node goes on alone as well (`--muster auto`).
    Follow,
    /// Once it is proven, the launch is refused (`--muster required`).
    Refuse,
    /// It is no node of this job: all of them run one command, or agreed before.
    Wait,
}

/// How one node takes part.
#[derive(Clone)]
pub struct Config {
    pub purpose: Purpose,
    pub unit: Unit,
    pub node: u32,
    pub nnodes: u32,
    /// The platform's id of the job, where it has one; else port and node count tell jobs apart.
    pub job: Option<String>,
    pub master_addr: String,
    /// Where node 0 listens: the master port, or `--muster-port`.
    pub port: u16,
    /// How long nodes wait for each other.
    pub wait_timeout: Duration,
    /// When a wait says who is missing.
    pub pace: Pace,
    /// A partition that is shorter is survived.
    pub peer_timeout: Duration,
    pub secret: Option<Secret>,
    pub without: Without,
    /// The grace of the ranks: so long may the store of an attempt live that is being ended.
    pub grace: Duration,
    /// The number of nodes is a bare WORLD_SIZE, which counts processes on some platforms.
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

    /// How many nodes take part beside this one.
    pub(crate) fn others(&self) -> usize {
        usize::try_from(self.nnodes.saturating_sub(1)).unwrap_or(usize::MAX)
    }

    /// What this node says first.
    pub(crate) fn hello(&self, hostname: &str) -> Hello {
        Hello {
            node: self.node,
            key: self.key(),
            hostname: hostname.to_owned(),
            purpose: self.purpose,
        }
    }
}
