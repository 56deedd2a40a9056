//! `ranklaunch init`: the behaviour of a container's init, and that nothing is left behind. Behaviour
//! that tini shares is also tested with tini, if it is installed.

mod leftovers;
mod pid_1;
mod signals;
mod terminals;

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};

use harness::Launcher;
use harness::alive::stat;

fn ours<I: AsRef<OsStr>>(options: &[&str], command: impl IntoIterator<Item = I>) -> Launcher {
    let mut words: Vec<_> = ["init"].iter().chain(options).map(|&word| word.into()).collect();
    words.push(std::ffi::OsString::from("--"));
    words.extend(command.into_iter().map(|word| word.as_ref().to_owned()));
    Launcher::new(words)
}

fn shell(script: &str) -> Launcher {
    ours(&["--grace", "10s"], ["sh", "-c", script])
}

/// tini as a subreaper. Prints a skip and gives `None` if it is not installed.
fn tini() -> Option<Command> {
    let found = Command::new("tini").arg("--version").stdout(Stdio::null()).status().is_ok();
    if !found {
        harness::skipped("tini is not installed: only ranklaunch init is tested");
    }
    found.then(|| {
        let mut tini = Command::new("tini");
        tini.args(["-s", "--"]);
        tini
    })
}

/// The same command below ours and below tini.
fn both(command: &[&str]) -> Vec<Launcher> {
    let reference = tini().map(|tini| Launcher::of(tini, command));
    std::iter::once(ours(&[], command)).chain(reference).collect()
}

#[test]
fn every_exit_code_passes_through() {
    for code in 0..=255 {
        for launcher in both(&["sh", "-c", &format!("exit {code}")]) {
            launcher.run().expect_code(code);
        }
    }
}

#[test]
fn unexecutable_command_returns_the_codes_of_a_shell() {
    for (command, code) in
        [("/no/such/command", 127), ("no-such-command-at-all", 127), ("/etc/passwd", 126)]
    {
        for launcher in both(&[command]) {
            let ended = launcher.run().expect_code(code);
            assert!(ended.err.contains(command), "{}", ended.err);
        }
    }
}

#[test]
fn a_line_without_a_command_is_refused() {
    for words in [vec!["init"], vec!["init", "--"], vec!["init", "true"]] {
        Launcher::new(words).run().expect_code(64);
    }
    let ended = ours(&["--grace", "soon"], ["true"]).run().expect_code(64);
    assert!(ended.err.contains("--grace"), "{}", ended.err);
}

fn state(pid: i32) -> Option<char> {
    stat(pid).map(|(state, _, _)| state)
}

#[test]
fn streams_and_folder_are_inherited() {
    let launcher = shell("cat; pwd >&2; echo $PPID");
    let input = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(input.path(), "to stdin\n").expect("it is written");
    let folder = launcher.folder().to_owned();
    let file = std::fs::File::open(input.path()).expect("it is there");
    let running = launcher.stdin(file).start();
    let init = running.pid();
    let ended = running.wait().expect_code(0);
    assert_eq!(ended.out, format!("to stdin\n{init}\n"));
    assert_eq!(Path::new(ended.err.trim_end()).canonicalize().ok(), folder.canonicalize().ok());
}

const ORPHANS: &str = "i=0; while [ $i -lt 1000 ]; do (: &); i=$((i + 1)); done; echo MADE";

fn children(pid: i32) -> Vec<i32> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let listed = std::fs::read_to_string(path).unwrap_or_default();
    listed.split_whitespace().filter_map(|child| child.parse().ok()).collect()
}
