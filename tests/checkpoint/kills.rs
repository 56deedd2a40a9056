//! Writers that are killed at a random moment, whose disk is full, or that lose one of two nodes.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Instant, SystemTime};

use harness::chance::Chance;
use harness::{cached_python, python};

use crate::faults::{Disk, Fault, window, write};
use crate::judge::{Tally, judge};
use crate::servers::Server;

/// The formats for which torch and accelerate suffice.
const FEW: &[&str] =
    &["torch", "dcp", "dcp2", "fsdp", "safetensors", "sharded", "accelerate", "custom"];
const ALL: &[&str] = &[
    "megatron",
    "torch",
    "dcp",
    "dcp2",
    "fsdp",
    "safetensors",
    "sharded",
    "accelerate",
    "custom",
    "trainer",
    "trainer2",
    "lightning",
    "lightning2",
    "zero1",
    "zero2",
    "zero3",
];
/// Those with two ranks.
const TWO: &[&str] =
    &["megatron", "dcp2", "fsdp", "trainer2", "lightning2", "zero1", "zero2", "zero3"];

/// So many rounds of each of these formats, whose imports one process bears together.
fn rounds(python: &Path, formats: &[&str], fault: Fault, count: u64) -> Tally {
    let place = tempfile::Builder::new().prefix("checkpoints-").tempdir().expect("a folder");
    let mut writer = Server::new(python, "writers", formats, place.path());
    let mut loader = Server::new(python, "loaders", formats, place.path());
    writer.answer();
    loader.answer();
    let seed = seed();
    let mut all = Tally::default();
    for format in formats {
        let mut own = Tally::default();
        let started = Instant::now();
        let folder = place.path().join(format!("{format}-window"));
        std::fs::create_dir(&folder).expect("a folder");
        let window = window(&mut writer, format, &folder);
        std::fs::remove_dir_all(&folder).expect("it is removed");
        for round in 0..count {
            let mut chance = Chance::new(seed, round);
            let folder = place.path().join(format!("{format}-{round}"));
            std::fs::create_dir(&folder).expect("a folder");
            let disk = (fault == Fault::DiskFull).then(|| Disk::new(&folder, &mut chance));
            if matches!(disk, Some(None)) {
                return all;
            }
            write(&mut writer, format, &folder, (fault, window), &mut chance);
            judge(&mut loader, format, &folder, &mut own);
            drop(disk);
            std::fs::remove_dir_all(&folder).expect("it is removed");
            if let Some(wrong) = own.wrong.first() {
                eprintln!("{format}, {fault:?}, round {round}, SEED={seed}: {wrong}");
                break;
            }
        }
        own.line(format!("{format} {fault:?} in {window:.1?}"), started.elapsed());
        all.add(own);
    }
    if !all.wrong.is_empty() {
        for log in ["writers.log", "loaders.log"] {
            eprintln!("{}", std::fs::read_to_string(place.path().join(log)).unwrap_or_default());
        }
    }
    all
}

/// The rounds of all these formats, JOBS=2 of them side by side: a round mostly waits.
fn side_by_side(formats: &[&'static str], fault: Fault, count: u64) {
    let started = Instant::now();
    let (python, formats) = asked(formats);
    let (queue, all) = (Mutex::new(formats.into_iter()), Mutex::new(Tally::default()));
    std::thread::scope(|scope| {
        for _ in 0..number("JOBS", 2) {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().expect("no job failed").next();
                    let Some(format) = next else { return };
                    let own = rounds(&python, &[format], fault, count);
                    all.lock().expect("no job failed").add(own);
                }
            });
        }
    });
    end(&all.into_inner().expect("no job failed"), fault, started);
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

fn seed() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    number("SEED", u64::from(now.subsec_nanos()))
}

fn end(all: &Tally, fault: Fault, started: Instant) {
    all.line(format!("all {fault:?}"), started.elapsed());
    assert!(all.wrong.is_empty(), "{}", all.wrong.join("\n"));
    // Without the permission to mount no disk is full, and ONLY may name no format of two ranks. Otherwise nothing was
    // tried with this fault.
    let may_be_none = fault != Fault::Killed && all.rounds == 0;
    assert!(
        may_be_none || all.others.values().any(|wrong| *wrong > 0),
        "no weaker rule was wrong in {} rounds of {fault:?}",
        all.rounds
    );
}

/// The interpreter with all frameworks, and those of the formats that ONLY names.
fn asked(formats: &[&'static str]) -> (PathBuf, Vec<&'static str>) {
    let only: OsString = std::env::var_os("ONLY").unwrap_or_default();
    let only = only.to_string_lossy().into_owned();
    let asked =
        |format: &&&str| only.is_empty() || only.split_whitespace().any(|one| one == **format);
    let python = cached_python("writers").expect("tests/checkpoint/install.sh makes it");
    (python, formats.iter().filter(asked).copied().collect())
}

#[test]
fn the_newest_whole_one_loads_after_a_kill() {
    let started = Instant::now();
    let all = rounds(&python(), FEW, Fault::Killed, 2);
    end(&all, Fault::Killed, started);
}

#[test]
#[ignore = "make judge-checkpoints"]
fn all_formats_after_many_kills() {
    side_by_side(ALL, Fault::Killed, number("KILLS", 20));
}

#[test]
#[ignore = "make judge-checkpoints"]
fn all_formats_on_a_full_disk() {
    side_by_side(ALL, Fault::DiskFull, number("FULL", 9));
}

#[test]
#[ignore = "make judge-checkpoints"]
fn all_formats_of_two_nodes_after_the_loss_of_one() {
    side_by_side(TWO, Fault::Lost, number("LOST", 9));
}
