//! The walk: which folders are looked at, and what is a checkpoint in them.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::beside;
use crate::epochs;
use crate::folder::{Budget, Entry, Folder};
use crate::formats;
use crate::lack::Lack;
use crate::names::{self, is_numbered, series};
use crate::numbering::restarts;
use crate::order::{leave_out_exports, sort};
use crate::progress::{Told, is_remarkable, step_of, told};
use crate::several::{self, Searched};
use crate::{Checkpoint, Format};
use text::lang::failure;
use text::order::InOrder;
use text::text;

/// Bounds of a walk.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Levels below the folder; all levels are read below that of a step.
    pub depth: u32,
    /// Entries of all folders together.
    pub entries: usize,
}

/// Levels below the folder of a step: only the number of entries bounds what belongs to one checkpoint, such as the
/// folders for the modules of a model (nanotron).
const LEVELS_OF_ONE: u32 = 64;

impl Default for Limits {
    fn default() -> Limits {
        Limits { depth: 4, entries: 200_000 }
    }
}

/// What a walk found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Survey {
    /// Newest first.
    pub found: Vec<Checkpoint>,
    /// Folders in which others were not read, since they lie too deep or refuse it: checkpoints may be there too.
    pub unread: Vec<PathBuf>,
}

/// The checkpoints in the folder and below it, newest first: those with a step by it, with a last one before them, the
/// others behind them by epoch if all have one, else by the time of the last write, and exports behind all. A folder
/// that is a checkpoint is not searched.
///
/// # Errors
/// When the folder itself cannot be read, or there is more below it than the limits allow.
pub fn survey(root: &Path, limits: &Limits) -> io::Result<Survey> {
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
    several::join_torn(&mut found);
    let is_never_alone = |one: &Checkpoint| {
        one.standing.is_aside && one.is_whole() && names::is_never_alone(&one.own_name())
    };
    found.retain(|one| !is_never_alone(one));
    for one in &mut found {
        one.name = one.path.strip_prefix(&own).unwrap_or(&one.path).to_owned();
        one.lacks.extend(not_renamed(one));
        // Files of one kind after the other, or a file that is named and looked at, lack the same.
        let mut known: HashSet<Lack> = HashSet::new();
        one.lacks.retain(|lack| known.insert(lack.clone()));
    }
    sort(&mut found);
    let given = |name: &Path| match name.as_os_str().is_empty() {
        true => root.to_owned(),
        false => root.join(name),
    };
    for one in &mut found {
        one.path = given(&one.name);
    }
    drop(folder);
    let unread =
        budget.unread().into_iter().map(|path| given(path.strip_prefix(&own).unwrap_or(&path)));
    Ok(Survey { found, unread: unread.collect() })
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
    let Some(depth) = depth.checked_sub(1) else {
        if !subs(folder).is_empty() {
            folder.leave_unread();
        }
        return;
    };
    let (others, of_format) = of_formats(folder, above, found);
    let mut searched = Vec::new();
    let numbers: Vec<String> =
        others.iter().map(|(name, _)| name).filter(|name| is_numbered(name, "")).cloned().collect();
    let is_run = |(name, sub): &Sub<'_>| {
        let has_own = |file: &str| told(file).has_step_or_epoch() || is_remarkable(file);
        is_numbered(name, "") && sub.as_ref().is_ok_and(|sub| !sub.names(false, has_own).is_empty())
    };
    let is_sweep = |(name, sub): &Sub<'_>| {
        is_numbered(name, "") && sub.as_ref().is_ok_and(|sub| holds_last(sub, LEVELS_OF_RUN))
    };
    let counted = match names::are_steps(&numbers, Told::default()) {
        _ if others.iter().any(is_run) => None,
        // Hashes, or numbers of jobs.
        _ if numbers.iter().any(|number| told(number).only.is_none()) => None,
        true => Some("step_"),
        // `0`, `1` and `2` are parts in the folder of a step, and runs of a sweep where each has its last ones.
        false if above.place().is_some() || others.iter().any(is_sweep) => None,
        false => Some("epoch_"),
    };
    let mut all = others.iter().filter_map(|(name, _)| told(name).step_of_epoch());
    let restarts = restarts(&mut all);
    for (name, sub) in others {
        // A folder that is named like its neighbours, and holds only the beginning of what they hold.
        let format = of_format.get(&series(&name)).copied();
        match (sub, format) {
            (Ok(sub), Some(format)) => found.extend(formats::as_format(&sub, format, above)),
            (Ok(sub), None) => {
                let mut inner = Vec::new();
                // `1000` and `2000` beside it.
                let counted = counted.filter(|_| is_numbered(&name, "")).unwrap_or_default();
                let name = format!("{counted}{name}");
                let depth = if names::is_of_one(&name) { LEVELS_OF_ONE } else { depth };
                let told = Told::of_folder(&name, above);
                let told = if restarts { told.within_epoch() } else { told };
                walk(&sub, depth, told, &mut inner);
                let promised = formats::by_name(&sub, &inner);
                searched.push(Searched { name, told, path: sub.path, inner, promised });
            }
            // Removed meanwhile, as old checkpoints are.
            (Err(error), _) if error.kind() == io::ErrorKind::NotFound => {}
            (Err(error), Some(format)) => {
                found.push(formats::unread(folder, &name, &error, format));
            }
            // Perhaps the newest one: a start from the one before it would overwrite what it holds.
            (Err(error), None) => match formats::unread_by_name(folder, &name, &error) {
                Some(one) => found.push(one),
                None => folder.leave_unread(),
            },
        }
    }
    found.extend(epochs::of_steps(&mut searched));
    found.extend(several::of_folders(&folder.path, searched));
    let found = found.get_mut(from..).unwrap_or_default();
    formats::compare(folder, found);
    beside::compare(folder, found);
    mark_tracked(folder, found);
}

