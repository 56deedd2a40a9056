//! Reports tests that this machine cannot run.

use std::fmt::Display;
use std::io::Write;

/// Prints that the running test, or a part of it, is skipped, and the reason.
///
/// Bypasses the test harness, which shows the output of a test only on failure, and appends the line to the
/// file that `RANKLAUNCH_TEST_SKIPS` names, if any, because cargo-nextest shows no output of a test that
/// passes. With `RANKLAUNCH_TEST_NO_SKIP=1` a skip is a failure, for machines on which everything should run.
#[track_caller]
pub fn skipped(why: impl Display) {
    let thread = std::thread::current();
    let name = std::env::var("NEXTEST_TEST_NAME").ok();
    let line =
        format!("test {} SKIPPED: {why}\n", name.as_deref().or(thread.name()).unwrap_or("?"));
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(list) = std::env::var_os("RANKLAUNCH_TEST_SKIPS") {
        let list = std::fs::OpenOptions::new().append(true).create(true).open(list);
        let _ = list.and_then(|mut list| list.write_all(line.as_bytes()));
    }
    let strict = std::env::var_os("RANKLAUNCH_TEST_NO_SKIP").is_some_and(|value| value == "1");
    assert!(!strict, "skipped: {why}");
}
