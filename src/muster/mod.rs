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
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod gather;
mod hall;
mod handshake;
mod hub;
mod join;
mod listen;
mod member;
mod obstacle;
mod porch;
mod restart;
mod secret;
mod session;
mod silence;
#[cfg(test)]
mod tests;
mod types;
mod wire;
mod words;

pub use compare::{Difference, Property, refuse_differences};
pub use gather::{Assembly, Gathered, Settled, gather, turn_away};
pub use join::{Accepted, Joined, Offer, excuse, join};
pub use restart::Restarts;
pub use secret::Secret;
pub use session::{Event, Session};
pub use types::{Again, Agreement, Card, Cause, Config, Loss, Memory, PEER_TIMEOUT, millis};
