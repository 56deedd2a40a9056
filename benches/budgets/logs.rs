//! Capturing what two ranks write as fast as they can: into files, and to the
//! console with the rank's prefix.
//!
//! Each way writes the same bytes into a folder of memory, in turn, so that no disk and no fixed
//! cost decides; the time that a launcher takes for its end is a row of its own.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::resource::{Usage, UsageWho, getrusage};
use nix::sys::statvfs::statvfs;
use nix::sys::time::TimeValLike;

use harness::executable;

use crate::measure::{Budget, Table, before, command, direct_of, median, now, torchrun};
use crate::roles::STAMP;

const RANKS: u32 = 2;
const ROUNDS: usize = 7;
/// Per rank, in MiB.
const MUCH: usize = 512;
/// Per rank, in MiB: so little that only the fixed costs count.
const LITTLE: usize = 1;

pub(crate) fn measure(table: &mut Table) {
    let folder = memory_folder();
    let root = folder.path();
    let (mut ours, mut torchruns, mut tee) = (Vec::new(), Vec::new(), Vec::new());
    let (mut cat, mut s6, mut earlier) = (Vec::new(), Vec::new(), Vec::new());
    let before = before();
    let has_s6 = Command::new("s6-log").stdin(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    let mut least_kept = u64::MAX;
    for _ in 0..ROUNDS {
        ours.push(capture(root, MUCH, launcher(&executable(), MUCH, root)));
        let kept = kept(&root.join("logs"));
        least_kept = least_kept.min(kept);
        clear(root);
        if let Some(before) = &before {
            earlier.push(capture(root, MUCH, launcher(before, MUCH, root)));
            clear(root);
        }
        torchruns.push(capture(root, MUCH, torchrun_tee(MUCH, root)));
        clear(root);
        tee.push(capture(root, MUCH, piped("tee out-$rank", MUCH, root)));
        clear(root);
        cat.push(capture(root, MUCH, piped("cat > out-$rank", MUCH, root)));
        clear(root);
        if has_s6 {
            let line = "mkdir s6-$rank && s6-log n20 s268435455 ./s6-$rank";
            s6.push(capture(root, MUCH, piped(line, MUCH, root)));
            clear(root);
        }
    }
    let written = u64::from(RANKS) * ((MUCH as u64) << 20);
    let lost = written.saturating_sub(least_kept);
    table.row(
        "log capture, bytes that are not in the files",
        &format!("{lost} of {written}"),
        "none",
        lost as f64,
        Budget::Within("0", lost == 0),
    );
    let rate = |all: &[Capture]| median(all.iter().map(|one| one.rate).collect());
    let cpu = |all: &[Capture]| median(all.iter().map(|one| one.cpu).collect());
    let (speed, slow, plain) = (rate(&ours), rate(&torchruns), rate(&tee));
    let shown = format!("{speed:.0} MB/s");
    table.row(
        "log capture, 2 ranks, files and console",
        &shown,
        &format!("tee {plain:.0} MB/s"),
        speed / plain,
        Budget::Within("0.85 x", speed >= 0.85 * plain),
    );
    table.row(
        "the same",
        &shown,
        &format!("torchrun --tee 3 {slow:.0} MB/s"),
        speed / slow,
        Budget::Within("4 x", speed >= 4.0 * slow),
    );
    let (own, other) = (
        capture(root, LITTLE, launcher(&executable(), LITTLE, root)),
        capture(root, LITTLE, torchrun_tee(LITTLE, root)),
    );
    clear(root);
    table.row(
        "first byte to the launcher's end, 1 MiB",
        &format!("{:.2} s", own.seconds),
        &format!("torchrun --tee 3 {:.2} s", other.seconds),
        own.seconds / other.seconds,
        Budget::None,
    );
    if before.is_some() {
        let theirs = rate(&earlier);
        let rival = format!("before {theirs:.0} MB/s");
        let budget = Budget::Within("0.85", speed >= 0.85 * theirs);
        table.row("the same", &shown, &rival, speed / theirs, budget);
    } else {
        table.left_out("the same against an executable before", "BEFORE names none");
    }
    if has_s6 {
        let theirs = rate(&s6);
        let rival = format!("s6-log, files alone {theirs:.0} MB/s");
        table.row("the same", &shown, &rival, speed / theirs, Budget::None);
    } else {
        table.left_out("the same against s6-log", "s6 is not installed");
    }
    let (ours, theirs) = (cpu(&ours), cpu(&cat));
    table.row(
        "CPU time per GB captured",
        &format!("{ours:.2} s"),
        &format!("cat > file {theirs:.2} s"),
        ours / theirs,
        Budget::Within("3 x", ours <= 3.0 * theirs),
    );
}

/// How fast it was, and what it cost apart from the writers themselves.
struct Capture {
    /// From the first writer's start to the end.
    seconds: f64,
    /// MB (10^6) per second of that time.
    rate: f64,
    /// Seconds of CPU per GB.
    cpu: f64,
}

fn writer(megabytes: usize) -> [String; 3] {
    let ourselves = std::env::current_exe().expect("our own path");
    [ourselves.to_string_lossy().into_owned(), "role-write".into(), megabytes.to_string()]
}

/// A folder in memory where that has room for what all ranks write twice, else on the disk, which is said.
fn memory_folder() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let bytes = 2 * u64::from(RANKS) * ((MUCH as u64) << 20);
    let has_room =
        statvfs(memory).is_ok_and(|it| it.blocks_available() * it.fragment_size() > bytes);
    if !has_room {
        println!("log capture: /dev/shm has too little room, so the disk counts as well");
    }
    let parent = if has_room { memory.to_owned() } else { std::env::temp_dir() };
    tempfile::tempdir_in(parent).expect("a folder")
}

