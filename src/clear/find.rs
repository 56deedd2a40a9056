//! Which processes are stale: a pure decision over one look at /proc.
//!
//! Cheap questions come first. Every process costs one `stat`; only those older
//! than us are asked for their arguments; environment, descriptors, owner and
//! container are read only of pythons, launchers and orphans.

use std::collections::{BTreeMap, BTreeSet};

use super::identity::{Kind, Wanted, kind};
use super::{Found, Judgement, MARKER, Request, Rule};
use crate::host::Host;
use crate::lang::Text;
use crate::procfs::{self, Process};
use crate::text;

/// Everything that a rule matched, in order of pid; trees that are ended are
/// listed whole, trees that are left alone by their topmost process.
pub fn find(host: &Host, request: &Request) -> Vec<Found> {
    find_among(host, request, &Sessions::new())
}

/// Sessions of stale trees, each with the start time of its leader. The kernel
/// does not give a session's number to a new process while it has members, so
/// another leader means that the session has ended.
pub(super) type Sessions = BTreeMap<i32, u64>;

/// The same, with sessions already known to belong to a stale tree.
pub(super) fn find_among(host: &Host, request: &Request, doomed: &Sessions) -> Vec<Found> {
    let Some(own) = procfs::own(host) else { return Vec::new() };
    // A /proc of another PID namespace numbers processes differently from
    // kill(2): nothing in it may be acted upon.
    if host.is_live() && own.pid != std::process::id().cast_signed() {
        return Vec::new();
    }
    let all = procfs::processes(host);
    let born = born(host, &own, &all);
    Search { host, request, own: &own, born, all: &all, seen: BTreeMap::new() }.run(doomed)
}

/// When this launch began: with the topmost of the processes that are us. We may be
/// a child that was forked without exec, which shows in the same executable and
/// arguments, and processes of the container may have been started in between.
fn born(host: &Host, own: &Process, all: &BTreeMap<i32, Process>) -> u64 {
    let program = |pid| Some((procfs::exe(host, pid)?, procfs::cmdline(host, pid)?));
    let us = program(own.pid);
    procfs::ancestors_in(all, own.pid)
        .into_iter()
        .take_while(|above| us.is_some() && program(above.pid) == us)
        .map(|above| above.start_ticks)
        .fold(own.start_ticks, u64::min)
}

struct Search<'a> {
    host: &'a Host,
    request: &'a Request,
    own: &'a Process,
    /// Clock ticks after boot; whoever began later is not of an earlier run.
    born: u64,
    all: &'a BTreeMap<i32, Process>,
    /// What was read of a process beyond its stat.
    seen: BTreeMap<i32, Seen>,
}

struct Seen {
    argv: Vec<Vec<u8>>,
    kind: Kind,
    marker: Option<Marker>,
    elastic: Option<String>,
}

#[derive(Debug, Clone)]
struct Marker {
    job: String,
    agent: i32,
    alive: bool,
}

/// Who still looks after a process.
enum Keeper {
    /// A ranklaunch: its job is running.
    Ranklaunch(i32),
    /// The topmost living torchrun, accelerate or deepspeed.
    Launcher(i32),
    Nobody,
}

