//! The process tree: who descends from us, and ending them for good.
//!
//! One pass over /proc gives a snapshot. Signals go through pidfds after the
//! start time was read again, so a pid that was reused is never hit. Since every
//! orphan of a subreaper's tree comes back to the subreaper, "signal all
//! descendants until none is left" converges.

use std::collections::{HashMap, HashSet};
use std::io::Read;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::outcome::Survivor;

/// One line of /proc: what is needed to tell processes apart and apart from their successors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: i32,
    pub(super) parent: i32,
    pub(super) session: i32,
    /// Clock ticks after boot; with the pid it names a process for ever.
    pub(super) start: u64,
    pub(super) state: char,
    /// Threads that are left, the first one included until it is reaped.
    pub(super) threads: u32,
    pub(super) comm: String,
}

impl Process {
    /// A zombie holds nothing any more. The state is that of the first thread
    /// alone: one that ended by pthread_exit looks like a zombie while the others
    /// run on and hold memory and devices.
    pub(super) fn gone(&self) -> bool {
        matches!(self.state, 'Z' | 'X') && self.threads <= 1
    }
}

/// /proc/PID/stat. None when the process vanished.
pub(super) fn process(pid: i32) -> Option<Process> {
    let file = std::fs::File::open(format!("/proc/{pid}/stat")).ok()?;
    // One read and one for the end of file. `take` keeps std from asking for size
    // and position first, which would double the system calls of a scan.
    let mut bytes = Vec::with_capacity(1024);
    file.take(4096).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    // comm may hold spaces and parentheses: it ends at the last one.
    let (head, tail) = text.rsplit_once(')')?;
    let comm = head.split_once('(')?.1.to_owned();
    let mut fields = tail.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let parent = fields.next()?.parse().ok()?;
    let session = fields.nth(1)?.parse().ok()?;
    let threads = fields.nth(13)?.parse().ok()?;
    let start = fields.nth(1)?.parse().ok()?;
    Some(Process { pid, parent, session, start, state, threads, comm })
}

/// All processes that can be seen.
pub(super) fn snapshot() -> Vec<Process> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(process)
        .collect()
}

/// The living descendants of `root`, without `root`; children of zombies included.
pub(super) fn descendants(all: &[Process], root: i32) -> Vec<&Process> {
    let mut children: HashMap<i32, Vec<&Process>> = HashMap::new();
    for process in all {
        children.entry(process.parent).or_default().push(process);
    }
    let mut found = Vec::new();
    let mut seen = HashSet::from([root]);
    let mut next = vec![root];
    while let Some(pid) = next.pop() {
        for child in children.get(&pid).into_iter().flatten() {
            if seen.insert(child.pid) {
                next.push(child.pid);
                found.push(*child);
            }
        }
    }
    found.retain(|process| !process.gone());
    found
}

/// Sends `signal` to exactly this process; false when it is gone already.
pub(super) fn signal(process: &Process, signal: Signal) -> bool {
    let Some(pid) = Pid::from_raw(process.pid) else { return false };
    let Ok(fd) = pidfd_open(pid, PidfdFlags::empty()) else {
        return false;
    };
    // The descriptor pins whoever has the pid now: look again whether it is the one we meant.
    let same = self::process(process.pid).is_some_and(|now| now.start == process.start);
    same && pidfd_send_signal(&fd, signal).is_ok()
}

/// How many processes one call of [`kill_children`] may meet.
const GENERATIONS: usize = 5_000;

/// SIGKILL to our own children, and at once to those that appear in their place.
///
/// A process that forks and exits, over and over, has gone before a pass over
/// /proc is through: only killing each link as soon as it is ours catches the
/// chain. No pidfd is needed: a child keeps its pid until it is reaped, and only
/// the calling thread reaps. Without CONFIG_PROC_CHILDREN this does nothing, and
/// the scans have to do.
pub(super) fn kill_children() {
    let mut met = HashSet::new();
    while met.len() < GENERATIONS {
        let fresh: Vec<i32> = children().into_iter().filter(|pid| met.insert(*pid)).collect();
        if fresh.is_empty() {
            return;
        }
        for pid in fresh {
            if let Some(pid) = Pid::from_raw(pid) {
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
        }
    }
}

/// The pids of our own children, zombies included; of all threads, since any may
/// have forked or adopted them.
fn children() -> Vec<i32> {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return Vec::new() };
    tasks
        .flatten()
        .filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok())
        .flat_map(|list| {
            list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<i32>>()
        })
        .collect()
}

/// The processes that are still there, described for people.
pub(super) fn survivors<'a>(left: impl IntoIterator<Item = &'a Process>) -> Vec<Survivor> {
    left.into_iter()
        .map(|process| Survivor {
            pid: process.pid,
            comm: process.comm.clone(),
            state: process.state,
            wait_channel: std::fs::read_to_string(format!("/proc/{}/wchan", process.pid))
                .ok()
                .filter(|name| !name.is_empty() && name != "0"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fake(pid: i32, parent: i32, state: char) -> Process {
        Process { pid, parent, session: pid, start: 1, state, threads: 1, comm: "x".into() }
    }

    #[test]
    fn descendants_pass_through_zombies_and_leave_others_alone() {
        let all = [
            fake(10, 1, 'S'),
            fake(11, 10, 'Z'),
            fake(12, 11, 'S'),
            fake(20, 1, 'S'),
            fake(21, 20, 'R'),
        ];
        let pids: Vec<i32> = descendants(&all, 10).iter().map(|found| found.pid).collect();
        assert_eq!(pids, [12]);
    }

    #[test]
    fn a_process_is_there_as_long_as_one_of_its_threads_is() {
        let dead = fake(10, 1, 'Z');
        assert!(dead.gone());
        assert!(!Process { threads: 2, ..dead }.gone());
        assert!(process(std::process::id().cast_signed()).is_some_and(|own| own.threads > 1));
    }

    #[test]
    fn children_are_listed() {
        let mut child =
            std::process::Command::new("sleep").arg("60").spawn().expect("sleep starts");
        let pid = child.id().cast_signed();
        assert!(children().contains(&pid));
        child.kill().expect("it can be killed");
        child.wait().expect("it is reaped");
        assert!(!children().contains(&pid));
    }

    #[test]
    fn a_reused_pid_is_never_hit() {
        let mut child =
            std::process::Command::new("sleep").arg("60").spawn().expect("sleep starts");
        let pid = i32::try_from(child.id()).expect("a pid is positive");
        let real = process(pid).expect("it lives");
        let older = Process { start: real.start.wrapping_sub(1), ..real.clone() };
        assert!(!signal(&older, Signal::KILL), "another start time is another process");
        assert!(child.try_wait().expect("wait works").is_none());
        assert!(signal(&real, Signal::KILL));
        assert!(!child.wait().expect("wait works").success());
    }
}
