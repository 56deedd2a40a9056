//! The table of Kubernetes kinds: the place of each kind's pods, and their number.
//!
//! Takes an object; gives its [`Group`]s. A new kind is one more row of [`KINDS`].

use super::pods::{Group, Layers, Objects, is_kind, name_of};
use text::yaml::Node;

/// Whether the pods of a kind form a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Together {
    /// One distributed job.
    Job,
    /// One distributed job, if its pods use GPUs or a launcher.
    Perhaps,
    /// Each pod is independent.
    No,
}

/// One kind of object that has pods.
pub(super) struct WorkloadKind {
    pub(super) kind: &'static str,
    /// Prefix of apiVersion; "" for any.
    pub(super) group: &'static str,
    pub(super) together: Together,
    /// The operator passes torchrun's sizes in PET_ variables.
    pub(super) gives_pet: bool,
    /// The operator sets MASTER_ADDR and MASTER_PORT.
    pub(super) gives_master: bool,
    /// The processes on the GPUs are started from another pod: by Ray's tasks, by mpirun.
    pub(super) remote: bool,
    /// The object runs until it is deleted, as servers do.
    pub(super) stays: bool,
    /// The operator mounts memory at /dev/shm if the pod does not.
    pub(super) mounts_shm: bool,
    /// Prefixes of the variables that the operator sets in a container.
    pub(super) sets: &'static [&'static str],
    /// The operator is Volcano, whose variables follow from the plugins of the object.
    is_volcano: bool,
    pub(super) pods: for<'a> fn(&'a Node, &Objects<'a>) -> Vec<Group<'a>>,
}

impl WorkloadKind {
    /// The names that the operator sets in this object's containers, if the object determines them.
    pub(super) fn names(&self, object: &Node) -> Option<Vec<String>> {
        self.is_volcano.then(|| volcano_sets(object))?
    }

    /// Whether nothing but this operator sets a variable of this name.
    pub(super) fn owns(&self, name: &str) -> bool {
        self.is_volcano && OWN.iter().any(|prefix| name.starts_with(prefix))
    }
}

/// A kind with independent pods and no variables.
const PLAIN: WorkloadKind = WorkloadKind {
    kind: "",
    group: "",
    together: Together::No,
    gives_pet: false,
    gives_master: false,
    remote: false,
    stays: false,
    mounts_shm: false,
    sets: &[],
    is_volcano: false,
    pods: |_, _| Vec::new(),
};

/// Variables of torchrun and of the env:// rendezvous.
const TORCH: &[&str] = &["MASTER_", "WORLD_SIZE", "RANK", "PET_", "PYTHONUNBUFFERED"];
const INDEXED: &[&str] = &["JOB_COMPLETION_INDEX"];

const TRAINER_SETS: &[&str] = &["PET_", "JOB_COMPLETION_INDEX", "JOBSET_", "OMPI_", "TRAINJOB_"];

/// Ray mounts /dev/shm into the Ray container (ray-operator, common/pod.go, BuildPod).
const RAY: WorkloadKind = WorkloadKind {
    group: "ray.io/",
    remote: true,
    mounts_shm: true,
    sets: &["RAY_", "FQ_RAY_IP", "KUBERAY_", "REDIS_"],
    ..PLAIN
};

/// The runtime that a TrainJob refers to, for one namespace or for all.
const RUNTIME: WorkloadKind = WorkloadKind {
    group: "trainer.kubeflow.org/",
    together: Together::Job,
    gives_pet: true,
    gives_master: true,
    sets: TRAINER_SETS,
    pods: |object, _| runtime_groups(object),
    ..PLAIN
};

const VOLCANO: WorkloadKind = WorkloadKind {
    group: "batch.volcano.sh/",
    together: Together::Perhaps,
    gives_master: true,
    sets: &["VC_", "VK_", "MASTER_", "WORLD_SIZE", "RANK"],
    is_volcano: true,
    ..PLAIN
};

