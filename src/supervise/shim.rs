//! The rank shim: the process between the engine and the user's program.
//!
//! The engine starts it in place of the script. It creates the pipes, sends their read ends and
//! its identity to the agent, starts the program and waits for it. It reports the exact end of
//! the rank, which the agent cannot learn otherwise: the engine is the parent of a rank and
//! reports only that something failed. It ends what the rank leaves behind and then ends as the
//! rank did: same code, or same signal. An interactive rank gets the launcher's own streams and
//! terminal instead of pipes.
//!
//! One thread, no runtime. Ignores every catchable signal, because engines signal the whole
//! group while the rank may be writing a checkpoint; of USR1 and USR2 it notes that they came.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::process::WaitOptions;

use super::bind::{self, Placement};
use super::budget::EndBudget;
use super::forwarded::{Forwarded, TWICE};
use super::message::{
    AGENT_SOCKET, DEAF_ENGINE, ERROR_FILE, FromRank, LARGEST_RECORD, RANK_SLOT, TERMINAL, ToRank,
};
use super::outcome::{End, Notice, exec_code};
use super::sweep::{KILL_PAUSE, Newcomers, SETTLE, Sweep, SweepStep};
use super::terminal::{Terminal, Then};
use super::{socket, tree};
use crate::deadline::with_deadline;
use crate::lang::{Text, cause};
use crate::rank::{GlobalRank, LocalRank};
use crate::regular_file;
use crate::sys::{
    self, Dispositions, PollFd, PollFlags, Signal, SignalQueue, SignalSet, own_pid, poll,
};
use crate::text;
use crate::verdict::Verdict;

/// Time limit for reading what a rank wrote of its exception.
const RECORD: Duration = Duration::from_millis(500);
/// By how much the time of a file may be wrong.
const CLOCK_SKEW: Duration = Duration::from_secs(5);
/// Characters of a program's path that always fit into a packet.
const NAMED: usize = 1000;

/// Runs the program named by `argv` as a rank. Gives the exit code.
///
/// Without an agent (no socket in the environment, or no listener) it execs the program.
pub(crate) fn rank(argv: Vec<OsString>) -> i32 {
    let argv = match argv.split_first() {
        // argparse may have removed the separator.
        Some((first, rest)) if first == "--" => rest.to_vec(),
        _ => argv,
    };
    let Some((program, args)) = argv.split_first() else {
        complain(&text!(
            "no program given\n  hint: this role is started by ranklaunch itself",
            "没有给出程序\n  提示：该角色由 ranklaunch 自己启动"
        ));
        return 64;
    };
    let mut command = Command::new(program);
    command.args(args).env_remove(AGENT_SOCKET).env_remove(RANK_SLOT).env_remove(bind::CPUS);
    let Some(agent) = Agent::find() else {
        let inherited = dispositions();
        sys::in_child(&mut command, move || sys::restore_in_child(&inherited));
        let error = command.exec();
        complain(&not_executed(program, &error));
        return exec_code(&error);
    };
    match Shim::start(agent, command, &program.to_string_lossy()) {
        Ok(mut shim) => shim.stay(),
        Err(error) => {
            complain(&not_executed(program, &error));
            exec_code(&error)
        }
    }
}

fn not_executed(program: &OsStr, error: &io::Error) -> Text {
    let (program, Text { en, zh }) = (program.display(), cause(error));
    text!("cannot execute {program}: {en}", "无法执行 {program}：{zh}")
}

/// Prints to standard error, the only stream of a rank without its program.
fn complain(text: &Text) {
    let words = text.get(bind::language());
    let _ = io::stderr().lock().write_all(format!("ranklaunch rank: {words}\n").as_bytes());
}

struct Agent {
    socket: OwnedFd,
    token: String,
    /// Grace period for leftovers of the rank.
    grace: Duration,
    /// The rank keeps the launcher's streams.
    interactive: bool,
}

/// The dispositions of the rank: those of the launcher.
fn dispositions() -> Dispositions {
    let mut inherited = Dispositions::inherited();
    let value = std::env::var(AGENT_SOCKET).unwrap_or_default();
    if value.split(' ').any(|word| word == DEAF_ENGINE) {
        inherited.ignored = inherited.ignored.without(&SignalSet::of(TWICE));
    }
    inherited
}

