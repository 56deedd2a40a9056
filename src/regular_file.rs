//! Reads small files that other programs wrote and that may be anything.
//!
//! A FIFO in the place of a file never blocks, and no file is read beyond a bound. A mount that
//! does not answer may block, so who must go on calls this with a deadline.

use std::fs::{File, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use crate::lang::failure;
use crate::text;

/// The first `most` bytes of a regular file.
///
/// # Errors
/// When it cannot be read, or is something else.
pub(crate) fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let (file, _) = open(path)?;
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A regular file and its size in bytes.
///
/// # Errors
/// When it cannot be opened, or is something else.
pub(crate) fn open(path: &Path) -> io::Result<(File, u64)> {
    // Without NONBLOCK, open(2) of a FIFO waits for a writer.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        let why = text!("it is no regular file", "不是普通文件");
        return Err(failure(io::ErrorKind::InvalidInput, why));
    }
    Ok((file, metadata.len()))
}

/// Puts these bytes in the place of a file: who reads it meanwhile sees the old ones or these.
///
/// # Errors
/// Of the file system; the old file is then unchanged.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_string_lossy();
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    // A name that nothing has: who was killed here before may have had our pid, as in every container.
    // Less the umask, as for any other file.
    let mut fresh = tempfile::Builder::new()
        .prefix(&format!(".{name}."))
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder.unwrap_or(Path::new(".")))?;
    fresh.write_all(bytes)?;
    fresh.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_regular_file_is_read_and_no_more_of_it_than_was_asked_for() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("file"), b"0123456789").expect("written");
        std::os::unix::fs::symlink(at("file"), at("link")).expect("linked");
        for name in ["file", "link"] {
            assert_eq!(read(&at(name), 4).expect("read"), b"0123", "{name}");
        }
        rustix::fs::mkfifoat(rustix::fs::CWD, at("fifo"), Mode::RWXU).expect("a FIFO");
        for name in ["fifo", ".", "none"] {
            assert!(read(&at(name), 4).is_err(), "{name}");
        }
        assert!(read(Path::new("/dev/zero"), 4).is_err(), "a device");
    }

    /// A container gives each of its runs the same pids.
    #[test]
    fn a_file_is_replaced_beside_what_a_killed_process_with_our_pid_left() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("report.html");
        std::fs::write(&path, "old").expect("written");
        let left = folder.path().join(format!(".report.html.{}", std::process::id()));
        std::fs::write(&left, "half").expect("written");
        replace(&path, b"new").expect("replaced");
        assert_eq!(std::fs::read(&path).expect("read"), b"new");
        assert_eq!(folder.path().read_dir().expect("a folder").count(), 2, "nothing else is left");
        let mode =
            |path: &Path| std::fs::metadata(path).expect("a file").permissions().mode() & 0o777;
        assert_eq!(mode(&path), mode(&left), "as the umask says");
    }
}
