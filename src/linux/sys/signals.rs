//! Sets of signals, the dispositions that a child inherits, the queue of a signalfd, and signals by number.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::libc::{self, SI_KERNEL};
use nix::sys::signal::{
    SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal as Named, sigaction,
};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, pidfd_send_signal, set_dumpable_behavior};

use super::Signal;
use super::process::fill_missing;

/// The mask and the ignored signals at the start of this process, which every child gets
/// unchanged (nohup's ignored HUP stays ignored).
#[derive(Debug, Clone, Copy)]
pub struct Dispositions {
    pub mask: SignalSet,
    pub ignored: SignalSet,
}

impl Dispositions {
    /// Reads the mask and the ignored signals.
    pub fn inherited() -> Dispositions {
        let was_ignored = |signal: &libc::c_int| match *signal {
            libc::SIGPIPE => PIPE_WAS_IGNORED.load(Ordering::Relaxed),
            signal => {
                let child = signal == libc::SIGCHLD && CHILD_WAS_IGNORED.load(Ordering::Relaxed);
                child || is_ignored(signal)
            }
        };
        Dispositions {
            mask: SignalSet(SigSet::thread_get_mask().unwrap_or_else(|_| SigSet::empty())),
            ignored: SignalSet::of_numbers(catchable().filter(was_ignored)),
        }
    }

    /// Gives a child between fork and exec this mask and these dispositions. Only system calls,
    /// so usable in [`super::in_child`].
    pub fn restore_in_child(&self) -> io::Result<()> {
        for signal in catchable() {
            let action = if self.ignored.has(signal) { libc::SIG_IGN } else { libc::SIG_DFL };
            // SAFETY: neither installs a handler.
            unsafe { libc::signal(signal, action) };
        }
        nix::sys::signal::pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&self.mask.0), None)?;
        Ok(())
    }

    /// Ignores these signals.
    pub fn ignore(signals: &[Signal]) {
        for signal in signals {
            // SAFETY: SIG_IGN installs no handler, so no code can run in signal context.
            unsafe { libc::signal(signal.as_raw(), libc::SIG_IGN) };
        }
    }

    /// Ignores every signal that can be ignored except SIGCHLD, since the kernel would then discard
    /// exit statuses.
    pub fn ignore_all() {
        // The synchronous signals stay fatal, since an ignored fault would loop.
        const FAULTS: [libc::c_int; 5] =
            [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGABRT];
        let is_ignorable =
            |signal: &libc::c_int| *signal != libc::SIGCHLD && !FAULTS.contains(signal);
        for signal in catchable().filter(is_ignorable) {
            // SAFETY: SIG_IGN installs no handler, so no code can run in signal context.
            unsafe { libc::signal(signal, libc::SIG_IGN) };
        }
    }
}

/// Whether SIGPIPE was ignored before Rust's own start-up, which always ignores it.
static PIPE_WAS_IGNORED: AtomicBool = AtomicBool::new(false);

/// Whether SIGCHLD was ignored: exec keeps that, and some parents ignore it to avoid zombies.
/// The kernel then discards exit statuses, and wait(2) never reports an end. So every role uses
/// the default, and its children get the original disposition.
static CHILD_WAS_IGNORED: AtomicBool = AtomicBool::new(false);

