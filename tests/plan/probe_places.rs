//! The probe runs if the node allows any way to execute it, and otherwise names the obstacles.
//!
//! Each test creates a hostile environment (a namespace, a root, a preload) and starts this same
//! test program in it, which then runs one of the `inside_…` functions. If the machine does not
//! allow that, the test is skipped.

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use harness::inside::name_of;
use harness::skipped;
use node::probe::{self, Answer, ProbeError};
use settings::ProbeMode;

const TIMEOUT: Duration = Duration::from_secs(20);
/// Printed once a place is built: an error after it is a failure.
const READY: &str = "the place is ready";

fn resolves(mode: ProbeMode) -> Result<(), ProbeError> {
    match probe::run(mode, &["resolve", "127.0.0.1"], TIMEOUT)? {
        Answer::Names(names) if !names.addresses.is_empty() => Ok(()),
        other => panic!("{other:?}"),
    }
}

fn refused(mode: ProbeMode) -> Vec<String> {
    match resolves(mode) {
        Err(ProbeError::NotStarted(attempts)) => attempts.split("; ").map(str::to_owned).collect(),
        other => panic!("{mode:?}: {other:?}"),
    }
}

/// Runs `inside` of this program by `command`, whose arguments end where the program and its
/// arguments follow.
fn run_inside(command: &mut Command, program: &Path, inside: impl Fn()) -> Output {
    command
        .arg(program)
        .args(["--exact", name_of(&inside), "--ignored", "--nocapture", "--test-threads=1"])
        .env_remove("XDG_RUNTIME_DIR")
        .output()
        .expect("the command runs")
}

fn judge(output: &Output) {
    let said = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    let said = String::from_utf8_lossy(&said);
    if !said.contains(READY) {
        skipped(format_args!("this machine does not allow it: {said}"));
        return;
    }
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

/// A shell in namespaces of its own that runs `set_up` and then its arguments.
fn namespace(flags: &[&str], set_up: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(flags);
    if !nix::unistd::geteuid().is_root() {
        command.arg("--map-root-user");
    }
    command.args(["sh", "-c", &format!("{set_up} && echo '{READY}' && exec \"$@\""), "sh"]);
    command
}

fn this_program() -> std::path::PathBuf {
    std::env::current_exe().expect("our own path")
}

#[test]
fn noexec_folders_are_skipped() {
    // The program moves out of folders that are about to be covered.
    let mount = "mount -t tmpfs -o noexec,mode=1777 none";
    let set_up = format!(
        "mount -t tmpfs none /mnt && cp \"$1\" /mnt/program && \
         {mount} /tmp && {mount} /var/tmp && {mount} /dev/shm && cd /tmp && shift"
    );
    let mut command = namespace(&["--mount"], &set_up);
    command.arg(this_program());
    judge(&run_inside(&mut command, Path::new("/mnt/program"), inside_noexec_folders));
}

#[test]
#[ignore = "runs inside a namespace"]
fn inside_noexec_folders() {
    let attempts = refused(ProbeMode::File);
    assert_eq!(attempts.len(), 4, "{attempts:?}");
    assert!(attempts.iter().all(|why| why.contains("Permission denied")), "{attempts:?}");
    assert_eq!(std::fs::read_dir("/tmp").expect("a folder").count(), 0, "files are left behind");
    assert_eq!(resolves(ProbeMode::Auto), Ok(()), "memory is not bound by mounts");
    std::env::set_current_dir("/mnt").expect("a folder");
    assert_eq!(resolves(ProbeMode::File), Ok(()), "the working folder is the last resort");
}

#[test]
fn kernel_forbidding_memfds_leaves_the_file() {
    let set_up = "echo 2 > /proc/sys/vm/memfd_noexec";
    let mut command = namespace(&["--pid", "--fork", "--mount-proc", "--mount"], set_up);
    judge(&run_inside(&mut command, &this_program(), inside_forbidden_memfds));
}

#[test]
#[ignore = "runs inside a namespace"]
fn inside_forbidden_memfds() {
    assert_eq!(refused(ProbeMode::Memfd).len(), 1);
    assert_eq!(resolves(ProbeMode::Auto), Ok(()));
}

#[test]
fn memfds_are_marked_if_the_kernel_requires_it() {
    let set_up = "echo 1 > /proc/sys/vm/memfd_noexec";
    let mut command = namespace(&["--pid", "--fork", "--mount-proc", "--mount"], set_up);
    judge(&run_inside(&mut command, &this_program(), inside_marked_memfds));
}

#[test]
#[ignore = "runs inside a namespace"]
fn inside_marked_memfds() {
    assert_eq!(resolves(ProbeMode::Memfd), Ok(()));
}

#[test]
fn memfd_probe_needs_no_proc() {
    let mut command = namespace(&["--mount"], "umount -l /proc");
    judge(&run_inside(&mut command, &this_program(), inside_no_proc));
}

#[test]
#[ignore = "runs inside a namespace"]
fn inside_no_proc() {
    assert!(!Path::new("/proc/self").exists());
    assert_eq!(resolves(ProbeMode::Memfd), Ok(()));
}

#[test]
fn a_root_without_a_loader_is_named() {
    if !nix::unistd::geteuid().is_root() {
        skipped("only root may change its root");
        return;
    }
    let root = tempfile::tempdir_in(harness::built()).expect("a folder");
    std::fs::copy(this_program(), root.path().join("program")).expect("a copy");
    let mut command = Command::new("chroot");
    command.arg(root.path());
    let output = run_inside(&mut command, Path::new("/program"), inside_an_empty_root);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{output:?}");
}

#[test]
#[ignore = "runs inside an empty root"]
fn inside_an_empty_root() {
    for mode in [ProbeMode::Auto, ProbeMode::File, ProbeMode::Memfd] {
        let error = resolves(mode).expect_err("there is nothing to run it");
        assert!(matches!(error, ProbeError::NoLoader), "{error}");
    }
}

#[test]
fn preloads_are_not_passed_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = folder.path().join("preload.c");
    let library = folder.path().join("preload.so");
    std::fs::write(
        &source,
        "#include <unistd.h>\n__attribute__((constructor)) static void start(void) { _exit(9); }\n",
    )
    .expect("a file");
    let compile = |out: &Path| {
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(out).arg(&source).status()
    };
    assert!(compile(&library).expect("cc runs").success());
    // The preload works: it ends a program that does not clear it.
    let control = Command::new("true").env("LD_PRELOAD", &library).status().expect("true runs");
    assert_eq!(control.code(), Some(9));
    let mut command = Command::new(this_program());
    let output = command
        .args(["--exact", name_of(&inside_a_preload), "--ignored", "--nocapture"])
        .env("LD_PRELOAD", &library)
        .output()
        .expect("the program runs");
    if output.status.code() == Some(9) {
        skipped("this test program is not static and was ended by the preload itself");
        return;
    }
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{output:?}");
}

#[test]
#[ignore = "runs inside a preload"]
fn inside_a_preload() {
    assert!(std::env::var_os("LD_PRELOAD").is_some());
    for mode in [ProbeMode::File, ProbeMode::Memfd] {
        assert_eq!(resolves(mode), Ok(()));
    }
}
