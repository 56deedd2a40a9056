//! The table of torchrun's options, each of which torchrun also takes from a PET_ variable, and the use of
//! such a variable here.
//!
//! Platforms set these variables (PyTorchJob's `elasticPolicy.maxRestarts` is PET_MAX_RESTARTS), and none
//! reaches the engine: torchrun would take each as the default of its option. So each has a meaning here,
//! or a reason why it has none. A test compares the table with the parser of the installed torch
//! (`get_args_parser` in torch/distributed/run.py).
//!
//! Gives also the settings that none of our own sources gives, and the way in which the program is
//! started. A command that runs unchanged keeps these variables for the torchrun in it, so they have no
//! effect here.

use std::ffi::OsStr;

use super::refuse::{quoted, usage};
use crate::contract;
use linux::host::Host;
use text::lang::Text;
use text::text;
use verdict::{Id, Refusal, Warning};

/// The use of an option that a PET_ variable gives.
#[derive(Debug, Clone, Copy)]
pub enum Becomes {
    /// A platform contract reads the option.
    Claim,
    /// The option counts as this setting if none of our own sources gives the setting.
    Setting(&'static str),
    /// The option says how the program is started.
    Start,
    /// The engine torchrun gets the option.
    Passed,
    /// The engine torchrun gets the option if the nodes meet through c10d.
    PassedWithC10d,
    /// The job does not need the option, for this reason (English, Chinese).
    Needless(&'static str, &'static str),
    /// The job may count on the option; the text names the alternative (English, Chinese).
    Lost(&'static str, &'static str),
}

/// One option.
#[derive(Debug)]
pub struct TorchrunOption {
    /// With hyphens, without the leading two.
    pub name: &'static str,
    pub becomes: Becomes,
}

use Becomes::{Claim, Lost, Needless, Passed, PassedWithC10d, Setting, Start};

const OUTPUT: Becomes = Needless(
    "each rank's output goes to its own file; --console selects what is shown",
    "每个 rank 的输出各存一个文件；--console 决定显示哪些",
);

/// The options that have a variable. `--numa-binding`, `--logs-specs` and `--print-completion` have none.
pub const OPTIONS: &[TorchrunOption] = &[
    option("nnodes", Claim),
    option("nproc-per-node", Claim),
    option("node-rank", Claim),
    option("master-addr", Claim),
    option("master-port", Claim),
    option("rdzv-backend", Claim),
    option("rdzv-endpoint", Claim),
    option("rdzv-id", Claim),
    option("standalone", Claim),
    option("max-restarts", Setting("max-restarts")),
    option("log-dir", Setting("log-dir")),
    option("module", Start),
    option("no-python", Start),
    option("rdzv-conf", PassedWithC10d),
    option("local-addr", PassedWithC10d),
    option("role", Passed),
    option("event-log-handler", Passed),
    option("virtual-local-rank", Passed),
    option("shutdown-timeout", Lost("--grace is the time of a stop", "停止的时间由 --grace 指定")),
    option(
        "monitor-interval",
        Needless("the end of a rank is reported at once", "rank 结束会立即得知"),
    ),
    option(
        "start-method",
        Needless("it is about functions; a rank is a program", "它只对函数有意义，而 rank 是程序"),
    ),
    option(
        "run-path",
        Needless("the script runs in an interpreter of its own", "脚本在自己的解释器中运行"),
    ),
    option(
        "signals-to-handle",
        Needless(
            "the ranks get TERM, INT, HUP, QUIT, USR1 and USR2",
            "rank 会收到 TERM、INT、HUP、QUIT、USR1 和 USR2",
        ),
    ),
    option("redirects", OUTPUT),
    option("tee", OUTPUT),
    option("log-line-prefix-template", OUTPUT),
    option("local-ranks-filter", OUTPUT),
    option("duplicate-stdout-filters", OUTPUT),
    option("duplicate-stderr-filters", OUTPUT),
];

const fn option(name: &'static str, becomes: Becomes) -> TorchrunOption {
    TorchrunOption { name, becomes }
}

impl TorchrunOption {
    /// `PET_MAX_RESTARTS`
    pub fn variable(&self) -> String {
        format!("PET_{}", self.name.replace('-', "_").to_ascii_uppercase())
    }

