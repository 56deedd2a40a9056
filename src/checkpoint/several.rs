//! Files that are one checkpoint together: those of the ranks, an optimizer beside its model, all files in the folder of
//! a step.
//!
//! Takes what was found in a folder; gives one checkpoint for files that belong together, which is whole if each of them
//! is there and whole. Which files there should be is known from the checkpoints before it only.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::compare::{Held, NAMED, compare, compare_companions};
use crate::lack::{Lack, first_gaps};
use crate::names::{self, Ranked};
use crate::progress::{Place, Told, is_only_date, is_remarkable, told};
use crate::{Checkpoint, Format, Standing};
use text::order::{InOrder, Ordered};

/// A folder that was searched.
pub(crate) struct Searched {
    pub(crate) name: String,
    /// What its name and those above it tell.
    pub(crate) told: Told,
    pub(crate) path: PathBuf,
    pub(crate) inner: Vec<Checkpoint>,
    /// The checkpoint that its name promises, unless something else is in it.
    pub(crate) promised: Option<Checkpoint>,
}

/// The files of one folder: those of all ranks of a step are one checkpoint, and so are a model and its optimizer.
pub(crate) fn of_one_folder(files: Vec<Checkpoint>) -> Vec<Checkpoint> {
    let mut found = Vec::new();
    let mut of_ranks: BTreeMap<String, BTreeMap<String, Vec<(Ranked, Checkpoint)>>> =
        BTreeMap::new();
    for file in files {
        match names::ranks(&file.own_name()) {
            Some(named) => {
                let sets = of_ranks.entry(named.without_world.clone()).or_default();
                sets.entry(named.without.clone()).or_default().push((named, file));
            }
            None => found.push(file),
        }
    }
    for sets in of_ranks.into_values() {
        let mut sets: Vec<Checkpoint> = sets.into_values().filter_map(of_ranks_of_one).collect();
        // The rest of a save of more ranks, which was made anew on fewer.
        let whole = sets.iter().filter(|one| one.is_whole()).map(|one| one.modified).max();
        sets.retain(|one| one.is_whole() || Some(one.modified) > whole);
        found.extend(sets);
    }
    let runs: BTreeSet<String> =
        found.iter().filter(|one| !one.standing.is_aside).flat_map(own_words).in_set();
    let mut of_steps: BTreeMap<Option<Place>, Vec<Checkpoint>> = BTreeMap::new();
    for one in found {
        of_steps.entry(one.standing.place.filter(|_| one.standing.is_own)).or_default().push(one);
    }
    let mut found = of_steps.remove(&None).unwrap_or_default();
    let mut orphans = Vec::new();
    let mut of_series: BTreeMap<String, Vec<Checkpoint>> = BTreeMap::new();
    for of_step in of_steps.into_values() {
        let (beside, mut main): (Vec<_>, Vec<_>) =
            of_step.into_iter().partition(|one| one.standing.is_aside);
        if main.is_empty() {
            orphans.extend(joined(beside));
        } else if main.len() == 1 {
            let own = main.first().map(own_words).unwrap_or_default();
            // Beside the model of another run.
            let is_of_other = |one: &Checkpoint| {
                let words = own_words(one);
                words.is_disjoint(&own) && !words.is_disjoint(&runs)
            };
            let (other, beside): (Vec<_>, Vec<_>) = beside.into_iter().partition(is_of_other);
            orphans.extend(joined(other));
            main.extend(beside);
            let one = joined(main);
            let series = one.as_ref().map(|one| names::series(&one.own_name()));
            of_series.entry(series.unwrap_or_default()).or_default().extend(one);
        } else {
            main.extend(beside);
            // Each has ranks of its own, and some may be parts of one.
            let series = |one: &Checkpoint| names::series(&one.own_name());
            let all: BTreeSet<String> = main.iter().map(series).in_set();
            let are_parts = all.len() < main.len();
            for one in main {
                let kind = || names::kind(&one.own_name(), one.step);
                let series = if are_parts { kind() } else { series(&one) };
                of_series.entry(series).or_default().push(one);
            }
        }
    }
    // An optimizer whose model was not written.
    let mut series_of: BTreeMap<String, String> = BTreeMap::new();
    for (series, members) in &of_series {
        let files = members.iter().flat_map(|one| Held::by(one, None).roles.into_keys());
        series_of.extend(files.map(|file| (file, series.clone())));
    }
    for orphan in orphans {
        let series =
            Held::by(&orphan, None).roles.into_keys().find_map(|file| series_of.get(&file));
        match series.and_then(|series| of_series.get_mut(series)) {
            Some(series) => series.push(orphan),
            None => found.push(orphan),
        }
    }
    for mut series in of_series.into_values() {
        compare(&mut series, None);
        found.extend(series);
    }
    compare_companions(&mut found);
    found
}

