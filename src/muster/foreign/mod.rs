//! Programs on the port of node 0 that are not ranklaunch: torch's store, and any other.

pub(super) mod program;
pub(super) mod store;
