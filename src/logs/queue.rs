//! The bounded queue of one log file: bytes that readers have given and the writer has not taken. Bytes that do not fit
//! are dropped and leave a gap, after which the file goes on with a whole line.
//!
//! And the time that a producer may wait for a sink that is only slower than the producer. A blocked sink must not block
//! a rank, so lines are dropped when a buffer is full. But a healthy disk at 700 MB/s with ranks that write 2 GB/s would
//! then lose lines that the ranks could write without us. So each stream has a small budget ([`StallBudget`]): it may
//! wait [`BURST`] in total for a blocked sink, and earns [`EARNED_PER_BYTE`] with every byte that the sink accepts. A
//! sink above 250 MB/s loses nothing; a rank is never delayed by more than 0.4 s per 100 MB that it logs.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use memchr::memchr;

const BURST: Duration = Duration::from_millis(250);
const EARNED_PER_BYTE: Duration = Duration::from_nanos(4);

#[derive(Debug, Clone, Copy)]
pub(super) struct StallBudget(Duration);

impl Default for StallBudget {
    fn default() -> StallBudget {
        StallBudget(BURST)
    }
}

impl StallBudget {
    pub(super) fn left(self) -> Duration {
        self.0
    }

    pub(super) fn spend(&mut self, waited: Duration) {
        self.0 = self.0.saturating_sub(waited);
    }

    pub(super) fn earn(&mut self, bytes: usize) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.0 = self.0.saturating_add(EARNED_PER_BYTE.saturating_mul(bytes)).min(BURST);
    }
}

/// Maximum bytes per file that are queued or being written.
const QUEUE_BYTES: usize = 8 * 1024 * 1024;
/// Fill level below which a file accepts bytes again after a gap, so that gaps stay few.
const QUEUE_AGAIN: usize = QUEUE_BYTES / 2;
/// Chunks up to this size are copied onto the previous chunk, to keep the number of chunks low.
pub(super) const SMALL: usize = 16 * 1024;
/// Bytes that arrive within this time of each other while the file waits share one timestamp.
const TOGETHER: Duration = Duration::from_millis(10);
/// A reader takes at most this much after a stop request, more than a pipe holds.
pub(super) const LAST_BYTES: usize = 4 * 1024 * 1024;

/// Bytes of one file that were not kept.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct FileAccount {
    /// Bytes that never reached the file.
    pub(super) lost: u64,
    /// Bytes that were removed between head and tail.
    pub(super) missing: u64,
    /// Bytes that were written and then removed or cut off by another process.
    pub(super) gone: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    #[default]
    Running,
    /// The ranks have ended; only the rest of their pipes still arrives.
    LastBytes,
    /// Nothing more arrives; the writer ends when all is written.
    Closing,
    /// The rest counts as lost and will not be written.
    GivenUp,
}

#[derive(Debug, Default)]
pub(super) struct Queue {
    pub(super) pieces: VecDeque<Queued>,
    /// Queued or being written.
    pub(super) bytes: usize,
    pub(super) account: FileAccount,
    pub(super) stall_budget: StallBudget,
    pub(super) retry_at: Option<Instant>,
}

#[derive(Debug)]
pub(super) enum Queued {
    Bytes(Chunk),
    /// Number of bytes that were dropped here.
    Gap(u64),
}

/// Bytes that were read together or within a short time.
#[derive(Debug)]
pub(super) struct Chunk {
    pub(super) bytes: Vec<u8>,
    /// Position and time of arrival of each group of bytes; the first is at position 0.
    came: Vec<(usize, Instant)>,
}

impl Queue {
    /// Whether new bytes would be dropped as well.
    pub(super) fn has_gap(&self) -> bool {
        matches!(self.pieces.back(), Some(Queued::Gap(_)))
    }

    pub(super) fn takes(&self, bytes: usize, stage: Stage) -> bool {
        let room = match stage {
            Stage::Running if self.has_gap() => QUEUE_AGAIN,
            Stage::Running => QUEUE_BYTES,
            Stage::LastBytes | Stage::Closing => QUEUE_BYTES + LAST_BYTES,
            Stage::GivenUp => 0,
        };
        self.bytes + bytes <= room
    }

    /// Cuts a chunk after a gap so that the file continues with a whole line, and no fragment is mistaken for a line.
    pub(super) fn skip_to_a_line(&mut self, chunk: &mut Vec<u8>) {
        if let (true, Some(end)) = (self.has_gap(), memchr(b'\n', chunk)) {
            self.lose(end + 1);
            chunk.drain(..=end);
        }
    }

    pub(super) fn push(&mut self, chunk: &mut Vec<u8>, spares: &mut Vec<Vec<u8>>) {
        self.bytes += chunk.len();
        let now = Instant::now();
        match self.pieces.back_mut() {
            Some(Queued::Bytes(last))
                if chunk.len() <= SMALL
                    && last.bytes.capacity() - last.bytes.len() >= chunk.len() =>
            {
                if last.came.last().is_none_or(|(_, came)| now - *came >= TOGETHER) {
                    last.came.push((last.bytes.len(), now));
                }
                last.bytes.extend_from_slice(chunk);
            }
            // A quiet stream keeps its own small buffer.
            _ if chunk.len() <= SMALL => {
                let mut copy = Vec::with_capacity(SMALL);
                copy.extend_from_slice(chunk);
                self.pieces.push_back(Queued::Bytes(Chunk::new(copy, now)));
            }
            _ => {
                let spare = spares.pop().unwrap_or_default();
                let bytes = std::mem::replace(chunk, spare);
                self.pieces.push_back(Queued::Bytes(Chunk::new(bytes, now)));
            }
        }
        chunk.clear();
    }

    pub(super) fn lose(&mut self, bytes: usize) {
        self.account.lost += bytes as u64;
        match self.pieces.back_mut() {
            Some(Queued::Gap(gap)) => *gap += bytes as u64,
            _ => self.pieces.push_back(Queued::Gap(bytes as u64)),
        }
    }
}

impl Chunk {
    fn new(bytes: Vec<u8>, now: Instant) -> Chunk {
        Chunk { bytes, came: vec![(0, now)] }
    }

    /// The bytes of the first arrival, with their time.
    pub(super) fn first(&self) -> (&[u8], Instant) {
        let came = self.came.first().map_or_else(Instant::now, |(_, came)| *came);
        let end = self.came.get(1).map_or(self.bytes.len(), |(at, _)| *at);
        (self.bytes.get(..end).unwrap_or(&self.bytes), came)
    }

    /// Forgets the first `count` bytes, at most as many as [`Chunk::first`] gives.
    pub(super) fn drop_first(&mut self, count: usize) {
        if self.came.get(1).is_some_and(|(at, _)| *at <= count) {
            self.came.remove(0);
        }
        self.bytes.drain(..count.min(self.bytes.len()));
        for (at, _) in &mut self.came {
            *at = at.saturating_sub(count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stopped_sink_exhausts_budget_accepted_bytes_restore_it() {
        let mut budget = StallBudget::default();
        budget.spend(Duration::from_secs(9));
        assert_eq!(budget.left(), Duration::ZERO);
        budget.earn(1_000_000);
        assert_eq!(budget.left(), Duration::from_millis(4));
        budget.earn(usize::MAX);
        assert_eq!(budget.left(), BURST);
    }
}
