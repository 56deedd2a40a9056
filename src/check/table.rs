//! The checks: id, what a failure exits with, default severity, and who judges.
//!
//! A new check is one row here and one function beside it.

use super::{
    Evidence, Finding, gpu_health, gpus, limits, network, nodes, signals, software, storage,
};
use crate::settings::{MusterMode, Rdma};
use crate::verdict::{Severity, Verdict};

pub(super) struct Row {
    pub(super) id: &'static str,
    pub(super) verdict: Verdict,
    /// Where neither the user nor a profile says.
    pub(super) default: fn(&Evidence<'_>) -> Severity,
    pub(super) judge: fn(&Evidence<'_>) -> Vec<Finding>,
}

fn fail(_: &Evidence<'_>) -> Severity {
    Severity::Fail
}

fn warn(_: &Evidence<'_>) -> Severity {
    Severity::Warn
}

/// Beside somebody else's work a job runs slowly; where nothing fits any more, not at all.
fn fail_on_full_gpus(evidence: &Evidence<'_>) -> Severity {
    if gpus::is_full(evidence) { Severity::Fail } else { Severity::Warn }
}

/// Without locked memory no buffer can be registered, so required RDMA is refused.
fn fail_with_required_rdma(evidence: &Evidence<'_>) -> Severity {
    let required = evidence.settings.rdma.value == Rdma::Required;
    if required { Severity::Fail } else { Severity::Warn }
}

/// As a launch does it: what differs is said, and refused where a muster is required.
fn fail_with_required_muster(evidence: &Evidence<'_>) -> Severity {
    let required = evidence.settings.muster.value == MusterMode::Required;
    if required { Severity::Fail } else { Severity::Warn }
}

macro_rules! row {
    ($id:literal, $verdict:ident, $default:expr, $judge:expr) => {
        Row { id: $id, verdict: Verdict::$verdict, default: $default, judge: $judge }
    };
}

/// In the order of the report; the first failure decides the exit code.
pub(super) const TABLE: &[Row] = &[
    // Before the count: GPUs are missing because of their fault.
    row!("gpu.fault", GpuFault, fail, gpus::faults),
    row!("gpu.fabric", GpuFabric, fail, gpus::fabric),
    row!("gpu.count", GpuCount, fail, gpus::count),
    row!("gpu.busy", Stale, fail_on_full_gpus, gpus::busy),
    row!("gpu.health", GpuFault, warn, gpu_health::health),
    row!("gpu.link", GpuFault, warn, gpu_health::links),
    row!("gpu.mode", GpuFault, warn, gpu_health::modes),
    row!("hami.limit", Limit, warn, gpus::hami),
    row!("shm.size", Limit, warn, limits::shm),
    row!("shm.leftovers", Limit, warn, storage::leftovers),
    row!("memlock", Limit, fail_with_required_rdma, limits::memlock),
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
    row!("nodes.differ", Muster, fail_with_required_muster, nodes::differ),
    row!("nodes.rails", Muster, fail_with_required_muster, nodes::rails),
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
