//! The output that is still to be searched for the cause of a failure: a bounded part of each stream.
//!
//! The reader of a pipe pushes and never waits. If the search is slower than a rank, the older bytes are dropped and
//! counted. A failure is reported at the end of the output, so the end is kept.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use memchr::memchr_iter;
use parking_lot::{Condvar, Mutex};

use text::order::Ordered;
use verdict::outcome::{Owner, Stream};

/// Bytes in each half of the kept output of a stream.
const HALF: usize = 128 * 1024;
/// Buffers that are kept for the next bytes. Without them a busy stream would map a new buffer each time.
const SPARES: usize = 4;
/// Interval in which pieces are gathered: a search of many small pieces costs more than one of a large piece. At full
/// load it also bounds the time that the search takes from the writers: two halves of a stream per interval.
const GATHER: Duration = Duration::from_millis(50);
/// Pieces that arrive within this time of each other share one timestamp.
const MOMENT: Duration = Duration::from_millis(2);

/// Bytes of a stream that were not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Skipped {
    pub bytes: u64,
    pub line_feeds: u64,
}

impl Skipped {
    fn add(&mut self, bytes: usize, line_feeds: usize) {
        self.bytes += bytes as u64;
        self.line_feeds += line_feeds as u64;
    }
}

fn line_feeds(bytes: &[u8]) -> usize {
    memchr_iter(b'\n', bytes).count()
}

/// The next bytes of one stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    pub owner: Owner,
    pub stream: Stream,
    /// Bytes lost just before `bytes`.
    pub skipped: Skipped,
    /// Time at which the bytes were read from the pipe.
    pub arrived: Instant,
    pub bytes: Vec<u8>,
}

#[derive(Debug, Default)]
pub struct Backlog {
    state: Mutex<Streams>,
    /// Signals that there is something to take, or that nothing more will come.
    filled: Condvar,
}

#[derive(Debug, Default)]
struct Streams {
    streams: BTreeMap<(Owner, Stream), Kept>,
    /// Empty buffers for reuse.
    spares: Vec<Vec<u8>>,
    closed: bool,
}

/// The kept output of one stream: when `newer` is full it displaces `older`.
#[derive(Debug, Default)]
struct Kept {
    skipped: Skipped,
    older: Half,
    newer: Half,
}

#[derive(Debug, Default)]
struct Half {
    bytes: Vec<u8>,
    line_feeds: usize,
    /// Ends of pieces, with the time of each.
    pieces: Vec<(usize, Instant)>,
}

impl Half {
    fn clear(&mut self) {
        self.bytes.clear();
        self.line_feeds = 0;
        self.pieces.clear();
    }

    fn push(&mut self, bytes: &[u8], line_feeds: usize, now: Instant) {
        self.bytes.extend_from_slice(bytes);
        self.line_feeds += line_feeds;
        let end = self.bytes.len();
        match self.pieces.last_mut() {
            Some((last, at)) if now.saturating_duration_since(*at) < MOMENT => *last = end,
            _ => self.pieces.push((end, now)),
        }
    }
}

impl Kept {
    /// `feeds`: the number of line feeds in `bytes`, which the reader has counted already.
    fn push(&mut self, bytes: &[u8], feeds: usize, now: Instant) {
        let surplus = bytes.len().saturating_sub(HALF);
        if self.newer.bytes.len() + bytes.len() > HALF {
            self.displace();
            std::mem::swap(&mut self.older, &mut self.newer);
        }
        let Some((dropped, kept)) = bytes.split_at_checked(surplus) else { return };
        let mut kept_feeds = feeds;
        if surplus > 0 {
            kept_feeds = line_feeds(kept);
            self.displace();
            self.skipped.add(dropped.len(), feeds.saturating_sub(kept_feeds));
        }
        self.newer.push(kept, kept_feeds, now);
    }

    /// Drops the older half and counts its bytes as skipped.
    fn displace(&mut self) {
        self.skipped.add(self.older.bytes.len(), self.older.line_feeds);
        self.older.clear();
    }

    /// Gives all kept bytes as pieces, and the buffers that held them.
    fn cut(self, owner: Owner, stream: Stream, pieces: &mut Vec<Piece>) -> [Vec<u8>; 2] {
        let Kept { mut skipped, older, newer } = self;
        for half in [&older, &newer] {
            let mut from = 0;
            for (end, arrived) in half.pieces.iter().copied() {
                let bytes = half.bytes.get(from..end).unwrap_or_default().to_vec();
                let skipped = std::mem::take(&mut skipped);
                pieces.push(Piece { owner, stream, skipped, arrived, bytes });
                from = end;
            }
        }
        [older.bytes, newer.bytes]
    }

    fn is_empty(&self) -> bool {
        self.older.bytes.is_empty() && self.newer.bytes.is_empty()
    }
}

impl Backlog {
    /// Adds bytes that were read from a stream, with the number of their line feeds. Never waits for the consumer.
    pub(super) fn push(&self, owner: Owner, stream: Stream, bytes: &[u8], line_feeds: usize) {
        self.push_at(owner, stream, bytes, line_feeds, Instant::now());
    }

