//! The protocol between nodes: messages, their encoding, the handshake.
//!
//! The lowest layer of the muster: it depends on neither `client` nor `server`.

mod agreement;
mod cause;
mod channel;
pub(super) mod codec;
mod difference;
pub(super) mod handshake;
mod job_key;
pub(super) mod messages;
pub(super) mod question;
mod report;
mod sanitize;
mod secret;
mod summary;

pub(crate) use channel::{Channel, ChannelError, Stream};
pub(crate) use difference::LISTED;
pub(crate) use messages::{FromMember, FromNode0, Hello, ResumePoint};
pub(crate) use sanitize::sanitize;

pub use agreement::{Again, Agreement, Decide};
pub use cause::{Cause, Loss, Memory};
pub use difference::{Difference, Property};
pub(super) use job_key::JobKey;
pub use messages::Purpose;
pub use question::NoAnswer;
pub(crate) use question::QuestionFrame;
pub use report::{LinkReport, NodeResult};
pub use secret::{Secret, VARIABLE};
pub use summary::{MeasureEndpoint, MemberKind, NodeSummary, Seat};
