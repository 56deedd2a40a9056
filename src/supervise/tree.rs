//! The process tree below us: scans, signals to all descendants, survivors.
//!
//! One pass over /proc gives a snapshot. Before a signal is sent, the start time is read again, and
//! the signal goes through a pidfd if there is one, so a reused pid is not hit. Every orphan of a
//! subreaper's tree returns to the subreaper, so "signal all descendants until none is left"
//! converges.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{
    WaitId, WaitIdOptions, WaitOptions, kill_process, test_kill_process, waitid, waitpid,
};

pub(super) use linux::procfs::Process;
use linux::signal;
use linux::sys::{self, Pid, Signal};
use verdict::outcome::Survivor;

/// Always the real /proc, since only real processes can be ended.
const PROC: &str = "/proc";

/// The current state of the process; None if no process has this pid.
pub(super) fn process(pid: i32) -> Option<Process> {
    Process::at(Path::new(PROC), pid)
}

/// Whether the process lives; a zombie does not.
pub(super) fn is_running(pid: i32) -> bool {
    process(pid).is_some_and(|process| !process.is_dead())
}

/// All visible processes, by pid.
pub(super) fn snapshot() -> BTreeMap<i32, Process> {
    Process::scan(Path::new(PROC))
}

/// The living descendants of `root`, without `root`; children of zombies included.
pub(super) fn descendants(all: &BTreeMap<i32, Process>, root: i32) -> Vec<&Process> {
    let mut found = Process::descendants(all, &[root]);
    found.retain(|process| !process.is_dead());
    found
}

/// Our living descendants, without `others` and their descendants.
pub(super) fn job<'a>(all: &'a BTreeMap<i32, Process>, others: &HashSet<i32>) -> Vec<&'a Process> {
    let mut found = descendants(all, sys::own_pid());
    if !others.is_empty() {
        let foreign = family(all, &Vec::from_iter(others.iter().copied()));
        found.retain(|process| !foreign.contains(&process.pid));
    }
    found
}

/// These processes and their descendants.
pub(super) fn family(all: &BTreeMap<i32, Process>, roots: &[i32]) -> HashSet<i32> {
    let below = Process::descendants(all, roots);
    below.iter().map(|process| process.pid).chain(roots.iter().copied()).collect()
}

/// Processes that a shell has started, down to the first programs that are not shells. Empty if `root` is not a
/// shell.
pub(super) fn below_shells(all: &BTreeMap<i32, Process>, root: i32) -> Vec<&Process> {
    let (mut found, mut shells) = (Vec::new(), vec![root]);
    while let Some(pid) = shells.pop() {
        if is_shell(pid) == Some(true) {
            let children = all.values().filter(|one| one.ppid == pid && !one.is_dead());
            let children: Vec<&Process> = children.collect();
            shells.extend(children.iter().map(|child| child.pid));
            found.extend(children);
        }
    }
    found
}

/// The programs for which `root` waits, and those for which they wait. A program that runs another one now and then waits
/// as well; so only those count that have lived for half the time of the one that waits.
pub(super) fn below_waiting(all: &BTreeMap<i32, Process>, root: i32) -> Vec<&Process> {
    let (mut found, mut waiting) = (Vec::new(), all.get(&root).into_iter().collect::<Vec<_>>());
    let now = ticks_since_boot();
    while let Some(parent) = waiting.pop() {
        if !is_waiting(parent.pid) {
            continue;
        }
        let age = |one: &Process| now.saturating_sub(one.start_ticks);
        let is_its_work = |one: &&Process| {
            one.ppid == parent.pid && !one.is_dead() && age(one) >= age(parent) / 2
        };
        let children: Vec<&Process> = all.values().filter(is_its_work).collect();
        waiting.extend(&children);
        found.extend(children);
    }
    found
}

/// Whether the main thread is inside wait4(2) or waitid(2); false if that cannot be read.
fn is_waiting(pid: i32) -> bool {
    call(pid).is_some_and(|number| WAITS.contains(&number))
}

/// The number of the system call in which the main thread is (/proc/PID/syscall of proc_pid_syscall(5)); None if it runs
/// or that cannot be read.
fn call(pid: i32) -> Option<u64> {
    let call = std::fs::read_to_string(format!("{PROC}/{pid}/syscall")).unwrap_or_default();
    call.split_whitespace().next().and_then(|number| number.parse().ok())
}

/// The numbers of wait4(2) and waitid(2).
const WAITS: [u64; 2] = if cfg!(target_arch = "x86_64") { [61, 247] } else { [260, 95] };
/// The numbers of clone(2), clone3(2) and, where there is one, vfork(2).
const FORKS: [u64; 3] = if cfg!(target_arch = "x86_64") { [56, 435, 58] } else { [220, 435, 435] };

