//! torch.distributed.checkpoint, FSDP2, torchtitan (torch/distributed/checkpoint/filesystem.py, 2.1 to 2.15).
//!
//! Each rank writes `__<rank>_<n>.distcp`; the coordinator then writes `.metadata.tmp`, syncs and renames it to
//! `.metadata`, which is the last. Without coordination each rank does so with `__<rank>.metadata`. The metadata is a
//! pickle whose `storage_data` has file, offset and length of every item.

use std::collections::{BTreeMap, BTreeSet};

use crate::folder::Folder;
use crate::lack::{Lack, gaps};
use text::pickle::{Value, read_hollow};

const METADATA: &str = ".metadata";

pub(super) fn is_one(folder: &Folder<'_>) -> bool {
    folder.has(METADATA)
        || folder.has(".metadata.tmp")
        || !parts(folder).is_empty()
        || !own(folder).is_empty()
}

/// Ranks that have metadata of their own.
fn own(folder: &Folder<'_>) -> Vec<u32> {
    folder.numbers("__", METADATA)
}

/// Ranks whose files are here.
pub(super) fn parts(folder: &Folder<'_>) -> BTreeSet<u32> {
    let rank = |name: &String| {
        let (rank, _) = name.strip_prefix("__")?.strip_suffix(".distcp")?.split_once('_')?;
        rank.parse().ok()
    };
    folder.entries.keys().filter_map(rank).collect()
}

pub(super) fn lacks(folder: &Folder<'_>) -> Vec<Lack> {
    if folder.has(METADATA) {
        return of_metadata(folder, METADATA);
    }
    let own = own(folder);
    if own.is_empty() {
        let temporary =
            folder.has(".metadata.tmp").then(|| Lack::NotRenamed(".metadata.tmp".to_owned()));
        return vec![temporary.unwrap_or_else(|| Lack::Missing(METADATA.to_owned()))];
    }
    let each = own.iter().flat_map(|rank| of_metadata(folder, &format!("__{rank}{METADATA}")));
    let mut lacks: Vec<Lack> = each.collect();
    lacks.extend(gaps(own.clone(), 1));
    lacks
}

fn of_metadata(folder: &Folder<'_>, name: &str) -> Vec<Lack> {
    let bytes = match folder.content(name) {
        Ok(bytes) => bytes,
        Err(lack) => return vec![lack],
    };
    let Ok(tree) = read_hollow(&bytes) else { return vec![Lack::Damaged(name.to_owned())] };
    let Some(items) = tree.root().get("storage_data").and_then(Value::values) else {
        return vec![Lack::Damaged(name.to_owned())];
    };
    let mut needs: BTreeMap<String, u64> = BTreeMap::new();
    for item in items {
        let text = |name| item.get(name).and_then(Value::text);
        let number =
            |name| item.get(name).and_then(Value::int).and_then(|at| u64::try_from(at).ok());
        let (Some(file), Some(offset), Some(length)) =
            (text("relative_path"), number("offset"), number("length"))
        else {
            continue;
        };
        let end = offset.saturating_add(length);
        needs.entry(file.to_owned()).and_modify(|known| *known = end.max(*known)).or_insert(end);
    }
    let lack = |(file, needs): (String, u64)| match folder.bytes(&file) {
        None => Some(Lack::Missing(file)),
        Some(has) if has < needs => Some(Lack::Short { file, has, needs }),
        Some(_) => None,
    };
    needs.into_iter().filter_map(lack).collect()
}
