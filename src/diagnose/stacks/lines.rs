//! Converts an instruction to a line, by the table of its code object.
//!
//! Three encodings: `co_lnotab` up to 3.9 (Objects/lnotab_notes.txt there), the ranges of PEP 626
//! in 3.10 (Objects/lnotab_notes.txt there), and since 3.11 locations with columns
//! (Objects/locations.md). A table that ends early gives the line so far, or none.

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
