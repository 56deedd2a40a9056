//! Reads small files that other programs wrote and that may be anything.
//!
//! A FIFO in the place of a file never blocks, and no file is read beyond a bound. A mount that
//! does not answer may block, so who must go on calls this with a deadline.

use std::fs::File;
use std::io::{self, Read};
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
}
