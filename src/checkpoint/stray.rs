//! Checkpoints that have a larger number than those of a series and yet are none of them.
//!
//! Takes all that were found; gives the paths that stand behind the others. Decides by names, places, sizes and times of
//! several checkpoints, and never by one alone.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::Checkpoint;
use crate::names::{self, are_steps, series};
use crate::progress::{Place, Told, is_remarkable, stage_of, told};
use text::order::InOrder;

/// Checkpoints that show how a program numbers and writes them.
const SERIES: usize = 3;

/// Those that stand behind all others.
pub(crate) fn strays(found: &[Checkpoint]) -> BTreeSet<PathBuf> {
    let whole: Vec<&Checkpoint> =
        found.iter().filter(|one| one.is_whole() && !one.standing.is_aside).collect();
    let is_put_aside = |one: &&Checkpoint| {
        one.name.iter().any(|name| names::is_put_aside(&name.to_string_lossy()))
    };
    let put_aside = whole.iter().copied().filter(is_put_aside).collect();
    let all = [lone(&whole), bare(&whole), nested(&whole), put_aside];
    all.into_iter().flatten().map(|one| one.path.clone()).in_set()
}

fn grouped<'f, K: Ord>(
    all: &[&'f Checkpoint],
    key: impl Fn(&'f Checkpoint) -> Option<K>,
) -> BTreeMap<K, Vec<&'f Checkpoint>> {
    let mut groups: BTreeMap<K, Vec<&Checkpoint>> = BTreeMap::new();
    for one in all {
        if let Some(key) = key(one) {
            groups.entry(key).or_default().push(one);
        }
    }
    groups
}

fn is_step(one: &Checkpoint) -> bool {
    matches!(one.standing.place, Some(Place::Step(_)))
}

fn series_of(one: &Checkpoint) -> String {
    series(&one.name.to_string_lossy())
}

fn places(all: &[&Checkpoint]) -> BTreeSet<Place> {
    all.iter().filter_map(|one| one.standing.place).in_set()
}

/// The only ones of their name, after which three of another name with smaller steps were written: what was downloaded,
/// statistics, the rest of another run.
fn lone<'f>(whole: &[&'f Checkpoint]) -> Vec<&'f Checkpoint> {
    let all = grouped(whole, |one| is_step(one).then(|| series_of(one)));
    let written = |all: &Vec<&Checkpoint>| -> Option<(Place, SystemTime)> {
        let mut times: Vec<SystemTime> = all.iter().map(|one| one.modified).collect();
        times.sort_unstable();
        let places = places(all);
        let third = times.len().checked_sub(SERIES).and_then(|at| times.get(at));
        let last = places.last().filter(|_| places.len() >= SERIES);
        last.copied().zip(third.copied())
    };
    // Weights may be exported long after the states of their step.
    let of_states = |all: &&Vec<&Checkpoint>| !all.iter().all(|one| one.is_weights());
    let runs = latest_of(all.values().filter_map(written));
    let runs_of_states = latest_of(all.values().filter(of_states).filter_map(written));
    let is_lone = |all: &Vec<&Checkpoint>| {
        let runs = if of_states(&all) { &runs_of_states } else { &runs };
        let places = places(all);
        let Some(place) = places.first().filter(|_| places.len() == 1) else { return false };
        let before = runs.partition_point(|(last, _)| last < place);
        let time = before.checked_sub(1).and_then(|at| runs.get(at)).map(|(_, time)| *time);
        all.iter().all(|one| time > Some(one.modified))
    };
    all.into_values().filter(is_lone).flatten().collect()
}

/// By their last steps, with the latest time of all with smaller ones.
fn latest_of(runs: impl Iterator<Item = (Place, SystemTime)>) -> Vec<(Place, SystemTime)> {
    let mut runs: Vec<(Place, SystemTime)> = runs.collect();
    runs.sort_unstable();
    let mut latest = SystemTime::UNIX_EPOCH;
    for (_, time) in &mut runs {
        latest = latest.max(*time);
        *time = latest;
    }
    runs
}

/// Numbers without a word that count from 0 or 1 as ranks do, beside more checkpoints that say what their numbers count.
fn bare<'f>(whole: &[&'f Checkpoint]) -> Vec<&'f Checkpoint> {
    let mut strays = Vec::new();
    for all in grouped(whole, |one| one.path.parent()).into_values() {
        let has_word = |one: &&Checkpoint| {
            let name = one.own_name();
            told(&name).has_step_or_epoch() && !is_remarkable(&name)
        };
        let (worded, bare): (Vec<_>, Vec<_>) = all.into_iter().partition(has_word);
        let words = places(&worded).len();
        for all in grouped(&bare, |one| is_step(one).then(|| series_of(one))).into_values() {
            let names: Vec<String> = all.iter().map(|one| one.own_name().into_owned()).collect();
            let have_numbers = names.iter().all(|name| told(name).only.is_some());
            if have_numbers && places(&all).len() < words && !are_steps(&names, Told::default()) {
                strays.extend(all);
            }
        }
    }
    strays
}

/// Those with the names of the checkpoints in the folder above and less than a tenth of their bytes: a part of the state,
/// such as the data loader of one replica.
fn nested<'f>(whole: &[&'f Checkpoint]) -> Vec<&'f Checkpoint> {
    let series_in = |folder: &Path, one: &Checkpoint| (folder.to_owned(), series(&one.own_name()));
    let mut largest: BTreeMap<(PathBuf, String), u64> = BTreeMap::new();
    for one in whole.iter().filter(|one| is_step(one) && one.standing.is_own) {
        if let Some(folder) = one.path.parent() {
            let bytes = largest.entry(series_in(folder, one)).or_default();
            *bytes = one.bytes.max(*bytes);
        }
    }
    let is_part = |one: &&Checkpoint| {
        let above = one.path.parent().and_then(Path::parent);
        let bytes = above.and_then(|above| largest.get(&series_in(above, one)));
        one.standing.is_own && bytes.is_some_and(|bytes| one.bytes < bytes / 10)
    };
    whole.iter().copied().filter(is_part).collect()
}

/// The number of later stages of the same run, of those that have some: each stage counts its steps anew. Stages of a
/// pipeline have the same steps, and are written together.
pub(crate) fn later_stages(found: &[Checkpoint]) -> BTreeMap<PathBuf, usize> {
    let whole: Vec<&Checkpoint> =
        found.iter().filter(|one| one.is_whole() && is_step(one)).collect();
    let stage = |one: &Checkpoint| stage_of(&one.name.to_string_lossy());
    let mut later = BTreeMap::new();
    for all in grouped(&whole, |one| stage(one).map(|_| series_of(one))).into_values() {
        let stages: Vec<Vec<&Checkpoint>> = grouped(&all, stage).into_values().collect();
        if !stages.windows(2).all(|pair| is_followed(pair)) {
            continue;
        }
        for (count, stage) in stages.into_iter().rev().enumerate().skip(1) {
            later.extend(stage.into_iter().map(|one| (one.path.clone(), count)));
        }
    }
    later
}

/// Whether all of the second stage were written after all of the first one, at other steps.
fn is_followed(stages: &[Vec<&Checkpoint>]) -> bool {
    let [one, next] = stages else { return false };
    let last = one.iter().map(|one| one.modified).max();
    let first = next.iter().map(|one| one.modified).min();
    last < first && places(one).is_disjoint(&places(next))
}
