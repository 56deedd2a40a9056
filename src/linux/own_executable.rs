//! The path of this executable, for starting it again in another role, and the names that other copies of it may have.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::LazyLock;

use crate::procfs::basename;

const NAME: &[u8] = b"ranklaunch";

/// Bytes that the kernel keeps of the name of a process.
const COMM: usize = 15;

/// The name of our own file, which anybody may have changed.
static OWN_NAME: LazyLock<Option<Vec<u8>>> = LazyLock::new(|| {
    let path = path().ok()?;
    Some(path.file_name()?.as_bytes().to_vec())
});

/// The path of our own file.
///
/// # Errors
/// If /proc/self/exe cannot be read.
pub fn path() -> io::Result<PathBuf> {
    std::env::current_exe().map(in_its_place)
}

/// The path at which a new file has taken the place of an executable (`ranklaunch install` into a folder
/// that several jobs share, an update). The kernel gives the old file a name that nobody can execute.
fn in_its_place(path: PathBuf) -> PathBuf {
    const REPLACED: &[u8] = b" (deleted)";
    let place = path.as_os_str().as_bytes().strip_suffix(REPLACED).map(OsStr::from_bytes);
    match place.map(PathBuf::from) {
        Some(place) if place.is_file() && !path.exists() => place,
        _ => path,
    }
}

/// Whether a word of a command line names this program: as [`has_usual_name`], or as our own file is called.
pub fn is_named(word: &[u8]) -> bool {
    has_usual_name(word) || OWN_NAME.as_deref() == Some(basename(word))
}

/// Whether a word is a path to `ranklaunch` or to a file of a release, `ranklaunch-0.2.0-x86_64-linux`.
pub fn has_usual_name(word: &[u8]) -> bool {
    let rest = basename(word).strip_prefix(NAME);
    let version = rest.and_then(|rest| rest.strip_prefix(b"-"));
    rest == Some(b"") || version.and_then(<[u8]>::first).is_some_and(u8::is_ascii_digit)
}

/// Whether a process with this name in the kernel may be one of this program.
pub fn is_comm(comm: &[u8]) -> bool {
    let own = OWN_NAME.as_deref().map(|own| own.get(..COMM).unwrap_or(own));
    has_usual_name(comm) || own == Some(comm)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executable_is_known_by_release_and_own_name() {
        for (word, usual) in [
            ("ranklaunch", true),
            ("/opt/bin/ranklaunch", true),
            ("./ranklaunch-0.2.0-x86_64-linux", true),
            ("ranklaunch-0.2.", true),
            ("ranklaunch-notes", false),
            ("ranklaunch.sh", false),
            ("ranklaunch/train", false),
            ("my-ranklaunch", false),
            ("", false),
        ] {
            assert_eq!(has_usual_name(word.as_bytes()), usual, "{word}");
        }
        let own = path().expect("a path");
        let name = own.file_name().expect("a name").as_bytes();
        assert!(is_named(own.as_os_str().as_bytes()) && is_named(name));
        assert!(is_comm(name.get(..COMM).unwrap_or(name)) && !is_comm(b"python3"));
    }

    #[test]
    fn replaced_executable_is_found_at_its_path() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("ranklaunch"), "").expect("written");
        assert_eq!(in_its_place(at("ranklaunch")), at("ranklaunch"));
        assert_eq!(in_its_place(at("ranklaunch (deleted)")), at("ranklaunch"));
        // No file has taken its place, or the suffix is part of its name.
        assert_eq!(in_its_place(at("other (deleted)")), at("other (deleted)"));
        std::fs::write(at("ranklaunch (deleted)"), "").expect("written");
        assert_eq!(in_its_place(at("ranklaunch (deleted)")), at("ranklaunch (deleted)"));
    }
}
