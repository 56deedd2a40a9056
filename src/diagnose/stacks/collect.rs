//! Reads all ranks of a node side by side, within a time limit.
//!
//! Ranks with equal stacks are one group. The smallest group comes first, since an outlier is the suspect.
//!
//! Stacks also come in the form of Python's faulthandler: blocks of lines `  File "NAME", line N in FUNCTION`, the innermost frame first. There is one block for each
//! thread, the newest thread first: the last block belongs to the thread that runs the program. Nobody checks the
//! content of the file, so a line that is not understood is left out.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::memory::Unread;
use super::process::{self, ProcessStacks, ThreadStack};
use super::python::{Frame, PythonStack};
use linux::procfs::Process;
use text::order::Ordered;
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
    found.order_by_key(|one| one.rank);
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
    let RunningRank { rank, local_rank, pid } = rank;
    let process = ProcessStacks::unread(pid, why);
    RankStacks { rank, local_rank, process, children: Vec::new(), children_left_out: 0 }
}

/// Ranks whose threads are all at the same lines.
#[derive(Debug, PartialEq, Eq)]
pub struct Group<'a> {
    pub ranks: Vec<GlobalRank>,
    /// The stacks of the first rank.
    pub shown: &'a RankStacks,
}

/// Parts of a rank that have to be equal: those of its process and of its children. The kernel's state is not among
/// them: of two ranks at one line, one may just run. Children have no repetitions: the number of workers at a line does
/// not matter.
type Key<'a> = (ProcessKey<'a>, Vec<ProcessKey<'a>>);

/// The name of a process that is not Python, the reason why it was not read, its first thread, and the other threads
/// without regard to their order. Python processes may be named after their rank.
type ProcessKey<'a> =
    (Option<&'a str>, Option<&'a Unread>, Option<ThreadKey<'a>>, Vec<ThreadKey<'a>>);

type ThreadKey<'a> = (&'a [Frame], Option<&'a Unread>);

/// The groups, the smallest first. Among equally large groups, the group with the lower rank comes
/// first.
pub fn grouped(ranks: &[RankStacks]) -> Vec<Group<'_>> {
    let mut groups: BTreeMap<Key<'_>, Vec<&RankStacks>> = BTreeMap::new();
    for rank in ranks {
        groups.entry(key(rank)).or_default().push(rank);
    }
    let groups = groups.into_values().filter_map(|ranks| {
        let shown = *ranks.first()?;
        Some(Group { ranks: ranks.iter().map(|rank| rank.rank).collect(), shown })
    });
    let mut groups: Vec<Group<'_>> = groups.collect();
    groups.order_by_key(|group| (group.ranks.len(), group.shown.rank));
    groups
}

/// Whether two processes are at the same lines.
pub fn alike(one: &ProcessStacks, other: &ProcessStacks) -> bool {
    process_key(one) == process_key(other)
}

fn key(rank: &RankStacks) -> Key<'_> {
    let mut children: Vec<_> = rank.children.iter().map(process_key).collect();
    children.sort();
    children.dedup();
    (process_key(&rank.process), children)
}

fn process_key(process: &ProcessStacks) -> ProcessKey<'_> {
    let stack = |at: usize| {
        let python = process.threads.get(at)?.python.as_ref()?;
        Some((python.frames.as_slice(), python.unread.as_ref()))
    };
    let mut others: Vec<_> = (1..process.threads.len()).filter_map(stack).collect();
    others.sort();
    let name = process.python.is_none().then_some(process.name.as_str());
    (name, process.unread.as_ref(), stack(0), others)
}

/// End of the first line of each block: `Thread 0x00007f… (most recent call first):`.
const BEGINS: &str = "(most recent call first):";

impl RankStacks {
    /// Takes the stacks from the text of faulthandler. The reason why they could not be read from memory remains.
    pub fn take_traceback(&mut self, words: &str) {
        let mut blocks = blocks(words);
        let Some(first) = blocks.pop() else { return };
        let threads = &mut self.process.threads;
        match threads.first_mut() {
            Some(thread) => thread.python = Some(first),
            None => threads.push(unmatched(first)),
        }
        threads.extend(blocks.into_iter().map(unmatched));
    }
}

/// faulthandler names threads by an address that the kernel does not know.
fn unmatched(python: PythonStack) -> ThreadStack {
    ThreadStack { tid: None, kernel: None, python: Some(python) }
}

fn blocks(words: &str) -> Vec<PythonStack> {
    let mut found: Vec<PythonStack> = Vec::new();
    // `lines` would take a carriage return as part of the line end, each time that the text is read again.
    for line in words.split('\n') {
        if line.ends_with(BEGINS) && !line.starts_with(' ') {
            found.push(PythonStack::default());
        } else if let Some(block) = found.last_mut() {
            block.cut |= line == "  ...";
            block.frames.extend(frame(line));
        }
    }
    found
}

