//! What a checkpoint lacks of that which those before it have.
//!
//! Takes the checkpoints of one series, or of one folder; adds to each what it lacks. Nothing else tells which files there
//! should be.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::Checkpoint;
use crate::lack::Lack;
use crate::names;
use crate::progress::{Place, is_remarkable};
use crate::shapes::{Shape, Shapes};
use text::order::{InOrder, Ordered};

/// Ranks that are named of those that are missing: each of many files may be without thousands.
pub(crate) const NAMED: usize = 64;

/// Files of one step with names of their own, such as a generator and a discriminator: if all steps before, and two at
/// least, have both files, one is not whole without the other. Exports, which are smaller, are no companions, and the
/// best one comes now and then. A first step with less is being deleted, or is where the program began (`G_0.pth`).
pub(crate) fn compare_companions(found: &mut [Checkpoint]) {
    let mut steps: BTreeMap<Place, BTreeMap<String, usize>> = BTreeMap::new();
    for (at, one) in found.iter().enumerate() {
        let name = one.own_name();
        let own = one.standing.place.filter(|_| one.standing.is_own && !is_remarkable(&name));
        if let Some(place) = own {
            steps.entry(place).or_default().insert(names::kind(&name, one.step), at);
        }
    }
    // Averages and the like that are written more often say nothing of what belongs to a model.
    let has_model = |own: &BTreeMap<String, usize>| own.keys().any(|kind| !names::is_copy(kind));
    let models = steps.values().filter(|own| has_model(own)).count();
    if models > 0 && models <= steps.len() - models {
        steps.retain(|_, own| has_model(own));
    }
    let mut first = steps.values().zip(steps.values().skip(1));
    let has_less = first.next().is_some_and(|(first, next)| {
        first.len() < next.len() && first.keys().all(|kind| next.contains_key(kind))
    });
    if has_less {
        steps.pop_first();
    }
    let mut lacks: Vec<(usize, Vec<Lack>)> = Vec::new();
    let mut shapes = Shapes::default();
    let mut steps = steps.iter();
    let Some((first, mut before)) = steps.next() else { return };
    shapes.of(first.step(), &[]);
    let mut companions: BTreeSet<&String> = BTreeSet::new();
    companions.extend(before.keys());
    for (number, (place, own)) in steps.enumerate() {
        let of_step = match number {
            0 => Vec::new(),
            _ => companions_of_step(found, &companions, before, own),
        };
        // Each of them lacks what the others lack.
        let all: Vec<Lack> = of_step.iter().flat_map(|(_, lacks)| lacks).cloned().collect();
        let shape = shapes.of(place.step(), &all);
        match shape {
            Shape::Whole => companions.retain(|kind| own.contains_key(*kind)),
            Shape::Fewer => {
                companions.clear();
                companions.extend(own.keys());
            }
            Shape::Between => continue,
            Shape::Torn => {
                lacks.extend(of_step);
                continue;
            }
        }
        before = own;
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
    let are_main = before.iter().filter(|(kind, at)| !is_aside(at) && !names::is_copy(kind));
    let largest = are_main.map(|(_, at)| bytes(at)).max().unwrap_or(0);
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
                let (last, own) = (one(before.get(*kind)?)?, one(own.values().next()?)?);
                // That of another run, which goes on beside this one.
                if last.modified > own.modified {
                    return None;
                }
                vec![Lack::Missing(names::renumbered(&last.own_name(), last.step, own.step))]
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

/// What a checkpoint of several files has.
pub(crate) struct Held {
    /// The names of its files, by what the same files of other steps have in common.
    files: BTreeMap<String, String>,
    /// The kinds of those that came when the save of the next one had begun.
    later: BTreeSet<String>,
    /// The number of files that differ in numbers only. A number that is another one in each step, such as a date or a
    /// score, is no part: only fewer files than before are too few.
    pub(crate) roles: BTreeMap<String, usize>,
    /// The same without those that came later: a measure of the next one.
    saved: BTreeMap<String, usize>,
    parts: Vec<u32>,
    step: Option<u64>,
    base: PathBuf,
}

/// When the save of the next checkpoint began, by the last writes of the files that both have, the earlier one first. What
/// came into the folder of the one before it later is of no save: results, merged weights. None: all was copied.
pub(crate) fn begun(
    both: &mut dyn Iterator<Item = (Option<SystemTime>, Option<SystemTime>)>,
) -> Option<SystemTime> {
    both.filter(|(before, next)| next > before).filter_map(|(_, next)| next).min()
}

/// Endings of results, and of weights for other programs.
const LATER: &[&str] = &[
    "json",
    "jsonl",
    "txt",
    "md",
    "csv",
    "log",
    "html",
    "yaml",
    "yml",
    "png",
    "jpg",
    "jpeg",
    "mp4",
    "wav",
    "safetensors",
    "bin",
    "gguf",
    "onnx",
];

/// Whether a file may come to a checkpoint that is saved. The state of a rank or of another model may be written when the
/// next save has begun: saves overlap, and the clocks of ranks may be apart.
pub(crate) fn may_be_later(file: &str) -> bool {
    let ending = Path::new(file).extension().and_then(|ending| ending.to_str());
    let is_such = ending.map_or_else(|| names::is_share(file), |ending| LATER.contains(&ending));
    is_such && (!is_of_rank(file) || is_counted(file))
}

impl Held {
    /// `base`: the folder below which the files are named, if it is not that of the checkpoint.
    pub(crate) fn by(one: &Checkpoint, base: Option<&Path>) -> Held {
        let is_file = one.standing.files.contains(&one.path);
        let base = base.unwrap_or(if is_file { one.beside() } else { &one.path });
        let named = |file: &PathBuf| {
            let name = file.strip_prefix(base).unwrap_or(file).to_string_lossy().into_owned();
            (names::kind(&name, one.step), name)
        };
        let files: BTreeMap<String, String> = one.standing.files.iter().map(named).in_map();
        let roles = roles(files.values());
        Held {
            saved: roles.clone(),
            later: BTreeSet::new(),
            files,
            roles,
            parts: one.parts.clone(),
            step: one.step,
            base: base.to_owned(),
        }
    }

    /// Finds what came when the save of the next one had begun. A program may write an optimizer behind the next model.
    fn find_later(&mut self, next: &Held) {
        let is_more = |kind: &String| !next.files.contains_key(kind);
        if !self.files.keys().any(is_more) {
            return;
        }
        let begun = begun(&mut self.files.iter().filter_map(|(kind, file)| {
            Some((written(&self.base, file), written(&next.base, next.files.get(kind)?)))
        }));
        let is_later = |(kind, file): &(&String, &String)| {
            let may_be = is_more(kind) && may_be_later(file) && !names::is_aside(file);
            begun.is_some() && may_be && written(&self.base, file) > begun
        };
        self.later = self.files.iter().filter(is_later).map(|(kind, _)| kind.clone()).in_set();
        let saved = self.files.iter().filter(|(kind, _)| !self.later.contains(*kind));
        self.saved = roles(saved.map(|(_, file)| file));
    }

    fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    fn saved(&self, role: &str) -> usize {
        self.saved.get(role).copied().unwrap_or(0)
    }

    /// What this one lacks of that which the last of the others has, and the rest of them too.
    fn lacks(&self, others: &[&Held]) -> Vec<Lack> {
        let Some((last, rest)) = others.split_last() else { return Vec::new() };
        let own: BTreeSet<u32> = self.parts.iter().copied().in_set();
        let mut parts: BTreeSet<u32> =
            last.parts.iter().copied().filter(|part| !own.contains(part)).in_set();
        for one in rest {
            let here: BTreeSet<u32> = one.parts.iter().copied().in_set();
            parts.retain(|part| here.contains(part));
        }
        // Their own names tell how many there are.
        let mut of_ranks = self.files.values().filter(|file| is_of_rank(file)).peekable();
        if of_ranks.peek().is_some() && of_ranks.all(|file| is_counted(file)) {
            parts.clear();
        }
        let parts: Vec<u32> = parts.into_iter().take(NAMED).collect();
        // A file that is the only one of its step in each of them lacks none, whatever its name is.
        let are_single = self.files.len() == 1 && last.files.len() == 1;
        let mut here = self.roles.clone();
        let mut lacks = Vec::new();
        for (kind, file) in last.files.iter().filter(|_| !are_single) {
            let is_named = !parts.is_empty() && names::ranks(file).is_some();
            if is_named || last.later.contains(kind) || self.files.contains_key(kind) {
                continue;
            }
            let role = names::role(file);
            if is_counted(file) && self.roles.contains_key(&role) {
                continue;
            }
            let fewest = others.iter().map(|one| one.saved(&role)).min();
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

fn written(base: &Path, file: &str) -> Option<SystemTime> {
    base.join(file).metadata().and_then(|metadata| metadata.modified()).ok()
}

fn is_of_rank(file: &str) -> bool {
    names::ranks(file).is_some()
}

/// Whether the name tells how many such files there are.
fn is_counted(file: &str) -> bool {
    names::ranks(file).is_some_and(|named| named.world > 0)
}

/// How many of these names there are that differ in numbers only.
fn roles<'n>(names: impl Iterator<Item = &'n String>) -> BTreeMap<String, usize> {
    let mut roles = BTreeMap::new();
    for name in names {
        *roles.entry(names::role(name)).or_default() += 1;
    }
    roles
}

/// Adds the files and parts that the two whole ones before have, and one does not; the first one is compared with the next,
/// and is no measure if it has less: it is being deleted, or comes from elsewhere. What a program saves no longer is
/// believed when several lack it ([`Shapes`]).
pub(crate) fn compare(series: &mut [Checkpoint], base: Option<&Path>) {
    series.order_by_key(|one| (one.standing.place, one.modified));
    let mut held: Vec<Held> = series.iter().map(|one| Held::by(one, base)).collect();
    for at in 1..held.len() {
        if let Some([before, next]) = held.get_mut(at - 1..=at) {
            before.find_later(next);
        }
    }
    let mut measures: Vec<&Held> = Vec::new();
    let mut shapes = Shapes::default();
    for (at, (one, own)) in series.iter_mut().zip(&held).enumerate() {
        let mut others = match at {
            0 => held.iter().skip(1).take(1).collect(),
            _ => measures.clone(),
        };
        // One in which nothing is yet is no measure.
        others.retain(|one| !one.is_empty());
        if others.is_empty() && own.is_empty() {
            others.extend(held.iter().rev().find(|one| !one.is_empty()));
        }
        let are_known = one.lacks.iter().any(|lack| matches!(lack, Lack::Parts(_)));
        let lacks = own.lacks(&others);
        one.standing.shape = shapes.of(own.step, &lacks);
        match one.standing.shape {
            Shape::Whole => {
                measures.push(own);
                measures.drain(..measures.len().saturating_sub(2));
            }
            Shape::Fewer => measures = vec![own],
            Shape::Between => {}
            Shape::Torn => {
                let is_new = |lack: &Lack| !are_known || !matches!(lack, Lack::Parts(_));
                one.lacks.extend(lacks.into_iter().filter(is_new));
            }
        }
    }
}
