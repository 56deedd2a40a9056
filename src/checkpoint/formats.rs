//! The formats: how each is recognised, and what one of its checkpoints lacks. A row is one writer.
//!
//! The first row that recognises a folder judges it; rows of frameworks come before those of the formats that they
//! build on. What is written last proves what was written before it, and each row names that in its comment.

mod dcp;
mod deepspeed;
mod frameworks;

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::time::SystemTime;

use crate::folder::Folder;
use crate::lack::Lack;
use crate::{Checkpoint, Format, safetensors, zip};

/// How one writer lays a checkpoint out in a folder.
pub(crate) struct Row {
    pub(crate) format: Format,
    /// By its files.
    is_one: fn(&Folder<'_>) -> bool,
    /// By its name alone, as long as it holds nothing that says more.
    is_named: fn(&str) -> bool,
    lacks: fn(&Folder<'_>) -> Vec<Lack>,
    /// Numbers in the names of the files of ranks: what comes before and after the number.
    parts: &'static [(&'static str, &'static str)],
}

const FOLDERS: &[Row] = &[
    Row {
        format: Format::Nemo,
        is_one: frameworks::is_nemo,
        is_named: |_| false,
        lacks: frameworks::nemo,
        parts: &[],
    },
    Row {
        format: Format::Megatron,
        is_one: frameworks::is_megatron,
        is_named: |name| is_numbered(name, "iter_"),
        lacks: frameworks::megatron,
        parts: &[("mp_rank_", "")],
    },
    Row {
        format: Format::Trainer,
        is_one: frameworks::is_trainer,
        is_named: |name| is_numbered(name, "checkpoint-") || is_numbered(name, "tmp-checkpoint-"),
        lacks: frameworks::trainer,
        parts: &[("rng_state_", ".pth")],
    },
    Row {
        format: Format::Accelerate,
        is_one: frameworks::is_accelerate,
        is_named: |name| is_numbered(name, "checkpoint_"),
        lacks: frameworks::accelerate,
        parts: &[("random_states_", ".pkl")],
    },
    Row {
        format: Format::Deepspeed,
        is_one: deepspeed::is_one,
        is_named: |_| false,
        lacks: deepspeed::lacks,
        parts: &[
            ("zero_pp_rank_", "_mp_rank_00_optim_states.pt"),
            ("bf16_zero_pp_rank_", "_mp_rank_00_optim_states.pt"),
        ],
    },
    Row {
        format: Format::Lightning,
        is_one: |folder| frameworks::name(folder).ends_with(".ckpt"),
        is_named: |_| false,
        lacks: frameworks::lightning,
        parts: &[],
    },
    Row {
        format: Format::Dcp,
        is_one: dcp::is_one,
        is_named: |_| false,
        lacks: dcp::lacks,
        parts: &[],
    },
    Row {
        format: Format::Safetensors,
        is_one: |folder| {
            let shards = folder.names(false, safetensors::is_shard);
            !indices(folder).is_empty() || !shards.is_empty()
        },
        is_named: |_| false,
        lacks: |folder| {
            let indices = indices(folder);
            if indices.is_empty() {
                return vec![Lack::Missing("model.safetensors.index.json".to_owned())];
            }
            let of = |index: String| safetensors::lacks_of_index(folder, &index, safetensors::lack);
            indices.into_iter().flat_map(of).collect()
        },
        parts: &[],
    },
];

/// Whether `name` is `before` and a number.
fn is_numbered(name: &str, before: &str) -> bool {
    let digits = name.strip_prefix(before).unwrap_or_default();
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

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

/// The folder as one checkpoint, by its files. The folder in which the Trainer and accelerate save their checkpoints is
/// none, although the Trainer puts the same files into it at its end.
pub(crate) fn of_folder(folder: &Folder<'_>) -> Option<Checkpoint> {
    let row = FOLDERS.iter().find(|row| (row.is_one)(folder))?;
    let is_one = |name: &str| FOLDERS.iter().any(|row| (row.is_named)(name));
    folder.names(true, is_one).is_empty().then(|| judged(folder, row))
}

/// The folder as the checkpoint that its name promises.
pub(crate) fn by_name(folder: &Folder<'_>) -> Option<Checkpoint> {
    let name = frameworks::name(folder);
    let row = FOLDERS.iter().find(|row| (row.is_named)(&name))?;
    Some(judged(folder, row))
}

/// A folder that cannot be read, among checkpoints of a format.
pub(crate) fn unread(
    folder: &Folder<'_>,
    name: &str,
    error: &io::Error,
    format: Format,
) -> Checkpoint {
    let path = folder.path_of(name);
    Checkpoint {
        name: path.clone(),
        path,
        format,
        step: step_of(name),
        lacks: vec![crate::folder::unread(name, error)],
        bytes: 0,
        modified: SystemTime::UNIX_EPOCH,
        parts: Vec::new(),
    }
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
        if entry.is_folder || entry.is_alias {
            return None;
        }
        let (_, format, lack) = FILES.iter().find(|(end, ..)| name.ends_with(end))?;
        let (bytes, modified) = folder.stat(entry);
        let known = match format {
            Format::Lightning => frameworks::lightning_step(folder, name),
            _ => None,
        };
        Some(Checkpoint {
            path: folder.path_of(name),
            name: folder.path_of(name),
            format: *format,
            step: known.or_else(|| step_of(name)),
            lacks: lack(folder, name).into_iter().collect(),
            bytes,
            modified,
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
            (false, _) => folder.stat(entry),
            (true, Some(levels)) => {
                folder.sub(name).map_or((0, SystemTime::UNIX_EPOCH), |sub| extent(&sub, levels))
            }
            (true, None) => continue,
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
/// else the only number, if it is a word of its own (`model_12.pt`, not `resnet50.pt` or `llama-7b.safetensors`).
pub(crate) fn step_of(name: &str) -> Option<u64> {
    let mut numbers: Vec<(&str, u64, &str)> = Vec::new();
    let mut rest = name;
    while let Some(at) = rest.find(|letter: char| letter.is_ascii_digit()) {
        let (before, after) = rest.split_at(at);
        let end = after.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(after.len());
        let (digits, after) = after.split_at(end);
        numbers.extend(digits.parse().ok().map(|number| (before, number, after)));
        rest = after;
    }
    let is_step = |(before, ..): &&(&str, u64, &str)| {
        let word = before.trim_end_matches(['-', '_', '=', '.']).to_ascii_lowercase();
        STEPS.iter().any(|step| word.ends_with(step))
    };
    let is_apart = |(before, _, after): &(&str, u64, &str)| {
        !before.ends_with(char::is_alphabetic) && !after.starts_with(char::is_alphabetic)
    };
    match (numbers.iter().rev().find(is_step), numbers.as_slice()) {
        (Some((_, number, _)), _) => Some(*number),
        (None, [only]) if is_apart(only) => Some(only.1),
        (None, _) => None,
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
