//! Every node except node 0: finds node 0, tells it what this node is, and follows it.
//!
//! Decides only what its own node does, and leaves the muster on proof alone.

mod connection;
pub(super) mod decline;
mod identify;
pub(super) mod join;
pub(super) mod measure;
pub(super) mod offer;
mod problem;
mod run;
mod second_port;
