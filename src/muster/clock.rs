//! Time as two nodes compare it.

use std::sync::OnceLock;
use std::time::{Instant, SystemTime};

/// The wall clock as it was at one moment, and steady from then on: a clock that is
/// stepped between two failures must not turn their order around.
#[derive(Debug, Clone, Copy)]
struct Clock {
    wall: i64,
    since: Instant,
}

impl Clock {
    fn set(wall: SystemTime) -> Clock {
        Clock { wall: millis(wall), since: Instant::now() }
    }

    fn now(self) -> i64 {
        let since = i64::try_from(self.since.elapsed().as_millis()).unwrap_or(i64::MAX);
        self.wall.saturating_add(since)
    }
}

/// Milliseconds by this process's steady clock, which began with the wall clock's
/// milliseconds since 1970. Two nodes compare theirs by the offset of the handshake.
pub fn now() -> i64 {
    static CLOCK: OnceLock<Clock> = OnceLock::new();
    CLOCK.get_or_init(|| Clock::set(SystemTime::now())).now()
}

/// Milliseconds since 1970.
pub(crate) fn millis(at: SystemTime) -> i64 {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_clock_that_is_stepped_later_changes_no_order() {
        let an_hour_ago = SystemTime::now() - Duration::from_secs(3600);
        let clock = Clock::set(an_hour_ago);
        let (first, second) = (clock.now(), clock.now());
        // The wall clock has jumped an hour ahead of it meanwhile.
        assert!(first <= second && second - millis(an_hour_ago) < 60_000, "{first} {second}");
        let before = now();
        std::thread::sleep(Duration::from_millis(5));
        assert!((5..5000).contains(&(now() - before)));
    }
}