impl Agent {
    fn find() -> Option<Agent> {
        let value = std::env::var(AGENT_SOCKET).ok()?;
        let mut words = value.split(' ');
        Some(Agent {
            socket: socket::dial(words.next()?).ok()?,
            token: words.next()?.to_owned(),
            grace: Duration::from_millis(words.next()?.parse().ok()?),
            interactive: words.any(|word| word == TERMINAL),
        })
    }
}

fn number(name: &str) -> Option<u32> {
    std::env::var(name).ok()?.trim().parse().ok()
}

/// The rank from the slot that the agent gave, else from the engine's variables. An engine that
/// starts a single process may set none.
fn slot() -> (Option<GlobalRank>, LocalRank) {
    std::env::var(RANK_SLOT)
        .ok()
        .and_then(|value| {
            let (rank, local) = value.split_once(' ')?;
            Some((Some(GlobalRank(rank.parse().ok()?)), LocalRank(local.parse().ok()?)))
        })
        .unwrap_or_else(|| {
            let local = LocalRank(number("LOCAL_RANK").unwrap_or(0));
            (number("RANK").map(GlobalRank), local)
        })
}

/// The agent's answer to a Hello without pipes: its streams become the rank's.
fn take_streams(agent: &OwnedFd, command: &mut Command) -> io::Result<Option<Lent>> {
    let Some((ToRank::Terminal { owner }, streams)) = socket::receive(agent)? else {
        return Err(io::ErrorKind::ConnectionAborted.into());
    };
    let Ok([stdin, stdout, stderr]) = <[OwnedFd; 3]>::try_from(streams) else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    // An engine that gave the rank a session has removed it from job control. It can read the
    // terminal anyway, and the guard forwards Ctrl-C.
    let terminal = Terminal::of(stdin.as_fd(), owner);
    command.stdin(stdin).stdout(stdout).stderr(stderr);
    Ok(terminal.map(|terminal| Lent { terminal, owner }))
}

impl Lent {
    /// Stops the launcher's group as well, since its shell waits for that. SIGCONT to the group
    /// continues the rank.
    fn stopped(&self, rank: i32, signal: i32) {
        if self.terminal.stopped(rank, signal, false) == Then::StopOwner {
            let _ = sys::signal_group(self.owner, Some(Signal::TSTP));
        }
    }
}

struct Shim {
    agent: Option<OwnedFd>,
    signals: SignalQueue,
    forwarded: Forwarded,
    /// Before the user's process.
    began: SystemTime,
    /// The user's process.
    child: i32,
    /// The user's process was reaped, so its pid may be reused.
    reaped: bool,
    grace: Duration,
    /// We have no descendant any more.
    childless: bool,
    /// The terminal while it is lent to the rank; only in the launcher's session.
    terminal: Option<Lent>,
}

struct Lent {
    terminal: Terminal,
    /// The launcher's group, for which a shell waits.
    owner: i32,
}

