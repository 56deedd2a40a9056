//! Proves that a rank is left over because its launcher is dead.
//!
//! Takes a process and the scan that contains it; gives the proof, or what is missing for it.
//! Being an orphan proves nothing by itself: `nohup python train.py &` leaves a healthy orphan
//! when its shell ends. The proof has two halves.
//!
//! The first is a variable that a launcher gives its ranks, which the process did not get from
//! us, from its adopter or from the container. Its weight depends on what sets it ([`Setter`]):
//! users set `LOCAL_RANK=0` to try a script, but never TORCHELASTIC_RUN_ID.
//!
//! The second is that no living ancestor could have started it: its parent is PID 1 or a
//! subreaper. Any other living parent counts as its launcher. So does PID 1 if it is a launcher
//! or a python, which may have started ranks itself. PID 1 also counts if it is a shell in the
//! session of the process and the variable is one that anyone sets.
//!
//! An init that starts one program (tini, dumb-init) is the parent of that program, not its
//! adopter.

use std::collections::BTreeMap;

use super::identity::ProgramKind;
use crate::host::Host;
use crate::lang::Text;
use crate::own_executable;
use crate::procfs::{self, Process};
use crate::text;

/// What sets the variable of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Setter {
    /// A python launcher, for each process that it starts itself.
    Launcher,
    /// MPI or a scheduler, for a step. A shell of that step passes it to commands that a user
    /// types.
    Step,
    /// Launchers, platforms, wrapper scripts and users.
    Anyone,
}

/// Variables of ranks, strongest proof first.
const RANK_VARIABLES: &[(&str, Setter)] = &[
    // torchrun, and accelerate through it.
    ("TORCHELASTIC_RUN_ID", Setter::Launcher),
    // deepspeed.launcher.launch, beside LOCAL_RANK.
    ("CROSS_RANK", Setter::Launcher),
    ("OMPI_COMM_WORLD_RANK", Setter::Step),
    ("PMIX_RANK", Setter::Step),
    ("PMI_RANK", Setter::Step),
    ("MV2_COMM_WORLD_RANK", Setter::Step),
    ("MPI_LOCALRANKID", Setter::Step),
    ("HOROVOD_RANK", Setter::Step),
    ("SLURM_PROCID", Setter::Step),
    ("LOCAL_RANK", Setter::Anyone),
];

/// Inits that start one program and end with it, as ranklaunch does.
const INITS_OF_ONE: [&[u8]; 4] = [b"tini", b"docker-init", b"dumb-init", b"catatonit"];

/// Known subreapers beside PID 1 that start no ranks. (/proc does not show which processes are
/// subreapers.)
const SUBREAPERS: [&[u8]; 4] = [b"systemd", b"tini", b"docker-init", b"catatonit"];

const SHELLS: [&[u8]; 7] = [b"sh", b"bash", b"dash", b"zsh", b"ksh", b"ash", b"fish"];

/// By the name of the program; a login shell's begins with a dash.
pub(super) fn is_shell(argv: &[Vec<u8>], comm: &[u8]) -> bool {
    let name = argv.first().map_or(comm, |first| procfs::basename(first));
    let name = name.strip_prefix(b"-").unwrap_or(name);
    SHELLS.contains(&name) || SHELLS.contains(&comm)
}

/// What the proof needs to know about the other processes.
pub(super) struct Around<'a> {
    pub(super) host: &'a Host,
    pub(super) all: &'a BTreeMap<i32, Process>,
    /// Whether a pid is ourselves or an ancestor.
    pub(super) ours: &'a dyn Fn(i32) -> bool,
    /// What kind of process a pid is.
    pub(super) kind: &'a dyn Fn(i32) -> ProgramKind,
}

