//! External evidence for why a job ended: the driver and the kernel.
//!
//! Takes what watches them; gives their [`Statement`]s to the diagnosis, at any time.

use std::sync::Arc;
use std::time::Instant;

use super::driver_watch::{DriverWatch, LiveGpus};
use super::kernel_watch::KernelWatch;
use super::statements::{Statement, watched_gpus};
use linux::host::Host;
use node::observe::GpuSource;
use node::observe::LoggedKills;
use plan::Plan;
use settings::ProbeMode;
use text::rank::GlobalRank;
use verdict::outcome::Planned;

/// All of them, of one attempt.
#[derive(Debug, Default)]
pub(super) struct Witnesses {
    driver: Option<DriverWatch>,
    kernel: Option<KernelWatch>,
}

impl Witnesses {
    /// Those of this node for a plan. The driver only where NVML counted the GPUs.
    pub(super) async fn start(
        host: &Arc<Host>,
        mode: ProbeMode,
        plan: &Plan,
        planned: Planned,
    ) -> Witnesses {
        let gpus = watched_gpus(plan, planned);
        let kernel = KernelWatch::start(host, gpus.clone());
        let asks_driver = plan.gpu_source == GpuSource::Nvml && !gpus.is_empty();
        let driver = if asks_driver { DriverWatch::start(host, mode, gpus).await } else { None };
        Witnesses { driver, kernel }
    }

    /// The process that watches the driver, a child of ours.
    pub(super) fn companion(&self) -> Option<i32> {
        self.driver.as_ref()?.pid()
    }

    /// Handle that asks the driver what the GPUs do.
    pub(super) fn live_gpus(&self) -> Option<LiveGpus> {
        self.driver.as_ref().map(DriverWatch::live_gpus)
    }

    /// A rank has started.
    pub(super) fn began(&self, rank: GlobalRank, pid: i32) {
        if let Some(kernel) = &self.kernel {
            kernel.began(rank, pid);
        }
    }

    /// Statements of all witnesses up to now.
    pub(super) fn statements(&self) -> Vec<Statement> {
        let driver = self.driver.iter().flat_map(DriverWatch::statements);
        driver.chain(self.kernel.iter().flat_map(KernelWatch::statements)).collect()
    }

    /// Kills for memory in the kernel's log; empty if the log is not readable.
    pub(super) fn oom_kills(&self) -> LoggedKills {
        self.kernel.as_ref().map(KernelWatch::oom_kills).unwrap_or_default()
    }

    /// When the driver first said something while the ranks ran.
    pub(super) fn first(&self) -> Option<Instant> {
        self.driver.as_ref().and_then(DriverWatch::first)
    }
}
