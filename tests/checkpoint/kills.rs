//! Writers that are killed at a random moment, or whose disk is full.

use std::ffi::OsString;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use harness::chance::Chance;
use harness::{cached_python, executable, python, skipped};
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::servers::Server;

/// The formats for which torch and accelerate suffice.
const FEW: &[&str] = &["torch", "dcp", "dcp2", "safetensors", "sharded", "accelerate"];
const ALL: &[&str] = &[
    "torch",
    "dcp",
    "dcp2",
    "safetensors",
    "sharded",
    "accelerate",
    "trainer",
    "lightning",
    "zero1",
    "zero2",
    "zero3",
    "megatron",
];
/// Longest time from the first file of a writer to its end, in milliseconds.
const LONGEST: u64 = 1500;
/// They take seconds for each checkpoint.
const SLOW: &[&str] = &["megatron"];
/// Time limit for the first file of a writer, which comes after its imports.
const FIRST: Duration = Duration::from_secs(120);

/// How a writer ends.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    Killed,
    DiskFull,
}

/// The kinds of answers over all rounds.
#[derive(Default)]
struct Tally {
    rounds: u32,
    /// Rounds in which nothing was whole.
    none: u32,
    /// Rounds in which something was not whole.
    torn: u32,
    by_number: u32,
    by_time: u32,
    wrong: Vec<String>,
}

/// What `ranklaunch checkpoint` says.
fn survey(folder: &Path) -> Value {
    let output = Command::new(executable())
        .arg("checkpoint")
        .arg(folder)
        .args(["--format", "json"])
        .output()
        .expect("it starts");
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).expect("it prints JSON")
}

/// Bytes of all files below the folder.
fn bytes(folder: &Path) -> u64 {
    let Ok(entries) = folder.read_dir() else { return 0 };
    let of = |entry: std::fs::DirEntry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => bytes(&entry.path()),
        _ => entry.metadata().map_or(0, |metadata| metadata.len()),
    };
    entries.flatten().map(of).sum()
}

fn text<'v>(value: &'v Value, key: &str) -> Option<&'v str> {
    value.get(key).and_then(Value::as_str)
}

