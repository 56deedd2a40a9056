//! The decisions of node 0 for all nodes: the plan of the job, and whether all start again.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::cause::Cause;
use text::run_id::RunId;

/// The agreed plan. Every node renders its own command line from it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agreement {
    pub nnodes: u32,
    pub nproc: u32,
    /// nnodes × nproc; also the key of the profile's `[[select]]` rows.
    pub world: u32,
    pub ulysses: u32,
    pub ring: u32,
    pub heads: Option<u32>,
    pub master_port: u16,
    /// `<job>-<UTC time>-<4 hex>`
    pub run_id: String,
    /// `20250102-030405`
    pub timestamp: String,
    /// Number of the attempt from 0, the same on all nodes.
    pub attempt: u32,
}

impl Agreement {
    /// Run id and timestamp become folder names and arguments.
    pub fn is_sound(&self) -> bool {
        RunId::is_sound(&self.run_id)
            && RunId::is_sound(&self.timestamp)
            && self.nproc > 0
            && self.nnodes.checked_mul(self.nproc) == Some(self.world)
    }
}

/// The order to start all nodes again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Again {
    /// The number of the coming attempt.
    pub attempt: u32,
    /// Milliseconds until its start.
    pub pause: u64,
}

/// Node 0's restart policy: takes the first failure of an attempt and the duration of the attempt.
pub type Decide = Box<dyn FnMut(&Cause, Duration) -> Option<Again> + Send>;
