//! Offsets of the interpreters, threads, frames and code objects of CPython, by version.
//!
//! The numbers are `offsetof` of the released headers, which do not change within a minor version
//! (PEP 387 keeps the structures of `Include/cpython/`; `Include/internal/` has not changed after a
//! release candidate): Include/internal/pycore_pystate.h and pycore_gil.h (3.8), pycore_interp.h,
//! pycore_runtime.h and pycore_frame.h (3.9 and later), Include/cpython/pystate.h, code.h,
//! frameobject.h and unicodeobject.h. Since 3.13 `_PyRuntime` begins with its own table,
//! `_Py_DebugOffsets` (pycore_runtime.h; pycore_debug_offsets.h since 3.14), made for external
//! readers. Each row is checked against a real interpreter by tests/launch/stacks.
//!
//! The table of a code object converts an instruction to a line, in one of three encodings: `co_lnotab` up to 3.9 (Objects/lnotab_notes.txt there), the ranges of PEP 626
//! in 3.10 (Objects/lnotab_notes.txt there), and since 3.11 locations with columns
//! (Objects/locations.md). A table that ends early gives the line so far, or none.

use super::elf::{Symbols, long};
use super::memory::{Memory, Unread};

/// Offsets in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layout {
    /// In `_PyRuntime`: the first interpreter.
    pub interpreters: u64,
    /// In the interpreter.
    pub next_interpreter: u64,
    pub interpreter_id: u64,
    pub threads: u64,
    pub gil: Gil,
    /// In the thread.
    pub next_thread: u64,
    pub interpreter: u64,
    pub running: RunningFrame,
    /// The pthread_t.
    pub handle: u64,
    /// The kernel's number of the thread, which older versions do not keep.
    pub native: Option<u64>,
    /// In the frame.
    pub back: u64,
    pub code: u64,
    pub instruction: Instruction,
    pub owner: Option<u64>,
    /// In the code object.
    pub file: u64,
    pub name: u64,
    pub first_line: u64,
    pub lines: u64,
    pub table: LineTable,
    /// Offset of the first instruction, behind everything else.
    pub instructions: Option<u64>,
    /// Bytes of PyASCIIObject, which the characters of an ASCII text follow, and of
    /// PyCompactUnicodeObject, which the characters of any other text follow.
    pub ascii: u64,
    pub compact: u64,
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

/// The place of the running frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RunningFrame {
    Thread(u64),
    /// Through a `_PyCFrame` on the C stack.
    CFrame {
        cframe: u64,
        frame: u64,
    },
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
        interpreter_id: id,
        threads: 8,
        gil: in_runtime(gil),
        running: RunningFrame::Thread(24),
        handle: 176,
        native: None,
        back: 24,
        instruction: Instruction::Index { at, unit },
        owner: None,
        file: 104,
        name: 112,
        first_line: 40,
        lines: 120,
        table,
        instructions: None,
        ..v3_11()
    }
}

fn in_runtime(offset: u64) -> Gil {
    Gil::Runtime(cfg!(target_arch = "x86_64").then_some(offset))
}

fn v3_11() -> Layout {
    Layout {
        interpreters: 40,
        next_interpreter: 0,
        interpreter_id: 48,
        threads: 16,
        gil: in_runtime(576),
        next_thread: 8,
        interpreter: 16,
        running: RunningFrame::CFrame { cframe: 56, frame: 8 },
        handle: 152,
        native: Some(160),
        back: 48,
        code: 32,
        instruction: Instruction::Pointer { at: 56 },
        owner: Some(69),
        file: 112,
        name: 128,
        first_line: 72,
        lines: 136,
        table: LineTable::Locations,
        instructions: Some(184),
        ascii: 48,
        compact: 72,
    }
}