    /// The option of this variable; None: torchrun has none.
    pub fn of(variable: &str) -> Option<&'static TorchrunOption> {
        OPTIONS.iter().find(|option| option.variable() == variable)
    }

    /// The option of this name.
    pub fn named(name: &str) -> Option<&'static TorchrunOption> {
        OPTIONS.iter().find(|option| option.name == name)
    }

    /// Whether torchrun takes no value for it.
    pub fn is_switch(&self) -> bool {
        ["standalone", "module", "no-python", "run-path", "virtual-local-rank"].contains(&self.name)
    }
}

impl Becomes {
    /// The reason why the option is not used, or its replacement.
    pub fn because(self) -> Option<Text> {
        match self {
            Needless(en, zh) | Lost(en, zh) => Some(Text::new(en, zh)),
            Claim | Setting(_) | Start | Passed | PassedWithC10d => None,
        }
    }
}

/// Why nothing needs `--rdzv-id`.
pub fn told_apart() -> Text {
    text!(
        "jobs are told apart by the platform's id, else by port and number of nodes",
        "任务按平台的 ID 区分，否则按端口和节点数区分"
    )
}

/// The warning of an option of torchrun that is accepted and changes nothing.
pub(super) fn unused(option: &str, value: &OsStr) -> Warning {
    let (value, Text { en, zh }) = (quoted(value), told_apart());
    Warning::new(
        Id::EnvTorchrun,
        text!("{option} {value} is not used: {en}", "未采用 {option} {value}：{zh}"),
        text!("leave it out", "可以去掉它"),
    )
}

/// Each option with a variable: its name, and whether torchrun takes no value for it.
pub fn torchrun_options() -> Vec<(&'static str, bool)> {
    OPTIONS.iter().map(|option| (option.name, option.is_switch())).collect()
}

/// The way in which the first word of the command line is started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum ProgramStart {
    /// By its kind: a script, or a command.
    #[default]
    Guessed,
    /// PET_MODULE
    Module,
    /// PET_NO_PYTHON
    AsItIs,
}

/// The variable of `option`, unless it is blank.
fn claim(host: &Host, option: &TorchrunOption) -> Option<contract::Claim> {
    contract::Claim::of(host, &option.variable()).filter(|claim| !claim.is_blank())
}

/// The value of the setting `name`, and its variable.
pub(super) fn setting(host: &Host, name: &str) -> Option<contract::Claim> {
    let of = |option: &TorchrunOption| match option.becomes {
        Setting(setting) => Some(setting),
        _ => None,
    };
    claim(host, OPTIONS.iter().find(|option| of(option) == Some(name))?)
}

/// # Errors
/// Both variables are set, or one is no number: torchrun ends with an error as well.
pub(super) fn program_start(host: &Host) -> Result<ProgramStart, Refusal> {
    let is_on = |variable: &str| -> Result<bool, Refusal> {
        let option = TorchrunOption::of(variable);
        let Some(claim) = option.and_then(|option| claim(host, option)) else { return Ok(false) };
        let value = claim.value.trim();
        let number = value.parse::<i64>().map_err(|_| {
            let value = quoted(value.as_ref());
            usage(
                Id::SettingsProgram,
                text!(
                    "{variable} is {value}, but must be 1 or 0, as for torchrun",
                    "{variable} 的值为 {value}，应为 1 或 0（与 torchrun 相同）"
                ),
                text!("set {variable}=1, or remove it", "请设置 {variable}=1，或去掉该变量"),
            )
        })?;
        Ok(number != 0)
    };
    // As in torchrun, PET_RUN_PATH comes before the other two and means an ordinary script.
    if is_on("PET_RUN_PATH")? {
        return Ok(ProgramStart::Guessed);
    }
    match (is_on("PET_MODULE")?, is_on("PET_NO_PYTHON")?) {
        (true, true) => Err(usage(
            Id::SettingsProgram,
            text!(
                "PET_MODULE and PET_NO_PYTHON are both set: a module is run by python",
                "PET_MODULE 和 PET_NO_PYTHON 同时被设置：模块必须由 python 运行"
            ),
            text!(
                "remove one of them; torchrun refuses both as well",
                "请去掉其中之一；torchrun 同样不接受两者并用"
            ),
        )),
        (true, false) => Ok(ProgramStart::Module),
        (false, true) => Ok(ProgramStart::AsItIs),
        (false, false) => Ok(ProgramStart::Guessed),
    }
}
