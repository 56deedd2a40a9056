//! The history of a run, from its files.
//!
//! Takes the lines of agent.jsonl and the document run.json of each launcher; gives a
//! [`NodeHistory`] of each and a [`JobHistory`] of all: phases, attempts, ranks, findings, samples,
//! the use of the time, and the differences between two runs. Pure: reads no file and no clock. Any
//! line may be missing, cut or of another version, and then only its content is missing.

mod differ;
mod energy;
mod job;
mod journal;
mod ledger;
mod moment;
mod plan;
mod record;
mod tracks;
mod types;
mod value;

pub use differ::{Difference, Part, differences};
pub use job::JobHistory;
pub use journal::JournalReader;
pub use types::{Attempt, CheckRow, Excerpt, Finding, NodeHistory, RankLife};

#[cfg(test)]
mod tests;
