//! Starts the threads of this crate.

use std::io;

/// Stack size in bytes; the threads keep their buffers on the heap.
const STACK: usize = 256 * 1024;

/// Runs `work` in a detached thread of this name.
///
/// # Errors
/// When the system has no thread left.
pub(super) fn start(name: String, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name(name).stack_size(STACK).spawn(work).map(drop)
}
