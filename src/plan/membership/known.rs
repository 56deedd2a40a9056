//! Known values of a job: its numbers with their sources, whether it is nested, its platform.

use settings::Settings;
use settings::contract::Contract;

/// A number and its source.
#[derive(Debug, Clone)]
pub(super) struct Known {
    pub(super) value: u32,
    /// `--nnodes` or `PET_NNODES=2`; `default`.
    pub(super) source: String,
    pub(super) by: By,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    Setting,
    /// A variable that counts only nodes.
    Platform,
    /// `--standalone` of torchrun.
    Standalone,
    WorldSize,
    /// Nothing gave it.
    Default,
}

impl Known {
    /// Whether this node is separate from the platform's job, so that its rank and master there
    /// do not apply.
    pub(super) fn is_apart(&self) -> bool {
        self.value == 1 && matches!(self.by, By::Setting | By::Standalone)
    }
}

/// Whether this is meant to run inside a rank of another launcher.
pub(super) fn is_nested(settings: &Settings, contract: &Contract) -> bool {
    settings.nested && contract.inside_torchrun.is_some()
}

pub(super) fn platform(contract: &Contract) -> String {
    if contract.platform.is_empty() { "none".to_owned() } else { contract.platform.clone() }
}
