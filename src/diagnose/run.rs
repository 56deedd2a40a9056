//! The evidence of one run, and the part of it that the program survived.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

use super::catalogue::Catalogue;
use super::evidence::{Evidence, Fate, Place};
use super::prefixes::{Level, Time};
use super::rows::{Role, Row, RowIndex};
use super::versions::Versions;
use text::order::Ordered;
use text::rank::GlobalRank;

/// Maximum number of pieces of evidence that are kept of one run. A row without evidence may add
/// one more.
const MOST_EVIDENCE: usize = 2048;
/// Like [`MOST_EVIDENCE`], if many logs are read together.
const MOST_EVIDENCE_OF_MANY: usize = 64;
/// Number of first logs that may keep the larger number.
const FEW_LOGS: usize = 8;
/// Maximum number of writers of a log that are told apart.
pub(super) const MOST_WRITERS: usize = 4096;
/// Progress between two lines of the same row after which the earlier problem counts as past.
const SURVIVED_BETWEEN: u64 = 40;
/// Progress after which a line that does not end its process counts as survived.
const WENT_ON: u64 = 3;
/// Like [`WENT_ON`], if something failed later, or if the line is the end of a process in most
/// logs: text from the buffer of its standard output comes below the line.
const WENT_ON_FOR_LONG: u64 = 200;
/// Lines of any kind after an exception that count as much as progress.
const FOLLOWED_BY: u64 = 1000;
/// Like [`FOLLOWED_BY`], after a line that belongs to no exception.
const TALKED_ON: u64 = 100;
/// Maximum number of lines of any kind after the evidence with which a log ends.
const ENDS_WITHIN: u64 = 20;

/// A key of evidence within its run.
pub(super) type Key = u64;

/// One run of a log that is being read. A run begins at the start of its launcher.
#[derive(Debug, Default, Clone)]
pub(super) struct Run {
    most: usize,
    /// Sorted, so that evidence from one line is always judged in the same order.
    known: BTreeMap<Key, Evidence>,
    of_row: HashMap<RowIndex, Vec<Key>>,
    /// Evidence that no dated line has followed yet.
    open: Vec<Key>,
    /// Lines of progress since the first evidence.
    pub(super) progress: u64,
    /// Lines of progress of each writer.
    progress_of: HashMap<u64, u64>,
    /// Number of the last line that says that the run is done, counted by [`Run::close`]'s `seen`.
    pub(super) done: Option<u64>,
    /// The rank that the launcher names as the first that failed.
    pub(super) blamed: Option<GlobalRank>,
    /// The first rank that a consequence names as the one that failed before.
    pub(super) named: Option<GlobalRank>,
    /// The first line in which a launcher says that its job has failed.
    pub(super) ended: Option<Place>,
    pub(super) versions: Versions,
}

/// A run that was read to its end.
#[derive(Debug)]
pub(super) struct Ended {
    /// In the order of the log.
    pub(super) evidence: Vec<Evidence>,
    pub(super) blamed: Option<GlobalRank>,
    /// The first rank that a consequence names as the one that failed before.
    pub(super) named: Option<GlobalRank>,
    /// The first line in which a launcher says that its job has failed.
    pub(super) ended: Option<Place>,
    /// The run may be an attempt before the last one.
    pub(super) doubtful: bool,
    /// A line says that the run is done.
    pub(super) done: bool,
    pub(super) versions: Versions,
}

