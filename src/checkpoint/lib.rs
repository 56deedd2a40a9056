//! Finds the checkpoints below a folder, and says of each whether it is whole or what it lacks.
//!
//! Takes a folder; gives [`Checkpoint`]s, newest first. Reads names, sizes, headers and indices, and no weights; executes
//! nothing, since a pickle is read as plain values. A format is one row of [`mod@formats`]. Nothing is ever changed.

#![deny(unsafe_code)]

mod folder;
mod formats;
mod found;
#[cfg(any(test, feature = "fixtures"))]
pub mod fuzz;
mod lack;
mod names;
mod safetensors;
mod survey;
#[cfg(test)]
mod tests;
mod zip;

pub use found::{Checkpoint, Format};
pub use lack::Lack;
pub use survey::{Limits, survey};
