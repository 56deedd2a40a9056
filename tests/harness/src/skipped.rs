//! Reports tests that this machine cannot run.

use std::fmt::Display;
use std::io::Write;

/// Prints that the running test, or a part of it, is skipped, and why.
///
/// Bypasses the test harness, which shows the output of a test only on failure. With
/// `RANKLAUNCH_TEST_NO_SKIP=1` a skip is a failure, for machines on which everything should run.
#[track_caller]
pub fn skipped(why: impl Display) {
    let thread = std::thread::current();
    let line = format!("test {} SKIPPED: {why}\n", thread.name().unwrap_or("?"));
    let _ = std::io::stderr().write_all(line.as_bytes());
    let strict = std::env::var_os("RANKLAUNCH_TEST_NO_SKIP").is_some_and(|value| value == "1");
    assert!(!strict, "skipped: {why}");
}
