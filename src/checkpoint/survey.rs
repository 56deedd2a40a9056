//! The walk: which folders are looked at, and in which order checkpoints are given.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use crate::folder::{Budget, Folder};
use crate::formats;
use crate::found::{Checkpoint, Format};

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

/// The checkpoints in the folder and below it, newest first: by step, and where both or one of them have none, by the
/// time of the last write. A folder that is a checkpoint is not searched.
///
/// # Errors
/// When the folder itself cannot be read.
pub fn survey(root: &Path, limits: &Limits) -> io::Result<Vec<Checkpoint>> {
    let budget = Budget(Cell::new(limits.entries));
    let mut found = Vec::new();
    let folder = Folder::read(root, &budget)?;
    walk(&folder, limits.depth, &mut found);
    for one in &mut found {
        one.name = one.path.strip_prefix(root).unwrap_or(&one.path).to_owned();
    }
    sort(&mut found);
    Ok(found)
}

fn walk(folder: &Folder<'_>, depth: u32, found: &mut Vec<Checkpoint>) {
    if let Some(one) = formats::of_folder(folder) {
        found.push(one);
        return;
    }
    found.extend(formats::of_files(folder));
    let Some(depth) = depth.checked_sub(1) else { return };
    let names = folder.names(true, |name| !name.starts_with('.') && name != "__pycache__");
    let subs: Vec<(String, Folder<'_>)> =
        names.into_iter().filter_map(|name| folder.sub(&name).map(|sub| (name, sub))).collect();
    let mut others = Vec::new();
    let mut series: BTreeMap<String, Format> = BTreeMap::new();
    for (name, sub) in &subs {
        match formats::of_folder(sub) {
            Some(one) => {
                series.insert(without_digits(name), one.format);
                found.push(one);
            }
            None => others.push((name, sub)),
        }
    }
    for (name, sub) in others {
        // A folder that is named like its neighbours, and holds only the beginning of what they hold.
        match series.get(&without_digits(name)) {
            Some(format) => found.extend(formats::as_format(sub, *format)),
            None => walk(sub, depth, found),
        }
    }
}

fn without_digits(name: &str) -> String {
    name.chars().filter(|letter| !letter.is_ascii_digit()).collect()
}

/// A step says more than a time: a copy is younger than what it was copied from.
fn sort(found: &mut [Checkpoint]) {
    let series_have_steps = found.iter().all(|one| one.step.is_some());
    found.sort_by_key(|one| {
        let step = if series_have_steps { one.step } else { None };
        (Reverse(step), Reverse(one.modified), one.path.clone())
    });
}
