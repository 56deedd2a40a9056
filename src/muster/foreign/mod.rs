//! Programs on the port of node 0 that are not ranklaunch: torch's store, and any other.

pub(super) mod program;
pub(super) mod store;

use text::lang::Text;
use verdict::Refusal;

/// The reaction of a node to a peer that is not a node of its muster.
#[derive(Debug)]
pub enum ForeignAction {
    /// Keep waiting, since the peer may go away.
    Wait,
    Refuse(Refusal),
    /// Continue without a muster.
    Alone(Text),
}
