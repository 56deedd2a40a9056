//! The input of the rules for one job: its workload, the other objects, and the tables of other rooms.

use std::collections::BTreeMap;

use super::command::LaunchCommand;
use super::pods::{Container, Group};
use super::profiles::ProfileLayout;
use super::workload::Workload;
use plan::nccl::Misuse;
use text::yaml::Node;

/// Tables of other rooms, passed by the caller.
#[derive(Debug, Clone, Copy)]
pub struct Knowledge {
    /// The table of NCCL settings without effect or with harm.
    pub misuse: fn(&str, &str, bool) -> Option<Misuse>,
    /// Profiles by name, with the layout rule and the heads of a script.
    pub profiles: &'static [(&'static str, &'static str)],
}

#[derive(Debug, Clone, Copy, Default)]
pub struct LintLimits {
    /// Bytes of memory that a node can give to pods.
    pub node_memory: Option<u64>,
}

/// The input of the rules for one job.
pub(super) struct Scene<'a, 'b> {
    pub(super) job: &'b Workload<'a>,
    /// Jobs on the host's network, by port.
    pub(super) host_ports: &'b BTreeMap<String, Vec<&'b Workload<'a>>>,
    pub(super) services: &'b [(usize, &'a Node)],
    /// Every PersistentVolumeClaim of the input.
    pub(super) claims: &'b [&'a Node],
    pub(super) layouts: &'b [ProfileLayout],
    pub(super) knowledge: Knowledge,
    pub(super) limits: LintLimits,
}

/// One launcher with the container that it runs in.
#[derive(Clone, Copy)]
pub(super) struct LaunchSite<'a, 'b> {
    pub(super) group: &'b Group<'a>,
    pub(super) container: &'b Container<'a>,
    pub(super) launch: &'b LaunchCommand,
}

/// Whether a container trains. Model servers, and everything that belongs to them, have other
/// needs.
pub(super) fn trains(scene: &Scene<'_, '_>, container: &Container<'_>) -> bool {
    let (job, kind) = (scene.job, scene.job.kind);
    let started = &container.started;
    let starts = !started.launches.is_empty() || !started.unread.is_empty();
    let by_kind = kind.gives_master || (kind.remote && !kind.stays);
    let serves = |group: &Group<'_>| group.containers.iter().any(|one| one.started.serves);
    let of_server = started.serves || (job.is_one_job() && job.groups.iter().any(serves));
    !of_server && (starts || by_kind)
}

/// Every container of the job, with its group.
pub(super) fn containers<'a, 'b>(
    scene: &Scene<'a, 'b>,
) -> impl Iterator<Item = (&'b Group<'a>, &'b Container<'a>)> + use<'a, 'b> {
    let job = scene.job;
    job.groups
        .iter()
        .flat_map(|group| group.containers.iter().map(move |container| (group, container)))
        .filter(|(_, container)| container.works())
}

/// Every launcher. An entry point counts for the first group with GPUs. A launcher in a pod
/// without GPUs that starts processes in other pods (MPIJob) is left out.
pub(super) fn launch_sites<'a, 'b>(scene: &Scene<'a, 'b>) -> Vec<LaunchSite<'a, 'b>> {
    let mut launch_sites: Vec<LaunchSite<'a, 'b>> = Vec::new();
    let job = scene.job;
    for group in &job.groups {
        for container in &group.containers {
            if job.kind.remote && container.gpus().is_none() {
                continue;
            }
            let launches = container.started.launches.iter();
            launch_sites.extend(launches.map(|launch| LaunchSite { group, container, launch }));
        }
    }
    let first = containers(scene).next();
    if let Some((group, container)) = first {
        let launches = job.entrypoint.launches.iter();
        launch_sites.extend(launches.map(|launch| LaunchSite { group, container, launch }));
    }
    launch_sites
}
