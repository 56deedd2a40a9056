//! All nodes run one plan and share one verdict.
//!
//! Owns the connections between the nodes of a job: the listener of node 0 on the
//! master port, what is said over it, and who is alive. Takes a [`Config`] and this
//! node's [`Card`]; gives the cards of all nodes ([`gather`]) or node 0's agreement
//! ([`join`]), then a [`Session`] of events. Never decides a layout, never starts or
//! stops anything, and no frame carries a command, a path or a variable.
//!
//! Node 0 is the hub of a star. It listens on the master port until all have
//! arrived, closes the listener and keeps the connections: torchrun then binds the
//! same port beside them, so no second port must be free or open.

mod channel;
mod compare;
mod excuse;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod gather;
mod hall;
mod handshake;
mod holder;
mod hub;
mod join;
mod key;
mod links;
mod listen;
mod measure;
mod member;
mod obstacle;
mod offer;
mod porch;
mod second;
mod secret;
mod session;
mod silence;
mod store;
mod strangers;
mod survey;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_looking;
mod types;
mod wire;
mod words;

/// Newest version of the protocol between nodes.
pub const PROTOCOL: u8 = handshake::HIGHEST;

pub use compare::{Difference, Property, refuse_differences};
pub use excuse::{Excused, excuse, turn_away};
pub use gather::{Assembly, Gathered, Settled, gather};
pub use join::{Joined, join};
pub use key::JobKey;
pub use links::{Link, Measured, Odd, Place, Speed, Trouble};
pub use measure::Target;
pub use offer::{Accepted, Offer};
pub use secret::{Secret, VARIABLE as SECRET};
pub use session::{Event, Session};
pub use store::{Mark, mark};
pub use survey::{Found, Visit, Visited};
pub use types::{
    Again, Agreement, Card, Cause, Config, Decide, Loss, Memory, PEER_TIMEOUT, Purpose, Seat,
    Station, Unit, Without, now,
};