impl Run {
    /// `log`: the number of the log that is read.
    pub(super) fn new(log: usize) -> Run {
        let most = if log < FEW_LOGS { MOST_EVIDENCE } else { MOST_EVIDENCE_OF_MANY };
        Run { most, ..Run::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Takes a piece of evidence; gives its key, unless there is no room.
    pub(super) fn add(&mut self, key: Key, new: Evidence) -> Option<Key> {
        let dated = new.until.is_some();
        let new =
            Evidence { progress: self.progress, own_progress: self.progress_of(new.writer), ..new };
        if let Some(known) = self.known.get_mut(&key) {
            let survived = known.progress + SURVIVED_BETWEEN <= new.progress;
            known.count += 1;
            if survived
                || (new.uncaught && !known.uncaught)
                || (new.stated && !known.stated)
                || new.level > known.level
            {
                let count = known.count;
                *known = if survived {
                    Evidence { count, ..new }
                } else {
                    // The first line is shown; the later lines say more about the end.
                    let first = known.first;
                    let (text, captures) =
                        (std::mem::take(&mut known.text), std::mem::take(&mut known.captures));
                    let frame = new.frame.or_else(|| known.frame.take());
                    let package = new.package.filter(|_| frame.is_none());
                    Evidence { count, first, text, captures, frame, package, ..new }
                };
                if !dated {
                    self.open.push(key);
                }
            } else {
                if known.package.is_some() && new.frame.is_some() {
                    (known.frame, known.package) = (new.frame, None);
                }
                known.last_seen = new.last_seen;
                known.progress = new.progress;
                (known.writer, known.own_progress) = (new.writer, new.own_progress);
            }
            return Some(key);
        }
        let of_row = self.of_row.entry(new.row).or_default();
        if self.known.len() >= self.most && !of_row.is_empty() {
            return None;
        }
        of_row.push(key);
        self.known.insert(key, new);
        if !dated {
            self.open.push(key);
        }
        Some(key)
    }

    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut Evidence> {
        self.known.get_mut(&key)
    }

    /// Removes the evidence of a row for that object: the problem is over.
    pub(super) fn clear(&mut self, row: RowIndex, object: Option<&str>) {
        let Some(keys) = self.of_row.get_mut(&row) else { return };
        let known = &mut self.known;
        keys.retain(|key| {
            let over = known.get(key).is_none_or(|one| one.object.as_deref() == object);
            if over {
                known.remove(key);
            }
            !over
        });
        if keys.is_empty() {
            self.of_row.remove(&row);
        }
    }

    /// Whether a dated line would add information.
    pub(super) fn has_undated(&self) -> bool {
        !self.open.is_empty()
    }

    /// All evidence so far was written before this time.
    pub(super) fn date(&mut self, time: Time) {
        for key in self.open.drain(..) {
            if let Some(one) = self.known.get_mut(&key) {
                one.until = one.until.or(Some(time));
            }
        }
    }

    /// Counts one line that a program prints while it works.
    pub(super) fn went_on(&mut self, writer: u64) {
        self.progress += 1;
        if self.progress_of.len() < MOST_WRITERS || self.progress_of.contains_key(&writer) {
            *self.progress_of.entry(writer).or_default() += 1;
        }
    }

    fn progress_of(&self, writer: u64) -> u64 {
        self.progress_of.get(&writer).copied().unwrap_or_default()
    }

    /// Whether any evidence shows that the run failed.
    pub(super) fn failed(&self, catalogue: &Catalogue, seen: u64) -> bool {
        self.fates(catalogue, seen).iter().any(|(_, fate)| fate.failure)
    }

    /// Whether the run holds a possible cause.
    pub(super) fn has_root(&self, catalogue: &Catalogue, seen: u64) -> bool {
        self.fates(catalogue, seen).iter().any(|(key, fate)| {
            let row = self.known.get(key).and_then(|one| catalogue.row(one.row));
            !fate.survived && row.is_some_and(|row| row.role == Role::Root)
        })
    }

    /// Goes from the last line up, since only a failure that was not survived counts.
    fn fates(&self, catalogue: &Catalogue, seen: u64) -> Vec<(Key, Fate)> {
        let mut all: Vec<(&Key, &Evidence)> = self.known.iter().collect();
        all.order_by_key(|(_, one)| Reverse(one.last_seen));
        let mut fates = Vec::with_capacity(all.len());
        // The progress before the next failure below, and before failures in the same line.
        let (mut next, mut here) = (None, None);
        let mut line = None;
        for (key, one) in all {
            if line.replace(one.last_seen) != Some(one.last_seen) {
                next = here.take().or(next);
            }
            let Some(row) = catalogue.row(one.row) else { continue };
            let fate = self.fate(row, one, next, seen);
            if fate.failure {
                here = Some(one.progress);
            }
            fates.push((*key, fate));
        }
        fates
    }

    fn fate(&self, row: &Row, one: &Evidence, next: Option<u64>, seen: u64) -> Fate {
        let record = row.stream.is_record();
        let went_on = next.unwrap_or(self.progress).saturating_sub(one.progress);
        let own = self.progress_of(one.writer).saturating_sub(one.own_progress);
        let done = next.is_none() && self.done.is_some_and(|done| done > one.last_seen);
        let ends = match row.role {
            Role::Cascade => true,
            Role::Root => one.uncaught || record,
            Role::Confirmation | Role::Context => false,
        };
        let survived = if record {
            false
        } else if one.uncaught {
            // A process that ended prints nothing more, whatever failed after it.
            done || own >= WENT_ON_FOR_LONG
        } else if ends {
            done || went_on >= WENT_ON_FOR_LONG
        } else if next.is_some() {
            went_on >= WENT_ON_FOR_LONG
        } else {
            let lines = seen.saturating_sub(one.last_seen);
            done || went_on >= WENT_ON || lines >= if one.raised { FOLLOWED_BY } else { TALKED_ON }
        };
        let last_word = record || own < WENT_ON || went_on < WENT_ON;
        let after = seen.saturating_sub(one.last_seen);
        let quiet = !done && self.progress == one.progress && after <= ENDS_WITHIN;
        // A warning means that the program goes on, unless the log holds nothing else.
        let at_end = quiet && (one.level != Level::Warning || seen <= ENDS_WITHIN);
        Fate { survived, failure: ends && !survived, last_word, at_end }
    }

    /// `seen`: number of lines of the log up to here.
    pub(super) fn close(mut self, catalogue: &Catalogue, seen: u64) -> Ended {
        let fates = self.fates(catalogue, seen);
        let known = &mut self.known;
        let with_fate = |(key, fate): (Key, Fate)| Some(Evidence { fate, ..known.remove(&key)? });
        let mut evidence: Vec<Evidence> = fates.into_iter().filter_map(with_fate).collect();
        evidence.order_by_key(|one| (one.first, one.row, one.rank));
        let done = self.done.is_some();
        let Run { blamed, named, ended, versions, .. } = self;
        Ended { evidence, blamed, named, ended, doubtful: false, done, versions }
    }
}

/// Lines with the same key are one piece of evidence.
pub(super) fn key(row: RowIndex, rank: Option<GlobalRank>, words: &str) -> Key {
    hash(&(row, rank, words))
}

pub(super) fn hash(of: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}
