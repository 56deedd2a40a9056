//! Where this executable is, for whoever starts it again in another role.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Its path.
///
/// # Errors
/// If /proc/self/exe cannot be read.
pub(crate) fn path() -> io::Result<PathBuf> {
    std::env::current_exe().map(in_its_place)
}

/// The path at which a new file has taken the place of an executable (`ranklaunch install` into a folder
/// that several jobs share, an update). For the old one the kernel gives a name that nobody can execute.
fn in_its_place(path: PathBuf) -> PathBuf {
    const REPLACED: &[u8] = b" (deleted)";
    let place = path.as_os_str().as_bytes().strip_suffix(REPLACED).map(OsStr::from_bytes);
    match place.map(PathBuf::from) {
        Some(place) if place.is_file() && !path.exists() => place,
        _ => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_replaced_is_found_in_its_place() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("ranklaunch"), "").expect("written");
        assert_eq!(in_its_place(at("ranklaunch")), at("ranklaunch"));
        assert_eq!(in_its_place(at("ranklaunch (deleted)")), at("ranklaunch"));
        // Nothing has taken its place, or this is its name.
        assert_eq!(in_its_place(at("other (deleted)")), at("other (deleted)"));
        std::fs::write(at("ranklaunch (deleted)"), "").expect("written");
        assert_eq!(in_its_place(at("ranklaunch (deleted)")), at("ranklaunch (deleted)"));
    }
}
