//! safetensors: the length of a header, the header as JSON with the place of each tensor, the tensors
//! (safetensors/src/tensor.rs). Its reader refuses a file with a byte too many, too. Up to 0.7 all is written from front
//! to back, so that the size proves the rest. 0.8 sets the size of a temporary file, fills it and renames it without a
//! sync: after a crash of the node the end of a file of full size may be a hole.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use crate::folder::Folder;
use crate::lack::Lack;
use text::order::InOrder;

/// Maximum bytes of a header, as its reader allows.
const HEADER: u64 = 100_000_000;

/// Bits of an element, by its type. A reader refuses types that it does not know; newer readers know more.
const ELEMENTS: &[(&str, u64)] = &[
    ("F4", 4),
    ("F6_E2M3", 6),
    ("F6_E3M2", 6),
    ("BOOL", 8),
    ("U8", 8),
    ("I8", 8),
    ("F8_E5M2", 8),
    ("F8_E4M3", 8),
    ("F8_E8M0", 8),
    ("F8_E4M3FNUZ", 8),
    ("F8_E5M2FNUZ", 8),
    ("I16", 16),
    ("U16", 16),
    ("F16", 16),
    ("BF16", 16),
    ("I32", 32),
    ("U32", 32),
    ("F32", 32),
    ("I64", 64),
    ("U64", 64),
    ("F64", 64),
    ("C64", 64),
];

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
    if length > parts.bytes {
        return Err(Lack::Cut(name.to_owned()));
    }
    let header = parts.at(8, bytes)?;
    if header.iter().all(|byte| *byte == 0) {
        return Err(Lack::Zeros(name.to_owned()));
    }
    let end = end_of_tensors(&header).and_then(|end| end.checked_add(8)?.checked_add(length));
    let (needs, has) = (end.ok_or_else(damaged)?, parts.bytes);
    if has < needs {
        return Err(Lack::Short { file: name.to_owned(), has, needs });
    }
    if has > needs {
        return Err(Lack::Long { file: name.to_owned(), has, needs });
    }
    if parts.ends_with_hole() {
        return Err(Lack::Zeros(name.to_owned()));
    }
    Ok(())
}

/// The end of the last tensor, if they lie one behind the other and each is as long as its shape and type say.
fn end_of_tensors(header: &[u8]) -> Option<u64> {
    if header.first() != Some(&b'{') {
        return None;
    }
    let Entries::<false>(mut places) = serde_json::from_slice(header).ok()?;
    places.sort_unstable();
    places.into_iter().try_fold(0, |end, (from, to)| (from == end).then_some(to))
}

/// The places of the tensors, or nothing of the texts that a file tells of itself. A header of 100 MB has some two million:
/// nothing else of it is kept.
struct Entries<const ARE_TEXTS: bool>(Vec<(u64, u64)>);

impl<'de, const ARE_TEXTS: bool> Deserialize<'de> for Entries<ARE_TEXTS> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct ByName<const ARE_TEXTS: bool>;
        impl<'de, const ARE_TEXTS: bool> Visitor<'de> for ByName<ARE_TEXTS> {
            type Value = Entries<ARE_TEXTS>;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("tensors or texts by their names")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Self::Value, A::Error> {
                let mut places = Vec::new();
                while let Some(name) = from.next_key::<String>()? {
                    if ARE_TEXTS {
                        from.next_value::<String>()?;
                    } else if name == "__metadata__" {
                        from.next_value::<Option<Entries<true>>>()?;
                    } else {
                        let tensor: Tensor<'_> = from.next_value()?;
                        places.push(tensor.place().ok_or_else(|| A::Error::custom("its size"))?);
                    }
                }
                Ok(Entries(places))
            }
        }
        from.deserialize_map(ByName)
    }
}

#[derive(Deserialize)]
struct Tensor<'a> {
    #[serde(borrow)]
    dtype: Cow<'a, str>,
    shape: Count,
    data_offsets: (u64, u64),
}

