//! Journeys that end in a report as functions that a fuzzer feeds. Not part of the program.

pub mod folders;
pub mod journal;
pub mod profile;