pub(super) const KINDS: &[WorkloadKind] = &[
    WorkloadKind {
        kind: "Pod",
        group: "v1",
        pods: |object, _| {
            object.get("spec").map(|spec| Group::of("pod", spec)).into_iter().collect()
        },
        ..PLAIN
    },
    WorkloadKind {
        kind: "Job",
        group: "batch/",
        together: Together::Perhaps,
        sets: INDEXED,
        pods: |object, _| batch_job(object.get("spec")),
        ..PLAIN
    },
    WorkloadKind {
        kind: "CronJob",
        group: "batch/",
        together: Together::Perhaps,
        sets: INDEXED,
        pods: |object, _| batch_job(object.at(&["spec", "jobTemplate", "spec"])),
        ..PLAIN
    },
    WorkloadKind {
        kind: "PyTorchJob",
        group: "kubeflow.org/",
        together: Together::Job,
        gives_pet: true,
        gives_master: true,
        sets: TORCH,
        pods: |object, _| replica_specs(object.at(&["spec", "pytorchReplicaSpecs"])),
        ..PLAIN
    },
    // hyperpodrun takes torchrun's options, and its ranks from the operator.
    WorkloadKind {
        kind: "HyperPodPyTorchJob",
        group: "sagemaker.amazonaws.com/",
        together: Together::Job,
        gives_pet: true,
        gives_master: true,
        sets: &[""],
        pods: |object, _| replicated_items(object.at(&["spec", "replicaSpecs"])),
        ..PLAIN
    },
    // v1 and v2beta1 have their pods in the same place.
    WorkloadKind {
        kind: "MPIJob",
        group: "kubeflow.org/",
        together: Together::Perhaps,
        remote: true,
        sets: &["OMPI_", "K_MPI_JOB_ROLE", "I_MPI_", "HYDRA_"],
        pods: |object, _| replica_specs(object.at(&["spec", "mpiReplicaSpecs"])),
        ..PLAIN
    },
    WorkloadKind {
        kind: "TrainingJob",
        group: "kubebrain.io/",
        together: Together::Job,
        gives_master: true,
        // The variables depend on the job template.
        sets: &[""],
        pods: |object, _| replica_specs(object.at(&["spec", "replicaSpecs"])),
        ..PLAIN
    },
    WorkloadKind {
        kind: "TrainJob",
        group: "trainer.kubeflow.org/",
        together: Together::Job,
        gives_pet: true,
        gives_master: true,
        sets: TRAINER_SETS,
        pods: train_job,
        ..PLAIN
    },
    WorkloadKind { kind: "TrainingRuntime", ..RUNTIME },
    WorkloadKind { kind: "ClusterTrainingRuntime", ..RUNTIME },
    WorkloadKind {
        kind: "RayJob",
        pods: |object, _| ray_cluster(object.at(&["spec", "rayClusterSpec"])),
        ..RAY
    },
    WorkloadKind {
        kind: "RayCronJob",
        pods: |object, _| ray_cluster(object.at(&["spec", "jobTemplate", "rayClusterSpec"])),
        ..RAY
    },
    WorkloadKind {
        kind: "RayService",
        stays: true,
        pods: |object, _| ray_cluster(object.at(&["spec", "rayClusterConfig"])),
        ..RAY
    },
    WorkloadKind { kind: "RayCluster", pods: |object, _| ray_cluster(object.get("spec")), ..RAY },
    WorkloadKind {
        kind: "Job",
        pods: |object, _| replicated_items(object.at(&["spec", "tasks"])),
        ..VOLCANO
    },
    WorkloadKind {
        kind: "CronJob",
        pods: |object, _| replicated_items(object.at(&["spec", "jobTemplate", "spec", "tasks"])),
        ..VOLCANO
    },
    WorkloadKind {
        kind: "JobTemplate",
        group: "flow.volcano.sh/",
        pods: |object, _| replicated_items(object.at(&["spec", "tasks"])),
        ..VOLCANO
    },
    WorkloadKind {
        kind: "JobSet",
        group: "jobset.x-k8s.io/",
        together: Together::Perhaps,
        sets: &["JOB_COMPLETION_INDEX", "JOBSET_"],
        pods: |object, _| {
            let jobs = object.at(&["spec", "replicatedJobs"]).map(Node::list).unwrap_or_default();
            jobs.iter().flat_map(|job| replicated_job(job)).collect()
        },
        ..PLAIN
    },
    WorkloadKind {
        kind: "LeaderWorkerSet",
        group: "leaderworkerset.x-k8s.io/",
        together: Together::Job,
        sets: &["LWS_"],
        pods: leader_worker_set,
        ..PLAIN
    },
    WorkloadKind {
        kind: "StatefulSet",
        group: "apps/",
        together: Together::Perhaps,
        pods: workload,
        ..PLAIN
    },
    WorkloadKind { kind: "Deployment", group: "apps/", stays: true, pods: workload, ..PLAIN },
    WorkloadKind { kind: "ReplicaSet", group: "apps/", stays: true, pods: workload, ..PLAIN },
    WorkloadKind { kind: "DaemonSet", group: "apps/", stays: true, pods: workload, ..PLAIN },
];

