//! `ranklaunch init`: the guard's keeping, around any command.
//!
//! Takes a command line and a grace; gives the command's exit code, as a shell
//! would show it. Passes every signal on, reaps what is orphaned, keeps a shell's
//! job control whole, and after the command ends what it left behind: TERM, the
//! grace, KILL. Changes nothing that the command could see of its signals,
//! descriptors and working directory. Never signals a process that does not
//! descend from the command.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::process::Command;
use std::time::Duration;

use super::budget::UNKILLABLE;
use super::outcome::End;
use super::reaper::{ChildWatch, Event, Mark, Reaper};
use super::relay::isolate_from_foreign_children;
use super::terminal::{Terminal, Then, shares_group};
use super::tree;
use crate::sys::{self, Signal, SignalSet, Taken, own_pid};

/// Marks the command and what descends from it: `<our pid>:<our start ticks>`. Set
/// only where orphans of others come to us too.
const INIT_MARK: &str = "RANKLAUNCH_INIT";

/// Where the command stands towards the terminal.
enum Place {
    /// A group of its own; no terminal is involved.
    Apart,
    /// A group of its own, which is lent our terminal.
    Foreground(Terminal),
    /// In our group, with others: a pipeline or a script at a terminal. The
    /// terminal reaches all of them by itself.
    Together,
}

/// Runs `command` to its end and past it; gives its code, or why it could not be
/// executed. Call before any thread exists.
pub fn init(command: &[OsString], grace: Duration) -> io::Result<i32> {
    let (program, args) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    if let Some(code) = isolate_from_foreign_children(Signal::TERM)? {
        return Ok(code);
    }
    let watch = ChildWatch::begin(SignalSet::all_but(&NOT_FORWARDED))?;
    let place = match Terminal::of(io::stdin().as_fd(), sys::own_group()) {
        None => Place::Apart,
        Some(_) if shares_group() => Place::Together,
        Some(terminal) => Place::Foreground(terminal),
    };
    let start = tree::process(own_pid()).map_or(0, |process| process.start_ticks);
    let mark = Mark { variable: INIT_MARK, part: format!("{}:{start}", own_pid()) };

    let mut command = Command::new(program);
    command.args(args);
    if watch.adopts_outsiders() {
        command.env(mark.variable, &mark.part);
    }
    match &place {
        Place::Apart => {
            sys::in_child(&mut command, sys::new_group);
        }
        Place::Foreground(terminal) => {
            sys::in_child(&mut command, terminal.lend_in_child()?);
        }
        Place::Together => {}
    }
    let inherited = watch.inherited;
    sys::in_child(&mut command, move || sys::restore_in_child(&inherited));
    let child = match command.spawn() {
        Ok(child) => i32::try_from(child.id()).map_err(io::Error::other)?,
        Err(error) => {
            if let Place::Foreground(terminal) = &place {
                // It had the terminal already when it could not be executed.
                terminal.take_back_from_the_dead();
            }
            return Err(error);
        }
    };
    let init = Init { reaper: watch.keep(child, mark), place, group: child, told_to_stop: false };
    Ok(init.watch(grace))
}

/// What cannot be caught, what only wakes us, and what a terminal says to the background.
const NOT_FORWARDED: [Signal; 5] =
    [Signal::KILL, Signal::STOP, Signal::CHILD, Signal::TTIN, Signal::TTOU];

struct Init {
    reaper: Reaper,
    place: Place,
    /// The command's, unless it is [`Place::Together`] with us.
    group: i32,
    /// A stop was sent to us and passed on: whoever sent it will end it.
    told_to_stop: bool,
}

impl Init {
    fn watch(mut self, grace: Duration) -> i32 {
        let end = loop {
            match self.reaper.next(None, None) {
                Event::Ended(end) => break end,
                Event::Stopped(signal) => self.stopped(signal),
                Event::Signal(taken) => self.signalled(taken),
                Event::Deadline | Event::Readable => {}
            }
        };
        if let Place::Foreground(terminal) = &self.place {
            terminal.take_back(self.group);
            if matches!(end, End::Signal(_)) {
                terminal.restore_modes();
            }
        }
        self.reaper.sweep(grace, UNKILLABLE);
        if let Place::Foreground(terminal) = &self.place {
            // A shell that was killed leaves it to one of its jobs.
            terminal.take_back_from_the_dead();
        }
        end.shell_code()
    }

    fn signalled(&mut self, taken: Taken) {
        // What the terminal sends to our group, the command has had already.
        if matches!(self.place, Place::Together) && taken.by_kernel {
            return;
        }
        if taken.is(Signal::INT) && self.reaper.interrupted_again() {
            return sys::send(self.reaper.child(), Signal::KILL.as_raw());
        }
        match &self.place {
            Place::Foreground(terminal) if taken.is(Signal::CONT) => {
                self.told_to_stop = false;
                terminal.go_on(self.group);
            }
            _ => {
                self.told_to_stop |= taken.is(Signal::TSTP);
                sys::send(self.reaper.child(), taken.number);
            }
        }
    }

    /// A shell waits for us, not for the command: so we stop too, and all of our
    /// group with us. The SIGCONT that ends this is passed on like any other.
    fn stopped(&mut self, signal: i32) {
        let then = match &self.place {
            Place::Apart => Then::Nothing,
            Place::Foreground(terminal) => terminal.stopped(self.group, signal, self.told_to_stop),
            Place::Together => Then::StopOwner,
        };
        if then == Then::StopOwner {
            // Blocked, since it is one to pass on: pending until it is taken here.
            let _ = sys::signal_group(sys::own_group(), Some(Signal::TSTP));
            sys::stop_by(Signal::TSTP);
        }
    }
}
