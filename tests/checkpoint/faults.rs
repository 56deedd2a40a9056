//! One writer in an empty folder, and what ends it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use harness::chance::Chance;
use harness::report::checkpoints;
use harness::skipped;
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::judge::bytes;
use crate::servers::Server;

/// Time limit for the first file of a writer, which comes after its imports, and for the first three checkpoints.
const FIRST: Duration = Duration::from_secs(400);
/// Shortest time without a change after which a writer counts as ended or as waiting.
const STILL: Duration = Duration::from_millis(300);

/// How a writer ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// All its processes at once.
    Killed,
    DiskFull,
    /// One of its ranks, as if its node were gone; the others go on until nothing changes.
    Lost,
}

/// The processes of a writer that has begun its first file.
struct Writing {
    /// One process group of each rank.
    ranks: Vec<Pid>,
}

impl Writing {
    fn begin(writer: &mut Server, format: &str, folder: &Path) -> Writing {
        let ranks = writer.ask(&json!({ "format": format, "write": folder }));
        let pid = |rank: &Value| i32::try_from(rank.as_i64()?).ok().map(Pid::from_raw);
        let ranks = ranks.as_array().and_then(|ranks| ranks.iter().map(pid).collect());
        let writing = Writing { ranks: ranks.expect("the process groups of its ranks") };
        let begun = Instant::now();
        while bytes(folder) == 0 && !writing.is_over() {
            assert!(begun.elapsed() < FIRST, "{} stays empty", folder.display());
            std::thread::sleep(Duration::from_millis(2));
        }
        writing
    }

    fn is_over(&self) -> bool {
        self.ranks.iter().all(|rank| killpg(*rank, None) == Err(Errno::ESRCH))
    }

    /// Waits until its files have not changed for so long.
    fn rest(&self, folder: &Path, still: Duration) {
        let begun = Instant::now();
        let mut last = (begun, 0);
        while last.0.elapsed() < still && begun.elapsed() < FIRST && !self.is_over() {
            let now = bytes(folder);
            last = if now == last.1 { last } else { (Instant::now(), now) };
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn end(self, writer: &mut Server) {
        for rank in self.ranks {
            let _ = killpg(rank, Signal::SIGKILL);
        }
        writer.ask(&json!({ "reap": true }));
    }
}

/// The time from the first file of a writer to its third checkpoint, and a quarter more: a moment in it lies as often in
/// the first write, before which there is nothing whole, as in each of the next two.
pub(crate) fn window(writer: &mut Server, format: &str, folder: &Path) -> Duration {
    let writing = Writing::begin(writer, format, folder);
    let begun = Instant::now();
    let count =
        |seen: &Value| seen.get("checkpoints").and_then(Value::as_array).map_or(0, Vec::len);
    while count(&checkpoints(folder)) < 3 {
        assert!(begun.elapsed() < FIRST && !writing.is_over(), "{format} writes no third one");
        std::thread::sleep(Duration::from_millis(5));
    }
    let took = begun.elapsed();
    writing.end(writer);
    took * 5 / 4
}

/// One writer in an empty folder, up to its end at a moment within `window`.
pub(crate) fn write(
    writer: &mut Server,
    format: &str,
    folder: &Path,
    (fault, window): (Fault, Duration),
    chance: &mut Chance,
) {
    let writing = Writing::begin(writer, format, folder);
    let window_us = u64::try_from(window.as_micros()).expect("it is short").max(1);
    let moment = Duration::from_micros(chance.below(window_us));
    let still = STILL.max(window / 4);
    match fault {
        Fault::Killed => std::thread::sleep(moment),
        // It fails by itself, or each further checkpoint does.
        Fault::DiskFull => writing.rest(folder, still),
        Fault::Lost => {
            std::thread::sleep(moment);
            let lost = chance.of(&writing.ranks);
            let _ = killpg(lost, Signal::SIGKILL);
            writing.rest(folder, still);
        }
    }
    writing.end(writer);
}

/// A small file system in memory; unmounted when dropped.
pub(crate) struct Disk(PathBuf);

impl Disk {
    /// None: this user may mount nothing.
    pub(crate) fn new(folder: &Path, chance: &mut Chance) -> Option<Disk> {
        // Between one and four checkpoints: the writers keep three.
        let size = format!("size={}k", 10_000 + chance.below(20_000_u64));
        match mount(Some("tmpfs"), folder, Some("tmpfs"), MsFlags::empty(), Some(size.as_str())) {
            Ok(()) => Some(Disk(folder.to_owned())),
            Err(error) => {
                skipped(format!("a file system that fills cannot be mounted: {error}"));
                None
            }
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}
