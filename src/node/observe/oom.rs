//! Counts the kills of the kernel's out-of-memory killer in this container, and tells which processes survived them.
//!
//! Takes the [`Host`], the processes that can be victims, and regular looks at the counters; gives an [`OomAccount`] of
//! a failure. A kill is counted in the group of the victim, in version 2 also in all groups around it, before the
//! victim gets its SIGKILL (mm/oom_kill.c, `__oom_kill_process`). So only our own group shows kills of our processes,
//! and a process that still runs after a count was not the victim. Never says who sent a SIGKILL: that is decided by
//! the report.

mod groups;
pub(super) mod log;

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use groups::{Counters, Group, groups};
pub use groups::{OomKills, OomPlace};
use linux::host::Host;
pub use log::LoggedKills;
use log::{GroupPlace, OomConstraint};

/// Interval between two looks. A look reads one file of the kernel.
const PACE: Duration = Duration::from_millis(500);
/// Time after a kill until the processes are checked. It is longer than the kernel needs between count and signal, both
/// within one spinlock.
const SOON: Duration = Duration::from_millis(100);

/// The process that ended by a SIGKILL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suspect {
    /// A rank or a command, by its pid, if the pid is known.
    Process(Option<i32>),
    /// The shim of a process with this pid.
    ShimOf(Option<i32>),
    Engine,
}

/// The counters at the start, and their growth at the first failure.
#[derive(Debug)]
pub struct OomWatch {
    /// The control groups with their counters at the start, innermost first.
    groups: Vec<(Group, Counters)>,
    looked: Mutex<Looked>,
    first: OnceLock<Noted>,
}

/// The findings of the looks. Counts are the kernel's own, which began with the group.
#[derive(Debug, Clone, Default)]
struct Looked {
    count: u64,
    /// Time at which a look first found the last kill.
    rose: Option<Instant>,
    /// Processes with the count that each has survived.
    living: BTreeMap<i32, u64>,
    engine: Option<i32>,
    /// Processes that were killed in a group other than ours, with the path of that group.
    killed_in: BTreeMap<i32, String>,
}

/// The growth of the counters up to a moment.
#[derive(Debug, Clone)]
struct Noted {
    at: Instant,
    count: u64,
    /// Time at which a look found the last kill; None if no look found one.
    rose: Option<Instant>,
    kills: Option<OomKills>,
    /// Kills of processes that had left our group.
    elsewhere: BTreeMap<i32, OomKills>,
    /// Limit of each group, innermost first.
    limits: Vec<Option<OomPlace>>,
}

/// The result of a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// The count that the caller has survived.
    pub outlived: u64,
    /// Time until the next look.
    pub next: Duration,
}

/// The kernel's counts and log up to the first failure, and the processes that survived.
#[derive(Debug, Clone)]
pub struct OomAccount {
    /// Whether the kernel counts kills on this node, so that a count of 0 is proof.
    pub counts: bool,
    noted: Noted,
    looked: Looked,
    logged: LoggedKills,
}

impl OomWatch {
    pub fn begin(host: &Host) -> OomWatch {
        let groups: Vec<_> = groups(host)
            .into_iter()
            .map(|group| {
                let counters = group.counters(host);
                (group, counters)
            })
            .collect();
        let count = groups.first().map_or(0, |(_, own)| own.kills);
        let looked = Mutex::new(Looked { count, ..Looked::default() });
        OomWatch { groups, looked, first: OnceLock::new() }
    }

    fn looked(&self) -> MutexGuard<'_, Looked> {
        self.looked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a rank or a command has started.
    pub fn began(&self, pid: i32) {
        let mut looked = self.looked();
        let count = looked.count;
        looked.living.insert(pid, count);
    }

    pub fn began_engine(&self, pid: i32) {
        self.began(pid);
        self.looked().engine = Some(pid);
    }

    /// Records that a process was killed in this group, which is not ours, and has not ended yet.
    pub fn killed_in(&self, pid: i32, group: &str) {
        self.looked().killed_in.insert(pid, group.to_owned());
    }

    /// Reads the count, and after a kill checks which processes still run. None: the kernel counts nothing here.
    pub fn look(&self, host: &Host) -> Option<Look> {
        let (own, _) = self.groups.first()?;
        let now = own.kills(host);
        let mut looked = self.looked();
        // A kill that the previous look counted has reached its victim by now.
        let outlived = std::mem::replace(&mut looked.count, now);
        if now > outlived {
            looked.rose = Some(Instant::now());
        }
        // The pid of a rank that has failed may belong to another process by now.
        if self.first.get().is_none() {
            let behind = looked.living.iter_mut().filter(|(_, count)| **count < outlived);
            for (pid, count) in behind {
                if host.process(*pid).lives_on() {
                    *count = outlived;
                }
            }
        }
        Some(Look { outlived, next: if now > outlived { SOON } else { PACE } })
    }

    /// Keeps the current growth on the first call. Kills after the first failure are not its cause.
    pub fn note(&self, host: &Host) {
        self.first.get_or_init(|| self.noted(host));
    }

