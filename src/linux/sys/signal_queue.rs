//! Signals read from a descriptor instead of a handler.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::libc::SI_KERNEL;
use nix::sys::signal::{SigSet, Signal as Named};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use super::Signal;

/// A set of signals.
#[derive(Debug, Clone, Copy)]
pub struct SignalSet(pub(super) SigSet);

impl SignalSet {
    pub fn of(signals: &[Signal]) -> SignalSet {
        let mut set = SigSet::empty();
        named(signals).for_each(|signal| set.add(signal));
        SignalSet(set)
    }

    /// Every signal except these, including the real-time ones.
    pub fn all_but(signals: &[Signal]) -> SignalSet {
        let mut set = SigSet::all();
        named(signals).for_each(|signal| set.remove(signal));
        SignalSet(set)
    }

    /// These, and every real-time signal.
    pub fn and_real_time(signals: &[Signal]) -> SignalSet {
        let SignalSet(wanted) = SignalSet::of(signals);
        let mut set = SigSet::all();
        Named::iterator().filter(|one| !wanted.contains(*one)).for_each(|one| set.remove(one));
        SignalSet(set)
    }

    #[must_use]
    pub fn with(mut self, other: &SignalSet) -> SignalSet {
        self.0.extend(other.0.iter());
        self
    }

    pub fn has_any_of(&self, other: &SignalSet) -> bool {
        other.0.iter().any(|signal| self.0.contains(signal))
    }

    #[must_use]
    pub fn without(mut self, other: &SignalSet) -> SignalSet {
        other.0.iter().for_each(|signal| self.0.remove(signal));
        self
    }
}

pub(super) fn named(signals: &[Signal]) -> impl Iterator<Item = Named> {
    signals.iter().filter_map(|signal| Named::try_from(signal.as_raw()).ok())
}

/// A signal that was sent to this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    pub number: i32,
    /// The pid of the process that sent it.
    pub sender: i32,
    /// Sent by the kernel, such as by a terminal to its foreground group.
    pub by_kernel: bool,
}

impl Taken {
    pub fn is(self, signal: Signal) -> bool {
        self.number == signal.as_raw()
    }
}

/// The queue of a set's signals; readable when there is one.
#[derive(Debug)]
pub struct SignalQueue(SignalFd);

impl SignalQueue {
    /// Blocks `set` and SIGCHLD in this thread and takes them through a descriptor (signalfd(2)).
    pub fn begin(SignalSet(mut set): SignalSet) -> io::Result<SignalQueue> {
        set.add(Named::SIGCHLD);
        set.thread_block()?;
        Ok(SignalQueue(SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?))
    }

    /// The next signal; None if there is none.
    pub fn take(&self) -> Option<Taken> {
        let info = self.0.read_signal().ok()??;
        Some(Taken {
            number: i32::try_from(info.ssi_signo).unwrap_or(0),
            sender: i32::try_from(info.ssi_pid).unwrap_or(0),
            by_kernel: info.ssi_code == SI_KERNEL,
        })
    }
}

impl AsFd for SignalQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