impl Tensor<'_> {
    /// Where it begins and ends, if that is as long as its elements are.
    fn place(&self) -> Option<(u64, u64)> {
        let (from, to) = self.data_offsets;
        let bytes = to.checked_sub(from)?;
        let element = ELEMENTS.iter().find(|(name, _)| *name == self.dtype);
        let is_long = match element {
            Some((_, bits)) => self.shape.0.checked_mul(*bits)? == bytes.checked_mul(8)?,
            None => true,
        };
        is_long.then_some((from, to))
    }
}

/// The number of elements of a shape.
struct Count(u64);

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Count, D::Error> {
        struct Shape;
        impl<'de> Visitor<'de> for Shape {
            type Value = Count;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("a shape")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Count, A::Error> {
                let mut count = 1_u64;
                while let Some(one) = from.next_element()? {
                    count = count.checked_mul(one).ok_or_else(|| A::Error::custom("its shape"))?;
                }
                Ok(Count(count))
            }
        }
        from.deserialize_seq(Shape)
    }
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

/// Whether it is one that a rank writes with HuggingFaceStorageWriter: `shard-00002-model-00001-of-00003.safetensors`
/// (torch/distributed/checkpoint/_hf_utils.py).
pub(crate) fn is_shard_of_rank(name: &str) -> bool {
    name.starts_with("shard-") && is_shard(name)
}

/// The files that are missing where each rank writes its own, for which there is no index. None: there are none such.
pub(crate) fn missing_shards(folder: &Folder<'_>) -> Option<Vec<Lack>> {
    let names = folder.names(false, is_shard_of_rank);
    let of = |name: &String| -> Option<(u32, u32)> {
        let (before, count) = name.strip_suffix(".safetensors")?.rsplit_once("-of-")?;
        Some((before.rsplit_once('-')?.1.parse().ok()?, count.parse().ok()?))
    };
    let here: Vec<(u32, u32)> = names.iter().filter_map(of).collect();
    let count = here.iter().map(|(_, count)| *count).max()?;
    let numbers: BTreeSet<u32> = here.into_iter().map(|(number, _)| number).in_set();
    let missing = (1..=count).filter(|one| !numbers.contains(one)).take(64);
    let name = |one| format!("shard-00001-model-{one:05}-of-{count:05}.safetensors");
    Some(missing.map(|one| Lack::Missing(name(one))).collect())
}

