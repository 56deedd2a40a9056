//! The formats: how each is recognised, and what one of its checkpoints lacks. A row is one writer.
//!
//! The first row that recognises a folder judges it; rows of frameworks come before those of the formats that they
//! build on. What is written last proves what was written before it, and each row names that in its comment.

mod dcp;
mod deepspeed;
mod frameworks;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::SystemTime;

use crate::compare::begun;
use crate::folder::Folder;
use crate::lack::Lack;
use crate::names::{are_steps, is_aside, is_numbered, is_of_one, ranks, series};
use crate::numbering::{restarts, varying};
use crate::progress::{Number, Place, Told, told};
use crate::shapes::{Shape, Shapes};
use crate::{Checkpoint, Format, Standing, safetensors, torch};
use text::order::{InOrder, Ordered};

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
        is_one: |folder| frameworks::is_lightning(folder) && !holds_steps(folder),
        is_named: |_| false,
        lacks: frameworks::lightning,
        parts: &[],
    },
    Row {
        format: Format::Dcp,
        is_one: dcp::is_one,
        is_named: |_| false,
        lacks: |folder| frameworks::with_companions(folder, dcp::lacks(folder)),
        parts: &[],
    },
    Row {
        format: Format::Torch,
        is_one: |folder| !indices(folder, ".bin").is_empty() && !holds_steps(folder),
        is_named: |_| false,
        lacks: |folder| of_indices(folder, ".bin", "pytorch_model.bin.index.json", torch::lack),
        parts: &[],
    },
    Row {
        format: Format::Safetensors,
        is_one: |folder| {
            let shards = folder.names(false, safetensors::is_shard);
            let is_one = !indices(folder, ".safetensors").is_empty() || !shards.is_empty();
            is_one && !holds_steps(folder)
        },
        is_named: |_| false,
        lacks: |folder| {
            of_indices(folder, ".safetensors", "model.safetensors.index.json", safetensors::lack)
        },
        parts: &[],
    },
];

/// Whether checkpoints with steps of their own lie beside the weights from which their program started.
fn holds_steps(folder: &Folder<'_>) -> bool {
    let has_step = |name: &str| told(name).has_step_or_epoch() && !is_aside(name);
    !folder.names(true, has_step).is_empty()
        || !folder.names(false, |name| is_file(name) && has_step(name)).is_empty()
}

/// Whether checkpoints lie below the states that a program saves at its end, or with which it began.
fn holds_others(folder: &Folder<'_>) -> bool {
    // Those of DeepSpeed are a part of the state.
    let is_one = |name: &str| told(name).has_step_or_epoch() && !name.starts_with("global_step");
    let subs = || folder.names(true, |name| !name.starts_with('.'));
    let holds = |sub: Folder<'_>| !sub.names(true, is_one).is_empty();
    !is_of_one(&frameworks::name(folder))
        && (!folder.names(true, is_one).is_empty()
            || subs().iter().filter_map(|name| folder.sub(name)).any(holds))
}

fn indices(folder: &Folder<'_>, kind: &str) -> Vec<String> {
    folder.names(false, |name| {
        name.strip_suffix(".index.json").is_some_and(|name| name.ends_with(kind))
    })
}

/// What the files lack that the indices of this kind name, and those beside them. `usual`: the index if there is none.
fn of_indices(
    folder: &Folder<'_>,
    kind: &str,
    usual: &str,
    lack: fn(&Folder<'_>, &str) -> Option<Lack>,
) -> Vec<Lack> {
    let indices = indices(folder, kind);
    if indices.is_empty() {
        let missing = safetensors::missing_shards(folder);
        let missing = missing.unwrap_or_else(|| vec![Lack::Missing(usual.to_owned())]);
        return frameworks::with_companions(folder, missing);
    }
    let of = |index: String| safetensors::lacks_of_index(folder, &index, lack);
    // Programs put an optimizer beside them.
    frameworks::with_companions(folder, indices.into_iter().flat_map(of).collect())
}

/// How a file that is a checkpoint by itself ends in its name, and what it lacks.
type FileRow = (&'static str, Format, fn(&Folder<'_>, &str) -> Option<Lack>);
const FILES: &[FileRow] = &[
    (".ckpt", Format::Lightning, frameworks::lack_of_ckpt),
    (".pt", Format::Torch, torch::lack),
    (".pth", Format::Torch, torch::lack),
    (".pth.tar", Format::Torch, torch::lack),
    (".pyth", Format::Torch, torch::lack),
    ("pytorch_model.bin", Format::Torch, torch::lack),
    ("adapter_model.bin", Format::Torch, torch::lack),
    ("optimizer.bin", Format::Torch, torch::lack),
    (".safetensors", Format::Safetensors, safetensors::lack),
];

