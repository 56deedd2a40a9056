//! Volcano jobs: variables by plugin and task, and values that Kubernetes cannot use.

use std::sync::LazyLock;

use super::super::samples::{PYTORCHJOB, RANKLAUNCH, VOLCANO, volcano};
use super::{Case, case, warns};

pub(super) const CASES: &[Case] = &[
    case("env.undefined", VOLCANO, ", env: []", "", "- --node_rank=$(VC_TASK_INDEX)"),
    case("env.undefined", VOLCANO, "$(VC_TASK_INDEX)", "$(VC_INDEX)", "- --node_rank="),
    case(
        "env.undefined",
        VOLCANO,
        "$(VC_TRAINER_HOSTS)",
        "$(VC_trainer_0_HOSTS)",
        "- --master_addr=",
    ),
    case("env.undefined", VOLCANO, "$(VC_TRAINER_HOSTS)", "$(VC_WORKER_HOSTS)", "- --master_addr="),
    case("env.undefined", VOLCANO, "svc: [], ", "", "- --master_addr="),
    // The pytorch plugin includes svc, and sets RANK.
    case("env.undefined", VOLCANO, "svc: [], ", "pytorch: [], ", ""),
    // Variables of another plugin are not known.
    case("env.undefined", VOLCANO, "svc: [], env: []", "ours: []", ""),
    case("env.undefined", VOLCANO, "name: trainer", "name: the-trainer", "- --master_addr="),
    case("pod.containers", VOLCANO, "  tasks:", EMPTY_TASK, "- {name: none"),
    case("nodes.count", VOLCANO, "  tasks:", EMPTY_TASK, ""),
    warns(case(
        "env.literal",
        PYTORCHJOB,
        "value: \"8\"",
        "value: \"$PATH:/opt\"",
        "- {name: OMP_NUM",
    )),
    warns(case(
        "env.literal",
        PYTORCHJOB,
        "OMP_NUM_THREADS, value: \"8\"",
        "LD_LIBRARY_PATH, value: \"/opt/lib:${LD_LIBRARY_PATH}\"",
        "- {name: LD_LIBRARY_PATH",
    )),
    case(
        "env.literal",
        PYTORCHJOB,
        "OMP_NUM_THREADS, value: \"8\"",
        "OMP_NUM_THREADS, value: \"${OMP_NUM_THREADS}\"",
        "",
    ),
    // A template tool may fill this in, and Kubernetes expands the other.
    case("env.literal", PYTORCHJOB, "value: \"8\"", "value: \"$THREADS\"", ""),
    case("env.literal", PYTORCHJOB, "value: \"8\"", "value: \"$(PATH)$$PATH\"", ""),
    case("image.name", PYTORCHJOB, "image: wan2-2", "image: <YOUR_REGISTRY>/wan:1", "image: <YOUR"),
    case("image.name", PYTORCHJOB, "image: wan2-2", "image: YOUR_REGISTRY/wan:1", "image: YOUR"),
    case(
        "image.name",
        PYTORCHJOB,
        "image: wan2-2",
        "image: your-registry.com/wan:1",
        "image: your",
    ),
    case(
        "image.name",
        PYTORCHJOB,
        "image: wan2-2",
        "image: Registry.Example:5000/a/b:T1@sha256:ab",
        "",
    ),
    case("image.name", PYTORCHJOB, "image: wan2-2", "image: $REGISTRY/Wan", ""),
    case("quantity.invalid", PYTORCHJOB, "memory: 128Gi", "memory: 128gb", "memory: 128gb"),
    case("quantity.invalid", PYTORCHJOB, "memory: 128Gi", "memory: ${MEMORY}", ""),
    case("quantity.invalid", PYTORCHJOB, "sizeLimit: 2Gi", "sizeLimit: 16gb", "emptyDir:"),
    case(
        "command.string",
        RANKLAUNCH,
        "args: [--profile, wan22]",
        "command: [\"ranklaunch --profile wan22\"]",
        "command:",
    ),
    case(
        "command.string",
        RANKLAUNCH,
        "args: [--profile, wan22]",
        "command: [ranklaunch, \"--profile wan22\"]",
        "command:",
    ),
    case(
        "command.string",
        RANKLAUNCH,
        "args: [--profile, wan22]",
        "command: [torchrun, \"--nnodes 2\", t.py]",
        "command:",
    ),
    case(
        "command.string",
        RANKLAUNCH,
        "args: [--profile, wan22]",
        "command: [sh, -c, \"ranklaunch --profile wan22\"]",
        "",
    ),
    warns(case("volume.once", CLAIM, "ReadWriteMany", "ReadWriteOnce", "persistentVolumeClaim:")),
    case("volume.once", CLAIM, "ReadWriteMany", "ReadWriteOncePod", "persistentVolumeClaim:"),
    // Either mode is enough.
    case("volume.once", CLAIM, "[ReadWriteMany]", "[ReadWriteOnce, ReadWriteMany]", ""),
    case("volume.once", CLAIM_OF_ONE, "ReadWriteMany", "ReadWriteOnce", ""),
];

/// Tasks that start torchrun in a shell.
pub(super) static BUILT: LazyLock<Vec<Case>> = LazyLock::new(|| {
    let one: &str = volcano(&[("trainer", 2, "$VC_TASK_INDEX")]).leak();
    let two: &str = volcano(&[("master", 1, "0"), ("worker", 2, "$((VC_TASK_INDEX + 1))")]).leak();
    vec![
        case("env.undefined", one, ", env: []", "", "template:"),
        case("env.undefined", one, "$VC_TASK_INDEX", "${VC_TASK_INDEX:-0}", ""),
        case("env.undefined", one, "$VC_TASK_INDEX", "${VC_INDEX}", "template:"),
        case("nodes.rank", two, "$((VC_TASK_INDEX + 1))", "$VC_TASK_INDEX", "template:"),
    ]
});

const EMPTY_TASK: &str = "  tasks:\n    - {name: none, replicas: 2, template: {spec: {}}}";
const CLAIM: &str = r#"apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteMany], resources: {requests: {storage: 1Ti}}}
---
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: demo}
spec:
  pytorchReplicaSpecs:
    Master: &role
      replicas: 1
      template:
        spec:
          terminationGracePeriodSeconds: 60
          containers:
          - name: pytorch
            image: img:1
            command: [ranklaunch, --, train.py]
            resources: {requests: {cpu: 4, memory: 64Gi}, limits: {nvidia.com/gpu: 1, memory: 64Gi}}
            volumeMounts: [{name: shm, mountPath: /dev/shm}, {name: data, mountPath: /data}]
          volumes:
          - name: shm
            emptyDir: {medium: Memory, sizeLimit: 8Gi}
          - name: data
            persistentVolumeClaim: {claimName: data}
    Worker: *role
"#;
const CLAIM_OF_ONE: &str = r#"apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteMany], resources: {requests: {storage: 1Ti}}}
---
apiVersion: v1
kind: Pod
metadata: {name: demo}
spec:
  containers: [{name: a, image: b, command: [sleep, inf]}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
"#;
