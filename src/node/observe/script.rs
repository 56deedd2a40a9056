//! Checks whether the script and the engine's configuration files exist and whether the script's
//! first line lets it start, and computes its digest for the comparison between nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use blake2::{Blake2s256, Digest as _};

use super::{FirstLineFault, NamedFile, Script};
use linux::host::Host;
use linux::regular_file;
use settings::arguments::ScriptReader;
use settings::{Settings, config_files};

/// Maximum bytes of a script; a larger program is not a script.
const LARGEST: u64 = 16 << 20;

/// The script. None if the program names no file, or for a replayed node without a recorded script.
pub(super) fn script(host: &Host, settings: &Settings) -> Option<Script> {
    let (path, reader) = settings.program.as_ref()?.value.script()?;
    let from = host.working_directory().unwrap_or_default();
    // A shell also looks for a name in PATH.
    let is_in_path = || {
        let is_name = matches!(reader, ScriptReader::Shell(_)) && !path.as_bytes().contains(&b'/');
        let folders = host.environment().get(OsStr::new("PATH")).filter(|_| is_name);
        folders.is_some_and(|all| std::env::split_paths(all).any(|at| at.join(path).exists()))
    };
    host.answer("script", || {
        let script = look(PathBuf::from(path), reader, from);
        Script { exists: script.exists || is_in_path(), ..script }
    })
}

/// The configuration files in the engine's arguments; a name with a placeholder of a `[[select]]` appears once for each
/// row. Empty for a replayed node without recorded files.
pub(super) fn engine_files(host: &Host, settings: &Settings) -> Vec<NamedFile> {
    let no_rows = [BTreeMap::new()];
    let rows: Vec<&BTreeMap<String, String>> = match settings.selects.as_slice() {
        [] => no_rows.iter().collect(),
        rows => rows.iter().map(|row| &row.values).collect(),
    };
    let program = settings.program.as_ref().map(|program| &program.value);
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

/// Whether the error proves that the file is missing; denied access or a temporary error does not prove it.
fn is_missing(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

fn look(path: PathBuf, reader: ScriptReader<'_>, from: PathBuf) -> Script {
    let found = std::fs::metadata(&path);
    let exists = !found.as_ref().is_err_and(is_missing);
    let is_script = found.is_ok_and(|found| found.is_file() && found.len() <= LARGEST);
    let content = is_script.then(|| regular_file::read(&path, LARGEST).ok()).flatten();
    let fault = content.as_deref().and_then(|content| first_line_fault(content, reader));
    Script { digest: content.as_deref().map(digest), path, from, exists, fault }
}

/// The fault of a first line. execve(2) reads 256 bytes of a file, 128 before Linux 5.1.
fn first_line_fault(content: &[u8], reader: ScriptReader<'_>) -> Option<FirstLineFault> {
    let line = content.split(|byte| *byte == b'\n').next()?;
    let ends_in_return = line.ends_with(b"\r") && line.len() < content.len();
    match reader {
        // Python reads lines with either line end.
        ScriptReader::Python => None,
        ScriptReader::Shell(name) => {
            ends_in_return.then(|| FirstLineFault::ShellReads(name.to_string_lossy().into_owned()))
        }
        ScriptReader::Kernel => {
            let named = line.get(..line.len().min(256))?.strip_prefix(b"#!")?;
            if ends_in_return && line.len() <= 256 {
                let line = String::from_utf8_lossy(line.trim_ascii_end());
                return Some(FirstLineFault::KernelReads(line.into_owned()));
            }
            let mut words = named.split(|byte| b" \t".contains(byte));
            let path = Path::new(OsStr::from_bytes(words.find(|word| !word.is_empty())?));
            let is_absent = || std::fs::metadata(path).as_ref().is_err_and(is_missing);
            (path.is_absolute() && is_absent())
                .then(|| FirstLineFault::NoInterpreter(path.to_owned()))
        }
    }
}

/// The first 64 bits of BLAKE2s, enough to tell two files apart.
pub fn digest(bytes: &[u8]) -> String {
    Blake2s256::digest(bytes).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_matches_the_blake2s_test_vector() {
        // BLAKE2s of "abc" in RFC 7693 (appendix B).
        assert_eq!(digest(b"abc"), "508c5e8c327c14e2");
    }

    #[test]
    fn existing_script_has_digest_unknown_is_not_missing() {
        let at = |path| look(path, ScriptReader::Python, PathBuf::new());
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

    #[test]
    fn first_line_is_judged_by_its_reader() {
        use FirstLineFault::{KernelReads, NoInterpreter, ShellReads};
        let kernel = ScriptReader::Kernel;
        for (content, reader, expected) in [
            ("#!/bin/sh\r\necho\r\n", kernel, Some(KernelReads("#!/bin/sh".to_owned()))),
            ("#!/bin/sh -e\r\n", kernel, Some(KernelReads("#!/bin/sh -e".to_owned()))),
            (
                "#!/usr/bin/env python\r\n",
                kernel,
                Some(KernelReads("#!/usr/bin/env python".to_owned())),
            ),
            ("#!/bin/sh\necho\r\n", kernel, None),
            ("#! /no/such/python -u\n", kernel, Some(NoInterpreter("/no/such/python".into()))),
            ("#!/bin/sh", kernel, None),
            ("\u{7f}ELF\r\n", kernel, None),
            (
                "#!/bin/sh\r\n",
                ScriptReader::Shell(OsStr::new("bash")),
                Some(ShellReads("bash".to_owned())),
            ),
            ("echo\r\n", ScriptReader::Shell(OsStr::new("sh")), Some(ShellReads("sh".to_owned()))),
            ("echo\n", ScriptReader::Shell(OsStr::new("sh")), None),
            ("#!/bin/sh\r\n", ScriptReader::Python, None),
        ] {
            assert_eq!(first_line_fault(content.as_bytes(), reader), expected, "{content:?}");
        }
    }
}
