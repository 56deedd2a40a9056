//! The Python threads of a process and their frames, read from its memory.
//!
//! The process runs on meanwhile. So every list has a limit, every code object is identified by its
//! type, and a stack counts only if a second walk finds the same frames. Otherwise the stack is
//! read again, a few times.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::elf::{int, long};
use super::layout::{
    BYTES_DATA, BYTES_LENGTH, CODE_UNITS, Gil, Instruction, LAST_OWNER, Layout, RunningFrame,
    TEXT_LENGTH, TEXT_STATE, TYPE,
};
use super::memory::{Memory, Unread};

/// Maximum number of attempts to read data that changes meanwhile.
const ATTEMPTS: u32 = 8;
/// Pause between two attempts, times the square of their number: 70 ms in all.
const PAUSE: Duration = if cfg!(fuzzing) { Duration::ZERO } else { Duration::from_micros(500) };
/// Limits of the lists. A longer list was followed into something else.
const MOST_INTERPRETERS: usize = 64;
const MOST_THREADS: usize = 1024;
/// Maximum number of frames of one stack that are read. Python's own limit is 1000 by default.
const MOST_FRAMES: usize = 256;
/// Maximum number of frames of all stacks of a process: the data of a process must not fill our
/// memory.
const MOST_FRAMES_IN_ALL: usize = 16 * 1024;
/// Maximum number of characters of a name or a path.
const LONGEST_TEXT: u64 = 1024;
/// Maximum bytes of a table of lines. The table for a function of ten thousand lines is shorter.
const LONGEST_TABLE: usize = 256 * 1024;

/// One Python frame.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Frame {
    /// The name of the function, with its class if the version keeps that (3.11 and later).
    pub function: String,
    pub file: String,
    /// None if the instruction belongs to no line.
    pub line: Option<u32>,
    pub first_line: u32,
}

/// The frame as reports show it.
impl From<&Frame> for crate::Frame {
    fn from(frame: &Frame) -> crate::Frame {
        crate::Frame {
            path: frame.file.clone(),
            line: u64::from(frame.line.unwrap_or(frame.first_line)),
            function: frame.function.clone(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PythonStack {
    /// 0 for the main interpreter.
    #[serde(skip_serializing_if = "is_default", default)]
    pub interpreter: i64,
    /// None if the layout does not show it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holds_gil: Option<bool>,
    /// The innermost frame comes first.
    pub frames: Vec<Frame>,
    /// Whether there are more frames than were read.
    #[serde(skip_serializing_if = "is_default", default)]
    pub cut: bool,
    /// The stack changed at each attempt to read it: its frames may never have existed together.
    #[serde(skip_serializing_if = "is_default", default)]
    pub moving: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unread: Option<Unread>,
}

pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// A thread that has run Python.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PythonThread {
    /// The kernel's number of the thread.
    pub tid: Option<i32>,
    /// The place of the thread in the interpreter.
    pub place: ThreadPlace,
    pub stack: PythonStack,
}

/// Addresses of a thread's state and of the state of its interpreter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ThreadPlace {
    interpreter: u64,
    thread: u64,
}

/// The interpreter that is read.
#[derive(Debug)]
pub(super) struct Interpreter<'a, M> {
    pub memory: &'a M,
    pub layout: Layout,
    /// Address of `_PyRuntime`.
    pub runtime: u64,
    /// Address of `PyCode_Type`.
    pub code_type: u64,
}

/// A frame as it is found in memory: its address, its code and its instruction.
#[derive(Debug, Clone, Copy)]
struct Place {
    frame: u64,
    code: u64,
    instruction: i64,
}

impl<M: Memory> Interpreter<'_, M> {
    /// All threads. `tids`: the kernel's numbers of the process's threads.
    pub(super) fn threads(&self, tids: &BTreeSet<i32>) -> Result<Vec<PythonThread>, Unread> {
        let found = retry(|| self.list())?;
        let tid_at = match self.layout.native {
            Some(_) => None,
            None => self.tid_in_handle(&found, tids),
        };
        let mut threads = Vec::with_capacity(found.len());
        let mut room = MOST_FRAMES_IN_ALL;
        for (interpreter, thread) in found {
            let read = self.frames(thread, room.min(MOST_FRAMES));
            let stack = read.unwrap_or_else(|unread| PythonStack {
                unread: Some(unread),
                ..PythonStack::default()
            });
            room -= stack.frames.len();
            let place = ThreadPlace { interpreter, thread };
            let tid = self.tid(thread, tid_at).filter(|tid| tids.contains(tid));
            let (interpreter, holds_gil) = (self.id(interpreter), self.holds_gil(place));
            let interpreter = interpreter.unwrap_or(0);
            let stack = PythonStack { interpreter, holds_gil, ..stack };
            threads.push(PythonThread { tid, place, stack });
        }
        Ok(threads)
    }

