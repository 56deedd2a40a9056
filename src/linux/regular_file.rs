//! Opens files that other programs or users made and that may be anything.
//!
//! A FIFO in the place of a file never blocks, a link does not lead out of the folder of a run, and
//! holes of a sparse file cost nothing. A mount that does not answer may block, so a caller that must
//! go on uses a deadline. `tests/house` lists every other place that opens a file.

use std::fs::{File, Permissions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use text::lang::failure;
use text::text;

/// The first `most` bytes of a regular file.
///
/// # Errors
/// The file cannot be read, or is not a regular file.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let (file, _) = open(path)?;
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A regular file and its size in bytes.
///
/// # Errors
/// The file cannot be opened, or is not a regular file.
pub fn open(path: &Path) -> io::Result<(File, u64)> {
    regular(rustix::fs::open(path, READ, Mode::empty())?)
}

// Without NONBLOCK, open(2) of a FIFO waits for a writer.
const READ: OFlags =
    OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC).union(OFlags::NOCTTY);

/// The first `most` bytes of a file that a user named, which may be a pipe that a program writes to, as `<(…)` is.
///
/// # Errors
/// The file cannot be read, is neither a regular file nor a pipe, or is a pipe to which nobody writes.
pub fn read_or_pipe(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = File::from(rustix::fs::open(path, READ, Mode::empty())?);
    let kind = file.metadata()?.file_type();
    if !kind.is_fifo() && !kind.is_file() {
        let why = match kind.is_dir() {
            true => text!("it is a folder", "它是目录"),
            false => {
                text!("it is neither a file nor a pipe", "它既不是普通文件，也不是管道")
            }
        };
        return Err(failure(io::ErrorKind::InvalidInput, why));
    }
    let mut bytes = Vec::new();
    let mut left = file.take(most);
    loop {
        match left.read_to_end(&mut bytes) {
            // Without a writer a pipe is at its end at once.
            Ok(_) if bytes.is_empty() && kind.is_fifo() => {
                let why = text!(
                    "it is a pipe to which nobody writes; start its writer first, or give `-` and write to standard input",
                    "它是没有写入者的管道；请先启动写入者，或用 `-` 从标准输入读取"
                );
                return Err(failure(io::ErrorKind::InvalidInput, why));
            }
            Ok(_) => return Ok(bytes),
            // It has a writer, so its end will come.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                rustix::fs::fcntl_setfl(left.get_ref(), OFlags::empty())?;
            }
            Err(error) => return Err(error),
        }
    }
}

fn regular(opened: OwnedFd) -> io::Result<(File, u64)> {
    let file = File::from(opened);
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        let why = text!("it is no regular file", "不是普通文件");
        return Err(failure(io::ErrorKind::InvalidInput, why));
    }
    Ok((file, metadata.len()))
}

/// Like [`open`](fn@open) for a file below a folder: `names` are the folders between the two, and the
/// file. None of the names may be a link: a link in the folder of a run, which may be another user's,
/// has no honest purpose.
///
/// # Errors
/// As for [`open`](fn@open), or a name is a link.
pub fn open_below(folder: &Path, names: &[&str]) -> io::Result<(File, u64)> {
    let linked = |error: Errno| match error {
        Errno::LOOP => {
            let why = text!("it is a link, which is not followed here", "它是链接，此处不予跟随");
            failure(io::ErrorKind::InvalidInput, why)
        }
        error => error.into(),
    };
    let open = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut at = rustix::fs::open(folder, open, Mode::empty())?;
    let Some((last, between)) = names.split_last() else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    for name in between {
        // With PATH and DIRECTORY a link is no folder.
        at = rustix::fs::openat(&at, *name, open | OFlags::NOFOLLOW, Mode::empty())
            .map_err(|error| linked(if error == Errno::NOTDIR { Errno::LOOP } else { error }))?;
    }
    let file = rustix::fs::openat(&at, *last, READ | OFlags::NOFOLLOW, Mode::empty());
    regular(file.map_err(linked)?)
}

/// Opens an existing regular file in order to lock it. The file is written to at most at its end.
///
/// # Errors
/// As for [`open_below`].
pub fn open_to_lock(path: &Path) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NONBLOCK | OFlags::NOFOLLOW;
    let flags = flags | OFlags::CLOEXEC | OFlags::NOCTTY;
    match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => regular(file).map(|(file, _)| file),
        // A FIFO without a reader, and a link.
        Err(Errno::NXIO | Errno::LOOP) => Err(io::ErrorKind::InvalidInput.into()),
        Err(error) => Err(error.into()),
    }
}

