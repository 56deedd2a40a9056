//! The pipe or socket to the launcher.

/// Whether the pipe still has a reader.
pub(crate) fn is_read(out: i32) -> bool {
    let mut polled = libc::pollfd { fd: out, events: 0, revents: 0 };
    // SAFETY: one live struct; the call does not wait.
    unsafe { libc::poll(&mut polled, 1, 0) };
    polled.revents & (libc::POLLERR | libc::POLLHUP | libc::POLLNVAL) == 0
}

/// Writes all bytes; false if nobody reads them any more.
pub(crate) fn write_all(descriptor: i32, mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        // SAFETY: pointer and length belong to one live slice.
        let written = unsafe { libc::write(descriptor, bytes.as_ptr().cast(), bytes.len()) };
        match usize::try_from(written) {
            Ok(0) => return false,
            Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
            Err(_) if std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted => {
            }
            Err(_) => return false,
        }
    }
    true
}