impl Shim {
    fn start(agent: Agent, mut command: Command, program: &str) -> io::Result<Shim> {
        let inherited = dispositions();
        let me = rustix::process::getpid();
        rustix::process::set_child_subreaper(Some(me))?;
        sys::ignore_all();
        // A signal that is blocked is queued even if it is ignored.
        let signals = SignalQueue::begin(SignalSet::of(TWICE))?;

        let Agent { socket: agent, token, grace, interactive } = agent;
        let began = SystemTime::now();
        let (rank, local_rank) = slot();
        let world_size = number("WORLD_SIZE");
        let named = program.chars().take(NAMED).collect();
        let hello = FromRank::Hello { token, rank, local_rank, world_size, program: named };
        let terminal = if interactive {
            socket::send(&agent, &hello, &[])?;
            take_streams(&agent, &mut command)?
        } else {
            let (out_read, out_write) = io::pipe()?;
            let (err_read, err_write) = io::pipe()?;
            socket::send(&agent, &hello, &[out_read.as_fd(), err_read.as_fd()])?;
            command.stdout(OwnedFd::from(out_write)).stderr(OwnedFd::from(err_write));
            None
        };
        if let Some(lent) = &terminal {
            sys::in_child(&mut command, lent.terminal.lend_in_child()?);
        }
        let placement = Placement::of(local_rank.0);
        sys::in_child(&mut command, move || {
            placement.take();
            sys::restore_in_child(&inherited)
        });
        let spawned = command.spawn();
        // The command holds the write ends; with these open the agent would never see the end of
        // file.
        drop(command);
        match spawned {
            Ok(child) => {
                let pid = i32::try_from(child.id()).unwrap_or(0);
                let _ = socket::send(&agent, &FromRank::Started { pid }, &[]);
                Ok(Shim {
                    agent: Some(agent),
                    signals,
                    forwarded: Forwarded::default(),
                    began,
                    child: pid,
                    reaped: false,
                    grace,
                    childless: false,
                    terminal,
                })
            }
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or(0);
                let failed = FromRank::NotExecuted { program: program.to_owned(), errno };
                let _ = socket::send(&agent, &failed, &[]);
                let _ = socket::send(
                    &agent,
                    &FromRank::Ended { end: End::Code(exec_code(&error)) },
                    &[],
                );
                Err(error)
            }
        }
    }

    /// Waits for the rank, reports its end, ends its leftovers. Gives the code to end with.
    fn stay(&mut self) -> i32 {
        let end = loop {
            if let Some(end) = self.reap() {
                break end;
            }
            if self.childless {
                // Its status was taken elsewhere, so how it ended is unknown.
                break End::Code(Verdict::Internal.code());
            }
            if self.agent.is_none() {
                // Repeated, since the rank may be forking.
                signal_descendants(Signal::KILL);
                tree::kill_children(&HashSet::new());
            }
            self.wait(if self.agent.is_none() { Some(KILL_PAUSE) } else { None });
        };
        if let Some(lent) = &self.terminal {
            lent.terminal.take_back(self.child);
            if matches!(end, End::Signal(_)) {
                lent.terminal.restore_modes();
            }
        }
        if let Some(agent) = &self.agent {
            if let Some((said, record)) = recorded(end, self.began) {
                let _ = socket::send(agent, &said, &[record.as_fd()]);
            }
            let _ = socket::send(agent, &FromRank::Ended { end }, &[]);
        }
        self.end_leftovers(end);
        if let End::Signal(signal) = end {
            sys::die_by(signal);
        }
        end.shell_code()
    }

    /// Reaps all zombies. Gives the end of the rank if it is among them.
    fn reap(&mut self) -> Option<End> {
        let mut found = None;
        loop {
            match rustix::process::wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
                Ok(Some((pid, status))) => {
                    if pid.as_raw_pid() == self.child {
                        found = End::from_wait(status);
                        self.reaped |= found.is_some();
                        if let (Some(by), Some(lent)) = (status.stopping_signal(), &self.terminal) {
                            lent.stopped(self.child, by);
                        }
                    }
                }
                Ok(None) => return found,
                Err(Errno::INTR) => {}
                Err(_no_child) => {
                    self.childless = true;
                    return found;
                }
            }
        }
    }

    /// Waits until a child ends, the agent sends a packet, a signal is to be forwarded, or the time
    /// is over.
    fn wait(&mut self, timeout: Option<Duration>) {
        let forward = self.forwarded.wake();
        let forward = forward.map(|at| at.saturating_duration_since(Instant::now()));
        let timeout = [timeout, forward].into_iter().flatten().min();
        let mut waits = vec![PollFd::new(&self.signals, PollFlags::IN)];
        waits.extend(self.agent.as_ref().map(|agent| PollFd::new(agent, PollFlags::IN)));
        let _ = poll(&mut waits, timeout);
        let agent_spoke = waits.get(1).is_some_and(|wait| !wait.revents().is_empty());
        while let Some(taken) = self.signals.take() {
            self.forwarded.came(taken.number, Instant::now());
        }
        if agent_spoke {
            self.read_agent();
        }
        for number in self.forwarded.due(Instant::now()) {
            self.send(number);
        }
    }

    fn read_agent(&mut self) {
        let Some(agent) = &self.agent else { return };
        match socket::receive::<ToRank>(agent) {
            Ok(Some((ToRank::Signal { number }, _))) => {
                // A shell continued the launcher's group.
                if let (Some(Signal::CONT), Some(lent)) =
                    (Signal::from_named_raw(number), &self.terminal)
                {
                    return lent.terminal.go_on(self.child);
                }
                if self.forwarded.asked(number, Instant::now()) {
                    self.send(number);
                }
            }
            Ok(Some((ToRank::Terminal { .. }, _))) => {}
            // The agent is lost, and with it the reader of our pipes. The guard ends the job; we
            // do so too, in case the guard is lost as well.
            Ok(None) | Err(_) => self.agent = None,
        }
    }

    /// Signals the user's process. It keeps its pid until we reap it, so no look-up is needed; with
    /// hidepid it may not even be visible to us.
    fn send(&self, number: i32) {
        if !self.reaped {
            sys::send(self.child, number);
        }
    }

    /// After a success, leftovers such as uploads get TERM and the grace period. After a failure
    /// they are killed.
    fn end_leftovers(&mut self, end: End) {
        let grace = if end.success() { self.grace } else { Duration::ZERO };
        let last_wait = EndBudget::of(self.grace).after_kill();
        let mut sweep = Sweep::begin(Instant::now(), Newcomers::Spared, SETTLE, grace, last_wait);
        let mut told = false;
        loop {
            self.reap();
            // Every orphan below us becomes our child, so without a child nothing is left.
            if self.childless {
                return;
            }
            let now = Instant::now();
            if self.agent.is_none() {
                sweep.kill_now(now, last_wait);
            }
            let (step, wake) = sweep.step(now);
            if step != SweepStep::Wait && end.success() && !told {
                told = true;
                self.tell_of_leftovers();
            }
            match step {
                SweepStep::Wait => {}
                SweepStep::Term => signal_descendants(Signal::TERM),
                SweepStep::Kill => {
                    signal_descendants(Signal::KILL);
                    tree::kill_children(&HashSet::new());
                }
                // A process that outlives SIGKILL sleeps in the kernel; the agent will name it.
                SweepStep::GiveUp => return,
            }
            self.wait(Some(wake.saturating_duration_since(now)));
        }
    }

    /// Leftovers of a successful rank are ended too. That is reported, since they may be the
    /// work itself (`train.py & exit 0`).
    fn tell_of_leftovers(&self) {
        let all = tree::snapshot();
        let left = tree::descendants(&all, own_pid());
        if let (Some(agent), false) = (&self.agent, left.is_empty()) {
            let said =
                FromRank::Leftovers { names: tree::names(&left, Notice::NAMED), count: left.len() };
            let _ = socket::send(agent, &said, &[]);
        }
    }
}

