//! Reading the stacks of a process as a fuzz target. Not part of the program.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::collect::RankStacks;
use super::elf::{Symbols, candidates};
use super::layout::{self, LineTable, Version};
use super::memory::{Memory, Unread};
use super::process::ProcessStacks;
use super::python::{Frame, Interpreter};
use text::fuzzing::Choices;

/// First address of the memory.
const START: u64 = 0x10_0000;
/// Maximum number of reads, in place of the time limit for the memory of a process.
const MOST_READS: u64 = 200_000;

/// The memory of a process that repeats the bytes up to some length. Some words are meant as addresses.
struct Hostile<'a> {
    bytes: &'a [u8],
    length: u64,
    /// Number of reads after which a byte differs from before; 0: never.
    changes: u64,
    reads: Cell<u64>,
}

impl Hostile<'_> {
    fn byte(&self, place: u64) -> Option<u8> {
        if place >= self.length {
            return None;
        }
        let size = self.bytes.len() as u64;
        let word = place / 8 * 8 % size;
        // The highest byte of a word marks the word as an address in this memory.
        let at = |offset: u64| self.bytes[usize::try_from((word + offset) % size).unwrap_or(0)];
        let within = place % 8;
        if at(7) == 0xaa {
            let to = START + u64::from(u16::from_le_bytes([at(0), at(1)])) * 8 % self.length;
            return Some(to.to_le_bytes()[usize::try_from(within).unwrap_or(0)]);
        }
        Some(at(within))
    }
}

impl Memory for Hostile<'_> {
    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), Unread> {
        let count = self.reads.get() + 1;
        self.reads.set(count);
        if count > MOST_READS {
            assert!(count < 2 * MOST_READS, "it reads on after its time");
            return Err(Unread::Late);
        }
        for (place, byte) in into.iter_mut().enumerate() {
            let place = at.wrapping_sub(START).wrapping_add(place as u64);
            *byte = self.byte(place).ok_or(Unread::Changed)?;
            if self.changes > 0 && count.is_multiple_of(self.changes) {
                *byte ^= 8;
            }
        }
        Ok(())
    }
}

/// Memory, tables, maps and tracebacks of a rank, chosen by the first byte.
///
/// Every walk ends in a bounded number of reads and frames, whatever the memory holds. A table gives a line or none.
pub fn stacks(data: &[u8]) -> bool {
    let mut choices = Choices(data);
    match choices.byte() % 4 {
        0 => memory(&mut choices),
        1 => {
            let kinds = [LineTable::Lnotab, LineTable::Ranges, LineTable::Locations];
            let kind = choices.of(&kinds);
            let (first, offset) = (choices.number(), choices.number());
            let table = choices.0;
            // No table of this length reaches further.
            let line = kind.line(table, first.into(), i64::from(offset.cast_signed()));
            let again = kind.line(table, i64::from(first) + 1, i64::from(offset.cast_signed()));
            assert_eq!(line.map(|line| line + 1), again, "lines are counted from the first");
            line.is_some()
        }
        2 => {
            let text = String::from_utf8_lossy(choices.0);
            let found = candidates(&text, Some("/opt/sim"));
            assert!(found.len() <= text.lines().count());
            assert!(found.iter().all(|one| one.file.starts_with('/')));
            !found.is_empty()
        }
        _ => {
            let words = String::from_utf8_lossy(choices.0);
            let mut stacks = nothing();
            stacks.take_traceback(&words);
            let threads = &stacks.process.threads;
            let frames = |python: &super::PythonStack| python.frames.len();
            let all: usize = threads.iter().filter_map(|one| one.python.as_ref().map(frames)).sum();
            assert!(all <= words.lines().count() && threads.len() <= words.lines().count());
            // Stacks that were understood are understood again after they are written.
            let mut again = nothing();
            again.take_traceback(&written(&stacks));
            assert_eq!(again.process.threads, stacks.process.threads, "{words:?}");
            !threads.is_empty()
        }
    }
}

fn memory(choices: &mut Choices<'_>) -> bool {
    let minor = u32::from(choices.byte() % 9 + 7);
    let pages = u64::from(choices.byte() % 16 + 1);
    let changes = u64::from(choices.byte() % 64);
    let code_type = START + u64::from(choices.byte()) * 8;
    let bytes = choices.0;
    if bytes.len() < 8 {
        return false;
    }
    let memory = Hostile { bytes, length: pages * 4096, changes, reads: Cell::new(0) };
    if let Ok(Some(symbols)) = Symbols::find(&memory, START) {
        let _ = symbols.address(&memory, "_PyRuntime");
        let _ = Version::find(&memory, &symbols);
    }
    let version = Version(0x0300_0000 | (minor << 16));
    let Ok(layout) = layout::layout(&memory, START, version) else { return false };
    let tids = BTreeSet::from([1, 2, 300]);
    let read = Interpreter { memory: &memory, layout, runtime: START, code_type };
    let Ok(threads) = read.threads(&tids) else { return false };
    let mut frames = 0;
    for thread in &threads {
        assert!(thread.tid.is_none_or(|tid| tids.contains(&tid)), "{thread:?}");
        frames += thread.stack.frames.len();
        assert!(thread.stack.frames.iter().all(|frame| frame.function.chars().count() <= 1024));
    }
    assert!(threads.len() <= 1024 && frames <= 16 * 1024, "{frames} frames");
    !threads.is_empty()
}

fn nothing() -> RankStacks {
    RankStacks {
        rank: text::rank::GlobalRank(0),
        local_rank: text::rank::LocalRank(0),
        process: ProcessStacks::unread(7, Unread::Changed),
        children: Vec::new(),
        children_left_out: 0,
    }
}

/// The stacks as faulthandler writes them: the first thread last.
fn written(stacks: &RankStacks) -> String {
    let threads = &stacks.process.threads;
    let (first, others) = threads.split_first().map_or((None, &[][..]), |(a, b)| (Some(a), b));
    let mut out = String::new();
    for python in others.iter().chain(first).filter_map(|one| one.python.as_ref()) {
        let _ = writeln!(out, "Thread 0x1 (most recent call first):");
        for Frame { file, line, function, .. } in &python.frames {
            let line = line.map_or("???".to_owned(), |line| line.to_string());
            let _ = writeln!(out, "  File \"{file}\", line {line} in {function}");
        }
        if python.cut {
            let _ = writeln!(out, "  ...");
        }
    }
    out
}
