//! Variables of the environment, signals and command lines.

use super::super::samples::{INDEXED_JOB, PYTORCHJOB, RANKLAUNCH};
use super::{Case, case, tells, warns};

pub(super) const CASES: &[Case] = &[
    warns(case(
        "env.nccl",
        PYTORCHJOB,
        "OMP_NUM_THREADS, value: \"8\"",
        "NCCL_TIMEOUT, value: \"10800\"",
        "- {name: NCCL_TIMEOUT",
    )),
    warns(case(
        "env.nccl",
        PYTORCHJOB,
        "PYTHONUNBUFFERED=1",
        "NCCL_SOCKET_IFNAME=eth0,eno1,ens,ib",
        "export NCCL_SOCKET_IFNAME",
    )),
    case(
        "master.self",
        PYTORCHJOB,
        "PYTHONUNBUFFERED=1",
        "MASTER_ADDR=$(hostname -I | awk '{print $1}')",
        "export MASTER_ADDR",
    ),
    case(
        "service.links",
        INDEXED_JOB,
        "name: taehv\nspec:\n  clusterIP: None",
        "name: master\nspec:\n  ports: [{port: 29500}]",
        "name: master",
    ),
    warns(case(
        "signals.shell",
        RANKLAUNCH,
        "args: [--profile, wan22]",
        "command: [bash, -c, \"cd /workspace; ranklaunch --profile wan22; echo over\"]",
        "command:",
    )),
    warns(case(
        "signals.shell",
        RANKLAUNCH,
        "args: [--profile, wan22]",
        "command: [bash, -c, \"ranklaunch --profile wan22 2>&1 | tee /log\"]",
        "command:",
    )),
    case(
        "signals.shell",
        RANKLAUNCH,
        "args: [--profile, wan22]",
        "command: [bash, -c, \"cd /workspace; exec ranklaunch --profile wan22; echo over\"]",
        "",
    ),
    case(
        "signals.shell",
        RANKLAUNCH,
        "args: [--profile, wan22]",
        "command: [bash, -c, \"cd /workspace && ranklaunch --profile wan22\"]",
        "",
    ),
    case(
        "signals.shell",
        RANKLAUNCH,
        "args: [--profile, wan22]",
        "command: [bash, -c, \"trap 'kill $!' TERM; ranklaunch --profile wan22 & wait\"]",
        "",
    ),
    case(
        "command.cut",
        PYTORCHJOB,
        "                    --nproc_per_node=4 \\\n",
        "                    # Four GPUs in each pod\n                    --nproc_per_node=4 \\\n",
        "# Four GPUs",
    ),
    case(
        "command.cut",
        PYTORCHJOB,
        "cd /workspace && torchrun",
        "# A comment\n                  torchrun",
        "",
    ),
    case("command.refused", RANKLAUNCH, "[--profile, wan22]", "[--profil, wan22]", "args:"),
    tells(case("command.unread", PYTORCHJOB, "per_node=4", "per_node=$N", "--nproc_per_node=$N")),
    tells(case("command.unread", PYTORCHJOB, "[bash, -c]", "[bash, /start.sh]", "command:")),
    tells(case(
        "command.unread",
        PYTORCHJOB,
        "cd /workspace && torchrun",
        "[ -n \"$A\" ] || torchrun",
        "[ -n",
    )),
];
