//! The input of the rules for one job, and their findings.
//!
//! Takes the workload, the other objects and the layouts of profiles; gives the places that rules
//! visit, and collects each [`Finding`] with its place.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::launches::{LaunchCommand, ProfileLayout, StartedPrograms};
use super::pods::{Container, Group};
use super::workload::Workload;
use text::lang::Text;
use text::order::Ordered;
use text::yaml::Node;
use verdict::Id;

/// The input of the rules for one job.
pub(super) struct Scene<'a> {
    pub(super) job: &'a Workload<'a>,
    /// Every launcher of the job.
    pub(super) sites: Vec<LaunchSite<'a>>,
    /// Jobs on the host's network, by port.
    pub(super) host_ports: &'a BTreeMap<String, Vec<&'a Workload<'a>>>,
    pub(super) services: &'a [(usize, &'a Node)],
    /// Every PersistentVolumeClaim of the input.
    pub(super) claims: &'a [&'a Node],
    pub(super) layouts: &'a [ProfileLayout],
    /// Bytes of memory that a node can give to pods.
    pub(super) node_memory: Option<u64>,
}

/// One launcher with the container that it runs in.
#[derive(Clone, Copy)]
pub(super) struct LaunchSite<'a> {
    pub(super) group: &'a Group<'a>,
    pub(super) container: &'a Container<'a>,
    pub(super) launch: &'a LaunchCommand,
}

impl<'a> LaunchSite<'a> {
    /// Every launcher. An entry point counts for the first group with GPUs. A launcher in a pod
    /// without GPUs that starts processes in other pods (MPIJob) is left out.
    pub(super) fn all(job: &'a Workload<'a>) -> Vec<LaunchSite<'a>> {
        let own = |(_, container): &(&Group<'_>, &'a Container<'a>)| {
            !job.kind.remote || container.gpus().is_some()
        };
        let of_pods = job
            .containers()
            .filter(own)
            .map(|(group, container)| (group, container, container.started.launches.as_slice()));
        let mut working = job.containers().filter(|(_, container)| container.works());
        let entry = working.next();
        let of_entry =
            entry.map(|(group, container)| (group, container, &*job.entrypoint.launches));
        of_pods
            .chain(of_entry)
            .flat_map(|(group, container, launches)| {
                launches.iter().map(move |launch| LaunchSite { group, container, launch })
            })
            .collect()
    }
}

impl<'a> Scene<'a> {
    /// Whether a container trains. Model servers, and everything that belongs to them, have other
    /// needs.
    pub(super) fn trains(&self, container: &Container<'_>) -> bool {
        let (job, kind) = (self.job, self.job.kind);
        let started = &container.started;
        let starts = !started.launches.is_empty() || !started.unread.is_empty();
        let by_kind = kind.gives_master || (kind.remote && !kind.stays);
        let serves = || job.containers().any(|(_, one)| one.started.serves);
        let of_server = started.serves || (job.is_one_job() && serves());
        !of_server && (starts || by_kind)
    }

    /// Every container of the job that takes part in it, with its group.
    pub(super) fn containers(&self) -> impl Iterator<Item = (&'a Group<'a>, &'a Container<'a>)> {
        self.job.containers().filter(|(_, container)| container.works())
    }

    /// The programs of every container and of the entry point.
    pub(super) fn started(&self) -> impl Iterator<Item = &'a StartedPrograms> {
        let job = self.job;
        job.containers().map(|(_, container)| &container.started).chain([&job.entrypoint])
    }
}

/// Severity of a finding, which decides the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LintSeverity {
    /// The job will fail, hang or be killed.
    Error,
    /// The job may fail, or it wastes resources.
    Warning,
    /// Not checked, with the reason. Does not affect the exit code.
    Info,
}

/// One thing found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Stable id such as `shm.missing`.
    pub id: Id,
    pub importance: LintSeverity,
    pub file: String,
    /// Line of the value, from 1.
    pub line: usize,
    pub text: Text,
    pub hint: Text,
}

/// Collects the findings of the rules.
#[derive(Debug)]
pub(super) struct Findings {
    files: Vec<String>,
    file: usize,
    id: Id,
    found: Vec<(usize, Finding)>,
}

impl Findings {
    pub(super) fn new(files: Vec<String>) -> Findings {
        Findings { files, file: 0, id: Id::LintUnreadable, found: Vec::new() }
    }

    /// Sets file and id of the following findings.
    pub(super) fn at(&mut self, file: usize, id: Id) {
        self.file = file;
        self.id = id;
    }

    pub(super) fn error(&mut self, line: usize, text: Text, hint: Text) {
        self.push(LintSeverity::Error, line, text, hint);
    }

    pub(super) fn warning(&mut self, line: usize, text: Text, hint: Text) {
        self.push(LintSeverity::Warning, line, text, hint);
    }

    pub(super) fn info(&mut self, line: usize, text: Text, hint: Text) {
        self.push(LintSeverity::Info, line, text, hint);
    }

    pub(super) fn push(&mut self, importance: LintSeverity, line: usize, text: Text, hint: Text) {
        let file = self.files.get(self.file).cloned().unwrap_or_default();
        let id = self.id;
        self.found.push((self.file, Finding { id, importance, file, line, text, hint }));
    }

    /// Changes the findings of each file, and leaves out those for which `keep` is false.
    pub(super) fn translate(&mut self, mut keep: impl FnMut(usize, &mut Finding) -> bool) {
        self.found.retain_mut(|(file, found)| keep(*file, found));
    }

    /// Sorted by file and line, without duplicates.
    pub(super) fn sorted(mut self) -> Vec<Finding> {
        self.found.order_by_key(|(file, found)| (*file, found.line, found.importance));
        let mut said = BTreeSet::new();
        self.found.retain(|(file, found)| {
            said.insert((*file, found.line, found.id, found.text.en.to_string()))
        });
        self.found.into_iter().map(|(_, found)| found).collect()
    }
}
