//! Proves that a rank is left over because its launcher is dead.
//!
//! Takes a process and the scan that contains it; gives the proof, or what is missing for it.
//! Being an orphan proves nothing by itself: /proc shows the same of a rank that a person left
//! running (`&` and the end of the shell, `nohup`, `setsid`, `disown`) as of a rank whose launcher
//! was killed. The proof has two halves.
//!
//! The first is a variable that only a launcher sets, and only for processes that it starts
//! itself and waits for ([`OF_LAUNCHERS`]). The process must not have it from us, from its parent
//! or from the container. The variables that anyone sets ([`OF_ANYONE`]) prove nothing, whatever
//! the parent, the session, the terminal and the signals of the process are.
//!
//! The second is that its parent is not that launcher. A parent other than PID 1 and the known
//! subreapers can only be the starter. PID 1 may be the starter as well as an adopter; but the
//! launchers that set these variables are python programs, so a PID 1 that is neither a python nor
//! a launcher has adopted the rank. Ranks that such a PID 1 (node, java, a shell) started itself do
//! not have the variable.

use std::collections::BTreeMap;

use super::identity::ProgramKind;
use super::reading::Reads;
use linux::host::Host;
use linux::own_executable;
use linux::procfs::{self, Process};
use settings::launchers::PythonRun;
use text::lang::Text;
use text::text;

/// Variables that python launchers set for each process that they start, and that nobody else sets.
const OF_LAUNCHERS: [&str; 2] = [
    // torchrun, and accelerate through it (torch.distributed.elastic, local_elastic_agent.py).
    "TORCHELASTIC_RUN_ID",
    // deepspeed.launcher.launch, beside LOCAL_RANK.
    "CROSS_RANK",
];

/// Variables that a rank may have without such a launcher. Users, scripts and programs of any
/// language set `LOCAL_RANK`. MPI and Slurm set theirs for a step, whose shells pass them on to the
/// processes that they leave behind: `srun --pty bash`, `mpirun --pernode start.sh` in place of pdsh.
/// Sessions tell neither from a rank: Hydra starts each in a session of its own, as setsid does.
const OF_ANYONE: [&str; 8] = [
    "LOCAL_RANK",
    "OMPI_COMM_WORLD_RANK",
    "PMIX_RANK",
    "PMI_RANK",
    "MV2_COMM_WORLD_RANK",
    "MPI_LOCALRANKID",
    "HOROVOD_RANK",
    "SLURM_PROCID",
];

/// Inits that start one program and end with it, as ranklaunch does. Their oldest child is that
/// program; all others are orphans.
const INITS_OF_ONE: [&[u8]; 4] = [b"tini", b"docker-init", b"dumb-init", b"catatonit"];

/// Daemons that start a job directly, with the environment of whoever submitted it: they may pass on
/// any variable, even the marker of a run.
const JOB_DAEMONS: [&[u8]; 2] = [b"atd", b"pbs_mom"];

/// Known subreapers beside PID 1 that start no ranks. (/proc does not show which processes are
/// subreapers.)
const SUBREAPERS: [&[u8]; 4] = [b"systemd", b"tini", b"docker-init", b"catatonit"];

/// Recognises a shell by the name of the program; a login shell's begins with a dash.
pub(super) fn is_shell(argv: &[Vec<u8>], comm: &[u8]) -> bool {
    let name = argv.first().map_or(comm, |first| procfs::basename(first));
    let name = name.strip_prefix(b"-").unwrap_or(name);
    [name, comm].into_iter().any(|name| procfs::is_shell(name) || name == b"fish")
}

/// Facts about the other processes that the proof needs.
pub(super) struct Around<'a> {
    pub(super) host: &'a Host,
    pub(super) reads: &'a Reads,
    pub(super) all: &'a BTreeMap<i32, Process>,
    /// Whether a pid is ourselves or an ancestor.
    pub(super) ours: &'a dyn Fn(i32) -> bool,
    /// The kind of the process with a pid.
    pub(super) kind: &'a dyn Fn(i32) -> ProgramKind,
}

