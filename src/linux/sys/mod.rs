//! System calls: the only module with `unsafe`, and the types of kernel objects for all others.
//!
//! The library that makes a call:
//! - rustix, by default: descriptors, processes, pidfd, poll, sockets with their options and
//!   ancillary data, the size of a terminal, resource limits.
//! - nix, only for what rustix cannot do: signal sets, dispositions and signalfd ([`signals`],
//!   [`signal_queue`]); fork ([`process`], [`start`](mod@start)); process groups and sessions ([`session`]) and
//!   the peer of a socket ([`socket`]), whose numbers are 0 in another PID namespace and then are no [`Pid`];
//!   interfaces (`observe/network.rs`); terminal modes (`supervise/terminal.rs`). libc only through nix, and
//!   only here.
//!
//! So there is one [`Pid`], one [`Signal`] and one [`poll`](fn@poll), and all rooms take them from here. In
//! data (packets, reports, maps) a pid is an `i32` and a signal a number, since real-time signals have no
//! name. `tests/documents/dependencies.rs` checks the rule.
//!
//! Each function is small and documents its call and why a wrapper is not enough; the rest of
//! the crate denies `unsafe`.

mod clock;
mod environment;
pub mod execute;
pub mod memory;
mod numa;
mod poll;
mod process;
mod session;
mod signal_queue;
mod signals;
mod socket;
mod start;
mod streams;

pub use rustix::process::{Pid, Signal};

pub use clock::Clocks;
pub(crate) use environment::take_variable;
pub use numa::numa_calls;
pub use poll::{PollFd, PollFlags, is_readable, poll};
pub(crate) use process::is_single_threaded;
pub use process::{Fork, exit_now, hostname, in_child, own_pid, parent_pid, watch};
pub use session::{ProcessGroup, Session};
pub use signal_queue::{SignalQueue, SignalSet, Taken};
pub use signals::{
    Dispositions, die_by, interrupt, send, send_real_time, signal_name, stop_by,
    unblock_in_this_thread,
};
pub use socket::{Peer, cap_retransmission};
pub use start::{Begun, start};
pub use streams::{Inherited, replace_copies};
