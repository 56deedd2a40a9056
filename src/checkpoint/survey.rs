//! The walk: which folders are looked at, and in which order checkpoints are given.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use crate::folder::{Budget, Folder};
use crate::formats;
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

/// The checkpoints in the folder and below it, newest first: by step, and where both or one of them have none, by the
/// time of the last write. A folder that is a checkpoint is not searched.
///
/// # Errors
/// When the folder itself cannot be read, or there is more below it than the limits allow.
pub fn survey(root: &Path, limits: &Limits) -> io::Result<Vec<Checkpoint>> {
    let budget = Budget::new(limits.entries);
    let mut found = Vec::new();
    let folder = Folder::read(root, &budget)?;
    match formats::of_folder(&folder) {
        Some(one) => found.push(one),
        None => walk(&folder, limits.depth, &mut found),
    }
    if found.is_empty() {
        found.extend(formats::by_name(&folder));
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
    for one in &mut found {
        one.name = one.path.strip_prefix(root).unwrap_or(&one.path).to_owned();
    }
    sort(&mut found);
    Ok(found)
}

fn walk(folder: &Folder<'_>, depth: u32, found: &mut Vec<Checkpoint>) {
    let from = found.len();
    found.extend(formats::of_files(folder));
    let Some(depth) = depth.checked_sub(1) else { return };
    let names = folder.names(true, |name| !name.starts_with('.') && name != "__pycache__");
    let mut others = Vec::new();
    let mut series: BTreeMap<String, Format> = BTreeMap::new();
    for name in names {
        let sub = folder.try_sub(&name);
        match sub.as_ref().ok().and_then(formats::of_folder) {
            Some(one) => {
                series.insert(without_digits(&name), one.format);
                found.push(one);
            }
            None => others.push((name, sub)),
        }
    }
    for (name, sub) in others {
        // A folder that is named like its neighbours, and holds only the beginning of what they hold.
        let format = series.get(&without_digits(&name)).copied();
        match (sub, format) {
            (Ok(sub), Some(format)) => found.extend(formats::as_format(&sub, format)),
            (Ok(sub), None) => match formats::by_name(&sub) {
                Some(one) => found.push(one),
                None => walk(&sub, depth, found),
            },
            // Removed meanwhile, as old checkpoints are.
            (Err(error), _) if error.kind() == io::ErrorKind::NotFound => {}
            (Err(error), Some(format)) => {
                found.push(formats::unread(folder, &name, &error, format));
            }
            (Err(_), None) => {}
        }
    }
    formats::compare(folder, found.get_mut(from..).unwrap_or_default());
}

/// Removes bare weights beside checkpoints with a step: what a framework exports when it is done.
fn leave_out_exports(found: &mut Vec<Checkpoint>) {
    let is_export = |one: &Checkpoint| one.format == Format::Safetensors && one.step.is_none();
    if found.iter().any(|one| one.format != Format::Safetensors && one.step.is_some()) {
        found.retain(|one| !is_export(one));
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