/// Kinds of Kubernetes and of operators without pods of a job.
pub(super) const WITHOUT_PODS: &str = "\
    Service ConfigMap Secret PersistentVolumeClaim PersistentVolume Namespace ServiceAccount Role \
    RoleBinding ClusterRole ClusterRoleBinding NetworkPolicy ResourceQuota LimitRange \
    PriorityClass StorageClass PodGroup Queue LocalQueue ClusterQueue ResourceFlavor \
    PodDisruptionBudget Ingress CustomResourceDefinition ResourceClaimTemplate ResourceClaim \
    DeviceClass ComputeDomain Topology WorkloadPriorityClass AdmissionCheck \
    ProvisioningRequestConfig JobFlow Endpoints EndpointSlice RuntimeClass APIService \
    HorizontalPodAutoscaler VerticalPodAutoscaler ScaledObject TriggerAuthentication \
    ClusterTriggerAuthentication ValidatingWebhookConfiguration MutatingWebhookConfiguration \
    ValidatingAdmissionPolicy ValidatingAdmissionPolicyBinding MutatingAdmissionPolicy \
    MutatingAdmissionPolicyBinding PodMonitor PodMonitoring ServiceMonitor PrometheusRule Gateway \
    HTTPRoute InferencePool Certificate Issuer ClusterIssuer ManagedCertificate FrontendConfig \
    BackendConfig ExternalSecret SecretStore NetworkAttachmentDefinition";

fn number(node: Option<&Node>, missing: u64) -> Option<u64> {
    match node {
        None => Some(missing),
        Some(node) => match node.text() {
            None => Some(missing),
            Some(text) => text.parse().ok(),
        },
    }
}

/// StatefulSet, Deployment and similar kinds.
fn workload<'a>(object: &'a Node, _: &Objects<'a>) -> Vec<Group<'a>> {
    object.get("spec").and_then(|spec| replicated(spec, "replicas")).into_iter().collect()
}

/// A map with a number of replicas and a pod template, which may lack its spec.
fn replicated<'a>(node: &'a Node, replicas: &str) -> Option<Group<'a>> {
    let template = node.get("template")?;
    let pod = template.get("spec").unwrap_or(template);
    let count = node.get(replicas);
    let role = node.get("name").and_then(Node::text).unwrap_or("replicas");
    Some(Group {
        replicas: number(count, 1),
        replicas_line: count.map_or(node.line, |count| count.line),
        metadata: node.at(&["template", "metadata"]),
        controller: Layers::of(node),
        ..Group::of(role, pod)
    })
}

