//! The parts of one text: those that are not shown, and those that are read further.
//!
//! Every reader in this folder only marks parts, so the shown text differs from the original only
//! in the marked parts.

use crate::order::Ordered;
use std::ops::Range;

/// Text that is shown in place of a hidden value.
pub const MASK: &str = "***";

/// Marked parts of one text, by bytes.
#[derive(Debug, Default)]
pub(super) struct Spans {
    hidden: Vec<Range<usize>>,
}

impl Spans {
    /// Marks `length` bytes from `at`; nothing if `length` is 0.
    pub(super) fn hide(&mut self, at: usize, length: usize) {
        if length > 0 {
            self.hidden.push(at..at + length);
        }
    }

    /// The text without its marked parts.
    pub(super) fn apply(mut self, text: &str) -> String {
        self.hidden.order_by_key(|span| (span.start, span.end));
        let mut shown = String::with_capacity(text.len());
        let mut done = 0;
        let mut masked_to = None;
        for span in self.hidden {
            // Overlapping and touching parts are one.
            if masked_to.is_none_or(|end| span.start > end) {
                shown.push_str(text.get(done..span.start).unwrap_or_default());
                shown.push_str(MASK);
            }
            done = done.max(span.end);
            masked_to = Some(done);
        }
        shown.push_str(text.get(done..).unwrap_or_default());
        shown
    }
}

/// The way in which [`super::read_on`] reads a part further.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReadAs {
    /// Not read, but hidden.
    Secret,
    /// A value whose name is no secret: a document, a command line, a header, a URL, a sentence.
    Value,
    /// Like [`ReadAs::Value`], with line ends written as `\n`.
    EscapedValue,
    /// One word.
    Word,
    /// `NAME=value,NAME=value`
    Pairs,
    /// A command line.
    Script,
    /// Program text.
    Code,
}

/// Parts of one text, by bytes. They may overlap: an ambiguous part is read in both ways.
#[derive(Debug, Default)]
pub(super) struct Parts(Vec<(Range<usize>, ReadAs)>);

impl Parts {
    pub(super) fn push(&mut self, at: usize, length: usize, read_as: ReadAs) {
        self.0.push((at..at + length, read_as));
    }
}

impl IntoIterator for Parts {
    type Item = (Range<usize>, ReadAs);
    type IntoIter = std::vec::IntoIter<Self::Item>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}
