//! The kernel's clock state.

use std::io;

use nix::libc;

/// Whether the clock is unsynchronised, and its largest error in microseconds.
///
/// adjtimex(2) without a mode only reads, which needs no capability.
pub(crate) fn clock_state() -> io::Result<(bool, u64)> {
    // SAFETY: an all-zero timex is a valid value; modes 0 asks for nothing to be set.
    let mut state: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: `state` is valid for writes and lives across the call.
    if unsafe { libc::adjtimex(&mut state) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((state.status & libc::STA_UNSYNC != 0, u64::try_from(state.maxerror).unwrap_or(0)))
}