    /// Addresses of each interpreter and its threads.
    fn list(&self) -> Result<Vec<(u64, u64)>, Unread> {
        let layout = &self.layout;
        let mut found = Vec::new();
        let mut interpreter = self.memory.u64(self.runtime.wrapping_add(layout.interpreters))?;
        if interpreter == 0 {
            return Err(Unread::NotStarted);
        }
        for _ in 0..MOST_INTERPRETERS {
            let at = interpreter.wrapping_add(layout.threads);
            let mut thread = self.memory.u64(at)?;
            while thread != 0 {
                let back = thread.wrapping_add(layout.interpreter);
                if found.len() >= MOST_THREADS || self.memory.u64(back)? != interpreter {
                    return Err(Unread::Changed);
                }
                found.push((interpreter, thread));
                thread = self.memory.u64(thread.wrapping_add(layout.next_thread))?;
            }
            interpreter = self.memory.u64(interpreter.wrapping_add(layout.next_interpreter))?;
            if interpreter == 0 {
                return Ok(found);
            }
        }
        Err(Unread::Changed)
    }

    fn id(&self, interpreter: u64) -> Option<i64> {
        let at = interpreter.wrapping_add(self.layout.interpreter_id);
        self.memory.u64(at).ok().map(u64::cast_signed)
    }

    fn tid(&self, thread: u64, tid_at: Option<u64>) -> Option<i32> {
        let layout = &self.layout;
        match layout.native {
            Some(at) => i32::try_from(self.memory.u64(thread.wrapping_add(at)).ok()?).ok(),
            None => {
                let handle = self.memory.u64(thread.wrapping_add(layout.handle)).ok()?;
                i32::try_from(self.memory.u32(handle.wrapping_add(tid_at?)).ok()?).ok()
            }
        }
    }

    /// Offset of a thread's number behind its pthread_t in the C library: the offset at which
    /// every thread has a number of this process, and no two the same. (720 in glibc on x86-64, 208
    /// on arm64, another offset in musl; `struct pthread` is private to each.)
    fn tid_in_handle(&self, found: &[(u64, u64)], tids: &BTreeSet<i32>) -> Option<u64> {
        const FARTHEST: usize = 1024;
        let mut blocks = Vec::new();
        for (_, thread) in found {
            let handle = self.memory.u64(thread.wrapping_add(self.layout.handle)).ok()?;
            // The memory of a thread that has just ended cannot be read.
            if let Ok(block) = self.memory.block(handle, FARTHEST) {
                blocks.push(block);
            }
        }
        let fits = |at: &usize| {
            let mut seen = BTreeSet::new();
            !blocks.is_empty()
                && blocks.iter().all(|block| {
                    i32::try_from(int(block, *at))
                        .is_ok_and(|tid| tids.contains(&tid) && seen.insert(tid))
                })
        };
        (0..FARTHEST).step_by(4).find(fits).map(|at| at as u64)
    }

    /// Whether a thread holds the GIL. None if the layout does not show it.
    pub(super) fn holds_gil(&self, place: ThreadPlace) -> Option<bool> {
        let ThreadPlace { interpreter, thread } = place;
        let holder = match self.layout.gil {
            Gil::Runtime(at) => self.memory.u64(self.runtime.wrapping_add(at?)).ok()?,
            Gil::Interpreter { lock, locked, holder } => {
                let lock = self.memory.u64(interpreter.wrapping_add(lock)).ok()?;
                if self.memory.u32(lock.wrapping_add(locked)).ok()? != 1 {
                    return Some(false);
                }
                self.memory.u64(lock.wrapping_add(holder)).ok()?
            }
        };
        Some(holder == thread)
    }

    /// The stack of a thread, at most `most` of its frames.
    fn frames(&self, thread: u64, most: usize) -> Result<PythonStack, Unread> {
        let mut last = Err(Unread::Changed);
        for attempt in 0..ATTEMPTS {
            // The thread may have lost its CPU in the middle of a call.
            std::thread::sleep(PAUSE * attempt * attempt);
            let read = self.walk(thread, most).and_then(|(places, cut)| {
                let frames = self.resolve(&places)?;
                let (again, _) = self.walk(thread, most)?;
                let at = |place: &Place| (place.frame, place.code);
                let moving = !places.iter().map(at).eq(again.iter().map(at));
                Ok(PythonStack { frames, cut, moving, ..PythonStack::default() })
            });
            match read {
                Ok(PythonStack { moving: false, .. })
                | Err(Unread::Gone | Unread::Late | Unread::Denied { .. }) => return read,
                Err(Unread::Changed) => {}
                // A stack that was read completely once is better than none.
                Ok(_) | Err(_) => last = read,
            }
        }
        last
    }

