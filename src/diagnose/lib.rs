//! The cause of a job's failure, from the output of its processes: one root cause, or the statement that none is
//! visible.
//!
//! Owns the catalogue of failures (data: the folder `catalogue`, one row per failure; a profile may add rows) and the rules
//! that choose one line of many as the cause. Takes the bytes of logs, in pieces of any size ([`LogScan`]); gives a
//! [`Diagnosis`]. Reads no file and no clock. Keeps a bounded part of the input, so that a log of any size can be
//! read. A line without a row is never a cause by itself, whatever words it holds. An exception without a row is a
//! cause (`user_exception`) if nothing shows that it was caught or survived.
//!
//! Path of a byte: `lines` (whole lines) → `quoted` (without the marks of quotes) → `catalogue` (rows whose fragment is
//! in the line) → `prefixes` (the writer, the time) → `blocks` (tracebacks) → `scan` (evidence) → `run` (evidence that was survived) → `candidates`
//! (possible causes) → `select` (the cause). A short log goes through `excerpt` first, which joins wrapped lines.

#![deny(unsafe_code)]

mod advice;
mod blocks;
mod candidates;
mod catalogue;
mod evidence;
mod excerpt;
mod extended;
#[cfg(any(test, feature = "fixtures"))]
pub mod fuzz;
mod lines;
mod prefixes;
mod quoted;
pub mod recorder;
mod rows;
mod run;
mod scan;
mod select;
pub mod stacks;
#[cfg(test)]
mod tests;
mod versions;

pub use blocks::recorded_exception;
pub use candidates::{Known, Recorded, Survived, survived};
pub use catalogue::{Catalogue, catalogue};
pub use evidence::{Evidence, Frame, Node};
pub use extended::RowFlaw;
pub use prefixes::is_progress;
pub use rows::{Domain, GIVEN_UP, Range, Role, Row, Stream, filled};
pub use scan::{LogScan, Origin, Scanned};
#[cfg(any(test, feature = "fixtures"))]
pub use select::diagnose;
pub use select::{Cause, Diagnosis, diagnose_knowing, diagnose_whole};
