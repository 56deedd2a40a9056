//! Reads processes from /proc.
//!
//! Takes a [`Host`]; gives plain values. A process that has ended meanwhile, or that may not be
//! read, is `None`, never an error; hidden fields are missing. Only reads; the callers decide.
//!
//! A scan opens one file per process (`stat`). Command line, environment and descriptors are
//! read only for single processes, since each read takes the process's memory lock or walks its
//! descriptor table.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bstr::ByteSlice;

use crate::cgroups::memberships;
use crate::deadline::with_deadline;
use crate::host::Host;
use text::mask;
use text::order::InOrder;

/// The variable that marks every process of a job: `<job>:<agent pid>:<agent start
/// ticks>`. Supervision sets it, and the stale scan of a later run looks for it.
pub const JOB_MARK: &str = "RANKLAUNCH_JOB";

/// One line of `/proc/<pid>/stat`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    pub pid: i32,
    pub ppid: i32,
    pub pgid: i32,
    pub session: i32,
    /// Device number of the controlling terminal; 0 if it has none.
    pub terminal: i32,
    /// The kernel's own flags of the task (PF_*).
    pub flags: u32,
    /// Clock ticks since boot. Together with the pid it identifies a process.
    pub start_ticks: u64,
    /// `R`, `S`, `D`, `Z`… of the first thread.
    pub state: u8,
    /// Remaining threads, including the first one until it is reaped.
    pub threads: u32,
    /// At most 15 arbitrary bytes, including spaces and parentheses.
    pub comm: Vec<u8>,
}

impl Process {
    /// Parses a `stat` line. The comm ends at the *last* parenthesis, since it is the only arbitrary
    /// text.
    pub fn parse(line: &[u8]) -> Option<Process> {
        let open = line.find_byte(b'(')?;
        let close = line.rfind_byte(b')')?;
        let number = |field: Option<&[u8]>| -> Option<i32> { field?.to_str().ok()?.parse().ok() };
        let pid = number(line.get(..open).map(<[u8]>::trim_ascii))?;
        let comm = line.get(open + 1..close)?.to_vec();
        // proc_pid_stat(5): state is field 3, then ppid pgrp session tty_nr; flags is
        // field 9, num_threads field 20, starttime field 22.
        let mut fields = words(line.get(close + 1..)?);
        let state = *fields.next()?.first()?;
        let ppid = number(fields.next())?;
        let pgid = number(fields.next())?;
        let session = number(fields.next())?;
        let terminal = number(fields.next())?;
        let flags = fields.nth(1)?.to_str().ok()?.parse().ok()?;
        let threads = fields.nth(10)?.to_str().ok()?.parse().ok()?;
        let start_ticks = fields.nth(1)?.to_str().ok()?.parse().ok()?;
        Some(Process {
            pid,
            ppid,
            pgid,
            session,
            terminal,
            flags,
            start_ticks,
            state,
            threads,
            comm,
        })
    }

    /// [`ProcessFiles::stat`] without a [`Host`]; `proc` is the mount point of procfs.
    pub fn at(proc: &Path, pid: i32) -> Option<Process> {
        let mut line = Vec::with_capacity(512);
        read_into(&proc.join(format!("{pid}/stat")), &mut line)?;
        Process::parse(&line)
    }

    /// Our own process by the pids of this /proc, which may be of another PID namespace.
    pub fn own(host: &Host) -> Option<Process> {
        Process::parse(&std::fs::read(host.path("/proc/self/stat")).ok()?)
    }

    /// Whether it is a zombie, which has only its pid. A process whose first thread ended by
    /// pthread_exit looks the same while its other threads run.
    pub fn is_dead(&self) -> bool {
        matches!(self.state, b'Z' | b'X' | b'x') && self.threads <= 1
    }

    pub fn is_kernel_thread(&self) -> bool {
        /// PF_KTHREAD (linux/sched.h). The parent is no proof: pid 2 is kthreadd only in the
        /// first namespace.
        const KERNEL_THREAD: u32 = 0x0020_0000;
        self.flags & KERNEL_THREAD != 0
    }

    /// The kernel's short name in the place of the arguments, as ps(1) shows a process that has none.
    pub fn bracketed(&self) -> Vec<Vec<u8>> {
        vec![[b"[", self.comm.as_slice(), b"]"].concat()]
    }
}

