//! The rules of a profile (`[[watch]]`): the lines that a working job prints, and the use of its GPUs.
//!
//! Takes the output of ranks, the utilisation of GPUs and the starts and ends of ranks, each with its
//! time; gives a [`Breach`] once, and again only after the rule held in between. Reads no clock. Judges an
//! absence only up to a moment whose lines it has: a wrong alarm is worse than a late one.

mod breach;
mod lines;
mod matcher;
#[cfg(test)]
mod tests;

pub use breach::Breach;
pub(super) use lines::Partial;
pub use matcher::Rules;
