//! Questions between the nodes of a running job.
//!
//! [`Questions`] asks all nodes, this one included, and has the questions of other nodes answered
//! by the function of [`Questions::answer_with`]. To the muster questions and answers are bytes:
//! what they mean is known to those who ask and who answer.
//!
//! [`exchange`] has the rules and no I/O; [`desk`] is its side to the session's task; [`local`]
//! runs the answers of this node in threads of their own; [`standing`] is what node 0 hears again and
//! again without asking.

pub(crate) mod deflate;
pub(crate) mod desk;
pub(crate) mod exchange;
mod handle;
pub(crate) mod local;
pub(crate) mod room;
mod standing;
#[cfg(test)]
mod tests;

pub use deflate::Packed;
pub use handle::Questions;
