//! What is decided and done on a node before its ranks start: the decision with its checks, the end of stale processes,
//! ports and files that are made ready.

#![deny(unsafe_code)]

pub mod check;
pub mod clear;
pub mod decide;
pub mod prepare;
