//! Everything that the program reports: plan, start-up block, verdict ([`mod@ending`]) and closing
//! block, run.json, termination message and journal.
//!
//! Takes a plan and an outcome; gives text and files. A file that cannot be written is a warning
//! and never changes the verdict. The table of exit codes and ids is in [`verdict`].

#![deny(unsafe_code)]

mod both_languages;
pub mod check_view;
pub mod closing;
pub mod diagnosis_view;
pub mod ending;
pub mod files;
pub mod findings;
#[cfg(any(test, feature = "fixtures"))]
pub mod fuzz;
pub mod hang_view;
pub mod journal;
pub mod line_view;
pub mod page;
pub mod plan_forms;
pub mod plan_view;
pub mod ps_view;
/// What runs have left on disk, and the questions that viewers ask a running one.
pub mod runs {
    pub mod history;
    pub mod lines;
    pub mod named;
    pub mod records;
    pub mod streams;
    pub mod view;
}
pub mod saved;
pub mod settings_view;
pub mod stacks_view;
pub mod standstill_view;
pub mod start;
pub mod top;
pub mod topics;

pub use ending::Ending;
