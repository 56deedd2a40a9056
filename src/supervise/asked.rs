//! A stop goes down the tree of a rank from parent to child: each process is asked to end once its parent has
//! ended.
//!
//! A rank that saves needs its helpers: if the workers of its data loader were asked as well, they would die,
//! and the rank would fail in `next()` before it has saved. So only the main process is asked. Two kinds of main
//! process pass nothing on. A shell dies, or runs its trap only after the command that it waits for, so the
//! processes that it has started are asked with it. Any other program that dies of the signal leaves its
//! children to the shim, which then asks them. Processes that live on below a main process that does not end are
//! asked late in the grace period, except helpers.
//!
//! Takes /proc; signals the processes below a shim, except its own child. The shim signals that child itself:
//! the pid stays valid until it is reaped, and hidepid may hide the process.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use super::tree::{self, Process};
use linux::sys::{Signal, own_pid};
use verdict::outcome::StopReason;

/// The signals that begin a stop and reach the ranks unchanged.
pub(super) const STOPS: [Signal; 4] = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT];

/// Whether the signal is one of [`STOPS`].
pub(super) fn is_stop(number: i32) -> bool {
    STOPS.iter().any(|signal| signal.as_raw() == number)
}

/// The signal by which a stop for this reason begins.
pub(super) fn signal_of(reason: StopReason) -> i32 {
    match reason {
        StopReason::Signal(number) if is_stop(number) => number,
        StopReason::Noticed(stop) => stop.signal,
        _ => Signal::TERM.as_raw(),
    }
}

/// Words in the command line of an interpreter that a Python program starts for work of its own.
const HELPERS: [&[u8]; 3] =
    [b"from multiprocessing.", b"--multiprocessing-fork", b"/torch/_inductor/compile_worker/"];

/// Time for a helper without its rank to end by TERM.
const MUTE: Duration = Duration::from_millis(500);

/// The processes of one rank that have been asked to end.
#[derive(Debug)]
pub(super) struct Asked {
    /// The signal that the main process got first.
    first: i32,
    /// Time and signal of each request, by process.
    processes: HashMap<Key, (Instant, i32)>,
    /// The command lines of the programs among them; a fork has the same line.
    lines: HashSet<Vec<u8>>,
    /// Processes below the shim when the stop began, and whether each was a helper. A process that a rank starts
    /// in order to save is not asked while the rank lives.
    before: HashMap<Key, bool>,
}

/// Pid and start.
type Key = (i32, u64);

impl Asked {
    /// Has `signal_main` send `number`. If the main process is a shell, also asks the processes that it has
    /// started: a shell whose command ended first would go on with its script.
    pub(super) fn begin(main: i32, number: i32, signal_main: impl FnOnce()) -> Asked {
        let all = tree::snapshot();
        let mut asked = Asked::among(&all, main, number);
        // A shell that has ended is no longer seen as a shell.
        let below = tree::below_shells(&all, main);
        signal_main();
        for process in below {
            asked.ask(process, number);
        }
        asked
    }

    /// Somebody has signalled every process. Helpers outlive that, see `src/supervise/inject`.
    pub(super) fn everybody(main: i32, number: i32) -> Asked {
        let all = tree::snapshot();
        let mut asked = Asked::among(&all, main, number);
        for process in tree::descendants(&all, own_pid()) {
            if !asked.is_helper(process) {
                asked.note(process, number);
            }
        }
        asked
    }

    /// The state after the main process alone was signalled.
    pub(super) fn of(main: i32, first: i32) -> Asked {
        Asked::among(&tree::snapshot(), main, first)
    }

    fn among(all: &BTreeMap<i32, Process>, main: i32, first: i32) -> Asked {
        let before = tree::descendants(all, own_pid());
        let before =
            before.into_iter().map(|one| (key(one), one.pid != main && was_started_as_helper(one)));
        let before = before.collect();
        let (processes, lines) = (HashMap::new(), HashSet::new());
        let mut asked = Asked { first, processes, lines, before };
        if let Some(main) = tree::process(main) {
            asked.note(&main, first);
        }
        asked
    }

    /// Whether the main process ended as the stop asked it to.
    pub(super) fn ended(&self, code: i32) -> bool {
        code == 128 + self.first || code == 128 + Signal::TERM.as_raw()
    }

    /// The main process does not end, or does not pass the signal on. Returns whether it should get TERM: not
    /// while it handles the first signal and has no handler for TERM.
    pub(super) fn late(&mut self, main: i32) -> bool {
        let all = tree::snapshot();
        for process in tree::descendants(&all, own_pid()) {
            let is_old = self.before.contains_key(&key(process));
            if is_old && process.pid != main && !self.is_helper(process) {
                self.ask(process, Signal::TERM.as_raw());
            }
        }
        let handles = tree::handled(main).unwrap_or_default();
        self.first != Signal::TERM.as_raw()
            && (handles.has(Signal::TERM.as_raw()) || !handles.has(self.first))
    }

    /// Asks the processes that the main process has left, and later those that they leave: a program that
    /// handles the first signal gets that signal, all others get TERM.
    pub(super) fn ask_orphans(&mut self) {
        self.ask_children(true);
    }

    /// Asks helpers only. They have ignored a TERM to all, see `src/supervise/inject`.
    pub(super) fn ask_helpers(&mut self) {
        self.ask_children(false);
    }