/// Levels of folders between that of a run and its checkpoints: `0/lightning_logs/version_0/checkpoints/last.ckpt`.
const LEVELS_OF_RUN: u32 = 3;

/// Whether files that say they are the last or the best lie below, or some with steps.
fn holds_last(folder: &Folder<'_>, levels: u32) -> bool {
    let has_step = |name: &str| told(name).has_step_or_epoch();
    let is_own = |file: &str| has_step(file) || names::is_last_or_best(file);
    let holds = |name: &String| {
        let below = || folder.sub(name).is_some_and(|sub| holds_last(&sub, levels - 1));
        has_step(name) || (levels > 0 && below())
    };
    !folder.names(false, |file| formats::is_file(file) && is_own(file)).is_empty()
        || subs(folder).iter().any(holds)
}

/// The names of the folders that are looked at.
fn subs(folder: &Folder<'_>) -> Vec<String> {
    folder.names(true, |name| !name.starts_with('.') && name != "__pycache__")
}

/// A folder in another one, with its name.
type Sub<'b> = (String, io::Result<Folder<'b>>);

/// Adds the folders that are checkpoints by their files. Gives the others, and the formats by the names of their series.
fn of_formats<'b>(
    folder: &Folder<'b>,
    above: Told,
    found: &mut Vec<Checkpoint>,
) -> (Vec<Sub<'b>>, BTreeMap<String, Format>) {
    let names = subs(folder);
    let from = found.len();
    let mut others = Vec::new();
    let mut of_format: BTreeMap<String, Format> = BTreeMap::new();
    for name in names {
        let sub = folder.try_sub(&name);
        match sub.as_ref().ok().and_then(|sub| formats::of_folder(sub, above)) {
            Some(one) => {
                let series = series(&name);
                if !formats::is_weights(one.format) || !of_format.contains_key(&series) {
                    of_format.insert(series, one.format);
                }
                found.push(one);
            }
            None => others.push((name, sub)),
        }
    }
    let foreign = of_another_program(found.get(from..).unwrap_or_default());
    if !foreign.is_empty() {
        of_format.retain(|series, _| !foreign.contains(series));
        let all = found.drain(from..).collect::<Vec<_>>();
        for one in all {
            let name = one.own_name().into_owned();
            match foreign.contains(&series(&name)) {
                true => others.push((name.clone(), folder.try_sub(&name))),
                false => found.push(one),
            }
        }
    }
    // Beside checkpoints of a framework that begin with weights.
    for one in found.iter_mut().skip(from).filter(|one| formats::is_weights(one.format)) {
        let name = one.own_name();
        let format = of_format.get(&series(&name)).copied();
        let format = format.filter(|one| [Format::Trainer, Format::Accelerate].contains(one));
        let judged = format.zip(folder.sub(&name));
        if let Some(judged) =
            judged.and_then(|(format, sub)| formats::as_format(&sub, format, above))
        {
            *one = judged;
        }
    }
    (others, of_format)
}

/// The names of series that look like accelerate, of which none was finished: a program of its own names its optimizer so.
fn of_another_program(found: &[Checkpoint]) -> BTreeSet<String> {
    let mut unfinished: BTreeMap<String, usize> = BTreeMap::new();
    let mut finished: BTreeSet<String> = BTreeSet::new();
    for one in found.iter().filter(|one| one.format == Format::Accelerate) {
        let series = series(&one.own_name());
        match one.parts.is_empty() {
            true => *unfinished.entry(series).or_default() += 1,
            false => drop(finished.insert(series)),
        }
    }
    unfinished.retain(|series, count| *count >= several::OF_ANOTHER && !finished.contains(series));
    unfinished.into_keys().in_set()
}

/// Marks the checkpoint of the folder that its program names as its last one, with the time of that: after steps went
/// back it goes on from there. A name stands in a text that is named for the last one (`latest` of DeepSpeed,
/// `latest_checkpointed_iteration.txt` of Megatron, `last_checkpoint` of detectron2), or is the target of a link.
fn mark_tracked(folder: &Folder<'_>, found: &mut [Checkpoint]) {
    let is_one = |(name, one): &(&String, &Entry)| {
        !one.is_folder && names::is_last(name) && (one.is_alias || !formats::is_file(name))
    };
    let files = folder.entries.iter().filter(is_one).map(|(name, _)| name);
    for name in files.chain(folder.links.iter().filter(|name| names::is_last(name))) {
        let Some((time, text)) = read_tracker(&folder.path_of(name)) else { continue };
        let named = text.rsplit('/').find(|part| !part.is_empty()).unwrap_or_default();
        let step = named.parse().ok();
        let is_named = |one: &&mut Checkpoint| {
            let below = one.path.strip_prefix(&folder.path).ok();
            let Some(name) = below.and_then(|below| below.iter().next()) else { return false };
            let name = name.to_string_lossy();
            (name == named || (step.is_some() && step_of(&name) == step)) && time >= one.modified
        };
        for one in found.iter_mut().filter(is_named) {
            one.standing.tracked =
                one.standing.tracked.take().max(Some((time, folder.path.clone())));
        }
    }
}

/// When it was written, and the text in it or the target of the link.
fn read_tracker(path: &Path) -> Option<(SystemTime, String)> {
    let time = path.symlink_metadata().and_then(|metadata| metadata.modified()).ok()?;
    let text = match path.read_link() {
        Ok(target) => target.to_string_lossy().into_owned(),
        Err(_) => String::from_utf8(linux::regular_file::read(path, 4096).ok()?).ok()?,
    };
    Some((time, text.trim().to_owned()))
}
