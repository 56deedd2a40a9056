//! Names, while the job runs, the ranks that hold the others back, and the reasons.
//!
//! Takes the starts and ends of ranks; gives [`SlowNews`], once when a rank has become slow and once
//! when it is no longer slow. Runs in a thread of its own, which asks the flight recorders of the
//! ranks each 15 s and costs nothing in between. Never names a rank after a single look: a rank that
//! comes last once proves nothing.
//!
//! In a job of several nodes node 0 looks, and the others answer: each has a [`SampledNode`]. Times of
//! several nodes are compared by their [`Clock`]s; a lateness within their uncertainty is ignored.

mod clock;
mod node;
mod tracker;
mod watch;

pub use clock::Clock;
pub use node::{NodeSample, SampledNode};
pub use tracker::{Slow, SlowNews};
pub use watch::{AskNodes, ClockedSample, SlowPace, SlowWatch};
