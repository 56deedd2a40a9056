//! Raises the soft limits of this process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Containers without a limit report a thousand million files; programs that loop over all
/// possible descriptors then hang for minutes.
const MOST_FILES: u64 = 1 << 20;

/// Raises the soft limits of open files and of locked memory to the hard ones. Processes started
/// later inherit them.
///
/// NCCL has tens of thousands of sockets in large jobs, and the soft limit of 1024 exists only
/// for programs that call select(2). A limit that cannot be raised is kept; `check` reports the
/// hard one.
pub fn raise_limits() {
    for (resource, most) in [(Resource::Nofile, Some(MOST_FILES)), (Resource::Memlock, None)] {
        let Rlimit { current, maximum } = getrlimit(resource);
        let wanted = match (maximum, most) {
            (Some(hard), Some(most)) => Some(hard.min(most)),
            (hard, most) => hard.or(most),
        };
        // None means unlimited.
        let is_more = match (current, wanted) {
            (None, _) => false,
            (Some(_), None) => true,
            (Some(current), Some(wanted)) => wanted > current,
        };
        if is_more {
            let _ = setrlimit(resource, Rlimit { current: wanted, maximum });
        }
    }
}
