//! Signal dispositions and masks, which std does not provide.

use std::io;
use std::os::fd::AsFd;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::libc;
use nix::sys::signal::{
    SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal as Named, sigaction,
};
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, pidfd_send_signal, set_dumpable_behavior};

use super::Signal;
use super::signal_queue::{SignalSet, named};

/// The mask and the ignored signals at the start of this process, which every child gets
/// unchanged (nohup's ignored HUP stays ignored).
#[derive(Debug, Clone, Copy)]
pub struct Dispositions {
    pub mask: SignalSet,
    pub ignored: SignalSet,
    /// The ignored real-time signals, which have no names in nix: bit n is signal n.
    pub ignored_real_time: u128,
}

impl Dispositions {
    /// Reads the mask and the ignored signals.
    pub fn inherited() -> Dispositions {
        let mut ignored = ignored_signals();
        if PIPE_WAS_IGNORED.load(Ordering::Relaxed) {
            ignored.add(Named::SIGPIPE);
        }
        if CHILD_WAS_IGNORED.load(Ordering::Relaxed) {
            ignored.add(Named::SIGCHLD);
        }
        Dispositions {
            mask: SignalSet(SigSet::thread_get_mask().unwrap_or_else(|_| SigSet::empty())),
            ignored: SignalSet(ignored),
            ignored_real_time: real_time()
                .filter(|signal| is_ignored(*signal))
                .fold(0, |set, signal| set | (1 << signal)),
        }
    }

    /// Gives a child between fork and exec this mask and these dispositions. Only system calls,
    /// so usable in [`super::in_child`].
    pub fn restore_in_child(&self) -> io::Result<()> {
        let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
        let ignore = SigAction::new(SigHandler::SigIgn, SaFlags::empty(), SigSet::empty());
        for signal in Named::iterator() {
            if matches!(signal, Named::SIGKILL | Named::SIGSTOP) {
                continue;
            }
            let action = if self.ignored.0.contains(signal) { &ignore } else { &default };
            // SAFETY: SIG_DFL and SIG_IGN install no handler.
            let _ = unsafe { sigaction(signal, action) };
        }
        for signal in real_time() {
            let ignored = self.ignored_real_time & (1 << signal) != 0;
            let action = if ignored { libc::SIG_IGN } else { libc::SIG_DFL };
            // SAFETY: neither installs a handler.
            unsafe { libc::signal(signal, action) };
        }
        nix::sys::signal::pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&self.mask.0), None)?;
        Ok(())
    }

    /// Ignores these signals.
    pub fn ignore(signals: &[Signal]) {
        let ignore = SigAction::new(SigHandler::SigIgn, SaFlags::empty(), SigSet::empty());
        for signal in named(signals) {
            // SAFETY: SIG_IGN installs no handler, so no code can run in signal context.
            let _ = unsafe { sigaction(signal, &ignore) };
        }
    }

    /// Ignores every signal that can be ignored except SIGCHLD, since the kernel would then discard
    /// exit statuses.
    pub fn ignore_all() {
        let ignore = SigAction::new(SigHandler::SigIgn, SaFlags::empty(), SigSet::empty());
        for signal in Named::iterator() {
            // The synchronous signals stay fatal, since an ignored fault would loop.
            if matches!(
                signal,
                Named::SIGKILL
                    | Named::SIGSTOP
                    | Named::SIGCHLD
                    | Named::SIGSEGV
                    | Named::SIGBUS
                    | Named::SIGILL
                    | Named::SIGFPE
                    | Named::SIGABRT
            ) {
                continue;
            }
            // SAFETY: SIG_IGN installs no handler, so no code can run in signal context.
            let _ = unsafe { sigaction(signal, &ignore) };
        }
        for signal in real_time() {
            // SAFETY: as above; nix has no names for these.
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
    super::streams::fill_missing();
}

// SAFETY: the C library calls the functions of this section, with arguments that
// this one does not take, before main and after its own set-up; it makes system
// calls and atomic stores only.
#[unsafe(link_section = ".init_array")]
#[used]
static LOOK_BEFORE_MAIN: extern "C" fn() = look_before_main;

/// The catchable signals whose disposition is "ignore", except SIGPIPE.
fn ignored_signals() -> SigSet {
    let mut ignored = SigSet::empty();
    for signal in Named::iterator() {
        if matches!(signal, Named::SIGKILL | Named::SIGSTOP | Named::SIGPIPE) {
            continue;
        }
        if is_ignored(signal as libc::c_int) {
            ignored.add(signal);
        }
    }
    ignored
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
/// be a child that is not reaped yet, so that it is not reused.
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
    // SAFETY: plain system calls with valid pointers; the default action of
    // `signal` is wanted. Raw numbers, since real-time signals have no name in nix.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, signal);
        libc::sigprocmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
        libc::kill(libc::getpid(), signal);
    }
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
