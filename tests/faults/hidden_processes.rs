//! /proc with hidepid=2, which shows an ordinary user only its own dumpable processes: ranks
//! still get TERM, and nothing is left.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use harness::{Launcher, Place, Running, executable, skipped};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const UNSHARE: [&str; 5] = ["--pid", "--fork", "--kill-child", "--mount-proc", "sh"];
const HIDE: &str = "mount -t proc -o hidepid=2 proc /proc";

/// `misbehave PROGRAM` of user 65534, as a rank of a launcher or by itself. The shell above is the first
/// process of the namespace: it adopts leftovers and counts them.
fn hidden(launched: bool, program: &[&str]) -> Option<Running> {
    let tried = Command::new("unshare").args(UNSHARE).args(["-c", HIDE]).output();
    if !tried.is_ok_and(|tried| tried.status.success()) {
        skipped("no PID namespace with a /proc of its own can be made here");
        return None;
    }
    let setup = Launcher::at(Place::Plain);
    let everybody = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(setup.folder(), everybody).expect("it is ours");
    let script = format!(
        "{HIDE} || exit 1
        setpriv --reuid 65534 --regid 65534 --clear-groups \"$@\"; echo code $?
        echo left $(readlink /proc/[0-9]*/exe | grep -c misbehave)"
    );
    let mut args: Vec<OsString> = UNSHARE.into_iter().map(OsString::from).collect();
    args.extend(["-c".into(), script.into(), "sh".into()]);
    if launched {
        let run = ["run", "--engine", "direct", "--device", "cpu", "--stale", "off"];
        args.push(executable().into());
        args.extend(run.into_iter().map(OsString::from));
        args.extend(["--nproc-per-node", "1", "--grace", "5s", "--"].map(OsString::from));
    }
    args.push(setup.misbehave().into());
    args.extend(program.iter().map(OsString::from));
    Some(setup.program(Path::new("unshare"), &args))
}

/// The guard is the first process that runs our executable.
fn guard(job: &Running) -> Pid {
    let ours = executable().display().to_string();
    let run = |argv: &[String]| argv.first() == Some(&ours) && argv[1] == "run";
    let guard = job.processes().into_iter().filter(|seen| run(&seen.argv)).map(|seen| seen.pid);
    Pid::from_raw(guard.min().expect("a guard"))
}

#[test]
fn hidden_ranks_get_the_stop_and_leave_nothing() {
    for program in [&["checkpoint", "10"][..], &["hidden"]] {
        let Some(mut job) = hidden(true, program) else { return };
        job.says("READY", 1);
        kill(guard(&job), Signal::SIGTERM).expect("it lives");
        let over = job.wait().expect_nothing_left();
        let said = over.out;
        assert!(said.contains("SAVED"), "{program:?}\n{said}{}", over.err);
        assert!(said.ends_with("code 143\nleft 0\n"), "{program:?}\n{said}{}", over.err);
    }
}

/// A leftover is found although it has neither our mark nor a parent. The control is the same program
/// without a launcher.
#[test]
fn failed_rank_leaves_no_hidden_process() {
    for (launched, left) in [(true, 0), (false, 1)] {
        let Some(mut job) = hidden(launched, &["hidden"]) else { return };
        job.says("READY", 1);
        let is_rank = |argv: &[String]| argv[0].ends_with("/misbehave") && argv[1] == "hidden";
        let rank = job.processes().into_iter().find(|seen| is_rank(&seen.argv));
        harness::kill(rank.expect("a rank").pid);
        let over = job.wait().expect_nothing_left();
        let said = over.out;
        assert!(said.ends_with(&format!("code 137\nleft {left}\n")), "{said}{}", over.err);
    }
}
