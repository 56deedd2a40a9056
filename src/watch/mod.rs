//! Samples a running job and its node.
//!
//! Takes the starts and ends of ranks; gives samples of them and of the node. Runs in a thread
//! of its own, so that it never blocks the supervision.

mod sample;

pub(crate) use sample::{Sampler, Sampling, SamplingPace, WatchedNode};
