//! The muster: the nodes of a job meet before the start, agree on one plan, and share one
//! verdict.
//!
//! Owns the connections between the nodes of a job: the listener of node 0 on the master port, the protocol, and the
//! set of nodes that still run. Takes a [`Config`] and this node's [`NodeSummary`]. Gives the summaries of all nodes
//! ([`gather`]) or node 0's agreement ([`join`]), then a [`Session`] of events and [`Questions`], whose content it does
//! not know. Never decides a layout, never starts or stops anything, and no frame of its own carries a command, a path
//! or a variable.
//!
//! Node 0 is the centre of a star. It listens on the master port until all nodes have arrived, closes the listener and
//! keeps the connections. torchrun then binds the same port beside them, so no second port must be free or open.
//!
//! In a job with spares another node leads once node 0 is lost ([`Succession`]). Then what is said here of node 0 is the part
//! of that leader, which listens on any free port.

#![deny(unsafe_code)]

mod client;
mod election;
mod foreign;
#[cfg(any(test, feature = "fixtures"))]
pub mod fuzz;
mod keepalive;
mod links;
pub mod names;
pub mod net;
mod protocol;
mod questions;
mod server;
mod session;
mod succession;
#[cfg(test)]
mod tests;

pub use client::join::{Accepted, Joined, Parked, Unparked, join};
pub use client::{Declined, decline};
pub use foreign::{StoreMark, mark};
pub use keepalive::{PEER_TIMEOUT, cut_off, now};
pub use links::endpoint::MeasureTarget;
pub use links::{AffectedLinks, Link, Measured, Outlier, Speed, Trouble};
pub use protocol::{
    Again, Agreement, Cause, Decide, Difference, Electorate, Last, LinkReport, Loss,
    MeasureEndpoint, MemberKind, Memory, NodeResult, NodeSummary, Property, Purpose, Seat, Secret,
    Share, Tally, VARIABLE as SECRET,
};
pub use questions::{NoAnswer, Packed, Questions};
pub use server::compare::refuse_differences;
pub use server::{Assembly, Gathered, Settled, gather, turn_away};
pub use session::{Config, LostNodes, Seating, Session, SessionEvent, Without};
pub use succession::{Found, Succession};
