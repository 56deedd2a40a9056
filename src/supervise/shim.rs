//! The rank shim: the process between the engine and the user's program.
//!
//! The engine starts it in place of the script. It creates the pipes, sends their read ends and
//! its identity to the agent, starts the program and waits for it. It reports the exact end of
//! the rank, which the agent cannot learn otherwise: the engine is the parent of a rank and
//! reports only that something failed. It ends what the rank leaves behind and then ends as the
//! rank did: same code, or same signal. An interactive rank gets the launcher's own streams and
//! terminal instead of pipes.
//!
//! One thread, no runtime. Ignores every catchable signal, since it must outlive its rank. An engine
//! that gave it a process group signals that group; the rank has another one, and gets from the
//! shim what it does not have yet ([`super::forwarded`]). A stop reaches the user's process alone, its
//! helpers when that has ended ([`super::asked`]).

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use rustix::io::Errno;
use rustix::process::{WaitId, WaitIdOptions, WaitOptions, waitid};

use super::asked::{self, Asked};
use super::bind::{self, Placement};
use super::budget::EndBudget;
use super::ends::take_over;
use super::forwarded::{Forwarded, TWICE, WATCHED, comes_twice};
use super::manager;
use super::message::{
    AGENT_SOCKET, DEAF_ENGINE, FREE_ENGINE, FromRank, RANK_SLOT, TERMINAL, ToRank,
};
use super::record::recorded;
use super::sweep::{KILL_PAUSE, Newcomers, SETTLE, Sweep, SweepStep};
use super::terminal::{Terminal, Then};
use super::warmed::{self, Adoption, RelaySocket};
use super::{attempts, socket, stdin, tree};
use crate::inject;
use linux::host::Host;
use linux::sys::{
    self, Dispositions, Pid, PollFd, PollFlags, ProcessGroup, Signal, SignalQueue, SignalSet,
    own_pid, poll,
};
use text::lang::{Text, cause};
use text::rank::{GlobalRank, LocalRank};
use text::text;
use verdict::Verdict;
use verdict::outcome::{End, Notice, exec_code};

/// Characters of a program's path that always fit into a packet.
const NAMED: usize = 1000;

