//! Fuzz entry points for what several rooms decide together. Not part of the program.
//!
//! They are in this room because it alone calls the others. Compiled only for tests and for a fuzzer.

mod agreement;
pub mod environment;

pub use agreement::agreement;
