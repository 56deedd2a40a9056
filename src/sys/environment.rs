//! Taking a variable out of this process.
//!
//! `/proc/PID/environ` shows the memory in which the kernel laid the environment down at
//! exec (proc_pid_environ(5)) to every process of the same user. unsetenv(3) only forgets
//! the entry: the bytes stay until somebody overwrites them.

use std::ffi::{CStr, OsStr, OsString, c_char};
use std::os::unix::ffi::OsStrExt;

use super::is_single_threaded;

unsafe extern "C" {
    /// environ(7): entries `NAME=value`, then a null pointer.
    static environ: *const *mut c_char;
}

/// Removes a variable from the environment of this process and of those that it will start,
/// and overwrites it where others could read it. Its value; None when it is not set.
///
/// With more than one thread it is only read.
pub fn take_variable(name: &str) -> Option<OsString> {
    let value = std::env::var_os(name)?;
    if !is_single_threaded() {
        return Some(value);
    }
    let start = [name.as_bytes(), b"="].concat();
    let mut entries = Vec::new();
    // SAFETY: one thread, so nobody changes the array or an entry meanwhile. It and its
    // entries are terminated as environ(7) says.
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
    // SAFETY: one thread, so nobody reads the environment meanwhile.
    unsafe { std::env::remove_var(OsStr::from_bytes(name.as_bytes())) };
    for (entry, length) in entries {
        for offset in 0..length {
            // SAFETY: within the entry measured above, which is writable memory of this
            // process (the stack area made at exec, or the heap) and which nothing refers to
            // any more: the C library does not free entries. Volatile, since nobody here
            // reads it again and the write must stay.
            unsafe { entry.add(offset).write_volatile(0) };
        }
    }
    Some(value)
}
