//! Checks of software: script, Python, torch and NCCL as read from files, the all-reduce of `check --torch`, and
//! the container's first process.

use std::path::Path;

use super::finding::{
    CheckFinding, CheckInput, Judge, bad, doubtful, hinted, info, note, ok, or, planned, shown,
};
use node::observe::FirstLineFault;
use settings::{EMBEDDED, Source, config_files};
use text::lang::Text;
use text::text;
use text::version::Version;
use verdict::Id;

pub(super) const JUDGES: &[Judge] = &[
    (Id::ScriptFile, script),
    (Id::EngineFile, engine_files),
    (Id::EngineFlags, engine_flags),
    (Id::PythonTorch, torch),
    (Id::CudaCompat, compat),
    (Id::NumaCalls, numa),
    (Id::TorchAllreduce, allreduce),
    (Id::SignalsTerm, first_process),
];

fn torch(input: &CheckInput<'_>) -> Vec<CheckFinding> {
    or(planned(input, &[Id::PythonInterpreter, Id::PythonTorch]), || {
        let python = &input.facts.python;
        let path = python.interpreter.as_deref().unwrap_or(Path::new("-")).display();
        match &python.torch {
            Some(torch) => {
                let version = &torch.version;
                ok(text!("torch {version}, {path}", "torch {version}，{path}"))
            }
            None => {
                info(text!("no torch; none is needed ({path})", "没有 torch，也不需要（{path}）"))
            }
        }
    })
}

fn script(input: &CheckInput<'_>) -> Vec<CheckFinding> {
    let Some(script) = &input.facts.state.script else {
        return vec![info(text!("no script file to check", "没有需要检查的脚本文件"))];
    };
    let (path, place) = shown_from(&script.path, &script.from);
    if let Some(fault) = &script.fault {
        return vec![first_line(&path, &place, fault)];
    }
    if script.exists {
        return vec![ok(text!("{path}{place}", "{path}{place}"))];
    }
    let text = text!(
        "the script {path} does not exist{place}; every rank would fail",
        "脚本 {path} 不存在{place}：所有 rank 都会失败"
    );
    vec![bad((text, missing_script(input)))]
}

/// A path and the folder from which it is meant, if that is not in the path.
fn shown_from(path: &Path, from: &Path) -> (String, String) {
    let place = if path.is_absolute() { String::new() } else { format!(" ({})", shown(from)) };
    (shown(path), place)
}

fn first_line(path: &str, place: &str, fault: &FirstLineFault) -> CheckFinding {
    let convert = || {
        text!(
            "write its lines with LF: sed -i 's/\\r$//' {path} (dos2unix); git: `*.sh text eol=lf` in .gitattributes",
            "请将换行符改为 LF：sed -i 's/\\r$//' {path}（或 dos2unix）；git 请在 .gitattributes 中写 `*.sh text eol=lf`"
        )
    };
    match fault {
        FirstLineFault::KernelReads(line) => bad((
            text!(
                "line 1 of {path}{place} is `{line}` with a carriage return behind it (CRLF, as Windows ends lines), which the kernel takes for a part of it; no rank could start",
                "{path}{place} 第 1 行 `{line}` 后有回车符（CRLF，即 Windows 换行符），内核会把它当作该行的一部分：任何 rank 都无法启动"
            ),
            convert(),
        )),
        FirstLineFault::ShellReads(shell) => doubtful((
            text!(
                "line 1 of {path}{place} ends with a carriage return (CRLF, as Windows ends lines); {shell} takes it for a part of the last word of each line",
                "{path}{place} 第 1 行以回车符结尾（CRLF，即 Windows 换行符）；{shell} 会把它当作每行最后一个词的一部分"
            ),
            convert(),
        )),
        FirstLineFault::NoInterpreter(interpreter) => {
            let interpreter = shown(interpreter);
            bad(hinted!(
                "line 1 of {path}{place} names the interpreter {interpreter}, which does not exist; no rank could start",
                "{path}{place} 第 1 行指定的解释器 {interpreter} 不存在：任何 rank 都无法启动",
                "correct that line, or give the interpreter before the file: -- bash {path}",
                "请改正该行，或在文件前写出解释器：-- bash {path}"
            ))
        }
    }
}