    fn ask_children(&mut self, programs: bool) {
        let all = tree::snapshot();
        let me = own_pid();
        for process in tree::descendants(&all, me).into_iter().filter(|one| one.ppid == me) {
            let is_helper = self.is_helper(process);
            let handles = || tree::handled(process.pid).is_some_and(|it| it.has(self.first));
            let number = if !is_helper && handles() { self.first } else { Signal::TERM.as_raw() };
            if programs || is_helper {
                self.ask(process, number);
            }
        }
    }

    /// Sends KILL to remaining processes that were asked a moment ago and cannot answer: helpers, and programs
    /// that the signal should have ended. A process that handles or ignores the signal may be the training,
    /// below a program that passes nothing on.
    pub(super) fn kill_mute(&self, now: Instant) {
        let all = tree::snapshot();
        for process in tree::descendants(&all, own_pid()) {
            let Some((at, number)) = self.processes.get(&key(process)) else { continue };
            let is_due = now.saturating_duration_since(*at) >= MUTE;
            let goes_on = || {
                let handles = tree::handled(process.pid);
                handles.is_some_and(|it| it.has(*number) || it.ignores(*number))
            };
            if is_due && (self.is_helper(process) || !goes_on()) {
                tree::signal(process, Signal::KILL);
            }
        }
    }

    fn ask(&mut self, process: &Process, number: i32) {
        let is_new = !self.processes.contains_key(&key(process));
        let suited = suited(process.pid, number);
        if is_new && let Some(signal) = Signal::from_named_raw(suited) {
            self.note(process, suited);
            tree::signal(process, signal);
        }
    }

    fn note(&mut self, process: &Process, number: i32) {
        self.processes.entry(key(process)).or_insert_with(|| (Instant::now(), number));
        // A fork of a shell is part of its script.
        if !self.is_helper(process) && tree::is_shell(process.pid) == Some(false) {
            self.lines.insert(tree::line(process.pid));
        }
    }

    /// Whether the process is part of a program: a fork, or an interpreter that the program has started.
    fn is_helper(&self, process: &Process) -> bool {
        match self.before.get(&key(process)) {
            Some(is_helper) => *is_helper,
            // The parent of the process may have ended.
            None => {
                let line = tree::line(process.pid);
                !line.is_empty() && (self.lines.contains(&line) || has_word(&line))
            }
        }
    }
}

fn key(process: &Process) -> Key {
    (process.pid, process.start_ticks)
}

/// True while the parent lives.
fn was_started_as_helper(process: &Process) -> bool {
    let line = tree::line(process.pid);
    let is_fork = || line == tree::line(process.ppid) && tree::is_shell(process.ppid) != Some(true);
    !line.is_empty() && (has_word(&line) || is_fork())
}

fn has_word(line: &[u8]) -> bool {
    HELPERS.iter().any(|word| memchr::memmem::find(line, word).is_some())
}

/// Whether the main process handles this signal, or TERM, which it gets in its place: it can save. Of a shell the same
/// counts for the processes that it has started, and of another program that only waits for one, for that one: a stop
/// reaches it when the program has died of the signal.
pub fn handles(main: i32, number: i32) -> bool {
    let handles = |pid| {
        let handled = tree::handled(pid);
        handled.is_some_and(|it| it.has(number) || it.has(Signal::TERM.as_raw()))
    };
    if handles(main) {
        return true;
    }
    let all = tree::snapshot();
    let waited_for = tree::below_waiting(&all, main);
    let mut programs = waited_for.iter().filter(|one| !was_started_as_helper(one));
    tree::below_shells(&all, main).iter().any(|one| handles(one.pid))
        || programs.any(|one| handles(one.pid))
}

/// The signal to send in place of `number`. A program that does not handle `number` would just die, so it gets
/// TERM if it handles TERM.
pub(super) fn suited(pid: i32, number: i32) -> i32 {
    let term = Signal::TERM.as_raw();
    match tree::handled(pid) {
        Some(handles) if !handles.has(number) && !handles.ignores(number) && handles.has(term) => {
            term
        }
        _ => number,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::process::{Command, Stdio};

    #[test]
    fn program_gets_the_signal_it_handles() {
        let [term, hup] = [Signal::TERM, Signal::HUP].map(Signal::as_raw);
        for (traps, gets) in [
            ("trap : TERM HUP", hup),
            ("trap : TERM", term),
            ("trap : TERM; trap '' HUP", hup),
            (":", hup),
        ] {
            let mut shell = Command::new("/bin/sh")
                .args(["-c", &format!("{traps}; echo ready; read line")])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("sh starts");
            let mut ready = [0];
            shell.stdout.take().expect("a pipe").read_exact(&mut ready).expect("it is ready");
            assert_eq!(suited(shell.id().cast_signed(), hup), gets, "{traps}");
            drop(shell.stdin.take());
            shell.wait().expect("it is reaped");
        }
    }

    #[test]
    fn only_stop_signals_reach_ranks_unchanged() {
        for (signal, first) in [
            (Signal::TERM, Signal::TERM),
            (Signal::INT, Signal::INT),
            (Signal::HUP, Signal::HUP),
            (Signal::QUIT, Signal::QUIT),
            (Signal::ALARM, Signal::TERM),
        ] {
            assert_eq!(signal_of(StopReason::Signal(signal.as_raw())), first.as_raw());
        }
        assert_eq!(signal_of(StopReason::OtherNode), Signal::TERM.as_raw());
    }
}
