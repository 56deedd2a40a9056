//! Journeys that end in a report as functions that a fuzzer feeds. Not part of the program.

pub(crate) mod folders;
pub(crate) mod journal;
pub(crate) mod profile;
