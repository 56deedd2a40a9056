//! A manifest's objects as jobs: which pods there are, how many of each, and what runs in them.
//!
//! Takes the documents of all files; gives [`Workload`]s and the Services beside
//! them. The kinds are the rows of [`KINDS`]; whoever knows where a kind keeps its
//! pods adds one row.

use std::collections::BTreeMap;

use super::command::{self, Started};
use super::quantity;
use super::yaml::Node;

/// Resources that are whole GPUs.
const GPUS: &[&str] = &["nvidia.com/gpu", "amd.com/gpu", "aliyun.com/gpu"];
/// Prefix of the resources that are slices of one GPU, a device each.
const SLICES: &str = "nvidia.com/mig-";

/// How the pods of a kind belong together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Together {
    /// One distributed job.
    Job,
    /// One distributed job, if its pods use GPUs or a launcher at all.
    Perhaps,
    /// Each pod is on its own.
    No,
}

/// One kind of object that has pods.
pub(super) struct Kind {
    pub(super) kind: &'static str,
    /// Begin of apiVersion; "" for any.
    group: &'static str,
    pub(super) together: Together,
    /// The operator gives torchrun its sizes through PET_ variables.
    pub(super) gives_pet: bool,
    /// The operator sets MASTER_ADDR and MASTER_PORT.
    pub(super) gives_master: bool,
    pods: for<'a> fn(&'a Node, &Objects<'a>) -> Vec<Group<'a>>,
}

/// A kind whose pods are on their own and are told nothing.
const PLAIN: Kind = Kind {
    kind: "",
    group: "",
    together: Together::No,
    gives_pet: false,
    gives_master: false,
    pods: |_, _| Vec::new(),
};

const KINDS: &[Kind] = &[
    Kind {
        kind: "Pod",
        group: "v1",
        pods: |object, _| {
            object.get("spec").map(|spec| Group::of("pod", spec)).into_iter().collect()
        },
        ..PLAIN
    },
    Kind {
        kind: "Job",
        group: "batch/",
        together: Together::Perhaps,
        pods: |object, _| batch_job(object.get("spec")),
        ..PLAIN
    },
    Kind {
        kind: "CronJob",
        group: "batch/",
        together: Together::Perhaps,
        pods: |object, _| batch_job(object.at(&["spec", "jobTemplate", "spec"])),
        ..PLAIN
    },
    Kind {
        kind: "PyTorchJob",
        group: "kubeflow.org/",
        together: Together::Job,
        gives_pet: true,
        gives_master: true,
        pods: |object, _| replica_specs(object.at(&["spec", "pytorchReplicaSpecs"])),
    },
    Kind {
        kind: "TrainingJob",
        group: "kubebrain.io/",
        together: Together::Job,
        gives_master: true,
        pods: |object, _| replica_specs(object.at(&["spec", "replicaSpecs"])),
        ..PLAIN
    },
    Kind {
        kind: "TrainJob",
        group: "trainer.kubeflow.org/",
        together: Together::Job,
        gives_pet: true,
        gives_master: true,
        pods: train_job,
    },
    Kind {
        kind: "TrainingRuntime",
        group: "trainer.kubeflow.org/",
        together: Together::Job,
        gives_pet: true,
        gives_master: true,
        pods: |object, _| runtime_groups(object),
    },
    Kind {
        kind: "ClusterTrainingRuntime",
        group: "trainer.kubeflow.org/",
        together: Together::Job,
        gives_pet: true,
        gives_master: true,
        pods: |object, _| runtime_groups(object),
    },
    Kind {
        kind: "RayJob",
        group: "ray.io/",
        pods: |object, _| ray_cluster(object.at(&["spec", "rayClusterSpec"])),
        ..PLAIN
    },
    Kind {
        kind: "RayCluster",
        group: "ray.io/",
        pods: |object, _| ray_cluster(object.get("spec")),
        ..PLAIN
    },
    Kind {
        kind: "Job",
        group: "batch.volcano.sh/",
        together: Together::Perhaps,
        gives_master: true,
        pods: |object, _| {
            let tasks = object.at(&["spec", "tasks"]).map(Node::list).unwrap_or_default();
            tasks.iter().filter_map(|task| replicated(task, "replicas", "template")).collect()
        },
        ..PLAIN
    },
    Kind {
        kind: "JobSet",
        group: "jobset.x-k8s.io/",
        together: Together::Perhaps,
        pods: |object, _| {
            let jobs = object.at(&["spec", "replicatedJobs"]).map(Node::list).unwrap_or_default();
            jobs.iter().flat_map(|job| replicated_job(job)).collect()
        },
        ..PLAIN
    },
    Kind {
        kind: "LeaderWorkerSet",
        group: "leaderworkerset.x-k8s.io/",
        together: Together::Job,
        pods: leader_worker_set,
        ..PLAIN
    },
    Kind {
        kind: "StatefulSet",
        group: "apps/",
        together: Together::Perhaps,
        pods: |object, _| {
            object
                .get("spec")
                .and_then(|s| replicated(s, "replicas", "template"))
                .into_iter()
                .collect()
        },
        ..PLAIN
    },
    Kind {
        kind: "Deployment",
        group: "apps/",
        pods: |object, _| {
            object
                .get("spec")
                .and_then(|s| replicated(s, "replicas", "template"))
                .into_iter()
                .collect()
        },
        ..PLAIN
    },
    Kind {
        kind: "ReplicaSet",
        group: "apps/",
        pods: |object, _| {
            object
                .get("spec")
                .and_then(|s| replicated(s, "replicas", "template"))
                .into_iter()
                .collect()
        },
        ..PLAIN
    },
    Kind {
        kind: "DaemonSet",
        group: "apps/",
        pods: |object, _| {
            object
                .get("spec")
                .and_then(|s| replicated(s, "replicas", "template"))
                .into_iter()
                .collect()
        },
        ..PLAIN
    },
];

