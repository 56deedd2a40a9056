//! The terminal view of a running job: `ranklaunch top`.
//!
//! Takes the reports of the nodes about themselves ([`NodeStatus`](monitor::status::NodeStatus)) and the
//! keys of a person; gives a picture of the job, and the next request of the person ([`Request`]).
//! `model` has the state and no terminal, `draw` makes the picture of it with the lines of `header`, `screen` is the
//! terminal, which is left as it was found. Asks nobody: `src/ranklaunch/commands/top.rs` does. Changes nothing of
//! the job.

mod draw;
#[cfg(any(test, feature = "fixtures"))]
pub mod fuzz;
mod header;
mod model;
mod screen;
mod tables;
#[cfg(test)]
mod tests;

pub use draw::draw;
pub use model::{Model, News, Request, Source};
pub use screen::{Backend, Colours, Keys, Saved, Screen};
