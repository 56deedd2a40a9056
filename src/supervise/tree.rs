//! The process tree: who descends from us, and ending them for good.
//!
//! One pass over /proc gives a snapshot. Signals go through pidfds after the
//! start time was read again, so a pid that was reused is never hit. Since every
//! orphan of a subreaper's tree comes back to the subreaper, "signal all
//! descendants until none is left" converges.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::outcome::Survivor;
use crate::procfs;
pub(super) use crate::procfs::Process;

/// Never a replayed one: only real processes can be ended.
const PROC: &str = "/proc";

/// The process now; None when there is none with this pid.
pub(super) fn process(pid: i32) -> Option<Process> {
    procfs::process(Path::new(PROC), pid)
}

/// Whether the process lives; a zombie does not. One of another PID namespace, which
/// has no number here, is taken to.
pub(super) fn is_running(pid: i32) -> bool {
    pid == 0 || process(pid).is_some_and(|process| !process.is_dead())
}

/// All processes that can be seen, by pid.
pub(super) fn snapshot() -> BTreeMap<i32, Process> {
    procfs::scan(Path::new(PROC))
}

/// The living descendants of `root`, without `root`; children of zombies included.
pub(super) fn descendants(all: &BTreeMap<i32, Process>, root: i32) -> Vec<&Process> {
    let mut found = procfs::descendants_in(all, &[root]);
    found.retain(|process| !process.is_dead());
    found
}

/// Sends `signal` to exactly this process; false when it is gone already.
pub(super) fn signal(process: &Process, signal: Signal) -> bool {
    let Some(pid) = Pid::from_raw(process.pid) else { return false };
    let Ok(fd) = pidfd_open(pid, PidfdFlags::empty()) else {
        return false;
    };
    // The descriptor pins whoever has the pid now: look again whether it is the one we meant.
    let same = self::process(process.pid).is_some_and(|now| now.start_ticks == process.start_ticks);
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
            comm: String::from_utf8_lossy(&process.comm).into_owned(),
            state: char::from(process.state),
            wait_channel: std::fs::read_to_string(format!("/proc/{}/wchan", process.pid))
                .ok()
                .filter(|name| !name.is_empty() && name != "0"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fake(pid: i32, ppid: i32, state: u8) -> (i32, Process) {
        let process = Process {
            pid,
            ppid,
            pgid: pid,
            session: pid,
            terminal: 0,
            start_ticks: 1,
            state,
            threads: 1,
            comm: b"x".to_vec(),
        };
        (pid, process)
    }

    #[test]
    fn descendants_pass_through_zombies_and_leave_others_alone() {
        let all = BTreeMap::from([
            fake(10, 1, b'S'),
            fake(11, 10, b'Z'),
            fake(12, 11, b'S'),
            fake(20, 1, b'S'),
            fake(21, 20, b'R'),
        ]);
        let pids: Vec<i32> = descendants(&all, 10).iter().map(|found| found.pid).collect();
        assert_eq!(pids, [12]);
    }

    #[test]
    fn a_process_is_there_as_long_as_one_of_its_threads_is() {
        let (_, dead) = fake(10, 1, b'Z');
        assert!(dead.is_dead());
        assert!(!Process { threads: 2, ..dead }.is_dead());
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
        let older = Process { start_ticks: real.start_ticks.wrapping_sub(1), ..real.clone() };
        assert!(!signal(&older, Signal::KILL), "another start time is another process");
        assert!(child.try_wait().expect("wait works").is_none());
        assert!(signal(&real, Signal::KILL));
        assert!(!child.wait().expect("wait works").success());
    }
}
