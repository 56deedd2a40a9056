//! What the user asked for: profile file, environment and flags in one checked type.
//!
//! Takes the parsed command line, the environment and the profile; gives
//! [`Settings`], in which every value knows its [`Source`]. Order of strength:
//! flag, `RANKLAUNCH_*`, profile; what is left open here the platform, the node
//! or a default fills in later. Reads the profile file and nothing else.

#[cfg(test)]
pub(crate) mod fixtures;
mod types;

pub use types::*;