fn replicated_items<'a>(list: Option<&'a Node>) -> Vec<Group<'a>> {
    let items = list.map(Node::list).unwrap_or_default();
    items.iter().filter_map(|item| replicated(item, "replicas")).collect()
}

fn replica_specs<'a>(specs: Option<&'a Node>) -> Vec<Group<'a>> {
    let Some(specs) = specs else { return Vec::new() };
    specs
        .entries()
        .filter_map(|(role, key, spec)| {
            let group = replicated(spec, "replicas")?;
            let line = if spec.get("replicas").is_some() { group.replicas_line } else { key.line };
            Some(Group { role: role.to_owned(), replicas_line: line, ..group })
        })
        .collect()
}

fn batch_job<'a>(spec: Option<&'a Node>) -> Vec<Group<'a>> {
    spec.and_then(|spec| replicated(spec, "parallelism"))
        .map(|group| Group { role: "pod".to_owned(), ..group })
        .into_iter()
        .collect()
}

fn replicated_job<'a>(job: &'a Node) -> Option<Group<'a>> {
    let group = replicated(job.at(&["template", "spec"])?, "parallelism")?;
    let copies = number(job.get("replicas"), 1)?;
    let role = job.get("name").and_then(Node::text).unwrap_or("job").to_owned();
    let replicas = group.replicas.and_then(|n| n.checked_mul(copies));
    Some(Group { role, replicas, copies, ..group })
}

fn ray_cluster<'a>(spec: Option<&'a Node>) -> Vec<Group<'a>> {
    let Some(spec) = spec else { return Vec::new() };
    let head = spec.at(&["headGroupSpec", "template", "spec"]).map(|pod| Group::of("head", pod));
    let workers = spec.get("workerGroupSpecs").map(Node::list).unwrap_or_default();
    let workers = workers.iter().filter_map(|worker| {
        let group = replicated(worker, "replicas")?;
        let hosts = number(worker.get("numOfHosts"), 1)?;
        let role = worker.get("groupName").and_then(Node::text).unwrap_or("worker").to_owned();
        Some(Group { role, replicas: group.replicas.and_then(|n| n.checked_mul(hosts)), ..group })
    });
    head.into_iter().chain(workers).collect()
}

/// Each group is a job: one leader and its workers.
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

pub(super) fn is_runtime(object: &Node) -> bool {
    is_kind(object, "TrainingRuntime") || is_kind(object, "ClusterTrainingRuntime")
}

pub(super) fn refers_to(job: &Node, runtime: &Node) -> bool {
    let reference = |key| job.at(&["spec", "runtimeRef", key]).and_then(Node::text);
    let kind = reference("kind").unwrap_or("ClusterTrainingRuntime");
    is_kind(job, "TrainJob")
        && is_kind(runtime, kind)
        && reference("name") == Some(name_of(runtime).as_str())
}

const TRAINER: &str = "node";

/// The trainer's JobSpecs in a runtime, or in a patch of one.
fn trainers(spec: &Node) -> impl Iterator<Item = &Node> {
    let jobs = spec.at(&["template", "spec", "replicatedJobs"]).map(Node::list).unwrap_or_default();
    let own = |job: &&std::rc::Rc<Node>| job.get("name").and_then(Node::text) == Some(TRAINER);
    jobs.iter().filter(own).filter_map(|job| job.at(&["template", "spec"]))
}

/// The pods of JobSpecs.
fn pods_of<'a>(jobs: &[&'a Node]) -> impl Iterator<Item = (&'a Node, &'a Node)> {
    jobs.iter().filter_map(|job| Some((*job, job.at(&["template", "spec"])?)))
}

fn runtime_groups<'a>(object: &'a Node) -> Vec<Group<'a>> {
    let Some(spec) = object.get("spec") else { return Vec::new() };
    let count = spec.at(&["mlPolicy", "numNodes"]);
    let jobs: Vec<&Node> = trainers(spec).collect();
    pods_of(&jobs)
        .map(|(job, pod)| Group {
            replicas: number(count, 1),
            replicas_line: count.map_or(pod.line, |count| count.line),
            controller: Layers::of(job),
            ..Group::of(TRAINER, pod)
        })
        .collect()
}

