//! Turns the objects of manifests into jobs: their pods, how many, and the programs in them.
//!
//! Takes the documents of all files; gives [`Workload`]s and Services. The table of
//! [`super::workload_kinds`] says where a kind has its pods.

use std::collections::BTreeMap;

use super::command::{self, is_shell};
use super::launches::{LaunchCommand, Launcher, Profiles, StartedPrograms};
use super::pods::{
    Container, ContainerVariable, Group, Layers, Objects, Reference, ShellReference, name_of,
    namespace_of,
};
use super::workload_kinds::{KINDS, Together, WITHOUT_PODS, WorkloadKind, is_runtime, refers_to};
use adopt::shell::{Word, is_name, shell_names};
use settings::launchers::FlagField;
use text::yaml::Node;

/// One job.
pub(super) struct Workload<'a> {
    pub(super) file: usize,
    pub(super) kind: &'static WorkloadKind,
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) object: &'a Node,
    pub(super) groups: Vec<Group<'a>>,
    /// The programs that an entry point outside of the pods starts (RayJob).
    pub(super) entrypoint: StartedPrograms,
}

impl std::fmt::Debug for Workload<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.kind.kind, self.name)
    }
}

impl<'a> Workload<'a> {
    /// Every container, with its group.
    pub(super) fn containers(&self) -> impl Iterator<Item = (&Group<'a>, &Container<'a>)> {
        self.groups.iter().flat_map(|group| group.containers.iter().map(move |one| (group, one)))
    }

    /// Whether the job's pods form one distributed job.
    pub(super) fn is_one_job(&self) -> bool {
        match self.kind.together {
            Together::Job => true,
            Together::Perhaps => self.groups.iter().any(Group::works) && !self.is_array(),
            Together::No => false,
        }
    }

    /// Whether each pod is a job of its own, like the pods of an array: every launcher says that its pod
    /// is alone.
    pub(super) fn is_array(&self) -> bool {
        let mut launches = self
            .containers()
            .flat_map(|(_, one)| one.started.launches.iter().map(move |launch| (one, launch)))
            .filter(|(_, launch)| launch.launcher != Launcher::Python)
            .peekable();
        matches!(self.kind.together, Together::Perhaps)
            && launches.peek().is_some()
            && launches.all(|(container, launch)| is_alone(container, launch))
    }

    /// Nodes of the job; None if a number of replicas cannot be read.
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

    /// Whether the operator sets a variable of this name in the job's containers.
    pub(super) fn sets(&self, name: &str) -> bool {
        match self.kind.names(self.object) {
            Some(names) => names.iter().any(|set| set == name),
            None => self.kind.sets.iter().any(|begin| name.starts_with(begin)),
        }
    }

    /// nprocPerNode and similar fields, which the operator passes to torchrun.
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

/// Whether a launcher says that its pod is alone: ranklaunch by its own --nnodes 1; other launchers, for
/// which one node is the default, if they pass the pod's index to the script.
fn is_alone(container: &Container<'_>, launch: &LaunchCommand) -> bool {
    let nodes = launch.get(FlagField::Nnodes);
    let one = nodes.is_some_and(|nodes| nodes.text() == "1");
    if launch.launcher == Launcher::Ranklaunch {
        return one && launch.source(FlagField::Nnodes).is_empty();
    }
    let gathers = [FlagField::NodeRank, FlagField::Endpoint, FlagField::MasterAddr];
    (one || nodes.is_none())
        && !gathers.into_iter().any(|field| launch.get(field).is_some())
        && passes_index(container, launch)
}

/// Whether the script's own arguments have the completion index.
pub(super) fn passes_index(container: &Container<'_>, launch: &LaunchCommand) -> bool {
    let fields = container.env.iter().filter(|(_, variable)| {
        variable.field.as_deref().is_some_and(|field| field.contains("job-completion-index"))
    });
    let names: Vec<&str> =
        fields.map(|(name, _)| name.as_str()).chain(["JOB_COMPLETION_INDEX"]).collect();
    launch.args.iter().map(Word::shown).any(|word| names.iter().any(|name| word.contains(name)))
}

/// The role of an object.
pub(super) enum Role<'a> {
    Workload(Box<Workload<'a>>),
    /// The object has no pods, or is part of another object.
    Other,
    /// A kind that is not in the table.
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
        let known = WITHOUT_PODS.split(' ').any(|kind| kind == kind_name);
        return if known { Role::Other } else { Role::Unknown };
    };
    if is_runtime(object) && objects.iter().any(|(_, job)| refers_to(job, object)) {
        return Role::Other;
    }
    let mut groups = (kind.pods)(object, objects);
    for group in &mut groups {
        group.containers = containers(group, profiles);
    }
    let entrypoint = [["spec", "entrypoint"].as_slice(), &["spec", "jobTemplate", "entrypoint"]]
        .into_iter()
        .find_map(|path| object.at(path));
    let entrypoint =
        entrypoint.map(|script| command::of_script(script, profiles)).unwrap_or_default();
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

/// The containers in the order of the pod; layers with one name are one container.
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
        env.entry(name.to_owned()).or_insert(ContainerVariable { value, field, line });
    }
    let known: BTreeMap<String, String> = env
        .iter()
        .filter_map(|(name, variable)| {
            // The kubelet composes a value that refers to other variables.
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
    let started = command::of_container(&words, known, profiles);
    let references = references(&words);
    let shell_references = shell_references(&words);
    Container {
        name: name.to_owned(),
        node,
        env,
        started,
        references,
        shell_references,
        has_command,
    }
}

/// Whether the command is a shell, which reads its script.
fn is_script(words: &[(&str, &Node)]) -> bool {
    words.first().is_some_and(|(text, _)| is_shell(text))
}

/// Every `$NAME` and `${NAME}` of a script, once.
fn shell_references(words: &[(&str, &Node)]) -> Vec<ShellReference> {
    let mut found: Vec<ShellReference> = Vec::new();
    for (text, node) in words.iter().filter(|_| is_script(words)) {
        for (row, line) in text.lines().enumerate() {
            for name in shell_names(line) {
                if !found.iter().any(|reference| reference.name == name) {
                    found.push(ShellReference { name: name.to_owned(), line: node.line_of(row) });
                }
            }
        }
    }
    found
}

/// Every `$(NAME)` of a command; `$$(NAME)` is an escaped reference.
pub(super) fn references(words: &[(&str, &Node)]) -> Vec<Reference> {
    let in_script = is_script(words);
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
            // Commands are in lower case: `$(hostname)`.
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
