//! A manifest's objects as jobs: which pods there are, how many of each, and what runs in them.
//!
//! Takes the documents of all files; gives [`Workload`]s and the Services beside
//! them. Where a kind keeps its pods is said in [`super::kinds`].

use std::collections::BTreeMap;

use super::command::{self, Profiles, Started};
use super::kinds::{KINDS, Kind, Together, WITHOUT_PODS, is_runtime, refers_to};
use super::launchers::Launcher;
use super::quantity;
use super::word::is_name;
use super::yaml::Node;

/// Resources that are whole GPUs.
const GPUS: &[&str] = &["nvidia.com/gpu", "amd.com/gpu", "aliyun.com/gpu"];
/// Prefix of the resources that are slices of one GPU, a device each.
const SLICES: &str = "nvidia.com/mig-";

/// Every object of the input, by file.
#[derive(Debug, Default)]
pub(super) struct Objects<'a> {
    pub(super) all: Vec<(usize, &'a Node)>,
}

/// A map that lies over others: the first that knows a key is asked.
#[derive(Debug, Clone, Default)]
pub(super) struct Layers<'a> {
    pub(super) layers: Vec<&'a Node>,
}

impl<'a> Layers<'a> {
    pub(super) fn of(node: &'a Node) -> Layers<'a> {
        Layers { layers: vec![node] }
    }

    pub(super) fn get(&self, key: &str) -> Option<&'a Node> {
        self.at(&[key])
    }

    pub(super) fn at(&self, path: &[&str]) -> Option<&'a Node> {
        self.layers.iter().find_map(|layer| layer.at(path))
    }

    /// The items of a list in all layers.
    pub(super) fn items(&self, key: &str) -> impl Iterator<Item = &'a Node> {
        let lists: Vec<&'a Node> = self.layers.iter().filter_map(|layer| layer.get(key)).collect();
        lists.into_iter().flat_map(|list| list.list().iter().map(|item| &**item))
    }

    pub(super) fn line(&self) -> usize {
        self.layers.first().map_or(1, |layer| layer.line)
    }
}

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

/// One job.
pub(super) struct Workload<'a> {
    pub(super) file: usize,
    pub(super) kind: &'static Kind,
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) object: &'a Node,
    pub(super) groups: Vec<Group<'a>>,
    /// What an entry point outside the pods starts (RayJob).
    pub(super) entrypoint: Started,
}

impl std::fmt::Debug for Workload<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.kind.kind, self.name)
    }
}

impl Workload<'_> {
    /// Its pods make up one distributed job.
    pub(super) fn is_one_job(&self) -> bool {
        match self.kind.together {
            Together::Job => true,
            Together::Perhaps => self.groups.iter().any(Group::works),
            Together::No => false,
        }
    }

    /// Nodes of the job; None when a number of replicas cannot be read.
    pub(super) fn nodes(&self) -> Option<u64> {
        if !self.is_one_job() {
            return Some(1);
        }
        let all = matches!(self.kind.together, Together::Job);
        let takes_part = |group: &&Group<'_>| match self.kind.remote {
            true => group.containers.iter().any(|container| container.gpus().is_some()),
            false => all || group.works(),
        };
        self.groups
            .iter()
            .filter(takes_part)
            .try_fold(0_u64, |sum, group| Some(sum.saturating_add(group.replicas?)))
    }

    /// nprocPerNode and its like, which the operator hands to torchrun.
    pub(super) fn operator_nproc(&self) -> Option<&Node> {
        [
            ["spec", "nprocPerNode"].as_slice(),
            &["spec", "trainer", "numProcPerNode"],
            &["spec", "mlPolicy", "torch", "numProcPerNode"],
            &["spec", "elasticPolicy", "nProcPerNode"],
        ]
        .into_iter()
        .find_map(|path| self.object.at(path))
    }
}

pub(super) fn name_of(object: &Node) -> String {
    let name =
        ["name", "generateName"].iter().find_map(|key| object.at(&["metadata", key])?.text());
    name.unwrap_or("?").to_owned()
}

pub(super) fn namespace_of(object: &Node) -> String {
    object.at(&["metadata", "namespace"]).and_then(Node::text).unwrap_or_default().to_owned()
}

pub(super) fn is_kind(object: &Node, kind: &str) -> bool {
    object.get("kind").and_then(Node::text) == Some(kind)
}

/// What an object is to us.
pub(super) enum Role<'a> {
    Workload(Box<Workload<'a>>),
    /// It has no pods, or is part of another object.
    Other,
    /// Nobody here knows where it keeps its pods.
    Unknown,
}

