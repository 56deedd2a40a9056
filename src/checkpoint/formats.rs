//! The formats: how each is recognised, and what one of its checkpoints lacks. A row is one writer.
//!
//! The first row that recognises a folder judges it; rows of frameworks come before those of the formats that they
//! build on. What is written last proves what was written before it, and each row names that in its comment.

mod dcp;
mod deepspeed;
mod frameworks;

use std::collections::BTreeSet;
use std::time::SystemTime;

use crate::folder::Folder;
use crate::found::{Checkpoint, Format};
use crate::lack::Lack;
use crate::names::step_of;
use crate::{safetensors, zip};

/// How one writer lays a checkpoint out in a folder.
pub(crate) struct Row {
    pub(crate) format: Format,
    is_one: fn(&Folder<'_>) -> bool,
    lacks: fn(&Folder<'_>) -> Vec<Lack>,
    /// Numbers in the names of the files of ranks: what comes before and after the number.
    parts: &'static [(&'static str, &'static str)],
}

const FOLDERS: &[Row] = &[
    Row { format: Format::Nemo, is_one: frameworks::is_nemo, lacks: frameworks::nemo, parts: &[] },
    Row {
        format: Format::Megatron,
        is_one: frameworks::is_megatron,
        lacks: frameworks::megatron,
        parts: &[("mp_rank_", "")],
    },
    Row {
        format: Format::Trainer,
        is_one: frameworks::is_trainer,
        lacks: frameworks::trainer,
        parts: &[("rng_state_", ".pth")],
    },
    Row {
        format: Format::Accelerate,
        is_one: frameworks::is_accelerate,
        lacks: frameworks::accelerate,
        parts: &[("random_states_", ".pkl")],
    },
    Row {
        format: Format::Deepspeed,
        is_one: deepspeed::is_one,
        lacks: deepspeed::lacks,
        parts: &[
            ("zero_pp_rank_", "_mp_rank_00_optim_states.pt"),
            ("bf16_zero_pp_rank_", "_mp_rank_00_optim_states.pt"),
        ],
    },
    Row {
        format: Format::Lightning,
        is_one: frameworks::is_lightning,
        lacks: frameworks::lightning,
        parts: &[],
    },
    Row { format: Format::Dcp, is_one: dcp::is_one, lacks: dcp::lacks, parts: &[] },
    Row {
        format: Format::Safetensors,
        is_one: |folder| !indices(folder).is_empty(),
        lacks: |folder| {
            let of = |index: String| safetensors::lacks_of_index(folder, &index, safetensors::lack);
            indices(folder).into_iter().flat_map(of).collect()
        },
        parts: &[],
    },
];

fn indices(folder: &Folder<'_>) -> Vec<String> {
    folder.names(false, |name| name.ends_with(".safetensors.index.json"))
}

/// How a file that is a checkpoint by itself ends in its name, and what it lacks.
type FileRow = (&'static str, Format, fn(&Folder<'_>, &str) -> Option<Lack>);
const FILES: &[FileRow] = &[
    (".ckpt", Format::Lightning, zip::lack),
    (".pt", Format::Torch, zip::lack),
    (".pth", Format::Torch, zip::lack),
    (".safetensors", Format::Safetensors, safetensors::lack),
];

/// The folder as one checkpoint.
pub(crate) fn of_folder(folder: &Folder<'_>) -> Option<Checkpoint> {
    let row = FOLDERS.iter().find(|row| (row.is_one)(folder))?;
    Some(judged(folder, row))
}

/// The folder, judged by the row of this format, whatever it seems to be.
pub(crate) fn as_format(folder: &Folder<'_>, format: Format) -> Option<Checkpoint> {
    let row = FOLDERS.iter().find(|row| row.format == format)?;
    Some(judged(folder, row))
}

fn judged(folder: &Folder<'_>, row: &Row) -> Checkpoint {
    let (bytes, modified) = extent(folder, 3);
    let mut parts: BTreeSet<u32> =
        row.parts.iter().flat_map(|(before, after)| folder.numbers(before, after)).collect();
    if row.format == Format::Dcp {
        parts.extend(dcp::parts(folder));
    }
    let named = folder.path.file_name().map(|name| name.to_string_lossy().into_owned());
    let step = match row.format {
        Format::Trainer => frameworks::global_step(folder),
        _ => None,
    };
    Checkpoint {
        path: folder.path.clone(),
        name: folder.path.clone(),
        format: row.format,
        step: step.or_else(|| step_of(&named.unwrap_or_default())),
        lacks: (row.lacks)(folder),
        bytes,
        modified,
        parts: parts.into_iter().collect(),
    }
}

/// The files of the folder that are checkpoints by themselves.
pub(crate) fn of_files(folder: &Folder<'_>) -> Vec<Checkpoint> {
    let of = |(name, entry): (&String, &crate::folder::Entry)| {
        if entry.is_folder {
            return None;
        }
        let (_, format, lack) = FILES.iter().find(|(end, ..)| name.ends_with(end))?;
        Some(Checkpoint {
            path: folder.path.join(name),
            name: folder.path.join(name),
            format: *format,
            step: step_of(name),
            lacks: lack(folder, name).into_iter().collect(),
            bytes: entry.bytes,
            modified: entry.modified,
            parts: Vec::new(),
        })
    };
    folder.entries.iter().filter_map(of).collect()
}

/// Bytes and last write of all files, so many levels deep.
fn extent(folder: &Folder<'_>, levels: u32) -> (u64, SystemTime) {
    let (mut bytes, mut modified) = (0_u64, SystemTime::UNIX_EPOCH);
    for (name, entry) in &folder.entries {
        let (more, at) = match (entry.is_folder, levels.checked_sub(1)) {
            (false, _) => (entry.bytes, entry.modified),
            (true, Some(levels)) => {
                folder.sub(name).map_or((0, entry.modified), |sub| extent(&sub, levels))
            }
            (true, None) => (0, entry.modified),
        };
        bytes = bytes.saturating_add(more);
        modified = modified.max(at);
    }
    (bytes, modified)
}
