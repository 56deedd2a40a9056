//! Observations of a job while it runs, reported to callers that ask: samples, rules, hangs, status, metrics, the
//! history of a run.

#![deny(unsafe_code)]

pub mod export;
pub mod hang;
pub mod history;
pub mod status;
pub mod watch;
