//! The result of the readers in this folder: the parts of a text, each with the way to read it
//! further.

use std::ops::Range;

/// The way in which [`super::mark`] reads a part further.
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
