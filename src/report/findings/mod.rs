//! Explains ids and exit codes for `ranklaunch explain`: meaning, consequence, fix and override.
//!
//! Owns the explanations, which are data: `text/*.toml`, one file per family of ids, parsed on
//! request. Takes an [`Id`] or an exit code; gives an [`Explanation`] in both languages. The
//! table of ids with exit codes and severities is in [`verdict`], and the explanations
//! take them from there. Judges nothing.

mod codes;
mod library;

pub use codes::ExitCode;
pub use library::{Explanation, explanation, sources};
pub use verdict::{Exit, Family, Id, IdKind, Use};
