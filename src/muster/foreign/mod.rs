//! Programs on the port of node 0 that are not ranklaunch: torch's store, and any other.

pub(super) mod program;
pub(super) mod store;

use text::lang::Text;
use verdict::Refusal;

/// What a node does about a peer that is not a node of its muster.
#[derive(Debug)]
pub enum ForeignAction {
    /// It may go away.
    Wait,
    Refuse(Refusal),
    /// This node continues without a muster.
    Alone(Text),
}
