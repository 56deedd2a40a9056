//! The runs of a log folder: the existing runs, the live ones, and the ones to keep.
//!
//! A live launcher holds a lock on the file `running` in its folder and removes the file at its end. The lock may be
//! missing because the launcher was killed or the file system keeps no locks between hosts. Then a run counts as live
//! as long as its journal grows, which a live launcher extends each 30 s. So a live run is never removed, and a run
//! that was cut off counts as ended after [`STILL`].

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{FlockOperation, flock};

use super::file_names::{JOURNAL, LATEST, LauncherFolder, RUN_JSON};
use super::folder::{FolderLevel, LogFolder};
use super::pages::attempts;
use linux::deadline::with_deadline;
use linux::regular_file;
use settings::LogKeep;
use text::order::Ordered;

/// The mark of a live launcher, in its folder.
const RUNNING: &str = "running";
/// Time without growth after which a journal belongs to a launcher that was killed.
const STILL: Duration = Duration::from_secs(15 * 60);
/// Maximum number of runs of a folder that are examined.
const MOST_RUNS: usize = 100_000;

/// The mark of this launcher.
#[derive(Debug)]
pub struct RunMark {
    /// Holds the lock.
    _file: File,
    path: PathBuf,
}

impl RunMark {
    /// Marks the run as live. None if the file cannot be written.
    pub fn set(folder: &LogFolder) -> Option<RunMark> {
        let mut file = folder.append(FolderLevel::Node, RUNNING).ok()?;
        let _ = flock(&file, FlockOperation::NonBlockingLockExclusive);
        let _ = writeln!(file, "{}", std::process::id());
        Some(RunMark { _file: file, path: folder.node_path().join(RUNNING) })
    }

    /// Removes the mark, since the run has ended.
    pub fn remove(self, timeout: Duration) {
        let _ = with_deadline(timeout, move || std::fs::remove_file(&self.path));
    }
}

/// A run, as its folder shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunFolder {
    pub path: PathBuf,
    pub id: String,
    /// The folders of the launchers, in the order of their numbers.
    pub launchers: Vec<PathBuf>,
    /// Time of the last write by a launcher.
    pub written: Option<SystemTime>,
}

impl RunFolder {
    /// Reads a run from its folder. None if the folder is not that of a run.
    pub fn read(path: &Path) -> Option<RunFolder> {
        let mut launchers: Vec<(u32, Option<u32>, PathBuf)> = path
            .read_dir()
            .ok()?
            .filter_map(|entry| {
                let entry =
                    entry.ok().filter(|it| it.file_type().is_ok_and(|kind| kind.is_dir()))?;
                let name = LauncherFolder::parse(entry.file_name().to_str()?)?;
                Some((name.node_rank, name.task.map(|task| task.0), entry.path()))
            })
            .collect();
        launchers.sort();
        let launchers: Vec<PathBuf> = launchers.into_iter().map(|(_, _, path)| path).collect();
        let written = launchers.iter().filter_map(|launcher| written(launcher)).max();
        let id = path.file_name()?.to_string_lossy().into_owned();
        (!launchers.is_empty()).then(|| RunFolder { path: path.to_owned(), id, launchers, written })
    }

    /// Whether a launcher of the run may still write.
    pub fn lives(&self) -> bool {
        self.launchers.iter().any(|launcher| lives(launcher))
    }

    /// Total bytes of the run's files.
    pub fn bytes(&self) -> u64 {
        size_of(&self.path, 6)
    }
}

/// Time at which a launcher last wrote its journal or its record; without both, the time of its folder.
fn written(launcher: &Path) -> Option<SystemTime> {
    let time = |path: PathBuf| path.metadata().ok()?.modified().ok();
    let of_files = [JOURNAL, RUN_JSON].into_iter().filter_map(|name| time(launcher.join(name)));
    of_files.max().or_else(|| time(launcher.to_owned()))
}

/// Whether a launcher holds its mark, as far as this host sees its lock. None if it has no mark.
pub fn holds_mark(launcher: &Path) -> Option<bool> {
    let mark = regular_file::open_to_lock(&launcher.join(RUNNING)).ok()?;
    Some(flock(&mark, FlockOperation::NonBlockingLockExclusive).is_err())
}

