//! Escapes the output of a rank for a terminal, and texts for the workflow commands of GitHub.
//!
//! Takes one line, gives printable UTF-8: invalid UTF-8, NUL and control characters become
//! `\xNN`. Tabs and colour sequences pass, but a colour ends with its line, since the next line
//! may be of another rank. Used only for the console; files hold the raw bytes.

use crate::letters::is_hidden;
use crate::style;
use std::borrow::Cow;

const LOW: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = LOW << 7;
const SPACES: u64 = LOW * 0x20;

/// Whether every byte is printable ASCII (0x20–0x7e). Checks 32 bytes at a time: every line passes through here, and
/// release builds for size do not vectorise loops.
pub fn is_plain(line: &[u8]) -> bool {
    let (words, rest) = line.as_chunks::<8>();
    let (blocks, words) = words.as_chunks::<4>();
    blocks.iter().all(|[a, b, c, d]| (odd(*a) | odd(*b) | odd(*c) | odd(*d)) & HIGH == 0)
        && words.iter().all(|word| odd(*word) & HIGH == 0)
        && match line.last_chunk::<8>() {
            // Some of these bytes are checked twice, which costs less than the others one by one.
            Some(last) => rest.is_empty() || odd(*last) & HIGH == 0,
            None => rest.iter().all(|byte| matches!(byte, 0x20..=0x7e)),
        }
}

/// The high bit of some byte is set if a byte of the word is not plain.
fn odd(word: [u8; 8]) -> u64 {
    let word = u64::from_ne_bytes(word);
    // The high bit of a byte is set if the byte is not ASCII. Adding one sets the bit for DEL; subtracting 0x20 borrows
    // for a control character. A carry or borrow into the next byte starts only from a byte that already counts.
    word | word.wrapping_add(LOW) | word.wrapping_sub(SPACES)
}

/// Escapes text of our own, which may quote names of processes and hosts or the last lines of a
/// rank. Line ends are kept.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.chars().any(|c| is_hidden(c) && c != '\n' && c != '\t') {
        return Cow::Borrowed(text);
    }
    let mut out = Vec::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let body = line.strip_suffix('\n').unwrap_or(line);
        let mut coloured = false;
        push_text(body, is_hidden, &mut coloured, &mut out);
        push_end(coloured, &mut out);
        if body.len() < line.len() {
            out.push(b'\n');
        }
    }
    Cow::Owned(String::from_utf8_lossy(&out).into_owned())
}

/// The same for a name in a line: it cannot begin another line or column.
pub fn in_one_line(text: &str) -> String {
    printable(&text.replace('\n', "\\n").replace('\t', "\\t")).into_owned()
}

/// Appends `line` with everything that a terminal would interpret escaped.
pub fn push_escaped(line: &[u8], out: &mut Vec<u8>) {
    if is_plain(line) {
        out.extend_from_slice(line);
        return;
    }
    let mut coloured = false;
    for chunk in line.utf8_chunks() {
        // The output of a rank may be in any script, so its marks of direction are kept.
        push_text(chunk.valid(), char::is_control, &mut coloured, out);
        chunk.invalid().iter().for_each(|byte| push_hex(*byte, out));
    }
    push_end(coloured, out);
}

fn push_end(coloured: bool, out: &mut Vec<u8>) {
    if coloured {
        out.extend_from_slice(b"\x1b[0m");
    }
}

/// `coloured`: a colour is active that no sequence has reset.
fn push_text(text: &str, is_hidden: fn(char) -> bool, coloured: &mut bool, out: &mut Vec<u8>) {
    let mut rest = text;
    while let Some(at) = rest.find(|c: char| is_hidden(c) && c != '\t') {
        let (clean, from) = rest.split_at(at);
        out.extend_from_slice(clean.as_bytes());
        let taken = match style::sequence(from.as_bytes()) {
            Some(length) => {
                out.extend(from.bytes().take(length));
                // There are many other ways to reset a colour; a second reset is harmless.
                *coloured = !matches!(from.get(..length), Some("\x1b[m" | "\x1b[0m"));
                length
            }
            None => {
                // C1 controls are two bytes of UTF-8.
                let length = from.chars().next().map_or(1, char::len_utf8);
                from.bytes().take(length).for_each(|byte| push_hex(byte, out));
                length
            }
        };
        rest = from.get(taken..).unwrap_or_default();
    }
    out.extend_from_slice(rest.as_bytes());
}

