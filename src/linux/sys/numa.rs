//! Tests whether NUMA calls are permitted.

use std::io;

use nix::libc;

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
