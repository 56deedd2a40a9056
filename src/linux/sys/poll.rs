//! poll(2) with a [`Duration`].

use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::Timespec;
pub use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

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
