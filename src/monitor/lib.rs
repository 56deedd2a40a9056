//! Observations of a job while it runs, reported to callers that ask: samples, rules, hangs, status, metrics, the
//! run's socket, the history of a run.

#![deny(unsafe_code)]

pub mod export;
pub mod hang;
pub mod history;
pub mod socket;
pub mod status;
pub mod watch;
pub mod witnesses;
