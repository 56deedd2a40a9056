//! The process above us that signals every process of a job, if there is one.
//!
//! Takes /proc; gives a [`Manager`]. Each row is a program that is known to do so.

use std::time::Duration;

use super::tree;
use linux::sys::{Pid, own_pid};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Manager {
    pub(super) pid: i32,
    /// Time in which the manager signals all processes. A stop signal to the guard alone is delayed by
    /// this time.
    pub(super) spread: Duration,
}

/// Names as in /proc/PID/comm, and the time that the signals take.
const MANAGERS: [(&str, Duration); 2] = [
    // Slurm runs one slurmstepd for each step on a node: `scancel`, the time limit and `--signal` signal
    // every process of the step (src/slurmd/slurmstepd/req.c, proctrack plugins). On a busy machine it
    // may be interrupted between two of them; there is hardly another way to stop a step.
    ("slurmstepd", Duration::from_secs(1)),
    // KillMode=control-group, the default: "all remaining processes in the control group of this unit
    // will be killed" (systemd.kill(5)). systemd is above every process of a host, so a `kill` by hand
    // must not wait for long.
    ("systemd", Duration::from_millis(100)),
];
const OF_HIDDEN: Duration = Duration::from_millis(250);
/// Maximum length of a chain of parents.
const GENERATIONS: usize = 64;

/// The nearest manager among our ancestors.
pub(super) fn above() -> Option<Manager> {
    above_in(own_pid(), &|pid| {
        let process = tree::process(pid)?;
        Some((process.ppid, String::from_utf8_lossy(&process.comm).into_owned()))
    })
}

/// `seen` gives parent and name of a process; None if the process is hidden.
fn above_in(from: i32, seen: &dyn Fn(i32) -> Option<(i32, String)>) -> Option<Manager> {
    let (mut at, _) = seen(from)?;
    for _ in 0..GENERATIONS {
        Pid::from_raw(at)?;
        // hidepid hides only processes of other users: the launcher, and whoever started it by hand, are
        // of our own user.
        let Some((parent, name)) = seen(at) else {
            return Some(Manager { pid: at, spread: OF_HIDDEN });
        };
        if let Some((_, spread)) = MANAGERS.iter().find(|(manager, _)| *manager == name) {
            return Some(Manager { pid: at, spread: *spread });
        }
        at = parent;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_or_hidden_ancestors_are_managers() {
        let chain = |name: Option<&'static str>| {
            move |pid: i32| match pid {
                40 => Some((30, "ranklaunch".to_owned())),
                30 => Some((20, "bash".to_owned())),
                20 => name.map(|name| (1, name.to_owned())),
                1 => Some((0, "tini".to_owned())),
                _ => None,
            }
        };
        for (name, manager) in [
            (Some("slurmstepd"), Some(20)),
            (Some("systemd"), Some(20)),
            (None, Some(20)),
            // The shell's `kill $(pgrep ranklaunch)` leaves out the ranks.
            (Some("bash"), None),
            (Some("orted"), None),
        ] {
            let found = above_in(40, &chain(name)).map(|manager| manager.pid);
            assert_eq!(found, manager, "{name:?}");
        }
        assert_eq!(above_in(7, &|_| None), None, "a root without /proc");
        assert_eq!(above_in(7, &|_| Some((7, String::new()))), None, "a circle");
    }
}