fn lives(launcher: &Path) -> bool {
    let grows = || {
        let written = written(launcher);
        // A time in the future comes from a server whose clock is ahead.
        written.is_some_and(|at| at.elapsed().map_or(true, |since| since < STILL))
    };
    match regular_file::open_to_lock(&launcher.join(RUNNING)) {
        Ok(mark) => flock(&mark, FlockOperation::NonBlockingLockExclusive).is_err() || grows(),
        // The file is not a mark: somebody put something else in its place.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => grows(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // The launcher ended, or its version sets no mark.
            !launcher.join(RUN_JSON).exists() && grows()
        }
        Err(_) => true,
    }
}

fn size_of(folder: &Path, deeper: u32) -> u64 {
    let Ok(entries) = folder.read_dir() else { return 0 };
    let sizes = entries.flatten().map(|entry| match entry.file_type() {
        Ok(kind) if kind.is_dir() && deeper > 0 => size_of(&entry.path(), deeper - 1),
        Ok(kind) if kind.is_file() => entry.metadata().map_or(0, |metadata| metadata.len()),
        _ => 0,
    });
    sizes.fold(0, u64::saturating_add)
}

/// The runs in a log folder, the newest first.
///
/// # Errors
/// If the folder cannot be read.
pub fn runs(base: &Path) -> io::Result<Vec<RunFolder>> {
    let mut runs: Vec<RunFolder> = base
        .read_dir()?
        .take(MOST_RUNS)
        .filter_map(|entry| {
            let entry = entry.ok()?;
            // `latest` is a link.
            let is_run = entry.file_type().is_ok_and(|kind| kind.is_dir());
            is_run.then(|| RunFolder::read(&entry.path())).flatten()
        })
        .collect();
    runs.order_by(|one, other| other.written.cmp(&one.written).then(one.id.cmp(&other.id)));
    Ok(runs)
}

/// The run that `latest` points at.
pub fn latest(base: &Path) -> Option<RunFolder> {
    let linked = base.join(LATEST).canonicalize().ok()?;
    RunFolder::read(&linked)
}

/// The result of a removal in a log folder.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Removed {
    pub runs: usize,
    pub bytes: u64,
    /// Runs that could not be removed as a whole, each with its path and the reason.
    pub failed: Option<(PathBuf, String)>,
}

/// Removes the runs that `keep` does not cover: the oldest first, never a live run, and nothing but folders of runs.
/// `own`: the folder of the run that begins, which counts as one.
pub fn keep_within(base: &Path, own: &Path, keep: LogKeep) -> io::Result<Removed> {
    let mut removed = Removed::default();
    if keep == LogKeep::default() {
        return Ok(removed);
    }
    let runs = runs(base)?;
    let others: Vec<&RunFolder> = runs.iter().filter(|run| run.path != own).collect();
    let weigh = |run: &&RunFolder| {
        let age = run.written.and_then(|at| at.elapsed().ok()).unwrap_or_default();
        (age, if keep.bytes.is_some() { run.bytes() } else { 0 })
    };
    let weighed: Vec<(Duration, u64)> = others.iter().map(weigh).collect();
    for surplus in surplus(&weighed, keep).into_iter().rev() {
        let Some(run) = others.get(surplus).filter(|run| !run.lives() && is_ours(run)) else {
            continue;
        };
        let bytes = run.bytes();
        match std::fs::remove_dir_all(&run.path) {
            Ok(()) => (removed.runs, removed.bytes) = (removed.runs + 1, removed.bytes + bytes),
            // Another node of the job is removing the same run.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => removed.failed = Some((run.path.clone(), error.to_string())),
        }
    }
    Ok(removed)
}

/// Whether a folder is a run of this program. A foreign folder may contain a folder `node-0` as well.
fn is_ours(run: &RunFolder) -> bool {
    run.launchers.iter().any(|launcher| {
        let has = |name: &str| launcher.join(name).is_file();
        let has_attempts = || attempts(launcher).is_ok_and(|attempts| !attempts.is_empty());
        (has(JOURNAL) || has(RUN_JSON)) && has_attempts()
    })
}

