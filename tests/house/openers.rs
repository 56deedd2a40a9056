//! Every place that opens a file by its path, and the reason why another user's file cannot block
//! it: a FIFO in place of a file, a link, a file without end.

use std::collections::BTreeMap;
use std::path::Path;

use crate::{root, shown, sources};

/// Calls that open a file and follow links, wait for the writer of a FIFO, or read without a bound.
const CALLS: &[&str] = &[
    "File::open(",
    "File::options(",
    "File::create(",
    "OpenOptions::new(",
    "fs::read(",
    "fs::read_to_string(",
    "rustix::fs::open(",
    "rustix::fs::openat(",
];

/// The kernel's own files: /proc, /sys and devices.
const KERNEL: &str = "of the kernel";
/// The file is made here, so it is a regular one.
const FRESH: &str = "is made here";
/// The file itself was named on the command line or in a variable, and may be a pipe.
const NAMED: &str = "was named itself";

/// The source files with such calls, their number, and the reason for each. Only this user can enter a private folder.
/// All other files use `src/linux/regular_file.rs`.
const ALLOWED: &[(&str, usize, &str)] = &[
    ("src/linux/host.rs", 1, "has a deadline: `src/node/observe/sources.rs`"),
    ("src/ranklaunch/bad_nodes.rs", 1, "appended to, and made where it is not there"),
    ("src/ranklaunch/commands/stacks.rs", 1, FRESH),
    ("src/ranklaunch/commands/without_job.rs", 1, KERNEL),
    ("src/report/runs/streams.rs", 1, NAMED),
    ("src/ranklaunch/commands/logs.rs", 1, NAMED),
    ("src/ranklaunch/node_evidence.rs", 1, KERNEL),
    ("src/ranklaunch/scratch.rs", 2, "a lock that is made here; of the kernel"),
    ("src/logs/console.rs", 1, KERNEL),
    ("src/muster/links/endpoint.rs", 1, KERNEL),
    ("src/muster/protocol/handshake.rs", 1, NAMED),
    ("src/node/observe/gpu/fallback.rs", 1, KERNEL),
    ("src/node/observe/kernel_log.rs", 1, KERNEL),
    ("src/node/observe/rdma.rs", 1, KERNEL),
    ("src/node/observe/state.rs", 2, KERNEL),
    ("src/preflight/prepare/trial.rs", 4, "three in a private folder; is made here"),
    ("src/node/probe/start.rs", 1, FRESH),
    ("src/linux/procfs.rs", 2, KERNEL),
    ("src/linux/random.rs", 1, KERNEL),
    ("src/linux/regular_file.rs", 6, "the one place"),
    ("src/settings/places.rs", 2, "of the kernel; was named itself"),
    ("src/monitor/socket/client.rs", 1, KERNEL),
    ("src/diagnose/stacks/kernel.rs", 3, KERNEL),
    ("src/diagnose/stacks/memory.rs", 1, KERNEL),
    ("src/diagnose/stacks/process.rs", 2, KERNEL),
    ("src/supervise/bind.rs", 2, KERNEL),
    ("src/supervise/reaper.rs", 2, KERNEL),
    ("src/supervise/terminal.rs", 1, KERNEL),
    ("src/supervise/tree.rs", 6, KERNEL),
    ("src/supervise/warmed.rs", 2, KERNEL),
    ("src/supervise/warm/mod.rs", 4, "two in a private folder; of the kernel"),
    ("src/monitor/hang/dump_pipe.rs", 2, "of the kernel; a pipe that is tried"),
    ("src/monitor/hang/faulthandler.rs", 1, KERNEL),
    ("src/monitor/watch/pulse.rs", 7, KERNEL),
];

/// Number of such calls, without the code of tests and the words of comments.
fn calls(text: &str) -> usize {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    let starts = |line: &str, call: &str| {
        let is_part = |before: char| before.is_alphanumeric() || before == '_';
        let ends = line.match_indices(call).filter(|(at, _)| !line[..*at].ends_with(is_part));
        ends.count()
    };
    lines.map(|line| CALLS.iter().map(|call| starts(line, call)).sum::<usize>()).sum()
}

/// The node-probe reads the driver and nothing else; build scripts read the source.
const OTHERS: &[&str] =
    &["tests", "tests.rs", "fuzz", "fuzz.rs", "node-probe", "embed", "build.rs"];

fn is_other(file: &Path) -> bool {
    file.iter().any(|part| OTHERS.iter().any(|other| part == *other))
}

#[test]
fn every_opening_of_a_file_has_its_reason() {
    let all = sources(&root().join("src"));
    let of_program = all.iter().map(|(file, text)| (shown(file), text));
    let of_program = of_program.filter(|(file, _)| !is_other(Path::new(file)));
    let counted = of_program.map(|(file, text)| (file, calls(text)));
    let found: BTreeMap<String, usize> = counted.filter(|(_, count)| *count > 0).collect();
    let allowed: BTreeMap<String, usize> =
        ALLOWED.iter().map(|(file, count, _)| ((*file).to_owned(), *count)).collect();
    let differ: Vec<_> = found
        .keys()
        .chain(allowed.keys())
        .filter(|file| found.get(*file) != allowed.get(*file))
        .map(|file| (file, found.get(file), allowed.get(file)))
        .collect();
    assert!(
        differ.is_empty(),
        "open these with src/linux/regular_file.rs, or give the reason here: {differ:#?}"
    );
}

/// The control: calls are found, but not in tests and comments.
#[test]
fn calls_are_found_outside_of_tests_and_comments() {
    for (text, count) in [
        ("let a = std::fs::read(path);", 1),
        ("File::open(p)?; std::fs::read_to_string(q)?", 2),
        ("// File::open(p)\n", 0),
        ("regular_file::read(p); root.open(p); myfs::read(p)", 0),
        ("#[cfg(test)]\nmod tests {\n fs::read(p)", 0),
    ] {
        assert_eq!(calls(text), count, "{text}");
    }
}