/// The hint for a missing script. The profile may be embedded; then the user can adapt a copy.
fn missing_script(input: &CheckInput<'_>) -> Text {
    let Text { en, zh } = text!(
        "set its folder with --chdir DIR, give its absolute path, or mount the folder",
        "请用 --chdir DIR 指定脚本所在目录、使用绝对路径，或挂载该目录"
    );
    let profile = input.settings.profile.as_deref().unwrap_or_default();
    let named_by = input.settings.program.as_ref().map(|program| &program.source);
    let is_embedded =
        EMBEDDED.iter().any(|(name, _)| *name == profile) && named_by.is_some_and(Source::is_file);
    if !is_embedded {
        return Text { en, zh };
    }
    text!(
        "{en}; to adapt the job: ranklaunch profile show {profile} > ranklaunch.toml",
        "{zh}；如需改写该任务：ranklaunch profile show {profile} > ranklaunch.toml"
    )
}

/// Configuration files that the engine's arguments name. accelerate reads its file before any
/// rank starts, and without DeepSpeed's file every rank would fail.
fn engine_files(input: &CheckInput<'_>) -> Vec<CheckFinding> {
    let Some(plan) = input.outline() else { return Vec::new() };
    let named = config_files(&plan.engine_args, Some(&plan.program));
    let looked_at = &input.facts.state.engine_files;
    if named.is_empty() {
        return vec![info(text!(
            "the engine takes no configuration file",
            "未给启动引擎指定配置文件"
        ))];
    }
    let finding = |(argument, path): &(_, String)| {
        let file = looked_at.iter().find(|file| file.path.as_os_str() == path.as_str())?;
        let (path, place) = shown_from(&file.path, &file.from);
        Some(if file.exists {
            ok(text!("{path}{place}", "{path}{place}"))
        } else {
            bad(hinted!(
                "{argument} names {path}, which does not exist{place}",
                "{argument} 指定的 {path} 不存在{place}",
                "correct the name, give its absolute path, or set its folder with --chdir DIR",
                "请改正文件名、使用绝对路径，或用 --chdir DIR 指定其所在目录"
            ))
        })
    };
    named.iter().filter_map(finding).collect()
}

/// Flags that the installed engine would refuse.
fn engine_flags(input: &CheckInput<'_>) -> Vec<CheckFinding> {
    or(planned(input, &[Id::EngineFlags]), || match &input.facts.python.engine_cli {
        Some(cli) => {
            let package = &cli.package;
            ok(text!("{package} knows all of them", "{package} 支持全部参数"))
        }
        None => {
            info(text!("no command line of an engine to check", "没有需要检查的启动引擎命令行"))
        }
    })
}

/// NCCL versions that allocate host memory by NUMA node without a fallback.
const NEEDS_NUMA: std::ops::Range<Version> = Version::new(2, 23, 0)..Version::new(2, 26, 5);

fn numa(input: &CheckInput<'_>) -> Vec<CheckFinding> {
    let Some(blocked) = input.facts.state.numa_blocked else {
        return vec![info(text!("not known", "未知"))];
    };
    if !blocked {
        return vec![ok(text!("allowed", "允许"))];
    }
    let torch = input.facts.python.torch.as_ref();
    let nccl = torch.and_then(|torch| torch.nccl.as_deref());
    let hint = text!(
        "set NCCL_CUMEM_HOST_ENABLE=0, update NCCL to 2.26.5, or docker run --cap-add SYS_NICE",
        "请设置 NCCL_CUMEM_HOST_ENABLE=0、将 NCCL 升级到 2.26.5，或使用 docker run --cap-add SYS_NICE"
    );
    let set = input.facts.environment.get("NCCL_CUMEM_HOST_ENABLE");
    if let Some(nccl) = nccl
        && nccl.parse().is_ok_and(|version| NEEDS_NUMA.contains(&version))
        && input.on_gpus() > 0
        && set.is_none_or(|value| value != "0")
    {
        let text = text!(
            "seccomp forbids get_mempolicy and set_mempolicy; NCCL {nccl} fails without them",
            "seccomp 禁止了 get_mempolicy 与 set_mempolicy，NCCL {nccl} 没有它们会失败"
        );
        return vec![bad((text, hint))];
    }
    let text = text!(
        "seccomp forbids get_mempolicy and set_mempolicy; NCCL 2.23 to 2.26.4 needs them",
        "seccomp 禁止了 get_mempolicy 与 set_mempolicy，NCCL 2.23 至 2.26.4 需要它们"
    );
    vec![note((text, if nccl.is_some() { Text::same("") } else { hint }))]
}

