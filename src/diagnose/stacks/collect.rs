//! Reads all ranks of a node side by side, within a time limit.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::process::{self, ProcessStacks};
use super::unread::Unread;
use linux::procfs::Process;
use text::rank::{GlobalRank, LocalRank};

/// A rank that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunningRank {
    pub rank: GlobalRank,
    pub local_rank: LocalRank,
    pub pid: i32,
}

/// The stacks of a rank and of the processes below it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankStacks {
    pub rank: GlobalRank,
    pub local_rank: LocalRank,
    pub process: ProcessStacks,
    /// Processes that the rank started, and their children: workers of a DataLoader, a compiler.
    pub children: Vec<ProcessStacks>,
    #[serde(default)]
    pub children_left_out: usize,
}

/// Maximum number of threads that read at the same time.
const READERS: usize = 8;
/// Like [`READERS`], including reader threads that are still blocked in the kernel from an earlier
/// request, where nothing can end them: a read waits if the process holds its own memory lock in a
/// page fault of a dead mount.
const MOST_READERS: usize = 16;
/// Maximum number of processes below one rank that are read. A DataLoader has some tens.
const MOST_CHILDREN: usize = 64;

static LIVING: AtomicUsize = AtomicUsize::new(0);

/// Counts a reader while it lives.
struct Counted;

impl Counted {
    fn new() -> Option<Counted> {
        let more = |living| (living < MOST_READERS).then_some(living + 1);
        let counted = LIVING.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        counted.ok().map(|_| Counted)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        LIVING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The stacks of these ranks. A rank that cannot be read in `time` is [`Unread::Late`].
pub fn collect(proc: &Path, ranks: &[RunningRank], time: Duration) -> Vec<RankStacks> {
    let until = Instant::now() + time;
    let all = Arc::new(Process::scan(proc));
    let queue: Arc<Mutex<VecDeque<RunningRank>>> =
        Arc::new(Mutex::new(ranks.iter().copied().collect()));
    let (tell, told) = channel();
    for _ in 0..READERS.min(ranks.len()) {
        let Some(counted) = Counted::new() else { break };
        let (queue, tell, all, proc) =
            (Arc::clone(&queue), tell.clone(), Arc::clone(&all), PathBuf::from(proc));
        let reader = std::thread::Builder::new().name("stacks-reader".into());
        let spawned = reader.stack_size(512 * 1024).spawn(move || {
            let _counted = counted;
            let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            while let Some(rank) = next() {
                let below: Vec<i32> = Process::descendants(&all, &[rank.pid])
                    .into_iter()
                    .filter(|process| !process.is_dead())
                    .map(|process| process.pid)
                    .collect();
                if tell.send(read(&proc, rank, &below, until)).is_err() {
                    return;
                }
            }
        });
        if spawned.is_err() {
            break;
        }
    }
    drop(tell);
    let mut found: Vec<RankStacks> = Vec::with_capacity(ranks.len());
    while found.len() < ranks.len()
        && let Ok(one) = told.recv_timeout(until.saturating_duration_since(Instant::now()))
    {
        found.push(one);
    }
    for rank in ranks {
        if found.iter().all(|one| one.rank != rank.rank) {
            found.push(unread(*rank, Unread::Late));
        }
    }
    found.sort_by_key(|one| one.rank);
    found
}

fn read(proc: &Path, rank: RunningRank, below: &[i32], until: Instant) -> RankStacks {
    /// Time reserved for the work after the reading.
    const REST: Duration = Duration::from_millis(500);
    let until = until - REST;
    let Some(process) = process::read(proc, rank.pid, until) else {
        return unread(rank, Unread::Gone);
    };
    let children = below.iter().take(MOST_CHILDREN);
    RankStacks {
        rank: rank.rank,
        local_rank: rank.local_rank,
        process,
        // A process that has ended meanwhile is left out.
        children: children.filter_map(|pid| process::read(proc, *pid, until)).collect(),
        children_left_out: below.len().saturating_sub(MOST_CHILDREN),
    }
}

fn unread(rank: RunningRank, why: Unread) -> RankStacks {
    RankStacks {
        rank: rank.rank,
        local_rank: rank.local_rank,
        process: ProcessStacks::unread(rank.pid, why),
        children: Vec::new(),
        children_left_out: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn non_python_and_ended_processes_give_reasons() {
        let mut sleep = std::process::Command::new("sleep").arg("60").spawn().expect("sleep");
        let mut ended = std::process::Command::new("true").spawn().expect("true");
        ended.wait().expect("ended");
        let rank = |rank, pid: u32| RunningRank {
            rank: GlobalRank(rank),
            local_rank: LocalRank(rank),
            pid: pid.cast_signed(),
        };
        let ranks = [rank(1, ended.id()), rank(0, sleep.id())];
        let found = collect(Path::new("/proc"), &ranks, Duration::from_secs(20));
        sleep.kill().expect("kill");
        sleep.wait().expect("wait");
        let unread: Vec<_> =
            found.iter().map(|one| (one.rank.0, one.process.unread.clone())).collect();
        assert_eq!(unread, [(0, Some(Unread::NotPython)), (1, Some(Unread::Gone))]);
        let kernel = found.first().and_then(|one| one.process.threads.first()?.kernel.clone());
        assert_eq!(kernel.expect("a thread").name, "sleep");
        // Readers of other tests may still run.
        let deadline = Instant::now() + Duration::from_secs(20);
        while LIVING.load(Ordering::Relaxed) > 0 {
            assert!(Instant::now() < deadline, "a reader stays");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    fn every_rank_is_late_without_time() {
        let rank = RunningRank {
            rank: GlobalRank(3),
            local_rank: LocalRank(1),
            pid: std::process::id().cast_signed(),
        };
        let found = collect(Path::new("/proc"), &[rank], Duration::ZERO);
        assert_eq!(found.first().and_then(|one| one.process.unread.clone()), Some(Unread::Late));
    }
}
