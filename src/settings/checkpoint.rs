//! The formats of checkpoints by name, and what follows where there is no checkpoint.

use serde::{Deserialize, Serialize};
use strum::{IntoStaticStr, VariantNames};

/// The only format that counts. Its word is the name of a reader of checkpoints.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, IntoStaticStr, VariantNames)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum CheckpointFormat {
    /// Every format counts.
    #[default]
    Auto,
    Torch,
    Dcp,
    Safetensors,
    Trainer,
    Accelerate,
    Deepspeed,
    Lightning,
    Megatron,
    Nemo,
}

impl CheckpointFormat {
    /// The name of the reader, or `auto`.
    pub fn name(self) -> &'static str {
        self.into()
    }

    pub(crate) const NAMES: &[&str] = CheckpointFormat::VARIANTS;
}

/// What follows where there is no checkpoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WithoutCheckpoint {
    /// The arguments that name it are left out.
    #[default]
    Omit,
    /// Nothing is started.
    Refuse,
}

impl WithoutCheckpoint {
    pub(crate) const NAMES: &[&str] = &["omit", "refuse"];
}