/// One writer in an empty folder, up to its end.
fn write(writer: &mut Server, format: &str, folder: &Path, fault: Fault, chance: &mut Chance) {
    let request = json!({ "format": format, "write": folder });
    let group = writer.ask(&request).as_i64().and_then(|pid| i32::try_from(pid).ok());
    let group = Pid::from_raw(group.expect("a process group"));
    let begun = Instant::now();
    let is_over = || nix::sys::signal::killpg(group, None) == Err(Errno::ESRCH);
    while bytes(folder) == 0 && !is_over() {
        assert!(begun.elapsed() < FIRST, "{} stays empty", folder.display());
        std::thread::sleep(Duration::from_millis(2));
    }
    match fault {
        Fault::Killed => {
            let longest = if SLOW.contains(&format) { 8 * LONGEST } else { LONGEST };
            std::thread::sleep(Duration::from_millis(chance.below(longest)));
        }
        // It fails by itself, or each further checkpoint does.
        Fault::DiskFull => {
            let mut last = (Instant::now(), 0);
            while last.0.elapsed() < Duration::from_millis(500) && begun.elapsed() < FIRST {
                let now = bytes(folder);
                last = if now == last.1 { last } else { (Instant::now(), now) };
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
    let _ = nix::sys::signal::killpg(group, Signal::SIGKILL);
    writer.ask(&json!({ "reap": true }));
}

/// Compares what is chosen with what loads.
fn judge(loader: &mut Server, format: &str, folder: &Path, tally: &mut Tally) {
    tally.rounds += 1;
    let seen = survey(folder);
    let tried = loader.ask(&json!({ "format": format, "folder": folder }));
    let tried = tried.as_array().expect("a list");
    let loads = tried.iter().find(|one| one.get("step").is_some());
    let (chosen, right) = (text(&seen, "newest"), loads.and_then(|one| text(one, "path")));
    let number = |list: &[Value], key: &str, path: Option<&str>| {
        list.iter().find(|one| text(one, "path") == path).and_then(|one| one.get(key)?.as_u64())
    };
    let found = seen.get("checkpoints").and_then(Value::as_array).expect("a list");
    let steps = (number(found, "step", chosen), number(tried, "number", right));
    if chosen != right || steps.0 != steps.1 {
        tally.wrong.push(format!("chosen {chosen:?} (step {:?}), and it should be {right:?} (step {:?})\n{seen:#}\n{tried:#?}", steps.0, steps.1));
    }
    // Each that the framework would take for one is listed.
    let paths = |list: &[Value]| {
        let mut paths: Vec<String> =
            list.iter().filter_map(|one| text(one, "path")).map(str::to_owned).collect();
        paths.sort();
        paths
    };
    let (listed, named) = (paths(found), paths(tried));
    let is_missed = |path: &&String| {
        let is_there = Path::new(path).is_file() || bytes(Path::new(path)) > 0;
        is_there && !listed.contains(path)
    };
    let missed: Vec<&String> = named.iter().filter(is_missed).collect();
    if !missed.is_empty() {
        tally.wrong.push(format!("not listed: {missed:?}\n{seen:#}"));
    }
    let whole = |one: &&Value| one.get("complete") == Some(&Value::Bool(true));
    tally.none += u32::from(chosen.is_none());
    tally.torn += u32::from(!found.iter().all(|one| whole(&one)));
    let by_number = tried.first().and_then(|one| text(one, "path"));
    let modified = |one: &&Value| {
        let path = text(one, "path").map(Path::new);
        path.and_then(|path| path.metadata().ok()?.modified().ok())
            .unwrap_or(SystemTime::UNIX_EPOCH)
    };
    let by_time = tried.iter().max_by_key(modified).and_then(|one| text(one, "path"));
    tally.by_number += u32::from(by_number != right);
    tally.by_time += u32::from(by_time != right);
}

/// So many rounds of each of these formats, whose imports one process bears together.
fn rounds(python: &Path, formats: &[&str], fault: Fault, count: u64, all: &mut Tally) {
    let place = tempfile::Builder::new().prefix("checkpoints-").tempdir().expect("a folder");
    let mut writer = Server::new(python, "writers", formats, place.path());
    let mut loader = Server::new(python, "loaders", formats, place.path());
    writer.answer();
    loader.answer();
    let seed = seed();
    for format in formats {
        let mut own = Tally::default();
        let started = Instant::now();
        for round in 0..count {
            let mut chance = Chance::new(seed, round);
            let folder = place.path().join(format!("{format}-{round}"));
            std::fs::create_dir(&folder).expect("a folder");
            let disk = (fault == Fault::DiskFull).then(|| Disk::new(&folder, &mut chance));
            if matches!(disk, Some(None)) {
                return;
            }
            write(&mut writer, format, &folder, fault, &mut chance);
            judge(&mut loader, format, &folder, &mut own);
            drop(disk);
            std::fs::remove_dir_all(&folder).expect("it is removed");
            if let Some(wrong) = own.wrong.first() {
                eprintln!("{format}, round {round}, SEED={seed}: {wrong}");
                break;
            }
        }
        line(format, &own, started.elapsed());
        all.rounds += own.rounds;
        all.none += own.none;
        all.torn += own.torn;
        all.by_number += own.by_number;
        all.by_time += own.by_time;
        all.wrong.extend(own.wrong);
    }
    if !all.wrong.is_empty() {
        for log in ["writers.log", "loaders.log"] {
            eprintln!("{}", std::fs::read_to_string(place.path().join(log)).unwrap_or_default());
        }
    }
}

fn line(name: impl Display, tally: &Tally, took: Duration) {
    let Tally { rounds, none, torn, by_number, by_time, wrong } = tally;
    let (wrong, took) = (wrong.len(), took.as_secs());
    println!(
        "{name:<12} {rounds:>4} rounds, {torn:>4} with a torn checkpoint, {none:>4} with no whole one: wrong {wrong}; by the highest number {by_number}, by the newest time {by_time}; {took} s"
    );
}

/// A small file system in memory; unmounted when dropped.
struct Disk(PathBuf);

impl Disk {
    /// None: this user may mount nothing.
    fn new(folder: &Path, chance: &mut Chance) -> Option<Disk> {
        // Between one and four checkpoints: the writers keep three.
        let size = format!("size={}k", 10_000 + chance.below(20_000_u64));
        match mount(Some("tmpfs"), folder, Some("tmpfs"), MsFlags::empty(), Some(size.as_str())) {
            Ok(()) => Some(Disk(folder.to_owned())),
            Err(error) => {
                skipped(format!("a file system that fills cannot be mounted: {error}"));
                None
            }
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

fn seed() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    number("SEED", u64::from(now.subsec_nanos()))
}

fn end(all: &Tally, started: Instant) {
    line("all", all, started.elapsed());
    assert!(all.wrong.is_empty(), "{}", all.wrong.join("\n"));
    // Otherwise nothing was tried.
    assert!(
        all.by_number > 0 || all.by_time > 0,
        "no naive rule was wrong in {} rounds",
        all.rounds
    );
}

/// The interpreter with all frameworks, and the formats that ONLY names.
fn asked() -> (PathBuf, Vec<&'static str>) {
    let only: OsString = std::env::var_os("ONLY").unwrap_or_default();
    let only = only.to_string_lossy().into_owned();
    let asked =
        |format: &&&str| only.is_empty() || only.split_whitespace().any(|one| one == **format);
    let python = cached_python("writers").expect("tests/checkpoint/install.sh makes it");
    (python, ALL.iter().filter(asked).copied().collect())
}

#[test]
fn the_newest_whole_one_loads_after_a_kill() {
    let (mut all, started) = (Tally::default(), Instant::now());
    rounds(&python(), FEW, Fault::Killed, 2, &mut all);
    end(&all, started);
}

#[test]
#[ignore = "make judge-checkpoints"]
fn all_formats_after_many_kills() {
    let (mut all, started) = (Tally::default(), Instant::now());
    let (python, formats) = asked();
    for format in formats {
        rounds(&python, &[format], Fault::Killed, number("KILLS", 20), &mut all);
    }
    end(&all, started);
}

#[test]
#[ignore = "make judge-checkpoints"]
fn all_formats_on_a_full_disk() {
    let (mut all, started) = (Tally::default(), Instant::now());
    let (python, formats) = asked();
    for format in formats {
        rounds(&python, &[format], Fault::DiskFull, number("FULL", 9), &mut all);
    }
    if all.rounds > 0 {
        end(&all, started);
    }
}
