//! Small programs for the measurements, implemented by this executable: a python or torchrun
//! that only records its start time, a rank that writes as fast as it can, and a crowd of
//! processes.

use std::io::Write;
use std::path::Path;

use crate::{crowd, measure};

/// File in which a stub says when it started.
pub(crate) const STAMP: &str = "BENCH_STAMP";

/// Plays the role that the name or the first argument asks for: its exit code.
pub(crate) fn play() -> Option<i32> {
    let mut args = std::env::args();
    let name = args.next().unwrap_or_default();
    let name = Path::new(&name).file_name().map(|name| name.to_string_lossy().into_owned());
    if matches!(name.as_deref(), Some("python3" | "torchrun")) {
        stamp(&measure::now().to_string());
        return Some(0);
    }
    let number = |word: Option<String>| word.and_then(|word| word.parse().ok());
    match args.next().as_deref() {
        Some("role-write") => Some(write_lines(number(args.next())?)),
        Some("role-crowd") => Some(crowd::inside(number(args.next())?)),
        _ => None,
    }
}

/// Appends a line to the file that `STAMP` names.
fn stamp(line: &str) {
    let Some(path) = std::env::var_os(STAMP) else { return };
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
    // A line in one write: ranks share the file.
    let _ = file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
}

/// `megabytes` of 120-byte lines on standard output; start and own CPU time in the stamp.
fn write_lines(megabytes: usize) -> i32 {
    let line = format!("{:-<119}\n", "step 1234/100000 | loss: 0.15 | psnr: 18.5 dB ");
    // The buffer size of a program that writes much: 64 KiB.
    let block = line.repeat((64 << 10) / line.len());
    let mut left = megabytes << 20;
    let start = measure::now();
    let mut out = std::io::stdout().lock();
    while left > 0 {
        let part = block.get(..left.min(block.len())).unwrap_or(&block);
        if out.write_all(part.as_bytes()).is_err() {
            return 1;
        }
        left -= part.len();
    }
    let _ = out.flush();
    use nix::sys::resource::{UsageWho, getrusage};
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("own usage");
    let cpu = crate::logs::seconds(&usage);
    stamp(&format!("{start} {cpu}"));
    0
}
