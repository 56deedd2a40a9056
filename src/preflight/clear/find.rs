//! Finds stale processes: a decision over one scan of /proc that sends no signal. A process ends together with its
//! descendants, and with every process in a session that one of them created.
//!
//! Cheap reads come first. Every process costs one `stat`. Arguments are read only of processes
//! older than us; environment, descriptors, owner and container only of pythons, launchers and
//! orphans.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::orphan::{is_shell, shown};
use super::reading::{Reading, Reads};
use super::scan::{ProcessScan, ProgramKind, Seen};
use super::{Fate, HeldResource, Parent, Request, StaleProcess, StaleRule, silence};
use linux::host::Host;
use linux::procfs::{self, ListeningSocket, Process};
use text::lang::Text;
use text::order::InOrder;
use text::text;

/// Sessions of stale trees, each with the start time of its leader. The kernel
/// does not give a session's number to a new process while it has members, so
/// another leader means that the session has ended.
pub(super) type Sessions = BTreeMap<i32, u64>;

/// Fates by pid.
type Fates = BTreeMap<i32, (StaleRule, Vec<HeldResource>, Fate)>;

/// The roots of the trees to end.
#[derive(Debug, Default)]
struct DoomedTrees {
    /// Each root with its reason, which is printed for a root that no rule matched.
    roots: BTreeMap<i32, Text>,
    /// Known from an earlier scan.
    sessions: Sessions,
}

/// All processes that a rule matched, by pid, with the trees that end with them.
pub fn find(host: &Host, request: &Request) -> Vec<StaleProcess> {
    find_among(host, request, &Sessions::new(), &Reading::without(&request.unreadable))
}

/// The same, with sessions already known to belong to a stale tree.
pub(super) fn find_among(
    host: &Host,
    request: &Request,
    doomed: &Sessions,
    reading: &Arc<Reading>,
) -> Vec<StaleProcess> {
    let scan = {
        let (host, request, doomed) = (host.clone(), request.clone(), doomed.clone());
        move |reads| scan(&host, &request, &doomed, reads)
    };
    reading.of(host, scan)
}

fn scan(host: &Host, request: &Request, doomed: &Sessions, reads: Reads) -> Vec<StaleProcess> {
    let Some(own) = Process::own(host) else { return Vec::new() };
    // In a /proc of another PID namespace the pids are not those of kill(2), so nothing in it
    // may be signalled.
    if host.is_live() && own.pid != std::process::id().cast_signed() {
        return Vec::new();
    }
    let all = host.processes();
    ProcessScan::new(host, request, &own, &all, reads).run(doomed)
}

/// A process with its rule and the resources that it holds, before its fate is known.
struct Match<'a> {
    process: &'a Process,
    rule: StaleRule,
    /// The rule that would match without the marker of a dead run.
    otherwise: Option<StaleRule>,
    holds: Vec<HeldResource>,
}

impl<'a> ProcessScan<'a> {
    fn run(mut self, doomed: &Sessions) -> Vec<StaleProcess> {
        let port_holder = self
            .request
            .master_port
            .and_then(|port| Some((ListeningSocket::owner_on(self.host, port)?, port)));
        let all = self.all;
        let mut matches: Vec<Match<'a>> = Vec::new();
        for process in all.values() {
            if self.is_older(process) {
                let port = port_holder.filter(|(pid, _)| *pid == process.pid);
                let port = port.map(|(_, port)| port);
                let matched = match self.reads.is_silent(process.pid) {
                    true => self.unreadable(process, port),
                    false => self.matched(process, port),
                };
                matches.extend(matched);
            }
        }

        self.living = self.living_runs(&matches);
        let mut fates = Fates::new();
        let mut proven = DoomedTrees::default();
        let mut forced = DoomedTrees::default();
        for one in matches {
            let Match { process, rule, otherwise, holds } = one;
            let by_marker = matches!(rule, StaleRule::Marker { .. });
            let rule = if by_marker && !self.is_left(process) { otherwise } else { Some(rule) };
            let Some(rule) = rule else { continue };
            let fate = match &rule {
                StaleRule::Holds => Fate::Spared(text!(
                    "it does not run this job's script",
                    "它运行的不是本任务的脚本"
                )),
                StaleRule::Unreadable => Fate::Spared(silence()),
                _ => self.fate(process, &rule, &mut proven, &mut forced),
            };
            fates.insert(process.pid, (rule, holds, fate));
        }
        proven.sessions.extend(doomed);
        self.spread(&mut fates, forced, Fate::Forced);
        self.spread(&mut fates, proven, Fate::Leftover);
        if let Some(only) = self.request.only {
            let mut line: BTreeSet<i32> =
                Process::descendants(self.all, &[only]).iter().map(|one| one.pid).in_set();
            line.insert(only);
            line.extend(Process::ancestors(self.all, only).iter().map(|one| one.pid));
            fates.retain(|pid, _| line.contains(pid));
        }
        self.found(fates)
    }

