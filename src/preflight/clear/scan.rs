//! Reads the properties of a process on which its fate depends: age, program, owner, container,
//! marker. Each is read once, and only if it is needed. Launchers, pythons and ranklaunch are recognised by the
//! structure of their arguments.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use rustix::io::Errno;
use rustix::process::test_kill_process;

use super::reading::Reads;
use super::{MARKER, Request};
use linux::host::{Host, normal};
use linux::own_executable;
use linux::procfs::{self, Process, as_path, basename};
use linux::sys::Pid;
use settings::contract::Claim;
use settings::launchers::{Launcher, LauncherKind, PythonProgram, PythonRun};
use text::lang::Text;
use text::order::InOrder;
use text::text;

/// The program of the job, as [`crate::clear::Request`] names it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted<'a> {
    host: &'a Host,
    script: Option<&'a Path>,
    module: Option<&'a str>,
    reads: &'a Reads,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProgramKind {
    /// torchrun, accelerate, deepspeed; `wanted` when its program is the job's.
    Launcher {
        wanted: bool,
    },
    /// A python; `wanted` when its script or module is the job's.
    Python {
        wanted: bool,
    },
    Ranklaunch,
    Other,
}

/// One scan of all processes.
pub(super) struct ProcessScan<'a> {
    pub(super) host: &'a Host,
    pub(super) request: &'a Request,
    pub(super) own: &'a Process,
    /// Our ancestors.
    pub(super) above: BTreeSet<i32>,
    /// Other tasks of this job.
    siblings: BTreeSet<i32>,
    /// Clock ticks after boot. A process that began later does not belong to an earlier run.
    born: u64,
    /// Our own [`linux::procfs::ProcessFiles::pid_place`].
    place: Option<String>,
    pub(super) all: &'a BTreeMap<i32, Process>,
    pub(super) reads: Reads,
    /// Facts about each process beyond its stat.
    pub(super) seen: RefCell<BTreeMap<i32, Seen>>,
    /// Processes of runs that go on, each with its living agent, as far as a match led to them.
    pub(super) living: BTreeMap<i32, i32>,
}

/// Facts about a process beyond its stat.
pub(super) struct Seen {
    pub(super) argv: Vec<Vec<u8>>,
    pub(super) kind: ProgramKind,
    pub(super) marker: Option<JobMarker>,
}

/// The mark of a ranklaunch job in a process's environment.
#[derive(Debug, Clone)]
pub(super) struct JobMarker {
    pub(super) job: String,
    pub(super) agent: i32,
    pub(super) alive: bool,
    /// The pid means this host since its boot, and our PID namespace; elsewhere its agent may live.
    is_here: bool,
}

impl JobMarker {
    pub(super) fn is_dead(&self) -> bool {
        self.is_here && !self.alive
    }
}

impl ProgramKind {
    /// Whether it starts other programs of a job.
    pub(super) fn launches(self) -> bool {
        matches!(self, ProgramKind::Launcher { .. } | ProgramKind::Ranklaunch)
    }
}