/// Kinds of Kubernetes and of the operators that have no pods of a job.
const WITHOUT_PODS: &[&str] = &[
    "Service",
    "ConfigMap",
    "Secret",
    "PersistentVolumeClaim",
    "PersistentVolume",
    "Namespace",
    "ServiceAccount",
    "Role",
    "RoleBinding",
    "ClusterRole",
    "ClusterRoleBinding",
    "NetworkPolicy",
    "ResourceQuota",
    "LimitRange",
    "PriorityClass",
    "StorageClass",
    "PodGroup",
    "Queue",
    "LocalQueue",
    "ClusterQueue",
    "ResourceFlavor",
    "PodDisruptionBudget",
    "Ingress",
    "CustomResourceDefinition",
    "ResourceClaimTemplate",
    "ResourceClaim",
    "DeviceClass",
];

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
    /// All of the pod is in the manifest.
    pub(super) whole: bool,
    /// What lies over the container of this name (a TrainJob's trainer).
    over: Option<(&'static str, Vec<&'a Node>)>,
    pub(super) containers: Vec<Container<'a>>,
}

impl<'a> Group<'a> {
    fn of(role: &str, pod: &'a Node) -> Group<'a> {
        Group {
            role: role.to_owned(),
            replicas: Some(1),
            replicas_line: pod.line,
            pod: Layers::of(pod),
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
    pub(super) line: usize,
}

#[derive(Debug)]
pub(super) struct Container<'a> {
    pub(super) name: String,
    pub(super) node: Layers<'a>,
    pub(super) env: BTreeMap<String, Variable>,
    pub(super) started: Started,
    /// It has a command or arguments of its own.
    pub(super) has_command: bool,
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

    pub(super) fn works(&self) -> bool {
        self.gpus().is_some()
            || self
                .started
                .launches
                .iter()
                .any(|launch| launch.launcher != command::Launcher::Python)
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
        self.groups
            .iter()
            .filter(|group| all || group.works())
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

pub(super) fn role<'a>(file: usize, object: &'a Node, objects: &Objects<'a>) -> Role<'a> {
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
        group.containers = containers(group);
    }
    let entrypoint = object.at(&["spec", "entrypoint"]);
    let entrypoint =
        entrypoint.map(|script| command::of_script(script, &BTreeMap::new())).unwrap_or_default();
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
fn containers<'a>(group: &Group<'a>) -> Vec<Container<'a>> {
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
        .filter_map(|name| Some(container(name, Layers { layers: layers.remove(name)? })))
        .collect()
}

fn container<'a>(name: &str, node: Layers<'a>) -> Container<'a> {
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
        env.entry(name.to_owned()).or_insert(Variable { value, line });
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
    let started = command::of_container(&words, &known);
    Container { name: name.to_owned(), node, env, started, has_command }
}

