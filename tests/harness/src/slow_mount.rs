//! A folder as on a file server: each read takes its time, any number of them at once.
//!
//! A FUSE file system that mirrors a folder, read-only. The kernel caches names and contents, as for any file system; a
//! new mount begins with an empty cache. Only READ waits, names are answered at once, and no open is requested. The
//! numbers are those of linux/fuse.h.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, unshare};

use crate::skipped;

/// Seconds for which the kernel keeps names: longer than any measurement.
const KEPT: u64 = 3600;
/// Reads at once: the number given to the kernel, and the number of threads that answer.
const AT_ONCE: u16 = 64;
/// Bytes of the largest read.
const LARGEST: u32 = 128 << 10;

/// A read that was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Read {
    /// The path from the mirrored folder.
    pub path: PathBuf,
    pub offset: u64,
    pub size: u64,
    pub asked: SystemTime,
    /// Reads that waited when this one was requested, itself included.
    pub at_once: usize,
}

/// The mounted folder, until it is dropped.
#[derive(Debug)]
pub struct SlowMount {
    at: PathBuf,
    shared: Arc<Shared>,
    server: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    root: PathBuf,
    takes: Mutex<Duration>,
    changed: Condvar,
    waiting: AtomicUsize,
    over: AtomicBool,
    reads: Mutex<Vec<Read>>,
}

impl SlowMount {
    /// Mirrors `folder` at the empty folder `at`; a read takes so long. Call it in [`alone`].
    ///
    /// # Errors
    /// No FUSE, or not permitted.
    pub fn new(folder: &Path, at: &Path, takes: Duration) -> io::Result<SlowMount> {
        let device = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(nix::libc::O_CLOEXEC | nix::libc::O_NONBLOCK)
            .open("/dev/fuse")?;
        let options = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0,allow_other,max_read={LARGEST}",
            device.as_raw_fd()
        );
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_RDONLY;
        mount(Some("slow"), at, Some("fuse"), flags, Some(options.as_str()))?;
        let shared = Arc::new(Shared {
            root: folder.to_owned(),
            takes: Mutex::new(takes),
            changed: Condvar::new(),
            waiting: AtomicUsize::new(0),
            over: AtomicBool::new(false),
            reads: Mutex::default(),
        });
        let mut mirror = Mirror::new(Arc::clone(&shared), device);
        let server = std::thread::spawn(move || mirror.serve());
        Ok(SlowMount { at: at.to_owned(), shared, server: Some(server) })
    }

    /// The answered reads, in the order of the answers.
    pub fn reads(&self) -> Vec<Read> {
        lock(&self.shared.reads).clone()
    }

    /// Reads that wait for their answer.
    pub fn waiting(&self) -> usize {
        self.shared.waiting.load(Ordering::Relaxed)
    }

    /// Sets the time of a read from now on, including reads that already wait.
    pub fn takes(&self, takes: Duration) {
        *lock(&self.shared.takes) = takes;
        self.shared.changed.notify_all();
    }
}

impl Drop for SlowMount {
    fn drop(&mut self) {
        self.takes(Duration::ZERO);
        let _ = umount2(&self.at, MntFlags::MNT_DETACH);
        self.shared.over.store(true, Ordering::Relaxed);
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
    }
}

