//! Turns clap's errors into refusals of our form, and knows the options of other launchers, for users
//! with an old command line.
//!
//! Gives for another launcher's option our option if the meaning is the same, else one sentence on what
//! to do instead. A further option is one more row.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use super::help::{self, Topic};
use super::line::Line;
use crate::launchers::{self, LauncherKind, PythonRun};
use text::lang::{Lang, Text};
use text::letters::meant;
use text::nearest::nearest;
use text::text;
use verdict::{Id, Refusal};

/// Why the program ends without running a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop {
    /// Help or version was requested. Ends in a newline.
    Shown(String),
    /// A command line that cannot be parsed.
    Refused(Refusal),
}

fn refusal(text: Text, hint: Text) -> Refusal {
    Refusal::new(Id::Flags, text, hint)
}

/// The refusal of another launcher's option without a counterpart.
pub(super) fn foreign(typed: &str, of: &str, hint: &Text) -> Refusal {
    let text = match of {
        "other programs" => text!("there is no option `{typed}`", "没有选项 `{typed}`"),
        _ => text!(
            "`{typed}` is an option of {of}, not of ranklaunch",
            "`{typed}` 是 {of} 的选项，不是 ranklaunch 的"
        ),
    };
    refusal(text, hint.clone())
}

/// The refusal for clap's error.
pub(super) fn stop(error: &clap::Error, line: &[OsString]) -> Stop {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        let help = help::asked(line, Lang::En);
        return Stop::Shown(help.unwrap_or_else(|| error.render().to_string()));
    }
    let root = Line::command();
    let named = line.get(1).and_then(|word| word.to_str());
    let command = named.and_then(|name| root.find_subcommand(name)).unwrap_or(&root);
    let launches = command
        .get_positionals()
        .any(|one| one.is_last_set() && one.get_id().as_str() == "program");
    let argument = context(error, ContextKind::InvalidArg);
    let value = context(error, ContextKind::InvalidValue);
    Stop::Refused(match error.kind() {
        ErrorKind::UnknownArgument if argument.starts_with('-') => {
            unknown_option(&argument, command, launches, line)
        }
        ErrorKind::UnknownArgument => unknown_word(&argument, command, launches, line),
        ErrorKind::InvalidSubcommand => {
            let word = context(error, ContextKind::InvalidSubcommand);
            unknown_word(&word, command, launches, line)
        }
        ErrorKind::InvalidValue if value.is_empty() => {
            refusal(text!("`{argument}` needs a value", "`{argument}` 缺少值"), about(command))
        }
        ErrorKind::InvalidValue => {
            let valid = context(error, ContextKind::ValidValue);
            refusal(
                text!("`{argument}` is `{value}`", "`{argument}` 的值为 `{value}`"),
                text!("write one of: {valid}", "可用的值：{valid}"),
            )
        }
        ErrorKind::MissingRequiredArgument => {
            refusal(text!("{argument} is missing", "缺少 {argument}"), about(command))
        }
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let names: Vec<&str> = command.get_subcommands().map(Command::get_name).collect();
            let (name, names) = (command.get_name(), names.join(", "));
            refusal(
                text!("{name} needs a subcommand", "{name} 之后缺少子命令"),
                text!("write one of: {names}", "可用的值：{names}"),
            )
        }
        ErrorKind::TooManyValues if !argument.is_empty() => {
            refusal(text!("`{argument}` takes no value", "`{argument}` 不带值"), about(command))
        }
        _ => {
            let rendered = error.render().to_string();
            let first = rendered.lines().next().unwrap_or_default();
            let first = first.strip_prefix("error: ").unwrap_or(first).trim_end_matches(':');
            refusal(Text::same(first.to_owned()), about(command))
        }
    })
}