/// Offset of the next data at or behind an offset of a file; None if there is only a hole up to its end.
/// A file system without holes reports data at the offset itself.
pub fn data_from(file: impl AsFd, offset: u64) -> Option<u64> {
    match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(offset)) {
        Ok(data) => Some(data),
        Err(Errno::NXIO) => None,
        Err(_) => Some(offset),
    }
}

/// Bytes of a hole that are worth a system call.
const WORTH_SKIPPING: u64 = 1 << 20;

/// Reads a file without its large holes, which would be zeros: a sparse file has any size and takes
/// no space.
#[derive(Debug)]
pub struct WithoutHoles {
    file: File,
    at: u64,
    /// End of the present run of data.
    until: u64,
    /// Bytes from here on are not read.
    end: u64,
}

impl WithoutHoles {
    pub fn of(file: File) -> WithoutHoles {
        WithoutHoles { file, at: 0, until: 0, end: u64::MAX }
    }

    /// Reads up to the present end of the file. A file that grows faster than it is read would have no other end.
    ///
    /// # Errors
    /// The size of the file cannot be read.
    pub fn as_it_is(file: File) -> io::Result<WithoutHoles> {
        // Files of the kernel have no size.
        let end = Some(file.metadata()?.len()).filter(|size| *size > 0).unwrap_or(u64::MAX);
        Ok(WithoutHoles { end, ..WithoutHoles::of(file) })
    }
}

impl Read for WithoutHoles {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.end.saturating_sub(self.at)).unwrap_or(usize::MAX);
        let most = left.min(out.len());
        let out = out.get_mut(..most).unwrap_or_default();
        if out.is_empty() {
            return Ok(0);
        }
        if self.at >= self.until {
            let Some(data) = data_from(&self.file, self.at) else {
                // A hole up to the end, or the end. Bytes that are added meanwhile are read.
                let end = self.file.metadata()?.len();
                if end.saturating_sub(self.at) >= WORTH_SKIPPING {
                    self.at = end;
                }
                self.file.seek(SeekFrom::Start(self.at))?;
                let read = self.file.read(out)?;
                self.at += read as u64;
                return Ok(read);
            };
            if data.saturating_sub(self.at) >= WORTH_SKIPPING {
                self.at = data;
            }
            let hole = rustix::fs::seek(&self.file, rustix::fs::SeekFrom::Hole(self.at.max(data)));
            self.until = hole.map_or(u64::MAX, |hole| hole.max(self.at + 1));
            self.file.seek(SeekFrom::Start(self.at))?;
        }
        let most = usize::try_from(self.until - self.at).unwrap_or(usize::MAX).min(out.len());
        let read = self.file.read(out.get_mut(..most).unwrap_or_default())?;
        self.at += read as u64;
        Ok(read)
    }
}