/// proc_uptime(5), in the unit of start times: USER_HZ is 100 on every architecture but alpha and ia64.
fn ticks_since_boot() -> u64 {
    let uptime = std::fs::read_to_string(format!("{PROC}/uptime")).unwrap_or_default();
    let seconds = uptime.split_whitespace().next().unwrap_or_default();
    // Two decimals, so without the point these are ticks.
    seconds.replace('.', "").parse().unwrap_or_default()
}

/// The command line from the kernel; empty if there is none.
pub(super) fn line(pid: i32) -> Vec<u8> {
    std::fs::read(format!("{PROC}/{pid}/cmdline")).unwrap_or_default()
}

/// Whether the process runs a shell's executable; None if the executable cannot be read.
pub(super) fn is_shell(pid: i32) -> Option<bool> {
    let executable = std::fs::read_link(format!("{PROC}/{pid}/exe")).ok()?;
    let name = executable.file_name()?.as_encoded_bytes();
    Some(linux::procfs::is_shell(name) || name == b"busybox")
}

/// The signals that a process handles and those that it ignores: bit n − 1 is signal n (SigCgt and SigIgn of
/// proc_pid_status(5)). A blocked signal counts as handled, since a program takes it by sigwait(3) or signalfd(2).
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Handled {
    caught: u64,
    ignored: u64,
}

impl Handled {
    pub(super) fn has(self, number: i32) -> bool {
        self.caught >> (number - 1) & 1 == 1
    }

    pub(super) fn ignores(self, number: i32) -> bool {
        self.ignored >> (number - 1) & 1 == 1
    }
}

/// None if the masks cannot be read.
///
/// A program that starts another one blocks all signals for that moment (posix_spawn(3), CPython's `subprocess`), and
/// handles none of them. So it is looked at again, and while it is inside the fork, nothing that is blocked counts.
pub(super) fn handled(pid: i32) -> Option<Handled> {
    let mut masks = Masks::of(pid)?;
    for _ in 0..FORKING {
        if !masks.blocks_all() || is_forking(pid) {
            break;
        }
        std::thread::sleep(LOOK_AGAIN);
        masks = Masks::of(pid)?;
    }
    let blocked = if masks.blocks_all() && is_forking(pid) { 0 } else { masks.blocked };
    Some(Handled { caught: masks.caught | blocked, ignored: masks.ignored })
}

/// Looks at a process that blocks everything: before and after the fork that takes it a moment.
const FORKING: u32 = 5;
const LOOK_AGAIN: Duration = Duration::from_millis(1);

fn is_forking(pid: i32) -> bool {
    call(pid).is_some_and(|number| FORKS.contains(&number))
}

/// The masks of the main thread in proc_pid_status(5).
struct Masks {
    caught: u64,
    blocked: u64,
    ignored: u64,
}

impl Masks {
    fn of(pid: i32) -> Option<Masks> {
        let status = std::fs::read_to_string(format!("{PROC}/{pid}/status")).ok()?;
        let mask = |name: &str| {
            let mask = status.lines().find_map(|line| line.strip_prefix(name))?.trim();
            u64::from_str_radix(mask, 16).ok()
        };
        let (caught, blocked) = (mask("SigCgt:")?, mask("SigBlk:")?);
        Some(Masks { caught, blocked, ignored: mask("SigIgn:")? })
    }

    /// Even SIGSEGV is blocked, which nobody awaits.
    fn blocks_all(&self) -> bool {
        self.blocked >> (Signal::SEGV.as_raw() - 1) & 1 == 1
    }
}

/// Sends `signal` to exactly this process; false if it has ended. Nearly all processes are our own children, whose
/// pids stay valid until we reap them.
pub(super) fn signal(process: &Process, signal: Signal) -> bool {
    let Some(pid) = Pid::from_raw(process.pid) else { return false };
    let Ok(handle) = signal::handle(pid) else { return false };
    let one = (pid, process.start_ticks);
    signal::send(Path::new(PROC), one, handle.as_ref(), signal).is_ok()
}

/// Sends `signal` to all of these.
pub(super) fn signal_all(processes: &[&Process], to_send: Signal) {
    for process in processes {
        signal(process, to_send);
    }
}

/// Maximum number of processes for one call of [`kill_children`].
const GENERATIONS: usize = 5_000;

