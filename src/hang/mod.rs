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

pub(crate) use evidence::{DeadChild, NodeEvidence, RankEvidence};
pub(crate) use judge::{Culprit, FirstCulprit, Hang, Judgement, judge};
pub(crate) use kinds::Kind;
pub(crate) use signs::Sign;
