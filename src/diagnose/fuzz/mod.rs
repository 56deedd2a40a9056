//! Logs, and rows of a profile, as functions that a fuzzer feeds. Not part of the program.

mod log;
pub(crate) mod rows;

pub(crate) use log::log;