/// Text is no proof: `vim train.py`, `grep train.py` and `sh -c 'python train.py'` contain the same words. A process
/// counts only if it is an interpreter whose script is the job's file, or a launcher whose program is.
impl Wanted<'_> {
    /// The kind of a process by the structure of its arguments.
    pub(super) fn kind(self, pid: i32, argv: &[Vec<u8>]) -> ProgramKind {
        let Some(first) = argv.first() else { return ProgramKind::Other };
        if own_executable::is_named(first) {
            return ProgramKind::Ranklaunch;
        }
        if let Some((launcher, at)) = Launcher::of_argv(argv) {
            let own = argv.get(at..).unwrap_or_default();
            return ProgramKind::Launcher { wanted: self.is_launched(pid, launcher, own) };
        }
        if !PythonRun::is_by(first) {
            return ProgramKind::Other;
        }
        let run = PythonRun::of(argv.get(1..).unwrap_or_default());
        ProgramKind::Python { wanted: self.is_run(pid, run) }
    }

    fn is_run(self, pid: i32, run: Option<PythonRun<'_>>) -> bool {
        match run.map(|run| run.program) {
            Some(PythonProgram::Module(name)) => self.is_module(name),
            Some(PythonProgram::Script(script)) => self.is_script(pid, script),
            None => false,
        }
    }

    /// Whether a launcher's program is the job's. If the flags of a launcher are in no table, any
    /// argument that names the program counts. A launcher that starts ranklaunch does not count: it may
    /// be our own, whose only process above us is a daemon.
    fn is_launched(self, pid: i32, launcher: &Launcher, own: &[Vec<u8>]) -> bool {
        if launcher.is_read() {
            return self.is_run(pid, launcher.target(own));
        }
        let is_named = |(at, word): (usize, &Vec<u8>)| {
            self.is_script(pid, word)
                || (word == b"-m" && own.get(at + 1).is_some_and(|name| self.is_module(name)))
        };
        !own.iter().any(|word| own_executable::is_named(word))
            && own.iter().enumerate().any(is_named)
    }

    fn is_module(self, name: &[u8]) -> bool {
        self.module.is_some_and(|module| module.as_bytes() == name)
    }

    /// Whether an argument of `pid` names the job's script: the same file, or the same path if one
    /// of the two was deleted since.
    fn is_script(self, pid: i32, argument: &[u8]) -> bool {
        let Some(script) = self.script else { return false };
        // Links keep the name of the program, so another file name is another script.
        let named = script
            .file_name()
            .is_some_and(|name| std::os::unix::ffi::OsStrExt::as_bytes(name) == basename(argument));
        let mut path = as_path(argument);
        if !path.is_absolute() {
            let Some(cwd) = self.host.process(pid).cwd() else { return false };
            path = cwd.join(path);
        }
        let identity = |path: &Path| self.reads.identity(self.host.path(path));
        match (identity(&path), identity(script)) {
            (Some(one), Some(other)) => one == other,
            // The path decides only if one of the two files has been deleted, or cannot be read.
            _ => named && normal(&path) == normal(script),
        }
    }
}

