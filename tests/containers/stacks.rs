//! `ranklaunch stacks` by `docker exec`, in a container like that of a hardened pod.

use harness::docker::{self, RANKLAUNCH, Setup};
use harness::wait_until;
use nix::sys::signal::Signal;

const SCRIPT: &str = "\
import time
def load_batch():
    time.sleep(600)
print('READY', flush=True)
load_batch()
";

/// The output of `docker exec OPTIONS CONTAINER ranklaunch stacks`, with its exit code.
fn exec(container: &str, options: &[&str]) -> (String, Option<i32>) {
    let stacks = [container, RANKLAUNCH, "stacks", "--lang", "en"];
    let output = docker::docker(&[&["exec"], options, &stacks].concat());
    let said = [output.stdout, output.stderr].concat();
    (String::from_utf8_lossy(&said).into_owned(), output.status.code())
}

#[test]
fn stacks_need_no_capabilities_but_the_same_user() {
    if docker::missing().is_some() {
        return;
    }
    let image = docker::host_like();
    // Docker's own seccomp filter, which refuses process_vm_readv(2), stays.
    let hardened = ["--user", "1000", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"];
    let python = harness::python().display().to_string();
    let run = ["run", "--engine", "direct", "--device", "cpu", "--nproc-per-node", "2"];
    let program = ["--", python.as_str(), "-c", SCRIPT];
    let setup = Setup::of(&image).python().options(&hardened).env("RANKLAUNCH_GRACE", "5s");
    let mut job = setup.start(&[&run[..], &program].concat());
    job.says("READY", 2);
    let container = job.container().to_owned();
    let shown = wait_until("both ranks at their line", || {
        let (said, code) = exec(&container, &["--user", "1000"]);
        assert_eq!(code, Some(0), "{said}");
        said.contains("2 ranks in 1 group").then_some(said)
    });
    assert!(shown.contains("── ranks 0-1 (2 of 2); this is rank 0"), "{shown}");
    assert!(shown.contains("    load_batch (<string>:3)\n    <module> (<string>:5)\n"), "{shown}");
    let (root, code) = exec(&container, &["--user", "0"]);
    assert_eq!(code, Some(0), "{root}");
    // The controls: another user, and another container that shares the network.
    let (other, code) = exec(&container, &["--user", "1001"]);
    assert_eq!(code, Some(64), "{other}");
    assert!(other.contains("belongs to user 1000 and this is user 1001"), "{other}");
    let beside = format!("container:{container}");
    let beside = Setup::of(&image)
        .options(&["--network", &beside, "--user", "1000"])
        .run(&["stacks", "--lang", "en"]);
    assert_eq!(beside.code, 64, "{}", beside.err);
    assert!(beside.err.contains("another container that shares this network"), "{}", beside.err);
    job.signal(Signal::SIGTERM);
    job.wait().expect_code(143);
}
