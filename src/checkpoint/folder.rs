//! One folder and its entries, and the reading of its files within bounds.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::Deserialize;

use crate::lack::Lack;
use linux::regular_file;

/// Maximum bytes of an index or a metadata file that is read whole.
pub(crate) const INDEX: u64 = 256 << 20;

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) is_folder: bool,
    /// A link to a file of the same folder and kind, such as `last.ckpt`.
    pub(crate) is_alias: bool,
    /// The name itself, which may be no UTF-8.
    name: OsString,
    /// Bytes and last write, of those that were asked for: on a shared file system each takes a message.
    known: OnceCell<(u64, SystemTime)>,
}

/// The number of entries that may still be read of all folders together.
#[derive(Debug)]
pub(crate) struct Budget {
    left: Cell<usize>,
    is_spent: Cell<bool>,
    /// Folders that were read: reading one again takes nothing.
    read: RefCell<BTreeSet<PathBuf>>,
    /// Folders in which others were not read.
    unread: RefCell<BTreeSet<PathBuf>>,
}

impl Budget {
    pub(crate) fn new(entries: usize) -> Budget {
        let (left, is_spent) = (Cell::new(entries), Cell::new(false));
        Budget { left, is_spent, read: RefCell::default(), unread: RefCell::default() }
    }

    fn take(&self) -> bool {
        let left = self.left.get();
        self.left.set(left.saturating_sub(1));
        self.is_spent.set(self.is_spent.get() || left == 0);
        left > 0
    }

    /// Whether there were more entries.
    pub(crate) fn is_spent(&self) -> bool {
        self.is_spent.get()
    }

    /// The folders in which others were not read.
    pub(crate) fn unread(self) -> BTreeSet<PathBuf> {
        self.unread.into_inner()
    }
}

/// A path as text. Bytes that are no UTF-8 are `\xNN`, and backslashes beside them or in front of an `x` are doubled, so
/// that two paths stay two.
pub fn shown(path: &OsStr) -> String {
    if let Some(text) = path.to_str().filter(|text| !text.contains("\\x")) {
        return text.to_owned();
    }
    let mut shown = String::new();
    for chunk in path.as_encoded_bytes().utf8_chunks() {
        shown.push_str(&chunk.valid().replace('\\', r"\\"));
        let _ = chunk.invalid().iter().try_for_each(|byte| write!(shown, "\\x{byte:02x}"));
    }
    shown
}

/// A folder with all its entries.
#[derive(Debug)]
pub(crate) struct Folder<'b> {
    pub(crate) path: PathBuf,
    pub(crate) entries: BTreeMap<String, Entry>,
    /// Links to folders, which are not followed.
    pub(crate) links: Vec<String>,
    budget: &'b Budget,
}

impl<'b> Folder<'b> {
    pub(crate) fn read(path: &Path, budget: &'b Budget) -> io::Result<Folder<'b>> {
        let (mut entries, mut links) = (BTreeMap::new(), Vec::new());
        let listed = path.read_dir()?;
        let is_new = budget.read.borrow_mut().insert(path.to_owned());
        for entry in listed {
            if is_new && !budget.take() {
                break;
            }
            let entry = entry?;
            // A file that its writer removes meanwhile.
            let Ok(kind) = entry.file_type() else { continue };
            let mut is_alias = false;
            if kind.is_symlink() {
                // Links to files count, links to folders could lead anywhere.
                let Ok(leads_to) = entry.path().canonicalize() else { continue };
                if leads_to.is_dir() {
                    links.push(shown(&entry.file_name()));
                    continue;
                }
                let is_here = path.canonicalize().is_ok_and(|own| leads_to.parent() == Some(&own));
                is_alias = is_here && leads_to.extension() == entry.path().extension();
            }
            let (name, known) = (entry.file_name(), OnceCell::new());
            entries.insert(shown(&name), Entry { is_folder: kind.is_dir(), is_alias, name, known });
        }
        Ok(Folder { path: path.to_owned(), entries, links, budget })
    }

    /// A folder in this one; None if there is none, or it cannot be read.
    pub(crate) fn sub(&self, name: &str) -> Option<Folder<'b>> {
        self.entries.get(name).filter(|entry| entry.is_folder)?;
        self.try_sub(name).ok()
    }