/// The refusal of `help WORD` where the word is neither a command nor a topic.
pub(super) fn no_help(word: &str, root: &Command) -> Refusal {
    let text = text!("there is no help about `{word}`", "没有关于 `{word}` 的帮助");
    let flag = format!("--{}", word.trim_start_matches('-'));
    let has_it = |of: &&Command| longs(of).contains(&flag);
    // Most options are those of several subcommands, run first.
    let owner = root.get_subcommands().find(has_it).map(Command::get_name);
    let ids = Id::ALL.iter().map(|id| id.as_str());
    let of_family = ids.clone().find(|id| {
        id.strip_prefix(word).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    });
    let names = || root.get_subcommands().map(Command::get_name).chain(Topic::ALL.map(Topic::name));
    let near = nearest(word, names()).map(|near| format!("help {near}"));
    let near = near.or_else(|| nearest(word, ids).map(|near| format!("explain {near}")));
    let Text { en, zh } = match (owner, of_family, near) {
        (Some(owner), Some(id), _) => text!(
            "{flag} is an option: ranklaunch {owner} --help; findings of this name: ranklaunch explain {id}",
            "{flag} 是一个选项：ranklaunch {owner} --help；同名检查项：ranklaunch explain {id}"
        ),
        (Some(owner), None, _) => text!(
            "{flag} is an option: ranklaunch {owner} --help",
            "{flag} 是一个选项：ranklaunch {owner} --help"
        ),
        (None, Some(id), _) => {
            text!("write ranklaunch explain {id}", "请写 ranklaunch explain {id}")
        }
        (None, None, Some(near)) => {
            text!("did you mean ranklaunch {near}?", "是否想写 ranklaunch {near}？")
        }
        (None, None, None) => {
            let commands: Vec<&str> = root.get_subcommands().map(Command::get_name).collect();
            let commands = commands.join(", ");
            text!("commands: {commands}", "子命令：{commands}")
        }
    };
    let topics = Topic::ALL.map(Topic::name).join(", ");
    refusal(text, text!("{en}; topics: {topics}", "{zh}；主题：{topics}"))
}

/// The options of a subcommand, with their dashes.
fn longs(of: &Command) -> Vec<String> {
    of.get_arguments().filter_map(|one| Some(format!("--{}", one.get_long()?))).collect()
}

/// The hint with the help of this subcommand.
fn about(command: &Command) -> Text {
    match command.get_name() {
        "ranklaunch" => text!("see ranklaunch --help", "用法见 ranklaunch --help"),
        name => text!("see ranklaunch {name} --help", "用法见 ranklaunch {name} --help"),
    }
}

/// A script in a line with `--`, for a hint.
fn script_of(line: &[OsString]) -> Option<String> {
    let is_script = |word: &&OsString| word.as_bytes().ends_with(b".py");
    let script = line.iter().find(is_script)?.to_string_lossy();
    Some(script.escape_debug().to_string())
}

fn unknown_option(argument: &str, command: &Command, launches: bool, line: &[OsString]) -> Refusal {
    let typed = argument.split('=').next().unwrap_or(argument);
    let text = text!("there is no option `{typed}`", "没有选项 `{typed}`");
    let names = longs(command);
    let root = Line::command();
    let owner = root.get_subcommands().find(|other| longs(other).iter().any(|one| one == typed));
    if let Some(owner) = owner.map(Command::get_name) {
        return refusal(
            text,
            text!("only ranklaunch {owner} has this option", "只有 ranklaunch {owner} 有此选项"),
        );
    }
    let plain: String = typed.chars().map(|letter| meant(letter).unwrap_or(letter)).collect();
    let hint = match (nearest(&plain, names.iter().map(String::as_str)), launches) {
        (Some(near), true) => text!(
            "did you mean `{near}`? Arguments of the script go behind it",
            "是否想写 `{near}`？脚本的参数写在脚本之后"
        ),
        (Some(near), false) => text!("did you mean `{near}`?", "是否想写 `{near}`？"),
        (None, true) => {
            let script = script_of(line).unwrap_or_else(|| "SCRIPT.py".to_owned());
            text!(
                "arguments of the script go behind it: ranklaunch [options] {script} {typed} …; ranklaunch --help lists the options",
                "脚本的参数写在脚本之后：ranklaunch [选项] {script} {typed} …；ranklaunch --help 列出全部选项"
            )
        }
        (None, false) => about(command),
    };
    refusal(text, hint)
}

