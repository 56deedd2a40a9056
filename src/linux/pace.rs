//! When a wait prints a progress line, and durations in words.
//!
//! Lines come soon at first, since the user watches a start that does not begin; later once a minute,
//! for readers of the log.

use std::sync::Arc;
use std::time::Duration;

use text::lang::Text;
use tokio::time::{Instant, sleep_until};

/// The times at which a wait prints a line, counted from its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    pub first: &'static [Duration],
    /// Interval of later lines.
    pub then: Duration,
}

impl Pace {
    /// After 3 s, 10 s and 30 s, then each minute.
    pub const STANDARD: Pace = Pace {
        first: &[Duration::from_secs(3), Duration::from_secs(10), Duration::from_secs(30)],
        then: Duration::from_secs(60),
    };

    /// Each second, for a line that changes in place.
    pub const LIVE: Pace = Pace { first: &[], then: Duration::from_secs(1) };

    fn after(self, waited: Duration) -> Duration {
        let first = self.first.iter().copied().find(|at| *at > waited);
        first.unwrap_or_else(|| {
            let each = self.then.as_millis().max(1);
            let next = (waited.as_millis() / each).saturating_add(1).saturating_mul(each);
            Duration::from_millis(u64::try_from(next).unwrap_or(u64::MAX))
        })
    }
}

/// The display on which a wait shows its progress, in place of lines.
#[derive(Clone)]
pub struct Live(pub Arc<dyn Fn(&Text) + Send + Sync>);

impl Live {
    pub fn show(&self, progress: &Text) {
        (self.0)(progress);
    }
}

impl std::fmt::Debug for Live {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Live")
    }
}

/// One wait.
#[derive(Debug, Clone, Copy)]
pub struct Lines {
    pace: Pace,
    begin: Instant,
    next: Duration,
}

impl Lines {
    pub fn begin(pace: Pace) -> Lines {
        Lines { pace, begin: Instant::now(), next: pace.after(Duration::ZERO) }
    }

    /// The time at which the next line is due.
    pub fn due(&self) -> Instant {
        self.begin + self.next
    }

    pub fn waited(&self) -> Duration {
        self.begin.elapsed()
    }

    /// Records that a line was printed. Lines that a busy node missed are not printed later.
    pub fn said(&mut self) {
        self.next = self.pace.after(self.waited().max(self.next));
    }
}

/// Awaits `future`. Calls `say` with the elapsed time whenever a line is due.
pub async fn with_lines<T>(
    pace: Pace,
    future: impl Future<Output = T>,
    mut say: impl FnMut(Duration),
) -> T {
    let mut lines = Lines::begin(pace);
    tokio::pin!(future);
    loop {
        tokio::select! {
            done = &mut future => return done,
            () = sleep_until(lines.due()) => {
                say(lines.waited());
                lines.said();
            }
        }
    }
}

/// `0:03`, `30:00`, `1:30:00`.
pub fn clock(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match (seconds / 3600, seconds % 3600 / 60, seconds % 60) {
        (0, minutes, seconds) => format!("{minutes}:{seconds:02}"),
        (hours, minutes, seconds) => format!("{hours}:{minutes:02}:{seconds:02}"),
    }
}

/// `30m`, `1h30m`, `90s`, in the form of the flag.
pub fn spell(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match (seconds / 3600, seconds % 3600 / 60, seconds % 60) {
        (0, 0, _) if seconds == 0 => format!("{}ms", duration.as_millis()),
        (0, minutes, 0) => format!("{minutes}m"),
        (hours, 0, 0) => format!("{hours}h"),
        (hours, minutes, 0) => format!("{hours}h{minutes}m"),
        _ => format!("{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_soon_then_each_minute() {
        let after = |seconds| Pace::STANDARD.after(Duration::from_secs(seconds)).as_secs();
        let times: Vec<u64> = [0, 3, 10, 30, 60, 119, 120, 3600].map(after).to_vec();
        assert_eq!(times, [3, 10, 30, 60, 120, 120, 180, 3660]);
    }

    #[test]
    fn clock_shows_hours_only_from_one_hour() {
        for (seconds, words) in [(0, "0:00"), (3, "0:03"), (1800, "30:00"), (5400, "1:30:00")] {
            assert_eq!(clock(Duration::from_secs(seconds)), words);
        }
    }

    #[test]
    fn durations_are_spelled_as_the_flags_take_them() {
        for (seconds, words) in
            [(1800, "30m"), (90, "90s"), (7200, "2h"), (5400, "1h30m"), (5, "5s")]
        {
            assert_eq!(spell(Duration::from_secs(seconds)), words);
        }
    }
}
