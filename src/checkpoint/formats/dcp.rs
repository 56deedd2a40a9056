//! torch.distributed.checkpoint, FSDP2, torchtitan (torch/distributed/checkpoint/filesystem.py, 2.1 to 2.15).
//!
//! Each rank writes `__<rank>_<n>.distcp`; the coordinator then writes `.metadata.tmp`, syncs and renames it to
//! `.metadata`, which is the last. Without coordination each rank does so with `__<rank>.metadata`. The metadata is a
//! pickle whose `storage_data` has file, offset and length of every item.

use std::collections::{BTreeMap, BTreeSet};

use crate::folder::Folder;
use crate::lack::{Lack, gaps};
use crate::zip::{self, LOCAL};
use text::order::InOrder;
use text::pickle::{PickleFlaw, Value, read_rows};

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
    folder.entries.keys().filter_map(rank).in_set()
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

/// Files whose content is looked at, spread over all.
const LOOKED_AT: usize = 64;

/// The items of a file that begin first and last: offset and length.
struct Items {
    first: (u64, u64),
    last: (u64, u64),
}

impl Items {
    /// Each item is a file of torch.save or safetensors by itself, or compressed: none begins with zeros. Pages that
    /// never reached the disk are zeros, mostly those at the end.
    fn lack(&self, folder: &Folder<'_>, file: &str) -> Option<Lack> {
        let zeros = || Some(Lack::Zeros(file.to_owned()));
        let mut parts = match folder.open(file) {
            Ok(parts) => parts,
            Err(Lack::Empty(_)) => return None,
            Err(lack) => return Some(lack),
        };
        if parts.ends_with_hole() {
            return zeros();
        }
        for (offset, length) in [self.first, self.last] {
            let count = usize::try_from(length.min(4)).unwrap_or_default();
            let begun = match parts.at(offset, count) {
                Ok(begun) => begun,
                Err(lack) => return Some(lack),
            };
            if !begun.is_empty() && begun.iter().all(|byte| *byte == 0) {
                return zeros();
            }
            if begun == LOCAL && !zip::has_end(&mut parts, offset.saturating_add(length)) {
                return Some(Lack::Damaged(file.to_owned()));
            }
        }
        None
    }
}

/// The fields of an item, in `storage_data`.
const PLACE: &[&str] = &["relative_path", "offset", "length"];

fn of_metadata(folder: &Folder<'_>, name: &str) -> Vec<Lack> {
    let bytes = match folder.content(name) {
        Ok(bytes) => bytes,
        Err(lack) => return vec![lack],
    };
    // Its reader takes no notice of bytes behind it.
    let damaged = || vec![Lack::Damaged(name.to_owned())];
    let tree = match read_rows(&bytes, "storage_data", PLACE) {
        Ok(Some(tree)) => tree,
        // It may be whole.
        Err(PickleFlaw::TooMany) => {
            let error = PickleFlaw::TooMany.text().en.into_owned();
            return vec![Lack::Unread { file: name.to_owned(), error }];
        }
        _ => return damaged(),
    };
    let items = tree.root().list().into_iter().flatten();
    let mut needs: BTreeMap<String, Items> = BTreeMap::new();
    for item in items {
        let fields: Vec<Value<'_, '_>> = item.list().into_iter().flatten().collect();
        let [file, place @ ..] = fields.as_slice() else { continue };
        let number = |at: &Value<'_, '_>| u64::try_from(at.int()?).ok();
        let place: Vec<u64> = place.iter().filter_map(number).collect();
        let (Some(file), [offset, length]) = (file.text(), place.as_slice()) else {
            return damaged();
        };
        let item = (*offset, *length);
        let items = needs.entry(file.to_owned()).or_insert(Items { first: item, last: item });
        items.first = items.first.min(item);
        items.last = items.last.max(item);
    }
    // A save of nothing, from which nothing can start.
    if needs.is_empty() {
        return vec![Lack::Nothing(name.to_owned())];
    }
    let apart = needs.len().div_ceil(LOOKED_AT).max(1);
    let lack = |(at, (file, items)): (usize, (String, Items))| {
        let needs = items.last.0.saturating_add(items.last.1);
        match folder.bytes(&file) {
            None => Some(Lack::Missing(file)),
            Some(has) if has < needs => Some(Lack::Short { file, has, needs }),
            Some(_) if at.is_multiple_of(apart) => items.lack(folder, &file),
            Some(_) => None,
        }
    };
    needs.into_iter().enumerate().filter_map(lack).collect()
}