/// The words of a name that say neither what is in the file nor its step, such as that of its run.
fn own_words(one: &Checkpoint) -> BTreeSet<String> {
    let series = names::kind(&one.own_name(), one.step).to_ascii_lowercase();
    let words = series.split(|letter: char| !letter.is_ascii_alphanumeric());
    words.filter(|word| !names::is_never_alone(word)).map(str::to_owned).in_set()
}

/// The files of all ranks of one step.
fn of_ranks_of_one(mut files: Vec<(Ranked, Checkpoint)>) -> Option<Checkpoint> {
    files.order_by(|(one, _), (other, _)| one.ranks.cmp(&other.ranks));
    let (named, files): (Vec<Ranked>, Vec<_>) = files.into_iter().unzip();
    let world = named.iter().map(|one| one.world).max().unwrap_or(0);
    let may_begin_at_one = named.iter().all(|one| one.may_begin_at_one);
    let has_axes = named.iter().any(|one| one.has_axes);
    let ranks: Vec<Vec<u32>> = named.into_iter().map(|one| one.ranks).collect();
    let first = u32::from(may_begin_at_one && !ranks.contains(&vec![0]));
    let mut one = with_ranks(joined(files)?, &ranks, first, world);
    if has_axes {
        // They may be those of each node, of which each has the same.
        one.parts.clear();
    }
    Some(one)
}

/// The first one, with what the others lack and hold.
fn joined(several: Vec<Checkpoint>) -> Option<Checkpoint> {
    let mut several = several.into_iter();
    let mut joined = several.next()?;
    for one in several {
        joined.lacks.extend(one.lacks);
        joined.bytes = joined.bytes.saturating_add(one.bytes);
        joined.modified = joined.modified.max(one.modified);
        joined.standing.files.extend(one.standing.files);
    }
    Some(joined)
}

/// With the files of these ranks, of so many at least, counted from `first` on.
fn with_ranks(mut one: Checkpoint, ranks: &[Vec<u32>], first: u32, world: u32) -> Checkpoint {
    let single: Vec<u32> = ranks
        .iter()
        .filter_map(|ranks| <[u32; 1]>::try_from(ranks.as_slice()).ok())
        .map(|[rank]| rank)
        .collect();
    if single.len() == ranks.len() {
        let end = first.saturating_add(world);
        one.lacks.extend(first_gaps(single.clone(), first, end, NAMED));
        one.parts = single;
    }
    one
}

/// A model in a folder of its own, or in that of the program, is not whole beside a torn optimizer, where neither has a
/// step and it is the only model there.
pub(crate) fn join_torn(found: &mut Vec<Checkpoint>) {
    let mut models: BTreeMap<PathBuf, usize> = BTreeMap::new();
    for one in found.iter().filter(|one| is_model_without_step(one)) {
        *models.entry(folder_of(one)).or_default() += 1;
    }
    let is_torn = |one: &Checkpoint| {
        let Standing { place, is_aside, .. } = &one.standing;
        let is_torn = !one.is_whole() && *is_aside && place.is_none();
        is_torn && models.get(&folder_of(one)) == Some(&1)
    };
    let (torn, rest): (Vec<_>, Vec<_>) = std::mem::take(found).into_iter().partition(is_torn);
    *found = rest;
    let mut lacks: BTreeMap<PathBuf, Vec<Lack>> = BTreeMap::new();
    for one in torn {
        lacks.entry(folder_of(&one)).or_default().extend(one.lacks);
    }
    for one in found.iter_mut().filter(|one| is_model_without_step(one)) {
        one.lacks.extend(lacks.remove(&folder_of(one)).unwrap_or_default());
    }
}

fn folder_of(one: &Checkpoint) -> PathBuf {
    one.path.parent().unwrap_or(&one.path).to_owned()
}

fn is_model_without_step(one: &Checkpoint) -> bool {
    let Standing { place, is_aside, files, .. } = &one.standing;
    place.is_none() && !is_aside && !files.is_empty()
}

/// Folders that are named like those of a framework, none of which it has finished: another program names them so.
pub(crate) const OF_ANOTHER: usize = 3;