    pub(crate) fn try_sub(&self, name: &str) -> io::Result<Folder<'b>> {
        Folder::read(&self.path_of(name), self.budget)
    }

    /// Keeps in mind that folders in this one were not read.
    pub(crate) fn leave_unread(&self) {
        self.budget.unread.borrow_mut().insert(self.path.clone());
    }

    /// The path of an entry, by its true name.
    pub(crate) fn path_of(&self, name: &str) -> PathBuf {
        self.entries
            .get(name)
            .map_or_else(|| self.path.join(name), |entry| self.path.join(&entry.name))
    }

    /// Bytes and last write of an entry; none of one that has vanished.
    pub(crate) fn stat(&self, entry: &Entry) -> (u64, SystemTime) {
        *entry.known.get_or_init(|| {
            let Ok(metadata) = self.path.join(&entry.name).metadata() else {
                return (0, SystemTime::UNIX_EPOCH);
            };
            (metadata.len(), metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH))
        })
    }

    /// The last write of the entry of this name; None: there is none.
    pub(crate) fn written(&self, name: &str) -> Option<SystemTime> {
        Some(self.stat(self.entries.get(name)?).1)
    }

    /// The last change of the folder itself.
    pub(crate) fn modified(&self) -> SystemTime {
        let modified = self.path.metadata().and_then(|metadata| metadata.modified());
        modified.unwrap_or(SystemTime::UNIX_EPOCH)
    }

    /// The bytes of a file; None if there is none.
    pub(crate) fn bytes(&self, name: &str) -> Option<u64> {
        self.entries.get(name).map(|entry| self.stat(entry).0)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    /// The names of files, or folders, for which `is_meant` holds.
    pub(crate) fn names(&self, folders: bool, is_meant: impl Fn(&str) -> bool) -> Vec<String> {
        let meant =
            |(name, entry): &(&String, &Entry)| entry.is_folder == folders && is_meant(name);
        self.entries.iter().filter(meant).map(|(name, _)| name.clone()).collect()
    }

    /// The numbers in the names of files, such as the ranks of `rng_state_3.pth`.
    pub(crate) fn numbers(&self, before: &str, after: &str) -> Vec<u32> {
        let number =
            |name: &String| name.strip_prefix(before)?.strip_suffix(after)?.parse::<u32>().ok();
        let mut numbers: Vec<u32> = self.entries.keys().filter_map(number).collect();
        numbers.sort_unstable();
        numbers
    }

    /// The whole content of a small file.
    pub(crate) fn content(&self, name: &str) -> Result<Vec<u8>, Lack> {
        if !self.has(name) {
            return Err(Lack::Missing(name.to_owned()));
        }
        // A part of it would look cut off.
        if let Some(has) = self.bytes(name).filter(|has| *has > INDEX) {
            return Err(Lack::Large { file: name.to_owned(), has, most: INDEX });
        }
        let bytes =
            regular_file::read(&self.path_of(name), INDEX).map_err(|error| unread(name, &error))?;
        if bytes.is_empty() {
            return Err(Lack::Empty(name.to_owned()));
        }
        match bytes.iter().all(|byte| *byte == 0) {
            true => Err(Lack::Zeros(name.to_owned())),
            false => Ok(bytes),
        }
    }

    /// The content as JSON.
    pub(crate) fn json(&self, name: &str) -> Result<serde_json::Value, Lack> {
        of_json(name, &self.content(name)?)
    }

    pub(crate) fn open(&self, name: &str) -> Result<Parts, Lack> {
        if !self.has(name) {
            return Err(Lack::Missing(name.to_owned()));
        }
        Parts::open(&self.path_of(name), name)
    }
}

/// What is meant of a JSON text.
pub(crate) fn of_json<'t, T: Deserialize<'t>>(name: &str, text: &'t [u8]) -> Result<T, Lack> {
    serde_json::from_slice(text).map_err(|error| match error.is_eof() {
        true => Lack::Cut(name.to_owned()),
        false => Lack::Damaged(name.to_owned()),
    })
}

/// A file that is removed meanwhile is missing.
pub(crate) fn unread(name: &str, error: &io::Error) -> Lack {
    if error.kind() == io::ErrorKind::NotFound {
        return Lack::Missing(name.to_owned());
    }
    Lack::Unread { file: name.to_owned(), error: error.to_string() }
}

/// A large file of which some parts are read.
#[derive(Debug)]
pub(crate) struct Parts {
    file: File,
    name: String,
    pub(crate) bytes: u64,
}

impl Parts {
    fn open(path: &Path, name: &str) -> Result<Parts, Lack> {
        let (file, bytes) = regular_file::open(path).map_err(|error| unread(name, &error))?;
        if bytes == 0 {
            return Err(Lack::Empty(name.to_owned()));
        }
        Ok(Parts { file, name: name.to_owned(), bytes })
    }

    /// `count` bytes from `at`; cut off if the file ends before.
    pub(crate) fn at(&mut self, at: u64, count: usize) -> Result<Vec<u8>, Lack> {
        let mut bytes = vec![0; count];
        let read =
            self.file.seek(SeekFrom::Start(at)).and_then(|_| self.file.read_exact(&mut bytes));
        match read {
            Ok(()) => Ok(bytes),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Err(Lack::Cut(self.name.clone()))
            }
            Err(error) => Err(unread(&self.name, &error)),
        }
    }

    /// Whether the file ends with a hole: its size was set before its content was written.
    pub(crate) fn ends_with_hole(&self) -> bool {
        let last = self.bytes.saturating_sub(1);
        self.bytes > 0 && regular_file::data_from(&self.file, last).is_none()
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}