impl Process {
    /// [`Host::processes`] without a [`Host`]; `proc` is the mount point of procfs.
    pub fn scan(proc: &Path) -> BTreeMap<i32, Process> {
        let mut path = proc.as_os_str().as_bytes().to_vec();
        path.push(b'/');
        let stem = path.len();
        let mut line = Vec::with_capacity(512);
        let mut all = BTreeMap::new();
        for pid in pids_in(proc) {
            path.truncate(stem);
            path.extend_from_slice(pid.to_string().as_bytes());
            path.extend_from_slice(b"/stat");
            line.clear();
            if read_into(Path::new(std::ffi::OsStr::from_bytes(&path)), &mut line).is_some()
                && let Some(process) = Process::parse(&line)
            {
                all.insert(process.pid, process);
            }
        }
        all
    }

    /// The ancestors of `pid`, in an existing scan.
    pub fn ancestors(all: &BTreeMap<i32, Process>, pid: i32) -> Vec<&Process> {
        chain(all.get(&pid).map(|process| process.ppid), |pid| all.get(&pid))
    }

    /// All children of `roots`, their children and so on, without the roots; parents come before
    /// their children.
    pub fn descendants<'a>(all: &'a BTreeMap<i32, Process>, roots: &[i32]) -> Vec<&'a Process> {
        let mut children: BTreeMap<i32, Vec<&Process>> = BTreeMap::new();
        for process in all.values() {
            children.entry(process.ppid).or_default().push(process);
        }
        let mut seen: BTreeSet<i32> = roots.iter().copied().in_set();
        let mut open: Vec<i32> = seen.iter().copied().collect();
        let mut found = Vec::new();
        while let Some(pid) = open.pop() {
            for child in children.get(&pid).into_iter().flatten() {
                if seen.insert(child.pid) {
                    open.push(child.pid);
                    found.push(*child);
                }
            }
        }
        found
    }
}

/// The files of one process below `/proc`.
#[derive(Debug, Clone, Copy)]
pub struct ProcessFiles<'a> {
    host: &'a Host,
    pid: i32,
}

impl Host {
    /// Every pid of /proc, in the kernel's (ascending) order.
    pub fn pids(&self) -> Vec<i32> {
        pids_in(&self.path("/proc"))
    }

    /// Every process, by pid.
    pub fn processes(&self) -> BTreeMap<i32, Process> {
        Process::scan(&self.path("/proc"))
    }

    /// Our ancestors, up to the first process of the namespace. Recorded for a replay.
    pub fn ancestors(&self) -> Vec<Process> {
        let read =
            |pid: &str| Process::parse(self.read(format!("/proc/{pid}/stat")).ok()?.as_bytes());
        let own = read("self").map(|own| own.ppid);
        chain(own, |pid| read(&pid.to_string()))
    }

    /// The process with this pid, whether there is one or not.
    pub fn process(&self, pid: i32) -> ProcessFiles<'_> {
        ProcessFiles { host: self, pid }
    }
}

