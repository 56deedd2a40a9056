//! Checks whether the script and the engine's configuration files exist, and computes the
//! script's digest for the comparison between nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::PathBuf;

use blake2::{Blake2s256, Digest as _};

use super::{NamedFile, Script};
use crate::host::Host;
use crate::regular_file;
use crate::settings::{Program, Settings, config_files};

/// A larger program is no script.
const LARGEST: u64 = 16 << 20;

/// None if the program is no Python script, or for a replayed node without one.
pub(crate) fn script(host: &Host, settings: &Settings) -> Option<Script> {
    let Program::Script { path, .. } = &settings.program.as_ref()?.value else { return None };
    let from = host.working_directory().unwrap_or_default();
    host.answer("script", || look(PathBuf::from(path), from))
}

/// The configuration files in the engine's arguments; a name with a placeholder of a
/// `[[select]]` once for each row. Empty for a replayed node without any.
pub(crate) fn engine_files(host: &Host, settings: &Settings) -> Vec<NamedFile> {
    let no_rows = [BTreeMap::new()];
    let rows: Vec<&BTreeMap<String, String>> = match settings.selects.as_slice() {
        [] => no_rows.iter().collect(),
        rows => rows.iter().map(|row| &row.values).collect(),
    };
    let program = settings.program.as_ref().map_or(&[][..], |program| program.value.args());
    let mut names = BTreeSet::new();
    for row in rows {
        for (_, mut name) in config_files(&settings.engine_args, program) {
            for (placeholder, value) in row {
                name = name.replace(&format!("{{{placeholder}}}"), value);
            }
            names.insert(name);
        }
    }
    names.retain(|name| !name.contains('{'));
    if names.is_empty() {
        return Vec::new();
    }
    let from = host.working_directory().unwrap_or_default();
    let look = |name: String| {
        let path = PathBuf::from(name);
        host.at(&path);
        let exists = !std::fs::metadata(&path).as_ref().is_err_and(is_missing);
        NamedFile { path, from: from.clone(), exists }
    };
    host.answer("engine-files", || names.into_iter().map(look).collect()).unwrap_or_default()
}

/// Whether the error proves that the file is missing; a denied access or a temporary error does
/// not.
fn is_missing(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

fn look(path: PathBuf, from: PathBuf) -> Script {
    let found = std::fs::metadata(&path);
    let exists = !found.as_ref().is_err_and(is_missing);
    let is_script = found.is_ok_and(|found| found.is_file() && found.len() <= LARGEST);
    let content = is_script.then(|| regular_file::read(&path, LARGEST).ok()).flatten();
    Script { digest: content.as_deref().map(digest), path, from, exists }
}

/// The first 64 bits of BLAKE2s, enough to tell two files apart.
pub(crate) fn digest(bytes: &[u8]) -> String {
    Blake2s256::digest(bytes).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_that_of_the_named_function() {
        // BLAKE2s of "abc" in RFC 7693 (appendix B).
        assert_eq!(digest(b"abc"), "508c5e8c327c14e2");
    }

    #[test]
    fn what_is_there_has_a_digest_and_what_cannot_be_said_is_not_missing() {
        let at = |path| look(path, PathBuf::new());
        let folder = tempfile::tempdir().expect("a folder");
        let script = folder.path().join("train.py");
        std::fs::write(&script, "print(1)\n").expect("written");
        let seen = at(script.clone());
        assert!(seen.exists && seen.digest.is_some());
        std::fs::write(&script, "print(2)\n").expect("written");
        assert_ne!(at(script.clone()).digest, seen.digest);

        let of = |path: PathBuf| (at(path.clone()).exists, at(path).digest);
        // Python runs a folder with a __main__.py.
        assert_eq!(of(folder.path().to_owned()), (true, None));
        assert_eq!(of(folder.path().join("other.py")), (false, None));
        assert_eq!(of(script.join("below-a-file.py")), (false, None));
        assert_eq!(of(folder.path().join("x".repeat(300))), (true, None));
    }
}