/// Calls `work` in a thread with its own mounts and network, which its children inherit: no mount is left behind, and
/// no other job of this machine is seen. False, with a printed reason, if that or FUSE is not permitted.
pub fn alone(work: impl FnOnce() + Send) -> bool {
    std::thread::scope(|scope| {
        let inside = scope.spawn(|| {
            if let Err(error) = own_namespaces() {
                skipped(format_args!("no FUSE mount can be made here: {error}"));
                return false;
            }
            work();
            true
        });
        inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn own_namespaces() -> io::Result<()> {
    File::options().read(true).write(true).open("/dev/fuse")?;
    unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_FS)?;
    let nothing = None::<&str>;
    mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nothing)?;
    let up = Command::new("ip").args(["link", "set", "lo", "up"]).status()?;
    if up.success() { Ok(()) } else { Err(io::Error::other(format!("ip link set lo up: {up}"))) }
}

/// A read to be answered.
struct Asked {
    path: PathBuf,
    file: Arc<File>,
    offset: u64,
    size: usize,
    at: Instant,
    read_at: SystemTime,
    at_once: usize,
    unique: u64,
}

struct Mirror {
    shared: Arc<Shared>,
    device: Arc<File>,
    /// Paths by number; number 1 is the root.
    paths: Vec<PathBuf>,
    numbers: HashMap<PathBuf, u64>,
    files: HashMap<u64, Arc<File>>,
    asked: mpsc::Sender<Asked>,
}

impl Mirror {
    fn new(shared: Arc<Shared>, device: File) -> Mirror {
        let device = Arc::new(device);
        let (asked, asks) = mpsc::channel::<Asked>();
        let asks = Arc::new(Mutex::new(asks));
        for _ in 0..AT_ONCE {
            let (asks, shared) = (Arc::clone(&asks), Arc::clone(&shared));
            let device = Arc::clone(&device);
            // The threads end with the sender.
            std::thread::spawn(move || {
                loop {
                    let Ok(asked) = lock(&asks).recv() else { return };
                    read(&shared, &device, &asked);
                }
            });
        }
        let paths = vec![shared.root.clone()];
        let numbers = HashMap::from([(shared.root.clone(), 1)]);
        Mirror { shared, device, paths, numbers, files: HashMap::new(), asked }
    }

    fn serve(&mut self) {
        let mut request = vec![0u8; 1 << 18];
        while !self.shared.over.load(Ordering::Relaxed) {
            let mut waits = [PollFd::new(self.device.as_fd(), PollFlags::POLLIN)];
            let _ = poll(&mut waits, PollTimeout::from(20u8));
            match (&*self.device).read(&mut request) {
                Ok(length) => self.answer(&request[..length]),
                Err(error) if error.raw_os_error() == Some(nix::libc::ENODEV) => return,
                Err(_nothing_yet) => {}
            }
        }
    }

    fn answer(&mut self, request: &[u8]) {
        let (unique, node) = (number(request, 8, 8), number(request, 16, 8));
        let answer = match number(request, 4, 4) {
            // FORGET, INTERRUPT and BATCH_FORGET have no answer.
            2 | 36 | 42 => return,
            1 => self.lookup(node, &request[40..]),
            3 => self.attributes(node),
            5 => self
                .path(node)
                .and_then(|path| path.read_link())
                .map(|to| to.into_os_string().into_vec()),
            15 => match self.read(unique, node, request) {
                Ok(()) => return,
                Err(error) => Err(error),
            },
            17 => Ok(vec![0; 80]),
            26 => Ok(init()),
            28 => self.list(node, number(request, 48, 8), number(request, 56, 4)),
            // OPEN and OPENDIR are among these: the kernel then opens by itself, and keeps its cache.
            _ => Err(Errno::ENOSYS.into()),
        };
        reply(&self.device, unique, answer.as_deref());
    }

    fn path(&self, node: u64) -> io::Result<PathBuf> {
        let at = usize::try_from(node).unwrap_or(0).wrapping_sub(1);
        self.paths.get(at).cloned().ok_or(Errno::ESTALE.into())
    }

    fn number(&mut self, path: PathBuf) -> u64 {
        if let Some(number) = self.numbers.get(&path) {
            return *number;
        }
        self.paths.push(path.clone());
        let number = self.paths.len() as u64;
        self.numbers.insert(path, number);
        number
    }

    fn lookup(&mut self, parent: u64, name: &[u8]) -> io::Result<Vec<u8>> {
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        let path = self.path(parent)?.join(OsStr::from_bytes(name));
        let found = path.symlink_metadata()?;
        let number = self.number(path);
        let mut answer = Vec::new();
        // The generation, and the time for which the name and its attributes are kept.
        for word in [number, 0, KEPT, KEPT, 0] {
            answer.extend(word.to_le_bytes());
        }
        answer.extend(known(number, &found));
        Ok(answer)
    }

    fn attributes(&self, node: u64) -> io::Result<Vec<u8>> {
        let found = self.path(node)?.symlink_metadata()?;
        let mut answer = Vec::new();
        for word in [KEPT, 0] {
            answer.extend(word.to_le_bytes());
        }
        answer.extend(known(node, &found));
        Ok(answer)
    }

    fn read(&mut self, unique: u64, node: u64, request: &[u8]) -> io::Result<()> {
        let path = self.path(node)?;
        let file = match self.files.get(&node) {
            Some(file) => Arc::clone(file),
            None => Arc::new(File::open(&path)?),
        };
        self.files.insert(node, Arc::clone(&file));
        let at_once = self.shared.waiting.fetch_add(1, Ordering::Relaxed) + 1;
        let (at, read_at) = (Instant::now(), SystemTime::now());
        let size = usize::try_from(number(request, 56, 4)).unwrap_or(0);
        let offset = number(request, 48, 8);
        let asked = Asked { path, file, offset, size, at, read_at, at_once, unique };
        self.asked.send(asked).map_err(|_| Errno::EIO.into())
    }

    fn list(&mut self, node: u64, from: u64, most: u64) -> io::Result<Vec<u8>> {
        let folder = self.path(node)?;
        let mut answer = Vec::new();
        // The folder does not change, so a position in it is a number.
        for (at, entry) in (1u64..).zip(std::fs::read_dir(folder)?) {
            let entry = entry?;
            if at <= from {
                continue;
            }
            let (name, kind) = (entry.file_name(), entry.file_type()?);
            let name = name.as_bytes();
            if answer.len() + 32 + name.len() > usize::try_from(most).unwrap_or(0) {
                break;
            }
            let kind: u32 = if kind.is_dir() {
                4
            } else if kind.is_symlink() {
                10
            } else {
                8
            };
            for word in [self.number(entry.path()), at] {
                answer.extend(word.to_le_bytes());
            }
            answer.extend((name.len() as u32).to_le_bytes());
            answer.extend(kind.to_le_bytes());
            answer.extend(name);
            answer.resize(answer.len().next_multiple_of(8), 0);
        }
        Ok(answer)
    }
}

fn read(shared: &Shared, device: &File, asked: &Asked) {
    let mut takes = lock(&shared.takes);
    while let Some(left) = takes.checked_sub(asked.at.elapsed()).filter(|left| !left.is_zero()) {
        let waited = shared.changed.wait_timeout(takes, left);
        takes = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
    drop(takes);
    shared.waiting.fetch_sub(1, Ordering::Relaxed);
    let mut bytes = vec![0; asked.size];
    let mut done = 0;
    while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match asked.file.read_at(rest, asked.offset + done as u64) {
            Ok(0) => break,
            Ok(more) => done += more,
            Err(error) => return reply(device, asked.unique, Err(&error)),
        }
    }
    let path = asked.path.strip_prefix(&shared.root).unwrap_or(&asked.path).to_owned();
    let (offset, size) = (asked.offset, done as u64);
    let read = Read { path, offset, size, asked: asked.read_at, at_once: asked.at_once };
    lock(&shared.reads).push(read);
    reply(device, asked.unique, Ok(&bytes[..done]));
}

fn reply(mut device: &File, unique: u64, answer: Result<&[u8], &io::Error>) {
    let error = answer.err().map_or(0, |error| -error.raw_os_error().unwrap_or(nix::libc::EIO));
    let bytes = answer.unwrap_or_default();
    let mut whole = Vec::with_capacity(16 + bytes.len());
    whole.extend((16 + bytes.len() as u32).to_le_bytes());
    whole.extend(error.to_le_bytes());
    whole.extend(unique.to_le_bytes());
    whole.extend(bytes);
    // The requesting process may have been killed.
    let _ = device.write(&whole);
}

/// Version 7.31. ASYNC_READ, NO_OPEN_SUPPORT, PARALLEL_DIROPS, MAX_PAGES, CACHE_SYMLINKS and NO_OPENDIR_SUPPORT.
fn init() -> Vec<u8> {
    let flags: u32 = 1 | 1 << 17 | 1 << 18 | 1 << 22 | 1 << 23 | 1 << 24;
    let mut answer = Vec::new();
    for word in [7, 31, LARGEST, flags, u32::from(AT_ONCE) << 16 | u32::from(AT_ONCE), 4096, 1] {
        answer.extend(word.to_le_bytes());
    }
    // The maximum number of pages in a read.
    answer.extend((LARGEST >> 12).to_le_bytes());
    answer.resize(64, 0);
    answer
}

/// A fuse_attr.
fn known(number: u64, found: &Metadata) -> Vec<u8> {
    let mut answer = Vec::new();
    let at = u64::try_from(found.mtime()).unwrap_or(0);
    for word in [number, found.size(), found.blocks(), at, at, at] {
        answer.extend(word.to_le_bytes());
    }
    for word in [0, 0, 0, found.mode(), 1, found.uid(), found.gid(), 0, 4096, 0] {
        answer.extend(word.to_le_bytes());
    }
    answer
}

/// A number of `size` bytes; 0 if the request is too short.
fn number(request: &[u8], at: usize, size: usize) -> u64 {
    let bytes = request.get(at..at + size).unwrap_or_default();
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