/// The folders in a folder: those of ranks hold parts of the same checkpoints, and those of a step are one each.
pub(crate) fn of_folders(
    folder: &Path,
    searched: Vec<Searched>,
) -> impl Iterator<Item = Checkpoint> {
    let mut found = Vec::new();
    let mut of_ranks: BTreeMap<String, Vec<(Vec<u32>, Searched)>> = BTreeMap::new();
    let mut of_steps: BTreeMap<String, Vec<Searched>> = BTreeMap::new();
    let has_parts =
        |one: &Checkpoint| !one.parts.is_empty() || names::ranks(&one.own_name()).is_some();
    let is_of_node = |one: &Searched| names::is_node(&one.name) && one.inner.iter().any(has_parts);
    let (nodes, searched): (Vec<Searched>, Vec<Searched>) =
        searched.into_iter().partition(is_of_node);
    found.extend(of_nodes(folder, nodes));
    for one in searched {
        let is_one = || {
            let has_own = one.inner.iter().any(|inner| inner.standing.is_own);
            !has_own || one.promised.is_some()
        };
        match names::ranks(&one.name) {
            Some(named) if told(&one.name).place().is_none() => {
                of_ranks.entry(named.without).or_default().push((named.ranks, one));
            }
            _ if (names::is_of_one(&one.name) || is_dated(&one)) && is_one() => {
                of_steps.entry(names::series(&one.name)).or_default().push(one);
            }
            _ => found.extend(alone(one)),
        }
    }
    for folders in of_ranks.into_values() {
        found.extend(of_rank_folders(folder, folders));
    }
    for mut folders in of_steps.into_values() {
        // No framework leaves so many without one that is whole: a program saves an optimizer of its own.
        let has_own = |one: &&Searched| one.inner.iter().any(|one| one.standing.is_aside);
        if folders.iter().filter(has_own).count() >= OF_ANOTHER {
            folders.iter_mut().for_each(|one| one.promised = None);
        }
        let files = |one: &Searched| match one.promised {
            Some(_) => 0,
            None => one.inner.iter().map(|one| one.standing.files.len().max(1)).sum(),
        };
        if folders.iter().map(files).max().is_some_and(|files: usize| files > 1) {
            // Another one of the series shows that the name promised too much.
            let mut series: Vec<Checkpoint> = folders.into_iter().map(as_one).collect();
            compare(&mut series, None);
            found.extend(series);
        } else {
            found.extend(folders.into_iter().flat_map(alone));
        }
    }
    found.into_iter()
}

/// Whether a folder that is named for a date and nothing else is one checkpoint, not the run of that date.
fn is_dated(one: &Searched) -> bool {
    let is_part = |inner: &Checkpoint| {
        inner.path.parent() == Some(&one.path) && !is_remarkable(&inner.own_name())
    };
    is_only_date(&one.name) && one.inner.iter().all(is_part)
}

fn alone(one: Searched) -> Vec<Checkpoint> {
    match one.promised {
        Some(promised) => vec![promised],
        None => one.inner,
    }
}

/// The same checkpoint in the folders of several ranks (`mp_rank_00`): the one of the first.
fn of_rank_folders(folder: &Path, mut folders: Vec<(Vec<u32>, Searched)>) -> Vec<Checkpoint> {
    folders.order_by(|(one, _), (other, _)| one.cmp(other));
    let of = |(ranks, one): &(Vec<u32>, Searched)| (ranks.clone(), one.path.clone());
    let all: Vec<(Vec<u32>, PathBuf)> = folders.iter().map(of).collect();
    let mut by_name: BTreeMap<PathBuf, Vec<(Vec<u32>, Checkpoint)>> = BTreeMap::new();
    for (ranks, searched) in folders {
        let path = searched.path.clone();
        for one in alone(searched) {
            let name = one.path.strip_prefix(&path).unwrap_or(&one.path).to_owned();
            by_name.entry(name).or_default().push((ranks.clone(), one));
        }
    }
    let of = |several: Vec<(Vec<u32>, Checkpoint)>| {
        let (ranks, mut several): (Vec<Vec<u32>>, Vec<Checkpoint>) = several.into_iter().unzip();
        let is_alone = several.len() == 1;
        for one in &mut several {
            let below = one.beside().strip_prefix(folder).unwrap_or(folder).to_owned();
            if !is_alone {
                one.lacks = within(std::mem::take(&mut one.lacks), &below);
            }
            if one.standing.files.is_empty() {
                one.standing.files.push(one.path.clone());
            }
        }
        Some(with_ranks(joined(several)?, &ranks, 0, 0))
    };
    let mut of_series: BTreeMap<String, Vec<Checkpoint>> = BTreeMap::new();
    for one in by_name.into_values().filter_map(of) {
        of_series.entry(names::series(&one.own_name())).or_default().push(one);
    }
    for series in of_series.values_mut() {
        match series.as_mut_slice() {
            // Nothing but the folders tells how many ranks there are.
            [one] => {
                let missing = missing_ranks(one, &all);
                one.lacks.extend(missing);
            }
            series => compare(series, Some(folder)),
        }
    }
    of_series.into_values().flatten().collect()
}