impl<'a> ProcessScan<'a> {
    pub(super) fn new(
        host: &'a Host,
        request: &'a Request,
        own: &'a Process,
        all: &'a BTreeMap<i32, Process>,
        reads: Reads,
    ) -> ProcessScan<'a> {
        let above: BTreeSet<i32> =
            Process::ancestors(all, own.pid).iter().map(|one| one.pid).in_set();
        let (siblings, first) = siblings(host, &reads, &request.siblings, own, &above, all);
        // All tasks of the job must find the same processes: one task ends those that the others
        // wait for.
        let born = first.into_iter().fold(born(host, &reads, own, all), u64::min);
        let (seen, living) = (RefCell::default(), BTreeMap::new());
        let place = host.process(own.pid).pid_place();
        ProcessScan { host, request, own, above, siblings, born, place, all, reads, seen, living }
    }

    /// The program of this job.
    pub(super) fn wanted(&self) -> Wanted<'_> {
        let Request { script, module, .. } = self.request;
        let (host, reads) = (self.host, &self.reads);
        Wanted { host, script: script.as_deref(), module: module.as_deref(), reads }
    }

    pub(super) fn is_older(&self, process: &Process) -> bool {
        !self.is_ours(process.pid)
            && !process.is_dead()
            && !process.is_kernel_thread()
            && process.start_ticks < self.born
    }

    /// Adopted by init or a subreaper, or the first of a session. Remains of a job under any name
    /// are found there.
    pub(super) fn is_orphan(&self, process: &Process) -> bool {
        process.ppid <= 1
            || self.all.get(&process.ppid).is_some_and(|p| p.session != process.session)
    }

    /// The marker of a job in the environment. A marker that we inherited ourselves does not count:
    /// it shows the place of our start, not the job that left the process behind.
    pub(super) fn marker(&self, pid: i32) -> Option<JobMarker> {
        let environ = self.reads.environ(self.host, pid)?;
        let text = String::from_utf8_lossy(procfs::variable(&environ, MARKER)?).into_owned();
        if self.host.variable(MARKER).as_ref() == Some(&text) {
            return None;
        }
        // The id is the platform's and may hold colons. Older releases gave no place.
        let mut parts = text.rsplitn(3, ':');
        let start: u64 = parts.next()?.parse().ok()?;
        let agent: i32 = parts.next()?.parse().ok()?;
        let before = parts.next()?;
        let place = self.place.as_deref();
        let here = place.and_then(|place| before.strip_suffix(place)?.strip_suffix(':'));
        let alive = is_alive(self.all.get(&agent), start, || self.asked(agent));
        Some(JobMarker {
            job: here.unwrap_or(before).to_owned(),
            agent,
            alive,
            is_here: here.is_some(),
        })
    }

    /// The answer of the kernel to a signal to a process that /proc does not list; None if it
    /// cannot be asked.
    fn asked(&self, pid: i32) -> Option<rustix::io::Result<()>> {
        // A pid of a replayed host is another process here. A listing has no threads, but /proc
        // opens every task that it does not hide: such a number no longer belongs to an agent.
        if !self.host.is_live() || pid <= 0 || self.host.process(pid).stat().is_some() {
            return None;
        }
        Pid::from_raw(pid).map(test_kill_process)
    }

    /// Whether this is the srun of our own Slurm job. It runs beside the batch script of the
    /// first node while we run below slurmstepd, and ending it would end the whole step.
    pub(super) fn is_our_step(&self, pid: i32, argv: &[Vec<u8>]) -> bool {
        const JOB: &str = "SLURM_JOB_ID";
        let anywhere = Launcher::of_argv(argv)
            .is_some_and(|(launcher, _)| launcher.kind == LauncherKind::Anywhere);
        let Some(ours) = self.host.variable(JOB).filter(|_| anywhere) else { return false };
        self.reads.environ(self.host, pid).is_some_and(|environ| {
            procfs::variable(&environ, JOB).is_some_and(|theirs| theirs == ours.as_bytes())
        })
    }

    pub(super) fn open_gpu(&self, pid: i32) -> Option<u32> {
        if self.request.gpu_minors.is_empty() {
            return None;
        }
        let open = self.host.process(pid).gpu_minors();
        self.request.gpu_minors.iter().copied().find(|minor| open.contains(minor))
    }

    /// The kind of a process, read once.
    pub(super) fn kind_of(&self, pid: i32) -> ProgramKind {
        if let Some(seen) = self.seen.borrow().get(&pid) {
            return seen.kind;
        }
        let argv = self.reads.cmdline(self.host, pid).unwrap_or_default();
        let kind = self.wanted().kind(pid, &argv);
        let marker = if kind == ProgramKind::Ranklaunch { self.marker(pid) } else { None };
        self.seen.borrow_mut().insert(pid, Seen { argv, kind, marker });
        kind
    }

    /// Whether a process is ourselves or above us.
    pub(super) fn is_ours(&self, pid: i32) -> bool {
        pid == self.own.pid || self.above.contains(&pid)
    }

    /// Whether a process belongs to a job: it has no terminal, and a launcher's variable or the
    /// marker of a job.
    pub(super) fn is_inside(&self, process: &Process) -> bool {
        process.terminal == 0
            && process.pid != 1
            && self.reads.environ(self.host, process.pid).is_some_and(|environ| {
                procfs::variable(&environ, MARKER).is_some()
                    || procfs::variable(&environ, "TORCHELASTIC_RUN_ID").is_some()
            })
    }

    /// Whether the process uses another PID namespace than ours.
    pub(super) fn is_in_other_namespace(&self, pid: i32) -> bool {
        let of = |pid| self.host.process(pid).pid_namespace();
        of(pid).zip(of(self.own.pid)).is_some_and(|(theirs, ours)| theirs != ours)
    }

    /// The reason why we may not end a process.
    pub(super) fn foreign(&self, pid: i32) -> Option<Text> {
        // This holds for any PID 1: if we were started by `docker exec`, PID 1 is not above us.
        if pid == 1 {
            return Some(text!(
                "it is pid 1, and this container would end with it",
                "它是 pid 1，结束它会使本容器退出"
            ));
        }
        if self.siblings.contains(&pid) {
            return Some(text!(
                "it belongs to another task of this job",
                "它属于本任务的另一个 task"
            ));
        }
        let uid = self.host.process(pid).uid();
        let ours = self.host.process(self.own.pid).uid();
        if uid.is_none() || uid != ours {
            let uid = uid.map_or_else(|| "?".to_owned(), |uid| uid.to_string());
            return Some(text!("it belongs to user {uid}", "它属于用户 {uid}"));
        }
        let container = self.host.process(pid).container();
        if container.is_none() || container != self.host.process(self.own.pid).container() {
            return Some(text!(
                "it runs in another container, namespace or cgroup",
                "它运行在另一个容器、命名空间或 cgroup 中"
            ));
        }
        None
    }
}

