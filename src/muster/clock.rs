//! A steady clock with which two nodes compare times.

use std::sync::OnceLock;
use std::time::{Instant, SystemTime};

/// The wall clock at one moment, and the steady clock from then on. A step of the wall clock between two failures must
/// not reverse the order of the failures.
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

/// Milliseconds since 1970 by this process's steady clock, which was set from the wall clock
/// once. The handshake measures the offset between two nodes.
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
    fn stepped_wall_clock_changes_no_order() {
        let an_hour_ago = SystemTime::now() - Duration::from_secs(3600);
        let clock = Clock::set(an_hour_ago);
        let (first, second) = (clock.now(), clock.now());
        // The wall clock has jumped an hour ahead in the meantime.
        assert!(first <= second && second - millis(an_hour_ago) < 60_000, "{first} {second}");
        let before = now();
        std::thread::sleep(Duration::from_millis(5));
        assert!((5..5000).contains(&(now() - before)));
    }
}
