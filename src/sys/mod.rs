//! System calls: the only module with `unsafe`, and the names of kernel things for all others.
//!
//! One rule says which library makes a call:
//! - rustix: descriptors, processes, pidfd, poll, sockets with their options and ancillary data,
//!   terminals' foreground size, resource limits. It is the rule, and needs no reason.
//! - nix: only what rustix cannot do. Signal sets, dispositions and signalfd ([`signals`],
//!   [`signal_queue`]), fork ([`process`], [`start`](mod@start)), process groups and sessions ([`session`]) and
//!   the peer of a socket ([`socket`]), whose numbers are 0 when they belong to another PID namespace
//!   and then are no [`Pid`], interfaces (`observe/network.rs`), terminal modes
//!   (`supervise/terminal.rs`). libc through nix, here only.
//!
//! So there is one [`Pid`], one [`Signal`] and one [`poll`](fn@poll), and all rooms take them from here. In
//! data (packets, reports, maps) a pid is an `i32`, a signal its number: real-time signals have no
//! name. `tests/dependencies.rs` holds the rule.
//!
//! Each function is small, says which call it makes and why a wrapper is not enough; the rest of
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

pub use clock::clock_state;
pub use environment::take_variable;
pub use numa::numa_calls;
pub use poll::{PollFd, PollFlags, is_readable, poll};
pub use process::{
    Fork, exit_now, fork_single_threaded, hostname, in_child, is_single_threaded, own_pid, watch,
};
pub use session::{
    foreground, group_of, new_group, new_session, own_group, own_session, session_of,
    set_foreground, signal_group,
};
pub use signal_queue::{SignalQueue, SignalSet, Taken};
pub use signals::{
    Dispositions, die_by, ignore, ignore_all, restore_in_child, send, signal_name, stop_by,
    unblock_in_this_thread,
};
pub use socket::{Peer, cap_retransmission, peer};
pub use start::{Begun, start};
pub use streams::replace_copies;