    /// The processes of runs that go on in the tree of a match, each with its living agent: the agent, the
    /// processes below it, and the processes from which it was started. A tmux that a rank started keeps the
    /// marker of that rank's run for ever, and so do the guard and the agent of each run that is started in it
    /// later.
    fn living_runs(&self, matches: &[Match<'_>]) -> BTreeMap<i32, i32> {
        let roots: Vec<i32> = matches
            .iter()
            .filter(|one| matches!(one.rule, StaleRule::Marker { .. } | StaleRule::Program))
            .map(|one| one.process.pid)
            .collect();
        let below = Process::descendants(self.all, &roots).into_iter().map(|one| one.pid);
        let agents: BTreeSet<i32> = below
            .chain(roots.iter().copied())
            .filter_map(|pid| self.marker(pid))
            .filter(|marker| marker.alive)
            .map(|marker| marker.agent)
            // An agent above us adopts every orphan below it, so a process below it proves nothing.
            .filter(|agent| *agent != self.own.pid && !self.above.contains(agent))
            .in_set();
        let mut living = BTreeMap::new();
        for agent in agents {
            let below = Process::descendants(self.all, &[agent]);
            let above = Process::ancestors(self.all, agent);
            let all = below.into_iter().chain(above).map(|one| one.pid).chain([agent]);
            for pid in all {
                living.entry(pid).or_insert(agent);
            }
        }
        living
    }

    /// A process of which nothing can be read, unless it is none of ours and holds nothing.
    fn unreadable(&self, process: &'a Process, port: Option<u16>) -> Option<Match<'a>> {
        let pid = process.pid;
        let gpu = self.open_gpu(pid).map(HeldResource::Gpu);
        let holds: Vec<HeldResource> =
            gpu.into_iter().chain(port.map(HeldResource::Port)).collect();
        if holds.is_empty() && self.foreign(pid).is_some() {
            return None;
        }
        let seen = Seen { argv: process.bracketed(), kind: ProgramKind::Other, marker: None };
        self.seen.borrow_mut().insert(pid, seen);
        Some(Match { process, rule: StaleRule::Unreadable, otherwise: None, holds })
    }

    /// The rule that matches a process, if one does.
    fn matched(&self, process: &'a Process, port: Option<u16>) -> Option<Match<'a>> {
        let argv = self.reads.cmdline(self.host, process.pid)?;
        let pid = process.pid;
        let kind = self.wanted().kind(pid, &argv);
        let asks_marker = kind != ProgramKind::Other || port.is_some() || self.is_orphan(process);
        let marker = asks_marker.then(|| self.marker(pid)).flatten();
        let runs = match kind {
            ProgramKind::Python { wanted: true } => Some(StaleRule::Program),
            ProgramKind::Launcher { wanted: true } => Some(StaleRule::Launcher),
            _ => None,
        };
        if runs == Some(StaleRule::Launcher) && self.is_our_step(pid, &argv) {
            return None;
        }
        let uses_gpu = matches!(kind, ProgramKind::Python { .. })
            || runs.is_some()
            || self.request.gpu_users.contains(&pid);
        let gpu = uses_gpu.then(|| self.open_gpu(pid)).flatten().map(HeldResource::Gpu);
        let holds: Vec<HeldResource> =
            gpu.into_iter().chain(port.map(HeldResource::Port)).collect();
        let otherwise = runs.or((!holds.is_empty()).then_some(StaleRule::Holds));
        let rule = match &marker {
            // In another PID namespace the agent has another pid than here, and may be alive.
            Some(marker) if marker.is_dead() && !self.is_in_other_namespace(pid) => {
                Some(StaleRule::Marker { job: marker.job.clone() })
            }
            _ => otherwise.clone(),
        };
        self.seen.borrow_mut().insert(pid, Seen { argv, kind, marker });
        Some(Match { process, rule: rule?, otherwise, holds })
    }

    /// The mode that may end a process that runs the script or carries a dead run's marker.
    fn fate(
        &self,
        process: &'a Process,
        rule: &StaleRule,
        proven: &mut DoomedTrees,
        forced: &mut DoomedTrees,
    ) -> Fate {
        if let Some(why) = self.foreign(process.pid) {
            return Fate::Spared(why);
        }
        let agent =
            self.supervising_agent(process).or_else(|| self.living.get(&process.pid).copied());
        if matches!(rule, StaleRule::Marker { .. }) && agent.is_none() {
            let why =
                text!("the ranklaunch that started it is gone", "启动它的 ranklaunch 已不存在");
            proven.roots.insert(process.pid, why.clone());
            return Fate::Leftover(why);
        }
        let top = match self.top(process) {
            Ok(top) => top,
            Err(why) => return Fate::Spared(why),
        };
        let launches = self.kind_of(top.pid).launches();
        let pid = top.pid;
        let alive = match agent {
            Some(agent) => running(agent),
            None if launches && pid == process.pid => {
                text!("it is a running launcher", "它是正在运行的启动器")
            }
            None if launches => {
                text!("its launcher {pid} is still running", "其启动器 {pid} 仍在运行")
            }
            // A data loader is as stale as the rank that forked it.
            None => match self.dead_launcher(top) {
                Ok((first, why)) => {
                    proven.roots.extend([(first, why.clone()), (pid, why.clone())]);
                    return Fate::Leftover(why);
                }
                Err(why) => why,
            },
        };
        forced.roots.insert(pid, alive.clone());
        Fate::Forced(alive)
    }

    /// Whether a process with the marker of a dead run is a leftover of that run. A job that was started from a
    /// rank, or with its environment (`sbatch --export=ALL`, at(1), a shell that was opened in it), carries the
    /// marker as well: in that case a living process without the marker has started the topmost one, or a run goes
    /// on in its tree.
    fn is_left(&self, process: &'a Process) -> bool {
        let (mut top, mut chain) = (process, Process::ancestors(self.all, process.pid).into_iter());
        loop {
            if self.living.contains_key(&top.pid) {
                return false;
            }
            match chain.next() {
                Some(one) if self.marker(one.pid).is_some_and(|marker| marker.is_dead()) => {
                    top = one
                }
                _ => break,
            }
        }
        self.is_adopted(top)
    }

    /// The living ranklaunch that supervises a process.
    fn supervising_agent(&self, process: &Process) -> Option<i32> {
        let marked = |pid| self.seen.borrow().get(&pid).and_then(|seen| seen.marker.clone());
        if let Some(marker) = marked(process.pid).filter(|marker| marker.alive) {
            return Some(marker.agent);
        }
        let chain = Process::ancestors(self.all, process.pid).into_iter();
        let mut chain = chain.filter(|one| !one.is_dead()).map(|one| one.pid);
        chain.find(|pid| {
            // A rank shim is part of a job and carries its marker. A guard above us is ours and
            // adopts every orphan of the container.
            self.kind_of(*pid) == ProgramKind::Ranklaunch
                && !self.above.contains(pid)
                && marked(*pid).is_none()
        })
    }

    /// The topmost of the launchers and script processes directly above a process, or the
    /// process itself.
    ///
    /// # Errors
    /// The reason why nothing of that tree may be ended.
    fn top(&self, process: &'a Process) -> Result<&'a Process, Text> {
        let mut top = process;
        for one in Process::ancestors(self.all, process.pid) {
            let kind = self.kind_of(one.pid);
            if self.is_ours(one.pid) {
                if matches!(kind, ProgramKind::Launcher { .. }) {
                    return Err(text!(
                        "it belongs to the job that we run in",
                        "它属于我们所在的任务"
                    ));
                }
                break;
            }
            match kind {
                ProgramKind::Launcher { .. }
                | ProgramKind::Ranklaunch
                | ProgramKind::Python { wanted: true } => {}
                // A shell that a launcher starts in place of the script may be in between.
                _ if self.is_inside(one) => continue,
                _ => break,
            }
            if one.pid == 1 {
                return Err(text!(
                    "pid 1 started it, and this container would end with that",
                    "它由 pid 1 启动，结束 pid 1 会使本容器退出"
                ));
            }
            if let Some(why) = self.foreign(one.pid) {
                return Err(why);
            }
            top = one;
        }
        Ok(top)
    }

    fn found(&self, fates: Fates) -> Vec<StaleProcess> {
        let uptime = uptime(self.host);
        let class = |fate: &Fate| std::mem::discriminant(fate);
        let classes: BTreeMap<i32, _> =
            fates.iter().map(|(pid, (_, _, fate))| (*pid, class(fate))).in_map();
        fates
            .into_iter()
            .filter_map(|(pid, (rule, holds, fate))| {
                let process = self.all.get(&pid)?;
                self.kind_of(pid);
                let command = procfs::shown(&self.seen.borrow().get(&pid)?.argv);
                let inner = Process::ancestors(self.all, pid)
                    .iter()
                    .any(|one| classes.get(&one.pid) == Some(&class(&fate)));
                let parent = Parent {
                    pid: process.ppid,
                    name: self.all.get(&process.ppid).map(shown).unwrap_or_default(),
                };
                let start_ticks = process.start_ticks;
                // USER_HZ is 100 on every architecture but alpha and ia64 (asm/param.h).
                let began = Duration::from_millis(start_ticks.saturating_mul(10));
                let age = uptime.map(|now| now.saturating_sub(began));
                Some(StaleProcess {
                    pid,
                    start_ticks,
                    command,
                    age,
                    parent,
                    rule,
                    holds,
                    fate,
                    inner,
                })
            })
            .collect()
    }
}

impl ProcessScan<'_> {
    /// Adds data loaders, helpers and everything else that a rank or a launcher started, in one
    /// walk over all processes.
    fn spread(&self, fates: &mut Fates, tree: DoomedTrees, fate: fn(Text) -> Fate) {
        let DoomedTrees { roots, mut sessions } = tree;
        let all = self.all;
        let mut root_of: BTreeMap<i32, i32> = roots.keys().map(|pid| (*pid, *pid)).in_map();
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
        let below = Process::descendants(all, &[self.own.pid]).into_iter().map(|one| one.pid);
        let below: BTreeSet<i32> = below.in_set();
        let of_persons: BTreeSet<i32> = root_of
            .keys()
            .filter_map(|pid| all.get(pid))
            .filter(|process| self.is_a_persons(process))
            .map(|process| process.session)
            .in_set();
        for (pid, root) in root_of {
            let is_ours = self.is_ours(pid) || below.contains(&pid);
            let Some(process) = all.get(&pid).filter(|_| !is_ours) else { continue };
            if of_persons.contains(&process.session) && process.terminal != 0 {
                let why =
                    text!("an interactive shell uses this terminal", "该终端正由交互式 shell 使用");
                fates.insert(pid, (StaleRule::PartOf { root }, Vec::new(), Fate::Spared(why)));
            } else {
                self.add(fates, process, root, roots.get(&pid), fate);
            }
        }
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

fn running(agent: i32) -> Text {
    text!(
        "its job is running: ranklaunch {agent} is still running",
        "所属任务仍在运行：ranklaunch {agent} 仍在运行"
    )
}

/// proc_uptime(5): seconds since boot, in the same time namespace as the start times.
fn uptime(host: &Host) -> Option<Duration> {
    let text = host.read("/proc/uptime").ok()?;
    let seconds: f64 = text.split_ascii_whitespace().next()?.parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok()
}
