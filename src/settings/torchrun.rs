//! Settings from torchrun's own variables, which platforms and images set.
//!
//! Takes the environment; gives the values that none of our own sources gives, and the way in which the
//! program is started. A command that runs unchanged keeps these variables for the torchrun in it, so
//! they have no effect here.

use super::refuse::{quoted, usage};
use crate::contract::Claim;
use crate::torchrun_options::{Becomes, OPTIONS, TorchrunOption};
use linux::host::Host;
use text::text;
use verdict::{Id, Refusal};

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
fn claim(host: &Host, option: &TorchrunOption) -> Option<Claim> {
    let variable = option.variable();
    let value = host.variable(&variable)?;
    Some(Claim { variable, value }).filter(|claim| !claim.is_blank())
}

/// The value of the setting `name`, and its variable.
pub(super) fn setting(host: &Host, name: &str) -> Option<Claim> {
    let of = |option: &TorchrunOption| match option.becomes {
        Becomes::Setting(setting) => Some(setting),
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
