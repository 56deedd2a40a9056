//! The pods of a job: groups of equal pods, their containers and resources.

use std::collections::BTreeMap;

use super::command::StartedPrograms;
use super::launchers::Launcher;
use super::objects::Layers;
use super::quantity;
use text::yaml::Node;

/// Resources that are whole GPUs.
const GPUS: &[&str] = &["nvidia.com/gpu", "amd.com/gpu", "aliyun.com/gpu"];
/// Prefix of the resources for slices of a GPU, each one device.
const SLICES: &str = "nvidia.com/mig-";

/// A group of equal pods.
#[derive(Debug)]
pub(super) struct Group<'a> {
    pub(super) role: String,
    /// None if it is not a plain number.
    pub(super) replicas: Option<u64>,
    /// Line of the number, or else of the group.
    pub(super) replicas_line: usize,
    pub(super) pod: Layers<'a>,
    /// The label and annotation map of the pod template.
    pub(super) metadata: Option<&'a Node>,
    /// Copies of the group in the job, each with its own pod index from 0 (JobSet).
    pub(super) copies: u64,
    /// Whether the manifest has the complete pod.
    pub(super) whole: bool,
    /// Layers over the container of this name (a TrainJob's trainer).
    pub(super) over: Option<(&'static str, Vec<&'a Node>)>,
    pub(super) containers: Vec<Container<'a>>,
}

impl<'a> Group<'a> {
    pub(super) fn of(role: &str, pod: &'a Node) -> Group<'a> {
        Group {
            role: role.to_owned(),
            replicas: Some(1),
            replicas_line: pod.line,
            pod: Layers::of(pod),
            metadata: None,
            copies: 1,
            whole: true,
            over: None,
            containers: Vec::new(),
        }
    }

    /// Whether the manifest has the complete pod, and no container in it.
    pub(super) fn is_empty(&self) -> bool {
        self.whole && self.containers.is_empty()
    }

    /// Whether the group takes part in the training: it has GPUs or a launcher.
    pub(super) fn works(&self) -> bool {
        self.containers.iter().any(Container::works)
    }
}

/// A variable of a container.
#[derive(Debug)]
pub(super) struct ContainerVariable {
    /// None if it comes from elsewhere (valueFrom).
    pub(super) value: Option<String>,
    /// The field of the pod that the variable refers to.
    pub(super) field: Option<String>,
    pub(super) line: usize,
}

#[derive(Debug)]
pub(super) struct Container<'a> {
    pub(super) name: String,
    pub(super) node: Layers<'a>,
    pub(super) env: BTreeMap<String, ContainerVariable>,
    pub(super) started: StartedPrograms,
    /// Names in `$(NAME)` of its command, which Kubernetes replaces if the variable exists.
    pub(super) references: Vec<Reference>,
    /// Variables in its command and arguments that a shell expands: `$NAME`, `${NAME}`.
    pub(super) shell_references: Vec<ShellReference>,
    /// The container has a command or arguments of its own.
    pub(super) has_command: bool,
}

/// A `$(NAME)`.
#[derive(Debug)]
pub(super) struct Reference {
    pub(super) name: String,
    pub(super) line: usize,
    /// The reference is in a shell script, where an unreplaced one runs the command NAME.
    pub(super) in_script: bool,
}

/// A `$NAME` or `${NAME}` in a shell script.
#[derive(Debug)]
pub(super) struct ShellReference {
    pub(super) name: String,
    pub(super) line: usize,
}

/// A resource: its quantity and line.
#[derive(Debug, Clone, Copy)]
pub(super) struct Quantity<'a> {
    pub(super) text: &'a str,
    pub(super) line: usize,
}

impl<'a> Container<'a> {
    /// A resource's limit, or else its request, as Kubernetes does for devices.
    pub(super) fn resource(&self, name: &str) -> Option<Quantity<'a>> {
        self.in_resources("limits", name).or_else(|| self.in_resources("requests", name))
    }

    pub(super) fn in_resources(&self, part: &str, name: &str) -> Option<Quantity<'a>> {
        ["resources", "resourcesPerNode"].into_iter().find_map(|key| {
            let node = self.node.at(&[key, part, name])?;
            Some(Quantity { text: node.text()?, line: node.line })
        })
    }

    /// GPUs of this container and the line of their number; None without GPUs.
    pub(super) fn gpus(&self) -> Option<(u64, usize)> {
        let whole = GPUS.iter().find_map(|name| self.resource(name));
        if let Some(found) = whole {
            return Some((quantity::whole(found.text)?, found.line)).filter(|(n, _)| *n > 0);
        }
        let resources = ["resources", "resourcesPerNode"];
        let limits = resources.into_iter().find_map(|key| self.node.at(&[key, "limits"]))?;
        let slices: Vec<(u64, usize)> = limits
            .entries()
            .filter(|(name, ..)| name.starts_with(SLICES))
            .filter_map(|(_, _, value)| Some((quantity::whole(value.text()?)?, value.line)))
            .collect();
        let count = slices.iter().fold(0_u64, |sum, (n, _)| sum.saturating_add(*n));
        slices.first().map(|(_, line)| (count, *line)).filter(|(n, _)| *n > 0)
    }

    /// The resource names of GPUs.
    pub(super) fn gpu_names() -> &'static [&'static str] {
        GPUS
    }

    /// A GPU resource whose quantity is no number, as in templates.
    pub(super) fn unread_gpus(&self) -> Option<Quantity<'a>> {
        let found = GPUS.iter().find_map(|name| self.resource(name))?;
        quantity::whole(found.text).is_none().then_some(found)
    }

    pub(super) fn works(&self) -> bool {
        self.gpus().is_some()
            || self.started.launches.iter().any(|launch| launch.launcher != Launcher::Python)
    }

    /// A variable's literal value.
    pub(super) fn literal(&self, name: &str) -> Option<(&str, usize)> {
        let variable = self.env.get(name)?;
        Some((variable.value.as_deref()?, variable.line))
    }

    pub(super) fn line(&self) -> usize {
        self.node.line()
    }
}