/// Indices of the runs that are too many, too old or too large. `runs`: age and bytes, the newest first. The run that
/// begins is counted as well, without bytes.
fn surplus(runs: &[(Duration, u64)], keep: LogKeep) -> Vec<usize> {
    let mut total = 0_u64;
    let mut surplus = Vec::new();
    for (number, (age, bytes)) in runs.iter().enumerate() {
        let is_many = keep.runs.is_some_and(|most| number + 1 >= most as usize);
        let is_old = keep.age.is_some_and(|most| *age > most);
        let is_large = keep.bytes.is_some_and(|most| total.saturating_add(*bytes) > most);
        if is_many || is_old || is_large {
            surplus.push(number);
        } else {
            total = total.saturating_add(*bytes);
        }
    }
    surplus
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(base: &Path, id: &str, mark: bool) -> PathBuf {
        let launcher = base.join(id).join("node-0");
        std::fs::create_dir_all(launcher.join("attempt-0")).expect("made");
        std::fs::write(launcher.join(JOURNAL), "x").expect("written");
        std::fs::write(launcher.join(RUN_JSON), "x").expect("written");
        if mark {
            std::fs::write(launcher.join(RUNNING), "7\n").expect("written");
        }
        base.join(id)
    }

    fn aged(run: &Path, age: Duration) {
        let at = SystemTime::now() - age;
        for name in [JOURNAL, RUN_JSON] {
            let file = File::options().append(true).open(run.join("node-0").join(name));
            file.and_then(|file| file.set_modified(at)).expect("set");
        }
    }

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn surplus_runs_are_the_oldest() {
        let runs: Vec<(Duration, u64)> = (1..=4).map(|age| (age * HOUR, 10)).collect();
        let keep = |runs, age: Option<u32>, bytes| LogKeep {
            runs,
            age: age.map(|hours| hours * HOUR),
            bytes,
        };
        for (keep, expected) in [
            (keep(Some(3), None, None), vec![2, 3]),
            (keep(Some(1), None, None), vec![0, 1, 2, 3]),
            (keep(None, Some(2), None), vec![2, 3]),
            (keep(None, None, Some(25)), vec![2, 3]),
            (keep(Some(9), Some(9), Some(99)), vec![]),
            (keep(Some(2), Some(3), Some(35)), vec![1, 2, 3]),
        ] {
            assert_eq!(surplus(&runs, keep), expected, "{keep:?}");
        }
    }

    #[test]
    fn live_runs_and_foreign_folders_are_kept() {
        let base = tempfile::tempdir().expect("a folder");
        let base = base.path();
        let own = run(base, "own", true);
        let ended = run(base, "ended", false);
        let grows = run(base, "marked-and-grows", true);
        let cut_off = run(base, "cut-off", true);
        let locked = run(base, "locked", true);
        for old in [&ended, &cut_off, &locked] {
            aged(old, 2 * HOUR);
        }
        let foreign = base.join("foreign/node-0/data");
        std::fs::create_dir_all(&foreign).expect("made");
        let elsewhere = tempfile::tempdir().expect("a folder");
        std::fs::write(elsewhere.path().join("precious"), "x").expect("written");
        std::os::unix::fs::symlink(elsewhere.path(), ended.join("link")).expect("a link");

        let lock = File::options().append(true).open(locked.join("node-0").join(RUNNING));
        let lock = lock.expect("opened");
        flock(&lock, FlockOperation::LockExclusive).expect("locked");
        let keep = LogKeep { runs: Some(1), ..LogKeep::default() };
        let removed = keep_within(base, &own, keep).expect("read");
        assert_eq!((removed.runs, removed.failed), (2, None));
        for (path, is_there) in [
            (&own, true),
            (&ended, false),
            (&grows, true),
            (&cut_off, false),
            (&locked, true),
            (&foreign, true),
        ] {
            assert_eq!(path.exists(), is_there, "{}", path.display());
        }
        assert!(elsewhere.path().join("precious").exists(), "a link is not followed");
        drop(lock);
        aged(&grows, HOUR);
        let removed = keep_within(base, &own, keep).expect("read");
        assert_eq!(removed.runs, 2, "nobody holds them any more");
    }

    #[test]
    fn everything_is_kept_unless_asked() {
        let base = tempfile::tempdir().expect("a folder");
        let old = run(base.path(), "old", false);
        aged(&old, 100 * HOUR);
        let removed = keep_within(base.path(), Path::new("/own"), LogKeep::default());
        assert_eq!(removed.ok(), Some(Removed::default()));
        assert!(old.exists());
    }
}