/// Whether a file is named like one that is a checkpoint by itself.
pub(crate) fn is_file(name: &str) -> bool {
    FILES.iter().any(|(end, ..)| name.ends_with(end))
}

/// The folder as one checkpoint, by its files. The folder in which the Trainer and accelerate save their checkpoints is
/// none, although the Trainer puts the same files into it at its end.
pub(crate) fn of_folder(folder: &Folder<'_>, above: Told) -> Option<Checkpoint> {
    let row = FOLDERS.iter().find(|row| (row.is_one)(folder))?;
    let is_one = |name: &str| FOLDERS.iter().any(|row| (row.is_named)(name));
    let is_state = [Format::Trainer, Format::Accelerate].contains(&row.format);
    if !folder.names(true, is_one).is_empty() || (is_state && holds_others(folder)) {
        return None;
    }
    // Shards of weights come before what its framework writes last, as a single file of weights does.
    let promised = promised(folder).filter(|promised| {
        is_weights(row.format) && {
            !of_files(folder, Told::default()).iter().any(|one| is_foreign(one, promised.format))
        }
    });
    Some(judged(folder, promised.unwrap_or(row), above))
}

/// Whether a folder of this format may be the beginning of one of a framework.
pub(crate) fn is_weights(format: Format) -> bool {
    [Format::Torch, Format::Safetensors].contains(&format)
}