fn number(node: Option<&Node>, missing: u64) -> Option<u64> {
    match node {
        None => Some(missing),
        Some(node) => match node.text() {
            None => Some(missing),
            Some(text) => text.parse().ok(),
        },
    }
}

/// A map with a number of replicas and a pod template.
fn replicated<'a>(node: &'a Node, replicas: &str, template: &str) -> Option<Group<'a>> {
    let pod = node.at(&[template, "spec"])?;
    let count = node.get(replicas);
    let role = node.get("name").and_then(Node::text).unwrap_or("replicas");
    Some(Group {
        replicas: number(count, 1),
        replicas_line: count.map_or(node.line, |count| count.line),
        ..Group::of(role, pod)
    })
}

fn replica_specs<'a>(specs: Option<&'a Node>) -> Vec<Group<'a>> {
    let Some(specs) = specs else { return Vec::new() };
    specs
        .entries()
        .filter_map(|(role, key, spec)| {
            let group = replicated(spec, "replicas", "template")?;
            let line = if spec.get("replicas").is_some() { group.replicas_line } else { key.line };
            Some(Group { role: role.to_owned(), replicas_line: line, ..group })
        })
        .collect()
}

fn batch_job<'a>(spec: Option<&'a Node>) -> Vec<Group<'a>> {
    spec.and_then(|spec| replicated(spec, "parallelism", "template"))
        .map(|group| Group { role: "pod".to_owned(), ..group })
        .into_iter()
        .collect()
}

fn replicated_job<'a>(job: &'a Node) -> Option<Group<'a>> {
    let group = replicated(job.at(&["template", "spec"])?, "parallelism", "template")?;
    let copies = number(job.get("replicas"), 1)?;
    let role = job.get("name").and_then(Node::text).unwrap_or("job").to_owned();
    Some(Group { role, replicas: group.replicas.and_then(|n| n.checked_mul(copies)), ..group })
}

fn ray_cluster<'a>(spec: Option<&'a Node>) -> Vec<Group<'a>> {
    let Some(spec) = spec else { return Vec::new() };
    let head = spec.at(&["headGroupSpec", "template", "spec"]).map(|pod| Group::of("head", pod));
    let workers = spec.get("workerGroupSpecs").map(Node::list).unwrap_or_default();
    let workers = workers.iter().filter_map(|worker| {
        let group = replicated(worker, "replicas", "template")?;
        let hosts = number(worker.get("numOfHosts"), 1)?;
        let role = worker.get("groupName").and_then(Node::text).unwrap_or("worker").to_owned();
        Some(Group { role, replicas: group.replicas.and_then(|n| n.checked_mul(hosts)), ..group })
    });
    head.into_iter().chain(workers).collect()
}

