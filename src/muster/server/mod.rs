//! The muster on node 0: admits the nodes, names the missing ones, leads the agreement, and
//! collects failures.
//!
//! Decides which connections are nodes of the job; never decides a layout.

mod admission;
mod away;
pub(super) mod compare;
pub(super) mod decline;
pub(super) mod gather;
pub(super) mod listener;
mod measure;
mod refusals;
mod registry;
mod rejected;
mod run;