    fn push_at(&self, owner: Owner, stream: Stream, bytes: &[u8], line_feeds: usize, now: Instant) {
        let mut state = self.state.lock();
        let Streams { streams, spares, closed } = &mut *state;
        if *closed {
            return;
        }
        let kept = streams.entry((owner, stream)).or_default();
        let was_empty = kept.is_empty();
        if kept.newer.bytes.capacity() == 0 {
            kept.newer.bytes = spares.pop().unwrap_or_default();
        }
        kept.push(bytes, line_feeds, now);
        if was_empty {
            self.filled.notify_all();
        }
    }

    /// The bytes that were pushed since the last call, in order of arrival. The order across streams matters: output on
    /// the other stream shows whether a program went on after an error.
    pub fn take(&self) -> Vec<Piece> {
        // Nothing is copied while the lock is held, since the readers of the pipes would have to wait for it.
        let taken: Vec<((Owner, Stream), Kept)> = {
            let mut state = self.state.lock();
            state.streams.iter_mut().map(|(key, kept)| (*key, std::mem::take(kept))).collect()
        };
        let mut pieces = Vec::new();
        let mut spares: Vec<Vec<u8>> = Vec::new();
        for ((owner, stream), kept) in taken {
            spares.extend(kept.cut(owner, stream, &mut pieces));
        }
        // Buffers of a quiet stream are small and cheap to allocate again.
        spares.retain(|buffer| buffer.capacity() >= HALF);
        spares.iter_mut().for_each(Vec::clear);
        let mut state = self.state.lock();
        state.spares.extend(spares);
        state.spares.truncate(SPARES);
        drop(state);
        // Stable, so that the pieces of one stream stay in their order.
        pieces.order_by_key(|piece| piece.arrived);
        pieces
    }

    /// Waits until there is something to take, and a moment longer for more of it. False: nothing more will come.
    pub fn wait(&self) -> bool {
        let is_empty = |state: &Streams| state.streams.values().all(Kept::is_empty);
        let mut state = self.state.lock();
        self.filled.wait_while(&mut state, |state| !state.closed && is_empty(state));
        self.filled.wait_while_for(&mut state, |state| !state.closed, GATHER);
        !state.closed
    }

    /// Accepts no more bytes. Bytes already kept can still be taken.
    pub fn close(&self) {
        self.state.lock().closed = true;
        self.filled.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ERR: (Owner, Stream) = (Owner::Engine, Stream::Err);

    fn all(backlog: &Backlog) -> (Skipped, Vec<u8>) {
        let mut skipped = Skipped::default();
        let mut bytes = Vec::new();
        for (at, piece) in backlog.take().into_iter().enumerate() {
            assert!(at == 0 || piece.skipped == Skipped::default(), "a gap in the middle");
            skipped.bytes += piece.skipped.bytes;
            skipped.line_feeds += piece.skipped.line_feeds;
            bytes.extend(piece.bytes);
        }
        (skipped, bytes)
    }

    #[test]
    fn backlog_keeps_the_end_and_counts_the_rest() {
        let line = |number: usize| format!("line {number:06}\n").into_bytes();
        for (lines, chunk) in [(10, 1), (100_000, 1), (100_000, 700), (100_000, 90_000)] {
            let whole: Vec<u8> = (0..lines).flat_map(line).collect();
            let backlog = Backlog::default();
            whole
                .chunks(chunk * 12)
                .for_each(|part| backlog.push(ERR.0, ERR.1, part, line_feeds(part)));
            let (skipped, bytes) = all(&backlog);
            let missing = whole.len() - bytes.len();
            assert_eq!(skipped.bytes, missing as u64, "{lines} by {chunk}");
            assert_eq!(skipped.line_feeds, missing as u64 / 12, "{lines} by {chunk}");
            assert!(whole.ends_with(&bytes), "{lines} by {chunk}");
            assert!(bytes.len() >= HALF.min(whole.len()) && bytes.len() <= 2 * HALF);
            assert!(backlog.take().is_empty());
        }
    }

    #[test]
    fn streams_are_given_in_order_of_arrival() {
        let backlog = Backlog::default();
        let said = [Stream::Err, Stream::Out, Stream::Err, Stream::Out];
        let mut now = Instant::now();
        for (number, stream) in said.into_iter().enumerate() {
            backlog.push_at(ERR.0, stream, format!("{number}").as_bytes(), 0, now);
            now += 2 * MOMENT;
        }
        let given: Vec<_> =
            backlog.take().into_iter().map(|piece| (piece.stream, piece.bytes)).collect();
        let expected = said.into_iter().enumerate();
        let expected: Vec<_> =
            expected.map(|(number, stream)| (stream, format!("{number}").into_bytes())).collect();
        assert_eq!(given, expected);
    }

    #[test]
    fn waiter_gets_the_bytes_and_the_end() {
        let backlog = std::sync::Arc::new(Backlog::default());
        let pusher = std::sync::Arc::clone(&backlog);
        let thread = std::thread::spawn(move || {
            pusher.push(ERR.0, ERR.1, b"last words\n", 1);
            pusher.close();
            pusher.push(ERR.0, ERR.1, b"too late\n", 1);
        });
        while backlog.wait() {}
        thread.join().expect("it ends");
        assert_eq!(all(&backlog).1, b"last words\n");
    }
}