impl ProcessFiles<'_> {
    /// The process with this pid, if there is one.
    pub fn stat(self) -> Option<Process> {
        Process::at(&self.host.path("/proc"), self.pid)
    }

    /// Whether the process with this pid is alive and started at `start_ticks`.
    pub fn is_alive(self, start_ticks: u64) -> bool {
        self.stat().is_some_and(|now| now.start_ticks == start_ticks && !now.is_dead())
    }

    /// Whether a process runs and no SIGKILL has reached it: none is pending, and the process is not
    /// exiting. An exit takes long if it gives back much memory.
    pub fn lives_on(self) -> bool {
        /// PF_EXITING and PF_SIGNALED (linux/sched.h).
        const ENDS: u32 = 0x0000_0404;
        const KILL: u64 = 1 << 8;
        // The signal goes from pending to the flag, so the flag is read last.
        let status = self.host.read(self.file("status")).unwrap_or_default();
        let pending = |name: &str| {
            let mask = status.lines().find_map(|line| line.strip_prefix(name))?;
            u64::from_str_radix(mask.trim(), 16).ok()
        };
        let (Some(own), Some(shared)) = (pending("SigPnd:"), pending("ShdPnd:")) else {
            return false;
        };
        let lives = |now: Process| !now.is_dead() && now.flags & ENDS == 0;
        (own | shared) & KILL == 0 && self.stat().is_some_and(lives)
    }

    /// The arguments; empty for kernel threads and zombies. A title set by setproctitle is returned with
    /// the NUL bytes that it left.
    pub fn cmdline(self) -> Option<Vec<Vec<u8>>> {
        Some(split_nul(&self.bytes("cmdline")?))
    }

    /// The environment at exec, as `NAME=value`; None without the right to read it.
    pub fn environ(self) -> Option<Vec<Vec<u8>>> {
        Some(split_nul(&self.bytes("environ")?))
    }

    /// Effective user id.
    pub fn uid(self) -> Option<u32> {
        let status = self.bytes("status")?;
        let line = status.lines().find_map(|line| line.strip_prefix(b"Uid:"))?;
        // real, effective, saved, file system
        words(line).nth(1)?.to_str().ok()?.parse().ok()
    }

    pub fn cwd(self) -> Option<PathBuf> {
        self.link("cwd")
    }

    /// The executable; ` (deleted)` is appended by the kernel when it was replaced.
    pub fn exe(self) -> Option<PathBuf> {
        self.link("exe")
    }

    /// Whether a file whose path contains `part` is mapped; false also if the maps may not be read.
    pub fn has_mapped(self, part: &[u8]) -> bool {
        self.bytes("maps").is_some_and(|maps| maps.find(part).is_some())
    }

    /// The group of the process in version 2, as /proc names it. A zombie's group is the group in which it
    /// ended; version 1 forgets that group (proc_cgroup_show).
    pub fn unified_group(self) -> Option<String> {
        let text = self.host.read(self.file("cgroup")).ok()?;
        text.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_owned)
    }

    /// The kernel function in which the process sleeps, if readable.
    pub fn wchan(self) -> Option<String> {
        let text = self.bytes("wchan")?;
        let text = text.trim_ascii().to_str_lossy().into_owned();
        (!text.is_empty() && text != "0").then_some(text)
    }

    /// None if the process has ended or its namespaces cannot be read.
    pub fn container(self) -> Option<ContainerId> {
        let text = self.bytes("cgroup")?;
        let text = text.to_str_lossy();
        let counts = |controllers: &str| {
            controllers.is_empty()
                || controllers.split(',').any(|it| it == "memory" || it == "pids")
        };
        let groups = memberships(&text).filter(|(controllers, _)| counts(controllers));
        let mut cgroup: Vec<String> = groups.map(|(_, path)| path.to_owned()).collect();
        cgroup.sort();
        let hidden = cgroup.iter().all(|path| path == "/");
        let mount_namespace = if hidden { Some(self.link("ns/mnt")?) } else { None };
        Some(ContainerId { pid_namespace: self.pid_namespace()?, cgroup, mount_namespace })
    }

    /// Such as `pid:[4026531836]`.
    pub fn pid_namespace(self) -> Option<PathBuf> {
        self.link("ns/pid")
    }

    /// The boot of a host and the PID namespace in it of a process: pids and start times are valid only there.
    /// `1b4e28ba-2fa1-11d2-883f-0016d3cca427:4026531836`, or None where the kernel does not tell.
    pub fn pid_place(self) -> Option<String> {
        let boot = self.host.read("/proc/sys/kernel/random/boot_id").ok()?;
        let namespace = self.pid_namespace()?;
        let number: String = namespace.to_str()?.chars().filter(char::is_ascii_digit).collect();
        Some(format!("{}:{number}", boot.trim()))
    }

    /// Minors of the open `/dev/nvidia[0-9]+`. Empty also if the table may not be read.
    pub fn gpu_minors(self) -> BTreeSet<u32> {
        let minor = |target: PathBuf| target.to_str()?.strip_prefix("/dev/nvidia")?.parse().ok();
        self.descriptors().filter_map(minor).in_set()
    }

    fn descriptors(self) -> impl Iterator<Item = PathBuf> + use<> {
        std::fs::read_dir(self.host.path(self.file("fd")))
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| std::fs::read_link(entry.path()).ok())
    }

    fn link(self, name: &str) -> Option<PathBuf> {
        self.host.read_link(Path::new(&self.file(name))).ok()
    }

    fn bytes(self, name: &str) -> Option<Vec<u8>> {
        let mut content = Vec::with_capacity(1024);
        read_into(&self.host.path(self.file(name)), &mut content)?;
        Some(content)
    }

    fn file(self, name: &str) -> String {
        format!("/proc/{}/{name}", self.pid)
    }
}

fn pids_in(proc: &Path) -> Vec<i32> {
    let Ok(entries) = std::fs::read_dir(proc) else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The value of `name` among `NAME=value` entries.
pub fn variable<'a>(environ: &'a [Vec<u8>], name: &str) -> Option<&'a [u8]> {
    environ.iter().find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
}

/// Identifies the container of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerId {
    /// `pid:[4026531836]`
    pid_namespace: PathBuf,
    /// Paths of the v2 hierarchy and of v1 memory and pids.
    cgroup: Vec<String>,
    /// Compared only if a cgroup namespace shows every container as `/`.
    mount_namespace: Option<PathBuf>,
}

