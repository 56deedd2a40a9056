//! Jobs of several nodes: agreement, connections of others, and nodes that are lost.

mod agreement;
mod check_nodes;
mod engines;
mod nodes;
mod unidentified;
