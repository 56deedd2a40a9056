//! The bounded queue of one log file: what readers have given and the writer has not taken.
//!
//! What does not fit is dropped and leaves a gap, after which the file goes on with a whole line.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use memchr::memchr;

use super::stall_budget::StallBudget;

/// Bytes per file that are queued or being written.
const QUEUE_BYTES: usize = 8 * 1024 * 1024;
/// After a gap a file takes bytes again below this many, so that gaps stay few.
const QUEUE_AGAIN: usize = QUEUE_BYTES / 2;
/// Smaller chunks are copied behind the one before, to keep their number low.
pub(super) const SMALL: usize = 16 * 1024;
/// What comes to a file within so long while it waits has one time.
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
    /// Nothing arrives any more; the writer ends when all is written.
    Closing,
    /// The rest counts as lost and will not be written.
    GivenUp,
}

#[derive(Debug)]
pub(super) struct Queue {
    pub(super) pieces: VecDeque<Piece>,
    /// Queued or being written.
    pub(super) bytes: usize,
    pub(super) account: FileAccount,
    pub(super) stall_budget: StallBudget,
    pub(super) retry_at: Option<Instant>,
}

#[derive(Debug)]
pub(super) enum Piece {
    Bytes(Chunk),
    /// So many bytes were dropped here.
    Gap(u64),
}

/// Bytes that were read together, or soon after one another.
#[derive(Debug)]
pub(super) struct Chunk {
    pub(super) bytes: Vec<u8>,
    /// When those from each of these positions on came; the first is at 0.
    came: Vec<(usize, Instant)>,
}

impl Queue {
    pub(super) fn new() -> Queue {
        Queue {
            pieces: VecDeque::new(),
            bytes: 0,
            account: FileAccount::default(),
            stall_budget: StallBudget::new(),
            retry_at: None,
        }
    }

    /// Whether new bytes would be dropped as well.
    pub(super) fn has_gap(&self) -> bool {
        matches!(self.pieces.back(), Some(Piece::Gap(_)))
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

    /// After a gap the file continues with a whole line, so that no fragment is taken for one.
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
            Some(Piece::Bytes(last))
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
                self.pieces.push_back(Piece::Bytes(Chunk::new(copy, now)));
            }
            _ => {
                let spare = spares.pop().unwrap_or_default();
                let bytes = std::mem::replace(chunk, spare);
                self.pieces.push_back(Piece::Bytes(Chunk::new(bytes, now)));
            }
        }
        chunk.clear();
    }

    pub(super) fn lose(&mut self, bytes: usize) {
        self.account.lost += bytes as u64;
        match self.pieces.back_mut() {
            Some(Piece::Gap(gap)) => *gap += bytes as u64,
            _ => self.pieces.push_back(Piece::Gap(bytes as u64)),
        }
    }
}

impl Chunk {
    fn new(bytes: Vec<u8>, now: Instant) -> Chunk {
        Chunk { bytes, came: vec![(0, now)] }
    }

    /// The first bytes, which came at one time, and when.
    pub(super) fn first(&self) -> (&[u8], Instant) {
        let came = self.came.first().map_or_else(Instant::now, |(_, came)| *came);
        let end = self.came.get(1).map_or(self.bytes.len(), |(at, _)| *at);
        (self.bytes.get(..end).unwrap_or(&self.bytes), came)
    }

    /// Forgets the first `count` bytes, at most those of [`Chunk::first`].
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
