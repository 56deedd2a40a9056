//! Jobs that fail on real torch, and the explanation of each: run.json, the closing block and the
//! termination message name one cause, its rank and a remedy. The same job whose program survives
//! the failure and ends later for another reason is the negative control.

mod explained;
mod one_node;
mod recorded;
mod two_nodes;

use std::ffi::OsString;
use std::process::Command;

use harness::{Ended, Launcher, executable, root, run_args, skipped};
use serde_json::{Value, json};

/// The expected explanation of a failed job.
#[derive(Debug, Clone, Copy)]
struct Expected {
    id: &'static str,
    confidence: &'static str,
    /// The ranks of which one is named, since several may fail in the same way.
    ranks: &'static [u32],
    /// File and function of the user's own code.
    frame: Option<(&'static str, &'static str)>,
    /// A part of the text.
    words: &'static str,
    /// Exit codes that the job may have: the first failure decides, and ranks race.
    codes: &'static [i32],
}

/// A job of tests/python/SCRIPT on one node.
fn job(engine: &str, nproc: u32, script: &str, arguments: &[&str]) -> Launcher {
    Launcher::new(words(engine, nproc, script, arguments))
}

/// The same with 16 MiB in `/dev/shm`, 4 MiB in `disk`, and the names of /etc/hosts. `None` if this
/// machine allows no namespace.
fn small_job(nproc: u32, script: &str, arguments: &[&str]) -> Option<Launcher> {
    const SMALL: &str = "set -e
        mount -t tmpfs -o size=16m tmpfs /dev/shm
        mkdir disk
        mount -t tmpfs -o size=4m tmpfs disk
        echo 'hosts: files' > names
        mount --bind names /etc/nsswitch.conf";
    let way_in = |script: &str| {
        let mut unshare = Command::new("unshare");
        unshare.args(["--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"]);
        unshare
    };
    let folder = tempfile::tempdir().expect("a folder");
    let tried = way_in(SMALL).current_dir(folder.path()).output();
    if !tried.as_ref().is_ok_and(|output| output.status.success()) {
        skipped(format_args!("no namespace with mounts of its own: {tried:?}"));
        return None;
    }
    let way_in = way_in(&format!("{SMALL}\nexec \"$@\""));
    let launcher = Launcher::of(way_in, [executable()]);
    Some(launcher.args(words("direct", nproc, script, arguments)))
}

fn words(engine: &str, nproc: u32, script: &str, arguments: &[&str]) -> Vec<OsString> {
    let mut words = run_args(engine, nproc);
    words.extend(["--termination-log", "message", "--"].map(OsString::from));
    words.push(root().join("tests/python").join(script).into());
    words.extend(arguments.iter().map(OsString::from));
    words
}

fn message(ended: &Ended) -> Value {
    let text = std::fs::read_to_string(ended.folder().join("message")).expect("a message");
    serde_json::from_str(&text).expect("it is JSON")
}

/// The lines of the closing block, from the one that says what happened.
fn block(ended: &Ended) -> Vec<&str> {
    let from = ended.err.rfind("── ranklaunch: ").expect("a closing block");
    ended.err[from..].lines().collect()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("no text: {value}"))
}

/// Expects the cause in run.json, in the message and in the block of one node. Gives the cause.
#[track_caller]
fn expect_cause(ended: &Ended, node: u32, expected: Expected) -> Value {
    let Expected { id, confidence, ranks, frame, words, .. } = expected;
    let run = ended.run_json(node);
    let cause = &run["cause"];
    let said = [&cause["id"], &cause["confidence"]];
    assert_eq!(said, [id, confidence], "{cause:#}\n{}\n{}", ended.out, ended.err);
    assert!(ranks.iter().any(|rank| cause["rank"] == *rank), "{cause:#}");
    if let Some((file, function)) = frame {
        let named = text(&cause["frame"]);
        let place = named.split_once(':').filter(|(_, place)| place.ends_with(function));
        assert_eq!(place.map(|(file, _)| file), Some(file), "{named}");
    }
    let (happened, remedy) = (text(&cause["text"]), text(&cause["remedy"]));
    assert!(happened.contains(words), "{happened}");

    let block = block(ended);
    // A cause that is only likely says so, unless its only evidence is how the rank ended.
    let told = cause["log"].as_str().is_some_and(|log| !log.is_empty());
    let doubtful = confidence != "certain" && told;
    let first = format!("── ranklaunch: {} ", happened.trim_end_matches('.'));
    let rest = block[0].strip_prefix(&first).unwrap_or_else(|| panic!("{block:#?}"));
    let doubt = if doubtful { "(likely; after " } else { "after " };
    assert!(rest.trim_start_matches(if doubtful { "" } else { "(" }).starts_with(doubt), "{rest}");
    assert_eq!(block[1].trim(), format!("remedy: {remedy}"), "{block:#?}");

    let message = message(ended);
    let said = [&message["cause"], &message["verdict"], &message["text"], &message["hint"]];
    let wanted = [&json!(id), &run["verdict"]["id"], &cause["text"], &cause["remedy"]];
    assert_eq!(said, wanted, "{message:#}");
    cause.clone()
}

/// A job of one node that fails.
#[track_caller]
fn fails(launcher: Launcher, expected: Expected) -> Value {
    let ended = launcher.run().expect_nothing_left();
    assert!(expected.codes.contains(&ended.code), "{}\n{}\n{}", ended.code, ended.out, ended.err);
    expect_cause(&ended, 0, expected)
}

/// The negative control: the program survives the fault, goes on and ends with 7.
#[track_caller]
fn survives(launcher: Launcher) {
    let ended = launcher.env("SURVIVE", "1").run().expect_code(7).expect_nothing_left();
    assert!(ended.out.contains("step 19"), "{}", ended.out);
    expect_no_cause(&ended);
    assert!(block(&ended)[0].contains("exited with code 7"), "{}", ended.err);
}

/// Expects no cause: only the verdict says how a job of one node ended.
#[track_caller]
fn expect_no_cause(ended: &Ended) {
    let run = ended.run_json(0);
    assert!(run["cause"].is_null(), "{:#}\n{}\n{}", run["cause"], ended.out, ended.err);
    let message = message(ended);
    assert_eq!(
        (&message["cause"], &message["verdict"]),
        (&message["verdict"], &run["verdict"]["id"])
    );
    assert!(!ended.err.contains("   remedy: "), "{}", ended.err);
}
