//! Logs, and rows of a profile, as functions that a fuzzer feeds. Not part of the program.

mod log;
pub mod rows;

pub use log::log;