fn promised(folder: &Folder<'_>) -> Option<&'static Row> {
    let name = frameworks::name(folder);
    FOLDERS.iter().find(|row| (row.is_named)(&name))
}

/// The folder as the checkpoint that its name promises, unless this was found in it, which is of another writer.
pub(crate) fn by_name(folder: &Folder<'_>, inner: &[Checkpoint]) -> Option<Checkpoint> {
    let row = promised(folder)?;
    let is_other = inner.iter().any(|one| is_foreign(one, row.format));
    (!is_other).then(|| judged(folder, row, Told::default()))
}

/// Whether the writer that the name of a folder promises would not have made what was found in it: programs and Ray
/// name folders as the Trainer and accelerate do.
fn is_foreign(one: &Checkpoint, writer: Format) -> bool {
    let own = ["scaler.pt", "pytorch_model.bin", "adapter_model.bin"];
    let of_trainer = ["optimizer.pt", "scheduler.pt"];
    let is_of_trainer = |name: &str| of_trainer.contains(&name) || name.starts_with("rng_state");
    let is_own =
        |name: &str| own.contains(&name) || (writer == Format::Trainer && is_of_trainer(name));
    match one.format {
        Format::Trainer | Format::Accelerate | Format::Megatron | Format::Nemo => true,
        Format::Torch | Format::Lightning => {
            !one.path.file_name().is_some_and(|name| is_own(&name.to_string_lossy()))
        }
        Format::Dcp => {
            one.standing.is_own
                || !one
                    .path
                    .file_name()
                    .is_some_and(|name| frameworks::SHARDED.iter().any(|own| name == *own))
        }
        Format::Safetensors => one.standing.is_own,
        // The Trainer has them in `global_step500`.
        Format::Deepspeed => false,
    }
}

/// A folder that cannot be read, among checkpoints of a format.
pub(crate) fn unread(
    folder: &Folder<'_>,
    name: &str,
    error: &io::Error,
    format: Format,
) -> Checkpoint {
    let path = folder.path_of(name);
    let place = told(name).place();
    Checkpoint {
        name: path.clone(),
        path,
        format,
        step: place.and_then(Place::step),
        lacks: vec![crate::folder::unread(name, error)],
        bytes: 0,
        modified: folder
            .entries
            .get(name)
            .map_or(SystemTime::UNIX_EPOCH, |entry| folder.stat(entry).1),
        parts: Vec::new(),
        standing: Standing { place, is_own: place.is_some(), ..Standing::default() },
    }
}

/// A folder that cannot be read, if its name is that of a checkpoint.
pub(crate) fn unread_by_name(
    folder: &Folder<'_>,
    name: &str,
    error: &io::Error,
) -> Option<Checkpoint> {
    let row = FOLDERS.iter().find(|row| (row.is_named)(name)).map(|row| row.format);
    let format = row.or_else(|| is_of_one(name).then_some(Format::Torch))?;
    Some(unread(folder, name, error, format))
}

/// The folder, judged by the row of this format, whatever it seems to be.
pub(crate) fn as_format(folder: &Folder<'_>, format: Format, above: Told) -> Option<Checkpoint> {
    let row = FOLDERS.iter().find(|row| row.format == format)?;
    Some(judged(folder, row, above))
}

/// The place that the files or the name tell, or the names above.
fn standing(known: Option<u64>, told: Told, above: Told) -> Standing {
    let (told, is_own) = told.within(above);
    let place = known.map(|step| Place::Step(Number::of(step)));
    Standing {
        is_own: is_own || place.is_some(),
        place: place.or_else(|| told.place()),
        ..Standing::default()
    }
}

fn judged(folder: &Folder<'_>, row: &Row, above: Told) -> Checkpoint {
    let (bytes, modified) = match extent(folder, 3) {
        // It holds no file yet.
        (0, SystemTime::UNIX_EPOCH) => (0, folder.modified()),
        extent => extent,
    };
    let mut parts: BTreeSet<u32> =
        row.parts.iter().flat_map(|(before, after)| folder.numbers(before, after)).in_set();
    if row.format == Format::Dcp {
        parts.extend(dcp::parts(folder));
    }
    let known = match row.format {
        Format::Trainer => frameworks::global_step(folder),
        Format::Lightning => frameworks::lightning_step(folder, "meta.pt"),
        _ => None,
    };
    let name = frameworks::name(folder);
    let standing = Standing {
        // What ds_to_universal made of another one loads with a setting of its own only.
        is_aside: name.ends_with("_universal"),
        ..standing(known, told(&name), above)
    };
    Checkpoint {
        path: folder.path.clone(),
        name: folder.path.clone(),
        format: row.format,
        step: standing.place.and_then(Place::step),
        lacks: (row.lacks)(folder),
        bytes,
        modified,
        parts: parts.into_iter().collect(),
        standing,
    }
}

/// Whether something else than other checkpoints tells how many files of this kind there are: their names, their
/// format, or the metadata beside them.
pub(crate) fn is_counted(name: &str) -> bool {
    let is_part = |(before, after): &(&str, &str)| {
        let number = name.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
        number.is_some_and(|number| is_numbered(number, ""))
    };
    name.ends_with(".distcp")
        || ranks(name).is_some_and(|named| named.world > 0)
        || FOLDERS.iter().flat_map(|row| row.parts).any(is_part)
}

/// Adds what the checkpoints of accelerate and of the older form of Megatron in one folder lack that the two whole ones
/// before them have, by step; the first one is compared with the next.
pub(crate) fn compare(folder: &Folder<'_>, found: &mut [Checkpoint]) {
    let is_such = |one: &&mut Checkpoint| {
        let is_here = one.path.parent() == Some(&folder.path);
        // The newer form has no folders of ranks.
        let has_ranks = || {
            let sub = folder.sub(&one.own_name());
            sub.is_some_and(|sub| !frameworks::ranks_of_megatron(&sub).is_empty())
        };
        let is_compared = match one.format {
            Format::Accelerate => one.standing.files.is_empty(),
            Format::Megatron => has_ranks(),
            _ => false,
        };
        is_here && is_compared && one.standing.place.is_some() && one.is_whole()
    };
    let mut all: BTreeMap<String, Vec<&mut Checkpoint>> = BTreeMap::new();
    for one in found.iter_mut().filter(is_such) {
        all.entry(series(&one.own_name())).or_default().push(one);
    }
    all.into_values().for_each(|all| compare_series(folder, all));
}

/// Formats that do not prove by themselves that all files are there.
pub(crate) const COMPARED: &[Format] =
    &[Format::Accelerate, Format::Dcp, Format::Torch, Format::Safetensors];

fn compare_series(folder: &Folder<'_>, mut all: Vec<&mut Checkpoint>) {
    all.order_by_key(|one| one.standing.place);
    let subs: Vec<Option<Folder<'_>>> = all.iter().map(|one| folder.sub(&one.own_name())).collect();
    let is_accelerate = all.iter().all(|one| one.format == Format::Accelerate);
    let last = |sub: &Folder<'_>| match is_accelerate {
        true => frameworks::last_of_accelerate(sub).into_iter().in_set(),
        false => frameworks::ranks_of_megatron(sub).into_iter().in_set(),
    };
    let files: Vec<BTreeSet<String>> =
        subs.iter().map(|sub| sub.as_ref().map(last).unwrap_or_default()).collect();
    let mut shapes = Shapes::default();
    let (mut older, mut before) = (1, 1);
    for (at, one) in all.into_iter().enumerate() {
        let Some((others, own)) = files.get(before).zip(files.get(at)) else { continue };
        // Others than before are of another split of the model.
        let is_same = is_accelerate || own.is_subset(others);
        let written = |at: usize, file: &String| subs.get(at)?.as_ref()?.written(file);
        let both = |file| Some((written(before, file), Some(written(at, file)?)));
        let begun = begun(&mut others.iter().filter_map(both));
        let is_missing = |file: &&String| {
            is_same
                && !own.contains(*file)
                && files.get(older).is_some_and(|older| older.contains(*file))
                && (begun.is_none() || written(before, file) <= begun)
        };
        let lacks: Vec<Lack> =
            others.iter().filter(is_missing).cloned().map(Lack::Missing).collect();
        one.standing.shape = shapes.of(one.step, &lacks);
        match one.standing.shape {
            Shape::Torn => one.lacks.extend(lacks),
            Shape::Between => {}
            Shape::Whole if at > 0 => (older, before) = (before, at),
            Shape::Whole | Shape::Fewer => (older, before) = (at, at),
        }
    }
}

