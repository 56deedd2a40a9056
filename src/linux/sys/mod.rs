//! System calls: the only module with `unsafe`, and the types of kernel objects for all others.
//!
//! The library that makes a call:
//! - rustix, by default: descriptors, processes, pidfd, poll, sockets with their options and
//!   ancillary data, the size of a terminal, resource limits.
//! - nix, only for what rustix cannot do: signal sets, dispositions and signalfd ([`signals`]); fork ([`process`],
//!   [`start`](mod@start)); process groups and sessions ([`process`]) and the peer of a socket ([`Peer`]), whose
//!   numbers are 0 in another PID namespace and then are no [`Pid`]; interfaces (`observe/network.rs`); terminal
//!   modes (`supervise/terminal.rs`). libc only through nix, and only here.
//!
//! So there is one [`Pid`], one [`Signal`] and one [`poll`](fn@poll), and all rooms take them from here. In
//! data (packets, reports, maps) a pid is an `i32` and a signal a number, since real-time signals have no
//! name. `tests/documents/dependencies.rs` checks the rule.
//!
//! Each function is small and documents its call and why a wrapper is not enough; the rest of
//! the crate denies `unsafe`.

mod process;
mod signals;
mod start;

use std::ffi::{CStr, OsStr, OsString, c_char};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant, SystemTime};

use nix::libc;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use process::is_single_threaded;
pub use process::{
    Fork, Inherited, ProcessGroup, Session, exit_now, hostname, in_child, own_pid, parent_pid,
    replace_copies, watch,
};
use rustix::event::Timespec;
pub use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
pub use rustix::process::{Pid, Signal};
pub use signals::{
    Dispositions, SignalQueue, SignalSet, Taken, die_by, interrupt, send, send_real_time,
    signal_name, stop_by, unblock_in_this_thread,
};
pub use start::{Begun, execute_descriptor, start};

/// Waits until one of `fds` is ready or `timeout` has passed; None waits for ever. Gives how
/// many are ready.
///
/// # Errors
/// `EINTR` among others; most callers poll again after any error.
pub fn poll(fds: &mut [PollFd<'_>], timeout: Option<Duration>) -> Result<usize, Errno> {
    // A duration that the kernel cannot express means no deadline.
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    rustix::event::poll(fds, timeout.as_ref())
}

/// Whether a read would not block: there is data or end of file.
pub fn is_readable(fd: impl AsFd) -> bool {
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    poll(&mut fds, Some(Duration::ZERO)).is_ok_and(|ready| ready > 0)
}

/// The clocks at one moment. The cause of a pause of this process decides which of them show the pause:
///
/// | | steady | since boot | wall |
/// |---|---|---|---|
/// | this process (SIGSTOP, the freezer), a VM whose counter runs on | seen | seen | seen |
/// | the machine, suspended | | seen | seen |
/// | a VM whose clocks its host sets back (kvm-clock after `cont`) | | | once the time is set |
///
/// A wall clock that is set forward looks like the last row.
#[derive(Debug, Clone, Copy)]
pub struct Clocks {
    /// CLOCK_MONOTONIC.
    pub steady: Instant,
    /// CLOCK_BOOTTIME.
    pub since_boot: Duration,
    /// CLOCK_REALTIME.
    pub wall: SystemTime,
}

impl Clocks {
    pub fn now() -> Clocks {
        Clocks { steady: Instant::now(), since_boot: since_boot(), wall: SystemTime::now() }
    }

    /// Time since `before` that the steady clock did not count. It may be too long: the wall clock may
    /// also have been set forward.
    pub fn unseen_since(&self, before: &Clocks) -> Duration {
        let told = self.wall.duration_since(before.wall).unwrap_or_default();
        let all = told.max(self.since_boot.saturating_sub(before.since_boot));
        all.saturating_sub(self.steady.saturating_duration_since(before.steady))
    }

    /// Whether the clock is unsynchronised, and its largest error in microseconds.
    ///
    /// adjtimex(2) without a mode only reads, which needs no capability.
    pub fn state() -> io::Result<(bool, u64)> {
        // SAFETY: an all-zero timex is a valid value; modes 0 asks for nothing to be set.
        let mut state: libc::timex = unsafe { std::mem::zeroed() };
        // SAFETY: `state` is valid for writes and lives across the call.
        if unsafe { libc::adjtimex(&mut state) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok((state.status & libc::STA_UNSYNC != 0, u64::try_from(state.maxerror).unwrap_or(0)))
    }
}

fn since_boot() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writes and lives across the call. The clock exists since Linux 2.6.39.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut time) };
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or_default())
}

/// The peer of a Unix socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    pub uid: u32,
    /// 0: a process of another PID namespace.
    pub pid: i32,
}

