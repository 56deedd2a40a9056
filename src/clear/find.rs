//! Which processes are stale: a pure decision over one look at /proc.
//!
//! Cheap questions come first. Every process costs one `stat`; only those older
//! than us are asked for their arguments; environment, descriptors, owner and
//! container are read only of pythons, launchers and orphans.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::identity::{Kind, Wanted, kind};
use super::orphan::{self, Around};
use super::spread::Tree;
use super::{Fate, Found, Held, MARKER, Parent, Request, Rule};
use crate::host::Host;
use crate::lang::Text;
use crate::launchers::{self, Kind::Anywhere};
use crate::observe::Claim;
use crate::procfs::{self, Process};
use crate::text;

/// Everything that a rule matched, in order of pid, with the trees that end along.
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
    let above: BTreeSet<i32> =
        procfs::ancestors_in(&all, own.pid).iter().map(|one| one.pid).collect();
    let (siblings, first) = siblings(host, &request.siblings, &own, &above, &all);
    // All tasks of the job come to the same: one ends what the others wait for.
    let born = first.into_iter().fold(born(host, &own, &all), u64::min);
    let seen = BTreeMap::new();
    Search { host, request, own: &own, above, siblings, born, all: &all, seen }.run(doomed)
}

/// The launchers that share the variables of this job, with all that is below them, and when
/// the first of them began.
fn siblings(
    host: &Host,
    shared: &[Claim],
    own: &Process,
    above: &BTreeSet<i32>,
    all: &BTreeMap<i32, Process>,
) -> (BTreeSet<i32>, Option<u64>) {
    if shared.is_empty() {
        return (BTreeSet::new(), None);
    }
    let shares = |pid: i32| {
        let Some(environ) = procfs::environ(host, pid) else { return false };
        shared.iter().all(|claim| {
            procfs::variable(&environ, &claim.variable) == Some(claim.value.as_bytes())
        })
    };
    let launches = |process: &&Process| {
        let argv = process.argv(host).unwrap_or_default();
        let is_ours = argv.first().is_some_and(|first| procfs::basename(first) == b"ranklaunch");
        let is_own = process.pid == own.pid || above.contains(&process.pid);
        is_ours && !is_own && shares(process.pid)
    };
    let launchers: Vec<&Process> = all.values().filter(launches).collect();
    let first = launchers.iter().map(|process| process.start_ticks).min();
    let launchers: Vec<i32> = launchers.into_iter().map(|process| process.pid).collect();
    let below = procfs::descendants_in(all, &launchers).into_iter().map(|one| one.pid);
    (below.chain(launchers.iter().copied()).collect(), first)
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

pub(super) struct Search<'a> {
    pub(super) host: &'a Host,
    request: &'a Request,
    pub(super) own: &'a Process,
    /// What is above us.
    pub(super) above: BTreeSet<i32>,
    /// Other tasks of this job.
    siblings: BTreeSet<i32>,
    /// Clock ticks after boot; whoever began later is not of an earlier run.
    born: u64,
    pub(super) all: &'a BTreeMap<i32, Process>,
    /// What was read of a process beyond its stat.
    seen: BTreeMap<i32, Seen>,
}

struct Seen {
    argv: Vec<Vec<u8>>,
    kind: Kind,
    marker: Option<Marker>,
}

#[derive(Debug, Clone)]
pub(super) struct Marker {
    job: String,
    pub(super) agent: i32,
    pub(super) alive: bool,
}

/// A process with its rule and what it holds, before its fate is known.
struct Match<'a> {
    process: &'a Process,
    rule: Rule,
    holds: Vec<Held>,
}

/// Fates by pid.
pub(super) type Judged = BTreeMap<i32, (Rule, Vec<Held>, Fate)>;

