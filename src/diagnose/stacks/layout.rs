//! Offsets of the interpreters, threads, frames and code objects of CPython, by version.
//!
//! The numbers are `offsetof` of the released headers, which do not change within a minor version
//! (PEP 387 keeps the structures of `Include/cpython/`; `Include/internal/` has not changed after a
//! release candidate): Include/internal/pycore_pystate.h and pycore_gil.h (3.8), pycore_interp.h,
//! pycore_runtime.h and pycore_frame.h (3.9 and later), Include/cpython/pystate.h, code.h,
//! frameobject.h and unicodeobject.h. Since 3.13 `_PyRuntime` begins with its own table,
//! `_Py_DebugOffsets` (pycore_runtime.h; pycore_debug_offsets.h since 3.14), made for external
//! readers. Each row is checked against a real interpreter by tests/launch/stacks.

use super::elf::{Symbols, long};
use super::lines::LineTable;
use super::memory::Memory;
use super::unread::Unread;

/// Offsets in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layout {
    /// In `_PyRuntime`: the first interpreter.
    pub interpreters: u64,
    pub interpreter: Interpreter,
    pub thread: Thread,
    pub frame: Frame,
    pub code: Code,
    /// Bytes of PyASCIIObject, which the characters of an ASCII text follow, and of
    /// PyCompactUnicodeObject, which the characters of any other text follow.
    pub ascii: u64,
    pub compact: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Interpreter {
    pub next: u64,
    pub id: u64,
    pub threads: u64,
    pub gil: Gil,
}

/// The place that names the thread with the GIL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Gil {
    /// In `_PyRuntime`: the thread, or null. The offset counts mutexes of the C library, whose size
    /// depends on the architecture; None if it was not measured.
    Runtime(Option<u64>),
    /// In the interpreter: a pointer to the lock, which holds a flag (an int) and the thread.
    Interpreter { lock: u64, locked: u64, holder: u64 },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Thread {
    pub next: u64,
    pub interpreter: u64,
    pub frame: FirstFrame,
    /// The pthread_t.
    pub handle: u64,
    /// The kernel's number of the thread, which older versions do not keep.
    pub native: Option<u64>,
}