/// From `first` upwards, as long as parents are found.
fn chain<P: Borrow<Process>>(first: Option<i32>, find: impl Fn(i32) -> Option<P>) -> Vec<P> {
    let mut chain: Vec<P> = Vec::new();
    let mut next = first;
    // 0 is a parent outside of the namespace.
    while let Some(process) = next.filter(|pid| *pid > 0).and_then(&find) {
        let seen = process.borrow();
        // A pid reused between two reads could form a cycle.
        if chain.iter().any(|one| one.borrow().pid == seen.pid) {
            break;
        }
        next = Some(seen.ppid);
        chain.push(process);
    }
    chain
}

/// A listener on a TCP port of this network namespace. The owner is None if no visible process
/// has the socket: it belongs to another container of the pod or to another user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListeningSocket {
    pub inode: u64,
    pub owner: Option<(i32, Vec<Vec<u8>>)>,
}

impl ListeningSocket {
    /// The listener on `port`, with its owner's pid and arguments if visible.
    pub fn on(host: &Host, port: u16) -> Option<ListeningSocket> {
        let inode = listening_socket(host, port)?;
        let owner = owner_of(host, inode).map(|pid| (pid, argv_in_time(host, pid)));
        Some(ListeningSocket { inode, owner })
    }

    /// The process that listens on `port`, if it is visible. Nothing of its memory is read.
    pub fn owner_on(host: &Host, port: u16) -> Option<i32> {
        owner_of(host, listening_socket(host, port)?)
    }
}

/// The arguments, or the kernel's short name where they cannot be read: a process that waits for a page of a dead mount
/// does not give them.
fn argv_in_time(host: &Host, pid: i32) -> Vec<Vec<u8>> {
    const ANSWER: Duration = Duration::from_millis(500);
    let of = host.clone();
    let argv = with_deadline(ANSWER, move || of.process(pid).cmdline()).flatten();
    argv.filter(|argv| !argv.is_empty()).unwrap_or_else(|| {
        host.process(pid).stat().map(|process| process.bracketed()).unwrap_or_default()
    })
}

fn listening_socket(host: &Host, port: u16) -> Option<u64> {
    let mut tables =
        ["/proc/self/net/tcp", "/proc/self/net/tcp6", "/proc/net/tcp", "/proc/net/tcp6"]
            .into_iter();
    tables.find_map(|table| listening_inode(&host.read(table).ok()?, port))
}

fn owner_of(host: &Host, inode: u64) -> Option<i32> {
    let socket = PathBuf::from(format!("socket:[{inode}]"));
    let has = |pid: &i32| host.process(*pid).descriptors().any(|target| target == socket);
    host.pids().into_iter().find(has)
}

/// proc_net_tcp: `sl local_address rem_address st … uid timeout inode`; state 0A listens.
fn listening_inode(table: &str, port: u16) -> Option<u64> {
    table.lines().skip(1).find_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let (_, local) = fields.next()?.rsplit_once(':')?;
        let state = fields.nth(1)?;
        let inode = fields.nth(5)?.parse().ok()?;
        (state == "0A" && u16::from_str_radix(local, 16).ok()? == port).then_some(inode)
    })
}

fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty())
}

/// `take` keeps std from querying size and position, which are useless in /proc: saves two
/// system calls for each of some hundred files.
fn read_into(path: &Path, content: &mut Vec<u8>) -> Option<()> {
    std::fs::File::open(path).ok()?.take(u64::MAX).read_to_end(content).ok().map(drop)
}

/// The words of a file of /proc in which each ends with a NUL byte.
pub fn split_nul(content: &[u8]) -> Vec<Vec<u8>> {
    let content = content.strip_suffix(b"\0").unwrap_or(content);
    if content.is_empty() {
        return Vec::new();
    }
    content.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect()
}

/// The file name of an argument or path.
pub fn basename(argument: &[u8]) -> &[u8] {
    argument.rsplit(|byte| *byte == b'/').next().unwrap_or(argument)
}

/// Shells that take `-c SCRIPT`.
const SHELLS: [&[u8]; 7] = [b"bash", b"sh", b"dash", b"ash", b"zsh", b"ksh", b"mksh"];

/// Whether a file of this name is a shell that takes `-c SCRIPT`.
pub fn is_shell(name: &[u8]) -> bool {
    SHELLS.contains(&name)
}

/// Bytes as a path.
pub fn as_path(argument: &[u8]) -> PathBuf {
    PathBuf::from(OsString::from_vec(argument.to_vec()))
}

