//! The order of checkpoints: the newest first, exports behind.
//!
//! Takes all that were found; removes or moves nothing but by their places, names, sizes and times.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::Checkpoint;
use crate::compare::is_export;
use crate::names::{self, series};
use crate::progress::{Place, is_remarkable, told, values};
use crate::stray::{later_stages, strays};
use text::order::{InOrder, Ordered};

/// Removes bare weights beside checkpoints with a step: what a framework exports when it is done.
pub(crate) fn leave_out_exports(found: &mut Vec<Checkpoint>) {
    let has_place = |one: &Checkpoint| one.standing.place.is_some();
    if found.iter().any(|one| !one.is_weights() && has_place(one)) {
        found.retain(|one| !one.is_weights() || has_place(one));
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
    /// It is named for nothing but its step.
    is_neutral: bool,
    /// Its size tells nothing of that of the others.
    is_copy: bool,
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
        // Numbers without a word are steps where there are several.
        series.has_steps |= series.places.len() > 2;
        let is_lone = series.places.is_empty() || is_remarkable(name);
        let is_neutral = names::is_neutral(name);
        let is_copy = all.iter().any(|one| names::is_copy(&one.own_name()));
        Series { all, is_lone, is_neutral, is_copy, ..series }
    }

    /// Whether these are bare weights, and all states of one of their steps are elsewhere; or those of each of their steps,
    /// of which one is torn.
    fn has_state(&self, states: &[&Checkpoint]) -> bool {
        let is_of = |one: &&Checkpoint| is_export(self.bytes, one.bytes) && self.has_place(one);
        let are_weights = self.bytes > 0 && self.all.iter().all(|one| one.is_weights());
        let are_torn = || {
            let of_them: Vec<_> = states.iter().filter(|one| self.has_place(one)).collect();
            let places: BTreeSet<Option<Place>> =
                of_them.iter().map(|one| one.standing.place).in_set();
            places.len() > 1
                && places.len() == self.places.len()
                && of_them.iter().any(|one| !one.is_whole())
        };
        let is_whole = |one: &&&Checkpoint| one.is_whole();
        are_weights && (states.iter().filter(is_whole).any(is_of) || are_torn())
    }

    fn shares_place(&self, other: &Series<'_>) -> bool {
        other.all.iter().any(|one| self.has_place(one))
    }

    fn has_place(&self, one: &Checkpoint) -> bool {
        one.standing.place.is_some_and(|place| self.places.contains(&place))
    }

    /// Whether it has only the weights of what this other one has.
    fn is_export_of(&self, other: &Series<'_>) -> bool {
        // The last one is written with each of these, or it is one of long ago.
        let is_recent = || {
            let before = self.times.len().checked_sub(2).and_then(|at| self.times.get(at));
            other.is_last && before.is_none_or(|before| other.times.last() > Some(before))
        };
        let is_same = || self.is_lone || self.shares_place(other);
        let is_measure = (other.has_steps && is_same()) || is_recent();
        let is_of_model = self.is_copy || !other.is_copy;
        self.bytes > 0 && is_export(self.bytes, other.bytes) && is_of_model && is_measure
    }
}

/// Series that others are compared with: the largest of a folder.
const COMPARED: usize = 64;

/// The folder of a series, and its name: bare weights in folders with steps are one.
fn series_of(one: &Checkpoint) -> (Option<&Path>, String) {
    let has_step = |path: &&Path| {
        let name = path.file_name().unwrap_or_default();
        told(&name.to_string_lossy()).has_step_or_epoch()
    };
    let mut above = one.path.ancestors().skip(1);
    let is_below = one.is_weights() && one.standing.place.is_some() && !one.standing.is_own;
    let folder = above.find(|path| is_below && has_step(path)).unwrap_or(&one.path).parent();
    let name = folder.and_then(|folder| one.path.strip_prefix(folder).ok()).unwrap_or(&one.path);
    (folder, series(&name.to_string_lossy()))
}

/// What decides between checkpoints of one step.
#[derive(Default)]
struct Sizes {
    /// Files that are far smaller than those of a series beside them: weights without what the training needs, as programs
    /// export them beside their checkpoints. Both have one of the same step, or the smaller one is lone. Bare weights may
    /// lie anywhere else.
    exports: BTreeSet<PathBuf>,
    /// Those named for nothing but their step, and larger than the others of it: all states, not the model alone.
    states: BTreeSet<PathBuf>,
}

