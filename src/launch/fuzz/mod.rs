//! Fuzz entry points for what several rooms decide together. Not part of the program.
//!
//! They are in this room because it alone calls the others. Compiled only for tests and for a fuzzer.

mod agreement;
pub(crate) mod environment;

pub(crate) use agreement::agreement;
