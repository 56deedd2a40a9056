//! The checkpoints of the job: what an attempt goes on from, whether attempts make progress, and what was saved at the
//! end.
//!
//! Takes the folder that the settings name; gives the newest whole checkpoint in it, as this node sees it: on storage of
//! its own a node of several has only the files of its own ranks, and one with all of these is whole. A look runs in a
//! thread of its own, since the folder may be on a mount that does not answer. The attempts that saved nothing are
//! counted in a file beside the logs, so that a job that its platform starts again goes on counting.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};

use linux::deadline::{in_thread, spawn_detached};
use linux::host::Host;
use muster::Tally;
use node::observe::{self, CheckpointFacts, SeenCheckpoint};
use report::saved::Saved;
use settings::Settings;
use text::lang::Text;
use text::text;
use verdict::Refusal;

/// Time limit of a look that something waits for.
const LOOK: Duration = Duration::from_secs(2);
/// Longest name of the record's file.
const LONGEST: usize = 200;

/// The checkpoints of this launch. Clones share the same state.
#[derive(Clone)]
pub(super) struct Saves(Arc<Shared>);

struct Shared {
    host: Arc<Host>,
    settings: Arc<Settings>,
    state: Mutex<State>,
    looked: Condvar,
}

struct State {
    /// Looks that have begun and that have ended, by their number.
    begun: u64,
    ended: u64,
    /// Newest first; an error says why the folder cannot be read.
    found: Result<Vec<SeenCheckpoint>, Text>,
    /// The ranks of this node, first and last, if other nodes have ranks too.
    own: Option<(u32, u32)>,
    /// They are those of the plan, and no attempt has begun since.
    is_fresh: bool,
    /// The newest one when the attempt began, and that time.
    at_start: Option<(Option<Mark>, SystemTime)>,
    /// The platform's id of the job.
    job: Option<String>,
    record: Option<PathBuf>,
}

/// One save of a checkpoint: programs save under one name again and again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Mark {
    digest: u64,
    /// Time of the save, nanoseconds since 1970 by the clock of its storage.
    modified_ns: u64,
}

impl From<&SeenCheckpoint> for Mark {
    fn from(seen: &SeenCheckpoint) -> Mark {
        let since = seen.modified.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let modified_ns = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
        Mark { digest: seen.digest, modified_ns }
    }
}

/// Whether `newest` was saved after `before`. One that is only left over from others that were removed was not.
fn is_newer(newest: Option<Mark>, before: Option<Mark>) -> bool {
    newest.is_some_and(|newest| before.is_none_or(|before| newest.modified_ns > before.modified_ns))
}

/// The record beside the logs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    schema: u32,
    folder: PathBuf,
    /// The newest whole checkpoint at the end of the last attempt.
    newest: Option<Mark>,
    without_progress: u32,
}

impl State {
    /// The newest whole one.
    fn newest(&self) -> Result<Option<SeenCheckpoint>, Text> {
        let found = self.found.as_ref().map_err(Text::clone)?;
        Ok(plan::newest(found, self.own).cloned())
    }
}

/// The checkpoints, newest first; an error says why the folder cannot be read.
fn found_in(facts: Option<&CheckpointFacts>) -> Result<Vec<SeenCheckpoint>, Text> {
    match facts.and_then(|facts| facts.unread.clone()) {
        Some(problem) => Err(problem),
        None => Ok(facts.map(|facts| facts.found.clone()).unwrap_or_default()),
    }
}

