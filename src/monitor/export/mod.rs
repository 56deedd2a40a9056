//! The known state of a running job, for other systems: metrics, probes and the status of a TrainJob.
//!
//! Takes the [`StatusBoard`](crate::status::StatusBoard) and the progress of the job; gives answers over HTTP
//! and the status of a TrainJob. Never asks the job: a client that floods, is slow or sends garbage costs a
//! bounded amount of memory, and never time of a rank or of the supervision.

#[cfg(any(test, feature = "fixtures"))]
pub mod fuzz;
mod openmetrics;
mod pages;
mod request;
mod server;
#[cfg(test)]
mod tests;
mod trainjob;
mod url;

pub use server::HttpServer;
pub use trainjob::{TrainJobTarget, is_taken, trainer_status};
