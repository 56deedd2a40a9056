//! The walk: which folders are looked at, and in which order checkpoints are given.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use crate::folder::{Budget, Folder};
use crate::formats;
use crate::lack::Lack;
use crate::names::{self, is_numbered, series};
use crate::progress::{Place, Told};
use crate::several::{self, Searched, is_export};
use crate::{Checkpoint, Format};
use text::lang::failure;
use text::text;

/// Bounds of a walk.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Levels below the folder.
    pub depth: u32,
    /// Entries of all folders together.
    pub entries: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { depth: 4, entries: 200_000 }
    }
}

/// The checkpoints in the folder and below it, newest first: those with a step by it, the others behind them by epoch
/// if all have one, else by the time of the last write. A folder that is a checkpoint is not searched.
///
/// # Errors
/// When the folder itself cannot be read, or there is more below it than the limits allow.
pub fn survey(root: &Path, limits: &Limits) -> io::Result<Vec<Checkpoint>> {
    let budget = Budget::new(limits.entries);
    let mut found = Vec::new();
    let folder = Folder::read(root, &budget)?;
    match formats::of_folder(&folder, Told::default()) {
        Some(one) => found.push(one),
        None => walk(&folder, limits.depth, Told::default(), &mut found),
    }
    if found.is_empty() {
        found.extend(formats::by_name(&folder));
    }
    if budget.is_spent() {
        let entries = limits.entries;
        let many = text!(
            "more than {entries} files and folders are below it",
            "其下的文件和目录超过 {entries} 个"
        );
        return Err(failure(io::ErrorKind::FileTooLarge, many));
    }
    leave_out_exports(&mut found);
    for one in &mut found {
        one.name = one.path.strip_prefix(root).unwrap_or(&one.path).to_owned();
        one.lacks.extend(not_renamed(one));
    }
    sort(&mut found);
    Ok(found)
}

/// A temporary name of the checkpoint, or of the folder of its step.
fn not_renamed(one: &Checkpoint) -> Option<Lack> {
    let is_known = |lack: &Lack| matches!(lack, Lack::NotRenamed(_));
    if one.lacks.iter().any(is_known) {
        return None;
    }
    let mut names = one.name.iter().rev().map(|name| name.to_string_lossy());
    let own = names.next().filter(|name| names::is_temporary(name));
    let above = || names.next().filter(|name| names::is_temporary(name) && names::is_of_one(name));
    own.or_else(above).map(|name| Lack::NotRenamed(name.into_owned()))
}

/// `above`: what the names of the folder and of those above it tell of the progress.
fn walk(folder: &Folder<'_>, depth: u32, above: Told, found: &mut Vec<Checkpoint>) {
    let from = found.len();
    found.extend(several::of_one_folder(formats::of_files(folder, above)));
    let Some(depth) = depth.checked_sub(1) else { return };
    let names = folder.names(true, |name| !name.starts_with('.') && name != "__pycache__");
    let mut others = Vec::new();
    let mut of_format: BTreeMap<String, Format> = BTreeMap::new();
    for name in names {
        let sub = folder.try_sub(&name);
        match sub.as_ref().ok().and_then(|sub| formats::of_folder(sub, above)) {
            Some(one) => {
                of_format.insert(series(&name), one.format);
                found.push(one);
            }
            None => others.push((name, sub)),
        }
    }
    let mut searched = Vec::new();
    let numbers: Vec<String> =
        others.iter().map(|(name, _)| name).filter(|name| is_numbered(name, "")).cloned().collect();
    let are_steps = numbers.len() > 1 && names::are_steps(&numbers, Told::default());
    for (name, sub) in others {
        // A folder that is named like its neighbours, and holds only the beginning of what they hold.
        let format = of_format.get(&series(&name)).copied();
        match (sub, format) {
            (Ok(sub), Some(format)) => found.extend(formats::as_format(&sub, format, above)),
            (Ok(sub), None) => {
                let mut inner = Vec::new();
                // `1000` and `2000` beside it.
                let name =
                    if are_steps && is_numbered(&name, "") { format!("step_{name}") } else { name };
                walk(&sub, depth, Told::of_folder(&name, above), &mut inner);
                let promised = formats::by_name(&sub).filter(|promised| {
                    !inner.iter().any(|one| formats::is_foreign(one, promised.format))
                });
                searched.push(Searched { name, path: sub.path, inner, promised });
            }
            // Removed meanwhile, as old checkpoints are.
            (Err(error), _) if error.kind() == io::ErrorKind::NotFound => {}
            (Err(error), Some(format)) => {
                found.push(formats::unread(folder, &name, &error, format));
            }
            // Perhaps the newest one: a start from the one before it would overwrite what it holds.
            (Err(error), None) => found.extend(formats::unread_by_name(folder, &name, &error)),
        }
    }
    found.extend(several::of_folders(&folder.path, above, searched));
    formats::compare(folder, found.get_mut(from..).unwrap_or_default());
}