    /// The frames from the innermost one, and whether there are more.
    fn walk(&self, thread: u64, most: usize) -> Result<(Vec<Place>, bool), Unread> {
        let layout = &self.layout;
        let mut frame = match layout.running {
            RunningFrame::Thread(at) => self.memory.u64(thread.wrapping_add(at))?,
            RunningFrame::CFrame { cframe, frame } => {
                match self.memory.u64(thread.wrapping_add(cframe))? {
                    0 => 0,
                    cframe => self.memory.u64(cframe.wrapping_add(frame))?,
                }
            }
        };
        /// The interpreter's own frames are between those of functions, at most one for each.
        const MOST_STEPS: usize = 2 * MOST_FRAMES + 2;
        let mut places = Vec::new();
        for _ in 0..MOST_STEPS {
            if frame == 0 {
                return Ok((places, false));
            }
            if places.len() == most {
                return Ok((places, true));
            }
            let owner = match layout.owner {
                Some(at) => self.memory.bytes::<1>(frame.wrapping_add(at))?[0],
                None => 0,
            };
            if owner <= LAST_OWNER {
                places.push(self.place(frame)?);
            }
            frame = self.memory.u64(frame.wrapping_add(layout.back))?;
        }
        Err(Unread::Changed)
    }

    fn place(&self, frame: u64) -> Result<Place, Unread> {
        /// Bytes of an instruction without its caches.
        const UNIT: i64 = 2;
        /// Marks of a reference in the lowest bits (3.14 and later). Objects begin at multiples of
        /// eight.
        const MARKS: u64 = 7;
        let layout = &self.layout;
        let code = self.memory.u64(frame.wrapping_add(layout.code))? & !MARKS;
        if self.memory.u64(code.wrapping_add(TYPE))? != self.code_type {
            return Err(Unread::Changed);
        }
        let instruction = match layout.instruction {
            Instruction::Index { at, unit } => {
                i64::from(self.memory.u32(frame.wrapping_add(at))?.cast_signed()) * unit
            }
            Instruction::Pointer { at } => {
                let first = code.wrapping_add(layout.instructions.unwrap_or(0));
                let at = self.memory.u64(frame.wrapping_add(at))?.wrapping_sub(first).cast_signed();
                // The instruction does not belong to the code yet while a new frame is made in the
                // place of an old frame.
                let units = self.memory.u64(code.wrapping_add(CODE_UNITS))?;
                let end = i64::try_from(units).unwrap_or(0).saturating_mul(UNIT);
                if !(-UNIT..end).contains(&at) {
                    return Err(Unread::Changed);
                }
                at
            }
        };
        Ok(Place { frame, code, instruction })
    }

