//! What the program shows and leaves behind: console blocks, run.json, reports.
//!
//! Takes finished data types; gives text and JSON, and writes where told to.

pub mod plan_view;