/// A copy in memory of what torch's `@record` wrote of a failed rank that began at `began`.
fn recorded(end: End, began: SystemTime) -> Option<(FromRank, OwnedFd)> {
    let path = PathBuf::from(std::env::var_os(ERROR_FILE)?);
    if end.success() || path.as_os_str().is_empty() {
        return None;
    }
    // The file may be on a mount that died, which must not hold the end of the rank.
    let read = move || -> io::Result<_> {
        let (file, _) = regular_file::open(&path)?;
        let metadata = file.metadata()?;
        // Of an earlier attempt, or of another job. The clock of a file server may be behind, and
        // a file may have any time.
        let is_old = began.duration_since(metadata.modified()?).is_ok_and(|age| age > CLOCK_SKEW);
        let mut bytes = Vec::new();
        file.take(if is_old { 0 } else { LARGEST_RECORD }).read_to_end(&mut bytes)?;
        Ok((FromRank::Recorded { device: metadata.dev(), inode: metadata.ino() }, bytes))
    };
    let (said, bytes) = with_deadline(RECORD, read)?.ok()?;
    if bytes.is_empty() {
        return None;
    }
    let copy = rustix::fs::memfd_create("error.json", MemfdFlags::CLOEXEC).ok()?;
    let mut copy = File::from(copy);
    copy.write_all(&bytes).ok()?;
    Some((said, copy.into()))
}

fn signal_descendants(signal: Signal) {
    let all = tree::snapshot();
    tree::signal_all(&tree::descendants(&all, own_pid()), signal);
}
