//! The steps in folders of epochs: they are one series through all epochs.
//!
//! Takes the folders in a folder; gives the checkpoints of steps in those of epochs. An epoch may have begun with a torn one,
//! and only those of the epochs before tell which files it should have.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::Checkpoint;
use crate::compare::compare;
use crate::names;
use crate::numbering::restarts;
use crate::progress::{Number, Place, Told, told};
use crate::several::{Searched, as_one};

/// Takes the folders of epochs in which steps are out of `searched`, and gives what is in them.
pub(crate) fn of_steps(searched: &mut Vec<Searched>) -> Vec<Checkpoint> {
    join(searched);
    count_anew(searched);
    let has_steps = |one: &mut Searched| {
        let are_below = |inner: &Checkpoint| is_below_step(inner, &one.path);
        let has_own = one.inner.iter().any(|inner| is_of_step(inner, &one.path));
        let is_such = has_own || (!one.inner.is_empty() && one.inner.iter().all(are_below));
        epoch(one).is_some() && is_such
    };
    let mut found = Vec::new();
    let mut of_series: BTreeMap<String, Vec<Checkpoint>> = BTreeMap::new();
    for Searched { path, inner, .. } in searched.extract_if(.., has_steps) {
        for one in inner {
            match is_of_step(&one, &path) {
                true => of_series.entry(names::series(&one.own_name())).or_default().push(one),
                false => found.push(one),
            }
        }
    }
    for mut series in of_series.into_values() {
        compare(&mut series, None);
        found.extend(series);
    }
    found
}

fn epoch(one: &Searched) -> Option<Number> {
    match told(&one.name).place() {
        Some(Place::Epoch(epoch, None)) => Some(epoch),
        _ => None,
    }
}

/// Whether this is the checkpoint of a step in this folder, of files that are compared.
fn is_of_step(one: &Checkpoint, folder: &Path) -> bool {
    let is_here = one.standing.is_own && one.path.parent() == Some(folder);
    is_here && !one.standing.files.is_empty()
}

/// Whether it lies in the folder of a step in this folder.
fn is_below_step(one: &Checkpoint, folder: &Path) -> bool {
    let below = one.path.strip_prefix(folder).ok();
    let mut names = below.into_iter().flat_map(Path::iter).map(|name| name.to_string_lossy());
    let is_step = |name: &str| told(name).has_step_or_epoch();
    names.next().is_some_and(|name| is_step(&name)) && names.next().is_some()
}

/// A single file in the folder of a step is one checkpoint with its folder, if others of these folders have several files.
fn join(searched: &mut [Searched]) {
    let mut several: BTreeSet<String> = BTreeSet::new();
    for folder in searched.iter().filter(|one| epoch(one).is_some()) {
        let is_folder = |one: &&Checkpoint| {
            let files = &one.standing.files;
            is_of_step(one, &folder.path) && files.len() > 1 && !files.contains(&one.path)
        };
        let series = |one: &Checkpoint| names::series(&one.own_name());
        several.extend(folder.inner.iter().filter(is_folder).map(series));
    }
    for folder in searched.iter_mut().filter(|one| epoch(one).is_some()) {
        let mut of_folders: BTreeMap<PathBuf, Vec<Checkpoint>> = BTreeMap::new();
        for one in std::mem::take(&mut folder.inner) {
            let below = one.path.strip_prefix(&folder.path).ok();
            let name = below.and_then(|below| below.iter().next()).unwrap_or_default();
            let path = folder.path.join(name);
            let series = names::series(&name.to_string_lossy());
            match path != one.path && !one.standing.is_own && several.contains(&series) {
                true => of_folders.entry(path).or_default().push(one),
                false => folder.inner.push(one),
            }
        }
        for (path, inner) in of_folders {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let told = Told::of_folder(&name, folder.told);
            folder.inner.push(as_one(Searched { name, told, path, inner, promised: None }));
        }
    }
}

/// Where each epoch counts its steps anew, they are those of the epoch.
fn count_anew(searched: &mut [Searched]) {
    let step = |one: &Checkpoint, folder: &Path| match one.standing.place {
        Some(Place::Step(step)) if one.standing.is_own || is_below_step(one, folder) => Some(step),
        _ => None,
    };
    let of = |one: &Searched| {
        let epoch = epoch(one);
        let steps = one.inner.iter().filter_map(|inner| step(inner, &one.path));
        steps.filter_map(|step| epoch.map(|epoch| (epoch, step))).collect::<Vec<_>>()
    };
    if !restarts(&mut searched.iter().flat_map(of)) {
        return;
    }
    for folder in searched {
        let Some(epoch) = epoch(folder) else { continue };
        for one in &mut folder.inner {
            if let Some(step) = step(one, &folder.path) {
                (one.step, one.standing.place) = (None, Some(Place::Epoch(epoch, Some(step))));
            }
        }
    }
}