fn sizes(found: &[Checkpoint]) -> Sizes {
    let mut folders: BTreeMap<Option<&Path>, BTreeMap<String, Vec<&Checkpoint>>> = BTreeMap::new();
    let states = found.iter().filter(|one| !one.is_weights() && !one.standing.is_aside);
    let states: Vec<&Checkpoint> = states.collect();
    for one in found.iter().filter(|one| !one.standing.is_aside) {
        let (folder, series) = series_of(one);
        folders.entry(folder).or_default().entry(series).or_default().push(one);
    }
    let mut sizes = Sizes::default();
    for (folder, all) in folders {
        let folder = folder.and_then(Path::file_name).unwrap_or_default();
        let is_of_copy = names::is_copy(&folder.to_string_lossy());
        let mut all: Vec<Series<'_>> =
            all.into_iter().map(|(name, all)| Series::of(&name, all)).collect();
        // Two numbers without a word are steps as well, where others show that: the last saves of the rest ended early.
        let stepped = all.iter().filter(|series| series.has_steps);
        let stepped: BTreeSet<Place> = stepped.flat_map(|series| series.places.clone()).in_set();
        for series in &mut all {
            series.has_steps |= series.places.len() > 1 && series.places.is_subset(&stepped);
        }
        all.order_by_key(|series| Reverse(series.bytes));
        let measures = all.iter().filter(|one| one.has_steps || one.is_last).take(COMPARED);
        let measures: Vec<&Series<'_>> = measures.collect();
        for series in &all {
            let is_smaller = |other: &Series<'_>| {
                let is_other = !std::ptr::eq(other, series) && !other.is_copy;
                is_other && other.bytes >= series.bytes && series.shares_place(other)
            };
            let paths = series.all.iter().map(|one| one.path.clone());
            if measures.iter().any(|other| series.is_export_of(other)) || series.has_state(&states)
            {
                sizes.exports.extend(paths);
            } else if series.is_neutral && !is_of_copy && !all.iter().take(COMPARED).any(is_smaller)
            {
                sizes.states.extend(paths);
            }
        }
    }
    sizes
}

/// Weights below a folder that is named for them, beside states elsewhere, of whatever steps and sizes: `hf/step_300`. Of a
/// folder with such a name alone these are all that a program writes.
fn shared(found: &[Checkpoint]) -> BTreeSet<PathBuf> {
    let share = |one: &Checkpoint| {
        let is_one = |path: &&Path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            names::is_only_share(&name) || (one.is_weights() && names::is_share(&name))
        };
        let folder = one.path.ancestors().skip(1).take(one.name.iter().count().saturating_sub(1));
        folder.filter(is_one).last().and_then(Path::parent).map(Path::to_owned)
    };
    let is_state = |one: &&Checkpoint| {
        one.is_whole() && !one.standing.is_aside && one.standing.place.is_some()
    };
    let mut states: BTreeSet<PathBuf> = BTreeSet::new();
    for one in found.iter().filter(is_state).filter(|one| share(one).is_none()) {
        states.extend(one.path.ancestors().skip(1).map(Path::to_owned));
    }
    let is_shared = |one: &&Checkpoint| share(one).is_some_and(|above| states.contains(&above));
    found.iter().filter(is_shared).map(|one| one.path.clone()).in_set()
}

/// Copies of a model, and what is kept beside it, at steps at which no model is whole: they are written more often, or the save
/// of their model ended early.
fn auxiliary(found: &[Checkpoint]) -> BTreeSet<PathBuf> {
    // The folder in which the copy lies, by its own name or by that of its folder.
    let of_copy = |one: &Checkpoint| {
        let above = one.path.parent()?;
        let name = above.file_name().unwrap_or_default().to_string_lossy();
        let is_below = one.name.iter().nth(1).is_some();
        match is_below && names::is_copy(&name) {
            true => above.parent().map(Path::to_owned),
            false => names::is_copy(&one.own_name()).then(|| above.to_owned()),
        }
    };
    let mut models: BTreeMap<&Path, BTreeSet<Place>> = BTreeMap::new();
    let is_model =
        |one: &&Checkpoint| one.is_whole() && !one.standing.is_aside && of_copy(one).is_none();
    for one in found.iter().filter(is_model) {
        for above in one.path.ancestors().skip(1).take(2) {
            models.entry(above).or_default().extend(one.standing.place);
        }
    }
    let is_auxiliary = |one: &&Checkpoint| {
        // What is torn is named where it stands.
        let models = of_copy(one).and_then(|above| models.get(above.as_path()));
        let place = one.standing.place;
        let is_of_none = |(models, place): (&BTreeSet<Place>, Place)| !models.contains(&place);
        one.is_whole() && models.zip(place).is_some_and(is_of_none)
    };
    found.iter().filter(is_auxiliary).map(|one| one.path.clone()).in_set()
}

fn is_last(one: &Checkpoint) -> bool {
    one.standing.place.is_none() && names::is_last(&one.own_name())
}

/// What the folders above it say of it: the last one that says something.
fn content(one: &Checkpoint) -> Ordering {
    let above = one.name.iter().rev().skip(1);
    let all = above.map(|folder| names::content(&folder.to_string_lossy()));
    all.fold(Ordering::Equal, Ordering::then)
}

/// The folder of a last one, which may be a folder itself: `final/lit_model.pth`.
fn beside_last(one: &Checkpoint) -> Option<&Path> {
    let above = one.path.parent()?;
    let is_last_folder = || {
        let name = above.file_name().unwrap_or_default().to_string_lossy();
        let is_below = one.name.iter().nth(1).is_some() && one.standing.place.is_none();
        is_below && is_remarkable(&name) && names::is_last(&name)
    };
    if is_last(one) { Some(above) } else { above.parent().filter(|_| is_last_folder()) }
}