/// Runs the program named by `argv` as a rank. Gives the exit code.
///
/// Without an agent (no socket in the environment, or no listener) it execs the program.
pub fn rank(argv: Vec<OsString>) -> i32 {
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
    warmed::remove_variables(&mut command);
    for (name, value) in inject::for_rank(|name| std::env::var_os(name)) {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    for (name, value) in attempts::for_rank(|name| std::env::var(name).ok()) {
        command.env(name, value);
    }
    if std::env::var_os(RANK_SLOT).is_none() {
        stdin::leave_to_first(is_first());
    }
    let adoption = Adoption::find();
    // Asks before the agent hears of a shim that may not have the rank.
    if adoption.is_none() && std::env::var_os(AGENT_SOCKET).is_some() {
        match warmed::ask(&command) {
            Ok(Some(relay)) => return relay.stay(),
            Ok(None) => {}
            Err(late) => complain(&late),
        }
    }
    let Some(agent) = Agent::find() else {
        if adoption.is_some() {
            // The shim that asked starts the rank.
            return Verdict::Internal.code();
        }
        let inherited = dispositions();
        sys::in_child(&mut command, move || inherited.restore_in_child());
        let error = command.exec();
        complain(&not_executed(program, &error));
        return exec_code(&error);
    };
    let is_adopted = adoption.is_some();
    match Shim::start(agent, command, &program.to_string_lossy(), adoption) {
        Ok(mut shim) => shim.stay(),
        // The shim that asked, or the agent, has ended or waits no more: the program is not to blame.
        Err(error) if is_adopted && error.kind() == io::ErrorKind::BrokenPipe => {
            Verdict::Internal.code()
        }
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

fn not_begun(error: &io::Error) -> Text {
    let Text { en, zh } = cause(error);
    text!(
        "the process that was forked for this rank did not begin ({en}): it starts by itself",
        "为该 rank fork 的进程未能开始（{zh}）：改为自行启动"
    )
}

/// Prints to standard error, the only stream of a rank without its program.
fn complain(text: &Text) {
    let _ = io::stderr().lock().write_all(complaint(text).as_bytes());
}

fn complaint(text: &Text) -> String {
    format!("ranklaunch rank: {}\n", text.get(bind::language()))
}

struct Agent {
    socket: OwnedFd,
    token: String,
    /// Grace period for leftovers of the rank.
    grace: Duration,
    /// The rank keeps the launcher's streams.
    interactive: bool,
    /// The shim is below an engine that must not see a failure before the other ranks have ended.
    waits: bool,
    below_engine: bool,
}

/// The signal dispositions of the rank: those of the launcher.
fn dispositions() -> Dispositions {
    let mut inherited = Dispositions::inherited();
    let value = std::env::var(AGENT_SOCKET).unwrap_or_default();
    if value.split(' ').any(|word| word == DEAF_ENGINE) {
        inherited.ignored = inherited.ignored.without(&SignalSet::of(&TWICE));
    }
    inherited
}

impl Agent {
    fn find() -> Option<Agent> {
        let value = std::env::var(AGENT_SOCKET).ok()?;
        let mut words = value.split(' ');
        let has = |name: &str| value.split(' ').any(|word| word == name);
        let below_engine = std::env::var_os(RANK_SLOT).is_none();
        Some(Agent {
            socket: socket::dial(words.next()?).ok()?,
            token: words.next()?.to_owned(),
            grace: Duration::from_millis(words.next()?.parse().ok()?),
            interactive: has(TERMINAL),
            waits: below_engine && !has(FREE_ENGINE),
            below_engine,
        })
    }
}

fn number(name: &str) -> Option<u32> {
    std::env::var(name).ok()?.trim().parse().ok()
}

/// Whether the engine has this rank as the first of the node. With torchrun's
/// `--virtual-local-rank` each has LOCAL_RANK 0.
fn is_first() -> bool {
    let in_world = number("RANK").zip(number("LOCAL_WORLD_SIZE"));
    number("LOCAL_RANK").unwrap_or(0) == 0
        && in_world.is_none_or(|(rank, ranks)| rank.checked_rem(ranks).unwrap_or(0) == 0)
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
    let owner = ProcessGroup(owner);
    let terminal = Terminal::of(stdin.as_fd(), owner);
    command.stdin(stdin).stdout(stdout).stderr(stderr);
    Ok(terminal.map(|terminal| Lent { terminal, owner }))
}

impl Lent {
    /// Stops the launcher's group as well, since its shell waits for that. SIGCONT to the group
    /// continues the rank.
    fn stopped(&self, rank: i32, signal: i32) {
        if self.terminal.stopped(ProcessGroup(rank), signal, false) == Then::StopOwner {
            let _ = self.owner.signal(Some(Signal::TSTP));
        }
    }
}

struct Shim {
    agent: Option<OwnedFd>,
    signals: SignalQueue,
    forwarded: Forwarded,
    /// The engine, if it signals our group in place of the rank's.
    engine: Option<i32>,
    /// The process above us that signals all processes of the job.
    manager: Option<i32>,
    /// A time before the start of the user's process.
    began: SystemTime,
    /// The user's process.
    child: i32,
    /// The user's process was reaped, so its pid may be reused.
    reaped: bool,
    /// The control group in which SIGKILL met the user's process, if that is not ours.
    killed_in: Option<String>,
    grace: Duration,
    /// The shim has no descendant any more.
    childless: bool,
    /// The terminal while it is lent to the rank; only in the launcher's session.
    terminal: Option<Lent>,
    /// The engine must not see a failure before the other ranks have ended: true only below an engine
    /// that does not restart ranks and that the agent is not stopping.
    waits: bool,
    below_engine: bool,
    /// The job stops, and the rank has been told.
    stop: Option<Asked>,
    /// The rank has failed, and the engine must not see it yet.
    waits_for_others: bool,
    /// The agent has sent [`ToRank::Leave`], or the engine ends its ranks.
    may_leave: bool,
    /// The relay that is the engine's child, if that is another process.
    relay: Option<RelaySocket>,
}

/// The control group of a child that SIGKILL has ended and that is not reaped yet, if it is not ours:
/// a rank may have entered another group, and the kernel counts kills for memory there.
fn killed_elsewhere(child: i32) -> Option<String> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let ended = waitid(WaitId::Pid(Pid::from_raw(child)?), options).ok()??;
    if ended.terminating_signal() != Some(Signal::KILL.as_raw()) {
        return None;
    }
    let host = Host::live();
    let group = host.process(child).unified_group()?;
    let is_own = host.process(own_pid()).unified_group().is_some_and(|own| own == group);
    (!is_own && group.len() <= NAMED).then_some(group)
}

struct Lent {
    terminal: Terminal,
    /// The launcher's group, for which a shell waits.
    owner: ProcessGroup,
}

impl Shim {
    fn start(
        agent: Agent,
        mut command: Command,
        program: &str,
        adoption: Option<Adoption>,
    ) -> io::Result<Shim> {
        let inherited = dispositions();
        let me = rustix::process::getpid();
        rustix::process::set_child_subreaper(Some(me))?;
        Dispositions::ignore_all();
        // A blocked signal is queued even if it is ignored.
        let signals = SignalQueue::begin(SignalSet::of(&WATCHED))?;
        let parent = match &adoption {
            Some(adoption) => adoption.engine,
            None => sys::parent_pid(),
        };
        let (forked, relay) = match adoption {
            Some(adoption) => {
                let (forked, relay) = adoption.begin()?;
                (Some(forked), Some(relay))
            }
            None => (None, None),
        };
        // Under an engine that gave us no group, the rank stays in that of the engine.
        let engine = (!agent.interactive && ProcessGroup::own().0 == own_pid()).then_some(parent);
        let manager = manager::above();

        let Agent { socket: agent, token, grace, interactive, waits, below_engine } = agent;
        let began = SystemTime::now();
        let (rank, local_rank) = slot();
        let world_size = number("WORLD_SIZE");
        let named: String = program.chars().take(NAMED).collect();
        let program = named.clone();
        let hello = FromRank::Hello { token, rank, local_rank, world_size, program };
        let mut running = None;
        let terminal = if interactive {
            socket::send(&agent, &hello, &[])?;
            take_streams(&agent, &mut command)?
        } else {
            let (out_read, out_write) = io::pipe()?;
            let (err_read, err_write) = io::pipe()?;
            socket::send(&agent, &hello, &[out_read.as_fd(), err_read.as_fd()])?;
            if let Some(forked) = forked {
                let placement = Placement::of(local_rank.0);
                placement.give(forked.pid, &err_write);
                if engine.is_some() {
                    ProcessGroup::give(forked.pid);
                }
                match forked.begin(out_write.as_fd(), err_write.as_fd()) {
                    Ok(()) => running = Some(forked.pid),
                    Err(error) => {
                        let words = complaint(&not_begun(&error));
                        let _ = rustix::io::write(&err_write, words.as_bytes());
                    }
                }
            }
            command.stdout(OwnedFd::from(out_write)).stderr(OwnedFd::from(err_write));
            None
        };
        if let Some(lent) = &terminal {
            sys::in_child(&mut command, lent.terminal.lend_in_child()?);
        }
        let placement = Placement::of(local_rank.0);
        sys::in_child(&mut command, move || {
            placement.take();
            if engine.is_some() {
                ProcessGroup::begin()?;
            }
            inherited.restore_in_child()
        });
        let spawned = match running {
            Some(pid) => Ok(pid),
            None => command.spawn().map(|child| i32::try_from(child.id()).unwrap_or(0)),
        };
        // The command holds the write ends; with these open the agent would never see the end of
        // file.
        drop(command);
        match spawned {
            Ok(pid) => {
                let _ = socket::send(&agent, &FromRank::Started { pid }, &[]);
                Ok(Shim {
                    agent: Some(agent),
                    signals,
                    forwarded: Forwarded::new(manager.map(|manager| manager.spread)),
                    engine,
                    manager: manager.map(|manager| manager.pid),
                    began,
                    child: pid,
                    reaped: false,
                    grace,
                    childless: false,
                    killed_in: None,
                    terminal,
                    waits,
                    below_engine,
                    stop: None,
                    waits_for_others: false,
                    may_leave: false,
                    relay,
                })
            }
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or(0);
                let failed = FromRank::NotExecuted { program: named, errno };
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
                // The status of the rank was taken elsewhere, so its end is unknown.
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
            lent.terminal.take_back(ProcessGroup(self.child));
            if matches!(end, End::Signal(_)) {
                lent.terminal.restore_modes();
            }
        }
        if let Some(agent) = &self.agent {
            if let Some((said, record)) = recorded(end, self.began) {
                let _ = socket::send(agent, &said, &[record.as_fd()]);
            }
            if let Some(group) = self.killed_in.take() {
                let _ = socket::send(agent, &FromRank::KilledIn { group }, &[]);
            }
            let _ = socket::send(agent, &FromRank::Ended { end }, &[]);
        }
        self.end_leftovers(end);
        self.stay_for_the_others(end);
        if let Some(relay) = &self.relay {
            relay.ended(end);
        }
        take_over(end)
    }

    /// Waits until the other ranks of the node have ended too. An engine that sees a failed rank ends
    /// the others by its own rules: DeepSpeed's launcher one after the other with 30 s for each
    /// (`terminate_process_tree` in its launch.py), torchrun before 2.15 after 30 s, and both send a
    /// TERM that the ranks may already have. The agent ends the ranks instead.
    fn stay_for_the_others(&mut self, end: End) {
        self.waits_for_others = self.waits && !end.success();
        while self.waits_for_others && !self.may_leave && self.agent.is_some() {
            self.reap();
            self.wait(None);
        }
    }

    /// Reaps all zombies. Gives the end of the rank if it is among them.
    fn reap(&mut self) -> Option<End> {
        let mut found = None;
        loop {
            if !self.reaped && self.killed_in.is_none() {
                self.killed_in = killed_elsewhere(self.child);
            }
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
        let of_relay = waits.len();
        waits.extend(self.relay.as_ref().map(|relay| PollFd::new(relay, PollFlags::IN)));
        let _ = poll(&mut waits, timeout);
        let spoke = |at: usize| waits.get(at).is_some_and(|wait| !wait.revents().is_empty());
        let agent_spoke = self.agent.is_some() && spoke(1);
        let relay_spoke = self.relay.is_some() && spoke(of_relay);
        while let Some(taken) = self.signals.take() {
            self.signalled(taken.number, taken.sender);
        }
        if agent_spoke {
            self.read_agent();
        }
        if relay_spoke {
            self.read_relay();
        }
        for number in self.forwarded.due(Instant::now()) {
            if asked::is_stop(number) { self.stop_now(number) } else { self.send(number) }
        }
    }

    fn signalled(&mut self, number: i32, sender: i32) {
        self.may_leave |= self.waits_for_others && number == Signal::TERM.as_raw();
        if self.engine == Some(sender) && asked::is_stop(number) {
            self.stop_rank(number);
        } else if self.manager == Some(sender) || comes_twice(number) {
            self.forwarded.came(number, Instant::now());
            if asked::is_stop(number) && self.stop.is_none() && !self.reaped {
                self.stop = Some(Asked::everybody(self.child, number));
            }
        }
    }

    fn read_relay(&mut self) {
        let Some(relay) = &self.relay else { return };
        match relay.signal() {
            Ok(number) => self.signalled(number, self.engine.unwrap_or(0)),
            // The engine has killed its child, which has the same effect as killing this shim.
            Err(_) => (self.relay, self.agent) = (None, None),
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
                    return lent.terminal.go_on(ProcessGroup(self.child));
                }
                if self.forwarded.asked(number, Instant::now()) {
                    self.send(number);
                }
            }
            Ok(Some((ToRank::Stop { number }, _))) => {
                self.waits |= self.below_engine;
                self.stop_rank(number);
            }
            Ok(Some((ToRank::Late, _))) => self.late(),
            Ok(Some((ToRank::NoManager, _))) => self.forwarded.no_manager(Instant::now()),
            Ok(Some((ToRank::Leave, _))) => self.may_leave = true,
            Ok(Some((ToRank::Terminal { .. }, _))) => {}
            // The agent is lost, and with it the reader of our pipes. The guard ends the job; the shim
            // does so too, in case the guard is lost as well.
            Ok(None) | Err(_) => self.agent = None,
        }
    }

    /// Stops the rank now or later, unless it gets the signal from elsewhere.
    fn stop_rank(&mut self, number: i32) {
        if self.forwarded.stops(number, Instant::now()) {
            self.stop_now(number);
        }
    }

    fn stop_now(&mut self, number: i32) {
        if self.stop.is_some() || self.reaped {
            return self.send(number);
        }
        let child = self.child;
        let suited = asked::suited(child, number);
        // A signal that stands in for another counts as received, too.
        self.forwarded.came(suited, Instant::now());
        self.stop = Some(Asked::begin(child, suited, || sys::send(child, suited)));
    }

    fn late(&mut self) {
        let child = self.child;
        let wants_term = self.stop.as_mut().is_some_and(|stop| !self.reaped && stop.late(child));
        if wants_term {
            self.stop_rank(Signal::TERM.as_raw());
        }
    }

    /// Signals the user's process. Its pid stays valid until we reap it, so no look-up is needed; with
    /// hidepid the process may not even be visible to us.
    fn send(&self, number: i32) {
        if !self.reaped {
            sys::send(self.child, number);
        }
    }

    /// Leftovers, such as uploads, get TERM and the grace period after a success, and after a main
    /// process that ended as the job's stop asked it to. After any other failure they are killed.
    fn end_leftovers(&mut self, end: End) {
        if let (None, End::Signal(number)) = (&self.stop, end)
            && asked::is_stop(number)
        {
            // The agent's message is on its way, or a stranger has signalled the main process alone.
            let has_manager = self.manager.is_some();
            let of = if has_manager { Asked::everybody } else { Asked::of };
            self.stop = Some(of(self.child, number));
        }
        let is_stopped =
            !end.success() && self.stop.as_ref().is_some_and(|stop| stop.ended(end.shell_code()));
        let grace = if end.success() || is_stopped { self.grace } else { Duration::ZERO };
        let settle = if is_stopped { Duration::ZERO } else { SETTLE };
        let in_stop = self.stop.is_some();
        let last_wait = EndBudget::of(self.grace).after_kill();
        let mut sweep = Sweep::begin(Instant::now(), Newcomers::Asked, settle, grace, last_wait);
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
            match (step, &mut self.stop) {
                (SweepStep::Wait, _) => {}
                (SweepStep::Term, None) => {
                    let asked = Asked::everybody(self.child, Signal::TERM.as_raw());
                    signal_descendants(Signal::TERM);
                    self.stop = Some(asked);
                }
                (SweepStep::Term, Some(stop)) if !in_stop => stop.ask_helpers(),
                (SweepStep::Term, Some(stop)) => {
                    stop.ask_orphans();
                    if is_stopped || end.success() {
                        stop.kill_mute(now);
                    }
                }
                (SweepStep::Kill, _) => {
                    signal_descendants(Signal::KILL);
                    tree::kill_children(&HashSet::new());
                }
                // A process that outlives SIGKILL sleeps in the kernel; the agent will report it.
                (SweepStep::GiveUp, _) => return,
            }
            self.wait(Some(wake.saturating_duration_since(now)));
        }
    }

    /// Reports that leftovers of a successful rank are ended too, since they may be the work itself
    /// (`train.py & exit 0`).
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

fn signal_descendants(signal: Signal) {
    let all = tree::snapshot();
    tree::signal_all(&tree::descendants(&all, own_pid()), signal);
}