impl Around<'_> {
    /// The topmost process of the rank (a wrapper that torchrun started in place of the script),
    /// and why its launcher is known to be dead; else why it is not.
    pub(super) fn dead_launcher(&self, rank: &Process) -> Result<(i32, Text), Text> {
        let Some((name, value, setter)) = self.evidence(rank) else {
            return Err(text!(
                "no variable of a launcher (LOCAL_RANK…) is in its environment: it may run by itself",
                "其环境中没有启动器的变量（LOCAL_RANK 等）：可能是独立运行的任务"
            ));
        };
        let top = self.top(rank, name, &value);
        let adopter = self.adopter(top)?;
        if let Some(adopter) = adopter
            && self.variable(adopter.pid, name).as_deref() == Some(value.as_slice())
        {
            let pid = adopter.pid;
            return Err(text!(
                "pid {pid} above it has the same {name}: the container sets it, not a launcher",
                "其上级 pid {pid} 的 {name} 相同：由容器设置，而非启动器"
            ));
        }
        if setter != Setter::Launcher {
            self.not_detached(top, name)?;
            self.can_be_asked(adopter, name)?;
        }
        if setter == Setter::Anyone
            && let Some(adopter) = adopter
        {
            self.not_started_by(top, adopter, name)?;
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

    /// The strongest variable that shows that this is a rank. A variable that we have as well
    /// comes from our surroundings and proves nothing.
    fn evidence(&self, rank: &Process) -> Option<(&'static str, Vec<u8>, Setter)> {
        let environ = procfs::environ(self.host, rank.pid)?;
        RANK_VARIABLES.iter().find_map(|(name, setter)| {
            let value = procfs::variable(&environ, name).filter(|value| !value.is_empty())?;
            let ours = self.host.variable(name);
            (ours.as_deref().map(str::as_bytes) != Some(value))
                .then(|| (*name, value.to_vec(), *setter))
        })
    }

    fn variable(&self, pid: i32, name: &str) -> Option<Vec<u8>> {
        let environ = procfs::environ(self.host, pid)?;
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

    /// Whether nobody who lives has started a process with this variable.
    pub(super) fn is_adopted(&self, top: &Process, name: &str) -> bool {
        let by = self.adopter(top);
        by.is_ok_and(|by| by.is_none_or(|by| self.not_started_by(top, by, name).is_ok()))
    }

    /// The adopter: PID 1 or a known subreaper. None: PID 1, hidden from us.
    fn adopter(&self, top: &Process) -> Result<Option<&Process>, Text> {
        let pid = top.ppid;
        let Some(parent) = self.all.get(&pid) else {
            // hidepid hides processes of other users, such as the host's init.
            return if pid == 1 { Ok(None) } else { Err(still_running(pid, "?")) };
        };
        let name = shown(parent);
        let adopts = match (self.kind)(pid) {
            ProgramKind::Launcher { .. } | ProgramKind::Python { .. } => false,
            // Our own guard, or a `ranklaunch init` around the whole container.
            ProgramKind::Ranklaunch => (self.ours)(pid),
            ProgramKind::Other => pid == 1 || SUBREAPERS.contains(&parent.comm.as_slice()),
        };
        if !adopts || self.is_python(pid) {
            return Err(still_running(pid, &name));
        }
        Ok(Some(parent))
    }

    /// setproctitle changes the arguments of an interpreter, not its executable.
    fn is_python(&self, pid: i32) -> bool {
        procfs::exe(self.host, pid)
            .is_some_and(|exe| crate::launchers::is_python(exe.as_os_str().as_encoded_bytes()))
    }

    /// Refuses a process that was started to outlive its parent, or from a terminal.
    fn not_detached(&self, top: &Process, name: &str) -> Result<(), Text> {
        if top.terminal != 0 {
            return Err(text!(
                "it has a terminal, so {name} may have been set by hand",
                "它带有终端，{name} 可能是手工设置的"
            ));
        }
        if ignores_hangup(self.host, top.pid) {
            return Err(text!(
                "it ignores SIGHUP as after nohup: it may be intended to go on by itself",
                "它像 nohup 启动的进程那样忽略 SIGHUP：可能本来就要独立运行"
            ));
        }
        Ok(())
    }

    /// Only an adopter whose environment can be read is known not to have passed the variable
    /// on. A host's init, which belongs to root, never has one.
    fn can_be_asked(&self, adopter: Option<&Process>, name: &str) -> Result<(), Text> {
        const OF_HOSTS: [&[u8]; 2] = [b"systemd", b"init"];
        let known = adopter.is_some_and(|adopter| {
            OF_HOSTS.contains(&adopter.comm.as_slice())
                || procfs::environ(self.host, adopter.pid).is_some()
        });
        if known {
            return Ok(());
        }
        Err(text!(
            "pid 1 cannot be read, so {name} may be the container's",
            "无法读取 pid 1，{name} 可能由容器设置"
        ))
    }

    /// Whether this adopter may have started it, with a variable that anyone sets.
    fn not_started_by(&self, top: &Process, adopter: &Process, name: &str) -> Result<(), Text> {
        let argv = procfs::cmdline(self.host, adopter.pid).unwrap_or_default();
        let shell = is_shell(&argv, &adopter.comm);
        let comm = adopter.comm.as_slice();
        let of_one = INITS_OF_ONE.contains(&comm) || own_executable::is_comm(comm);
        let first_of = || {
            let children = self.all.values().filter(|one| one.ppid == adopter.pid);
            children.min_by_key(|one| (one.start_ticks, one.pid)).map(|one| one.pid)
        };
        if (shell && adopter.session == top.session) || (of_one && first_of() == Some(top.pid)) {
            let (pid, by) = (adopter.pid, shown(adopter));
            return Err(text!(
                "its parent {pid} ({by}) may have started it with {name}",
                "可能由其父进程 {pid}（{by}）带着 {name} 启动"
            ));
        }
        Ok(())
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

/// SIGHUP is ignored, as nohup(1) sets it. The children of a launcher that catches it have the
/// default again.
fn ignores_hangup(host: &Host, pid: i32) -> bool {
    let Ok(status) = host.read(format!("/proc/{pid}/status")) else { return true };
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask & 1 != 0)
}
