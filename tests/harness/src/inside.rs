//! Tests that need their own namespace: they start their own program in one, which then runs the
//! `inside_…` half.

use std::process::Command;

use super::skipped;

/// Printed inside the namespace; a later failure is a real failure.
pub const READY: &str = "the namespace is ready";

/// Runs the ignored test `inside` by `way_in`, a command line to which a program and its
/// arguments are appended. If the machine does not allow the namespace (READY is never printed),
/// the test is skipped.
pub fn run(mut way_in: Command, inside: impl Fn()) {
    let output = way_in
        .arg(std::env::current_exe().expect("our own path"))
        .args(["--exact", name_of(&inside), "--ignored", "--nocapture", "--test-threads=1"])
        .env("RUST_BACKTRACE", "0")
        .output();
    let output = match output {
        Ok(output) => output,
        Err(error) => {
            skipped(format_args!("{:?}: {error}", way_in.get_program()));
            return;
        }
    };
    let said = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    let said = String::from_utf8_lossy(&said);
    if !said.contains(READY) {
        skipped(format_args!("this machine does not allow the namespace: {said}"));
        return;
    }
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

/// Whether this is the process of its own in which a test runs. Elsewhere starts that process, in which `variable` is
/// set, and waits for it.
pub fn is_own_process<F: Fn()>(test: F, variable: &str) -> bool {
    if std::env::var_os(variable).is_some() {
        return true;
    }
    let own = std::env::current_exe().expect("our own path");
    let output = Command::new(own).args(["--exact", name_of(&test)]).env(variable, "1").output();
    let output = output.expect("it starts");
    let said = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    false
}

/// The name of a test, as its program lists it.
pub fn name_of<F: Fn()>(_: &F) -> &'static str {
    let path = std::any::type_name::<F>();
    path.split_once("::").expect("a function of a program").1
}
