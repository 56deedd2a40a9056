//! Everything that the program reports: plan, start-up block, verdict ([`mod@ending`]) and closing
//! block, run.json, termination message and journal.
//!
//! Takes a plan and an outcome; gives text and files. A file that cannot be written is a warning
//! and never changes the verdict. The table of exit codes and ids is in [`crate::verdict`].

pub(crate) mod check_view;
pub mod closing;
pub(crate) mod diagnosis_view;
pub(crate) mod ending;
pub(crate) mod engine_log;
pub(crate) mod explain_view;
pub(crate) mod files;
pub(crate) mod journal;
pub(crate) mod nodes_view;
pub mod plan_json;
pub mod plan_shell;
pub mod plan_view;
pub(crate) mod stale_view;
pub(crate) mod start;
mod why_view;

pub(crate) use ending::{Ending, ending, refused};