/// Sends SIGKILL to our own children, and at once to those that replace them.
///
/// A chain of processes that fork and exit is faster than a pass over /proc. Only killing each
/// one as soon as it is our child ends the chain. No pidfd is needed: a child keeps its pid
/// until it is reaped, and only the calling thread reaps. Without CONFIG_PROC_CHILDREN this does
/// nothing, and only the scans remain. `others` are left alone.
pub(super) fn kill_children(others: &HashSet<i32>) {
    let mut met = others.clone();
    while met.len() < others.len() + GENERATIONS {
        let fresh: Vec<i32> = children().into_iter().filter(|pid| met.insert(*pid)).collect();
        if fresh.is_empty() {
            return;
        }
        for pid in fresh {
            if let Some(pid) = Pid::from_raw(pid) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}

/// Our living descendants; at the end of a launch, those that could not be ended. Without a child, zombies included,
/// no scan is needed, which is the usual case. The kernel's lists per thread do not show that: while a thread exits, its
/// children are in none.
pub(super) fn living_below() -> Vec<i32> {
    if waitid(WaitId::All, PEEK).is_err() {
        return Vec::new();
    }
    descendants(&snapshot(), sys::own_pid()).iter().map(|process| process.pid).collect()
}

/// Shows the end of a child and does not reap it.
pub(super) const PEEK: WaitIdOptions =
    WaitIdOptions::EXITED.union(WaitIdOptions::NOHANG).union(WaitIdOptions::NOWAIT);

/// Whether /proc shows processes here at all.
pub(super) fn has_proc() -> bool {
    Path::new(PROC).join("self/stat").exists()
}

/// PID_MAX_LIMIT of 64-bit kernels (linux/threads.h).
const LAST_PID: i32 = 1 << 22;

/// Our children with pids that the kernel assigned since `first`, for a root without /proc.
/// There only wait(2) knows whether a pid is our child; WNOWAIT does not reap it. Call while
/// only one thread exists.
///
/// The kernel assigns pids upwards and wraps around. A process that is forked here and exits at
/// once shows the current position.
pub(super) fn children_without_proc(first: i32) -> Vec<i32> {
    let is_child =
        |pid: &i32| Pid::from_raw(*pid).is_some_and(|pid| waitid(WaitId::Pid(pid), PEEK).is_ok());
    let last = match sys::Fork::single_threaded() {
        Ok(sys::Fork::Child) => sys::exit_now(0),
        Ok(sys::Fork::Parent { child }) => {
            let _ = waitpid(Pid::from_raw(child), WaitOptions::empty());
            child
        }
        Err(_) => LAST_PID,
    };
    if last >= first {
        (first..last).filter(is_child).collect()
    } else {
        (first..LAST_PID).chain(1..last).filter(is_child).collect()
    }
}

/// The pids of our children, zombies included, of all threads, since any may have forked or
/// adopted them.
pub(super) fn children() -> Vec<i32> {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return Vec::new() };
    tasks
        .flatten()
        .filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok())
        .flat_map(|list| {
            list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<i32>>()
        })
        .collect()
}

/// The remaining processes, described for people.
pub(super) fn survivors<'a>(left: impl IntoIterator<Item = &'a Process>) -> Vec<Survivor> {
    left.into_iter()
        .map(|process| Survivor {
            pid: process.pid,
            comm: printable(&process.comm),
            forbidden: Pid::from_raw(process.pid)
                .is_some_and(|pid| test_kill_process(pid) == Err(Errno::PERM)),
            state: char::from(process.state),
            wait_channel: std::fs::read_to_string(format!("/proc/{}/wchan", process.pid))
                .ok()
                .filter(|name| !name.is_empty() && name != "0"),
        })
        .collect()
}

/// A list such as `sleep (31)`, with at most `most` processes.
pub(super) fn names(processes: &[&Process], most: usize) -> Vec<String> {
    let name = |process: &&Process| format!("{} ({})", printable(&process.comm), process.pid);
    processes.iter().take(most).map(name).collect()
}

