//! What a running job does to its node.
//!
//! Takes the ranks as they begin and end; gives samples of them and of the node. Never holds
//! what supervises them: all of it happens in a thread of its own.

mod sample;

pub use sample::{Node, Pace, Sampler, Sampling};
