//! The options of other launchers, for users with an old command line.
//!
//! Gives for another launcher's option our option if the meaning is the same, else one sentence on what
//! to do instead. A further option is one more row.

use text::lang::Text;
use text::text;

/// Our equivalent of another launcher's option.
#[derive(Debug)]
pub(super) enum Meaning {
    /// Our option of another name.
    Is(&'static str),
    /// These words of our command line.
    Means(&'static [&'static str]),
    /// `HOST:PORT` of node 0.
    Endpoint,
    /// An option with a value that changes nothing here.
    Unused,
    /// The other launcher, and what to do instead.
    Explained(&'static str, Text),
}

/// Options with the same meaning as one of ours.
const SAME: &[(&str, &str)] = &[
    ("rdzv-backend", "rdzv"),
    ("nproc", "nproc-per-node"),
    // accelerate launch
    ("num-machines", "nnodes"),
    ("machine-rank", "node-rank"),
    ("main-process-ip", "master-addr"),
    ("main-process-port", "master-port"),
    // deepspeed
    ("num-nodes", "nnodes"),
    ("num-gpus", "nproc-per-node"),
    ("num-accelerators", "nproc-per-node"),
];

/// Options of torchrun that are not needed here.
#[rustfmt::skip]
const NEEDLESS: &[&str] = &[
    "role", "monitor-interval", "start-method", "local-addr", "run-path",
    "event-log-handler", "logs-specs", "signals-to-handle", "print-completion", "use-env",
];

/// Options of `accelerate launch` only.
#[rustfmt::skip]
const OF_ACCELERATE: &[&str] = &[
    "config-file", "mixed-precision", "multi-gpu", "gpu-ids", "same-network",
    "num-cpu-threads-per-process", "enable-cpu-affinity", "dynamo-backend", "dynamo-mode",
    "dynamo-use-fullgraph", "dynamo-use-dynamic", "dynamo-use-regional-compilation",
    "use-deepspeed", "use-fsdp", "use-parallelism-config", "use-megatron-lm",
    "deepspeed-config-file", "zero-stage", "offload-optimizer-device", "offload-param-device",
    "offload-optimizer-nvme-path", "offload-param-nvme-path", "gradient-accumulation-steps",
    "gradient-clipping", "zero3-init-flag", "zero3-save-16bit-model",
    "deepspeed-moe-layer-cls-names", "deepspeed-multinode-launcher", "fsdp-version",
    "fsdp-offload-params", "fsdp-min-num-params", "fsdp-sharding-strategy",
    "fsdp-reshard-after-forward", "fsdp-auto-wrap-policy", "fsdp-transformer-layer-cls-to-wrap",
    "fsdp-backward-prefetch", "fsdp-state-dict-type", "fsdp-forward-prefetch",
    "fsdp-use-orig-params", "fsdp-cpu-ram-efficient-loading", "fsdp-sync-module-states",
    "fsdp-activation-checkpointing", "fsdp-activation-checkpointing-offload", "fp8-backend",
    "fp8-use-autocast-during-eval", "fp8-margin", "fp8-interval", "fp8-format",
    "fp8-amax-history-len", "fp8-amax-compute-algo", "fp8-override-linear-precision",
    "fp8-opt-level", "fp8-enable-fsdp-float8-all-gather", "fp8-pad-inner-dim",
];

/// Beginnings of further ones, which no script's options have.
const FAMILIES_OF_ACCELERATE: &[&str] = &["megatron-lm-", "parallelism-config-"];

/// Options of DeepSpeed's launcher of several nodes, which goes from one node to the others.
#[rustfmt::skip]
const OF_SSH: &[&str] = &[
    "hostfile", "H", "include", "exclude", "launcher", "launcher-args", "ssh-port", "no-ssh",
    "no-ssh-check", "force-multi", "deepspeed-hostfile", "deepspeed-inclusion-filter",
    "deepspeed-exclusion-filter",
];

/// Options of torchrun about the output of ranks.
#[rustfmt::skip]
const OF_OUTPUT: &[&str] = &[
    "redirects", "tee", "local-ranks-filter", "r", "t", "duplicate-stdout-filters",
    "duplicate-stderr-filters", "log-line-prefix-template",
];

/// Options of `accelerate launch` for TPUs and for the API of SageMaker.
#[rustfmt::skip]
const OF_OTHER_HARDWARE: &[&str] = &[
    "tpu", "tpu-cluster", "no-tpu-cluster", "tpu-use-sudo", "vm", "main-training-function",
    "downcast-bf16", "aws-access-key-id", "aws-secret-access-key",
];

const NO_SSH: (&str, &str) = (
    "remove it: start ranklaunch on every node, no ssh is used; --nodes host0,host1 is the same line on each",
    "请去掉：在每个节点上启动 ranklaunch 即可，不使用 ssh；用 --nodes host0,host1，每个节点的命令相同",
);

/// Options without a counterpart, and what to do instead (English, Chinese).
type Explained = (&'static [&'static str], &'static str, &'static str);

