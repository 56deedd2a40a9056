//! safetensors: the length of a header, the header as JSON with the place of each tensor, the tensors
//! (safetensors/src/tensor.rs). Up to 0.7 all is written from front to back, so that the size proves the rest. 0.8 sets
//! the size of a temporary file, fills it and renames it without a sync: after a crash of the node the end of a file of
//! full size may be a hole.

use serde_json::Value;

use crate::folder::Folder;
use crate::lack::Lack;

/// Maximum bytes of a header, as its reader allows.
const HEADER: u64 = 100_000_000;

/// What one file lacks.
pub(crate) fn lack(folder: &Folder<'_>, name: &str) -> Option<Lack> {
    needs(folder, name).err()
}

fn needs(folder: &Folder<'_>, name: &str) -> Result<(), Lack> {
    let mut parts = folder.open(name)?;
    let head = parts.at(0, 8)?;
    let length = head.try_into().map(u64::from_le_bytes).unwrap_or_default();
    if length == 0 {
        return Err(Lack::Zeros(name.to_owned()));
    }
    let damaged = || Lack::Damaged(name.to_owned());
    let bytes = usize::try_from(length).ok().filter(|_| length <= HEADER).ok_or_else(damaged)?;
    let header = parts.at(8, bytes)?;
    if header.iter().all(|byte| *byte == 0) {
        return Err(Lack::Zeros(name.to_owned()));
    }
    let header: Value = serde_json::from_slice(&header).map_err(|_| damaged())?;
    let ends = header.as_object().ok_or_else(damaged)?.values();
    let ends = ends.filter_map(|tensor| tensor.get("data_offsets")?.get(1)?.as_u64());
    let needs = 8 + length + ends.max().unwrap_or_default();
    if parts.bytes < needs {
        return Err(Lack::Short { file: name.to_owned(), has: parts.bytes, needs });
    }
    if parts.ends_with_hole() {
        return Err(Lack::Zeros(name.to_owned()));
    }
    Ok(())
}

/// Whether the name is that of one file of several: `model-00001-of-00007.safetensors`.
pub(crate) fn is_shard(name: &str) -> bool {
    let digits = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    let shard = || {
        let (before, count) = name.strip_suffix(".safetensors")?.rsplit_once("-of-")?;
        Some(digits(count) && digits(before.rsplit_once('-')?.1))
    };
    shard().unwrap_or(false)
}

/// What the files lack that an index names (`model.safetensors.index.json`, `pytorch_model.bin.index.json`).
pub(crate) fn lacks_of_index(
    folder: &Folder<'_>,
    index: &str,
    lack: impl Fn(&Folder<'_>, &str) -> Option<Lack>,
) -> Vec<Lack> {
    let index = match folder.json(index) {
        Ok(index) => index,
        Err(lack) => return vec![lack],
    };
    let Some(map) = index.get("weight_map").and_then(Value::as_object) else { return Vec::new() };
    let mut files: Vec<&str> = map.values().filter_map(Value::as_str).collect();
    files.sort_unstable();
    files.dedup();
    files.into_iter().filter_map(|file| lack(folder, file)).collect()
}