impl Saves {
    /// None if the settings name no folder.
    pub(super) fn new(host: &Arc<Host>, settings: &Arc<Settings>) -> Option<Saves> {
        settings.checkpoint_dir.as_ref()?;
        let (host, settings) = (Arc::clone(host), Arc::clone(settings));
        let state = State {
            begun: 0,
            ended: 0,
            found: Ok(Vec::new()),
            own: None,
            is_fresh: false,
            at_start: None,
            job: None,
            record: None,
        };
        let (state, looked) = (Mutex::new(state), Condvar::new());
        Some(Saves(Arc::new(Shared { host, settings, state, looked })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a look at the folder.
    fn look(&self) {
        let number = {
            let mut state = self.state();
            state.begun += 1;
            state.begun
        };
        let own = self.clone();
        spawn_detached(move || {
            let facts = observe::checkpoints(&own.0.host, &own.0.settings);
            let found = found_in(facts.as_ref());
            let mut state = own.state();
            if number > state.ended {
                (state.ended, state.found) = (number, found);
            }
            drop(state);
            own.0.looked.notify_all();
        });
    }

    /// The folder was read for the plan of the next attempt, which needs no look of its own.
    pub(super) fn observed(&self, facts: Option<&CheckpointFacts>) {
        let mut state = self.state();
        state.begun += 1;
        // Looks that began earlier count no more.
        (state.ended, state.found, state.is_fresh) = (state.begun, found_in(facts), true);
    }

    /// The newest whole checkpoint after all looks that have begun; an error says why it is not known.
    fn newest(&self, limit: Duration) -> Result<Option<SeenCheckpoint>, Text> {
        let (until, mut state) = (Instant::now() + limit, self.state());
        let wanted = state.begun;
        while state.ended < wanted {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(text!("its file system does not answer", "其文件系统无应答"));
            }
            state = match self.0.looked.wait_timeout(state, left) {
                Ok((state, _)) => state,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
        state.newest()
    }

    /// An attempt begins, in which this node has these ranks of several nodes. Gives the newest whole checkpoint.
    ///
    /// # Errors
    /// When the folder cannot be read: the program must not begin anew beside what it holds.
    pub(super) async fn begin(
        &self,
        ranks: Option<(u32, u32)>,
    ) -> Result<Option<SeenCheckpoint>, Refusal> {
        self.state().own = ranks;
        if !std::mem::take(&mut self.state().is_fresh) {
            self.look();
        }
        let own = self.clone();
        let newest = in_thread(move || own.newest(observe::CHECKPOINTS)).await;
        let mark = newest.as_ref().ok().map(|newest| newest.as_ref().map(Mark::from));
        self.state().at_start = mark.map(|mark| (mark, SystemTime::now()));
        newest.map_err(|problem| match &self.0.settings.checkpoint_dir {
            Some(folder) => plan::unreadable(folder, &problem),
            None => Refusal::internal(&problem.en),
        })
    }

    /// Whether a newer checkpoint was saved since the attempt began; None: not known.
    pub(super) fn have_moved(&self) -> Option<bool> {
        self.look();
        let newest = self.newest(LOOK).ok()?;
        let (at_start, _) = self.state().at_start?;
        Some(is_newer(newest.as_ref().map(Mark::from), at_start))
    }

    /// The name of the newest whole checkpoint.
    pub(super) fn newest_name(&self) -> Option<String> {
        Some(self.state().newest().ok()??.name())
    }

    /// What was saved when the ranks have ended. Blocks for `limit` at most.
    pub(super) fn saved(&self, limit: Duration, noticed: Option<SystemTime>) -> Option<Saved> {
        // The ranks save until they end.
        self.look();
        let newest = self.newest(limit).ok()?;
        let (_, began) = self.state().at_start?;
        let since = noticed.unwrap_or(began);
        Some(Saved {
            name: newest.as_ref().map(SeenCheckpoint::name),
            step: newest.as_ref().and_then(|newest| newest.step),
            age: newest.as_ref().map(|newest| newest.modified.elapsed().unwrap_or_default()),
            is_new: newest.as_ref().is_some_and(|newest| newest.modified >= since),
            after_notice: noticed.is_some(),
            lost_steps: None,
        })
    }

    /// The platform's id of the job. Without one no launch is known to be another of the same job.
    pub(super) fn of_job(&self, job: Option<&str>) {
        self.state().job = job.map(str::to_owned);
    }

    /// The attempts without progress of earlier launches of this job, whose logs are below `logs`. Blocks.
    pub(super) fn earlier(&self, logs: &Path) -> Option<u32> {
        let job = self.state().job.clone()?;
        let is_plain = |letter: &char| letter.is_ascii_alphanumeric() || "-_.".contains(*letter);
        let job: String = job.chars().filter(is_plain).take(LONGEST).collect();
        let path = logs.join(format!(".progress-{job}.json"));
        let read = linux::regular_file::read(&path, 64 << 10).ok();
        let record: Option<Record> = read.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let newest = self.newest(LOOK).ok()?.as_ref().map(Mark::from);
        self.state().record = Some(path);
        let folder = self.0.settings.checkpoint_dir.as_ref().map(|folder| &folder.value);
        let is_same = |one: &Record| Some(&one.folder) == folder && !is_newer(newest, one.newest);
        let same = record.filter(is_same);
        same.map(|record| record.without_progress)
    }

    /// Writes the record of an attempt that has ended.
    pub(super) fn record(&self, tally: Tally) {
        let (path, newest) = {
            let state = self.state();
            let newest = state.newest().ok().flatten();
            (state.record.clone(), newest.as_ref().map(Mark::from))
        };
        let folder = self.0.settings.checkpoint_dir.as_ref().map(|folder| folder.value.clone());
        let (Some(path), Some(folder)) = (path, folder) else { return };
        let without_progress = tally.without_progress;
        let record = Record { schema: 1, folder, newest, without_progress };
        // The job may be over before a mount answers, and nobody waits for the record.
        spawn_detached(move || {
            let new = path.with_extension("new");
            let bytes = serde_json::to_vec(&record).unwrap_or_default();
            if let Err(error) =
                std::fs::write(&new, bytes).and_then(|()| std::fs::rename(&new, &path))
            {
                tracing::warn!(path = %path.display(), %error, "the record of progress cannot be written");
            }
        });
    }
}
