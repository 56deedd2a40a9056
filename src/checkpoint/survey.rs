//! The walk: which folders are looked at, and in which order checkpoints are given.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::folder::{Budget, Folder};
use crate::formats;
use crate::lack::Lack;
use crate::names::{self, is_numbered, series};
use crate::progress::{Place, Told, is_remarkable, told};
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

/// The checkpoints in the folder and below it, newest first: those with a step by it, with a last one before them, the
/// others behind them by epoch if all have one, else by the time of the last write, and exports behind all. A folder
/// that is a checkpoint is not searched.
///
/// # Errors
/// When the folder itself cannot be read, or there is more below it than the limits allow.
pub fn survey(root: &Path, limits: &Limits) -> io::Result<Vec<Checkpoint>> {
    let budget = Budget::new(limits.entries);
    let mut found = Vec::new();
    // Its own name tells as much as those of the folders in it, and `.` or a link to it has another one.
    let own = root.canonicalize()?;
    let folder = Folder::read(&own, &budget)?;
    match formats::of_folder(&folder, Told::default()) {
        Some(one) => found.push(one),
        None => {
            walk(&folder, limits.depth, Told::default(), &mut found);
            if let Some(promised) = formats::by_name(&folder, &found) {
                found = vec![promised];
            }
        }
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
    let is_never_alone = |one: &Checkpoint| {
        one.standing.is_aside && one.is_whole() && names::is_never_alone(&one.own_name())
    };
    found.retain(|one| !is_never_alone(one));
    for one in &mut found {
        one.name = one.path.strip_prefix(&own).unwrap_or(&one.path).to_owned();
        one.lacks.extend(not_renamed(one));
    }
    sort(&mut found);
    for one in &mut found {
        one.path = if one.name.as_os_str().is_empty() { root.into() } else { root.join(&one.name) };
    }
    Ok(found)
}

/// A temporary name of the checkpoint, or of a folder above it that is named like one.
fn not_renamed(one: &Checkpoint) -> Option<Lack> {
    let is_known = |lack: &Lack| matches!(lack, Lack::NotRenamed(_));
    if one.lacks.iter().any(is_known) {
        return None;
    }
    let mut names = one.name.iter().rev().map(|name| name.to_string_lossy());
    let own = names.next().filter(|name| names::is_temporary(name));
    let above = || names.find(|name| names::is_temporary(name) && names::is_of_one(name));
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
    let mut weights = Vec::new();
    for name in names {
        let sub = folder.try_sub(&name);
        match sub.as_ref().ok().and_then(|sub| formats::of_folder(sub, above)) {
            Some(one) if formats::is_weights(one.format) => weights.push((name, sub, one)),
            Some(one) => {
                of_format.insert(series(&name), one.format);
                found.push(one);
            }
            None => others.push((name, sub)),
        }
    }
    for (name, sub, one) in weights {
        match of_format.get(&series(&name)) {
            // Beside checkpoints of a framework that begin with weights.
            Some(Format::Trainer | Format::Accelerate) => others.push((name, sub)),
            _ => {
                of_format.entry(series(&name)).or_insert(one.format);
                found.push(one);
            }
        }
    }
    let mut searched = Vec::new();
    let numbers: Vec<String> =
        others.iter().map(|(name, _)| name).filter(|name| is_numbered(name, "")).cloned().collect();
    let is_run = |(name, sub): &(String, io::Result<Folder<'_>>)| {
        let has_own = |file: &str| told(file).has_step_or_epoch() || is_remarkable(file);
        is_numbered(name, "") && sub.as_ref().is_ok_and(|sub| !sub.names(false, has_own).is_empty())
    };
    let are_steps = numbers.len() > 1
        && names::are_steps(&numbers, Told::default())
        && !others.iter().any(is_run);
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
                let promised = formats::by_name(&sub, &inner);
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

/// The checkpoints of one folder whose names differ in numbers only.
#[derive(Default)]
struct Series<'f> {
    all: Vec<&'f Checkpoint>,
    /// Bytes of the largest whole one.
    bytes: u64,
    places: BTreeSet<Place>,
    /// The last writes, from the first on.
    times: Vec<SystemTime>,
    has_steps: bool,
    is_last: bool,
    /// It has no steps, or is the best one: a neighbour of another step tells as much.
    is_lone: bool,
}

impl<'f> Series<'f> {
    fn of(name: &str, all: Vec<&'f Checkpoint>) -> Series<'f> {
        let mut series = Series::default();
        for one in &all {
            if one.is_whole() {
                series.bytes = series.bytes.max(one.bytes);
            }
            series.places.extend(one.standing.place);
            series.times.push(one.modified);
            series.has_steps |= told(&one.own_name()).has_step_or_epoch();
            series.is_last |= is_last(one);
        }
        series.times.sort_unstable();
        let is_lone = series.places.is_empty() || is_remarkable(name);
        Series { all, is_lone, ..series }
    }

    /// Whether it has only the weights of what this other one has.
    fn is_export_of(&self, other: &Series<'_>) -> bool {
        // The last one is written with each of these, or it is one of long ago.
        let is_recent = || {
            let before = self.times.len().checked_sub(2).and_then(|at| self.times.get(at));
            other.is_last && before.is_none_or(|before| other.times.last() > Some(before))
        };
        let is_same = || self.is_lone || !self.places.is_disjoint(&other.places);
        let is_measure = (other.has_steps && is_same()) || is_recent();
        self.bytes > 0 && is_export(self.bytes, other.bytes) && is_measure
    }
}

/// Series that others are compared with: the largest of a folder.
const COMPARED: usize = 64;

/// Files that are far smaller than those of a series beside them: weights without what the training needs, as programs
/// export them beside their checkpoints. Both have one of the same step, or the smaller one is lone.
fn exports(found: &[Checkpoint]) -> BTreeSet<PathBuf> {
    let mut folders: BTreeMap<Option<&Path>, BTreeMap<String, Vec<&Checkpoint>>> = BTreeMap::new();
    for one in found.iter().filter(|one| !one.standing.is_aside) {
        let series = series(&one.own_name());
        folders.entry(one.path.parent()).or_default().entry(series).or_default().push(one);
    }
    let mut exports = BTreeSet::new();
    for all in folders.into_values() {
        let mut all: Vec<Series<'_>> =
            all.into_iter().map(|(name, all)| Series::of(&name, all)).collect();
        all.sort_by_key(|series| Reverse(series.bytes));
        let largest = all.iter().filter(|one| one.has_steps || one.is_last).take(COMPARED);
        let largest: Vec<&Series<'_>> = largest.collect();
        let small = all.iter().filter(|one| largest.iter().any(|other| one.is_export_of(other)));
        exports.extend(small.flat_map(|series| &series.all).map(|one| one.path.clone()));
    }
    exports
}

fn is_last(one: &Checkpoint) -> bool {
    one.standing.place.is_none() && names::is_last(&one.own_name())
}

/// A step says more than a time: a copy is younger than what it was copied from. Files without a step, such as
/// `tokenizer.pt`, do not change the order of those that have one, but for a `last.pt` beside or above them that was
/// written after the newest one, and not in the same save.
fn sort(found: &mut [Checkpoint]) {
    let exports = exports(found);
    // What is torn is never chosen, and is named where it stands.
    let is_behind =
        |one: &Checkpoint| (one.standing.is_aside && one.is_whole()) || exports.contains(&one.path);
    let step = |one: &Checkpoint| {
        one.standing.place.filter(|place| matches!(place, Place::Step(_)) && !is_behind(one))
    };
    let mut whole: Vec<&Checkpoint> =
        found.iter().filter(|one| one.is_whole() && step(one).is_some()).collect();
    whole.sort_by_key(|one| Reverse(step(one)));
    let folder = |one: &Checkpoint| one.path.parent().map(Path::to_owned);
    let newest = whole.first().map(|one| (step(one), folder(one), one.modified));
    let pause = whole
        .get(1)
        .zip(newest.as_ref())
        .and_then(|(before, (_, _, time))| time.duration_since(before.modified).ok());
    let same_save = pause.unwrap_or_default() / SAME_SAVE;
    let of_last = |one: &Checkpoint| {
        let (place, beside, time) = newest.as_ref()?;
        let is_newer = one.modified > *time + same_save;
        let is_beside =
            beside.as_ref().zip(folder(one)).is_some_and(|(own, last)| own.starts_with(last));
        place.filter(|_| is_last(one) && !is_behind(one) && is_newer && is_beside)
    };
    let others = || found.iter().filter(|one| step(one).is_none() && !is_behind(one));
    let have_epochs = others().all(|one| one.standing.place.is_some());
    found.sort_by_key(|one| {
        let last = of_last(one);
        let place = if have_epochs { one.standing.place } else { step(one) };
        let place = last.or(place);
        (
            is_behind(one),
            exports.contains(&one.path),
            Reverse(place),
            last.is_none(),
            !names::is_model(&one.own_name()),
            Reverse(one.modified),
            one.path.clone(),
        )
    });
}

/// Files that were written within this share of the time between two saves are of one save.
const SAME_SAVE: u32 = 50;
