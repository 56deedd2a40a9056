//! The checks: id, what a failure exits with, default severity, and who judges.
//!
//! A new check is one row here and one function beside it.

use super::{
    Evidence, Finding, gpu_health, gpus, limits, network, nodes, signals, software, storage,
};
use crate::lang::Text;
use crate::settings::{MusterMode, Rdma};
use crate::text;
use crate::verdict::{Severity, Verdict};

/// One check.
#[expect(missing_debug_implementations, reason = "a row with a function over private types")]
pub struct Row {
    pub id: &'static str,
    pub verdict: Verdict,
    pub usual: Usual,
    pub(super) judge: fn(&Evidence<'_>) -> Vec<Finding>,
}

/// The severity of a check where neither the user nor a profile says.
#[derive(Debug, Clone, Copy)]
pub enum Usual {
    Fail,
    Warn,
    /// It fails where this holds, and warns elsewhere; the same in words (English, Chinese).
    FailWhere(fn(&Evidence<'_>) -> bool, &'static str, &'static str),
}

impl Usual {
    pub(super) fn severity(self, evidence: &Evidence<'_>) -> Severity {
        match self {
            Fail => Severity::Fail,
            FailWhere(is_so, ..) if is_so(evidence) => Severity::Fail,
            Warn | FailWhere(..) => Severity::Warn,
        }
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Fail => "fail",
            Warn | FailWhere(..) => "warn",
        }
    }

    /// Where it fails although it warns elsewhere.
    pub fn fails_where(self) -> Option<Text> {
        match self {
            Fail | Warn => None,
            FailWhere(_, en, zh) => Some(Text::new(en, zh)),
        }
    }

    /// `fail`, `warn`, `warn; fail where …`.
    pub fn words(self) -> Text {
        let usual = self.as_str();
        match self.fails_where() {
            None => Text::same(usual),
            Some(Text { en, zh }) => text!("{usual}; fail {en}", "{usual}；{zh}为 fail"),
        }
    }
}

use Usual::{Fail, FailWhere, Warn};

/// Beside somebody else's work a job runs slowly; where nothing fits any more, not at all.
const FAIL_ON_FULL_GPUS: Usual =
    FailWhere(gpus::is_full, "where no further process fits", "再容不下任何进程时");

/// Without locked memory no buffer can be registered, so required RDMA is refused.
const FAIL_WITH_REQUIRED_RDMA: Usual = FailWhere(
    |evidence| evidence.settings.rdma.value == Rdma::Required,
    "with --rdma required",
    "使用 --rdma required 时",
);

/// As a launch does it: what differs is said, and refused where a muster is required.
const FAIL_WITH_REQUIRED_MUSTER: Usual = FailWhere(
    |evidence| evidence.settings.muster.value == MusterMode::Required,
    "with --muster required",
    "使用 --muster required 时",
);

/// `row!(id, verdict, fail | warn | where it fails, judge)`
macro_rules! row {
    ($id:literal, $verdict:ident, $usual:ident, $judge:expr) => {
        Row { id: $id, verdict: Verdict::$verdict, usual: row!(@ $usual), judge: $judge }
    };
    (@ fail) => { Fail };
    (@ warn) => { Warn };
    (@ $place:ident) => { $place };
}

/// In the order of the report; the first failure decides the exit code.
pub const TABLE: &[Row] = &[
    // Before the count: GPUs are missing because of their fault.
    row!("gpu.fault", GpuFault, fail, gpus::faults),
    row!("gpu.fabric", GpuFabric, fail, gpus::fabric),
    row!("gpu.count", GpuCount, fail, gpus::count),
    row!("gpu.busy", Stale, FAIL_ON_FULL_GPUS, gpus::busy),
    row!("gpu.health", GpuFault, warn, gpu_health::health),
    row!("gpu.link", GpuFault, warn, gpu_health::links),
    row!("gpu.mode", GpuFault, warn, gpu_health::modes),
    row!("hami.limit", Limit, warn, gpus::hami),
    row!("shm.size", Limit, warn, limits::shm),
    row!("shm.leftovers", Limit, warn, storage::leftovers),
    row!("memlock", Limit, FAIL_WITH_REQUIRED_RDMA, limits::memlock),
    row!("nofile", Limit, warn, limits::nofile),
    row!("pids.limit", Limit, warn, limits::pids),
    row!("stack.size", Limit, warn, limits::stack),
    row!("memory.limit", Limit, warn, limits::memory),
    row!("cpu.limit", Limit, warn, limits::cpus),
    row!("disk.logs", Limit, warn, storage::logs),
    row!("disk.space", Limit, warn, storage::space),
    row!("storage.alive", Limit, warn, storage::storage),
    row!("signals.term", Limit, warn, signals::first_process),
    row!("clock.sync", Limit, warn, limits::clock),
    row!("port.free", PortInUse, fail, network::port),
    row!("master.resolve", MasterName, warn, network::resolve),
    row!("master.reach", MasterReach, warn, network::reach),
    row!("rdma.ports", Rdma, warn, network::rdma),
    row!("rdma.gpudirect", Rdma, warn, network::gpudirect),
    row!("env.nccl", Usage, warn, network::nccl),
    row!("env.proxy", Usage, warn, network::proxy),
    row!("script.file", Usage, fail, software::script),
    row!("engine.file", Usage, fail, software::engine_files),
    row!("python.torch", Python, warn, software::torch),
    row!("cuda.compat", Python, warn, software::compat),
    row!("numa.calls", Limit, warn, software::numa),
    row!("torch.allreduce", Python, fail, software::allreduce),
    row!("nodes.arrive", Muster, fail, nodes::arrive),
    row!("nodes.checks", Muster, fail, nodes::others),
    row!("nodes.differ", Muster, FAIL_WITH_REQUIRED_MUSTER, nodes::differ),
    row!("nodes.rails", Muster, FAIL_WITH_REQUIRED_MUSTER, nodes::rails),
    row!("link.reach", Muster, fail, nodes::reach),
    row!("link.latency", Muster, warn, nodes::latency),
    row!("link.bandwidth", Muster, warn, nodes::bandwidth),
];

/// Findings that no job dies of and that change no result: a launch counts them, `check`
/// explains them.
const ADVICE: &[&str] = &[
    "shm.leftovers",
    "nofile",
    "stack.size",
    "memory.limit",
    "cpu.limit",
    "disk.logs",
    "clock.sync",
    "env.proxy",
];

/// Whether a warning of this id is advice only.
pub fn is_advice(id: &str) -> bool {
    ADVICE.contains(&id)
}

/// What the planner found under these ids: what fails first, then what warns. An id that
/// ends in a dot stands for its family.
pub(super) fn planned(evidence: &Evidence<'_>, ids: &[&str]) -> Vec<Finding> {
    use super::Kind;
    let named = |found: &str| {
        ids.iter().any(|id| if id.ends_with('.') { found.starts_with(id) } else { found == *id })
    };
    let survey = evidence.survey;
    let failures = survey.failures().iter().filter(|failure| named(&failure.id)).map(|failure| {
        let found = Finding::new(Kind::Refused, failure.text.clone(), failure.hint.clone());
        Finding { planned: true, ..found }
    });
    let warnings = survey.warnings().iter().filter(|warning| named(&warning.id)).map(|warning| {
        let found = Finding::new(Kind::Bad, warning.text.clone(), warning.hint.clone());
        Finding { planned: true, ..found }
    });
    failures.chain(warnings).collect()
}