/// The command line for printing: secrets masked, cut to about 200 characters.
pub fn shown(argv: &[Vec<u8>]) -> String {
    let words: Vec<OsString> = argv.iter().cloned().map(OsString::from_vec).collect();
    let words: Vec<String> = mask::mask_args(&words)
        .iter()
        .map(|word| word.to_string_lossy().escape_debug().to_string())
        .collect();
    let line = words.join(" ");
    match line.char_indices().nth(200) {
        Some((cut, _)) => format!("{}…", line.get(..cut).unwrap_or_default()),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comm_may_hold_spaces_and_parentheses() {
        let line =
            b"42 (a) S 1 (b) R 7 42 41 34816 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 123456 9 9 9";
        let process = Process::parse(line).expect("parses");
        assert_eq!(process.comm, b"a) S 1 (b");
        assert_eq!((process.pid, process.ppid, process.pgid), (42, 7, 42));
        assert_eq!((process.session, process.terminal), (41, 34816));
        assert_eq!((process.flags, process.threads), (4194560, 1));
        assert_eq!((process.start_ticks, process.state), (123456, b'R'));
        for broken in [&b""[..], b"42", b"42 (x", b"42 (x) S", b") (", b"x (y) S 1 1 1 1"] {
            assert_eq!(Process::parse(broken), None);
        }
    }

    #[test]
    fn kernel_threads_are_recognised_by_their_flag() {
        let stat = |line: &[u8]| Process::parse(line).expect("parses");
        let rest = b"0 0 0 0 20 0 1 0 5 0 0";
        let of = |head: &[u8]| stat(&[head, rest].concat());
        let thread = b"9 (kworker/0:0) I 2 0 0 0 -1 69238880 0 0 0 0 ";
        assert!(of(thread).is_kernel_thread());
        // A child of pid 2 of a container (`unshare -pf` without a session of its own).
        let child = b"3 (python3) S 2 0 0 0 -1 4194560 0 0 0 0 ";
        assert!(!of(child).is_kernel_thread());
    }

    #[test]
    fn processes_include_ourselves_and_our_children() {
        let host = Host::live();
        let own_pid = std::process::id().cast_signed();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep");
        let pid = child.id().cast_signed();
        let all = host.processes();
        let seen = Process::descendants(&all, &[own_pid]);
        assert!(seen.iter().any(|process| process.pid == pid));
        assert_eq!(Process::ancestors(&all, pid).first().map(|parent| parent.pid), Some(own_pid));
        let parents = |chain: Vec<&Process>| chain.iter().map(|one| one.pid).collect::<Vec<_>>();
        let above = host.ancestors();
        assert_eq!(parents(above.iter().collect()), parents(Process::ancestors(&all, own_pid)));
        assert_eq!(host.process(pid).uid(), Some(rustix::process::geteuid().as_raw()));
        assert_eq!(host.process(pid).container(), host.process(own_pid).container());
        assert_eq!(Process::own(&host).map(|process| process.pid), Some(own_pid));
        let start = host.process(pid).stat().expect("lives").start_ticks;
        assert!(host.process(pid).is_alive(start));
        assert!(!host.process(pid).is_alive(start + 1));
        child.kill().expect("kill");
        child.wait().expect("wait");
        assert!(!host.process(pid).is_alive(start));
        assert_eq!(host.process(pid).cmdline(), None);
    }

    #[test]
    fn the_owner_of_a_port_is_found() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
        let port = listener.local_addr().expect("address").port();
        let seen = ListeningSocket::on(&Host::live(), port).expect("listens");
        assert_eq!(seen.owner.map(|(pid, _)| pid), Some(std::process::id().cast_signed()));
        drop(listener);
        assert_eq!(ListeningSocket::on(&Host::live(), port), None);
    }

    #[test]
    fn arguments_split_at_nul_and_may_be_empty() {
        assert_eq!(split_nul(b"python\0-c\0\0"), [&b"python"[..], b"-c", b""]);
        assert!(split_nul(b"").is_empty());
        assert_eq!(variable(&split_nul(b"A=1\0AB=2\0"), "AB"), Some(&b"2"[..]));
    }

    #[test]
    fn secrets_are_not_shown() {
        assert_eq!(
            shown(&split_nul(b"python\0t.py\0--api-key\0abc\0--hf_token=def\0--size\x003\0")),
            "python t.py --api-key *** --hf_token=*** --size 3"
        );
        assert!(shown(&[vec![b'x'; 5000]]).chars().count() <= 201);
        assert!(!shown(&[b"a\x1b[2J".to_vec()]).contains('\x1b'));
    }
}