/// The refusal of a word that is neither an option nor a subcommand.
fn unknown_word(word: &str, command: &Command, launches: bool, line: &[OsString]) -> Refusal {
    if word.chars().next().and_then(meant) == Some('-') {
        return unknown_option(word, command, launches, line);
    }
    let root = &Line::command();
    // `profile` and `lint` accept other words.
    let (names, is_root): (Vec<&str>, bool) = match command.has_subcommands() {
        true => (
            command.get_subcommands().map(Command::get_name).collect(),
            command.get_name() == root.get_name(),
        ),
        false => (Vec::new(), false),
    };
    let text = match is_root {
        true => text!("there is no subcommand `{word}`", "没有子命令 `{word}`"),
        false => text!("`{word}` is not allowed here", "此处不能出现 `{word}`"),
    };
    if is_root && word == "uninstall" {
        let hint = text!(
            "remove the file: rm \"$(command -v ranklaunch)\"",
            "删除该文件即可：rm \"$(command -v ranklaunch)\""
        );
        return refusal(text, hint);
    }
    if is_root && let Some(other) = foreign_subcommand(word) {
        return refusal(text, text!("write ranklaunch {other}", "请写 ranklaunch {other}"));
    }
    if let Some(near) = nearest(word, names.iter().copied()) {
        return refusal(text, text!("did you mean `{near}`?", "是否想写 `{near}`？"));
    }
    if root.find_subcommand(word).is_some() {
        let own = command.get_name();
        return refusal(
            text,
            text!("give one subcommand: {own} or {word}", "只能给出一个子命令：{own} 或 {word}"),
        );
    }
    if launches {
        let name = if is_root { "" } else { command.get_name() };
        return no_script(word, &["ranklaunch", name, "[options]"], line);
    }
    let hint = match command.get_name() {
        "init" => text!(
            "put -- before the command: ranklaunch init -- {word} …",
            "请在命令前加 --：ranklaunch init -- {word} …"
        ),
        _ => about(command),
    };
    refusal(text, hint)
}

/// The refusal of a word that may name a program, but is no .py file.
fn no_script(word: &str, before: &[&str], line: &[OsString]) -> Refusal {
    let before: Vec<&str> = before.iter().copied().filter(|word| !word.is_empty()).collect();
    let before = before.join(" ");
    let zh = before.replace("[options]", "[选项]");
    let text = text!(
        "`{word}` is neither a subcommand nor a .py file",
        "`{word}` 既不是子命令，也不是 .py 文件"
    );
    let is_torchrun = launchers::of_name(word).is_some_and(|it| it.kind == LauncherKind::Torchrun);
    if !is_torchrun && !PythonRun::is_by(word) {
        let shell = if word.ends_with(".sh") { "bash " } else { "" };
        let hint = text!(
            "put -- before a program that is no .py file: {before} -- {shell}{word} …",
            "不是 .py 文件的程序前须加 --：{zh} -- {shell}{word} …"
        );
        return refusal(text, hint);
    }
    let script = script_of(line).unwrap_or_else(|| "SCRIPT.py".to_owned());
    let kept = if is_torchrun { "--engine command -- " } else { "-- " };
    let hint = text!(
        "leave it out: {before} {script} …; to keep it: {before} {kept}{word} …",
        "请去掉它：{zh} {script} …；如需保留：{zh} {kept}{word} …"
    );
    refusal(text, hint)
}

fn context(error: &clap::Error, kind: ContextKind) -> String {
    match error.get(kind) {
        Some(ContextValue::String(word)) => word.clone(),
        Some(ContextValue::Strings(words)) => words.join(", "),
        Some(ContextValue::StyledStr(words)) => words.to_string(),
        _ => String::new(),
    }
}

/// Our equivalent of another launcher's option.
#[derive(Debug)]
pub(super) enum Meaning {
    /// Our option of another name.
    Is(&'static str),
    /// These words of our command line.
    Means(&'static [&'static str]),
    /// `HOST:PORT` of node 0.
    Endpoint,
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
    "rdzv-id", "role", "monitor-interval", "start-method", "local-addr", "run-path",
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
        _ => explained,
    }
}

/// Our command in place of another program's subcommand.
fn foreign_subcommand(word: &str) -> Option<&'static str> {
    Some(match word {
        "launch" | "start" | "exec" => "run",
        "list" | "ls" => "profile list",
        "show" => "profile show NAME",
        "new" => "profile new",
        "config" | "profiles" => "profile",
        "doctor" | "diagnose" | "test" => "check",
        "validate" => "lint MANIFEST, or profile check FILE",
        "dry-run" => "plan",
        "cleanup" | "kill" => "clean",
        "completion" => "completions SHELL",
        _ => return None,
    })
}
