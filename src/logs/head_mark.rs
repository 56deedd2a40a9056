//! The last line of a head: how much of a log it holds, and where the log goes on.
//!
//! Owns the text of the line for the writer of a log ([`super::capped`]) and its reader ([`super::pages`]), which must
//! not take the line for output. Never reads or writes a file.

use text::lang::Text;
use text::text;

/// Maximum bytes of the line.
pub(super) const LONGEST: u64 = 512;

/// The end of a head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HeadMark {
    /// Bytes of output in the head.
    pub(super) bytes: u64,
    /// Bytes that were removed after the head.
    pub(super) missing: u64,
    /// The file in which the log goes on.
    pub(super) tail: String,
}

impl HeadMark {
    /// The line without its line feed.
    pub(super) fn line(&self) -> Text {
        let HeadMark { bytes, missing, tail } = self;
        text!(
            "[ranklaunch] the first {bytes} bytes end here, {missing} bytes are missing, the log goes on in {tail}",
            "[ranklaunch] 前 {bytes} 字节到此为止，中间缺失 {missing} 字节，后续日志见 {tail}"
        )
    }

    /// The mark that a line is, in either language.
    pub(super) fn parse(line: &str) -> Option<HeadMark> {
        let mut numbers =
            line.split(|one: char| !one.is_ascii_digit()).filter(|one| !one.is_empty());
        let mut number = || numbers.next()?.parse().ok();
        let tail = line.rsplit(' ').next()?.to_owned();
        let mark = HeadMark { bytes: number()?, missing: number()?, tail };
        let Text { en, zh } = mark.line();
        (line == en || line == zh).then_some(mark)
    }

    /// The mark at the end of a head of `length` bytes, whose last bytes are `end`. None while the writer has not set
    /// it: another line may have its words, but not its place.
    pub(super) fn at_end(end: &[u8], length: u64) -> Option<HeadMark> {
        let end = end.strip_suffix(b"\n")?;
        let line = end.rsplit(|byte| *byte == b'\n').next()?;
        let mark = HeadMark::parse(std::str::from_utf8(line).ok()?)?;
        // A head that ends within a line is followed by a line feed that is no output.
        let rest = length.checked_sub(mark.bytes)?.checked_sub(line.len() as u64)?;
        (1..=2).contains(&rest).then_some(mark)
    }
}