/// The files of the ranks of several nodes, each in its folder: one is missing that no node has. Where two have the same one,
/// ranks are those on a node, and each must have all that it lacks.
fn of_nodes(folder: &Path, nodes: Vec<Searched>) -> Vec<Checkpoint> {
    let mut by_name: BTreeMap<(String, Option<Place>), Vec<Checkpoint>> = BTreeMap::new();
    for searched in nodes {
        let path = searched.path.clone();
        for one in alone(searched) {
            // Without the rank of its first file.
            let below = one.path.strip_prefix(&path).unwrap_or(&one.path);
            let of = |name: &std::ffi::OsStr| {
                let name = name.to_string_lossy();
                names::ranks(&name).map_or(name.into_owned(), |named| named.without)
            };
            let name: Vec<String> = below.iter().map(of).collect();
            by_name.entry((name.join("/"), one.standing.place)).or_default().push(one);
        }
    }
    let mut of_series: BTreeMap<String, Vec<Checkpoint>> = BTreeMap::new();
    for ((name, _), several) in by_name {
        let here: Vec<u32> = several.iter().flat_map(|one| one.parts.iter().copied()).collect();
        let ranks: BTreeSet<u32> = here.iter().copied().in_set();
        let are_of_job = ranks.len() == here.len();
        let several = several.into_iter().map(|mut one| {
            for lack in one.lacks.iter_mut().filter(|_| are_of_job) {
                if let Lack::Parts(parts) = lack {
                    parts.retain(|part| !ranks.contains(part));
                }
            }
            one.lacks.retain(|lack| *lack != Lack::Parts(Vec::new()));
            if one.standing.files.is_empty() {
                one.standing.files.push(one.path.clone());
            }
            one
        });
        if let Some(mut one) = joined(several.collect()) {
            one.parts = if are_of_job { ranks.into_iter().collect() } else { Vec::new() };
            of_series.entry(names::series(&name)).or_default().push(one);
        }
    }
    of_series.values_mut().for_each(|series| compare(series, Some(folder)));
    of_series.into_values().flatten().collect()
}

/// The ranks in whose folders nothing of it is.
fn missing_ranks(one: &Checkpoint, all: &[(Vec<u32>, PathBuf)]) -> Option<Lack> {
    let is_here = |path: &PathBuf| one.standing.files.iter().any(|file| file.starts_with(path));
    let missing = all.iter().filter(|(_, path)| !is_here(path)).take(NAMED);
    let missing: Vec<u32> = missing.filter_map(|(ranks, _)| ranks.last().copied()).collect();
    let is_known = one.lacks.iter().any(|lack| matches!(lack, Lack::Parts(_)));
    (!missing.is_empty() && !is_known).then_some(Lack::Parts(missing))
}

fn within(lacks: Vec<Lack>, folder: &Path) -> Vec<Lack> {
    if folder.as_os_str().is_empty() {
        return lacks;
    }
    let folder = folder.to_string_lossy();
    lacks.into_iter().map(|lack| lack.within(&folder)).collect()
}

/// All that is in the folder of a step as one checkpoint.
pub(crate) fn as_one(searched: Searched) -> Checkpoint {
    let Searched { name, told, path, inner, promised: _ } = searched;
    let place = told.place();
    let is_own = Told::of_folder(&name, Told::default()).place().is_some();
    let format = inner.iter().find(|one| !one.standing.is_aside).or(inner.first());
    let format = format.map_or(Format::Torch, |one| one.format);
    let modified = inner.iter().map(|one| one.modified).max();
    let mut files = Vec::new();
    let mut lacks = Vec::new();
    let mut parts: Vec<u32> = Vec::new();
    let mut bytes = 0_u64;
    for one in inner {
        lacks.extend(within(one.lacks.clone(), one.beside().strip_prefix(&path).unwrap_or(&path)));
        match one.standing.files.is_empty() {
            true => files.push(one.path),
            false => files.extend(one.standing.files),
        }
        parts.extend(one.parts);
        bytes = bytes.saturating_add(one.bytes);
    }
    parts.sort_unstable();
    parts.dedup();
    let begun = || path.metadata().and_then(|metadata| metadata.modified()).ok();
    Checkpoint {
        name: path.clone(),
        format,
        step: place.and_then(Place::step),
        lacks,
        bytes,
        modified: modified.or_else(begun).unwrap_or(SystemTime::UNIX_EPOCH),
        parts,
        standing: Standing { place, is_own, files, ..Standing::default() },
        path,
    }
}