fn v3_12() -> Layout {
    Layout {
        interpreter_id: 8,
        threads: 72,
        gil: Gil::Interpreter { lock: 384, locked: 16, holder: 8 },
        running: RunningFrame::CFrame { cframe: 56, frame: 0 },
        handle: 136,
        native: Some(144),
        back: 8,
        code: 0,
        owner: Some(70),
        first_line: 68,
        instructions: Some(192),
        ascii: 40,
        compact: 56,
        ..v3_11()
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
        interpreter_id: word(7),
        next_interpreter: word(8),
        threads: word(9),
        gil: Gil::Interpreter {
            lock: word(words.gil),
            locked: word(words.gil + 3).wrapping_sub(lock),
            holder: word(words.gil + 4).wrapping_sub(lock),
        },
        next_thread: word(words.next),
        interpreter: word(words.next + 1),
        running: RunningFrame::Thread(word(words.next + 2)),
        handle: word(words.handle),
        native: Some(word(words.handle + 1)),
        back: word(words.previous),
        code: word(words.previous + 1),
        instruction: Instruction::Pointer { at: word(words.previous + 2) },
        owner: Some(word(words.previous + 4)),
        file: word(words.file),
        name: word(words.file + 2),
        lines: word(words.file + 3),
        first_line: word(words.file + 4),
        table: LineTable::Locations,
        instructions: Some(word(words.file + 8)),
        ascii: 40,
        compact: 56,
    };
    let largest = (5..LENGTH / 8).map(word).max();
    match largest {
        Some(largest) if largest < LARGEST => Ok(layout),
        _ => Err(Unread::Changed),
    }
}

/// The encoding of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LineTable {
    Lnotab,
    Ranges,
    Locations,
}

impl LineTable {
    /// The line of the instruction at `offset` bytes. None if the instruction has no line, as the
    /// interpreter's own instructions. Before the first instruction, the result is the first line.
    pub(super) fn line(self, table: &[u8], first: i64, offset: i64) -> Option<i64> {
        match self {
            LineTable::Lnotab => Some(lnotab(table, first, offset)),
            _ if offset < 0 => Some(first),
            LineTable::Ranges => ranges(table, first, offset),
            LineTable::Locations => locations(table, first, offset),
        }
    }
}

/// Pairs of an unsigned step in bytes and a signed step in lines.
fn lnotab(table: &[u8], first: i64, offset: i64) -> i64 {
    let (mut line, mut at) = (first, 0);
    for pair in table.as_chunks::<2>().0 {
        at += i64::from(pair[0]);
        if at > offset {
            break;
        }
        line += i64::from(pair[1].cast_signed());
    }
    line
}

/// Pairs of the length of a range in bytes and a signed step in lines; -128: the range has no line.
fn ranges(table: &[u8], first: i64, offset: i64) -> Option<i64> {
    const NO_LINE: i8 = -128;
    let (mut line, mut end) = (first, 0);
    for pair in table.as_chunks::<2>().0 {
        let step = pair[1].cast_signed();
        if step != NO_LINE {
            line += i64::from(step);
        }
        end += i64::from(pair[0]);
        if offset < end {
            return (step != NO_LINE).then_some(line);
        }
    }
    None
}

/// Entries whose first byte has the upper bit, a form, and a length in code units; columns follow.
fn locations(table: &[u8], first: i64, offset: i64) -> Option<i64> {
    let (mut line, mut end) = (first, 0);
    let mut rest = table.iter().copied().peekable();
    while let Some(head) = rest.next() {
        let form = (head >> 3) & 15;
        let (step, has_line) = match form {
            // No location.
            15 => (0, false),
            // An entry with columns and end line, or with only the line.
            13 | 14 => (signed(varint(&mut rest)?), true),
            // One line, columns in two bytes: the form is the step.
            10..=12 => (i64::from(form) - 10, true),
            _ => (0, true),
        };
        line = line.saturating_add(step);
        end += (i64::from(head & 7) + 1) * 2;
        if offset < end {
            return has_line.then_some(line);
        }
        // The columns of the entry; only the head of the next entry has the upper bit.
        while rest.next_if(|byte| byte & 0x80 == 0).is_some() {}
    }
    None
}

