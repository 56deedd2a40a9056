//! The protocol between nodes: messages, their encoding, the handshake.
//!
//! The lowest layer of the muster: it depends on neither `client` nor `server`.

mod cause;
pub(super) mod channel;
mod electorate;
pub(super) mod handshake;
pub(super) mod messages;
mod summary;

pub(crate) use cause::sanitize;
pub(crate) use channel::{Channel, ChannelError, Stream};
pub(crate) use electorate::{Leads, PLACES, VOTERS};
pub(crate) use messages::{FromMember, FromNode0, Hello, JobKey, ResumePoint};
pub(crate) use summary::LISTED;

pub use cause::{Cause, Loss, MemberKind, Memory};
pub use electorate::{Electorate, Last, Tally};
pub use handshake::{Secret, VARIABLE};
pub use messages::{Again, Agreement, Decide, Purpose};
pub use summary::{
    Difference, LinkReport, MeasureEndpoint, NodeResult, NodeSummary, Property, Seat, Share,
};
