//! What the rules see of one job: its workload, what else is in the manifests, and what other rooms know.

use std::collections::BTreeMap;

use super::command::Launch;
use super::pods::{Container, Group};
use super::profiles::Layout;
use super::workload::Workload;
use super::yaml::Node;
use crate::plan::nccl::Misuse;

/// What other rooms know, handed over by the caller.
#[derive(Debug, Clone, Copy)]
pub struct Knowledge {
    /// The table of NCCL settings that do nothing or do harm.
    pub misuse: fn(&str, &str, bool) -> Option<Misuse>,
    /// Profiles by name: which script follows which layout rule, with how many heads.
    pub profiles: &'static [(&'static str, &'static str)],
}

#[derive(Debug, Clone, Copy, Default)]
pub struct Limits {
    /// Bytes of memory that a node can give to pods.
    pub node_memory: Option<u64>,
}

/// All that the rules see of one job.
pub(super) struct Scene<'a, 'b> {
    pub(super) job: &'b Workload<'a>,
    /// Jobs on the host's network, by port.
    pub(super) host_ports: &'b BTreeMap<String, Vec<&'b Workload<'a>>>,
    pub(super) services: &'b [(usize, &'a Node)],
    pub(super) layouts: &'b [Layout],
    pub(super) knowledge: Knowledge,
    pub(super) limits: Limits,
}

/// One launcher with the container that it runs in.
#[derive(Clone, Copy)]
pub(super) struct Place<'a, 'b> {
    pub(super) group: &'b Group<'a>,
    pub(super) container: &'b Container<'a>,
    pub(super) launch: &'b Launch,
}

/// Whether a container trains: what serves a model is judged by other measures, and so is all
/// that belongs to it.
pub(super) fn trains(scene: &Scene<'_, '_>, container: &Container<'_>) -> bool {
    let (job, kind) = (scene.job, scene.job.kind);
    let started = &container.started;
    let starts = !started.launches.is_empty() || !started.unread.is_empty();
    let by_kind = kind.gives_master || (kind.remote && !kind.stays);
    let serves = |group: &Group<'_>| group.containers.iter().any(|one| one.started.serves);
    let of_server = started.serves || (job.is_one_job() && job.groups.iter().any(serves));
    !of_server && (starts || by_kind)
}

/// Every container that takes part, with its group.
pub(super) fn containers<'a, 'b>(
    scene: &Scene<'a, 'b>,
) -> impl Iterator<Item = (&'b Group<'a>, &'b Container<'a>)> + use<'a, 'b> {
    let job = scene.job;
    job.groups
        .iter()
        .flat_map(|group| group.containers.iter().map(move |container| (group, container)))
        .filter(|(_, container)| container.works())
}

/// Every launcher; an entry point runs in the first group that has GPUs. What a pod without GPUs
/// starts on the others (the launcher of an MPIJob) is none of theirs.
pub(super) fn places<'a, 'b>(scene: &Scene<'a, 'b>) -> Vec<Place<'a, 'b>> {
    let mut places: Vec<Place<'a, 'b>> = Vec::new();
    let job = scene.job;
    for group in &job.groups {
        for container in &group.containers {
            if job.kind.remote && container.gpus().is_none() {
                continue;
            }
            let launches = container.started.launches.iter();
            places.extend(launches.map(|launch| Place { group, container, launch }));
        }
    }
    let first = containers(scene).next();
    if let Some((group, container)) = first {
        let launches = job.entrypoint.launches.iter();
        places.extend(launches.map(|launch| Place { group, container, launch }));
    }
    places
}