impl Peer {
    /// `SO_PEERCRED`. In rustix the pid cannot be 0.
    pub fn of(socket: impl AsFd) -> io::Result<Peer> {
        let peer = getsockopt(&socket, PeerCredentials)?;
        Ok(Peer { uid: peer.uid(), pid: peer.pid() })
    }
}

/// `TCP_RTO_MAX_MS` of include/uapi/linux/tcp.h, since Linux 6.15.
const TCP_RTO_MAX_MS: libc::c_int = 44;

/// Sets the longest pause between two retransmissions. The kernel accepts 1 s to 120 s; by
/// default it doubles the pause up to 120 s.
///
/// # Errors
/// `ENOPROTOOPT` before Linux 6.15.
pub fn cap_retransmission(socket: impl AsFd, longest: Duration) -> io::Result<()> {
    let millis = libc::c_int::try_from(longest.as_millis()).unwrap_or(libc::c_int::MAX);
    let length = libc::socklen_t::try_from(size_of_val(&millis)).unwrap_or_default();
    // SAFETY: the descriptor is borrowed and so stays open, and the kernel reads
    // `length` bytes of an integer that outlives the call.
    let done = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            TCP_RTO_MAX_MS,
            (&raw const millis).cast(),
            length,
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Reads this thread's memory policy and, if it is the default one, sets it again, as NCCL and
/// libnuma do first. Docker's seccomp profile refuses both unless the container has
/// CAP_SYS_NICE.
///
/// # Errors
/// EPERM if they are forbidden, ENOSYS if the kernel has no NUMA.
pub fn numa_calls() -> io::Result<()> {
    let mut mode: libc::c_int = 0;
    let nothing = std::ptr::null_mut::<libc::c_ulong>();
    // SAFETY: get_mempolicy(2) writes one int to `mode`, which lives across the call;
    // without a node mask and flags the other arguments are not used.
    let got = unsafe { libc::syscall(libc::SYS_get_mempolicy, &mut mode, nothing, 0, nothing, 0) };
    if got < 0 {
        return Err(io::Error::last_os_error());
    }
    const DEFAULT: libc::c_int = 0;
    if mode != DEFAULT {
        return Ok(());
    }
    // SAFETY: set_mempolicy(2) with MPOL_DEFAULT takes no mask, and changes nothing
    // of a thread that has this policy already.
    if unsafe { libc::syscall(libc::SYS_set_mempolicy, DEFAULT, nothing, 0) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Returns the allocator's free memory to the kernel.
///
/// glibc keeps freed buffers in the arena of the thread that had them: after one burst of output
/// 16 reader threads kept 85 MB (measured). Call it only after such a burst, since it takes
/// milliseconds.
pub fn release_free_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim takes a number, locks each arena itself and is
    // thread-safe (glibc manual, malloc_trim(3)); no allocation in use moves.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Lets all threads share two arenas of the allocator.
///
/// glibc gives each thread that allocates beside others an arena of its own, which is kept when the thread is gone:
/// threads that ask eight ranks side by side left 1.4 MiB (measured). Call it before the first thread.
pub fn share_arenas() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt takes two numbers and sets a limit that malloc reads (glibc manual, mallopt(3)).
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 2);
    }
}

unsafe extern "C" {
    /// environ(7): entries `NAME=value`, then a null pointer.
    static environ: *const *mut c_char;
}

/// Removes a variable from the environment of this process and its future children, and
/// overwrites it in memory. Gives its value; None if it is not set.
///
/// With more than one thread the variable is only read.
pub(crate) fn take_variable(name: &str) -> Option<OsString> {
    let value = std::env::var_os(name)?;
    if !is_single_threaded() {
        return Some(value);
    }
    let start = [name.as_bytes(), b"="].concat();
    let mut entries = Vec::new();
    // SAFETY: there is one thread, so the array and its entries do not change meanwhile. They
    // are terminated as environ(7) requires.
    unsafe {
        let mut at = environ;
        while !at.is_null() && !(*at).is_null() {
            let length = CStr::from_ptr(*at).to_bytes().len();
            if CStr::from_ptr(*at).to_bytes().starts_with(&start) {
                entries.push((*at, length));
            }
            at = at.add(1);
        }
    }
    // SAFETY: there is one thread, so no other reads the environment meanwhile.
    unsafe { std::env::remove_var(OsStr::from_bytes(name.as_bytes())) };
    for (entry, length) in entries {
        for offset in 0..length {
            // SAFETY: within the entry measured above, which is writable memory of this process
            // (the stack area made at exec, or the heap) and which nothing refers to any more:
            // the C library does not free entries. Volatile, since the memory is not read again
            // here and the write must not be optimised away.
            unsafe { entry.add(offset).write_volatile(0) };
        }
    }
    Some(value)
}