/// The files of the folder that are checkpoints by themselves.
pub(crate) fn of_files(folder: &Folder<'_>, above: Told) -> Vec<Checkpoint> {
    let row = |name: &str| FILES.iter().find(|(end, ..)| name.ends_with(end));
    // A hidden one is being written, or tells macOS of another file.
    let row = |name: &str| row(name).filter(|_| !name.starts_with('.'));
    let names = folder.names(false, |name| row(name).is_some());
    let above = if are_steps(&names, above) { Told::default() } else { above };
    let varying = varying(&names);
    let restarts = restarts(&mut names.iter().filter_map(|name| told(name).step_of_epoch()));
    let told = |name: &str| {
        let told = told(name).or_only(varying.get(name).copied());
        if restarts { told.within_epoch() } else { told }
    };
    let of = |(name, entry): (&String, &crate::folder::Entry)| {
        if entry.is_folder || entry.is_alias {
            return None;
        }
        let (_, format, lack) = row(name)?;
        let (bytes, modified) = folder.stat(entry);
        let known = match format {
            Format::Lightning => frameworks::lightning_step(folder, name),
            _ => None,
        };
        let path = folder.path_of(name);
        let standing = Standing {
            is_aside: is_aside(name),
            files: vec![path.clone()],
            ..standing(known, told(name), above)
        };
        Some(Checkpoint {
            name: path.clone(),
            path,
            format: *format,
            step: standing.place.and_then(Place::step),
            lacks: lack(folder, name).into_iter().collect(),
            bytes,
            modified,
            parts: Vec::new(),
            standing,
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
