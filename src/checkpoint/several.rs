//! Files that are one checkpoint together: those of the ranks, an optimizer beside its model, all files in the folder of
//! a step.
//!
//! Takes what was found in a folder; gives one checkpoint for files that belong together, which is whole if each of them
//! is there and whole. Which files there should be is known from the checkpoints before it only.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::lack::{Lack, first_gaps};
use crate::names;
use crate::progress::{Place, Told, is_remarkable, told};
use crate::{Checkpoint, Format, Standing};

/// A folder that was searched.
pub(crate) struct Searched {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    pub(crate) inner: Vec<Checkpoint>,
    /// The checkpoint that its name promises, unless something else is in it.
    pub(crate) promised: Option<Checkpoint>,
}

fn name_of(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// The files of one folder: those of all ranks of a step are one checkpoint, and so are a model and its optimizer.
pub(crate) fn of_one_folder(files: Vec<Checkpoint>) -> Vec<Checkpoint> {
    let mut found = Vec::new();
    let mut of_ranks: BTreeMap<String, Vec<(Vec<u32>, u32, Checkpoint)>> = BTreeMap::new();
    for file in files {
        match names::ranks(&name_of(&file.path)) {
            Some((ranks, world, name)) => {
                of_ranks.entry(name).or_default().push((ranks, world, file));
            }
            None => found.push(file),
        }
    }
    for mut files in of_ranks.into_values() {
        files.sort_by(|(one, ..), (other, ..)| one.cmp(other));
        let world = files.iter().map(|(_, world, _)| *world).max().unwrap_or(0);
        let (ranks, files): (Vec<_>, Vec<_>) =
            files.into_iter().map(|(ranks, _, file)| (ranks, file)).unzip();
        found.extend(joined(files).map(|one| with_ranks(one, &ranks, world)));
    }
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
            main.extend(beside);
            let one = joined(main);
            let series = one.as_ref().map(|one| names::series(&name_of(&one.path)));
            of_series.entry(series.unwrap_or_default()).or_default().extend(one);
        } else {
            found.extend(beside);
            // Each has ranks of its own.
            for one in main {
                let kind = names::kind(&name_of(&one.path), one.step);
                of_series.entry(kind).or_default().push(one);
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

/// Files of one step with names of their own, such as a generator and a discriminator: if all steps before, and two at
/// least, have both files, one is not whole without the other. Exports, which are smaller, are no companions, and the
/// best one comes now and then. A first step with less is being deleted, or is where the program began (`G_0.pth`).
fn compare_companions(found: &mut [Checkpoint]) {
    let mut steps: BTreeMap<Place, BTreeMap<String, usize>> = BTreeMap::new();
    for (at, one) in found.iter().enumerate() {
        let name = name_of(&one.path);
        let own = one.standing.place.filter(|_| one.standing.is_own && !is_remarkable(&name));
        if let Some(place) = own {
            steps.entry(place).or_default().insert(names::kind(&name, one.step), at);
        }
    }
    let mut first = steps.values().zip(steps.values().skip(1));
    let has_less = first.next().is_some_and(|(first, next)| {
        first.len() < next.len() && first.keys().all(|kind| next.contains_key(kind))
    });
    if has_less {
        steps.pop_first();
    }
    let mut lacks: Vec<(usize, Vec<Lack>)> = Vec::new();
    let mut companions: Option<BTreeSet<&String>> = None;
    for (number, (before, own)) in steps.values().zip(steps.values().skip(1)).enumerate() {
        let mut kinds: BTreeSet<&String> = BTreeSet::new();
        kinds.extend(before.keys());
        let needed = match companions {
            None => kinds,
            Some(all) => all.intersection(&kinds).copied().collect(),
        };
        if number > 0 {
            lacks.extend(companions_of_step(found, &needed, before, own));
        }
        companions = Some(needed);
    }
    for (at, lacks) in lacks {
        if let Some(one) = found.get_mut(at) {
            one.lacks.extend(lacks);
        }
    }
}

/// What the files of one step lack of the `needed` kinds, by their positions.
fn companions_of_step(
    found: &[Checkpoint],
    needed: &BTreeSet<&String>,
    before: &BTreeMap<String, usize>,
    own: &BTreeMap<String, usize>,
) -> Vec<(usize, Vec<Lack>)> {
    let one = |at: &usize| found.get(*at);
    let is_aside = |at: &usize| one(at).is_some_and(|one| one.standing.is_aside);
    let bytes = |at: &usize| one(at).map_or(0, |one| one.bytes);
    let largest = before.values().filter(|at| !is_aside(at)).map(bytes).max().unwrap_or(0);
    let is_small = |kind: &String| {
        before.get(kind).is_some_and(|at| !is_aside(at) && is_export(bytes(at), largest))
    };
    let (before_roles, own_roles) = (roles(before.keys()), roles(own.keys()));
    let has_fewer = |kind: &String| {
        let role = names::role(kind);
        own_roles.get(&role) < before_roles.get(&role)
    };
    // The kinds of which something is missing, with that.
    let torn = needed.iter().filter_map(|kind| {
        let lacks = match own.get(*kind) {
            Some(at) => one(at)?.lacks.clone(),
            None if !has_fewer(kind) => return None,
            None => {
                let (last, step) = (one(before.get(*kind)?)?, one(own.values().next()?)?.step);
                vec![Lack::Missing(names::renumbered(&name_of(&last.path), last.step, step))]
            }
        };
        (!lacks.is_empty()).then(|| (*kind, is_small(kind), names::series(kind), lacks))
    });
    let torn: Vec<(&String, bool, String, Vec<Lack>)> = torn.take(NAMED).collect();
    if torn.is_empty() {
        return Vec::new();
    }
    let targets = own.iter().filter(|(kind, at)| needed.contains(kind) && !is_aside(at));
    let of_target = |(kind, at): (&String, &usize)| {
        let (series, is_small) = (names::series(kind), is_small(kind));
        // Parts of one name may have any size, exports need nothing and are not needed.
        let is_other = |(other, small, of, _): &&(&String, bool, String, Vec<Lack>)| {
            *other != kind && (*of == series || !(*small || is_small))
        };
        let lacks = torn.iter().filter(is_other).flat_map(|(.., lacks)| lacks.clone());
        (*at, lacks.collect())
    };
    targets.map(of_target).collect()
}

/// Whether one of two files with steps has only the weights: they are at most half of what the other one has, with all
/// that the optimizer keeps.
pub(crate) fn is_export(bytes: u64, largest: u64) -> bool {
    bytes < largest / 10 * 6
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

/// Ranks that are named of those that are missing: each of many files may be without thousands.
const NAMED: usize = 64;

/// With the files of these ranks, of so many at least.
fn with_ranks(mut one: Checkpoint, ranks: &[Vec<u32>], world: u32) -> Checkpoint {
    let single: Vec<u32> = ranks
        .iter()
        .filter_map(|ranks| <[u32; 1]>::try_from(ranks.as_slice()).ok())
        .map(|[rank]| rank)
        .collect();
    if single.len() == ranks.len() {
        one.lacks.extend(first_gaps(single.clone(), world, NAMED));
        one.parts = single;
    }
    one
}

/// A model in a folder of its own, or in that of the program, is not whole beside a torn optimizer, whether their names have
/// steps or not.
pub(crate) fn join_torn(found: &mut Vec<Checkpoint>) {
    for at in (0..found.len()).rev() {
        let Some(main) = found.get(at).and_then(|one| model_of(found, one)) else { continue };
        let torn = found.remove(at);
        if let Some(main) = found.get_mut(if main > at { main - 1 } else { main }) {
            main.lacks.extend(torn.lacks);
        }
    }
}

/// The position of the only model beside a torn optimizer, where neither has a step.
fn model_of(found: &[Checkpoint], torn: &Checkpoint) -> Option<usize> {
    if torn.is_whole() || !torn.standing.is_aside || torn.standing.place.is_some() {
        return None;
    }
    let is_model = |(_, one): &(usize, &Checkpoint)| {
        let Standing { place, is_aside, files, .. } = &one.standing;
        let is_beside = one.path.parent() == torn.path.parent();
        is_beside && place.is_none() && !is_aside && !files.is_empty()
    };
    let mut models = found.iter().enumerate().filter(is_model).map(|(at, _)| at);
    models.next().filter(|_| models.next().is_none())
}

/// Folders that are named like those of a framework, none of which it has finished: another program names them so.
const OF_ANOTHER: usize = 3;

/// The folders in a folder: those of ranks hold parts of the same checkpoints, and those of a step are one each.
pub(crate) fn of_folders(
    folder: &Path,
    above: Told,
    searched: Vec<Searched>,
) -> impl Iterator<Item = Checkpoint> {
    let mut found = Vec::new();
    let mut of_ranks: BTreeMap<String, Vec<(Vec<u32>, Searched)>> = BTreeMap::new();
    let mut of_steps: BTreeMap<String, Vec<Searched>> = BTreeMap::new();
    for one in searched {
        let is_one = || {
            let has_own = one.inner.iter().any(|inner| inner.standing.is_own);
            !has_own || one.promised.is_some()
        };
        match names::ranks(&one.name) {
            Some((ranks, _, name)) if told(&one.name).place().is_none() => {
                of_ranks.entry(name).or_default().push((ranks, one));
            }
            _ if names::is_of_one(&one.name) && is_one() => {
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
            let mut series: Vec<Checkpoint> =
                folders.into_iter().map(|one| as_one(one, above)).collect();
            compare(&mut series, None);
            found.extend(series);
        } else {
            found.extend(folders.into_iter().flat_map(alone));
        }
    }
    found.into_iter()
}

fn alone(one: Searched) -> Vec<Checkpoint> {
    match one.promised {
        Some(promised) => vec![promised],
        None => one.inner,
    }
}

/// The same checkpoint in the folders of several ranks (`mp_rank_00`): the one of the first.
fn of_rank_folders(folder: &Path, mut folders: Vec<(Vec<u32>, Searched)>) -> Vec<Checkpoint> {
    folders.sort_by(|(one, _), (other, _)| one.cmp(other));
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
            let below = beside(one).strip_prefix(folder).unwrap_or(folder).to_owned();
            if !is_alone {
                one.lacks = within(std::mem::take(&mut one.lacks), &below);
            }
            if one.standing.files.is_empty() {
                one.standing.files.push(one.path.clone());
            }
        }
        Some(with_ranks(joined(several)?, &ranks, 0))
    };
    let mut of_series: BTreeMap<String, Vec<Checkpoint>> = BTreeMap::new();
    for one in by_name.into_values().filter_map(of) {
        of_series.entry(names::series(&name_of(&one.path))).or_default().push(one);
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

/// The folder in which the files lie that a checkpoint lacks.
fn beside(one: &Checkpoint) -> &Path {
    match one.standing.files.as_slice() {
        [] => &one.path,
        [first, rest @ ..] => {
            let mut folders = first.ancestors().skip(1);
            let is_above = |above: &&Path| rest.iter().all(|file| file.starts_with(above));
            folders.find(is_above).unwrap_or(&one.path)
        }
    }
}

/// All that is in the folder of a step as one checkpoint.
fn as_one(searched: Searched, above: Told) -> Checkpoint {
    let Searched { name, path, inner, promised: _ } = searched;
    let place = Told::of_folder(&name, above).place();
    let is_own = Told::of_folder(&name, Told::default()).place().is_some();
    let format = inner.iter().find(|one| !one.standing.is_aside).or(inner.first());
    let format = format.map_or(Format::Torch, |one| one.format);
    let modified = inner.iter().map(|one| one.modified).max();
    let mut files = Vec::new();
    let mut lacks = Vec::new();
    let mut parts: Vec<u32> = Vec::new();
    let mut bytes = 0_u64;
    for one in inner {
        lacks.extend(within(one.lacks.clone(), beside(&one).strip_prefix(&path).unwrap_or(&path)));
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

/// What a checkpoint of several files has.
struct Held {
    /// The names of its files, by what the same files of other steps have in common.
    files: BTreeMap<String, String>,
    /// The number of files that differ in numbers only. A number that is another one in each step, such as a date or a
    /// score, is no part: only fewer files than before are too few.
    roles: BTreeMap<String, usize>,
    parts: Vec<u32>,
    step: Option<u64>,
}

impl Held {
    /// `base`: the folder below which the files are named, if it is not that of the checkpoint.
    fn by(one: &Checkpoint, base: Option<&Path>) -> Held {
        let is_file = one.standing.files.contains(&one.path);
        let base = base.unwrap_or(if is_file { beside(one) } else { &one.path });
        let named = |file: &PathBuf| {
            let name = file.strip_prefix(base).unwrap_or(file).to_string_lossy().into_owned();
            (names::kind(&name, one.step), name)
        };
        let files: BTreeMap<String, String> = one.standing.files.iter().map(named).collect();
        let roles = roles(files.values());
        Held { files, roles, parts: one.parts.clone(), step: one.step }
    }

    fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    fn count(&self, role: &str) -> usize {
        self.roles.get(role).copied().unwrap_or(0)
    }

    /// What this one lacks of that which the last of the others has, and the rest of them too.
    fn lacks(&self, others: &[&Held]) -> Vec<Lack> {
        let Some((last, rest)) = others.split_last() else { return Vec::new() };
        let own: BTreeSet<u32> = self.parts.iter().copied().collect();
        let mut parts: BTreeSet<u32> =
            last.parts.iter().copied().filter(|part| !own.contains(part)).collect();
        for one in rest {
            let here: BTreeSet<u32> = one.parts.iter().copied().collect();
            parts.retain(|part| here.contains(part));
        }
        let parts: Vec<u32> = parts.into_iter().take(NAMED).collect();
        // A file that is the only one of its step in each of them lacks none, whatever its name is.
        let are_single = self.files.len() == 1 && last.files.len() == 1;
        let mut here = self.roles.clone();
        let mut lacks = Vec::new();
        for (kind, file) in last.files.iter().filter(|_| !are_single) {
            let is_named = !parts.is_empty() && names::ranks(file).is_some();
            if is_named || self.files.contains_key(kind) {
                continue;
            }
            let role = names::role(file);
            let fewest = others.iter().map(|one| one.count(&role)).min();
            let count = here.entry(role).or_default();
            if Some(*count) < fewest && lacks.len() < NAMED {
                *count += 1;
                lacks.push(Lack::Missing(names::renumbered(file, last.step, self.step)));
            }
        }
        if !parts.is_empty() && !self.is_empty() {
            lacks.push(Lack::Parts(parts));
        }
        lacks
    }
}

/// How many of these names there are that differ in numbers only.
fn roles<'n>(names: impl Iterator<Item = &'n String>) -> BTreeMap<String, usize> {
    let mut roles = BTreeMap::new();
    for name in names {
        *roles.entry(names::role(name)).or_default() += 1;
    }
    roles
}

/// Adds the files and parts that the two before have, and one does not; the first one is compared with the next, and is no
/// measure if it has less: it is being deleted, or comes from elsewhere. A program that saves fewer files than before has
/// its next checkpoint called torn.
fn compare(series: &mut [Checkpoint], base: Option<&Path>) {
    series.sort_by_key(|one| (one.standing.place, one.modified));
    let held: Vec<Held> = series.iter().map(|one| Held::by(one, base)).collect();
    let mut first = 0;
    for (at, (one, own)) in series.iter_mut().zip(&held).enumerate() {
        let others = match at {
            0 => held.get(1..2),
            1 => held.get(..1),
            at => held.get(at.saturating_sub(2).max(first)..at),
        };
        // One in which nothing is yet is no measure.
        let mut others: Vec<&Held> =
            others.into_iter().flatten().filter(|one| !one.is_empty()).collect();
        if others.is_empty() && own.is_empty() {
            others.extend(held.iter().rev().find(|one| !one.is_empty()));
        }
        let are_known = one.lacks.iter().any(|lack| matches!(lack, Lack::Parts(_)));
        let lacks = own.lacks(&others);
        if at == 0 && !lacks.is_empty() {
            first = 1;
        }
        let is_new = |lack: &Lack| !are_known || !matches!(lack, Lack::Parts(_));
        one.lacks.extend(lacks.into_iter().filter(is_new));
    }
}