impl<'a> Search<'a> {
    fn run(mut self, doomed: &Sessions) -> Vec<Found> {
        let port_holder = self.request.master_port.and_then(|port| {
            let (pid, _) = procfs::listener_of(self.host, port)?.owner?;
            Some((pid, port))
        });
        let all = self.all;
        let mut matches: Vec<Match<'a>> = Vec::new();
        for process in all.values() {
            if self.is_older(process) {
                let port = port_holder.filter(|(pid, _)| *pid == process.pid);
                matches.extend(self.matched(process, port.map(|(_, port)| port)));
            }
        }

        let mut judged = Judged::new();
        let mut proven = Tree::default();
        let mut forced = Tree::default();
        for one in matches {
            let Match { process, rule, holds } = one;
            let fate = match &rule {
                Rule::Holds => Fate::Spared(text!(
                    "it does not run this job's script",
                    "它运行的不是本任务的脚本"
                )),
                _ => self.fate(process, &rule, &mut proven, &mut forced),
            };
            judged.insert(process.pid, (rule, holds, fate));
        }
        proven.sessions.extend(doomed);
        self.spread(&mut judged, forced, Fate::Forced);
        self.spread(&mut judged, proven, Fate::Leftover);
        if let Some(only) = self.request.only {
            let mut line: BTreeSet<i32> =
                procfs::descendants_in(self.all, &[only]).iter().map(|one| one.pid).collect();
            line.insert(only);
            line.extend(procfs::ancestors_in(self.all, only).iter().map(|one| one.pid));
            judged.retain(|pid, _| line.contains(pid));
        }
        self.found(judged)
    }

    fn is_older(&self, process: &Process) -> bool {
        process.pid != self.own.pid
            && !self.above.contains(&process.pid)
            && !process.is_dead()
            && !process.is_kernel_thread()
            && process.start_ticks < self.born
    }

