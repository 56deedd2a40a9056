//! Fuzz entry points for decisions that involve several crates. Not part of the program.
//!
//! They are in this crate because it alone calls the others. Compiled only for tests and for a
//! fuzzer.

mod agreement;
pub mod environment;

pub use agreement::agreement;
