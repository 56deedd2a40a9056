//! What nodes tell each other, and how it travels: messages, their bytes, the handshake.
//!
//! The bottom of the room. Knows no gathering and no job: who computes what is said here
//! depends on it, never the reverse.

mod agreement;
mod cause;
mod channel;
pub(super) mod codec;
mod difference;
pub(super) mod handshake;
mod job_key;
pub(super) mod messages;
mod report;
mod sanitize;
mod secret;
mod summary;

pub(crate) use channel::{Channel, ChannelError, Stream};
pub(crate) use difference::LISTED;
pub(crate) use messages::{FromMember, FromNode0, Hello};
pub(crate) use sanitize::sanitize;

pub use agreement::{Again, Agreement, Decide};
pub use cause::{Cause, Loss, Memory};
pub use difference::{Difference, Property};
pub use job_key::JobKey;
pub use messages::Purpose;
pub use report::{LinkReport, NodeResult};
pub use secret::{Secret, VARIABLE};
pub use summary::{MeasureEndpoint, NodeSummary, Seat, Unit};
