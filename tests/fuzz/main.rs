//! Every fuzz target over its seeds and over mutations of them.

mod targets;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use targets::{TARGETS, Target};

/// Bytes of a seed, and of all seeds of a target: they are read by people and travel with every copy.
const LARGEST_SEED: usize = 16 * 1024;
const LARGEST_FOLDER: usize = 96 * 1024;
const FEWEST_SEEDS: usize = 3;

/// Targets whose runs take long where nothing is optimized, and those whose promises need many runs. All others have
/// so many mutations of their seeds.
const ROUNDS: usize = 300;
const OTHER_ROUNDS: &[(&str, usize)] = &[
    ("adopt", 100),
    ("agreement", 1500),
    ("catalogue", 10),
    ("environment", 60),
    ("folders", 40),
    ("frames", 4000),
    ("handshake", 1000),
    ("index", 200),
    ("journal", 60),
    ("log", 100),
    ("manifest", 100),
    ("profile", 60),
    ("stacks", 100),
    ("terminal", 60),
    ("words", 60),
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz")
}

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let name = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.expect("an entry").path().file_stem().expect("a name").to_string_lossy().into_owned()
    };
    entries.map(name).collect()
}

fn seeds(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = folder().join("seeds").join(target);
    let files = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let mut paths: Vec<PathBuf> = files.map(|file| file.expect("a file").path()).collect();
    paths.sort();
    let read = |path: PathBuf| {
        let bytes = std::fs::read(&path).expect("readable");
        (path, bytes)
    };
    paths.into_iter().map(read).collect()
}

/// A target without seeds would be run by nobody, and seeds without a target would be read by nobody.
#[test]
fn every_target_has_seeds() {
    let table: BTreeSet<String> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(table.len(), TARGETS.len());
    assert_eq!(names(&folder().join("seeds")), table);
    for dictionary in names(&folder().join("dictionaries")) {
        assert!(table.contains(&dictionary), "{dictionary} is no target");
    }
    for name in &table {
        let seeds = seeds(name);
        let size: usize = seeds.iter().map(|(_, bytes)| bytes.len()).sum();
        assert!(seeds.len() >= FEWEST_SEEDS, "{name} has {} seeds", seeds.len());
        assert!(size <= LARGEST_FOLDER, "the seeds of {name} have {size} bytes");
        for (path, bytes) in seeds {
            assert!(bytes.len() <= LARGEST_SEED, "{path:?} has {} bytes", bytes.len());
        }
    }
    for (name, _) in OTHER_ROUNDS {
        assert!(table.contains(*name), "{name} is no target");
    }
}

/// The seeds of a target, among them everything that was once found, then mutations of them. A part of all must be
/// accepted, else only the outermost check is tested.
fn over_seeds(name: &str, entry: Target) {
    let seeds: Vec<Vec<u8>> = seeds(name).into_iter().map(|(_, bytes)| bytes).collect();
    let rounds = OTHER_ROUNDS.iter().find(|(known, _)| *known == name);
    let rounds = rounds.map_or(ROUNDS, |(_, rounds)| *rounds);
    let mut accepted = seeds.iter().filter(|seed| entry(seed)).count();
    assert!(accepted > 0, "{name}: none of {} seeds", seeds.len());
    // xorshift64: any generator is good enough if a failure is reproducible.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state >> 33).expect("31 bits") % below.max(1)
    };
    for _ in 0..rounds {
        let mut data = seeds[random(seeds.len())].clone();
        for _ in 0..=random(4) {
            let at = random(data.len());
            let byte = u8::try_from(random(256)).expect("a byte");
            match random(6) {
                0 => data.truncate(at),
                1 => data.insert(at, byte),
                2 if !data.is_empty() => drop(data.remove(at)),
                3 => {
                    let other = &seeds[random(seeds.len())];
                    data.extend(other.iter().skip(random(other.len())));
                }
                _ if !data.is_empty() => data[at] = byte,
                _ => data.push(byte),
            }
        }
        accepted += usize::from(entry(&data));
    }
    assert!(accepted > rounds / 40, "{name}: {accepted} of {rounds} were accepted");
}

macro_rules! targets {
    ($($name:ident)*) => {
        /// Each in a test of its own, so that they run side by side and a failure has a name.
        mod seeds_of {
            $(#[test]
            fn $name() {
                let name = stringify!($name);
                let found = super::TARGETS.iter().find(|(known, _)| *known == name);
                let (_, entry) = found.expect("a target");
                super::over_seeds(name, *entry);
            })*
        }
        const RUN: &[&str] = &[$(stringify!($name)),*];
    };
}

targets! {
    adopt agreement catalogue console dump environment folders frames handshake http index journal log
    manifest mask metrics nccl_conf nodelist notices pattern profile ras scout stacks status
    terminal words
}

#[test]
fn no_target_is_left_out() {
    assert_eq!(RUN, TARGETS.iter().map(|(name, _)| *name).collect::<Vec<_>>());
}
