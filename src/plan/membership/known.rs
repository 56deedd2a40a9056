//! What is known of a job: its numbers with who says so, whether it is nested, its platform.

use crate::observe::Contract;
use crate::settings::Settings;

/// A number and who says so.
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
    /// A variable that counts nodes and nothing else.
    Platform,
    /// `--standalone` of torchrun.
    Standalone,
    WorldSize,
    Nobody,
}

impl Known {
    /// This node was taken out of the platform's job: its rank and master there mean nothing.
    pub(super) fn is_apart(&self) -> bool {
        self.value == 1 && matches!(self.by, By::Setting | By::Standalone)
    }
}

/// Whether this is meant to run inside of a rank of another launcher.
pub(super) fn is_nested(settings: &Settings, contract: &Contract) -> bool {
    settings.nested && contract.inside_torchrun.is_some()
}

pub(super) fn platform(contract: &Contract) -> String {
    if contract.platform.is_empty() { "none".to_owned() } else { contract.platform.clone() }
}