/// The trainer of a TrainJob, over its patches, over the runtime if the input has the runtime.
fn train_job<'a>(object: &'a Node, objects: &Objects<'a>) -> Vec<Group<'a>> {
    let Some(spec) = object.get("spec") else { return Vec::new() };
    let runtime = objects
        .iter()
        .map(|(_, other)| *other)
        .find(|other| is_runtime(other) && refers_to(object, other));
    let patches = spec.get("runtimePatches").map(Node::list).unwrap_or_default();
    let patches = patches.iter().filter_map(|patch| patch.get("trainingRuntimeSpec"));
    let mut jobs: Vec<&'a Node> = patches.flat_map(trainers).collect();
    let mut pods: Vec<&'a Node> = pods_of(&jobs).map(|(_, pod)| pod).collect();
    for patch in spec.get("podTemplateOverrides").map(Node::list).unwrap_or_default() {
        pods.extend(patch.get("spec"));
    }
    let base = runtime.and_then(|runtime| runtime.get("spec"));
    if let Some(base) = base {
        let own: Vec<&'a Node> = trainers(base).collect();
        pods.extend(pods_of(&own).map(|(_, pod)| pod));
        jobs.extend(own);
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
        controller: Layers { layers: jobs },
        metadata: None,
        copies: 1,
        whole: base.is_some(),
        over: Some((TRAINER, trainer.into_iter().collect())),
        containers: Vec::new(),
    }]
}

/// The plugins of Volcano that set variables (volcano-sh/volcano, pkg/controllers/job/plugins and
/// pkg/webhooks/admission/jobs/mutate), and those variables. TASK stands for the name of each task in
/// capitals, with `_` for `-`.
const PLUGINS: &[(&str, &[&str])] = &[
    ("env", &["VC_TASK_INDEX", "VK_TASK_INDEX"]),
    ("svc", &["VC_TASK_HOSTS", "VC_TASK_NUM"]),
    ("pytorch", &["MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK"]),
    ("tensorflow", &["TF_CONFIG"]),
    ("mpi", &["MPI_HOST"]),
    ("ssh", &[]),
];
/// The plugins to which the admission webhook adds `svc`.
const WITH_SVC: &[&str] = &["pytorch", "tensorflow", "mpi"];
/// Prefixes of variables that only Volcano sets.
const OWN: &[&str] = &["VC_", "VK_"];

/// The names that a job sets; None if the job has a plugin that the table lacks.
fn volcano_sets(object: &Node) -> Option<Vec<String>> {
    let spec = [["spec"].as_slice(), &["spec", "jobTemplate", "spec"]]
        .into_iter()
        .filter_map(|path| object.at(path))
        .find(|spec| spec.get("tasks").is_some())?;
    let plugins = spec.get("plugins").map(|node| node.entries().map(|(name, ..)| name).collect());
    let plugins: Vec<&str> = plugins.unwrap_or_default();
    let tasks = spec.get("tasks").map(Node::list).unwrap_or_default();
    let tasks: Vec<String> = tasks
        .iter()
        .filter_map(|task| task.get("name")?.text())
        .map(|name| name.to_uppercase().replace('-', "_"))
        .collect();
    let implied = plugins.iter().any(|name| WITH_SVC.contains(name)).then_some("svc");
    let mut names = Vec::new();
    for plugin in plugins.into_iter().chain(implied) {
        let (_, variables) = PLUGINS.iter().find(|(name, _)| *name == plugin)?;
        for variable in *variables {
            match variable.strip_prefix("VC_TASK_").filter(|_| plugin == "svc") {
                Some(what) => names.extend(tasks.iter().map(|task| format!("VC_{task}_{what}"))),
                None => names.push((*variable).to_owned()),
            }
        }
    }
    Some(names)
}
