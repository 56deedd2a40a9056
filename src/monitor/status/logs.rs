//! The log statistics of each owner, and the rate at which it writes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use verdict::outcome::Owner;

/// The output that one owner has written so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerLog {
    pub owner: Owner,
    pub bytes: u64,
    pub lines: u64,
    /// Bytes that never reached a file.
    pub dropped_bytes: u64,
    /// Lines that the console did not take in time.
    pub dropped_lines: u64,
    /// The last line, made printable.
    pub last_line: Option<String>,
    /// Time of the last output.
    pub last_at: Option<Instant>,
}

/// Reads the logs of the attempt, from memory.
pub(crate) type LogSource = Box<dyn Fn() -> Vec<OwnerLog> + Send + Sync>;

/// Minimum time over which a rate is measured.
const WINDOW: Duration = Duration::from_secs(2);

/// The rates of all owners, independent of how often they are asked for.
#[derive(Debug, Default)]
pub(super) struct Rates(BTreeMap<Owner, Rate>);

#[derive(Debug)]
struct Rate {
    at: Instant,
    bytes: u64,
    per_second: f64,
}

impl Rates {
    /// Output rate of this owner in bytes per second.
    pub(super) fn note(&mut self, owner: Owner, bytes: u64, now: Instant) -> f64 {
        let rate = self.0.entry(owner).or_insert(Rate { at: now, bytes, per_second: 0.0 });
        let passed = now.saturating_duration_since(rate.at);
        if passed >= WINDOW {
            let per_second = bytes.saturating_sub(rate.bytes) as f64 / passed.as_secs_f64();
            *rate = Rate { at: now, bytes, per_second };
        }
        rate.per_second
    }
}