/// A step says more than a time: a copy is younger than what it was copied from. Files without a step, such as
/// `tokenizer.pt`, do not change the order of those that have one, but for a `last.pt` beside or above them that was
/// written after the newest one, and not in the same save.
pub(crate) fn sort(found: &mut [Checkpoint]) {
    let Sizes { mut exports, states } = sizes(found);
    exports.append(&mut shared(found));
    exports.append(&mut auxiliary(found));
    let (strays, later_stages) = (strays(found), later_stages(found));
    // What is torn is never chosen, and is named where it stands.
    let is_behind = |one: &Checkpoint| {
        let is_aside = one.standing.is_aside && one.is_whole();
        is_aside || exports.contains(&one.path) || strays.contains(&one.path)
    };
    let later = |one: &Checkpoint| later_stages.get(&one.path).copied().unwrap_or(0);
    let is_step = |one: &Checkpoint| matches!(one.standing.place, Some(Place::Step(_)));
    let have_steps = found.iter().any(|one| one.is_whole() && is_step(one) && !is_behind(one));
    let is_best = |one: &Checkpoint| one.own_name().to_ascii_lowercase().contains("best");
    let is_other = |one: &&Checkpoint| !is_step(one) && !is_behind(one);
    let mut others = found.iter().filter(is_other);
    // The last and the best one tell nothing of the others.
    let have_places =
        others.all(|one| one.standing.place.is_some() || is_best(one) || is_last(one));
    let step = |one: &Checkpoint| {
        let is_one = is_step(one) || (have_places && !have_steps);
        one.standing.place.filter(|_| is_one && !is_behind(one))
    };
    let mut whole: Vec<&Checkpoint> =
        found.iter().filter(|one| one.is_whole() && step(one).is_some()).collect();
    whole.order_by_key(|one| (later(one), Reverse(step(one)), names::is_copy(&one.own_name())));
    let newest = whole.first();
    let pause = newest
        .zip(whole.get(1))
        .and_then(|(newest, before)| newest.modified.duration_since(before.modified).ok());
    let same_save = pause.unwrap_or_default() / SAME_SAVE;
    let of_last = |one: &Checkpoint| {
        let newest = newest.filter(|_| !is_behind(one))?;
        let is_newer = one.modified > newest.modified + same_save;
        let is_beside = newest
            .path
            .parent()
            .zip(beside_last(one))
            .is_some_and(|(own, last)| own.starts_with(last));
        let is_all = !is_export(one.bytes, newest.bytes);
        step(newest).filter(|_| is_newer && is_beside && is_all)
    };
    // What was older when the program named its last one is what it left when its steps went back.
    let of_tracked = |one: &Checkpoint| {
        let (time, beside) = one.standing.tracked.as_ref().filter(|_| one.is_whole())?;
        let newer = whole.iter().filter(|other| step(other) > step(one));
        // Or what it exports at steps of their own.
        let is_left = |other: &Checkpoint| {
            other.modified <= *time || (other.is_weights() && !one.is_weights())
        };
        let mut left = newer.filter(|other| is_left(other) && other.path.starts_with(beside));
        step(left.next().unwrap_or(&one))
    };
    let first: Vec<Option<Place>> =
        found.iter().map(|one| of_last(one).max(of_tracked(one))).collect();
    let mut lasts: BTreeMap<PathBuf, (SystemTime, u64)> = BTreeMap::new();
    for one in found.iter().filter(|one| is_last(one)) {
        let last = lasts.entry(one.path.with_file_name("")).or_insert((one.modified, one.bytes));
        *last = (one.modified, one.bytes).max(*last);
    }
    // A program goes on from its last one, whenever it copied that as the best.
    let time = |one: &Checkpoint| {
        let last = lasts.get(&one.path.with_file_name("")).filter(|_| is_best(one));
        let last = last.filter(|(_, bytes)| !is_export(*bytes, one.bytes));
        last.map_or(one.modified, |(time, _)| one.modified.min(*time))
    };
    let is_model = |name: &str| names::is_model(name) || names::is_bare(name);
    for (one, first) in found.iter_mut().zip(first) {
        one.standing.first = first;
    }
    found.order_by_key(|one| {
        let place = if have_places { one.standing.place } else { step(one) };
        let place = one.standing.first.or(place);
        (
            (is_behind(one), exports.contains(&one.path)),
            place.is_none(),
            later(one),
            Reverse(place),
            one.standing.first.is_none(),
            place.map(|_| content(one)),
            place.is_none() || !states.contains(&one.path),
            (!is_model(&one.own_name()), names::is_copy(&one.name.to_string_lossy())),
            // Copies may have one time.
            Reverse((time(one), is_last(one), values(&one.own_name()))),
            one.path.clone(),
        )
    });
}

/// Files that were written within this share of the time between two saves are of one save.
const SAME_SAVE: u32 = 50;
