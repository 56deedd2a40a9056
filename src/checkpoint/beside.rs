//! Files of any ending that the checkpoints of a series have in their folders.
//!
//! Takes the folder in which they lie; adds to each what it lacks of that which all whole ones before it have. Programs
//! write such files behind the weights: the state of a data loader, a text that says that all is there.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::SystemTime;

use serde::de::IgnoredAny;

use crate::Checkpoint;
use crate::compare::{NAMED, begun, may_be_later};
use crate::folder::{Folder, of_json};
use crate::formats;
use crate::lack::Lack;
use crate::names;
use crate::progress::{Place, is_remarkable};
use crate::shapes::{Shape, Shapes};
use crate::torch;
use text::order::Ordered;

/// Checkpoints that are a measure of the next one.
const MEASURE: usize = 2;
/// Levels of folders in a checkpoint.
const LEVELS: u32 = 64;
/// Bytes of a JSON text that is read.
const JSON: u64 = 1 << 20;

/// A folder in which one checkpoint lies.
#[derive(Default)]
struct Held {
    name: String,
    place: Option<Place>,
    modified: Option<SystemTime>,
    shape: Shape,
    /// Positions of what was found in it.
    at: Vec<usize>,
}

/// Adds the files that all whole checkpoints before it have, two at least, and the last of them too, until several lack the
/// same ([`Shapes`]). A first one with less is being deleted, or is where the program began.
pub(crate) fn compare(folder: &Folder<'_>, found: &mut [Checkpoint]) {
    for mut series in series_of(folder, found).into_values().filter(|all| all.len() > MEASURE) {
        series.order_by_key(|one| (one.place, one.modified));
        let mut measure = Measure::default();
        for one in series {
            // It has other files than those before it, and its files of torch tell why.
            match one.shape {
                Shape::Between => continue,
                Shape::Fewer => measure = Measure::default(),
                Shape::Whole | Shape::Torn => {}
            }
            let Some(sub) = folder.sub(&one.name) else { continue };
            let lacks = measure.lacks_of(Files::of(sub, &one));
            for at in one.at {
                if let Some(one) = found.get_mut(at) {
                    one.lacks.extend(lacks.iter().cloned());
                }
            }
        }
    }
}

/// The folders of whole checkpoints, by what their names have in common.
fn series_of(folder: &Folder<'_>, found: &[Checkpoint]) -> BTreeMap<String, Vec<Held>> {
    let mut all: BTreeMap<&Path, Held> = BTreeMap::new();
    for (at, one) in found.iter().enumerate() {
        let below = one.path.strip_prefix(&folder.path).ok();
        let Some(name) = below.and_then(|below| below.iter().next()) else { continue };
        let held = all.entry(Path::new(name)).or_default();
        held.name = name.to_string_lossy().into_owned();
        held.place = one.standing.place;
        held.modified = held.modified.max(Some(one.modified));
        held.shape = one.standing.shape;
        held.at.push(at);
    }
    let mut series: BTreeMap<String, Vec<Held>> = BTreeMap::new();
    for held in all.into_values() {
        let ones = || held.at.iter().filter_map(|at| found.get(*at));
        let is_member = |one: &Checkpoint| {
            one.is_whole() && one.standing.place == held.place && is_member(folder, &held, one)
        };
        if ones().all(is_member) {
            series.entry(names::series(&held.name)).or_default().push(held);
        }
    }
    series
}

/// Whether it is all that the folder holds, and its format does not prove by itself that it is whole.
fn is_member(folder: &Folder<'_>, held: &Held, one: &Checkpoint) -> bool {
    let is_folder = one.path.parent() == Some(&folder.path);
    let is_of_one = || {
        let is_step = names::is_numbered(&held.name, "") && one.standing.place.is_some();
        (names::is_of_one(&held.name) || is_step) && !one.standing.is_own
    };
    match one.standing.files.is_empty() {
        true => is_folder && formats::COMPARED.contains(&one.format),
        false => is_folder || is_of_one(),
    }
}

