//! Lines of a text by place.

/// Where the lines of a text begin, in bytes.
#[derive(Debug, Default)]
pub(crate) struct Lines(Vec<usize>);

impl Lines {
    pub(crate) fn of(text: &str) -> Lines {
        Lines(std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect())
    }

    /// The line of a place, from 1.
    pub(crate) fn at(&self, place: usize) -> usize {
        self.0.partition_point(|start| *start <= place)
    }
}
