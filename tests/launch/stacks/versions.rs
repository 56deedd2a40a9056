//! Every CPython of this machine on random programs, compared with its own faulthandler.

use std::path::{Path, PathBuf};
use std::process::Command;

use harness::{Launcher, Running, root, run_args, run_tool, send, skipped};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::{Line, document, eventually, lines, list, text};

/// An interpreter whose files are below `root`.
struct Release {
    version: String,
    root: PathBuf,
    program: String,
}

/// Programs for each release.
const SEEDS: usize = 2;

fn releases() -> Vec<Release> {
    let output = Command::new(root().join("tests/python/releases.sh")).output().expect("it runs");
    assert!(output.status.success(), "{output:?}");
    let release = |line: &str| {
        let mut words = line.splitn(3, ' ').map(str::to_owned);
        let mut next = || words.next().expect("three words");
        Release { version: next(), root: next().into(), program: next() }
    };
    let found: Vec<Release> =
        String::from_utf8(output.stdout).expect("text").lines().map(release).collect();
    for minor in 8..=15 {
        let version = format!("3.{minor}");
        if found.iter().all(|one| one.version != version) {
            skipped(format_args!(
                "no CPython {version} on this machine; tests/python/releases.sh --install makes some"
            ));
        }
    }
    found
}

/// Parses faulthandler's output: `File "…", line N in function`, with escapes for characters
/// outside ASCII.
fn dumped(dump: &str) -> Vec<Vec<Line>> {
    let mut stacks: Vec<Vec<Line>> = Vec::new();
    for line in dump.lines() {
        if line.contains("(most recent call first)") {
            stacks.push(Vec::new());
        } else if let Some(rest) = line.strip_prefix("  File \"") {
            let (file, rest) = rest.rsplit_once("\", line ").expect("a line");
            let (number, function) = rest.split_once(" in ").expect("a function");
            let frame = (plain(function), plain(file), number.parse().expect("a number"));
            stacks.last_mut().expect("a thread").push(frame);
        }
    }
    stacks.sort();
    stacks
}

/// `\xe9`, `\u65e5`, `\U0001f680` as characters.
fn plain(escaped: &str) -> String {
    let mut out = String::new();
    let mut rest = escaped;
    while let Some((before, after)) = rest.split_once('\\') {
        out.push_str(before);
        let digits = match after.as_bytes().first() {
            Some(b'x') => 2,
            Some(b'u') => 4,
            _ => 8,
        };
        let number = u32::from_str_radix(&after[1..=digits], 16).expect("digits");
        out.push(char::from_u32(number).expect("a character"));
        rest = &after[1 + digits..];
    }
    out + rest
}

/// A job in which each rank runs the random program of its seed on one of the releases.
fn start(releases: &[Release], folders: &[tempfile::TempDir]) -> Running {
    let arm = |rank: usize| {
        let (release, folder) = (&releases[rank % releases.len()], folders[rank].path());
        let inside = Path::new("/").join(folder.strip_prefix(&release.root).expect("below it"));
        let (inside, program) = (inside.display(), &release.program);
        let program = match release.root.to_str() {
            Some("/") => program.clone(),
            root => format!("chroot {} {program}", root.expect("text")),
        };
        format!("{rank}) exec {program} {inside}/nested.py {rank} {inside}/dump ;;\n")
    };
    let arms: String = (0..releases.len() * SEEDS).map(arm).collect();
    let script = format!("case $RANK in\n{arms}esac\n");
    let ranks = u32::try_from(releases.len() * SEEDS).expect("few");
    let mut job = Launcher::new(run_args("direct", ranks))
        .args(["--", "sh", "-c", script.as_str()])
        .env("RANKLAUNCH_GRACE", "5s")
        .start();
    job.says("READY", releases.len() * SEEDS);
    job
}

fn rank_of(document: &Value, rank: usize) -> &Value {
    list(&document["ranks"]).get(rank).expect("every rank")
}

#[test]
fn every_python_version_matches_its_own_faulthandler() {
    let releases = releases();
    let folders: Vec<tempfile::TempDir> = (0..releases.len() * SEEDS)
        .map(|rank| {
            let below = releases[rank % releases.len()].root.join("tmp");
            let folder = tempfile::tempdir_in(below).expect("a folder");
            let nested = root().join("tests/python/stacks_nested.py");
            std::fs::copy(nested, folder.path().join("nested.py")).expect("copied");
            run_tool(Command::new("chmod").arg("755").arg(folder.path()));
            folder
        })
        .collect();
    let job = start(&releases, &folders);
    let seen = document(&job);
    let mut all = Vec::new();
    for (rank, folder) in folders.iter().enumerate() {
        let release = &releases[rank % releases.len()];
        let (version, program) = (&release.version, &release.program);
        let what = format!("{program} {version}, seed {rank}");
        let file = folder.path().join("dump");
        let mut stacks = Vec::new();
        let mut written = 0;
        eventually(&what, || {
            let seen = document(&job);
            let process = &rank_of(&seen, rank)["process"];
            stacks = lines(process);
            let pid = process["pid"].as_i64().and_then(|pid| pid.try_into().ok()).expect("a pid");
            send(pid, Signal::SIGUSR1);
            let dump = harness::wait_until("a dump", || {
                let dump = std::fs::read_to_string(&file).ok()?;
                // The first thread is written last, and ends with its module.
                (dump.len() > written && dump.ends_with("in <module>\n")).then_some(dump)
            });
            let reference = dumped(&dump[written..]);
            written = dump.len();
            if stacks == reference { Ok(()) } else { Err(format!("{stacks:#?}\n{reference:#?}")) }
        });
        let process = &rank_of(&document(&job), rank)["process"].clone();
        assert!(text(&process["python"]).starts_with(version.as_str()), "{what}: {process:#}");
        // Every Python thread has its number in the kernel, and none holds the GIL, because all
        // wait.
        for thread in list(&process["threads"]) {
            assert!(thread["tid"].is_i64(), "{what}: {thread:#}");
            assert_eq!(thread["python"]["holds_gil"], false, "{what}: {thread:#}");
            assert_eq!(thread["kernel"]["state"], "S", "{what}: {thread:#}");
        }
        all.push(stacks);
    }
    assert_eq!(list(&seen["ranks"]).len(), folders.len());
    // The control: programs of other seeds have other stacks.
    all.sort();
    all.dedup();
    assert!(all.len() > folders.len() / 2, "{all:#?}");
    job.signal(Signal::SIGTERM);
    job.wait().expect_code(143).expect_nothing_left();
}