fn push_hex(byte: u8, out: &mut Vec<u8>) {
    let digit = |nibble: u8| char::from_digit(u32::from(nibble), 16).map_or(b'?', |c| c as u8);
    out.extend_from_slice(&[b'\\', b'x', digit(byte >> 4), digit(byte & 0xf)]);
}

/// Number of bytes at the end that belong to an incomplete UTF-8 sequence (0–3).
pub fn unfinished_suffix(bytes: &[u8]) -> usize {
    (1..=bytes.len().min(3))
        .find(|back| {
            let lead = bytes.get(bytes.len() - back).copied().unwrap_or(0);
            let length = match lead {
                0xc2..=0xdf => 2,
                0xe0..=0xef => 3,
                0xf0..=0xf4 => 4,
                _ => 0,
            };
            *back < length
        })
        .unwrap_or(0)
}

/// The message of a workflow command, escaped as GitHub's runner reads it (actions/toolkit,
/// command.ts).
pub fn data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

/// The value of a workflow command's property, such as `file`.
pub fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn escaped(line: &[u8]) -> String {
        let mut out = Vec::new();
        push_escaped(line, &mut out);
        String::from_utf8(out).expect("the console gets valid UTF-8")
    }

    #[test]
    fn terminal_control_bytes_are_spelt_out() {
        for (line, shown) in [
            (&b"step 1 loss 0.5"[..], "step 1 loss 0.5"),
            (b"a\tb", "a\tb"),
            (b"a\0b", r"a\x00b"),
            (b"\x7f", r"\x7f"),
            (b"\xff\xfeok", r"\xff\xfeok"),
            ("训练 ✓".as_bytes(), "训练 ✓"),
            (b"\xe8\xae", r"\xe8\xae"),
            (b"\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m"),
            (b"\x1b[1;38:5:2mx", "\x1b[1;38:5:2mx\x1b[0m"),
            (b"\x1b[8m", "\x1b[8m\x1b[0m"),
            (b"\x1b[1ma\x1b[mb", "\x1b[1ma\x1b[mb"),
            (b"\x1b[0m\x1b[38;5;0mblack", "\x1b[0m\x1b[38;5;0mblack\x1b[0m"),
            (b"\x1b[31m\xff\x1b[0m", "\x1b[31m\\xff\x1b[0m"),
            (b"\x1b[2Jgone", r"\x1b[2Jgone"),
            (b"\x1b]0;title\x07", r"\x1b]0;title\x07"),
            (b"cut \x1b[3", r"cut \x1b[3"),
            ("\u{9b}31m".as_bytes(), r"\xc2\x9b31m"),
        ] {
            assert_eq!(escaped(line), shown, "{line:?}");
        }
    }

    #[test]
    fn own_text_keeps_lines_and_escapes_controls() {
        assert!(matches!(printable("── 训练\tx\n"), Cow::Borrowed(_)));
        assert_eq!(
            printable("── last\n   a\x1b]0;t\x07\n   \x1b[31mred\nend"),
            "── last\n   a\\x1b]0;t\\x07\n   \x1b[31mred\x1b[0m\nend"
        );
        assert_eq!(in_one_line("x\nrun\ta\x07"), r"x\nrun\ta\x07");
        assert_eq!(printable("host \u{202e}gnp.exe"), r"host \xe2\x80\xaegnp.exe");
        assert_eq!(printable("a\u{feff}b\u{200b}c"), r"a\xef\xbb\xbfb\xe2\x80\x8bc");
    }

    #[test]
    fn plain_check_is_independent_of_byte_position() {
        for length in 1..80 {
            for place in 0..length {
                for byte in 0..=255u8 {
                    let mut line = vec![b'x'; length];
                    line[place] = byte;
                    let plain = matches!(byte, 0x20..=0x7e);
                    assert_eq!(is_plain(&line), plain, "{byte:#x} at {place} of {length}");
                }
            }
        }
    }

    #[test]
    fn an_unfinished_character_is_measured() {
        for (bytes, length) in [
            (&b""[..], 0),
            (b"abc", 0),
            ("é".as_bytes(), 0),
            (b"a\xc3", 1),
            (b"a\xe8\xae", 2),
            (b"\xf0\x9f\x98", 3),
            (b"\xf0\x9f\x98\x80", 0),
            (b"\x80\x80", 0),
            (b"\xff", 0),
        ] {
            assert_eq!(unfinished_suffix(bytes), length, "{bytes:?}");
        }
    }
}