/// Six bits per byte, the least significant first.
fn varint(rest: &mut impl Iterator<Item = u8>) -> Option<u64> {
    let mut value = 0;
    for shift in (0..60).step_by(6) {
        let byte = rest.next()?;
        value |= u64::from(byte & 63) << shift;
        if byte & 64 == 0 {
            return Some(value);
        }
    }
    None
}

/// The sign is the lowest bit.
fn signed(value: u64) -> i64 {
    let size = (value >> 1).cast_signed();
    if value & 1 == 1 { -size } else { size }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ```python
    /// def f(x):
    ///   for y in x:
    ///     g(
    ///      y)
    ///   return (1
    ///
    ///
    ///
    ///    + x)
    /// ```
    /// Lines that `co_lines()` gives for this function (3.8: `dis.findlinestarts`).
    #[test]
    fn line_tables_of_real_compilers_give_expected_lines() {
        for (kind, table, first, lines) in LINES {
            for (offset, line) in *lines {
                assert_eq!(kind.line(table, *first, *offset), *line, "{kind:?} at {offset}");
            }
        }
    }

    type Lines = (LineTable, &'static [u8], i64, &'static [(i64, Option<i64>)]);
    const LINES: &[Lines] = &[
        (
            LineTable::Lnotab,
            b"\x00\x01\x08\x01\x02\x01\x02\xff\x06\x02\x02\x04\x02\xfc",
            1,
            &[
                (-1, Some(1)),
                (0, Some(2)),
                (7, Some(2)),
                (8, Some(3)),
                (10, Some(4)),
                (12, Some(3)),
                (18, Some(5)),
                (20, Some(9)),
                (24, Some(5)),
            ],
        ),
        (
            LineTable::Ranges,
            b"\x08\x01\x02\x01\x02\x01\x06\xff\x02\x02\x02\x04\x04\xfc",
            1,
            &[
                (-2, Some(1)),
                (0, Some(2)),
                (8, Some(3)),
                (10, Some(4)),
                (17, Some(3)),
                (18, Some(5)),
                (20, Some(9)),
                (25, Some(5)),
                (26, None),
            ],
        ),
        (
            LineTable::Locations,
            b"\x80\x00\xd8\x0b\x0c\xf0\x00\x02\x03\x08\xf0\x00\x02\x03\x08\x80a\xdd\x04\x05\xd8\x05\x06\xf1\
              \x03\x01\x05\x08\xf4\x00\x01\x05\x08\xf0\x00\x01\x05\x08\xf0\x00\x01\x05\x08\xe0\n\x0b\xf0\
              \x08\x00\x06\x07\xf1\t\x04\x0b\x07\xf0\x00\x04\x03\x08",
            1,
            &[
                (-4, Some(1)),
                (0, Some(1)),
                (2, Some(2)),
                (10, Some(3)),
                (20, Some(3)),
                (22, Some(4)),
                (24, Some(3)),
                (42, Some(5)),
                (44, Some(9)),
                (46, Some(5)),
                (50, Some(5)),
                (52, None),
            ],
        ),
    ];

    #[test]
    fn truncated_line_table_is_no_error() {
        for kind in [LineTable::Lnotab, LineTable::Ranges, LineTable::Locations] {
            for table in [&b""[..], b"\x08", b"\xe8", b"\xe8\xff\xff", b"\xff\xff\xff\xff\xff"] {
                for offset in [-1, 0, 5, i64::MAX] {
                    let _ = kind.line(table, 7, offset);
                }
            }
        }
        // A table that was read while it changed is no error either.
        let far = b"\xf0\x7e\x7f\x7f\x7f\x7f\x7f\x7f\x7f\x7f\x3f".repeat(40);
        assert_eq!(LineTable::Locations.line(&far, 7, 78), Some(i64::MAX));
        assert_eq!(LineTable::Lnotab.line(b"", 7, 4), Some(7));
        assert_eq!(LineTable::Ranges.line(b"", 7, 4), None);
    }
}
