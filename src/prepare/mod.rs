//! The last steps before the engine starts: ports and the way to the master.
//!
//! Takes addresses and ports that the plan fixed; gives a free port, the proof
//! that a port is free, or a [`Reached`] master. Binds and connects, and gives
//! every socket back; must never wait without a deadline, nor end with less
//! than what was tried, how often, and what came back last.

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
pub use threads::{can_start_threads, has_room};
pub use wait::{Reached, Wait, wait_for_master};
pub use write::{WriteProblem, try_write};
