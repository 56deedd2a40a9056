//! A job that stands still: the rank that the others wait for, its position, and the reason.
//!
//! Takes the evidence of each node about its ranks ([`RankEvidence`]): the records of torch's flight
//! recorder, stacks, the kernel's state. Gives a [`Judgement`]: a [`Hang`], or the reason why there is
//! no hang. Reads no file and no clock, and asks nobody. A false alarm is worse than a missed hang: a
//! rank that computes, that a person has stopped in a debugger or that serves requests holds up the
//! others without being hung.

mod doing;
mod evidence;
mod judge;
mod kinds;
mod nccl;
mod signs;
mod suspects;
#[cfg(test)]
mod tests;
mod words;

pub use evidence::{DeadChild, NodeEvidence, RankEvidence};
pub use judge::{Culprit, FirstCulprit, Hang, Judgement, judge};
pub use kinds::Kind;
pub use signs::Sign;
