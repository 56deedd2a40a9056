//! The formats: how each is recognised, and what one of its checkpoints lacks. A row is one writer.
//!
//! The first row that recognises a folder judges it; rows of frameworks come before those of the formats that they
//! build on. What is written last proves what was written before it, and each row names that in its comment.

mod dcp;
mod deepspeed;
mod frameworks;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::SystemTime;

use crate::folder::Folder;
use crate::lack::Lack;
use crate::{Checkpoint, Format, safetensors, zip};

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

/// Words in front of the number of a step, in the names of checkpoints.
const STEPS: &[&str] =
    &["step", "iter", "iteration", "checkpoint", "ckpt", "global_step", "samples"];

/// The step in a name: the number behind one of [`STEPS`] (`epoch=3-step=1200.ckpt`, `checkpoint-500`, `iter_0001000`),
/// else the only number.
pub(crate) fn step_of(name: &str) -> Option<u64> {
    let mut numbers: Vec<(&str, u64)> = Vec::new();
    let mut rest = name;
    while let Some(at) = rest.find(|letter: char| letter.is_ascii_digit()) {
        let (before, after) = rest.split_at(at);
        let end = after.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(after.len());
        let (digits, after) = after.split_at(end);
        numbers.extend(digits.parse().ok().map(|number| (before, number)));
        rest = after;
    }
    let is_step = |(before, _): &&(&str, u64)| {
        let word = before.trim_end_matches(['-', '_', '=', '.']).to_ascii_lowercase();
        STEPS.iter().any(|step| word.ends_with(step))
    };
    match numbers.iter().rev().find(is_step) {
        Some((_, number)) => Some(*number),
        None if numbers.len() == 1 => numbers.first().map(|(_, number)| *number),
        None => None,
    }
}

/// What the files lack that torch.save or safetensors wrote beside the weights.
pub(crate) fn companions(folder: &Folder<'_>) -> Vec<Lack> {
    let of = |name: String| {
        let end = Path::new(&name).extension()?.to_str()?;
        match end {
            "safetensors" => safetensors::lack(folder, &name),
            // Programs add pickles of their own.
            "pt" | "pth" | "bin" | "pkl" => zip::lack(folder, &name)
                .filter(|lack| !matches!(lack, Lack::Damaged(_) | Lack::NoEnd(_))),
            _ => None,
        }
    };
    folder.names(false, |_| true).into_iter().filter_map(of).collect()
}

/// The parts that are missing below the highest one.
pub(crate) fn gaps(mut numbers: Vec<u32>, least: u32) -> Vec<Lack> {
    numbers.dedup();
    let count = numbers.last().map_or(0, |last| last.saturating_add(1)).max(least);
    let missing: Vec<u32> = (0..count).filter(|one| !numbers.contains(one)).take(4096).collect();
    if missing.is_empty() { Vec::new() } else { vec![Lack::Parts(missing)] }
}
