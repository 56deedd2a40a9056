//! `min_version`: the oldest version of the program that reads a file.
//!
//! It is read before every other key, so that a file with newer keys is refused for its version and not for a key
//! that this version does not know.

use super::document::{Document, Entry};
use text::text;
use verdict::Refusal;

const OWN: &str = env!("CARGO_PKG_VERSION");

/// Refuses a file for a newer version than this one.
pub(super) fn refuse_newer(document: Document<'_>, entry: Entry<'_>) -> Result<(), Refusal> {
    let wanted = entry.value.as_str().and_then(numbers).ok_or_else(|| {
        document.wrong_type(
            entry,
            text!("a version in quotes, such as \"{OWN}\"", "带引号的版本号，例如 \"{OWN}\""),
        )
    })?;
    if Some(wanted) <= numbers(OWN) {
        return Ok(());
    }
    let asked = entry.value.as_str().unwrap_or_default();
    Err(document.refuse(
        entry.line,
        text!(
            "this file needs ranklaunch {asked} or later, and this is {OWN}",
            "该文件需要 ranklaunch {asked} 或更高版本，当前为 {OWN}"
        ),
        text!(
            "use a newer ranklaunch, or a file for {OWN} without the newer keys and without min_version",
            "请升级 ranklaunch；或使用适用于 {OWN} 的文件，其中没有更新的键，也没有 min_version"
        ),
    ))
}

/// `0.3` and `0.3.1`. The suffix of a version before its release, such as `-rc.1`, does not count.
fn numbers(version: &str) -> Option<[u32; 3]> {
    let version = version.split(['-', '+']).next()?;
    let mut numbers = [0; 3];
    let mut parts = version.split('.');
    for (at, number) in numbers.iter_mut().enumerate() {
        *number = match parts.next() {
            Some(part) => super::value::whole(part).filter(|_| !part.is_empty())?,
            None if at > 0 => 0,
            None => return None,
        };
    }
    parts.next().is_none().then_some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_by_their_numbers() {
        for (text, parsed) in [
            ("0.3", Some([0, 3, 0])),
            ("1", Some([1, 0, 0])),
            ("0.10.2", Some([0, 10, 2])),
            ("0.3.0-rc.1", Some([0, 3, 0])),
            ("", None),
            ("0.", None),
            ("0.3.1.4", None),
            (">=0.3", None),
            ("v0.3", None),
        ] {
            assert_eq!(numbers(text), parsed, "{text}");
        }
        assert!(numbers("0.10") > numbers("0.9.9"));
        assert!(numbers(OWN).is_some());
    }
}