    /// Why a process is worth a look, if it is.
    fn matched(&mut self, process: &'a Process, port: Option<u16>) -> Option<Match<'a>> {
        let argv = process.argv(self.host)?;
        let wanted = Wanted {
            script: self.request.script.as_deref(),
            module: self.request.module.as_deref(),
        };
        let pid = process.pid;
        let kind = kind(self.host, pid, &argv, wanted);
        let asks_marker = kind != Kind::Other || port.is_some() || self.is_orphan(process);
        let marker = asks_marker.then(|| self.marker(pid)).flatten();
        let runs = match kind {
            Kind::Python { wanted: true } => Some(Rule::Program),
            Kind::Launcher { wanted: true } => Some(Rule::Launcher),
            _ => None,
        };
        if runs == Some(Rule::Launcher) && self.is_our_step(pid, &argv) {
            return None;
        }
        let uses_gpu = matches!(kind, Kind::Python { .. })
            || runs.is_some()
            || self.request.gpu_users.contains(&pid);
        let gpu = uses_gpu.then(|| self.open_gpu(pid)).flatten().map(Held::Gpu);
        let holds: Vec<Held> = gpu.into_iter().chain(port.map(Held::Port)).collect();
        let rule = match &marker {
            Some(marker) if !marker.alive => Some(Rule::Marker { job: marker.job.clone() }),
            _ => runs.or((!holds.is_empty()).then_some(Rule::Holds)),
        };
        self.seen.insert(pid, Seen { argv, kind, marker });
        Some(Match { process, rule: rule?, holds })
    }

    /// Adopted by init or a subreaper, or the first of a session: the places where
    /// a job's remains of any name are found.
    fn is_orphan(&self, process: &Process) -> bool {
        process.ppid <= 1
            || self.all.get(&process.ppid).is_some_and(|p| p.session != process.session)
    }

    /// The mark of a job in the environment, but one that we ourselves inherited,
    /// which says where we were started and not what left the process behind.
    pub(super) fn marker(&self, pid: i32) -> Option<Marker> {
        let environ = procfs::environ(self.host, pid)?;
        let text = String::from_utf8_lossy(procfs::variable(&environ, MARKER)?).into_owned();
        if self.host.variable(MARKER).as_ref() == Some(&text) {
            return None;
        }
        // The id is the platform's and may hold colons.
        let mut parts = text.rsplitn(3, ':');
        let start: u64 = parts.next()?.parse().ok()?;
        let agent: i32 = parts.next()?.parse().ok()?;
        let job = parts.next()?.to_owned();
        // A pid alone proves nothing: it may be another process by now.
        let alive =
            self.all.get(&agent).is_some_and(|now| now.start_ticks == start && !now.is_dead());
        Some(Marker { job, agent, alive })
    }

    /// Whether this is the srun of our own Slurm job: it waits beside the batch script of the
    /// first node, where we are below slurmstepd, and with it the whole step would end.
    fn is_our_step(&self, pid: i32, argv: &[Vec<u8>]) -> bool {
        const JOB: &str = "SLURM_JOB_ID";
        let anywhere =
            launchers::of_argv(argv).is_some_and(|(launcher, _)| launcher.kind == Anywhere);
        let Some(ours) = self.host.variable(JOB).filter(|_| anywhere) else { return false };
        procfs::environ(self.host, pid).is_some_and(|environ| {
            procfs::variable(&environ, JOB).is_some_and(|theirs| theirs == ours.as_bytes())
        })
    }

    fn open_gpu(&self, pid: i32) -> Option<u32> {
        if self.request.gpu_minors.is_empty() {
            return None;
        }
        let open = procfs::gpu_minors(self.host, pid);
        self.request.gpu_minors.iter().copied().find(|minor| open.contains(minor))
    }

    /// What a process is, read once.
    pub(super) fn kind_of(&mut self, pid: i32) -> Kind {
        if let Some(seen) = self.seen.get(&pid) {
            return seen.kind;
        }
        let argv = procfs::cmdline(self.host, pid).unwrap_or_default();
        let wanted = Wanted {
            script: self.request.script.as_deref(),
            module: self.request.module.as_deref(),
        };
        let kind = kind(self.host, pid, &argv, wanted);
        let marker = if kind == Kind::Ranklaunch { self.marker(pid) } else { None };
        self.seen.insert(pid, Seen { argv, kind, marker });
        kind
    }

    /// What runs the script, or carries a dead run's marker: who may end it.
    fn fate(
        &mut self,
        process: &'a Process,
        rule: &Rule,
        proven: &mut Tree,
        forced: &mut Tree,
    ) -> Fate {
        if let Some(why) = self.foreign(process.pid) {
            return Fate::Spared(why);
        }
        let agent = self.supervising_agent(process);
        if matches!(rule, Rule::Marker { .. }) && agent.is_none() {
            let why =
                text!("the ranklaunch that started it is gone", "启动它的 ranklaunch 已不存在");
            proven.roots.insert(process.pid, why.clone());
            return Fate::Leftover(why);
        }
        let top = match self.top(process) {
            Ok(top) => top,
            Err(why) => return Fate::Spared(why),
        };
        let launches = matches!(self.kind_of(top.pid), Kind::Launcher { .. } | Kind::Ranklaunch);
        let pid = top.pid;
        let alive = match agent {
            Some(agent) => running(agent),
            None if launches && pid == process.pid => {
                text!("it is a launcher that runs", "它是正在运行的启动器")
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

    fn dead_launcher(&mut self, process: &Process) -> Result<(i32, Text), Text> {
        // Whoever is asked about below is read first, as the question itself may not read.
        let chain: Vec<i32> =
            procfs::ancestors_in(self.all, process.pid).iter().map(|one| one.pid).collect();
        let kinds: BTreeMap<i32, Kind> =
            chain.into_iter().map(|pid| (pid, self.kind_of(pid))).collect();
        let ours = |pid| pid == self.own.pid || self.above.contains(&pid);
        let kind = |pid: i32| kinds.get(&pid).copied().unwrap_or(Kind::Other);
        Around { host: self.host, all: self.all, ours: &ours, kind: &kind }.dead_launcher(process)
    }

    /// The ranklaunch that still looks after a process.
    fn supervising_agent(&mut self, process: &Process) -> Option<i32> {
        let marker = self.seen.get(&process.pid).and_then(|seen| seen.marker.clone());
        if let Some(marker) = marker.filter(|marker| marker.alive) {
            return Some(marker.agent);
        }
        let chain: Vec<i32> = procfs::ancestors_in(self.all, process.pid)
            .iter()
            .filter(|one| !one.is_dead())
            .map(|one| one.pid)
            .collect();
        chain.into_iter().find(|pid| {
            // A rank shim is part of a job and carries its marker; a guard
            // above us is ours and adopts whatever the container orphans.
            self.kind_of(*pid) == Kind::Ranklaunch
                && !self.above.contains(pid)
                && self.seen.get(pid).is_none_or(|seen| seen.marker.is_none())
        })
    }

    /// The topmost of the launchers and of the script's processes right above a process, itself
    /// where there is none.
    ///
    /// # Errors
    /// Why nothing of that tree may be ended.
    fn top(&mut self, process: &'a Process) -> Result<&'a Process, Text> {
        let mut top = process;
        for one in procfs::ancestors_in(self.all, process.pid) {
            let kind = self.kind_of(one.pid);
            if self.above.contains(&one.pid) || one.pid == self.own.pid {
                if matches!(kind, Kind::Launcher { .. }) {
                    return Err(text!(
                        "it belongs to the job that we run in",
                        "它属于我们所在的任务"
                    ));
                }
                break;
            }
            match kind {
                Kind::Launcher { .. } | Kind::Ranklaunch | Kind::Python { wanted: true } => {}
                // A shell that a launcher starts in place of the script stands between.
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

    /// Whether something lies inside a job: without a terminal, and with a launcher's variable
    /// or the marker of a job.
    fn is_inside(&self, process: &Process) -> bool {
        process.terminal == 0
            && process.pid != 1
            && procfs::environ(self.host, process.pid).is_some_and(|environ| {
                procfs::variable(&environ, MARKER).is_some()
                    || procfs::variable(&environ, "TORCHELASTIC_RUN_ID").is_some()
            })
    }

    /// Why a process is none of ours to end.
    pub(super) fn foreign(&self, pid: i32) -> Option<Text> {
        if self.siblings.contains(&pid) {
            return Some(text!(
                "it belongs to another task of this job",
                "它属于本任务的另一个 task"
            ));
        }
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

    fn found(mut self, judged: Judged) -> Vec<Found> {
        let uptime = uptime(self.host);
        let class = |fate: &Fate| std::mem::discriminant(fate);
        let classes: BTreeMap<i32, _> =
            judged.iter().map(|(pid, (_, _, fate))| (*pid, class(fate))).collect();
        judged
            .into_iter()
            .filter_map(|(pid, (rule, holds, fate))| {
                let process = self.all.get(&pid)?;
                self.kind_of(pid);
                let command = procfs::shown(self.seen.get(&pid).map(|seen| seen.argv.as_slice())?);
                let inner = procfs::ancestors_in(self.all, pid)
                    .iter()
                    .any(|one| classes.get(&one.pid) == Some(&class(&fate)));
                let parent = Parent {
                    pid: process.ppid,
                    name: self.all.get(&process.ppid).map(orphan::shown).unwrap_or_default(),
                };
                let start_ticks = process.start_ticks;
                let age = uptime.map(|now| now.saturating_sub(since_boot(start_ticks)));
                Some(Found { pid, start_ticks, command, age, parent, rule, holds, fate, inner })
            })
            .collect()
    }
}

pub(super) fn running(agent: i32) -> Text {
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

fn since_boot(ticks: u64) -> Duration {
    // USER_HZ is 100 on every architecture but alpha and ia64 (asm/param.h).
    Duration::from_millis(ticks.saturating_mul(10))
}
