//! A job that stands still: who the others wait for, where that one is, and why.
//!
//! Takes what each node found out about its ranks ([`RankEvidence`]): the records of torch's flight
//! recorder, stacks, the kernel's state. Gives a [`Judgement`]: a [`Hang`], or why this is none. Reads
//! no file, no clock, asks nobody. A wrong alarm is worse than none: a rank that computes, that a person
//! has stopped in a debugger or that serves requests holds up the others and is no hang.

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
