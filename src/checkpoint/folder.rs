//! One folder and its entries, and the reading of its files within bounds.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::lack::Lack;
use linux::regular_file;

/// Maximum bytes of an index or a metadata file that is read whole.
pub(crate) const INDEX: u64 = 256 << 20;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) is_folder: bool,
    pub(crate) bytes: u64,
    pub(crate) modified: SystemTime,
}

/// The number of entries that may still be read of all folders together.
#[derive(Debug)]
pub(crate) struct Budget(pub(crate) Cell<usize>);

impl Budget {
    fn take(&self) -> bool {
        let left = self.0.get();
        self.0.set(left.saturating_sub(1));
        left > 0
    }
}

/// A folder with all its entries. Names that are no UTF-8 are replaced where they are shown.
#[derive(Debug)]
pub(crate) struct Folder<'b> {
    pub(crate) path: PathBuf,
    pub(crate) entries: BTreeMap<String, Entry>,
    budget: &'b Budget,
}

impl<'b> Folder<'b> {
    pub(crate) fn read(path: &Path, budget: &'b Budget) -> io::Result<Folder<'b>> {
        let mut entries = BTreeMap::new();
        for entry in path.read_dir()? {
            if !budget.take() {
                break;
            }
            let entry = entry?;
            // A file that its writer removes meanwhile.
            let Ok(kind) = entry.file_type() else { continue };
            // Links to files count, links to folders could lead anywhere.
            let Ok(metadata) = entry.path().metadata() else { continue };
            if kind.is_symlink() && metadata.is_dir() {
                continue;
            }
            let modified = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            let of = Entry { is_folder: metadata.is_dir(), bytes: metadata.len(), modified };
            entries.insert(entry.file_name().to_string_lossy().into_owned(), of);
        }
        Ok(Folder { path: path.to_owned(), entries, budget })
    }

    /// A folder in this one; None if there is none, or it cannot be read.
    pub(crate) fn sub(&self, name: &str) -> Option<Folder<'b>> {
        self.entries.get(name).filter(|entry| entry.is_folder)?;
        Folder::read(&self.path.join(name), self.budget).ok()
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
        let Some(entry) = self.entries.get(name) else {
            return Err(Lack::Missing(name.to_owned()));
        };
        if entry.bytes == 0 {
            return Err(Lack::Empty(name.to_owned()));
        }
        let bytes = regular_file::read(&self.path.join(name), INDEX)
            .map_err(|error| unread(name, &error))?;
        match bytes.iter().all(|byte| *byte == 0) {
            true => Err(Lack::Zeros(name.to_owned())),
            false => Ok(bytes),
        }
    }

    /// The content as JSON.
    pub(crate) fn json(&self, name: &str) -> Result<serde_json::Value, Lack> {
        serde_json::from_slice(&self.content(name)?).map_err(|error| match error.is_eof() {
            true => Lack::Cut(name.to_owned()),
            false => Lack::Damaged(name.to_owned()),
        })
    }

    pub(crate) fn open(&self, name: &str) -> Result<Parts, Lack> {
        let Some(entry) = self.entries.get(name) else {
            return Err(Lack::Missing(name.to_owned()));
        };
        Parts::open(&self.path, name, entry.bytes)
    }
}

pub(crate) fn unread(name: &str, error: &io::Error) -> Lack {
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
    fn open(folder: &Path, name: &str, bytes: u64) -> Result<Parts, Lack> {
        if bytes == 0 {
            return Err(Lack::Empty(name.to_owned()));
        }
        let (file, bytes) =
            regular_file::open(&folder.join(name)).map_err(|error| unread(name, &error))?;
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

    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}
