//! Shared memory, memory, processors, time to end and the network.

use super::super::samples::{INDEXED_JOB, PYTORCHJOB, RANKLAUNCH};
use super::{Case, case, warns};

pub(super) const CASES: &[Case] = &[
    case("shm.missing", PYTORCHJOB, "/dev/shm", "/dev/shmem", "- name: pytorch"),
    case("shm.medium", PYTORCHJOB, "{medium: Memory, ", "{", "emptyDir:"),
    case("shm.medium", INDEXED_JOB, "medium: Memory", "medium: \"\"", "medium:"),
    case(
        "shm.medium",
        INDEXED_JOB,
        "- name: shm\n          emptyDir",
        "- name: other\n          emptyDir",
        "- name: shm",
    ),
    case("shm.size", PYTORCHJOB, "sizeLimit: 2Gi", "sizeLimit: 64Mi", "emptyDir:"),
    case("shm.size", PYTORCHJOB, "sizeLimit: 2Gi", "sizeLimit: 256Gi", "emptyDir:"),
    warns(case(
        "memory.missing",
        PYTORCHJOB,
        "                  memory: 128Gi\n",
        "",
        "- name: pytorch",
    )),
    case("memory.node", PYTORCHJOB, "memory: 128Gi", "memory: 256Gi", "memory: 256Gi"),
    warns(case("cpu.missing", INDEXED_JOB, "              cpu: 32\n", "", "- name: training")),
    case(
        "grace.short",
        PYTORCHJOB,
        "Seconds: 60",
        "Seconds: 10",
        "terminationGracePeriodSeconds: 10",
    ),
    case(
        "grace.short",
        PYTORCHJOB,
        "image: wan2-2",
        "lifecycle: {preStop: {exec: {command: [sh, -c, sleep 45]}}}",
        "terminationGracePeriodSeconds: 60",
    ),
    case(
        "grace.short",
        RANKLAUNCH,
        "value: \"120\"",
        "value: \"600\"",
        "terminationGracePeriodSeconds",
    ),
    case(
        "network.port",
        PYTORCHJOB,
        "          terminationGracePeriodSeconds: 60\n",
        "          terminationGracePeriodSeconds: 60\n          dnsPolicy: ClusterFirstWithHostNet\n          hostNetwork: true\n",
        "",
    ),
    warns(case(
        "network.port",
        RANKLAUNCH,
        "          terminationGracePeriodSeconds: 120\n",
        "          terminationGracePeriodSeconds: 120\n          dnsPolicy: ClusterFirstWithHostNet\n          hostNetwork: true\n",
        "hostNetwork: true",
    )),
    warns(case(
        "network.dns",
        PYTORCHJOB,
        "          terminationGracePeriodSeconds: 60\n",
        "          terminationGracePeriodSeconds: 60\n          hostNetwork: true\n",
        "hostNetwork: true",
    )),
];