/// The place of the running frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FirstFrame {
    Thread(u64),
    /// Through a `_PyCFrame` on the C stack.
    CFrame {
        cframe: u64,
        frame: u64,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Frame {
    pub back: u64,
    pub code: u64,
    pub instruction: Instruction,
    pub owner: Option<u64>,
}

/// The form in which a frame names its instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Instruction {
    /// A signed 32 bit number, of bytes or of code units of two bytes; negative before the first
    /// instruction.
    Index { at: u64, unit: i64 },
    /// An address.
    Pointer { at: u64 },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Code {
    pub file: u64,
    pub name: u64,
    pub first_line: u64,
    pub lines: u64,
    pub table: LineTable,
    /// Offset of the first instruction, behind everything else.
    pub instructions: Option<u64>,
}

/// In PyObject.
pub(super) const TYPE: u64 = 8;
/// In PyCodeObject since 3.11 (`ob_size`): the number of instructions, with their caches.
pub(super) const CODE_UNITS: u64 = 16;
/// In PyBytesObject: the length, then the bytes.
pub(super) const BYTES_LENGTH: u64 = 16;
pub(super) const BYTES_DATA: u64 = 32;
/// In PyASCIIObject.
pub(super) const TEXT_LENGTH: u64 = 16;
pub(super) const TEXT_STATE: u64 = 32;
/// Frames with a higher owner belong to the interpreter itself, without code: FRAME_OWNED_BY_CSTACK
/// of 3.12 and 3.13, FRAME_OWNED_BY_INTERPRETER and _BY_CSTACK later.
pub(super) const LAST_OWNER: u8 = 2;

/// A version in the form of `Py_Version`: 0x030b07f0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Version(pub u32);

impl Version {
    pub(super) fn minor(self) -> (u32, u32) {
        (self.0 >> 24, (self.0 >> 16) & 0xff)
    }

    /// `3.11.7`, or `3.9` if the last number is not known.
    pub(super) fn shown(self) -> String {
        let (major, minor) = self.minor();
        if self.0 & 0xffff == 0 {
            format!("{major}.{minor}")
        } else {
            format!("{major}.{minor}.{}", (self.0 >> 8) & 0xff)
        }
    }

    /// The version of the interpreter. Before 3.11 no symbol names it, but each version exports
    /// functions that the previous version lacks ("New in version" of the C API's reference).
    pub(super) fn find(memory: &impl Memory, symbols: &Symbols) -> Result<Version, Unread> {
        const SINCE: &[(&str, u32)] = &[
            ("PyIter_Send", 0x030a_0000),
            ("PyFrame_GetBack", 0x0309_0000),
            ("PyConfig_InitPythonConfig", 0x0308_0000),
        ];
        if let Some(at) = symbols.address(memory, "Py_Version")? {
            return memory.u32(at).map(Version);
        }
        for (symbol, version) in SINCE {
            if symbols.address(memory, symbol)?.is_some() {
                return Ok(Version(*version));
            }
        }
        Ok(Version(0x0307_0000))
    }
}

/// The layout of the interpreter whose state is at `runtime`.
pub(super) fn layout(
    memory: &impl Memory,
    runtime: u64,
    version: Version,
) -> Result<Layout, Unread> {
    let unknown = || Unread::Version { found: version.shown() };
    match version.minor() {
        (3, 8) => Ok(with_frame_objects(16, 104, 1, 1368, LineTable::Lnotab)),
        (3, 9) => Ok(with_frame_objects(24, 104, 1, 568, LineTable::Lnotab)),
        (3, 10) => Ok(with_frame_objects(24, 96, 2, 568, LineTable::Ranges)),
        (3, 11) => Ok(v3_11()),
        (3, 12) => Ok(v3_12()),
        (3, minor) => {
            // The order of the table's fields differs.
            let words = match minor {
                13 => Words { gil: 14, next: 21, handle: 24, previous: 29, file: 35 },
                14 => Words { gil: 15, next: 24, handle: 27, previous: 32, file: 40 },
                15 => Words { gil: 15, next: 24, handle: 30, previous: 40, file: 48 },
                _ => return Err(unknown()),
            };
            with_own_table(memory, runtime, version, &words)
        }
        _ => Err(unknown()),
    }
}

/// 3.8 to 3.10: a frame is an object.
fn with_frame_objects(id: u64, at: u64, unit: i64, gil: u64, table: LineTable) -> Layout {
    Layout {
        interpreters: 32,
        interpreter: Interpreter { next: 0, id, threads: 8, gil: in_runtime(gil) },
        thread: Thread {
            next: 8,
            interpreter: 16,
            frame: FirstFrame::Thread(24),
            handle: 176,
            native: None,
        },
        frame: Frame {
            back: 24,
            code: 32,
            instruction: Instruction::Index { at, unit },
            owner: None,
        },
        code: Code { file: 104, name: 112, first_line: 40, lines: 120, table, instructions: None },
        ascii: 48,
        compact: 72,
    }
}

fn in_runtime(offset: u64) -> Gil {
    Gil::Runtime(cfg!(target_arch = "x86_64").then_some(offset))
}

fn v3_11() -> Layout {
    Layout {
        interpreters: 40,
        interpreter: Interpreter { next: 0, id: 48, threads: 16, gil: in_runtime(576) },
        thread: Thread {
            next: 8,
            interpreter: 16,
            frame: FirstFrame::CFrame { cframe: 56, frame: 8 },
            handle: 152,
            native: Some(160),
        },
        frame: Frame {
            back: 48,
            code: 32,
            instruction: Instruction::Pointer { at: 56 },
            owner: Some(69),
        },
        code: Code {
            file: 112,
            name: 128,
            first_line: 72,
            lines: 136,
            table: LineTable::Locations,
            instructions: Some(184),
        },
        ascii: 48,
        compact: 72,
    }
}

fn v3_12() -> Layout {
    Layout {
        interpreters: 40,
        interpreter: Interpreter {
            next: 0,
            id: 8,
            threads: 72,
            gil: Gil::Interpreter { lock: 384, locked: 16, holder: 8 },
        },
        thread: Thread {
            next: 8,
            interpreter: 16,
            frame: FirstFrame::CFrame { cframe: 56, frame: 0 },
            handle: 136,
            native: Some(144),
        },
        frame: Frame {
            back: 8,
            code: 0,
            instruction: Instruction::Pointer { at: 56 },
            owner: Some(70),
        },
        code: Code {
            file: 112,
            name: 128,
            first_line: 68,
            lines: 136,
            table: LineTable::Locations,
            instructions: Some(192),
        },
        ascii: 40,
        compact: 56,
    }
}

/// Positions in `_Py_DebugOffsets`, in words of eight bytes, of the first field in each group of
/// fields that are adjacent in each version.
struct Words {
    /// `interpreter_state.ceval_gil`
    gil: usize,
    /// `thread_state.next`
    next: usize,
    /// `thread_state.thread_id`
    handle: usize,
    /// `interpreter_frame.previous`
    previous: usize,
    /// `code_object.filename`
    file: usize,
}

fn with_own_table(
    memory: &impl Memory,
    runtime: u64,
    version: Version,
    words: &Words,
) -> Result<Layout, Unread> {
    /// Bytes that are read; the last word of them is `co_code_adaptive`.
    const LENGTH: usize = 8 * 57;
    /// Larger than any structure except `_PyRuntime`.
    const LARGEST: u64 = 1 << 24;
    let block: [u8; LENGTH] = memory.bytes(runtime)?;
    let word = |number: usize| long(&block, number * 8);
    if block.get(..8) != Some(b"xdebugpy") || word(1) != u64::from(version.0) {
        return Err(Unread::Changed);
    }
    if word(2) != 0 {
        return Err(Unread::FreeThreaded { found: version.shown() });
    }
    let lock = word(words.gil + 1);
    let layout = Layout {
        interpreters: word(5),
        interpreter: Interpreter {
            id: word(7),
            next: word(8),
            threads: word(9),
            gil: Gil::Interpreter {
                lock: word(words.gil),
                locked: word(words.gil + 3).wrapping_sub(lock),
                holder: word(words.gil + 4).wrapping_sub(lock),
            },
        },
        thread: Thread {
            next: word(words.next),
            interpreter: word(words.next + 1),
            frame: FirstFrame::Thread(word(words.next + 2)),
            handle: word(words.handle),
            native: Some(word(words.handle + 1)),
        },
        frame: Frame {
            back: word(words.previous),
            code: word(words.previous + 1),
            instruction: Instruction::Pointer { at: word(words.previous + 2) },
            owner: Some(word(words.previous + 4)),
        },
        code: Code {
            file: word(words.file),
            name: word(words.file + 2),
            lines: word(words.file + 3),
            first_line: word(words.file + 4),
            table: LineTable::Locations,
            instructions: Some(word(words.file + 8)),
        },
        ascii: 40,
        compact: 56,
    };
    let largest = (5..LENGTH / 8).map(word).max();
    match largest {
        Some(largest) if largest < LARGEST => Ok(layout),
        _ => Err(Unread::Changed),
    }
}
