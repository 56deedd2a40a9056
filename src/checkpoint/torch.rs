//! Files of torch.save (torch/serialization.py, 0.4 to 2.15), in both of its forms, and plain pickles beside them.
//!
//! The zip file ends with its directory. A save that an exception ends writes the directory too
//! (`_open_zipfile_writer_file.__exit__`), without the records that were not reached: data.pkl names each storage.
//! The older form, and `_use_new_zipfile_serialization=False`, is five pickles and then the storages, each behind its
//! length; nothing marks its end, which follows from the sizes that the fourth pickle names.

use std::collections::BTreeMap;

use crate::folder::{Folder, Parts};
use crate::lack::Lack;
use crate::zip::{LOCAL, OBJECTS, Zip};
use text::order::InOrder;
use text::pickle::{PROTO, Tree, Value, read_first, read_hollow};

/// The pickled number with which the older form begins, without its first instructions: LONG1 of ten bytes, STOP.
const MAGIC: &[u8] = b"\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.";
/// Bytes of the pickles that are read at first.
const FIRST: u64 = 1 << 20;
/// Records that torch writes whatever is saved.
const OWN: &[&str] = &["version", "byteorder", ".format_version", ".storage_alignment"];

/// Bytes of an element, by the class of the storage (torch/storage.py, `_dtype_to_storage_type_map`). Newer types are
/// in an `UntypedStorage`.
const ELEMENTS: &[(&str, u64)] = &[
    ("UntypedStorage", 1),
    ("ByteStorage", 1),
    ("CharStorage", 1),
    ("BoolStorage", 1),
    ("QInt8Storage", 1),
    ("QUInt8Storage", 1),
    ("ShortStorage", 2),
    ("HalfStorage", 2),
    ("BFloat16Storage", 2),
    ("IntStorage", 4),
    ("QInt32Storage", 4),
    ("FloatStorage", 4),
    ("LongStorage", 8),
    ("DoubleStorage", 8),
    ("ComplexFloatStorage", 8),
    ("ComplexDoubleStorage", 16),
];

/// What the file lacks, if it is not whole.
pub(crate) fn lack(folder: &Folder<'_>, name: &str) -> Option<Lack> {
    needs(folder, name).err()
}

fn needs(folder: &Folder<'_>, name: &str) -> Result<(), Lack> {
    let mut parts = folder.open(name)?;
    let head = parts.at(0, LOCAL.len())?;
    match head.as_slice() {
        [PROTO, 2..=5, ..] => pickled(&mut parts),
        _ => records(&mut Zip::open(folder, name)?),
    }
}

/// The bytes of each storage by its key; None of one whose class is not known.
fn storages<'t>(tree: &'t Tree<'_>) -> BTreeMap<&'t str, Option<u64>> {
    let mut storages = BTreeMap::new();
    for named in tree.persistent() {
        let fields: Vec<Value<'_, '_>> = named.list().into_iter().flatten().take(5).collect();
        let [kind, class, key, _, count] = fields.as_slice() else { continue };
        let (Some("storage"), Some(key)) = (kind.text(), key.text()) else { continue };
        let element = ELEMENTS.iter().find(|(name, _)| Some(*name) == class.text());
        let count = count.int().and_then(|count| u64::try_from(count).ok());
        let bytes = element.zip(count).and_then(|((_, bytes), count)| bytes.checked_mul(count));
        // A storage that several tensors share is named by each, and written for the first.
        storages.entry(key).or_insert(bytes);
    }
    storages
}

/// The storages that data.pkl names, each in its record.
fn records(zip: &mut Zip) -> Result<(), Lack> {
    let file = zip.name().to_owned();
    let has: BTreeMap<String, u64> =
        zip.records().map(|(name, bytes)| (name.to_owned(), bytes)).in_map();
    let is_own = |name: &String| OWN.contains(&name.as_str()) || name.starts_with(".data/");
    if !has.contains_key("data.pkl") {
        // Programs have archives of their own, such as those of torch.package.
        let record = "data.pkl".to_owned();
        return if has.keys().all(is_own) { Err(Lack::Record { file, record }) } else { Ok(()) };
    }
    let Some(pickle) = zip.objects(OBJECTS) else { return Ok(()) };
    let Ok(tree) = read_hollow(&pickle) else { return Ok(()) };
    for (key, needs) in storages(&tree) {
        let record = format!("data/{key}");
        match (has.get(&record), needs) {
            (None, Some(0)) => {}
            (None, _) => return Err(Lack::Record { file, record }),
            (Some(has), Some(needs)) if *has < needs => {
                return Err(Lack::Short { file: format!("{file}/{record}"), has: *has, needs });
            }
            (Some(_), _) => {}
        }
    }
    Ok(())
}

/// The older form, or a pickle of another writer.
fn pickled(parts: &mut Parts) -> Result<(), Lack> {
    let mut most = FIRST;
    loop {
        let count = most.min(parts.bytes);
        let bytes = parts.at(0, usize::try_from(count).unwrap_or(usize::MAX))?;
        let is_older = bytes.get(..32).unwrap_or(&bytes).windows(MAGIC.len()).any(|at| at == MAGIC);
        let end = match is_older {
            true => end_of_storages(&bytes),
            false => next(&bytes, 0).map(|(_, end)| end),
        };
        let name = parts.name().to_owned();
        return match end {
            Ok(needs) if parts.bytes < needs => {
                Err(Lack::Short { file: name, has: parts.bytes, needs })
            }
            Ok(_) => Ok(()),
            Err(NoEnd::Beyond) if count == parts.bytes => Err(Lack::Cut(name)),
            Err(NoEnd::Beyond) if most < OBJECTS => {
                most *= 8;
                continue;
            }
            Err(NoEnd::Beyond | NoEnd::Unknown) => Err(Lack::NoEnd(name)),
        };
    }
}

/// Why the place where a file ends is not known.
enum NoEnd {
    /// It is behind the bytes that were read.
    Beyond,
    Unknown,
}

/// The pickle at `at`, and its end.
fn next(bytes: &[u8], at: u64) -> Result<(Tree<'_>, u64), NoEnd> {
    let rest = usize::try_from(at).ok().and_then(|at| bytes.get(at..)).unwrap_or_default();
    match read_first(rest) {
        Ok(Some((tree, length))) => {
            let end = u64::try_from(length).ok().and_then(|length| at.checked_add(length));
            end.map(|end| (tree, end)).ok_or(NoEnd::Unknown)
        }
        Ok(None) => Err(NoEnd::Beyond),
        Err(_) => Err(NoEnd::Unknown),
    }
}

/// The end of the storages behind the number, the protocol, the platform, the objects and the keys.
fn end_of_storages(bytes: &[u8]) -> Result<u64, NoEnd> {
    let mut at = 0;
    for _ in 0..3 {
        (_, at) = next(bytes, at)?;
    }
    let (objects, at) = next(bytes, at)?;
    let (keys, at) = next(bytes, at)?;
    let storages = storages(&objects);
    let mut sizes =
        keys.root().list().ok_or(NoEnd::Unknown)?.map(|key| *storages.get(key.text()?)?);
    // Each is behind the number of its elements, of 8 bytes.
    let end = sizes.try_fold(at, |at, bytes| at.checked_add(8)?.checked_add(bytes?));
    end.ok_or(NoEnd::Unknown)
}