/// Removes bare weights beside checkpoints with a step: what a framework exports when it is done.
fn leave_out_exports(found: &mut Vec<Checkpoint>) {
    let is_weights = |one: &Checkpoint| {
        let name = one.path.file_name().unwrap_or_default();
        one.format == Format::Safetensors
            || name == "pytorch_model.bin"
            || name == "adapter_model.bin"
    };
    let has_place = |one: &Checkpoint| one.standing.place.is_some();
    if found.iter().any(|one| !is_weights(one) && has_place(one)) {
        found.retain(|one| !is_weights(one) || has_place(one));
    }
}

/// Those that are far smaller than others of their folder, where both have a step or are the last: weights without what
/// the training needs, as programs export them beside their checkpoints.
fn exports(found: &[Checkpoint]) -> BTreeSet<PathBuf> {
    type Bytes<'f> = BTreeMap<String, (u64, Vec<&'f Path>)>;
    let mut folders: BTreeMap<Option<&Path>, Bytes<'_>> = BTreeMap::new();
    for one in found.iter().filter(|one| !one.standing.is_aside) {
        let name = one.path.file_name().unwrap_or_default().to_string_lossy();
        if one.standing.place.is_none() && !names::is_last(&name) {
            continue;
        }
        let of_series = folders.entry(one.path.parent()).or_default();
        let (bytes, paths) = of_series.entry(series(&name)).or_default();
        *bytes = (*bytes).max(if one.is_whole() { one.bytes } else { 0 });
        paths.push(&one.path);
    }
    let of_folder = |all: Bytes<'_>| {
        let largest = all.values().map(|(bytes, _)| *bytes).max().unwrap_or(0);
        let small =
            all.into_values().filter(move |(bytes, _)| *bytes > 0 && is_export(*bytes, largest));
        small.flat_map(|(_, paths)| paths).map(Path::to_owned).collect::<Vec<_>>()
    };
    folders.into_values().flat_map(of_folder).collect()
}

/// A step says more than a time: a copy is younger than what it was copied from. Files without a step, such as
/// `tokenizer.pt`, do not change the order of those that have one, but for a `last.pt` that was written after the
/// newest step and is no mere export of its weights.
fn sort(found: &mut [Checkpoint]) {
    let exports = exports(found);
    let step = |one: &Checkpoint| {
        one.standing
            .place
            .filter(|place| matches!(place, Place::Step(_)) && !exports.contains(&one.path))
    };
    let whole = found.iter().filter(|one| one.is_whole() && step(one).is_some());
    let newest = whole.max_by_key(|one| step(one));
    let newest = newest.map(|one| (step(one), one.modified, one.bytes));
    let of_last = |one: &Checkpoint| {
        let (place, time, bytes) = newest?;
        let is_last = one.standing.place.is_none()
            && !one.standing.is_aside
            && one.path.file_name().is_some_and(|name| names::is_last(&name.to_string_lossy()))
            && one.modified > time
            && !is_export(one.bytes, bytes);
        place.filter(|_| is_last)
    };
    let others = || found.iter().filter(|one| step(one).is_none() && !one.standing.is_aside);
    let have_epochs = others().all(|one| one.standing.place.is_some());
    found.sort_by_key(|one| {
        let last = of_last(one);
        let place = if have_epochs { one.standing.place } else { step(one) };
        let place = last.or(place);
        (
            exports.contains(&one.path),
            Reverse(place),
            last.is_none(),
            one.standing.is_aside,
            Reverse(one.modified),
            one.path.clone(),
        )
    });
}
