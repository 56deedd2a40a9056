//! All nodes run one plan and share one verdict.
//!
//! Owns the connections between the nodes of a job: the listener of node 0 on the
//! master port, what is said over it, and which nodes still run. Takes a [`Config`] and this
//! node's [`NodeSummary`]; gives the summaries of all nodes ([`gather`]) or node 0's agreement
//! ([`join`]), then a [`Session`] of events. Never decides a layout, never starts or
//! stops anything, and no frame carries a command, a path or a variable.
//!
//! Node 0 is the centre of a star. It listens on the master port until all have
//! arrived, closes the listener and keeps the connections: torchrun then binds the
//! same port beside them, so no second port must be free or open.

mod client;
mod clock;
mod config;
mod connection_limiter;
mod foreign;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod keepalive;
mod links;
mod protocol;
mod second_port;
mod server;
mod session;
#[cfg(test)]
mod tests;

pub use client::decline::{Declined, decline};
pub use client::join::{Joined, join};
pub use client::measure::MeasureSession;
pub use client::offer::{Accepted, Offer};
pub use clock::now;
pub use config::{Config, Without};
pub use foreign::store::{Mark, mark};
pub use keepalive::PEER_TIMEOUT;
pub use links::endpoint::Target;
pub use links::{Link, Measured, Outlier, Place, Speed, Trouble};
pub use protocol::{
    Again, Agreement, Cause, Decide, Difference, JobKey, LinkReport, Loss, MeasureEndpoint, Memory,
    NodeResult, NodeSummary, Property, Purpose, Seat, Secret, Unit, VARIABLE as SECRET,
};
pub use server::compare::refuse_differences;
pub use server::decline::turn_away;
pub use server::gather::{Assembly, Gathered, Settled, gather};
pub use session::{Event, Session};