/// Whether an agent is alive, from the listing of its pid in /proc; otherwise from the kernel's
/// answer.
fn is_alive(
    listed: Option<&Process>,
    start_ticks: u64,
    asked: impl FnOnce() -> Option<rustix::io::Result<()>>,
) -> bool {
    match listed {
        // A pid alone proves nothing: another process may have it by now.
        Some(now) => now.start_ticks == start_ticks && !now.is_dead(),
        // /proc mounted with hidepid does not list the processes of other users. The start time
        // is hidden as well, so whoever has this pid counts as the agent.
        None => asked() == Some(Err(Errno::PERM)),
    }
}

/// The launchers that share the variables of this job, with their descendants, and the start time
/// of the first of them.
fn siblings(
    host: &Host,
    reads: &Reads,
    shared: &[Claim],
    own: &Process,
    above: &BTreeSet<i32>,
    all: &BTreeMap<i32, Process>,
) -> (BTreeSet<i32>, Option<u64>) {
    if shared.is_empty() {
        return (BTreeSet::new(), None);
    }
    let shares = |pid: i32| {
        let Some(environ) = reads.environ(host, pid) else { return false };
        shared.iter().all(|claim| {
            procfs::variable(&environ, &claim.variable) == Some(claim.value.as_bytes())
        })
    };
    let launches = |process: &&Process| {
        let argv = reads.cmdline(host, process.pid).unwrap_or_default();
        let is_ours = argv.first().is_some_and(|first| own_executable::is_named(first));
        let is_own = process.pid == own.pid || above.contains(&process.pid);
        is_ours && !is_own && shares(process.pid)
    };
    let launchers: Vec<&Process> = all.values().filter(launches).collect();
    let first = launchers.iter().map(|process| process.start_ticks).min();
    let launchers: Vec<i32> = launchers.into_iter().map(|process| process.pid).collect();
    let below = Process::descendants(all, &launchers).into_iter().map(|one| one.pid);
    (below.chain(launchers.iter().copied()).collect(), first)
}

