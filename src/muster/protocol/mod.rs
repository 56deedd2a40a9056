//! What nodes tell each other, and how it travels: messages, their bytes, the handshake.
//!
//! The bottom of the room. Knows no gathering and no job: who computes what is said here
//! depends on it, never the reverse.

pub(super) mod agreement;
pub(super) mod cause;
pub(super) mod channel;
pub(super) mod codec;
pub(super) mod difference;
pub(super) mod handshake;
pub(super) mod job_key;
pub(super) mod messages;
pub(super) mod report;
pub(super) mod sanitize;
pub(super) mod secret;
pub(super) mod summary;