pub(super) fn role<'a>(
    file: usize,
    object: &'a Node,
    objects: &Objects<'a>,
    profiles: Profiles,
) -> Role<'a> {
    let text = |key| object.get(key).and_then(Node::text).unwrap_or_default();
    let (kind_name, version) = (text("kind"), text("apiVersion"));
    let Some(kind) = KINDS.iter().find(|row| {
        row.kind == kind_name && (version.starts_with(row.group) || version.is_empty())
    }) else {
        let known = WITHOUT_PODS.contains(&kind_name);
        return if known { Role::Other } else { Role::Unknown };
    };
    if is_runtime(object) && objects.all.iter().any(|(_, job)| refers_to(job, object)) {
        return Role::Other;
    }
    let mut groups = (kind.pods)(object, objects);
    for group in &mut groups {
        group.containers = containers(group, profiles);
    }
    let entrypoint = [["spec", "entrypoint"].as_slice(), &["spec", "jobTemplate", "entrypoint"]]
        .into_iter()
        .find_map(|path| object.at(path));
    let entrypoint = entrypoint
        .map(|script| command::of_script(script, &BTreeMap::new(), profiles))
        .unwrap_or_default();
    Role::Workload(Box::new(Workload {
        file,
        kind,
        name: name_of(object),
        namespace: namespace_of(object),
        object,
        groups,
        entrypoint,
    }))
}

/// The containers in the order of the pod; those of one name in several layers are one.
fn containers<'a>(group: &Group<'a>, profiles: Profiles) -> Vec<Container<'a>> {
    let mut order: Vec<&str> = Vec::new();
    let mut layers: BTreeMap<&str, Vec<&'a Node>> = BTreeMap::new();
    if let Some((name, nodes)) = &group.over {
        order.push(name);
        layers.insert(name, nodes.clone());
    }
    for container in group.pod.items("containers") {
        let name = container.get("name").and_then(Node::text).unwrap_or_default();
        layers
            .entry(name)
            .or_insert_with(|| {
                order.push(name);
                Vec::new()
            })
            .push(container);
    }
    order
        .into_iter()
        .filter_map(|name| Some(container(name, Layers { layers: layers.remove(name)? }, profiles)))
        .collect()
}

fn container<'a>(name: &str, node: Layers<'a>, profiles: Profiles) -> Container<'a> {
    let mut env = BTreeMap::new();
    for variable in node.items("env") {
        let Some(name) = variable.get("name").and_then(Node::text) else { continue };
        let value = variable.get("value");
        let line = value.map_or(variable.line, |value| value.line);
        let value = match value {
            Some(value) => Some(value.text().unwrap_or_default().to_owned()),
            None if variable.get("valueFrom").is_some() => None,
            None => Some(String::new()),
        };
        let field = variable.at(&["valueFrom", "fieldRef", "fieldPath"]).and_then(Node::text);
        let field = field.map(str::to_owned);
        env.entry(name.to_owned()).or_insert(Variable { value, field, line });
    }
    let known: BTreeMap<String, String> = env
        .iter()
        .filter_map(|(name, variable)| {
            // A value that refers to others is put together by the kubelet.
            let value = variable.value.clone().filter(|value| !value.contains("$("))?;
            Some((name.clone(), value))
        })
        .collect();
    let words: Vec<(&str, &Node)> = ["command", "args"]
        .into_iter()
        .filter_map(|key| node.get(key))
        .flat_map(|list| list.list().iter())
        .filter_map(|word| Some((word.text()?, &**word)))
        .collect();
    let has_command = !words.is_empty();
    let started = command::of_container(&words, &known, profiles);
    let references = references(&words);
    Container { name: name.to_owned(), node, env, started, references, has_command }
}

/// Every `$(NAME)` of a command; `$$(NAME)` is an escaped one.
fn references(words: &[(&str, &Node)]) -> Vec<Reference> {
    let is_shell = |(text, _): &(&str, &Node)| {
        ["sh", "bash", "dash", "zsh"].contains(&text.rsplit('/').next().unwrap_or(text))
    };
    let in_script = words.first().is_some_and(is_shell);
    let mut found = Vec::new();
    for (text, node) in words {
        for (at, _) in text.match_indices("$(") {
            let dollars = text.get(..at).map_or("", |before| {
                before.get(before.trim_end_matches('$').len()..).unwrap_or_default()
            });
            let rest = text.get(at + 2..).unwrap_or_default();
            let Some((name, _)) = rest.split_once(')').filter(|(name, _)| is_name(name)) else {
                continue;
            };
            // Commands are written in small letters: `$(hostname)`.
            if dollars.len() % 2 == 1 || (in_script && name.contains(char::is_lowercase)) {
                continue;
            }
            let before = text.get(..at).unwrap_or_default().matches('\n').count();
            let line = node.line_of(before);
            found.push(Reference { name: name.to_owned(), line, in_script });
        }
    }
    found
}
