//! Decisions and actions on a node before its ranks start: the decision with its checks, the end of stale processes,
//! and the preparation of ports and files.

#![deny(unsafe_code)]

pub mod check;
pub mod clear;
pub mod decide;
pub mod prepare;
