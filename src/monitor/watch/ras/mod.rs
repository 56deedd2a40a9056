//! Asks NCCL's RAS what its communicators look like, over TCP, as the program `ncclras` does.
//!
//! Takes the ranks of this node and a deadline; gives the report and a [`RasVerdict`] of it. An NCCL
//! before 2.28.7 has no JSON, and gives its text alone. Any rank answers for the whole job, also while it
//! hangs. A program that listens on the port costs no more than the deadline.
//!
//! Protocol and JSON: `src/ras/client_support.cc` of NCCL 2.30. All ranks of a host listen on the
//! same port, those of another job as well (SO_REUSEPORT), and the kernel chooses who answers. So
//! an answer that knows none of our processes is not ours.

mod client;
#[cfg(any(test, feature = "fixtures"))]
pub mod fuzz;
mod of_ranks;
#[cfg(test)]
mod tests;
mod view;

pub use client::RasReport;
pub use of_ranks::{RasSource, report, verdict};
pub use view::{Behind, RasVerdict};