fn compat(input: &CheckInput<'_>) -> Vec<CheckFinding> {
    let gpus = &input.facts.gpus;
    let Some(found) = &input.facts.state.compat else {
        return vec![ok(text!("the driver's own libcuda", "使用驱动自带的 libcuda"))];
    };
    let (folder, by) = (found.folder.display(), &found.by);
    let hint = text!(
        "remove {folder} from {by}, so that the driver's own libcuda is used",
        "请从 {by} 中去掉 {folder}，以使用驱动自带的 libcuda"
    );
    if let (Some(compat), Some(driver)) = (&found.driver, &gpus.driver_version)
        && let (Ok(old), Ok(new)) = (compat.parse::<Version>(), driver.parse::<Version>())
        && old <= new
    {
        let text = text!(
            "{by} puts {folder} first, whose libcuda {compat} is no newer than the driver {driver}: CUDA may fail with error 803",
            "{by} 将 {folder} 置于最前，其中的 libcuda {compat} 并不比驱动 {driver} 新：CUDA 可能报错 803"
        );
        return vec![bad((text, hint))];
    }
    let consumer = |name: &&str| name.contains("GeForce") || name.contains("TITAN");
    let name = gpus.gpus.iter().filter_map(|gpu| gpu.name.as_deref()).find(consumer);
    if let Some(name) = name {
        let text = text!(
            "{by} puts CUDA's forward compatibility first ({folder}), which {name} does not support: CUDA fails with error 804",
            "{by} 将 CUDA 前向兼容库（{folder}）置于最前，而 {name} 不支持它：CUDA 会报错 804"
        );
        return vec![bad((text, hint))];
    }
    let version = found.driver.as_deref().unwrap_or("?");
    vec![info(text!(
        "forward compatibility: libcuda {version} of {folder}, by {by}",
        "前向兼容：使用 {folder} 中的 libcuda {version}（由 {by} 指定）"
    ))]
}

/// Only with `--torch`.
fn allreduce(input: &CheckInput<'_>) -> Vec<CheckFinding> {
    match &input.tried.torch {
        None => Vec::new(),
        Some(Ok(said)) => vec![ok(said.clone())],
        Some(Err(why)) => {
            let hint = text!(
                "run the same ranks with NCCL_DEBUG=INFO: ranklaunch run --nnodes 1 -- SCRIPT",
                "请设置 NCCL_DEBUG=INFO 后再运行：ranklaunch run --nnodes 1 -- SCRIPT"
            );
            vec![bad((why.clone(), hint))]
        }
    }
}

/// Whether SIGTERM to the container reaches ranklaunch, or is lost in a shell that is PID 1.
fn first_process(input: &CheckInput<'_>) -> Vec<CheckFinding> {
    let Some(shell) = &input.facts.state.non_forwarding_init else {
        return vec![ok(text!("PID 1 forwards SIGTERM", "PID 1 会转发 SIGTERM"))];
    };
    let (name, command) = (&shell.name, &shell.command);
    vec![bad(hinted!(
        "PID 1 is {name} ({command}), which does not forward SIGTERM: when this container is stopped, no rank receives the signal and all are killed after the grace period",
        "PID 1 是 {name}（{command}），它不会转发 SIGTERM：停止容器时各 rank 收不到信号，宽限期过后全部被强制终止",
        "run ranklaunch as the last command of that script with exec, or make ranklaunch the entry point itself (exec form)",
        "请在脚本末尾用 exec ranklaunch 启动，或以 exec 形式直接将 ranklaunch 设为 ENTRYPOINT"
    ))]
}
