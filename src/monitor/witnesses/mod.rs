//! External evidence for why a job ended: the driver and the kernel.
//!
//! Takes the GPUs and the ranks of a node; gives their [`Statement`]s to the diagnosis, at any time.

mod driver;
mod kernel;
mod statement;

use std::sync::Arc;
use std::time::Instant;

pub use driver::LiveGpus;
pub use statement::{Statement, WatchedGpu};

use driver::DriverWatch;
use kernel::KernelWatch;
use linux::host::Host;
use node::observe::LoggedKills;
use settings::ProbeMode;
use text::rank::GlobalRank;

/// All witnesses of one attempt.
#[derive(Debug, Default)]
pub struct Witnesses {
    driver: Option<DriverWatch>,
    kernel: Option<KernelWatch>,
}

impl Witnesses {
    /// Begins to watch these GPUs and the kernel's log. `asks_driver`: NVML counted the GPUs.
    pub async fn start(
        host: &Arc<Host>,
        mode: ProbeMode,
        gpus: Vec<WatchedGpu>,
        asks_driver: bool,
    ) -> Witnesses {
        let kernel = KernelWatch::start(host, gpus.clone());
        let asks_driver = asks_driver && !gpus.is_empty();
        let driver = if asks_driver { DriverWatch::start(host, mode, gpus).await } else { None };
        Witnesses { driver, kernel }
    }

    /// The process that watches the driver, a child of ours.
    pub fn companion(&self) -> Option<i32> {
        self.driver.as_ref()?.pid()
    }

    /// Handle that asks the driver about the activity of the GPUs.
    pub fn live_gpus(&self) -> Option<LiveGpus> {
        self.driver.as_ref().map(DriverWatch::live_gpus)
    }

    /// A rank has started.
    pub fn began(&self, rank: GlobalRank, pid: i32) {
        if let Some(kernel) = &self.kernel {
            kernel.began(rank, pid);
        }
    }

    /// Statements of all witnesses up to now.
    pub fn statements(&self) -> Vec<Statement> {
        let driver = self.driver.iter().flat_map(DriverWatch::statements);
        driver.chain(self.kernel.iter().flat_map(KernelWatch::statements)).collect()
    }

    /// Kills for memory in the kernel's log; empty if the log is not readable.
    pub fn oom_kills(&self) -> LoggedKills {
        self.kernel.as_ref().map(KernelWatch::oom_kills).unwrap_or_default()
    }

    /// Time of the driver's first statement while the ranks ran.
    pub fn first(&self) -> Option<Instant> {
        self.driver.as_ref().and_then(DriverWatch::first)
    }
}