/// The files in the folder of a checkpoint.
#[derive(Default)]
struct Files<'b> {
    step: Option<u64>,
    folders: Vec<Folder<'b>>,
    /// Their paths below the checkpoint with the positions of their folders and their names, by what names have in common
    /// that differ in numbers only.
    roles: BTreeMap<String, Vec<(String, usize, String)>>,
}

impl<'b> Files<'b> {
    fn of(folder: Folder<'b>, one: &Held) -> Files<'b> {
        let mut files = Files { step: one.place.and_then(Place::step), ..Files::default() };
        files.add(folder, "", LEVELS);
        files
    }

    fn add(&mut self, folder: Folder<'b>, above: &str, levels: u32) {
        // What is the best one now is another one later.
        let is_such =
            |name: &str| !name.starts_with("._") && name != "__pycache__" && !is_remarkable(name);
        let own = self.folders.len();
        for name in folder.names(false, is_such) {
            let path = format!("{above}{name}");
            self.roles.entry(names::role(&path)).or_default().push((path, own, name));
        }
        let subs = folder.names(true, |name| levels > 0 && is_such(name));
        let subs: Vec<(String, Option<Folder<'b>>)> =
            subs.into_iter().map(|name| (format!("{above}{name}/"), folder.sub(&name))).collect();
        self.folders.push(folder);
        for (path, sub) in subs {
            if let Some(sub) = sub {
                self.add(sub, &path, levels.saturating_sub(1));
            }
        }
    }

    /// The number of files that there must be in each checkpoint; one of those whose number something else proves.
    fn count(&self, role: &str) -> usize {
        let files = self.roles.get(role).map_or(&[][..], Vec::as_slice);
        let are_counted = files.iter().any(|(.., name)| formats::is_counted(name));
        if are_counted { 1 } else { files.len() }
    }

    /// Leaves out what came when the save of the next one had begun.
    fn leave_out_later(&mut self, next: &Files<'_>) {
        let begun = begun(&mut self.roles.iter().filter_map(|(role, files)| {
            let other = next.roles.get(role)?.first()?;
            Some((written(&self.folders, files.first()?), written(&next.folders, other)))
        }));
        for (role, files) in &mut self.roles {
            let is_later = |file| written(&self.folders, file) > begun && may_be_later(&file.2);
            if begun.is_some() && !next.roles.contains_key(role) && files.iter().all(is_later) {
                files.clear();
            }
        }
    }

    /// The content of a file of this role that is cut off, or empty where the other checkpoint has some.
    fn torn(&self, role: &str, other: &Files<'_>) -> Option<Lack> {
        let is_empty = |folder: &Folder<'_>, name: &str| folder.bytes(name) == Some(0);
        let is_marker = || {
            let mut files = other.roles.get(role).into_iter().flatten();
            files.any(|(_, at, name)| other.folders.get(*at).is_some_and(|at| is_empty(at, name)))
        };
        let of =
            |(path, at, name): &(String, usize, String)| {
                let folder = self.folders.get(*at)?;
                let lack = match is_empty(folder, name) {
                    true if is_marker() => None,
                    true => Some(Lack::Empty(name.clone())),
                    false => cut(folder, name),
                };
                let above = path.strip_suffix(name.as_str()).unwrap_or_default();
                lack.map(|lack| {
                    if above.is_empty() { lack } else { lack.within(above.trim_end_matches('/')) }
                })
            };
        // Those of a format are judged by it.
        let is_other = |(.., name): &&(String, usize, String)| {
            !formats::is_file(name) && !formats::is_counted(name)
        };
        self.roles.get(role)?.iter().filter(is_other).take(NAMED).find_map(of)
    }
}

fn written(folders: &[Folder<'_>], (_, at, name): &(String, usize, String)) -> Option<SystemTime> {
    folders.get(*at)?.written(name)
}

/// A JSON text, a pickle or an archive of torch that ends too early.
fn cut(folder: &Folder<'_>, name: &str) -> Option<Lack> {
    let lack = match Path::new(name).extension().and_then(|end| end.to_str()) {
        Some("json") if folder.bytes(name).is_some_and(|bytes| bytes <= JSON) => {
            let content = folder.content(name);
            content.and_then(|content| of_json::<IgnoredAny>(name, &content).map(|_| ())).err()
        }
        ending @ (Some("pkl" | "bin") | None) => {
            let begun = folder.open(name).and_then(|mut file| file.at(0, 2)).ok()?;
            if ending == Some("pkl") && begun == [0, 0] {
                return Some(Lack::Zeros(name.to_owned()));
            }
            let is_known = matches!(begun.as_slice(), b"PK" | [b'\x80', 2..=5]);
            is_known.then(|| torch::lack(folder, name))?
        }
        _ => None,
    };
    lack.filter(|lack| matches!(lack, Lack::Cut(_) | Lack::Short { .. } | Lack::Record { .. }))
}

/// What the checkpoints before one have.
#[derive(Default)]
struct Measure<'b> {
    /// The number of files that differ in numbers only; one where it is not the same in all.
    needed: BTreeMap<String, usize>,
    count: usize,
    /// The one before, and whether that is whole.
    last: Option<(Files<'b>, bool)>,
    /// The last whole one.
    whole: Option<Files<'b>>,
    shapes: Shapes,
}

impl<'b> Measure<'b> {
    /// What the next one lacks.
    fn lacks_of(&mut self, files: Files<'b>) -> Vec<Lack> {
        if let Some((mut last, true)) = self.last.take() {
            // As it was before the next.
            last.leave_out_later(&files);
            self.add(&last);
            self.whole = Some(last);
        }
        let mut lacks = self.lacks(&files);
        let shape = self.shapes.of(files.step, &lacks);
        if shape != Shape::Torn {
            lacks.clear();
        }
        if shape == Shape::Fewer {
            self.needed.retain(|role, count| files.count(role) >= *count);
        }
        self.last = Some((files, [Shape::Whole, Shape::Fewer].contains(&shape)));
        lacks
    }

    fn add(&mut self, files: &Files<'_>) {
        let own = || files.roles.keys().map(|role| (role.clone(), files.count(role)));
        let has = |(role, count): (&String, &usize)| files.count(role) >= *count;
        let all = files.roles.values().map(|files| usize::from(!files.is_empty())).sum();
        let has_more = || self.needed.len() < all;
        let is_less = self.count == 1 && has_more() && self.needed.iter().all(has);
        self.count += 1;
        if self.count == 1 || is_less {
            self.needed = own().collect();
            self.count = 1;
        }
        self.needed.retain(|role, count| {
            let own = files.count(role);
            *count = if own == *count { own } else { own.min(1) };
            *count > 0
        });
    }

    fn lacks(&self, files: &Files<'_>) -> Vec<Lack> {
        let Some(last) = self.whole.as_ref().filter(|_| self.count >= MEASURE) else {
            return Vec::new();
        };
        let needed = self.needed.iter().filter(|(role, count)| last.count(role) >= **count);
        let of = |(role, count): (&String, &usize)| match files.count(role) >= *count {
            true => files.torn(role, last).into_iter().collect(),
            false => missing(role, *count, files, last),
        };
        needed.flat_map(of).take(NAMED).collect()
    }
}

/// The names of files that the last one has, as they would be in this one, until there are so many.
fn missing(role: &str, count: usize, files: &Files<'_>, last: &Files<'_>) -> Vec<Lack> {
    let own = files.roles.get(role).map_or(&[][..], Vec::as_slice);
    let names = last.roles.get(role).into_iter().flatten();
    let names = names.map(|(path, ..)| names::renumbered(path, last.step, files.step));
    let missing = names.filter(|name| !own.iter().any(|(path, ..)| path == name));
    missing.take(count.saturating_sub(own.len())).map(Lack::Missing).collect()
}
