//! Tests that this machine cannot run say so where it is seen.

use std::fmt::Display;
use std::io::Write;

/// Says that the running test, or a part of it, is skipped, and why.
///
/// Written past the harness, which shows what a test prints only when it fails.
/// With `RANKLAUNCH_TEST_NO_SKIP=1` a skip is a failure: for machines on which
/// everything is meant to run.
#[track_caller]
pub fn skipped(why: impl Display) {
    let thread = std::thread::current();
    let line = format!("test {} SKIPPED: {why}\n", thread.name().unwrap_or("?"));
    let _ = std::io::stderr().write_all(line.as_bytes());
    let strict = std::env::var_os("RANKLAUNCH_TEST_NO_SKIP").is_some_and(|value| value == "1");
    assert!(!strict, "skipped: {why}");
}
