//! Removes a variable from the memory of this process.
//!
//! `/proc/PID/environ` shows every process of the same user the memory in which the kernel
//! placed the environment at exec (proc_pid_environ(5)). unsetenv(3) only removes the entry; the
//! bytes remain until they are overwritten.

use std::ffi::{CStr, OsStr, OsString, c_char};
use std::os::unix::ffi::OsStrExt;

use super::is_single_threaded;

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