impl Around<'_> {
    /// The topmost process of the rank (a wrapper that torchrun started in place of the script), and
    /// the proof that its launcher is dead; else the reason why that is not proven.
    pub(super) fn dead_launcher(&self, rank: &Process) -> Result<(i32, Text), Text> {
        let environ = self.reads.environ(self.host, rank.pid).unwrap_or_default();
        let Some((name, value)) = self.of_launcher(&environ) else {
            return Err(by_itself(&environ));
        };
        let top = self.top(rank, name, value);
        let adopter = self.adopter(top)?;
        if let Some(adopter) = adopter
            && self.variable(adopter.pid, name).as_deref() == Some(value)
        {
            let pid = adopter.pid;
            return Err(text!(
                "pid {pid} above it has the same {name}: the container sets it, not a launcher",
                "其上级 pid {pid} 的 {name} 相同：由容器设置，而非启动器"
            ));
        }
        let ppid = top.ppid;
        let by = adopter.map_or_else(String::new, |adopter| format!(" ({})", shown(adopter)));
        Ok((
            top.pid,
            text!(
                "a rank ({name}) whose launcher is dead: pid {ppid}{by} adopted it",
                "是 rank（{name}），其启动器已不存在：由 pid {ppid}{by} 收养"
            ),
        ))
    }

    /// The variable that shows that a launcher started this rank. A variable that we have as well
    /// comes from our surroundings and proves nothing.
    fn of_launcher<'e>(&self, environ: &'e [Vec<u8>]) -> Option<(&'static str, &'e [u8])> {
        OF_LAUNCHERS.into_iter().find_map(|name| {
            let value = procfs::variable(environ, name).filter(|value| !value.is_empty())?;
            let ours = self.host.variable(name);
            (ours.as_deref().map(str::as_bytes) != Some(value)).then_some((name, value))
        })
    }

    fn variable(&self, pid: i32, name: &str) -> Option<Vec<u8>> {
        let environ = self.reads.environ(self.host, pid)?;
        procfs::variable(&environ, name).map(<[u8]>::to_vec)
    }

    /// The topmost process that the launcher started for this rank: same variable, same session,
    /// no terminal. A tmux that a user began in a step has its own session.
    fn top<'b>(&'b self, rank: &'b Process, name: &str, value: &[u8]) -> &'b Process {
        let mut top = rank;
        // A reused pid could form a cycle.
        for _ in 0..64 {
            let Some(parent) = self.all.get(&top.ppid) else { break };
            let of_the_rank = parent.pid > 1
                && !(self.ours)(parent.pid)
                && parent.session == top.session
                && parent.terminal == 0
                && !matches!(
                    (self.kind)(parent.pid),
                    ProgramKind::Launcher { .. } | ProgramKind::Ranklaunch
                )
                && self.variable(parent.pid, name).as_deref() == Some(value);
            if !of_the_rank {
                break;
            }
            top = parent;
        }
        top
    }

    /// Whether no living process has given our marker to this process, whose parent does not carry
    /// it. An adopter is older than the agent, so it cannot have passed the marker on; a shell in the
    /// same session may have set it from text that it was given.
    pub(super) fn is_adopted(&self, top: &Process) -> bool {
        let by = self.adopter(top);
        by.is_ok_and(|by| {
            by.is_none_or(|by| {
                let argv = self.reads.cmdline(self.host, by.pid).unwrap_or_default();
                !(is_shell(&argv, &by.comm) && by.session == top.session)
            })
        })
    }

    /// The adopter: PID 1 or a known subreaper, unless it may be the launcher. None if PID 1 is
    /// hidden from us.
    fn adopter(&self, top: &Process) -> Result<Option<&Process>, Text> {
        let pid = top.ppid;
        let Some(parent) = self.all.get(&pid) else {
            // hidepid hides processes of other users, such as the host's init.
            return if pid == 1 { Ok(None) } else { Err(still_running(pid, "?")) };
        };
        let name = shown(parent);
        let comm = parent.comm.as_slice();
        // It may be the launcher.
        if self.reads.is_silent(pid) {
            return Err(still_running(pid, &name));
        }
        let adopts = match (self.kind)(pid) {
            ProgramKind::Launcher { .. } | ProgramKind::Python { .. } => false,
            // Our own guard, or a `ranklaunch init` around the whole container.
            ProgramKind::Ranklaunch => (self.ours)(pid),
            ProgramKind::Other => {
                (pid == 1 || SUBREAPERS.contains(&comm))
                    && !JOB_DAEMONS.contains(&comm)
                    && !self.is_python(pid)
            }
        };
        if !adopts {
            return Err(still_running(pid, &name));
        }
        let of_one = INITS_OF_ONE.contains(&comm) || own_executable::is_comm(comm);
        if of_one && self.first_child(pid) == Some(top.pid) {
            return Err(text!(
                "its parent {pid} ({name}) started it",
                "由其父进程 {pid}（{name}）启动"
            ));
        }
        Ok(Some(parent))
    }

    fn first_child(&self, pid: i32) -> Option<i32> {
        let children = self.all.values().filter(|one| one.ppid == pid);
        children.min_by_key(|one| (one.start_ticks, one.pid)).map(|one| one.pid)
    }

    /// setproctitle changes the arguments of an interpreter, not its executable; a frozen program
    /// (PyInstaller) and an embedded interpreter have mapped its library.
    fn is_python(&self, pid: i32) -> bool {
        let exe = self.reads.exe(self.host, pid).is_some_and(|exe| {
            let path = exe.as_os_str().as_encoded_bytes();
            // The suffix that the kernel adds if an update replaced the file.
            PythonRun::is_by(path.strip_suffix(b" (deleted)").unwrap_or(path))
        });
        exe || self.reads.has_mapped(self.host, pid, b"/libpython")
    }
}

/// The reason why a process without a launcher's variable may be a healthy job.
fn by_itself(environ: &[Vec<u8>]) -> Text {
    let set = |name: &&str| procfs::variable(environ, name).is_some_and(|value| !value.is_empty());
    match OF_ANYONE.into_iter().find(set) {
        Some(name) => text!(
            "{name} proves no launcher, since anyone may set it: it may run by itself, left on purpose (nohup, setsid, &)",
            "{name} 任何人都可以设置，不能证明它有启动器：可能是独立运行、有意留下的任务（nohup、setsid、&）"
        ),
        None => text!(
            "no variable of a launcher (TORCHELASTIC_RUN_ID…) is in its environment: it may run by itself",
            "其环境中没有启动器的变量（TORCHELASTIC_RUN_ID 等）：可能是独立运行的任务"
        ),
    }
}

fn still_running(pid: i32, name: &str) -> Text {
    if pid == 0 {
        return text!(
            "it was started from outside of this container (docker exec), where its parent may still be running",
            "它是从容器外启动的（docker exec），其父进程可能仍在运行"
        );
    }
    text!("its parent {pid} ({name}) is still running", "其父进程 {pid}（{name}）仍在运行")
}

/// The short name with control characters escaped.
pub(super) fn shown(process: &Process) -> String {
    String::from_utf8_lossy(&process.comm).escape_debug().to_string()
}
