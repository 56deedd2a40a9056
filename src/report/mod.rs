//! What the program says: plan, start-up block, closing block, run.json, the
//! termination message, its own journal.
//!
//! Takes a plan and an outcome; gives text and files. Only writes; a file that
//! cannot be written is a warning and never changes the verdict.

pub mod check_view;
pub mod closing;
pub mod ending;
pub mod engine_log;
pub mod explain_view;
pub mod files;
pub mod journal;
pub mod memory;
pub mod nodes_view;
pub mod plan_view;
pub mod stale_view;
pub mod start;

pub use ending::{Ending, ending, refused};
