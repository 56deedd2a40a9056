//! Kinds of jobs, their variables and launchers.

use super::super::samples::{INDEXED_JOB, PYTORCHJOB, RAYJOB, TRAINJOB};
use super::{Case, case, warns};

pub(super) const CASES: &[Case] = &[
    case("job.index", INDEXED_JOB, "  completionMode: Indexed\n", "", "parallelism: 2"),
    case("job.completions", INDEXED_JOB, "completions: 2", "completions: 4", "completions: 4"),
    warns(case(
        "job.subdomain",
        INDEXED_JOB,
        "      subdomain: taehv\n",
        "",
        "restartPolicy: Never",
    )),
    case(
        "pytorchjob.master",
        PYTORCHJOB,
        "    Master:\n      replicas: 1",
        "    Master:\n      replicas: 2",
        "replicas: 2",
    ),
    case(
        "pytorchjob.container",
        PYTORCHJOB,
        "- name: pytorch",
        "- name: training",
        "- name: training",
    ),
    warns(case(
        "pytorchjob.elastic",
        PYTORCHJOB,
        "spec:\n  pytorch",
        "spec:\n  elasticPolicy:\n    minReplicas: 1\n  pytorch",
        "minReplicas",
    )),
    case(
        "pytorchjob.elastic",
        PYTORCHJOB,
        "spec:\n  pytorch",
        "spec:\n  elasticPolicy:\n    standalone: true\n  pytorch",
        "standalone: true",
    ),
    case(
        "trainjob.reserved",
        TRAINJOB,
        "    numNodes: 2\n    # Not",
        "    numNodes: 2\n    env: [{name: PET_NNODES, value: \"2\"}]\n    # Not",
        "env: [{",
    ),
    case(
        "pytorchjob.rank",
        PYTORCHJOB,
        "    Worker:\n      replicas: 1\n      template: *pod\n",
        "",
        "",
    ),
    case(
        "pytorchjob.rank",
        PYTORCHJOB,
        "    Master:\n      replicas: 1\n      template: &pod",
        "    Chief: {replicas: 1, template: {spec: {containers: []}}}\n    Other:\n      replicas: 2\n      template: &pod",
        "--nnodes=$WORLD_SIZE",
    ),
    case(
        "env.undefined",
        INDEXED_JOB,
        "$(JOB_COMPLETION_INDEX)",
        "$(HOSTNAME)",
        "- --machine_rank=$(HOSTNAME)",
    ),
    case("env.undefined", INDEXED_JOB, "$(JOB_COMPLETION_INDEX)", "$$(HOSTNAME)", ""),
    case(
        "env.undefined",
        PYTORCHJOB,
        "--save_file",
        "--name $(POD_NAME) --save_file",
        "--ulysses_size 8 --name",
    ),
    case("env.undefined", PYTORCHJOB, "--save_file", "--name $(hostname) --save_file", ""),
    case(
        "ray.nodes",
        RAYJOB,
        "python /opt/ranklaunch/ranklaunch_ray.py --nodes 2 --gpus-per-node 4 --\n    /usr/local/bin/ranklaunch run",
        "/usr/local/bin/ranklaunch run --nnodes 2",
        "/usr/local/bin/ranklaunch run --nnodes 2",
    ),
    case("launcher.none", PYTORCHJOB, "torchrun \\", "python \\", "cd /workspace"),
];
