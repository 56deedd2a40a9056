//! The table of lint rules, one row each.

mod counts;
mod environment;
mod kinds;
mod launchers;
mod pods;
mod rejected;
mod sizes;
mod spares;

pub(super) use counts::services;
pub(super) use pods::host_port_of;

use super::scene::{Findings, Scene};
use verdict::Id;

/// One kind of mistake.
#[expect(missing_debug_implementations, reason = "a row with a function over private types")]
pub struct Rule {
    /// Stable id, printed with each finding.
    pub id: Id,
    pub(super) check: fn(&Scene<'_>, &mut Findings),
}

const fn rule(id: Id, check: fn(&Scene<'_>, &mut Findings)) -> Rule {
    Rule { id, check }
}

/// Every rule. A new one is a row and a function.
pub const RULES: &[Rule] = &[
    rule(Id::GpuNproc, sizes::nproc),
    rule(Id::GpuRequests, pods::gpu_requests),
    rule(Id::GpuMem, pods::gpu_memory),
    rule(Id::GpuVisible, environment::visible),
    rule(Id::NodesSingle, sizes::single),
    rule(Id::NodesCount, counts::count),
    rule(Id::NodesProcesses, sizes::processes),
    rule(Id::NodesWorldSize, sizes::world_size),
    rule(Id::NodesRank, sizes::rank),
    rule(Id::SparesSeats, spares::seats),
    rule(Id::SparesLost, spares::lost),
    rule(Id::ProfileSelect, launchers::select),
    rule(Id::LayoutWorld, launchers::world),
    rule(Id::LayoutHeads, launchers::heads),
    rule(Id::LayoutAlone, launchers::alone),
    rule(Id::JobIndex, kinds::job_index),
    rule(Id::JobCompletions, kinds::job_completions),
    rule(Id::JobSubdomain, kinds::job_subdomain),
    rule(Id::PytorchjobMaster, kinds::master_replicas),
    rule(Id::PytorchjobContainer, kinds::container),
    rule(Id::PytorchjobRank, kinds::worker_ranks),
    rule(Id::PytorchjobElastic, kinds::elastic),
    rule(Id::TrainjobReserved, kinds::reserved),
    rule(Id::RayNodes, kinds::ray_nodes),
    rule(Id::LauncherNone, launchers::no_launcher),
    rule(Id::ShmMissing, pods::shm_missing),
    rule(Id::ShmMedium, pods::shm_medium),
    rule(Id::ShmSize, pods::shm_size),
    rule(Id::VolumeOnce, rejected::once),
    rule(Id::QuantityInvalid, rejected::quantities),
    rule(Id::ObjectRejected, rejected::rejected),
    rule(Id::PodContainers, rejected::containers),
    rule(Id::ImageName, rejected::image),
    rule(Id::MemoryMissing, pods::memory_missing),
    rule(Id::MemoryNode, pods::memory_node),
    rule(Id::CpuMissing, pods::cpu_missing),
    rule(Id::GraceShort, pods::grace),
    rule(Id::NetworkPort, pods::host_port),
    rule(Id::NetworkDns, pods::host_dns),
    rule(Id::EnvUndefined, environment::undefined),
    rule(Id::EnvLiteral, environment::literal),
    rule(Id::EnvNccl, environment::nccl),
    rule(Id::MasterSelf, environment::master_self),
    rule(Id::ServiceLinks, environment::service_links),
    rule(Id::SignalsShell, launchers::behind_shell),
    rule(Id::CommandCut, launchers::cut),
    rule(Id::CommandString, rejected::command),
    rule(Id::CommandRefused, launchers::refused),
    rule(Id::CommandUnread, launchers::unread),
];