extern "C" fn look_before_main() {
    PIPE_WAS_IGNORED.store(is_ignored(libc::SIGPIPE), Ordering::Relaxed);
    if is_ignored(libc::SIGCHLD) {
        CHILD_WAS_IGNORED.store(true, Ordering::Relaxed);
        // SAFETY: SIG_DFL installs no handler.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    }
    fill_missing();
}

// SAFETY: the C library calls the functions of this section, with arguments that
// this one does not take, before main and after its own set-up; it makes system
// calls and atomic stores only.
#[unsafe(link_section = ".init_array")]
#[used]
static LOOK_BEFORE_MAIN: extern "C" fn() = look_before_main;

/// The signals whose disposition can be set.
fn catchable() -> impl Iterator<Item = libc::c_int> {
    let named = Named::iterator().map(|signal| signal as libc::c_int);
    named.chain(real_time()).filter(|signal| ![libc::SIGKILL, libc::SIGSTOP].contains(signal))
}

/// The numbers of the real-time signals that the C library leaves to programs.
fn real_time() -> std::ops::RangeInclusive<libc::c_int> {
    libc::SIGRTMIN()..=libc::SIGRTMAX()
}

/// Sends the real-time signal SIGRTMAX−`below` to the process behind `handle`, a pidfd.
///
/// # Errors
/// ESRCH: it has ended; EPERM: we may not signal it; EINVAL: that is no real-time signal.
pub fn send_real_time(handle: impl AsFd, below: i32) -> Result<(), Errno> {
    let number = libc::SIGRTMAX().saturating_sub(below);
    if !real_time().contains(&number) {
        return Err(Errno::INVAL);
    }
    // SAFETY: a valid number that the C library leaves to programs. rustix has no name for it.
    pidfd_send_signal(handle, unsafe { Signal::from_raw_unchecked(number) })
}

fn is_ignored(signal: libc::c_int) -> bool {
    // SAFETY: an all-zero sigaction is a valid value to be overwritten.
    let mut current: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: a null new action only asks; `current` is valid for writes.
    // nix's sigaction() cannot ask without setting.
    let asked = unsafe { libc::sigaction(signal, std::ptr::null(), &mut current) };
    asked == 0 && current.sa_sigaction == libc::SIG_IGN
}

/// kill(2) with any number, since real-time signals have no name in nix and rustix. `pid` must
/// be ours or of a child that is not reaped yet, so that it is not reused.
pub fn send(pid: i32, signal: i32) {
    // SAFETY: a plain system call on two numbers.
    unsafe { libc::kill(pid, signal) };
}

/// Performs the default action of `signal` now, if it is pending and blocked in this thread;
/// returns after the process was continued.
pub fn stop_by(signal: Signal) {
    let SignalSet(set) = SignalSet::of(&[signal]);
    let _ = set.thread_unblock();
    let _ = set.thread_block();
}

/// Lets this thread receive `signal` again.
pub fn unblock_in_this_thread(signal: Signal) {
    let SignalSet(set) = SignalSet::of(&[signal]);
    let _ = set.thread_unblock();
}

/// Ends this process by `signal`, as its child ended, without a core file of our own. Returns
/// only if the signal does not kill.
pub fn die_by(signal: i32) {
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    // SAFETY: SIG_DFL installs no handler; the default action of `signal` is wanted.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
    let _ = SignalSet::of_numbers([signal]).0.thread_unblock();
    send(super::own_pid(), signal);
}

/// Ends the blocking system call of a thread of this process, early or with EINTR. Does nothing where the thread is not
/// in one, or has ended. The signal is SIGURG, as Go's runtime uses it: nobody else means anything by it here.
pub fn interrupt(thread: i32) {
    extern "C" fn nothing(_: libc::c_int) {}
    static HANDLED: Once = Once::new();
    HANDLED.call_once(|| {
        // Without SA_RESTART, so that the call is not begun again.
        let action =
            SigAction::new(SigHandler::Handler(nothing), SaFlags::empty(), SigSet::empty());
        // SAFETY: the handler does nothing, so it may run at any point.
        let _ = unsafe { sigaction(Named::SIGURG, &action) };
    });
    // SAFETY: plain system calls on numbers. tgkill(2) signals a thread of this process alone: a number that has been
    // given to another of its threads interrupts a call there, which every caller of such a call expects.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, libc::SIGURG) };
}

/// `SIGTERM`; `signal 40` for a real-time signal, which has no name.
pub fn signal_name(signal: i32) -> String {
    let named = Named::try_from(signal).map(Named::as_str);
    named.map_or_else(|_| format!("signal {signal}"), str::to_owned)
}

/// A set of signals.
#[derive(Debug, Clone, Copy)]
pub struct SignalSet(SigSet);

impl SignalSet {
    pub fn of(signals: &[Signal]) -> SignalSet {
        SignalSet::of_numbers(signals.iter().map(|signal| signal.as_raw()))
    }

    /// The set of these numbers, since nix has no names for real-time signals.
    fn of_numbers(signals: impl IntoIterator<Item = libc::c_int>) -> SignalSet {
        let mut set = *SigSet::empty().as_ref();
        for signal in signals {
            // SAFETY: `set` is initialised; the call refuses what is no signal.
            unsafe { libc::sigaddset(&mut set, signal) };
        }
        // SAFETY: initialised above.
        SignalSet(unsafe { SigSet::from_sigset_t_unchecked(set) })
    }

    fn has(&self, signal: libc::c_int) -> bool {
        // SAFETY: the set is initialised; the call only reads it.
        unsafe { libc::sigismember(self.0.as_ref(), signal) == 1 }
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

fn named(signals: &[Signal]) -> impl Iterator<Item = Named> {
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
