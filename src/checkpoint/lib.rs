//! Finds the checkpoints below a folder, and says of each whether it is whole or what it lacks.
//!
//! Takes a folder; gives [`Checkpoint`]s, newest first. Reads names, sizes, headers and indices, and no weights; executes
//! nothing, since a pickle is read as plain values. A format is one row of [`mod@formats`]. Nothing is ever changed.

#![deny(unsafe_code)]

mod beside;
mod compare;
mod epochs;
mod folder;
mod formats;
#[cfg(any(test, feature = "fixtures"))]
pub mod fuzz;
mod lack;
mod names;
mod numbering;
mod order;
mod progress;
mod ranks;
mod safetensors;
mod several;
mod shapes;
mod stray;
mod survey;
#[cfg(test)]
mod tests;
mod torch;
mod zip;

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::Serialize;
use strum::{IntoStaticStr, VariantArray};

pub use folder::shown;
pub use lack::Lack;
use progress::Place;
pub use ranks::RankFiles;
use shapes::Shape;
pub use survey::{Limits, Survey, survey};

/// The writer of a checkpoint, by the way in which it lies on disk.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, IntoStaticStr, VariantArray,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Format {
    /// A file of torch.save.
    Torch,
    /// torch.distributed.checkpoint.
    Dcp,
    Safetensors,
    /// The Trainer of transformers.
    Trainer,
    /// `save_state` of accelerate.
    Accelerate,
    Deepspeed,
    Lightning,
    /// Megatron-LM and megatron-core.
    Megatron,
    Nemo,
}

impl Format {
    /// Every format.
    pub const ALL: &[Format] = Format::VARIANTS;

    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// Seconds from 1970 to 2000. Archives and images give files times of 1970 and 1980 where they keep none.
const EARLIEST: Duration = Duration::from_secs(946_684_800);
/// How far the clocks of nodes and of their storage may be apart.
const APART: Duration = Duration::from_secs(60);

/// One checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    pub path: PathBuf,
    /// The same below the folder that was searched; empty for the folder itself.
    pub name: PathBuf,
    pub format: Format,
    /// None: neither its name nor its files tell.
    pub step: Option<u64>,
    /// What it lacks; empty: it is whole.
    pub lacks: Vec<Lack>,
    /// Bytes of its files.
    pub bytes: u64,
    /// Time of the last write to one of its files.
    pub modified: SystemTime,
    /// The ranks or parts whose files are here, where the format has such files.
    pub parts: Vec<u32>,
    pub(crate) standing: Standing,
}

/// What decides on the order of checkpoints, and on which of them are one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Standing {
    pub(crate) place: Option<Place>,
    /// The place stands in its own name or files, not in the name of a folder above.
    pub(crate) is_own: bool,
    /// It is beside another one, and nothing starts from it alone: an optimizer.
    pub(crate) is_aside: bool,
    /// When its program named it as its last one, and in which folder.
    pub(crate) tracked: Option<(SystemTime, PathBuf)>,
    /// The place of the newest one, before which it stands although it has another place.
    pub(crate) first: Option<Place>,
    /// How it stands to those before it, by the files that are compared.
    pub(crate) shape: Shape,
    /// The files of a checkpoint of torch.save or safetensors. Empty: a folder of a framework.
    pub(crate) files: Vec<PathBuf>,
}

impl Checkpoint {
    pub fn is_whole(&self) -> bool {
        self.lacks.is_empty()
    }

    /// Time since the last write to one of its files. None if that time cannot be true.
    pub fn age(&self) -> Option<Duration> {
        let age = match self.modified.elapsed() {
            Err(ahead) if ahead.duration() < APART => Some(Duration::ZERO),
            age => age.ok(),
        };
        age.filter(|_| self.modified >= SystemTime::UNIX_EPOCH + EARLIEST)
    }

    /// Whether it is bare weights, as frameworks export them.
    pub(crate) fn is_weights(&self) -> bool {
        let name = self.own_name();
        self.format == Format::Safetensors
            || ["pytorch_model.bin", "adapter_model.bin"].contains(&name.as_ref())
    }

    /// The name of its file or folder.
    pub(crate) fn own_name(&self) -> Cow<'_, str> {
        self.path.file_name().unwrap_or_default().to_string_lossy()
    }

    /// The folder in which the files lie that it lacks.
    pub(crate) fn beside(&self) -> &Path {
        match self.standing.files.as_slice() {
            [] => &self.path,
            [first, rest @ ..] => {
                let mut folders = first.ancestors().skip(1);
                let is_above = |above: &&Path| rest.iter().all(|file| file.starts_with(above));
                folders.find(is_above).unwrap_or(&self.path)
            }
        }
    }

    /// An identity that is the same wherever the folder is mounted: 64-bit FNV-1a of name, format and step, or the time of
    /// one without a step, which is another one on the disk of each node.
    pub fn digest(&self) -> u64 {
        let since = || self.modified.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let step = match self.step {
            Some(step) => step.to_string(),
            None => format!("at {}", since().as_secs()),
        };
        let parts = [
            self.name.as_os_str().as_encoded_bytes(),
            self.format.name().as_bytes(),
            step.as_bytes(),
        ];
        parts.join(&0).iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
        })
    }
}
