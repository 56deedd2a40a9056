//! Everything that the program reports: plan, start-up block, verdict ([`mod@ending`]) and closing
//! block, run.json, termination message and journal.
//!
//! Takes a plan and an outcome; gives text and files. A file that cannot be written is a warning
//! and never changes the verdict. The table of exit codes and ids is in [`crate::verdict`].

mod both_languages;
pub(crate) mod check_view;
pub mod closing;
pub(crate) mod compare_view;
pub(crate) mod diagnosis_view;
pub(crate) mod ending;
pub(crate) mod engine_log;
pub(crate) mod evidence_view;
pub(crate) mod explain_view;
pub(crate) mod files;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
pub(crate) mod hang_view;
pub(crate) mod journal;
pub(crate) mod line_view;
pub(crate) mod nodes_view;
pub(crate) mod page;
mod page_data;
pub mod plan_json;
pub mod plan_shell;
pub mod plan_view;
pub(crate) mod ps_view;
pub(crate) mod record_events;
pub(crate) mod slow_view;
pub(crate) mod stacks_view;
pub(crate) mod stale_view;
pub(crate) mod standstill_view;
pub(crate) mod start;
pub(crate) mod status_line;
mod why_view;

pub(crate) use ending::{Ending, ending, refused};
