//! System calls that no library wraps safely: the only module with `unsafe`.
//!
//! Each function is small, says which call it makes and why a wrapper is not
//! enough; the rest of the crate denies `unsafe`.
pub mod memory;
