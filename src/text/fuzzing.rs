//! Tools of fuzz targets: choices made from bytes, and a check for text that no target may print. Not part of the
//! program.

use crate::style;

/// Yields bytes one after the other, then zeros.
#[derive(Debug)]
pub struct Choices<'a>(pub &'a [u8]);

impl<'a> Choices<'a> {
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    pub fn number(&mut self) -> u32 {
        u32::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// A number below `most`, which is at most 256.
    pub fn below(&mut self, most: usize) -> usize {
        usize::from(self.byte()) % most.max(1)
    }

    pub fn of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())].clone()
    }

    /// Bytes up to a NUL byte, or all that are left.
    pub fn until_nul(&mut self) -> &'a [u8] {
        let end = self.0.iter().position(|byte| *byte == 0);
        let (part, rest) = match end {
            Some(end) => (&self.0[..end], &self.0[end + 1..]),
            None => (self.0, &[][..]),
        };
        self.0 = rest;
        part
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Panics if a text holds control characters other than line ends, tabs and our colours: a terminal would obey them.
pub fn assert_printable(text: &str) {
    let plain = style::plain(text);
    let odd = plain.chars().find(|letter| letter.is_control() && !matches!(letter, '\n' | '\t'));
    assert!(odd.is_none(), "{odd:?} is printed: {text:?}");
}
