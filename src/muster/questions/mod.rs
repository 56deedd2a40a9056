//! Questions between the nodes of a running job.
//!
//! [`Questions`] asks all nodes, including this node. Questions of other nodes are answered by the function of
//! [`Questions::answer_with`]. The muster treats questions and answers as bytes: only the asking and the answering code
//! know their meaning.
//!
//! [`exchange`] has the rules and no I/O; [`desk`] is its interface to the session's task; [`local`] runs the answers
//! of this node in threads of their own; [`standing`] handles answers that node 0 receives repeatedly without asking.

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
