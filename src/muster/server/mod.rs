//! Node 0: lets the nodes in, finds out who is missing, agrees, and hears every failure.
//!
//! Decides what counts as a node of the job; never decides a layout.

mod admission;
pub(super) mod compare;
pub(super) mod decline;
pub(super) mod gather;
pub(super) mod listener;
mod measure;
mod refusals;
mod registry;
mod rejected;
mod run;