/// Puts these bytes in the place of a file. A reader sees either the old bytes or these, never a mixture.
///
/// # Errors
/// An error of the file system; the old file is then unchanged.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_string_lossy();
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    // The name is unique: a process that was killed here before may have had our pid, as in every container.
    // The mode is less the umask, as for any other file.
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
    fn only_regular_files_are_read_up_to_limit() {
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

    #[test]
    fn pipes_are_read_if_somebody_writes() {
        let folder = tempfile::tempdir().expect("a folder");
        let fifo = folder.path().join("fifo");
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, Mode::RWXU).expect("a FIFO");
        let why = read_or_pipe(&fifo, 9).expect_err("nobody writes");
        assert!(why.to_string().contains("nobody writes"), "{why}");
        for name in [folder.path(), Path::new("/dev/zero"), Path::new("/none")] {
            assert!(read_or_pipe(name, 9).is_err(), "{}", name.display());
        }
        // A writer that has gone, one that has more than is read, and one that writes more than a pipe holds.
        for (lines, most, has_gone) in [(9, 1 << 20, true), (9, 20, true), (90_000, 1 << 21, false)]
        {
            let (reader, mut writer) = io::pipe().expect("a pipe");
            let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&reader));
            let text = "torchrun a.py\n".repeat(lines);
            let written = text.clone();
            let writing = std::thread::spawn(move || writer.write_all(written.as_bytes()));
            let reading = || read_or_pipe(Path::new(&path), most).expect("read");
            let early = (!has_gone).then(reading);
            writing.join().expect("ended").expect("written");
            let read = early.unwrap_or_else(reading);
            let most = usize::try_from(most).expect("small").min(text.len());
            assert!(read == text.as_bytes()[..most], "{} of {}", read.len(), text.len());
        }
    }

    #[test]
    fn no_link_leads_out_of_a_run() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(at("node-0/attempt-0")).expect("made");
        std::fs::write(at("node-0/attempt-0/file"), b"own").expect("written");
        std::fs::write(at("secret"), b"root's").expect("written");
        std::os::unix::fs::symlink(at("secret"), at("node-0/attempt-0/link")).expect("linked");
        std::os::unix::fs::symlink(at("node-0"), at("node-1")).expect("linked");
        rustix::fs::mkfifoat(rustix::fs::CWD, at("node-0/fifo"), Mode::RWXU).expect("a FIFO");
        let opened = |names: &[&str]| open_below(folder.path(), names).map(|(_, size)| size);
        assert_eq!(opened(&["node-0", "attempt-0", "file"]).expect("opened"), 3);
        for names in [
            &["node-0", "attempt-0", "link"][..],
            &["node-1", "attempt-0", "file"],
            &["node-0", "fifo"],
            &["node-0", "attempt-0"],
            &["node-0", "none"],
            &["node-1"],
        ] {
            assert!(opened(names).is_err(), "{names:?}");
        }
        for name in ["node-0/fifo", "node-0/attempt-0/link", "node-0"] {
            assert!(open_to_lock(&at(name)).is_err(), "{name}");
        }
        open_to_lock(&at("node-0/attempt-0/file")).expect("a lock");
    }

    #[test]
    fn holes_of_a_file_are_not_read() {
        use std::os::unix::fs::FileExt;
        let file = tempfile::tempfile().expect("a file");
        let far = 200 << 30;
        for (at, bytes) in [(0, b"begin".as_slice()), (far, b"middle")] {
            file.write_all_at(bytes, at).expect("written");
        }
        file.set_len(2 * far).expect("longer");
        let mut read = Vec::new();
        WithoutHoles::of(file).take(1 << 24).read_to_end(&mut read).expect("read");
        assert!(read.len() < 1 << 22, "{}", read.len());
        let words: Vec<&[u8]> = read.split(|byte| *byte == 0).filter(|it| !it.is_empty()).collect();
        assert_eq!(words, [b"begin".as_slice(), b"middle"]);

        let plain = tempfile::NamedTempFile::new().expect("a file");
        let text = "line\n".repeat(700_000);
        std::fs::write(plain.path(), &text).expect("written");
        let mut read = String::new();
        let (file, _) = open(plain.path()).expect("opened");
        WithoutHoles::of(file).read_to_string(&mut read).expect("read");
        assert!(read == text, "a file without holes is read as it is");
    }

    #[test]
    fn growing_file_is_read_to_its_first_size() {
        let path = tempfile::NamedTempFile::new().expect("a file");
        for as_it_is in [true, false] {
            std::fs::write(path.path(), "line\n".repeat(100_000)).expect("written");
            let (file, size) = open(path.path()).expect("opened");
            let mut log = match as_it_is {
                true => WithoutHoles::as_it_is(file).expect("a size"),
                false => WithoutHoles::of(file),
            };
            let mut grows = File::options().append(true).open(path.path()).expect("opened");
            let (mut chunk, mut read) = (vec![0; 1 << 16], 0);
            // The file grows as fast as it is read. The bound ends the control, which reads on.
            while read < 2 * size {
                let count = log.read(&mut chunk).expect("read");
                grows.write_all(chunk.get(..count).expect("read")).expect("grown");
                read += count as u64;
                if count == 0 {
                    break;
                }
            }
            assert_eq!(read == size, as_it_is, "{read} of {size}");
        }
        let mut kernels = String::new();
        let (file, size) = open(Path::new("/proc/self/stat")).expect("opened");
        WithoutHoles::as_it_is(file).expect("a size").read_to_string(&mut kernels).expect("read");
        assert!(size == 0 && !kernels.is_empty());
    }

    /// A container gives each of its runs the same pids.
    #[test]
    fn leftover_with_our_pid_does_not_block_replacement() {
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