impl Search<'_> {
    fn run(mut self, doomed: &Sessions) -> Vec<Found> {
        let above: BTreeSet<i32> =
            procfs::ancestors_in(self.all, self.own.pid).iter().map(|one| one.pid).collect();
        let port_holder = self.request.master_port.and_then(|port| {
            let (pid, _) = procfs::listener_of(self.host, port)?.owner?;
            Some((pid, port))
        });

        let older: Vec<&Process> = self
            .all
            .values()
            .filter(|one| {
                one.pid != self.own.pid
                    && !above.contains(&one.pid)
                    && !one.is_dead()
                    && !one.is_kernel_thread()
                    && one.start_ticks < self.born
            })
            .collect();
        let mut matched: Vec<(&Process, Rule)> = Vec::new();
        for process in older {
            let holds_port = port_holder.filter(|(pid, _)| *pid == process.pid);
            if let Some(rule) = self.rule(process, holds_port.map(|(_, port)| port)) {
                matched.push((process, rule));
            }
        }

        let mut judged: BTreeMap<i32, (Rule, Judgement)> = BTreeMap::new();
        for (process, rule) in matched {
            let judgement = self.judge(process, &rule, &above, port_holder);
            judged.insert(process.pid, (rule, judgement));
        }
        self.spread(&mut judged, &above, doomed);
        self.fold(judged)
    }

    /// The strongest rule that matches, or None.
    fn rule(&mut self, process: &Process, port: Option<u16>) -> Option<Rule> {
        let argv = process.argv(self.host)?;
        let wanted = Wanted {
            script: self.request.script.as_deref(),
            module: self.request.module.as_deref(),
        };
        let kind = kind(self.host, process.pid, &argv, wanted);
        let mut seen = Seen { argv, kind, marker: None, elastic: None };
        if kind != Kind::Other || port.is_some() || self.is_orphan(process) {
            (seen.marker, seen.elastic) = self.marks(process.pid);
        }
        let rule = match (&seen.marker, &seen.elastic, kind) {
            (Some(marker), ..) => Some(Rule::Marker { job: marker.job.clone() }),
            (_, _, Kind::Launcher { wanted: true } | Kind::Python { wanted: true }) => {
                Some(Rule::Program)
            }
            (_, _, Kind::Launcher { .. }) => Some(Rule::Launcher),
            // A person's shell may have been started from inside a job.
            (_, Some(run_id), _) if kind != Kind::Other || process.terminal == 0 => {
                Some(Rule::ElasticRank { run_id: run_id.clone() })
            }
            (_, _, Kind::Python { .. }) => {
                self.open_gpu(process.pid).map(|minor| Rule::HoldsGpu { minor })
            }
            _ => None,
        };
        let rule = rule.or_else(|| port.map(|port| Rule::HoldsPort { port }));
        self.seen.insert(process.pid, seen);
        rule
    }

    /// Adopted by init or a subreaper, or the first of a session: the places where
    /// a job's remains of any name are found.
    fn is_orphan(&self, process: &Process) -> bool {
        process.ppid <= 1
            || self.all.get(&process.ppid).is_some_and(|p| p.session != process.session)
    }

    /// Marks of a job in the environment, but those that we ourselves inherited,
    /// which say where we were started and not what left the process behind.
    fn marks(&self, pid: i32) -> (Option<Marker>, Option<String>) {
        let Some(environ) = procfs::environ(self.host, pid) else { return (None, None) };
        let value = |name: &str| {
            let value = procfs::variable(&environ, name)?;
            let value = String::from_utf8_lossy(value).into_owned();
            (self.host.variable(name).as_ref() != Some(&value)).then_some(value)
        };
        let marker = value(MARKER).and_then(|text| {
            // The id is the platform's and may hold colons.
            let mut parts = text.rsplitn(3, ':');
            let start: u64 = parts.next()?.parse().ok()?;
            let agent: i32 = parts.next()?.parse().ok()?;
            let job = parts.next()?.to_owned();
            let alive =
                self.all.get(&agent).is_some_and(|now| now.start_ticks == start && !now.is_dead());
            Some(Marker { job, agent, alive })
        });
        (marker, value("TORCHELASTIC_RUN_ID"))
    }

    fn open_gpu(&self, pid: i32) -> Option<u32> {
        if self.request.gpu_minors.is_empty() {
            return None;
        }
        let open = procfs::gpu_minors(self.host, pid);
        self.request.gpu_minors.iter().copied().find(|minor| open.contains(minor))
    }

    fn keeper(&mut self, process: &Process, above: &BTreeSet<i32>) -> Keeper {
        let marker = self.seen.get(&process.pid).and_then(|seen| seen.marker.clone());
        if let Some(marker) = marker.filter(|marker| marker.alive) {
            return Keeper::Ranklaunch(marker.agent);
        }
        let mut launcher = Keeper::Nobody;
        let chain = procfs::ancestors_in(self.all, process.pid);
        for one in std::iter::once(process).chain(chain) {
            if one.is_dead() {
                continue;
            }
            self.look(one.pid);
            let Some(seen) = self.seen.get(&one.pid) else { continue };
            match seen.kind {
                // A rank shim is part of a job and carries its marker; a guard
                // above us is ours and adopts whatever the container orphans.
                Kind::Ranklaunch if seen.marker.is_none() && !above.contains(&one.pid) => {
                    return Keeper::Ranklaunch(one.pid);
                }
                Kind::Launcher { .. } => launcher = Keeper::Launcher(one.pid),
                _ => {}
            }
        }
        launcher
    }

    fn look(&mut self, pid: i32) {
        if self.seen.contains_key(&pid) {
            return;
        }
        let argv = procfs::cmdline(self.host, pid).unwrap_or_default();
        let kind = kind(self.host, pid, &argv, Wanted { script: None, module: None });
        let (marker, elastic) =
            if kind == Kind::Ranklaunch { self.marks(pid) } else { (None, None) };
        self.seen.insert(pid, Seen { argv, kind, marker, elastic });
    }

    fn judge(
        &mut self,
        process: &Process,
        rule: &Rule,
        above: &BTreeSet<i32>,
        port_holder: Option<(i32, u16)>,
    ) -> Judgement {
        if let Some(why) = self.foreign(process.pid) {
            return Judgement::Report(why);
        }
        let keeper = self.keeper(process, above);
        if let Keeper::Ranklaunch(agent) = keeper {
            return Judgement::Report(running(agent));
        }
        match rule {
            Rule::HoldsGpu { .. } | Rule::HoldsPort { .. } => {
                return Judgement::Report(text!(
                    "it is neither this job's program nor a rank",
                    "它既不是本任务的程序，也不是 rank"
                ));
            }
            Rule::Marker { .. } => {
                return Judgement::Kill(text!(
                    "the ranklaunch that started it is gone",
                    "启动它的 ranklaunch 已不存在"
                ));
            }
            Rule::Program | Rule::Launcher | Rule::ElasticRank { .. } | Rule::PartOf { .. } => {}
        }
        let Keeper::Launcher(root) = keeper else {
            return Judgement::Kill(text!(
                "no living launcher is above it",
                "其上没有存活的启动器"
            ));
        };
        if above.contains(&root) {
            return Judgement::Report(text!(
                "it belongs to the job that we run in",
                "它属于我们所在的任务"
            ));
        }
        if let Some(why) = self.foreign(root) {
            return Judgement::Report(why);
        }
        match self.tree_holds(root, port_holder) {
            Some(held) => Judgement::Kill(text!(
                "its launcher {root} lives and its tree holds {held}, which this job needs",
                "其启动器 {root} 仍存活，但该进程树占用着本任务所需的 {held}"
            )),
            None => Judgement::Report(text!(
                "its launcher {root} lives and holds nothing that this job needs",
                "其启动器 {root} 仍存活，且未占用本任务所需的资源"
            )),
        }
    }

    /// Why a process is none of ours to end.
    fn foreign(&self, pid: i32) -> Option<Text> {
        let uid = procfs::uid(self.host, pid);
        let ours = procfs::uid(self.host, self.own.pid);
        if uid.is_none() || uid != ours {
            let uid = uid.map_or_else(|| "?".to_owned(), |uid| uid.to_string());
            return Some(text!("it belongs to user {uid}", "它属于用户 {uid}"));
        }
        let container = procfs::container(self.host, pid);
        if container.is_none() || container != procfs::container(self.host, self.own.pid) {
            return Some(text!(
                "it runs in another container, namespace or cgroup",
                "它运行在另一个容器、命名空间或 cgroup 中"
            ));
        }
        None
    }

    fn tree_holds(&self, root: i32, port_holder: Option<(i32, u16)>) -> Option<String> {
        let below = procfs::descendants_in(self.all, &[root]);
        let pids: Vec<i32> =
            std::iter::once(root).chain(below.iter().map(|process| process.pid)).collect();
        if let Some((_, port)) = port_holder.filter(|(pid, _)| pids.contains(pid)) {
            return Some(format!("port {port}"));
        }
        pids.iter().find_map(|pid| Some(format!("/dev/nvidia{}", self.open_gpu(*pid)?)))
    }

    /// What is below a process that is ended, or in a session that one of them
    /// made, belongs to it: data loaders, helpers, whatever a rank started.
    fn spread(
        &self,
        judged: &mut BTreeMap<i32, (Rule, Judgement)>,
        above: &BTreeSet<i32>,
        doomed: &Sessions,
    ) {
        let roots: Vec<i32> = judged
            .iter()
            .filter(|(_, (_, judgement))| matches!(judgement, Judgement::Kill(_)))
            .map(|(pid, _)| *pid)
            .collect();
        let mut sessions = doomed.clone();
        for process in roots.iter().filter_map(|pid| self.all.get(pid)) {
            if process.session == process.pid {
                sessions.insert(process.pid, process.start_ticks);
            }
        }
        for root in roots {
            for process in procfs::descendants_in(self.all, &[root]) {
                self.add_part(judged, above, process, root);
            }
        }
        for process in self.all.values() {
            let Some(start_ticks) = sessions.get(&process.session) else { continue };
            let leader = self.all.get(&process.session);
            if leader.is_none_or(|leader| leader.start_ticks == *start_ticks) {
                self.add_part(judged, above, process, process.session);
            }
        }
    }

    fn add_part(
        &self,
        judged: &mut BTreeMap<i32, (Rule, Judgement)>,
        above: &BTreeSet<i32>,
        process: &Process,
        root: i32,
    ) {
        let pid = process.pid;
        let untouchable = pid == self.own.pid
            || above.contains(&pid)
            || process.is_dead()
            || procfs::ancestors_in(self.all, pid).iter().any(|one| one.pid == self.own.pid);
        if untouchable || matches!(judged.get(&pid), Some((_, Judgement::Kill(_)))) {
            return;
        }
        let (marker, _) = self.marks(pid);
        let judgement = match (self.foreign(pid), marker.filter(|marker| marker.alive)) {
            (Some(why), _) => Judgement::Report(why),
            (None, Some(marker)) => Judgement::Report(running(marker.agent)),
            (None, None) => {
                Judgement::Kill(text!("it ends with that tree", "它随该进程树一同结束"))
            }
        };
        judged.insert(pid, (Rule::PartOf { root }, judgement));
    }

    /// Of a tree that is left alone only the topmost process is worth a line.
    fn fold(&mut self, judged: BTreeMap<i32, (Rule, Judgement)>) -> Vec<Found> {
        let reported: BTreeSet<i32> = judged
            .iter()
            .filter(|(_, (_, judgement))| matches!(judgement, Judgement::Report(_)))
            .map(|(pid, _)| *pid)
            .collect();
        judged
            .into_iter()
            .filter(|(pid, _)| {
                !reported.contains(pid)
                    || !procfs::ancestors_in(self.all, *pid)
                        .iter()
                        .any(|one| reported.contains(&one.pid))
            })
            .filter_map(|(pid, (rule, judgement))| {
                let start_ticks = self.all.get(&pid)?.start_ticks;
                self.look(pid);
                let command = procfs::shown(self.seen.get(&pid).map(|seen| seen.argv.as_slice())?);
                Some(Found { pid, start_ticks, command, rule, judgement })
            })
            .collect()
    }
}

fn running(agent: i32) -> Text {
    text!(
        "its job is running: ranklaunch {agent} lives",
        "所属任务仍在运行：ranklaunch {agent} 存活"
    )
}