/// The beginning of this launch: the start of our topmost process. We may be a child that was
/// forked without exec, recognised by the same executable and arguments, and other processes of the
/// container may have started in between.
fn born(host: &Host, reads: &Reads, own: &Process, all: &BTreeMap<i32, Process>) -> u64 {
    let program = |pid| Some((reads.exe(host, pid)?, reads.cmdline(host, pid)?));
    let us = program(own.pid);
    Process::ancestors(all, own.pid)
        .into_iter()
        .take_while(|above| us.is_some() && program(above.pid) == us)
        .map(|above| above.start_ticks)
        .fold(own.start_ticks, u64::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agent_hidden_by_proc_is_not_considered_dead() {
        let agent = |start: u64, state: char| {
            let line =
                format!("77 (ranklaunch) {state} 1 77 77 0 {}1 0 {start} 0", "0 ".repeat(12));
            Process::parse(line.as_bytes()).expect("a stat line")
        };
        let unasked = || -> Option<rustix::io::Result<()>> { panic!("/proc lists it") };
        assert!(is_alive(Some(&agent(90, 'S')), 90, unasked));
        assert!(!is_alive(Some(&agent(91, 'S')), 90, unasked), "another process by now");
        assert!(!is_alive(Some(&agent(90, 'Z')), 90, unasked), "a zombie");
        assert!(is_alive(None, 90, || Some(Err(Errno::PERM))), "another user's, hidden");
        assert!(!is_alive(None, 90, || Some(Err(Errno::SRCH))), "gone");
        assert!(!is_alive(None, 90, || Some(Ok(()))), "ours would be listed");
        assert!(!is_alive(None, 90, || None), "a replayed host");
    }

    fn argv(line: &str) -> Vec<Vec<u8>> {
        line.split(' ').map(|word| word.as_bytes().to_vec()).collect()
    }

    #[test]
    fn only_the_program_argument_is_matched() {
        let folder = tempfile::tempdir().expect("folder");
        let root = folder.path();
        for file in ["work/train.py", "work/other.py", "work/train.yaml", "proc/7/x"] {
            let path = root.join(file);
            std::fs::create_dir_all(path.parent().expect("parent")).expect("folders");
            std::fs::write(path, file).expect("file");
        }
        std::os::unix::fs::symlink("/work", root.join("proc/7/cwd")).expect("cwd");
        let host = Host::replayed(root, BTreeMap::new());
        let wanted = Wanted {
            host: &host,
            script: Some(Path::new("/work/train.py")),
            module: Some("wan.train"),
            reads: &Reads::default(),
        };
        let python = |wanted| ProgramKind::Python { wanted };
        let launcher = |wanted| ProgramKind::Launcher { wanted };
        for (line, expected) in [
            ("python train.py --task t2v", python(true)),
            ("/opt/conda/bin/python3.11 -u -X dev ../work/./train.py", python(true)),
            ("python3 -um wan.train", python(true)),
            ("python3 -m wan.other train.py", python(false)),
            ("python other.py --lint train.py", python(false)),
            ("python -c import(train.py) train.py", python(false)),
            ("python -W ignore /work/train.py", python(true)),
            ("python -m pdb train.py", python(false)),
            ("python", python(false)),
            ("torchrun --nproc-per-node 8 train.py", launcher(true)),
            ("python /usr/bin/torchrun --nproc_per_node=8 other.py train.py", launcher(false)),
            ("python -m torch.distributed.run --nnodes 2 /work/train.py", launcher(true)),
            ("accelerate launch --config_file train.yaml train.py", launcher(true)),
            ("deepspeed --module wan.train", launcher(true)),
            ("torchrun --nproc-per-node 8 -m wan.other", launcher(false)),
            ("srun --ntasks-per-node=1 python train.py", launcher(true)),
            ("srun --ntasks-per-node=1 /bin/ranklaunch run -- train.py", launcher(false)),
            ("timeout -k 30 1h torchrun --nproc-per-node 8 train.py", launcher(true)),
            ("uv run --with x -m torch.distributed.run train.py", launcher(true)),
            ("sudo -u me accelerate launch other.py train.py", launcher(false)),
            // The process only waits for its python, which has its own match.
            ("timeout 1h python train.py", ProgramKind::Other),
            ("uv run train.py", ProgramKind::Other),
            ("vim train.py", ProgramKind::Other),
            ("grep train.py train.py", ProgramKind::Other),
            ("sh -c python train.py", ProgramKind::Other),
            ("tail -f train.py", ProgramKind::Other),
            ("/usr/local/bin/ranklaunch run -- train.py", ProgramKind::Ranklaunch),
        ] {
            assert_eq!(wanted.kind(7, &argv(line)), expected, "{line}");
        }
        assert_eq!(wanted.kind(7, &[]), ProgramKind::Other);
    }
}
