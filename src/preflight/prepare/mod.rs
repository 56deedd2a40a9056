//! The last steps before the engine starts: ports, limits, the wait for the master, the trial
//! all-reduce.
//!
//! Takes addresses and ports of the plan; gives a free port, the proof that a port is free, or a
//! [`wait::Reached`] master. Closes every socket that it opens. Never waits without a deadline; a
//! refusal names what was tried, how often, and the last result.

mod allreduce;
mod port;
mod raise;
mod randomness;
mod threads;
mod wait;
mod write;

pub use allreduce::all_reduce;
pub use port::{check_port, free_port};
pub use raise::raise_limits;
pub use randomness::has_randomness;
pub use threads::{can_start_threads, has_room, no_process, no_thread};
pub use wait::{Wait, wait_for_master};
pub use write::{WriteProblem, try_write};