    fn resolve(&self, places: &[Place]) -> Result<Vec<Frame>, Unread> {
        // The codes are kept only for one stack: a code object may be freed and its memory used
        // again.
        let mut codes: BTreeMap<u64, Code> = BTreeMap::new();
        let mut frames = Vec::with_capacity(places.len());
        for place in places {
            // A recursive function has the same code many times.
            let code = match codes.entry(place.code) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => new.insert(self.code(place.code)?),
            };
            let first = i64::from(code.first_line);
            let line = self.layout.table.line(&code.lines, first, place.instruction);
            frames.push(Frame {
                function: code.function.clone(),
                file: code.file.clone(),
                line: line.and_then(|line| u32::try_from(line).ok()),
                first_line: code.first_line,
            });
        }
        Ok(frames)
    }

    fn code(&self, code: u64) -> Result<Code, Unread> {
        let layout = &self.layout;
        let pointer = |at: u64| self.memory.u64(code.wrapping_add(at));
        Ok(Code {
            function: self.text(pointer(layout.name)?)?,
            file: self.text(pointer(layout.file)?)?,
            first_line: self.memory.u32(code.wrapping_add(layout.first_line))?,
            lines: self.byte_object(pointer(layout.lines)?)?,
        })
    }

    fn byte_object(&self, at: u64) -> Result<Vec<u8>, Unread> {
        let length = self.memory.u64(at.wrapping_add(BYTES_LENGTH))?;
        let length = usize::try_from(length).ok().filter(|length| *length <= LONGEST_TABLE);
        self.memory.block(at.wrapping_add(BYTES_DATA), length.ok_or(Unread::Changed)?)
    }

    /// A str: one, two or four bytes per character, depending on the widest one.
    fn text(&self, at: u64) -> Result<String, Unread> {
        let head: [u8; 40] = self.memory.bytes(at)?;
        let length = long(&head, usize::try_from(TEXT_LENGTH).unwrap_or(0)).min(LONGEST_TEXT);
        // interned: 2 bits, kind: 3, compact: 1, ascii: 1 (Include/cpython/unicodeobject.h).
        let state = int(&head, usize::try_from(TEXT_STATE).unwrap_or(0));
        let (kind, compact, ascii) = ((state >> 2) & 7, state & 0x20 != 0, state & 0x40 != 0);
        if !compact || !matches!(kind, 1 | 2 | 4) || (ascii && kind != 1) {
            return Err(Unread::Changed);
        }
        let data = at.wrapping_add(if ascii { self.layout.ascii } else { self.layout.compact });
        let size = usize::try_from(length * u64::from(kind)).unwrap_or(0);
        let bytes = self.memory.block(data, size)?;
        let character = |part: &[u8]| {
            let number = part.iter().rev().fold(0u32, |sum, byte| (sum << 8) | u32::from(*byte));
            char::from_u32(number).unwrap_or(char::REPLACEMENT_CHARACTER)
        };
        Ok(bytes.chunks_exact(kind as usize).map(character).collect())
    }
}

#[derive(Debug)]
struct Code {
    function: String,
    file: String,
    first_line: u32,
    lines: Vec<u8>,
}

fn retry<T>(mut work: impl FnMut() -> Result<T, Unread>) -> Result<T, Unread> {
    let mut last = Err(Unread::Changed);
    for _ in 0..ATTEMPTS {
        last = work();
        if !matches!(last, Err(Unread::Changed)) {
            break;
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::stacks::elf::Symbols;
    use crate::stacks::layout::{self, Version};

    /// Memory without meaning: most words are addresses in the memory itself, and it changes all
    /// the time.
    struct Nonsense {
        words: Vec<u64>,
        reads: std::cell::Cell<u64>,
    }

    const START: u64 = 0x10_0000;

    impl Nonsense {
        fn new(seed: u64) -> Nonsense {
            let mut state = seed | 1;
            let mut next = || {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state
            };
            let words = (0..4096)
                .map(|_| match next() % 8 {
                    0 => 0,
                    1 => next(),
                    2 => next() % 300,
                    // A str: compact and ASCII.
                    3 => 0x64,
                    _ => START + next() % (4096 * 8) / 8 * 8,
                })
                .collect();
            Nonsense { words, reads: std::cell::Cell::new(seed) }
        }
    }

    impl Memory for Nonsense {
        fn read(&self, at: u64, into: &mut [u8]) -> Result<(), Unread> {
            let count = self.reads.get();
            self.reads.set(count.wrapping_add(1));
            for (place, byte) in into.iter_mut().enumerate() {
                let at = at.wrapping_sub(START).wrapping_add(place as u64);
                let word = usize::try_from(at / 8).ok().and_then(|word| self.words.get(word));
                let word = word.ok_or(Unread::Changed)?;
                // Now and then a word differs from before.
                let word = if count.is_multiple_of(31) { word ^ 8 } else { *word };
                *byte = word.to_le_bytes()[usize::try_from(at % 8).expect("small")];
            }
            Ok(())
        }
    }

    #[test]
    fn walk_over_nonsense_memory_ends() {
        let began = Instant::now();
        let tids = BTreeSet::from([1, 2, 300]);
        let mut outcomes = BTreeSet::new();
        for seed in 0..400 {
            let memory = Nonsense::new(seed);
            for version in 8..=13 {
                let version = Version(0x0300_0000 | (version << 16));
                let Ok(layout) = layout::layout(&memory, START, version) else { continue };
                for code_type in [0, START, START + 8 * 17] {
                    let (memory, layout) = (&memory, layout.clone());
                    let interpreter = Interpreter { memory, layout, runtime: START, code_type };
                    let read = interpreter.threads(&tids);
                    outcomes.insert(format!("{:?}", read.map(|threads| threads.is_empty())));
                }
            }
            let _ = Symbols::find(&memory, START);
        }
        // The lists were followed in some runs, and given up in others.
        assert!(outcomes.contains("Err(Changed)") && outcomes.len() > 1, "{outcomes:?}");
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    }
}
