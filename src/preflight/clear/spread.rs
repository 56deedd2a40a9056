//! Finds the processes that end together with another one: its descendants, and every process in a
//! session that one of them created.

use std::collections::{BTreeMap, BTreeSet};

use super::orphan::is_shell;
use super::scan::ProcessScan;
use super::tell::silence;
use super::{Fate, HeldResource, StaleRule};
use linux::procfs::Process;
use text::lang::Text;
use text::text;

/// Sessions of stale trees, each with the start time of its leader. The kernel
/// does not give a session's number to a new process while it has members, so
/// another leader means that the session has ended.
pub(super) type Sessions = BTreeMap<i32, u64>;

/// Fates by pid.
pub(super) type Fates = BTreeMap<i32, (StaleRule, Vec<HeldResource>, Fate)>;

/// The roots of the trees to end.
#[derive(Debug, Default)]
pub(super) struct DoomedTrees {
    /// Each root with its reason, which is printed for a root that no rule matched.
    pub(super) roots: BTreeMap<i32, Text>,
    /// Known from an earlier scan.
    pub(super) sessions: Sessions,
}

impl ProcessScan<'_> {
    /// Adds data loaders, helpers and everything else that a rank or a launcher started, in one
    /// walk over all processes.
    pub(super) fn spread(&self, fates: &mut Fates, tree: DoomedTrees, fate: fn(Text) -> Fate) {
        let DoomedTrees { roots, mut sessions } = tree;
        let all = self.all;
        let mut root_of: BTreeMap<i32, i32> = roots.keys().map(|pid| (*pid, *pid)).collect();
        let pids: Vec<i32> = roots.keys().copied().collect();
        for below in Process::descendants(all, &pids) {
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
                let why =
                    text!("an interactive shell uses this terminal", "该终端正由交互式 shell 使用");
                fates.insert(pid, (StaleRule::PartOf { root }, Vec::new(), Fate::Spared(why)));
            } else {
                self.add(fates, process, root, roots.get(&pid), fate);
            }
        }
    }

    /// Ourselves, our ancestors and our descendants.
    fn own_tree(&self) -> BTreeSet<i32> {
        let own = self.own.pid;
        let below = Process::descendants(self.all, &[own]).into_iter().map(|one| one.pid);
        below.chain(self.above.iter().copied()).chain([own]).collect()
    }

    fn add(
        &self,
        fates: &mut Fates,
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
        match (fates.get(&pid).map(|(_, _, known)| known), &part) {
            // The process's own rule has already decided.
            (Some(Fate::Leftover(_)), _) | (Some(Fate::Forced(_)), Fate::Forced(_)) => return,
            _ => {}
        }
        let marked = self.marker(pid).filter(|marker| marker.alive).map(|marker| marker.agent);
        // The guard and the agent do not carry the marker of the run that they serve.
        let agent = marked.or_else(|| self.living.get(&pid).copied());
        let fate = match (&part, self.foreign(pid), agent) {
            (_, Some(why), _) => Fate::Spared(why),
            // It may belong to a run that goes on.
            _ if self.reads.is_silent(pid) => Fate::Spared(silence()),
            // `force` ends the job of that ranklaunch, so its agent protects it only under
            // `kill`.
            (Fate::Leftover(_), None, Some(agent)) => Fate::Spared(running(agent)),
            _ => part,
        };
        let (rule, holds) = match fates.remove(&pid) {
            Some((rule, holds, _)) => (rule, holds),
            None if why.is_some() => (StaleRule::Launcher, Vec::new()),
            None => (StaleRule::PartOf { root }, Vec::new()),
        };
        fates.insert(pid, (rule, holds, fate));
    }

    /// A shell that leads a session at a terminal.
    fn is_a_persons(&self, process: &Process) -> bool {
        process.terminal != 0 && process.session == process.pid && {
            let argv = self.reads.cmdline(self.host, process.pid).unwrap_or_default();
            is_shell(&argv, &process.comm)
        }
    }
}

pub(super) fn running(agent: i32) -> Text {
    text!(
        "its job is running: ranklaunch {agent} is still running",
        "所属任务仍在运行：ranklaunch {agent} 仍在运行"
    )
}