    /// The kept growth, or the current growth if none is kept, together with the kernel's log.
    pub fn account(&self, host: &Host, logged: LoggedKills) -> OomAccount {
        let noted = self.first.get().cloned().unwrap_or_else(|| self.noted(host));
        OomAccount { counts: !self.groups.is_empty(), noted, looked: self.looked().clone(), logged }
    }

    fn noted(&self, host: &Host) -> Noted {
        let now: Vec<Counters> =
            self.groups.iter().map(|(group, _)| group.counters(host)).collect();
        let rose =
            self.groups.iter().zip(&now).map(|((group, before), now)| (group, now.since(before)));
        let rose: Vec<(&Group, Counters)> = rose.collect();
        let processes = rose.first().map_or(0, |(_, own)| own.kills);
        let count = now.first().map_or(0, |own| own.kills);
        let looked = self.looked();
        Noted {
            at: Instant::now(),
            count,
            rose: looked.rose.filter(|_| looked.count == count),
            kills: (processes > 0)
                .then(|| OomKills { processes, place: groups::reached(host, &rose) }),
            elsewhere: looked
                .killed_in
                .iter()
                .filter_map(|(pid, path)| Some((*pid, groups::elsewhere(host, path, &rose)?)))
                .collect(),
            limits: rose.iter().map(|(group, _)| group.limit(host)).collect(),
        }
    }
}

impl OomAccount {
    /// An account of the kills in which no process is known to have survived.
    #[cfg(any(test, feature = "fixtures"))]
    pub fn of(kills: Option<OomKills>, counts: bool) -> OomAccount {
        let count = kills.map_or(0, |kills| kills.processes);
        let noted = Noted {
            at: Instant::now(),
            count,
            rose: None,
            kills,
            elsewhere: BTreeMap::new(),
            limits: Vec::new(),
        };
        let (looked, logged) = (Looked::default(), LoggedKills::default());
        OomAccount { counts, noted, looked, logged }
    }

    /// The account in which these processes survived all kills; the first of them is the engine.
    #[cfg(any(test, feature = "fixtures"))]
    pub fn outlived_by(mut self, pids: &[i32], ago: Option<Duration>) -> OomAccount {
        self.noted.rose = ago.and_then(|ago| self.noted.at.checked_sub(ago));
        self.looked.living = pids.iter().map(|pid| (*pid, self.noted.count)).collect();
        self.looked.engine = pids.first().copied();
        self
    }

    /// The kills. The place is that of the kill of this process, or else of the last kill.
    ///
    /// The kernel's log knows the place for certain. The counters of version 1 also rise when a cache fills the limit,
    /// and no counter shows the groups outside of a container.
    pub fn kills(&self, pid: Option<i32>) -> Option<OomKills> {
        let Noted { kills, limits, .. } = &self.noted;
        let constraint = self.logged.constraint(pid);
        if let Some(kills) = self.elsewhere(pid) {
            let of_node = constraint == Some(OomConstraint::Node);
            return Some(if of_node { OomKills { place: OomPlace::Node, ..kills } } else { kills });
        }
        let kills = (*kills)?;
        let seen = |level: usize| limits.get(level).copied().flatten();
        let place = match (constraint, kills.place) {
            (Some(OomConstraint::Node), _) => OomPlace::Node,
            (Some(OomConstraint::Group(GroupPlace::Around(level))), _) => {
                seen(level).unwrap_or(OomPlace::OuterLimit)
            }
            (Some(OomConstraint::Group(GroupPlace::Inside)), _) => OomPlace::InnerLimit,
            (Some(OomConstraint::Group(GroupPlace::Unknown)), OomPlace::Open) => {
                OomPlace::OuterLimit
            }
            (_, place) => place,
        };
        Some(OomKills { place, ..kills })
    }

    /// Whether the kernel killed the suspect, as far as known: the log names its pid; or a kill was counted that the
    /// suspect is not known to have survived and for which no other process is named.
    pub fn was_killed(&self, suspect: Suspect) -> bool {
        if let Suspect::Process(pid) = suspect
            && self.elsewhere(pid).is_some()
        {
            return true;
        }
        let Noted { count, kills: Some(kills), .. } = &self.noted else { return false };
        let pid = match suspect {
            Suspect::Process(pid) | Suspect::ShimOf(pid) => pid,
            Suspect::Engine => self.looked.engine,
        };
        // A shim ends its rank when it ends, so both live equally long; only the pid of the shim differs.
        let named = pid.filter(|_| !matches!(suspect, Suspect::ShimOf(_)));
        let outlived = pid.and_then(|pid| self.looked.living.get(&pid));
        match named.and_then(|pid| self.logged.names(pid, kills.processes)) {
            Some(named) => named,
            None => outlived.is_none_or(|outlived| count > outlived),
        }
    }

    /// The kills of the group in which this process was killed, if that group was not ours.
    fn elsewhere(&self, pid: Option<i32>) -> Option<OomKills> {
        self.noted.elsewhere.get(&pid?).copied()
    }

    /// Time between the last kill and the failure, if a look came between them.
    pub fn since_last(&self) -> Option<Duration> {
        self.noted.at.checked_duration_since(self.noted.rose?)
    }

    /// Whether no kill was counted after this count.
    pub fn is_outlived_by(&self, outlived: u64) -> bool {
        self.noted.count <= outlived
    }
}

#[cfg(test)]
mod tests;