/// Escapes a process name, which the process can set to any bytes (PR_SET_NAME).
pub(super) fn printable(comm: &[u8]) -> String {
    String::from_utf8_lossy(comm).escape_debug().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fake(pid: i32, ppid: i32, state: u8) -> (i32, Process) {
        let process = Process {
            pid,
            ppid,
            pgid: pid,
            session: pid,
            terminal: 0,
            flags: 0,
            start_ticks: 1,
            state,
            threads: 1,
            comm: b"x".to_vec(),
        };
        (pid, process)
    }

    #[test]
    fn descendants_are_found_through_zombies() {
        let all = BTreeMap::from([
            fake(10, 1, b'S'),
            fake(11, 10, b'Z'),
            fake(12, 11, b'S'),
            fake(20, 1, b'S'),
            fake(21, 20, b'R'),
        ]);
        let pids: Vec<i32> = descendants(&all, 10).iter().map(|found| found.pid).collect();
        assert_eq!(pids, [12]);
    }

    #[test]
    fn process_lives_while_any_thread_lives() {
        let (_, dead) = fake(10, 1, b'Z');
        assert!(dead.is_dead());
        assert!(!Process { threads: 2, ..dead }.is_dead());
        assert!(process(std::process::id().cast_signed()).is_some_and(|own| own.threads > 1));
    }

    #[test]
    fn children_are_listed() {
        let mut child =
            std::process::Command::new("sleep").arg("60").spawn().expect("sleep starts");
        let pid = child.id().cast_signed();
        assert!(children().contains(&pid));
        child.kill().expect("it can be killed");
        child.wait().expect("it is reaped");
        assert!(!children().contains(&pid));
    }

    #[test]
    fn shell_descendants_end_at_the_first_program() {
        // A shell by another name stands for a program that is not a shell.
        let folder = tempfile::tempdir().expect("a folder");
        let other = folder.path().join("launcher");
        harness::copy_program(Path::new("/bin/sh"), &other);
        let other = other.to_str().expect("a path");
        let (last, sh) = ("sh -c 'trap : TERM; echo ready; read line'", "/bin/sh");
        for (program, child, found) in [
            (sh, last.to_owned(), 1),
            (sh, format!("sh -c \"{last}; :\""), 2),
            (sh, format!("{other} -c \"{last}; :\""), 1),
            (other, last.to_owned(), 0),
        ] {
            let mut shell = std::process::Command::new(program)
                .args(["-c", &format!("{child}; :")])
                .stdin(std::process::Stdio::piped())
                .stdout(std::process::Stdio::piped())
                .spawn()
                .expect("sh starts");
            let mut ready = [0];
            let mut out = shell.stdout.take().expect("it is a pipe");
            std::io::Read::read_exact(&mut out, &mut ready).expect("the child is ready");
            let (all, root) = (snapshot(), shell.id().cast_signed());
            assert_eq!(below_shells(&all, root).len(), found, "{program} {child}");
            let [term, hup] = [Signal::TERM, Signal::HUP].map(Signal::as_raw);
            let last = descendants(&all, root).last().map(|last| last.pid).expect("a child");
            let handles = handled(last).expect("it lives");
            assert!(handles.has(term) && !handles.has(hup) && !handles.ignores(hup));
            drop(shell.stdin.take());
            shell.wait().expect("it is reaped");
        }
    }

    #[test]
    fn signals_blocked_during_a_fork_are_not_handled() {
        let folder = tempfile::tempdir().expect("a folder");
        // The child waits for a writer before it runs its program, and the parent with it.
        let pipe = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.expect("mkfifo starts").success());
        let forks = format!(
            "os.posix_spawn('/bin/true', ['true'], {{}}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, '{}', os.O_RDONLY, 0)])",
            pipe.display()
        );
        // A program whose other threads take the signals.
        let blocks = "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65)); input()";
        for (does, handles) in [(forks.as_str(), false), (blocks, true)] {
            let script = format!("import os, signal; print('ready', flush=True); {does}");
            let mut python = std::process::Command::new("python3")
                .args(["-c", &script])
                .stdin(std::process::Stdio::piped())
                .stdout(std::process::Stdio::piped())
                .spawn()
                .expect("python3 starts");
            let mut ready = [0];
            let mut out = python.stdout.take().expect("it is a pipe");
            std::io::Read::read_exact(&mut out, &mut ready).expect("it is ready");
            let pid = python.id().cast_signed();
            while !Masks::of(pid).is_some_and(|masks| masks.blocks_all()) {
                std::thread::yield_now();
            }
            let term = Signal::TERM.as_raw();
            assert_eq!(handled(pid).map(|it| it.has(term)), Some(handles), "{does}");
            if !handles {
                std::fs::write(&pipe, "").expect("the child opens its end");
            }
            drop(python.stdin.take());
            python.wait().expect("it is reaped");
        }
    }

    #[test]
    fn process_name_is_escaped_for_terminals() {
        assert_eq!(printable(b"py\x1b[2J\x9b"), "py\\u{1b}[2J\u{fffd}");
        assert_eq!(printable("训练".as_bytes()), "训练");
    }

    #[test]
    fn reused_pid_is_never_signalled() {
        let mut child =
            std::process::Command::new("sleep").arg("60").spawn().expect("sleep starts");
        let pid = i32::try_from(child.id()).expect("a pid is positive");
        let real = process(pid).expect("it lives");
        let older = Process { start_ticks: real.start_ticks.wrapping_sub(1), ..real.clone() };
        assert!(!signal(&older, Signal::KILL), "another start time is another process");
        assert!(child.try_wait().expect("wait works").is_none());
        assert!(signal(&real, Signal::KILL));
        assert!(!child.wait().expect("wait works").success());
    }
}
