//! Values that the API server rejects, and words of a command that nothing reads.

use super::super::samples::{INDEXED_JOB, PYTORCHJOB, RANKLAUNCH};
use super::{Case, case};

const NAME: &str = "        - name: training\n";
const LAUNCHER: &str = "            - accelerate\n            - launch\n";
const WORKER: &str = "    Worker:\n      replicas: 1\n      template: *pod\n";

pub(super) const CASES: &[Case] = &[
    // The values have wrong types.
    case("object.rejected", PYTORCHJOB, "value: \"8\"", "value: 8", "- {name: OMP"),
    case("object.rejected", PYTORCHJOB, "value: \"8\"", "value: true", "- {name: OMP"),
    case("object.rejected", PYTORCHJOB, "value: \"8\"", "value: no", "- {name: OMP"),
    case("object.rejected", PYTORCHJOB, "value: \"8\"", "value: !!str 8", ""),
    case("object.rejected", PYTORCHJOB, "value: \"8\"", "value: null", ""),
    case("object.rejected", INDEXED_JOB, "completions: 2", "completions: $N", ""),
    case("object.rejected", PYTORCHJOB, "command: [bash, -c]", "command: bash -c", "command: bash"),
    case("object.rejected", INDEXED_JOB, "- train.py", "- 8", "- 8"),
    case("object.rejected", INDEXED_JOB, "- train.py", "- '8'", ""),
    case(
        "object.rejected",
        INDEXED_JOB,
        "      subdomain:",
        "      nodeSelector: {gpu: true}\n      subdomain:",
        "nodeSelector:",
    ),
    case(
        "object.rejected",
        INDEXED_JOB,
        "      subdomain:",
        "      nodeSelector: {gpu: \"true\"}\n      subdomain:",
        "",
    ),
    case("object.rejected", INDEXED_JOB, "completions: 2", "completions: \"2\"", "completions:"),
    case(
        "object.rejected",
        INDEXED_JOB,
        "  parallelism: 2",
        "  activeDeadlineSeconds: 1h\n  parallelism: 2",
        "activeDeadlineSeconds:",
    ),
    case(
        "object.rejected",
        PYTORCHJOB,
        "spec:\n  pytorch",
        "spec:\n  nprocPerNode: 4\n  pytorch",
        "nprocPerNode:",
    ),
    case(
        "object.rejected",
        PYTORCHJOB,
        "spec:\n  pytorch",
        "spec:\n  nprocPerNode: \"4\"\n  pytorch",
        "",
    ),
    // The values are out of range.
    case(
        "object.rejected",
        INDEXED_JOB,
        NAME,
        "        - name: training\n          ports: [{containerPort: 299500}]\n",
        "ports:",
    ),
    case(
        "object.rejected",
        INDEXED_JOB,
        NAME,
        "        - name: training\n          ports: [{containerPort: 29500}]\n",
        "",
    ),
    case(
        "object.rejected",
        INDEXED_JOB,
        "- name: training",
        "- name: Training",
        "- name: Training",
    ),
    case(
        "object.rejected",
        INDEXED_JOB,
        "restartPolicy: Never",
        "restartPolicy: Always",
        "restart",
    ),
    case("object.rejected", INDEXED_JOB, "      restartPolicy: Never\n", "", "subdomain: taehv"),
    case("object.rejected", INDEXED_JOB, "restartPolicy: Never", "restartPolicy: OnFailure", ""),
    case(
        "object.rejected",
        PYTORCHJOB,
        "          terminationGrace",
        "          restartPolicy: Always\n          terminationGrace",
        "",
    ),
    case(
        "quantity.invalid",
        INDEXED_JOB,
        "nvidia.com/gpu: 8",
        "nvidia.com/gpu: 0.5",
        "nvidia.com/gpu: 0.5",
    ),
    case("quantity.invalid", INDEXED_JOB, "cpu: 32", "cpu: 0.5", ""),
    // Undefined volumes in mounts, and relative folders.
    case(
        "object.rejected",
        INDEXED_JOB,
        "mountPath: /dev/shm/",
        "mountPath: /dev/shm/\n            - name: data\n              mountPath: /data",
        "- name: data",
    ),
    case(
        "object.rejected",
        INDEXED_JOB,
        NAME,
        "        - name: training\n          workingDir: workspace\n",
        "workingDir:",
    ),
    case(
        "object.rejected",
        INDEXED_JOB,
        NAME,
        "        - name: training\n          workingDir: /workspace\n",
        "",
    ),
    // `sh -c` runs one item.
    case(
        "command.string",
        INDEXED_JOB,
        LAUNCHER,
        "            - sh\n            - -c\n            - accelerate\n            - launch\n",
        "- launch",
    ),
    case(
        "command.string",
        RANKLAUNCH,
        "args: [--profile, wan22]",
        "command: [/bin/bash, -c]\n              args: [ranklaunch, --profile, wan22]",
        "args:",
    ),
    case(
        "command.string",
        RANKLAUNCH,
        "args: [--profile, wan22]",
        "command: [tini, --, sh, -c, ranklaunch, --profile, wan22]",
        "command:",
    ),
    case(
        "command.string",
        RANKLAUNCH,
        "args: [--profile, wan22]",
        "command: [sh, -c, 'exec \"$@\"', --, ranklaunch, --profile, wan22]",
        "",
    ),
    case(
        "command.string",
        RANKLAUNCH,
        "args: [--profile, wan22]",
        "command: [bash, -c, 'source /etc/profile; ranklaunch --profile wan22', a, b]",
        "",
    ),
    case(
        "command.string",
        RANKLAUNCH,
        "args: [--profile, wan22]",
        "command: [bash, -c, exec ranklaunch --profile wan22, bash]",
        "",
    ),
    // No shell reads the arguments of a program.
    case(
        "env.literal",
        INDEXED_JOB,
        "- train.py",
        "- train.py\n            - --data=${DATA}",
        "- --data",
    ),
    case("env.literal", INDEXED_JOB, "=taehv-0.taehv", "=$MASTER_HOST", "- --main_process_ip"),
    case("env.literal", INDEXED_JOB, "- train.py", "- train.py\n            - $$DATA", ""),
    case("env.literal", INDEXED_JOB, "- train.py", "- train.py\n            - dir=${root}/a", ""),
    case("env.literal", INDEXED_JOB, "- train.py", "- train.py\n            - \"for $A B\"", ""),
    // A template is filled in before it is applied.
    case(
        "env.literal",
        INDEXED_JOB,
        "image: taehv\n          command:\n",
        "image: $IMAGE\n          args: [$DATA]\n          command:\n",
        "",
    ),
    case(
        "env.undefined",
        PYTORCHJOB,
        "- {name: OMP_NUM_THREADS, value: \"8\"}",
        "- {name: A, value: $(B)-x}\n                - {name: B, value: b}",
        "- {name: A",
    ),
    case(
        "env.undefined",
        PYTORCHJOB,
        "- {name: OMP_NUM_THREADS, value: \"8\"}",
        "- {name: B, value: b}\n                - {name: A, value: $(B)-x}",
        "",
    ),
    // These are names below a Service.
    case("job.subdomain", INDEXED_JOB, "  clusterIP: None\n", "", "selector:"),
    case("job.subdomain", INDEXED_JOB, "{job-name: taehv}", "{app: taehv}", "selector:"),
    case(
        "job.subdomain",
        INDEXED_JOB,
        "metadata:\n  name: taehv\nspec:\n  clusterIP",
        "metadata:\n  name: other\nspec:\n  clusterIP",
        "subdomain: taehv",
    ),
    case("job.subdomain", INDEXED_JOB, "taehv-0.taehv", "taehv-1.taehv", "- --main_process_ip"),
    case("job.subdomain", INDEXED_JOB, "taehv-0.taehv", "trainer-0.taehv", "- --main_process_ip"),
    case("job.subdomain", INDEXED_JOB, "taehv-0.taehv", "taehv-0.taehv.a.svc.cluster.local", ""),
    case("job.subdomain", INDEXED_JOB, "taehv-0.taehv", "10.0.0.1", ""),
    // Two templates have one pod each.
    case(
        "nodes.rank",
        PYTORCHJOB,
        "--node_rank=$RANK",
        "--node_rank=0",
        "--nnodes=$WORLD_SIZE --node_rank=0",
    ),
    case("nodes.rank", PYTORCHJOB, WORKER, "", ""),
    case(
        "master.self",
        RANKLAUNCH,
        "args: [--profile, wan22]",
        "command: [ranklaunch, --profile, wan22, --master-addr, localhost]",
        "command:",
    ),
];