fn launcher(executable: &Path, megabytes: usize, root: &Path) -> Command {
    let mut command = direct_of(executable, RANKS, root);
    command.args(["--log-dir", "logs", "--log-cap-rank", "16GiB", "--log-cap-node", "64GiB"]);
    command.arg("--").args(writer(megabytes));
    command
}

fn torchrun_tee(megabytes: usize, root: &Path) -> Command {
    let mut command = torchrun(RANKS, root);
    command.args(["--tee", "3", "--log-dir", "tee", "--no-python"]).args(writer(megabytes));
    command
}

/// One pipeline per rank, all at once.
fn piped(sink: &str, megabytes: usize, root: &Path) -> Command {
    let mut shell = command("sh", root);
    let [program, role, size] = writer(megabytes);
    let line = format!("for rank in 0 1; do \"$1\" $2 $3 | ({sink}) & done; wait");
    shell.args(["-c", &line, "sh", &program, &role, &size]);
    shell
}

fn capture(root: &Path, megabytes: usize, mut command: Command) -> Capture {
    let stamp = root.join("stamp");
    let _ = std::fs::remove_file(&stamp);
    let before = children();
    let console = File::options().write(true).open("/dev/null").expect("/dev/null");
    let status = command.env(STAMP, &stamp).stdout(console).status().expect("it runs");
    let end = now();
    assert!(status.success(), "{command:?}: {status}");
    let spent = children() - before;
    let text = std::fs::read_to_string(&stamp).expect("the writers ran");
    let writers: Vec<(u128, f64)> = text
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter_map(|(start, cpu)| Some((start.parse().ok()?, cpu.parse().ok()?)))
        .collect();
    assert_eq!(writers.len(), RANKS as usize, "{text}");
    let start = writers.iter().map(|(start, _)| *start).min().unwrap_or(end);
    let theirs: f64 = writers.iter().map(|(_, cpu)| *cpu).sum();
    let bytes = (RANKS as usize * (megabytes << 20)) as f64;
    let elapsed = end.saturating_sub(start) as f64 / 1e9;
    let rate = bytes / 1e6 / elapsed;
    Capture { seconds: elapsed, rate, cpu: (spent - theirs) / (bytes / 1e9) }
}

/// CPU seconds of all children that were waited for.
fn children() -> f64 {
    seconds(&getrusage(UsageWho::RUSAGE_CHILDREN).expect("the children's usage"))
}

pub(crate) fn seconds(usage: &Usage) -> f64 {
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    micros as f64 / 1e6
}

/// Bytes in the ranks' files of the newest run.
fn kept(logs: &Path) -> u64 {
    let attempt = logs.join("latest/node-0/attempt-0");
    let entries = std::fs::read_dir(attempt).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_name().to_string_lossy().ends_with(".out"))
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("rank-"))
        .filter_map(|entry| entry.metadata().ok())
        .map(|metadata| metadata.len())
        .sum()
}

/// Empties the folder, so that no run pays for the pages of another.
fn clear(root: &Path) {
    for entry in std::fs::read_dir(root).into_iter().flatten().flatten() {
        let path = entry.path();
        let removed = if path.is_dir() {
            std::fs::remove_dir_all(&path)
        } else {
            std::fs::remove_file(&path)
        };
        removed.expect("it can be removed");
    }
}
