//! The kernel's clocks and their state.

use std::io;
use std::time::{Duration, Instant, SystemTime};

use nix::libc;

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
