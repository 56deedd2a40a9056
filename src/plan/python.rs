//! Checks whether the interpreter and torch that were found can run this plan.
//!
//! Takes the facts about python; gives warnings, or a refusal if there is no interpreter. Never
//! imports torch; the facts come from files.

use std::fmt::Display;

use crate::Notes;
use crate::devices::Hardware;
use node::observe::Facts;
use settings::{Engine, Program, Settings};
use text::lang::Text;
use text::text;
use text::version::Version;
use verdict::{Id, Severity, Warning};

/// Whether the engine or the program needs a Python interpreter.
pub(crate) fn is_needed(engine: Engine, program: &Program) -> bool {
    !engine.row().modules.is_empty() || !matches!(program, Program::Command { .. })
}

/// Checks `python.interpreter` and `python.torch`.
pub(crate) fn check(
    settings: &Settings,
    facts: &Facts,
    program: &Program,
    hardware: Hardware,
    notes: &mut Notes,
) {
    let engine = settings.engine.value;
    if !is_needed(engine, program) {
        return;
    }
    let Some(interpreter) = &facts.python.interpreter else {
        // A replayed node may lack the interpreter.
        let default = if settings.host_root.is_some() { Severity::Warn } else { Severity::Fail };
        let hint = match facts.python.elsewhere.first().map(|other| other.display()) {
            Some(other) => text!(
                "--python {other} exists on this node; --conda-env NAME names a conda environment",
                "本节点上有 --python {other}；--conda-env NAME 指定 conda 环境"
            ),
            None => text!(
                "name one with --python PATH or --conda-env NAME",
                "请用 --python PATH 或 --conda-env NAME 指定"
            ),
        };
        return notes.raise_as(
            settings,
            default,
            Warning::new(
                Id::PythonInterpreter,
                facts.python.problem.clone().unwrap_or_else(|| {
                    text!("no python interpreter was found", "未找到 Python 解释器")
                }),
                hint,
            ),
        );
    };
    for warning in &facts.python.warnings {
        notes.raise(settings, warning.clone());
    }
    let path = interpreter.display();
    notes.decide(
        "python",
        path.to_string(),
        match &facts.python.version {
            Some(version) => text!("Python {version}", "Python {version}"),
            None => text!("version unknown", "版本未知"),
        },
        &facts.python.found_by,
    );
    if !facts.python.absent.is_empty() {
        modules(settings, facts, interpreter.display(), notes);
    }
    let Some(torch) = &facts.python.torch else {
        // Already reported above.
        if facts.python.absent.iter().any(|module| module == "torch") {
            return;
        }
        if engine.row().modules.is_empty() {
            return;
        }
        return raise_torch(
            settings,
            notes,
            text!("no torch was found beside {path}", "在 {path} 对应的环境中未找到 torch"),
        );
    };
    let version = &torch.version;
    notes.decide(
        "torch",
        version,
        match &torch.cuda {
            Some(cuda) => text!("built for CUDA {cuda}", "为 CUDA {cuda} 构建"),
            None => text!("a CPU build", "CPU 版"),
        },
        torch.path.display(),
    );
    if hardware != Hardware::Gpus {
        return;
    }
    let Some(cuda) = &torch.cuda else {
        return raise_torch(
            settings,
            notes,
            text!(
                "torch {version} is a CPU build, but the job uses GPUs",
                "torch {version} 为 CPU 版，却要使用 GPU"
            ),
        );
    };
    if let (Ok(Version { major, .. }), Some((driver, minor))) =
        (cuda.parse(), facts.gpus.cuda_driver_version)
        && major > driver
        // Forward compatibility provides a libcuda that is newer than the driver.
        && facts.state.compat.is_none()
    {
        // The first driver of each CUDA (its release notes, table of toolkit and minimum driver).
        let enough = [(11, 450), (12, 525), (13, 580)].iter().find(|(cuda, _)| *cuda == major);
        let enough_en = enough.map(|(_, version)| format!(" ({version} or newer)"));
        let enough_zh = enough.map(|(_, version)| format!("（{version} 或更新）"));
        let (enough_en, enough_zh) = (enough_en.unwrap_or_default(), enough_zh.unwrap_or_default());
        let text = text!(
            "torch {version} is built for CUDA {cuda}, but the driver supports only {driver}.{minor}",
            "torch {version} 为 CUDA {cuda} 构建，而驱动只支持到 {driver}.{minor}"
        );
        let hint = text!(
            "install a driver for CUDA {major}{enough_en}, or a torch that is built for CUDA {driver}.{minor} or older (a cu{driver}{minor} wheel)",
            "请安装支持 CUDA {major} 的驱动{enough_zh}，或为 CUDA {driver}.{minor} 及更早版本构建的 torch（cu{driver}{minor} 的 wheel）"
        );
        notes.raise(settings, Warning::new(Id::PythonTorch, text, hint));
    }
}

/// Checks that the interpreter can import the modules of the engine.
fn modules(settings: &Settings, facts: &Facts, path: impl Display, notes: &mut Notes) {
    let missing = facts.python.absent.join(", ");
    let by = &facts.python.found_by;
    let engine = settings.engine.value;
    let shown: Vec<String> =
        facts.python.elsewhere.iter().map(|other| other.display().to_string()).collect();
    let hint = match shown.split_first() {
        Some((first, [])) => text!(
            "--python {first} has it; --severity python.torch=warn starts anyway",
            "请使用 --python {first}，其中已安装；--severity python.torch=warn 可强制启动"
        ),
        Some((first, rest)) => {
            let rest = rest.join(", ");
            text!(
                "--python {first} has it, as have {rest}; --severity python.torch=warn starts anyway",
                "请使用 --python {first}，其中已安装（另有 {rest}）；--severity python.torch=warn 可强制启动"
            )
        }
        None => {
            let names = facts.python.absent.join(" ");
            text!(
                "install it with {path} -m pip install {names}, or name another environment with --python PATH or --conda-env NAME; --severity python.torch=warn starts anyway",
                "请用 {path} -m pip install {names} 安装，或用 --python PATH、--conda-env NAME 指定其他环境；--severity python.torch=warn 可强制启动"
            )
        }
    };
    let text = text!(
        "{path} [{by}] has no {missing}, which the engine {engine} needs",
        "{path} [{by}] 中没有 {missing}，而启动引擎 {engine} 需要它"
    );
    let default = Severity::Fail;
    notes.raise_as(settings, default, Warning::new(Id::PythonTorch, text, hint));
}

fn raise_torch(settings: &Settings, notes: &mut Notes, text: Text) {
    let hint = text!(
        "check which environment is meant with --python PATH or --conda-env NAME",
        "请用 --python PATH 或 --conda-env NAME 确认所用环境"
    );
    notes.raise(settings, Warning::new(Id::PythonTorch, text, hint));
}
