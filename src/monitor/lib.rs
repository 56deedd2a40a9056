//! Observations of a job while it runs, reported to callers that ask: samples, rules, hangs, notices of
//! an end, status, metrics, the run's socket, the history of a run.

#![deny(unsafe_code)]

pub mod export;
pub mod hang;
pub mod history;
pub mod notice;
pub mod socket;
pub mod status;
pub mod steps;
pub mod watch;
pub mod witnesses;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The lock of a value that a thread that panicked leaves usable.
fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
