//! Exhausted files, processes and threads: a launch is refused before anything runs, with the
//! needed and the available number, or the launch runs and loses nothing.

use std::process::Command;

use harness::{Ended, Launcher, executable, skipped};

const RUN: [&str; 5] = ["run", "--engine", "direct", "--device", "cpu"];
/// The output is long enough that a stream without a reader would kill its rank.
const PROGRAM: [&str; 4] =
    ["--", "sh", "-c", "i=0; while [ $i -lt 2000 ]; do echo line $i of $RANK; i=$((i+1)); done"];

/// A launch below a shell that has set limits.
fn limited(limit: &str, nproc: u32, more: &[&str]) -> Ended {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{limit}; exec \"$@\""), "sh"]).arg(executable());
    let nproc = nproc.to_string();
    let launcher = Launcher::of(shell, RUN).args(["--nproc-per-node", &nproc, "--probe", "off"]);
    launcher.args(more).args(PROGRAM).run()
}

/// The launch was refused with its reason, or every rank wrote all its output.
fn whole_or_refused(ended: &Ended, id: &str, nproc: usize, what: &str) -> bool {
    if ended.code == 84 {
        assert_eq!(ended.id(), Some(id), "{what}\n{}", ended.err);
        assert!(!ended.out.contains("line"), "{what}: refused, and yet a rank ran");
        return false;
    }
    assert_eq!(ended.code, 0, "{what}\n{}", ended.err);
    assert_eq!(ended.out.matches("line 1999 of").count(), nproc, "{what}\n{}", ended.err);
    true
}

#[test]
fn too_few_files_are_refused_before_the_start() {
    let mut ran = Vec::new();
    for files in [16, 40, 64, 100, 128, 256] {
        let ended = limited(&format!("ulimit -n {files}"), 16, &["--stale", "off"]);
        // With even less, the runtime cannot start, which has its own message.
        if files == 16 && ended.code != 84 {
            assert!(ended.code != 0 && !ended.out.contains("line"), "{}", ended.err);
            continue;
        }
        ran.push(whole_or_refused(&ended, "nofile", 16, &format!("{files} files")));
    }
    assert_eq!(ran.first(), Some(&false), "{ran:?}");
    assert_eq!(ran.last(), Some(&true), "{ran:?}");
    let ended = limited("ulimit -n 64", 16, &["--stale", "off", "--severity", "nofile=warn"]);
    assert_ne!(ended.code, 84, "{}", ended.err);
    assert!(ended.err.contains("16 ranks need"), "{}", ended.err);
}

/// A control group of version 1 or 2 with a limit of pids, removed at the end.
struct Group(std::path::PathBuf);

impl Group {
    fn new() -> Option<Group> {
        let name = format!("ranklaunch-test-{}", std::process::id());
        let places = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"];
        let made = places.iter().map(|place| std::path::Path::new(place).join(&name));
        let made = made.into_iter().find(|folder| {
            std::fs::create_dir(folder).is_ok()
                && (folder.join("pids.max").exists() || {
                    let _ = std::fs::remove_dir(folder);
                    false
                })
        });
        if made.is_none() {
            skipped("no control group with a pids limit can be made here");
        }
        made.map(Group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn too_few_pids_are_refused_before_the_start() {
    let Some(group) = Group::new() else { return };
    // The survey of stale processes works in a thread.
    for stale in ["off", "report"] {
        let mut ran = Vec::new();
        for most in [6, 8, 11, 14, 17, 20, 23, 26, 29, 40] {
            std::fs::write(group.0.join("pids.max"), most.to_string()).expect("a limit");
            let enter = format!("echo $$ > {}/cgroup.procs", group.0.display());
            let ended = limited(&enter, 2, &["--stale", stale]);
            let what = format!("{most} pids, --stale {stale}");
            ran.push(whole_or_refused(&ended, "pids.limit", 2, &what));
        }
        assert_eq!(ran.first(), Some(&false), "{ran:?}");
        assert_eq!(ran.last(), Some(&true), "{ran:?}");
    }
}

/// Root has no such limit. With one there is no agent, with three it has too few threads, with five perhaps no console.
#[test]
fn user_without_processes_is_refused_with_hint() {
    if !nix::unistd::geteuid().is_root() {
        skipped("the processes of a user at work count against the limit");
        return;
    }
    for most in 0..=8 {
        let mut shell = Command::new("bash");
        shell.args(["-c", &format!("ulimit -u {most}; exec \"$@\""), "bash"]).arg(executable());
        let launcher = Launcher::of(shell, RUN).args(PROGRAM).user(65_531);
        let ended = launcher.run();
        assert!(!whole_or_refused(&ended, "pids.limit", 1, &format!("{most} processes")));
        assert!(ended.err.contains("ulimit -u"), "{most}: {}", ended.err);
    }
}

/// `ulimit -f` sends SIGXFSZ at a longer write, so a report would be cut silently, or the program
/// would die without a message.
#[test]
fn output_cut_by_file_size_limit_is_reported() {
    let folder = tempfile::tempdir().expect("a folder");
    let report = folder.path().join("report.json");
    let report = report.to_str().expect("a path");
    let job = ["--device", "cpu", "--engine", "command", "--", "true"];
    for (words, to_file, unwritten) in [
        (vec!["plan", "--format", "json"], true, "standard output"),
        (vec!["check", "--format", "json"], true, "standard output"),
        (vec!["check", "--report", report], false, report),
        (vec!["completions", "bash"], true, "standard output"),
    ] {
        let more: &[&str] = if words[0] == "completions" { &[] } else { &job };
        let to = if to_file { "> file" } else { "| cat" };
        let line = format!("(ulimit -f 1; exec \"$@\") {to}; echo code ${{PIPESTATUS[0]}}");
        let mut shell = Command::new("bash");
        shell.args(["-c", &line, "bash"]).arg(executable());
        let ended = Launcher::of(shell, &words).args(more).run();
        assert!(ended.out.ends_with("code 64\n"), "{words:?}\n{}{}", ended.out, ended.err);
        let said = format!("cannot write {unwritten}: File too large");
        assert!(ended.err.contains(&said), "{words:?}\n{}", ended.err);
        assert!(ended.err.contains("ulimit -f"), "{words:?}\n{}", ended.err);
    }
}
