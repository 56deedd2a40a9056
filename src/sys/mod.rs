//! System calls that no library wraps safely: the only module with `unsafe`.
//!
//! Each function is small, says which call it makes and why a wrapper is not
//! enough; the rest of the crate denies `unsafe`.

mod clock;
mod environment;
mod numa;
mod process;
mod signals;
mod socket;
mod start;
mod streams;

pub use clock::clock_state;
pub use environment::take_variable;
pub use numa::numa_calls;
pub use process::{
    Fork, exit_now, fork_single_threaded, in_child, is_single_threaded, own_received, watch,
};
pub use signals::{
    Dispositions, and_real_time, die_by, ignore, ignore_all, restore_in_child, send, stop_by,
    unblock_in_this_thread,
};
pub use socket::cap_retransmission;
pub use start::{Begun, start};
pub use streams::replace_copies;
pub mod execute;
pub mod memory;