/// A line number that the interpreter does not know is `???`.
fn frame(line: &str) -> Option<Frame> {
    let (file, rest) = line.strip_prefix("  File \"")?.rsplit_once("\", line ")?;
    let (line, function) = rest.split_once(" in ")?;
    let line = line.parse().ok();
    Some(Frame {
        function: function.to_owned(),
        file: file.to_owned(),
        line,
        first_line: line.unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use text::rank::{GlobalRank, LocalRank};

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

    fn rank(number: u32, lines: &[u32]) -> RankStacks {
        let thread = |line: &u32| ThreadStack {
            tid: None,
            kernel: None,
            python: Some(PythonStack {
                interpreter: 0,
                holds_gil: None,
                frames: vec![Frame {
                    function: "f".to_owned(),
                    file: "t.py".to_owned(),
                    line: Some(*line),
                    first_line: 1,
                }],
                cut: false,
                moving: false,
                unread: None,
            }),
        };
        let threads = lines.iter().map(thread).collect();
        let process = ProcessStacks {
            python: Some("3.11.7".to_owned()),
            name: format!("rank {number}"),
            unread: None,
            threads,
            ..ProcessStacks::unread(1, Unread::Gone)
        };
        let (rank, local_rank) = (GlobalRank(number), LocalRank(number));
        RankStacks { rank, local_rank, process, children: Vec::new(), children_left_out: 0 }
    }

    #[test]
    fn smallest_group_comes_first() {
        let mut ranks: Vec<RankStacks> = (0..8).map(|number| rank(number, &[7, 8, 9])).collect();
        ranks[5] = rank(5, &[41, 8, 9]);
        // The order of threads after the first has no meaning.
        ranks[6] = rank(6, &[7, 9, 8]);
        let groups = grouped(&ranks);
        let numbers: Vec<Vec<u32>> =
            groups.iter().map(|group| group.ranks.iter().map(|rank| rank.0).collect()).collect();
        assert_eq!(numbers, [vec![5], vec![0, 1, 2, 3, 4, 6, 7]]);
        assert_eq!(groups[1].shown.rank, GlobalRank(0));
        assert!(alike(&ranks[0].process, &ranks[6].process));
        assert!(!alike(&ranks[0].process, &ranks[5].process));
        assert_eq!(grouped(&[]), []);
    }

    #[test]
    fn equal_children_count_once() {
        let (mut one, mut two) = (rank(0, &[7]), rank(1, &[7]));
        let worker = rank(9, &[3]).process;
        one.children = vec![worker.clone(); 2];
        two.children = vec![worker; 3];
        let ranks = [one, two];
        assert_eq!(grouped(&ranks).len(), 1);
        let unread =
            RankStacks { process: ProcessStacks::unread(4, Unread::Late), ..ranks[0].clone() };
        assert_eq!(grouped(&[ranks[0].clone(), unread]).len(), 2);
    }

    fn stacks() -> RankStacks {
        RankStacks {
            rank: GlobalRank(0),
            local_rank: LocalRank(0),
            process: ProcessStacks::unread(7, Unread::Denied { errno: 13 }),
            children: Vec::new(),
            children_left_out: 0,
        }
    }

    fn lines(stacks: &RankStacks) -> Vec<Vec<String>> {
        let shown = |frame: &Frame| format!("{}:{:?} {}", frame.file, frame.line, frame.function);
        let python = |thread: &ThreadStack| {
            thread.python.iter().flat_map(|python| &python.frames).map(shown).collect()
        };
        stacks.process.threads.iter().map(python).collect()
    }

    #[test]
    fn the_last_block_is_the_first_thread() {
        let mut found = stacks();
        found.take_traceback(
            "Thread 0x00007f81 [worker] (most recent call first):\n  File \"/usr/lib/queue.py\", line 171 in get\n  ...\n\n\
             Current thread 0x00007f82 (most recent call first):\n  File \"/job/a \", line 3.py\", line 9 in load\n  File \"/job/a.py\", line ??? in <module>\n",
        );
        assert_eq!(
            lines(&found),
            [
                vec!["/job/a \", line 3.py:Some(9) load", "/job/a.py:None <module>"],
                vec!["/usr/lib/queue.py:Some(171) get"],
            ]
        );
        let python = found.process.threads[1].python.as_ref().expect("a stack");
        assert!(python.cut);
        assert_eq!(found.process.unread, Some(Unread::Denied { errno: 13 }));
    }

    /// A build without GIL shows the thread that takes the signal.
    #[test]
    fn a_single_thread_is_the_first_one() {
        let mut found = stacks();
        found.take_traceback(
            "  <Cannot show all threads while the GIL is disabled>\nStack (most recent call first):\n  File \"a.py\", line 1 in f\n",
        );
        assert_eq!(lines(&found), [["a.py:Some(1) f"]]);
    }

    #[test]
    fn text_without_traceback_changes_nothing() {
        for words in ["", "\n", "  File \"a\", line 1 in f\n", "garbage (most recent call first)"] {
            let mut found = stacks();
            found.take_traceback(words);
            assert_eq!(found, stacks(), "{words}");
        }
        let mut odd = stacks();
        odd.take_traceback(
            "X (most recent call first):\n  File \"\n  File \"a\", line\n\u{fffd}\n",
        );
        assert_eq!(lines(&odd), [[""; 0]]);
    }

    #[test]
    fn a_carriage_return_belongs_to_the_name() {
        let block = "Thread 0x1 (most recent call first):\n  File \"a.py\", line 1 in f\r\n";
        assert_eq!(blocks(block)[0].frames[0].function, "f\r");
    }
}
