//! Measures the lead of another node's clock by questions and answers.

/// Maximum drift between two clocks, as 1/N of the elapsed time: ten times the drift of a healthy clock.
const DRIFT: i64 = 10_000;

/// The clock of a node relative to the asker's clock. Its lead lies between these values, in ns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Clock {
    least: i64,
    most: i64,
    /// Time of the measurement, by the asker's clock.
    at: i64,
}

impl Clock {
    /// `theirs`: reading of the other clock when it answered. `asked`, `answered`: readings of our clock.
    pub fn of(theirs: i64, asked: i64, answered: i64) -> Clock {
        let least = theirs.saturating_sub(answered);
        Clock { least, most: theirs.saturating_sub(asked).max(least), at: answered }
    }

    /// The range that both measurements allow: the shortest trip in each direction counts. If the clock was
    /// set in between, the later measurement counts.
    pub fn and(self, later: Clock) -> Clock {
        let drift = later.at.saturating_sub(self.at).max(0) / DRIFT;
        let least = self.least.saturating_sub(drift).max(later.least);
        let most = self.most.saturating_add(drift).min(later.most);
        if least <= most { Clock { least, most, at: later.at } } else { later }
    }

    /// The lead in ns.
    pub fn ahead(self) -> i64 {
        self.least.saturating_add(self.doubt())
    }

    /// Uncertainty of the lead in either direction, in ns.
    pub fn doubt(self) -> i64 {
        self.most.saturating_sub(self.least) / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(clock: Clock) -> (i64, i64) {
        (clock.ahead(), clock.doubt())
    }

    #[test]
    fn shortest_trip_each_way_bounds_the_offset() {
        // 1000 ns ahead: 100 ns there and 800 back, then 700 there and 60 back.
        let slow_back = Clock::of(1_100, 0, 900);
        assert_eq!(shown(slow_back), (650, 450));
        let slow_there = Clock::of(3_700, 2_000, 2_760);
        assert_eq!(shown(slow_there), (1_320, 380));
        assert_eq!(shown(slow_back.and(slow_there)), (1_020, 80));
    }

    #[test]
    fn old_measurement_widens_and_clock_step_discards_it() {
        let second = 1_000_000_000;
        let old = Clock::of(1_000, 0, 0);
        let later = Clock::of(20 * second, 15 * second, 25 * second);
        assert_eq!(shown(old.and(later)), (1_000, 25 * second / DRIFT));
        let set = Clock::of(90 * second, second, second + 2_000);
        assert_eq!(old.and(set), set);
    }

    #[test]
    fn extreme_timestamps_never_give_negative_doubt() {
        let odd = [i64::MIN, -1, 0, i64::MAX];
        for (theirs, asked) in odd.into_iter().flat_map(|one| odd.map(|other| (one, other))) {
            let clock = Clock::of(theirs, asked, i64::MIN).and(Clock::of(asked, theirs, i64::MAX));
            assert!(clock.doubt() >= 0, "{clock:?}");
        }
    }
}
