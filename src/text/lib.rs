//! Text and its parts: both languages, colours, columns, escapes, masks of secrets, ranks and ranges, the words of a
//! shell, YAML.
//! Knows no file, no process and no other crate of ranklaunch.

#![deny(unsafe_code)]

pub mod columns;
pub mod escape;
#[cfg(any(test, feature = "fixtures"))]
pub mod fuzzing;
pub mod lang;
pub mod letters;
pub mod mask;
pub mod nearest;
pub mod order;
pub mod pattern;
pub mod pickle;
pub mod ranges;
pub mod rank;
pub mod run_id;
pub mod shell;
pub mod style;
pub mod version;
pub mod yaml;
