//! Jobs of several nodes: agreement, foreign connections, and lost nodes.

mod agreement;
mod check_nodes;
mod engines;
mod nodes;
mod reports;
mod unidentified;
