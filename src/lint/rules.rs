//! The table of lint rules, one row each.

mod environment;
mod invalid;
mod kinds;
mod launchers;
mod layout;
mod nodes;
mod pods;
mod rejected;
mod sizes;

pub(super) use pods::host_port_of;

use super::findings::Findings;
use super::scene::Scene;
use verdict::Id;

/// One kind of mistake.
#[expect(missing_debug_implementations, reason = "a row with a function over private types")]
pub struct Rule {
    /// Stable id, printed with each finding.
    pub id: Id,
    /// The mistake that the rule finds.
    pub what: &'static str,
    pub(super) check: fn(&Scene<'_, '_>, &mut Findings),
}

const fn rule(id: Id, what: &'static str, check: fn(&Scene<'_, '_>, &mut Findings)) -> Rule {
    Rule { id, what, check }
}

/// Every rule. A new one is a row and a function.
pub const RULES: &[Rule] = &[
    rule(Id::GpuNproc, "processes per node differ from the GPU limit", sizes::nproc),
    rule(Id::GpuRequests, "GPU requests differ from limits", pods::gpu_requests),
    rule(Id::GpuMem, "a GPU memory limit that is absurdly small or has a unit", pods::gpu_memory),
    rule(
        Id::GpuVisible,
        "CUDA_VISIBLE_DEVICES names more GPUs than the limit",
        environment::visible,
    ),
    rule(Id::NodesSingle, "several pods, each told that it is alone", nodes::single),
    rule(Id::NodesCount, "the number of nodes differs from the replicas", nodes::count),
    rule(
        Id::NodesProcesses,
        "the number of processes differs from replicas × GPUs",
        nodes::processes,
    ),
    rule(Id::NodesWorldSize, "WORLD_SIZE is neither nodes nor processes", nodes::world_size),
    rule(Id::NodesRank, "several pods with one and the same rank", nodes::rank),
    rule(Id::ProfileSelect, "GPUs for which the profile has no row", layout::select),
    rule(Id::LayoutWorld, "ulysses × ring differs from the number of processes", layout::world),
    rule(Id::LayoutHeads, "ulysses does not divide the attention heads", layout::heads),
    rule(Id::LayoutAlone, "flags that one process alone must not have", layout::alone),
    rule(Id::JobIndex, "a Job of several pods that do not know their index", kinds::job_index),
    rule(
        Id::JobCompletions,
        "an Indexed Job whose pods do not run together",
        kinds::job_completions,
    ),
    rule(
        Id::JobSubdomain,
        "an Indexed Job whose pods cannot be found by name",
        kinds::job_subdomain,
    ),
    rule(Id::PytorchjobMaster, "a PyTorchJob with other than one master", kinds::master_replicas),
    rule(
        Id::PytorchjobContainer,
        "a PyTorchJob without a container named pytorch",
        kinds::container,
    ),
    rule(Id::PytorchjobRank, "a PyTorchJob whose Workers are told no rank", kinds::worker_ranks),
    rule(Id::PytorchjobElastic, "elasticPolicy beside a Master, or standalone", kinds::elastic),
    rule(Id::TrainjobReserved, "variables that the Trainer keeps for itself", kinds::reserved),
    rule(Id::RayNodes, "a RayJob's entry point that waits for other nodes", kinds::ray_nodes),
    rule(Id::LauncherNone, "a script without launcher beside several GPUs", launchers::no_launcher),
    rule(Id::ShmMissing, "no volume at /dev/shm", pods::shm_missing),
    rule(Id::ShmMedium, "a volume at /dev/shm that is not memory", pods::shm_medium),
    rule(
        Id::ShmSize,
        "a /dev/shm that is too small, or larger than the memory limit",
        pods::shm_size,
    ),
    rule(Id::VolumeOnce, "a volume for one node in several pods", invalid::once),
    rule(Id::QuantityInvalid, "a quantity that Kubernetes cannot read", invalid::quantities),
    rule(
        Id::ObjectRejected,
        "a value of a wrong type or range, or without what it names",
        rejected::rejected,
    ),
    rule(Id::PodContainers, "a pod without containers", invalid::containers),
    rule(Id::ImageName, "an image name that was never filled in", invalid::image),
    rule(Id::MemoryMissing, "no memory stated", pods::memory_missing),
    rule(Id::MemoryNode, "more memory than a node has", pods::memory_node),
    rule(Id::CpuMissing, "no CPU stated", pods::cpu_missing),
    rule(Id::GraceShort, "a grace period shorter than the stop needs", pods::grace),
    rule(Id::NetworkPort, "hostNetwork without a port of its own", pods::host_port),
    rule(Id::NetworkDns, "hostNetwork without the cluster's DNS", pods::host_dns),
    rule(
        Id::EnvUndefined,
        "$(NAME) of a variable that the container does not have",
        environment::undefined,
    ),
    rule(Id::EnvLiteral, "$NAME in the value of a variable", environment::literal),
    rule(Id::EnvNccl, "NCCL settings that do nothing or do harm", environment::nccl),
    rule(Id::MasterSelf, "every node takes itself for the master", environment::master_self),
    rule(Id::ServiceLinks, "a Service that sets MASTER_PORT=tcp://…", environment::service_links),
    rule(Id::SignalsShell, "a shell that keeps SIGTERM from ranklaunch", launchers::behind_shell),
    rule(Id::CommandCut, "a comment within a command of several lines", launchers::cut),
    rule(Id::CommandString, "several words in one item of a command", invalid::command),
    rule(Id::CommandRefused, "arguments that ranklaunch refuses", launchers::refused),
    rule(Id::CommandUnread, "what is decided at run time", launchers::unread),
];
