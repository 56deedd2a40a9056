//! torch's flight recorder: the entries of each rank of a job, and so the ranks that keep the others waiting.
//!
//! Owns the reader of its dumps (JSON, and pickles by a reader that executes nothing), the judgement of a hang
//! ([`judge()`]) and of slow ranks ([`late()`]). Takes bytes and times; gives types. Reads no file and no clock.
//! Never names a culprit that only the moment of reading suggests: for an instant, a running job looks like one that
//! hangs.

mod dump;
#[cfg(any(test, feature = "fixtures"))]
pub mod fuzz;
mod groups;
mod judge;
mod last;
mod mismatch;
mod op;
mod place;
#[cfg(test)]
mod tests;

pub use dump::{Dump, Unreadable, may_be_dump, read, to_json};
pub use groups::{DEFAULT_GROUP, RankRecord, Read};
pub use judge::{Culprit, Entered, Hang, HangKind, Job, Late, judge, late};
pub use last::last_entries;
pub use place::Collective;
