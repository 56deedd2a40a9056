//! The muster on every node except node 0: finds node 0, sends this node's summary, and follows
//! node 0's decisions.
//!
//! Decides only for its own node, and leaves the muster only on proof.

mod connection;
pub(super) mod decline;
mod identify;
pub(super) mod join;
pub(super) mod measure;
pub(super) mod offer;
mod problem;
mod resume;
mod run;
mod second_port;