/// What the files lack that an index names (`model.safetensors.index.json`, `pytorch_model.bin.index.json`).
pub(crate) fn lacks_of_index(
    folder: &Folder<'_>,
    name: &str,
    lack: impl Fn(&Folder<'_>, &str) -> Option<Lack>,
) -> Vec<Lack> {
    let index = match folder.json(name) {
        Ok(index) => index,
        Err(lack) => return vec![lack],
    };
    let files = index.get("weight_map").and_then(Value::as_object);
    let files: Option<BTreeSet<&str>> =
        files.and_then(|map| map.values().map(Value::as_str).collect());
    let Some(files) = files.filter(|files| !files.is_empty()) else {
        return vec![Lack::Damaged(name.to_owned())];
    };
    files.into_iter().filter_map(|file| lack(folder, file)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::folder::Budget;

    /// A file with this header and so many bytes of tensors.
    fn lack_of(header: &str, data: usize) -> Option<Lack> {
        let folder = tempfile::tempdir().expect("a folder");
        let length = u64::try_from(header.len()).expect("it fits").to_le_bytes();
        let file = [&length, header.as_bytes(), vec![1; data].as_slice()].concat();
        std::fs::write(folder.path().join("a.safetensors"), file).expect("it is written");
        let budget = Budget::new(10);
        lack(&Folder::read(folder.path(), &budget).expect("it is read"), "a.safetensors")
    }

    #[test]
    fn header_is_judged_as_its_library_does() {
        for (header, data, is_whole) in [
            (r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#, 4, true),
            (
                r#"{"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"__metadata__":null}  "#,
                4,
                true,
            ),
            (r#"{"__metadata__":{"format":"pt"}}"#, 0, true),
            (
                r#"{"b":{"dtype":"U8","shape":[1],"data_offsets":[4,5]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#,
                5,
                true,
            ),
            (r#"{"a":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}}"#, 1, true),
            (r#"{"a":{"dtype":"NEW","shape":[2],"data_offsets":[0,1]}}"#, 1, true),
            (r#"{"\u0061":{"dtype":"F32","shape":[1,0],"data_offsets":[0,0]}}"#, 0, true),
            // Bytes of an older, larger file.
            (r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#, 9, false),
            (r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#, 8, false),
            (r#"{"a":{"dtype":"F32","shape":[100],"data_offsets":[0,4]}}"#, 4, false),
            (r#"{"a":{"dtype":"F4","shape":[1],"data_offsets":[0,1]}}"#, 1, false),
            (r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,-4]}}"#, 4, false),
            (r#"{"a":{"dtype":"F32","shape":[0],"data_offsets":[4,0]}}"#, 4, false),
            (r#"{"a":{"dtype":"U8","shape":[1000],"data_offsets":[0,1e3]}}"#, 1000, false),
            (r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}}"#, 1, false),
            (r#"{"a":{"dtype":"U8","shape":[1]}}"#, 1, false),
            (r#"{"a":5}"#, 0, false),
            (r#"{"__metadata__":{"a":1}}"#, 0, false),
            (r#" {}"#, 0, false),
            ("[]", 0, false),
            (
                r#"{"a":{"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,18446744073709551615]}}"#,
                4,
                false,
            ),
            (
                r#"{"a":{"dtype":"X","shape":[1],"data_offsets":[0,18446744073709551615]}}"#,
                4,
                false,
            ),
            (
                r#"{"a":{"dtype":"U8","shape":[4294967296,4294967296,0],"data_offsets":[0,0]}}"#,
                0,
                false,
            ),
        ] {
            assert_eq!(lack_of(header, data).is_none(), is_whole, "{header}");
        }
        let nested = format!(r#"{{"a":{}{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
        assert!(lack_of(&nested, 0).is_some());
    }

    #[test]
    fn index_names_files() {
        let folder = tempfile::tempdir().expect("a folder");
        for index in [
            "{}",
            "[]",
            r#"{"weight_map":{}}"#,
            r#"{"weight_map":{"a":5}}"#,
            r#"{"weight_map":{"a":"../b.safetensors"}}"#,
        ] {
            std::fs::write(folder.path().join("index.json"), index).expect("it is written");
            let budget = Budget::new(10);
            let folder = Folder::read(folder.path(), &budget).expect("it is read");
            assert_eq!(lacks_of_index(&folder, "index.json", lack).len(), 1, "{index}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn only_tensors_that_fill_the_file_are_whole(
            sizes in prop::collection::vec(0_u64..9, 1..6),
            moved in 0_usize..6,
            (by_from, by_to, by_end) in (-2_i64..3, -2_i64..3, -2_i64..3),
        ) {
            let mut end = 0;
            let mut tensors = Vec::new();
            for (number, size) in sizes.iter().enumerate() {
                let (mut from, mut to) = (end, end + size);
                end = to;
                if number == moved {
                    (from, to) = (from.saturating_add_signed(by_from), to.saturating_add_signed(by_to));
                }
                let place = format!(r#""shape":[{size}],"data_offsets":[{from},{to}]"#);
                tensors.push((format!(r#""t{number}":{{"dtype":"U8",{place}}}"#), (from, to) == (end - size, end)));
            }
            let header: Vec<&str> = tensors.iter().map(|(text, _)| text.as_str()).collect();
            let data = end.saturating_add_signed(by_end);
            let lack = lack_of(&format!("{{{}}}", header.join(",")), usize::try_from(data).expect("small"));
            let is_right = data == end && tensors.iter().all(|(_, is_right)| *is_right);
            // Without a byte behind it, an empty tensor may lie anywhere that another one ends.
            let is_empty = sizes.get(moved) == Some(&0);
            prop_assert!(lack.is_none() == is_right || is_empty, "{header:?} {data}: {lack:?}");
        }
    }
}
