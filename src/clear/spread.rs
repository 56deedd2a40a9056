//! What ends along with a process that is ended: its children, theirs, and who shares a session
//! that one of them made.

use std::collections::{BTreeMap, BTreeSet};

use super::find::{Judged, Search, Sessions, running};
use super::orphan::is_shell;
use super::{Fate, Rule};
use crate::lang::Text;
use crate::procfs::{self, Process};
use crate::text;

/// Where ending begins.
#[derive(Debug, Default)]
pub(super) struct Tree {
    /// Each with the reason, which is told of a root that no rule has matched.
    pub(super) roots: BTreeMap<i32, Text>,
    /// Known from an earlier look.
    pub(super) sessions: Sessions,
}

impl Search<'_> {
    /// Data loaders, helpers, whatever a rank or a launcher started: one walk over all
    /// processes, whatever number of roots there is.
    pub(super) fn spread(&self, judged: &mut Judged, tree: Tree, fate: fn(Text) -> Fate) {
        let Tree { roots, mut sessions } = tree;
        let all = self.all;
        let mut root_of: BTreeMap<i32, i32> = roots.keys().map(|pid| (*pid, *pid)).collect();
        let pids: Vec<i32> = roots.keys().copied().collect();
        for below in procfs::descendants_in(all, &pids) {
            if let Some(root) = root_of.get(&below.ppid).copied() {
                root_of.entry(below.pid).or_insert(root);
            }
        }
        for process in root_of.keys().filter_map(|pid| all.get(pid)) {
            if process.session == process.pid {
                sessions.insert(process.pid, process.start_ticks);
            }
        }
        for process in all.values() {
            let Some(start_ticks) = sessions.get(&process.session) else { continue };
            let leader = all.get(&process.session);
            if leader.is_none_or(|leader| leader.start_ticks == *start_ticks) {
                root_of.entry(process.pid).or_insert(process.session);
            }
        }
        if root_of.is_empty() {
            return;
        }
        let ours = self.own_tree();
        let of_persons: BTreeSet<i32> = root_of
            .keys()
            .filter_map(|pid| all.get(pid))
            .filter(|process| self.is_a_persons(process))
            .map(|process| process.session)
            .collect();
        for (pid, root) in root_of {
            let Some(process) = all.get(&pid).filter(|_| !ours.contains(&pid)) else { continue };
            if of_persons.contains(&process.session) && process.terminal != 0 {
                let why = text!("a person's shell has this terminal", "该终端属于某个用户的 shell");
                judged.insert(pid, (Rule::PartOf { root }, Vec::new(), Fate::Spared(why)));
            } else {
                self.add(judged, process, root, roots.get(&pid), fate);
            }
        }
    }

    /// Ourselves, what is above us and what we started.
    fn own_tree(&self) -> BTreeSet<i32> {
        let own = self.own.pid;
        let below = procfs::descendants_in(self.all, &[own]).into_iter().map(|one| one.pid);
        below.chain(self.above.iter().copied()).chain([own]).collect()
    }

    fn add(
        &self,
        judged: &mut Judged,
        process: &Process,
        root: i32,
        why: Option<&Text>,
        fate: fn(Text) -> Fate,
    ) {
        let pid = process.pid;
        if process.is_dead() || pid == 1 {
            return;
        }
        let with_the_tree = || text!("it ends with that tree", "它随该进程树一同结束");
        let part = fate(why.cloned().unwrap_or_else(with_the_tree));
        match (judged.get(&pid).map(|(_, _, known)| known), &part) {
            // Its own rule has said it.
            (Some(Fate::Leftover(_)), _) | (Some(Fate::Forced(_)), Fate::Forced(_)) => return,
            _ => {}
        }
        let marker = self.marker(pid).filter(|marker| marker.alive);
        let fate = match (&part, self.foreign(pid), marker) {
            (_, Some(why), _) => Fate::Spared(why),
            // Under force the job of that ranklaunch is what is ended.
            (Fate::Leftover(_), None, Some(marker)) => Fate::Spared(running(marker.agent)),
            _ => part,
        };
        let (rule, holds) = match judged.remove(&pid) {
            Some((rule, holds, _)) => (rule, holds),
            None if why.is_some() => (Rule::Launcher, Vec::new()),
            None => (Rule::PartOf { root }, Vec::new()),
        };
        judged.insert(pid, (rule, holds, fate));
    }

    /// A shell that leads a session at a terminal.
    fn is_a_persons(&self, process: &Process) -> bool {
        process.terminal != 0 && process.session == process.pid && {
            let argv = procfs::cmdline(self.host, process.pid).unwrap_or_default();
            is_shell(&argv, &process.comm)
        }
    }
}