/// Groups are jobs of their own; one group is one leader and its workers.
fn leader_worker_set<'a>(object: &'a Node, _: &Objects<'a>) -> Vec<Group<'a>> {
    let Some(template) = object.at(&["spec", "leaderWorkerTemplate"]) else { return Vec::new() };
    let size = template.get("size");
    let line = size.map_or(template.line, |size| size.line);
    let nodes = number(size, 1);
    let leader = template.at(&["leaderTemplate", "spec"]);
    let worker = template.at(&["workerTemplate", "spec"]);
    let sized =
        |pod, role: &str, replicas| Group { replicas, replicas_line: line, ..Group::of(role, pod) };
    match (leader, worker) {
        (Some(leader), Some(worker)) => vec![
            sized(leader, "leader", Some(1)),
            sized(worker, "worker", nodes.map(|n| n.saturating_sub(1))),
        ],
        (Some(pod), None) | (None, Some(pod)) => vec![sized(pod, "worker", nodes)],
        (None, None) => Vec::new(),
    }
}

fn is_runtime(object: &Node) -> bool {
    is_kind(object, "TrainingRuntime") || is_kind(object, "ClusterTrainingRuntime")
}

fn refers_to(job: &Node, runtime: &Node) -> bool {
    let reference = |key| job.at(&["spec", "runtimeRef", key]).and_then(Node::text);
    let kind = reference("kind").unwrap_or("ClusterTrainingRuntime");
    is_kind(job, "TrainJob")
        && is_kind(runtime, kind)
        && reference("name") == Some(name_of(runtime).as_str())
}

const TRAINER: &str = "node";

/// The replicated jobs of a runtime, or of a patch of one.
fn runtime_pods(spec: &Node) -> impl Iterator<Item = (&str, &Node)> {
    let jobs = spec.at(&["template", "spec", "replicatedJobs"]).map(Node::list).unwrap_or_default();
    jobs.iter().filter_map(|job| {
        let pod = job.at(&["template", "spec", "template", "spec"])?;
        Some((job.get("name").and_then(Node::text).unwrap_or_default(), pod))
    })
}

fn runtime_groups<'a>(object: &'a Node) -> Vec<Group<'a>> {
    let Some(spec) = object.get("spec") else { return Vec::new() };
    let count = spec.at(&["mlPolicy", "numNodes"]);
    runtime_pods(spec)
        .filter(|(name, _)| *name == TRAINER)
        .map(|(_, pod)| Group {
            replicas: number(count, 1),
            replicas_line: count.map_or(pod.line, |count| count.line),
            ..Group::of(TRAINER, pod)
        })
        .collect()
}

/// The trainer of a TrainJob over the patches over the runtime, where that is in the input.
fn train_job<'a>(object: &'a Node, objects: &Objects<'a>) -> Vec<Group<'a>> {
    let Some(spec) = object.get("spec") else { return Vec::new() };
    let runtime = objects
        .all
        .iter()
        .map(|(_, other)| *other)
        .find(|other| is_runtime(other) && refers_to(object, other));
    let mut pods: Vec<&'a Node> = Vec::new();
    for patch in spec.get("runtimePatches").map(Node::list).unwrap_or_default() {
        if let Some(runtime_spec) = patch.get("trainingRuntimeSpec") {
            pods.extend(
                runtime_pods(runtime_spec).filter(|(name, _)| *name == TRAINER).map(|(_, pod)| pod),
            );
        }
    }
    for patch in spec.get("podTemplateOverrides").map(Node::list).unwrap_or_default() {
        pods.extend(patch.get("spec"));
    }
    let base = runtime.and_then(|runtime| runtime.get("spec"));
    if let Some(base) = base {
        pods.extend(runtime_pods(base).filter(|(name, _)| *name == TRAINER).map(|(_, pod)| pod));
    }
    let trainer = spec.get("trainer");
    let count = trainer
        .and_then(|trainer| trainer.get("numNodes"))
        .or_else(|| base.and_then(|base| base.at(&["mlPolicy", "numNodes"])));
    vec![Group {
        role: TRAINER.to_owned(),
        replicas: match (count, base) {
            (None, None) => None,
            _ => number(count, 1),
        },
        replicas_line: count.map_or(spec.line, |count| count.line),
        pod: Layers { layers: pods },
        whole: base.is_some(),
        over: Some((TRAINER, trainer.into_iter().collect())),
        containers: Vec::new(),
    }]
}