/// By launcher.
const EXPLAINED: &[(&str, &[Explained])] = &[
    (
        "torchrun",
        &[
            (
                NEEDLESS,
                "remove it: ranklaunch does not need it (ranklaunch plan shows torchrun's command line)",
                "请去掉：ranklaunch 不需要它（ranklaunch plan 会显示 torchrun 的命令行）",
            ),
            (
                &["rdzv-conf"],
                "remove it: --wait-timeout sets how long to wait for nodes",
                "请去掉：等待其他节点的时间由 --wait-timeout 指定",
            ),
            (
                &["shutdown-timeout"],
                "write --grace DURATION, such as --grace 60s",
                "请写 --grace 时长，例如 --grace 60s",
            ),
            (&["numa-binding"], "write --bind numa", "请写 --bind numa"),
            (
                &["virtual-local-rank"],
                "pass it to torchrun in a profile: [job] engine_args = [\"--virtual-local-rank\"]",
                "请在配置文件中交给 torchrun：[job] engine_args = [\"--virtual-local-rank\"]",
            ),
            (
                &["no-python"],
                "remove it: a program that is neither a .py file nor -m MODULE is started as is, for example -- bash train.sh",
                "请去掉：既不是 .py 文件也不是 -m MODULE 的程序会按原样启动，例如 -- bash train.sh",
            ),
            (
                OF_OUTPUT,
                "remove it: each rank's output goes to its own file; --console all|rank0|errors|none selects what is shown",
                "请去掉：每个 rank 的输出各存一个文件；--console all|rank0|errors|none 决定显示哪些",
            ),
        ],
    ),
    (
        "accelerate",
        &[
            (
                &["num-processes"],
                "it counts the processes of all nodes; ranklaunch uses --nproc-per-node, the processes of one node, auto by default",
                "它是所有节点的总进程数；ranklaunch 用 --nproc-per-node 指定单个节点的进程数，默认 auto",
            ),
            (&["cpu"], "write --device cpu", "请写 --device cpu"),
            (
                OF_OTHER_HARDWARE,
                "ranklaunch starts no jobs on TPUs and none through the API of SageMaker: use accelerate launch for them",
                "ranklaunch 不启动 TPU 任务，也不通过 SageMaker 的 API 启动任务：请直接使用 accelerate launch",
            ),
            (&["mpirun-hostfile"], NO_SSH.0, NO_SSH.1),
        ],
    ),
    (
        "deepspeed",
        &[
            (&["bind-cores-to-rank", "bind-core-list"], "write --bind numa", "请写 --bind numa"),
            (
                &["save-pid", "enable-each-rank-log", "log-level", "venv-script", "no-local-rank"],
                "remove it: pids and the output of each rank are in the log folder, --python or --conda-env chooses the environment, and no rank gets --local_rank",
                "请去掉：pid 和各 rank 的输出都在日志目录中，环境用 --python 或 --conda-env 指定，rank 不会得到 --local_rank",
            ),
            (
                &["autotuning"],
                "run the autotuning with deepspeed itself, and its result with ranklaunch",
                "请用 deepspeed 自身进行 autotuning，再用 ranklaunch 运行其结果",
            ),
            (OF_SSH, NO_SSH.0, NO_SSH.1),
        ],
    ),
    (
        "mpirun",
        &[(
            &["np", "n"],
            "--nproc-per-node counts the processes of one node, auto by default",
            "用 --nproc-per-node 指定单个节点的进程数，默认 auto",
        )],
    ),
    (
        "other programs",
        &[
            (
                &["dry-run"],
                "ranklaunch plan shows what would be done and changes nothing; clean has --dry-run of its own",
                "ranklaunch plan 显示将要执行的操作，不做任何改动；clean 子命令另有 --dry-run",
            ),
            (
                &["debug"],
                "--verbose shows the details of a plan; a run keeps its events in agent.jsonl",
                "--verbose 显示计划的细节；运行期间的事件记录在 agent.jsonl",
            ),
            (
                &["quiet", "q"],
                "--console none|rank0|errors selects whose output is shown",
                "用 --console none|rank0|errors 指定显示哪些输出",
            ),
            (&["cwd", "workdir", "working-dir", "C"], "write --chdir DIR", "请写 --chdir DIR"),
        ],
    ),
];

/// The meaning of a short option with its value attached: `-r3`, `-np4`.
pub(super) fn attached(typed: &str) -> Option<Meaning> {
    let letters = typed.strip_prefix('-').filter(|name| !name.starts_with('-'))?;
    let name = letters.trim_end_matches(|c: char| c.is_ascii_digit() || matches!(c, ':' | ','));
    meaning(name).filter(|meaning| matches!(meaning, Meaning::Explained(..)))
}

/// The meaning of `name`, which has no leading dashes and `-` in place of `_`.
pub(super) fn meaning(name: &str) -> Option<Meaning> {
    if let Some((_, ours)) = SAME.iter().find(|(other, _)| *other == name) {
        return Some(Meaning::Is(ours));
    }
    let family = |beginning: &&str| name.starts_with(*beginning);
    if OF_ACCELERATE.contains(&name) || FAMILIES_OF_ACCELERATE.iter().any(family) {
        return Some(Meaning::Explained(
            "accelerate",
            text!(
                "pass it to accelerate in a profile: [job] engine = \"accelerate\", engine_args = [\"--{name}\", …]",
                "请在配置文件中交给 accelerate：[job] engine = \"accelerate\"，engine_args = [\"--{name}\", …]"
            ),
        ));
    }
    let is_named = |(names, ..): &&Explained| names.contains(&name);
    let explained = EXPLAINED.iter().find_map(|(of, rows)| {
        let (_, en, zh) = rows.iter().find(is_named)?;
        Some(Meaning::Explained(of, Text::new(*en, *zh)))
    });
    match name {
        "standalone" => Some(Meaning::Means(&["--nnodes=1", "--node-rank=0"])),
        "rdzv-endpoint" => Some(Meaning::Endpoint),
        "rdzv-id" => Some(Meaning::Unused),
        _ => explained,
    }
}
