//! The pods of a job: groups of like pods, their containers and what these ask for.

use std::collections::BTreeMap;

use super::command::Started;
use super::launchers::Launcher;
use super::objects::Layers;
use super::quantity;
use super::yaml::Node;

/// Resources that are whole GPUs.
const GPUS: &[&str] = &["nvidia.com/gpu", "amd.com/gpu", "aliyun.com/gpu"];
/// Prefix of the resources that are slices of one GPU, a device each.
const SLICES: &str = "nvidia.com/mig-";

/// Pods that are alike.
#[derive(Debug)]
pub(super) struct Group<'a> {
    pub(super) role: String,
    /// None when the number is not a plain one.
    pub(super) replicas: Option<u64>,
    /// Where the number, or else the group, stands.
    pub(super) replicas_line: usize,
    pub(super) pod: Layers<'a>,
    /// The label and annotation map of the pod template.
    pub(super) metadata: Option<&'a Node>,
    /// Times that the group stands in the job, each counting its pods from 0 (JobSet).
    pub(super) copies: u64,
    /// All of the pod is in the manifest.
    pub(super) whole: bool,
    /// What lies over the container of this name (a TrainJob's trainer).
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

    /// It takes part in the training: GPUs, or a launcher.
    pub(super) fn works(&self) -> bool {
        self.containers.iter().any(Container::works)
    }
}

/// A variable of a container.
#[derive(Debug)]
pub(super) struct Variable {
    /// None where it comes from elsewhere (valueFrom).
    pub(super) value: Option<String>,
    /// The field of the pod that it is.
    pub(super) field: Option<String>,
    pub(super) line: usize,
}

#[derive(Debug)]
pub(super) struct Container<'a> {
    pub(super) name: String,
    pub(super) node: Layers<'a>,
    pub(super) env: BTreeMap<String, Variable>,
    pub(super) started: Started,
    /// Names in the `$(NAME)` of its command, which Kubernetes replaces where it knows them.
    pub(super) references: Vec<Reference>,
    /// It has a command or arguments of its own.
    pub(super) has_command: bool,
}

/// A `$(NAME)`.
#[derive(Debug)]
pub(super) struct Reference {
    pub(super) name: String,
    pub(super) line: usize,
    /// It stands in a shell's script, where what is left of it runs NAME.
    pub(super) in_script: bool,
}

/// A resource: its quantity and where it stands.
#[derive(Debug, Clone, Copy)]
pub(super) struct Quantity<'a> {
    pub(super) text: &'a str,
    pub(super) line: usize,
}

impl<'a> Container<'a> {
    /// A resource's limit, or else its request, as Kubernetes takes it for devices.
    pub(super) fn resource(&self, name: &str) -> Option<Quantity<'a>> {
        self.in_resources("limits", name).or_else(|| self.in_resources("requests", name))
    }

    pub(super) fn in_resources(&self, part: &str, name: &str) -> Option<Quantity<'a>> {
        ["resources", "resourcesPerNode"].into_iter().find_map(|key| {
            let node = self.node.at(&[key, part, name])?;
            Some(Quantity { text: node.text()?, line: node.line })
        })
    }

    /// GPUs of this container and where their number stands; None when it asks for none.
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

    /// The names under which GPUs are asked for, limits and requests.
    pub(super) fn gpu_names() -> &'static [&'static str] {
        GPUS
    }

    /// GPUs that are asked for with something else than a number, as templates have it.
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
