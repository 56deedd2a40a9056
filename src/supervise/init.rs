//! `ranklaunch init`: the guard's supervision for any command.
//!
//! Takes a command line and a grace period; gives the command's exit code, as a shell would show
//! it. Forwards every signal, reaps orphans, preserves a shell's job control, and after the
//! command ends what it left behind: TERM, the grace period, KILL. The command's signal state,
//! descriptors and working directory are unchanged. Never signals a process that does not
//! descend from the command.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::process::Command;
use std::time::Duration;

use super::budget::UNKILLABLE;
use super::isolate::isolate_from_foreign_children;
use super::reaper::{ChildEvent, ChildWatch, ProcessMark, Reaper};
use super::terminal::{Terminal, Then, shares_group};
use super::tree;
use linux::sys::{self, ProcessGroup, Signal, SignalSet, Taken, own_pid};
use verdict::outcome::End;

/// Marks the command and its descendants: `<our pid>:<our start ticks>`. Set only if we also
/// adopt orphans of others.
const INIT_MARK: &str = "RANKLAUNCH_INIT";

/// Process group of the command, in relation to the terminal.
enum TerminalGroup {
    /// A group of its own; no terminal is involved.
    Apart,
    /// A group of its own, to which our terminal is lent.
    Foreground(Terminal),
    /// The command is in our group, with others: a pipeline or a script at a terminal. The terminal
    /// signals all of them itself.
    Together,
}

/// Runs `command` and ends what it leaves behind. Gives its exit code, or why it could not be
/// executed. Call before any thread exists.
pub fn init(command: &[OsString], grace: Duration) -> io::Result<i32> {
    let (program, args) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    if let Some(code) = isolate_from_foreign_children(Signal::TERM)? {
        return Ok(code);
    }
    let watch = ChildWatch::begin(SignalSet::all_but(&NOT_FORWARDED))?;
    let place = match Terminal::of(io::stdin().as_fd(), ProcessGroup::own()) {
        None => TerminalGroup::Apart,
        Some(_) if shares_group() => TerminalGroup::Together,
        Some(terminal) => TerminalGroup::Foreground(terminal),
    };
    let start = tree::process(own_pid()).map_or(0, |process| process.start_ticks);
    let mark = ProcessMark { variable: INIT_MARK, part: format!("{}:{start}", own_pid()) };

    let mut command = Command::new(program);
    command.args(args);
    if watch.adopts_outsiders() {
        command.env(mark.variable, &mark.part);
    }
    match &place {
        TerminalGroup::Apart => {
            sys::in_child(&mut command, ProcessGroup::begin);
        }
        TerminalGroup::Foreground(terminal) => {
            sys::in_child(&mut command, terminal.lend_in_child()?);
        }
        TerminalGroup::Together => {}
    }
    let inherited = watch.inherited;
    sys::in_child(&mut command, move || inherited.restore_in_child());
    let child = match command.spawn() {
        Ok(child) => i32::try_from(child.id()).map_err(io::Error::other)?,
        Err(error) => {
            if let TerminalGroup::Foreground(terminal) = &place {
                // The command already had the terminal when execve failed.
                terminal.take_back_from_the_dead();
            }
            return Err(error);
        }
    };
    let init = Init {
        reaper: watch.keep(child, mark),
        place,
        group: ProcessGroup(child),
        told_to_stop: false,
    };
    Ok(init.watch(grace))
}

/// Signals that cannot be caught, that only wake us, or that a terminal sends to background
/// processes.
const NOT_FORWARDED: [Signal; 5] =
    [Signal::KILL, Signal::STOP, Signal::CHILD, Signal::TTIN, Signal::TTOU];

struct Init {
    reaper: Reaper,
    place: TerminalGroup,
    /// The group of the command, unless it is [`TerminalGroup::Together`] with us.
    group: ProcessGroup,
    /// A stop was sent to us and forwarded; its sender will continue us.
    told_to_stop: bool,
}

impl Init {
    fn watch(mut self, grace: Duration) -> i32 {
        let end = loop {
            match self.reaper.next(None, None) {
                ChildEvent::Ended(end) => break end,
                ChildEvent::Stopped(signal) => self.stopped(signal),
                ChildEvent::Signal(taken) => self.signalled(taken),
                ChildEvent::Deadline | ChildEvent::Readable => {}
            }
        };
        if let TerminalGroup::Foreground(terminal) = &self.place {
            terminal.take_back(self.group);
            if matches!(end, End::Signal(_)) {
                terminal.restore_modes();
            }
        }
        self.reaper.sweep(grace, UNKILLABLE);
        if let TerminalGroup::Foreground(terminal) = &self.place {
            // A shell that was killed may have left the terminal to one of its jobs.
            terminal.take_back_from_the_dead();
        }
        end.shell_code()
    }

    fn signalled(&mut self, taken: Taken) {
        // The command already has the signals that the terminal sends to our group.
        if matches!(self.place, TerminalGroup::Together) && taken.by_kernel {
            return;
        }
        if taken.is(Signal::INT) && self.reaper.interrupted_again() {
            return sys::send(self.reaper.child, Signal::KILL.as_raw());
        }
        match &self.place {
            TerminalGroup::Foreground(terminal) if taken.is(Signal::CONT) => {
                self.told_to_stop = false;
                terminal.go_on(self.group);
            }
            _ => {
                self.told_to_stop |= taken.is(Signal::TSTP);
                sys::send(self.reaper.child, taken.number);
            }
        }
    }

    /// A shell waits for us, not for the command, so our whole group stops too. The SIGCONT that
    /// ends this is forwarded like any other signal.
    fn stopped(&mut self, signal: i32) {
        let then = match &self.place {
            TerminalGroup::Apart => Then::Nothing,
            TerminalGroup::Foreground(terminal) => {
                terminal.stopped(self.group, signal, self.told_to_stop)
            }
            TerminalGroup::Together => Then::StopOwner,
        };
        if then == Then::StopOwner {
            // SIGCONT is blocked like all forwarded signals, so it stays pending until it is
            // taken here.
            let _ = ProcessGroup::own().signal(Some(Signal::TSTP));
            sys::stop_by(Signal::TSTP);
        }
    }
}
