//! Notices that this process did not run for a while: it was stopped by a signal, frozen by a control group
//! (`docker pause`, `scontrol suspend`), or the machine was suspended or paused. Nobody looked in such a time, so
//! it says nothing about the ranks. Also notices changes of the time of day, in which torch reports its limits.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

use crate::held;
use linux::sys::Clocks;

/// Time between two beats.
const BEAT: Duration = Duration::from_secs(1);
/// Minimum delay of a beat that counts as a pause; a busy machine is less late.
const LATE: Duration = Duration::from_secs(3);
/// Time after which the time of day alone counts as a pause again, at first; it doubles each time. A time of day
/// that is set again and again would otherwise restart every standstill, so no hang would ever be found.
const SET_AGAIN: Duration = Duration::from_secs(60);
/// Maximum number of changes of the time of day that are kept, and their minimum size in ms.
const MOST_CHANGES: usize = 256;
const LEAST_CHANGE: u64 = 500;

/// Ends its thread when it is dropped.
#[derive(Debug)]
pub struct Awake(Arc<Mutex<Beats>>);

#[derive(Debug)]
struct Beats {
    last: Clocks,
    pauses: u32,
    /// The steady time from which the time of day alone shows a pause, and the time for which it does not after the
    /// next one.
    doubted: (Instant, Duration),
    /// The lead of the time of day over the steady clock in ms, relative to the start, from each time on.
    ahead: VecDeque<(Instant, i64)>,
    first: (Instant, SystemTime),
}

impl Awake {
    /// Without a thread, only callers beat, and a false pause may be counted.
    pub fn start() -> Awake {
        let beats = Arc::new(Mutex::new(Beats::new(Clocks::now())));
        let theirs = Arc::downgrade(&beats);
        let thread = std::thread::Builder::new().name("awake".into()).stack_size(64 << 10);
        let _ = thread.spawn(move || {
            while let Some(beats) = theirs.upgrade() {
                drop(beat(&beats));
                drop(beats);
                std::thread::sleep(BEAT);
            }
        });
        Awake(beats)
    }

    /// Number of pauses of this process up to this moment.
    pub fn pauses(&self) -> u32 {
        beat(&self.0).pauses
    }

    /// The steady time of the time of day `at`, which was reported at the steady time `told`. None if it is over.
    pub fn instant(&self, at: SystemTime, told: Instant) -> Option<Instant> {
        beat(&self.0).instant(at, told)
    }
}

fn beat(beats: &Mutex<Beats>) -> MutexGuard<'_, Beats> {
    let mut beats = held(beats);
    beats.beat(Clocks::now());
    beats
}

impl Beats {
    fn new(at: Clocks) -> Beats {
        Beats {
            last: at,
            pauses: 0,
            doubted: (at.steady, SET_AGAIN),
            ahead: VecDeque::new(),
            first: (at.steady, at.wall),
        }
    }

    fn beat(&mut self, at: Clocks) {
        let last = std::mem::replace(&mut self.last, at);
        let passed = at.steady.saturating_duration_since(last.steady);
        let since_boot = at.since_boot.saturating_sub(last.since_boot);
        let told = at.wall.duration_since(last.wall).unwrap_or_default();
        let seen = passed.max(since_boot);
        if seen > BEAT + LATE {
            self.pauses += 1;
        } else if told > seen + LATE {
            let (until, again) = self.doubted;
            if at.steady >= until {
                self.pauses += 1;
                self.doubted = (at.steady + again, again.saturating_mul(2));
            }
        }
        let ahead = self.ahead_of(&at);
        if ahead.abs_diff(self.ahead.back().map_or(0, |(_, known)| *known)) >= LEAST_CHANGE {
            self.ahead.push_back((at.steady, ahead));
            let surplus = self.ahead.len().saturating_sub(MOST_CHANGES);
            self.ahead.drain(..surplus);
        }
    }

    fn ahead_of(&self, at: &Clocks) -> i64 {
        let (steady, wall) = self.first;
        let passed = ms(at.steady.saturating_duration_since(steady));
        let told = match at.wall.duration_since(wall) {
            Ok(forward) => ms(forward),
            Err(back) => -ms(back.duration()),
        };
        told.saturating_sub(passed)
    }

    /// The time of day may have been set since the report.
    fn instant(&self, at: SystemTime, told: Instant) -> Option<Instant> {
        let before = self.ahead.iter().rev().find(|(from, _)| *from <= told);
        let (now, before) = (self.ahead_of(&self.last), before.map_or(0, |(_, ahead)| *ahead));
        let left = match at.duration_since(self.last.wall) {
            Ok(left) => ms(left),
            Err(over) => -ms(over.duration()),
        };
        let left = left.saturating_add(now).saturating_sub(before);
        let left = u64::try_from(left).ok().filter(|left| *left > 0)?;
        self.last.steady.checked_add(Duration::from_millis(left))
    }
}

fn ms(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Clocks that are moved by seconds: the steady clock, the clock since boot, and the time of day.
    #[derive(Clone, Copy)]
    struct Moved(Clocks);

    impl Moved {
        fn by(&mut self, (steady, since_boot, wall): (u32, u32, i64)) -> Clocks {
            let Moved(clocks) = self;
            clocks.steady += SECOND * steady;
            clocks.since_boot += SECOND * since_boot;
            let set = SECOND * u32::try_from(wall.unsigned_abs()).expect("small");
            clocks.wall = if wall < 0 { clocks.wall - set } else { clocks.wall + set };
            *clocks
        }
    }

    #[test]
    fn pause_is_detected_in_any_one_clock() {
        for (what, moved, pauses) in [
            ("a beat", (1, 1, 1), 0),
            ("a busy machine", (3, 3, 3), 0),
            ("SIGSTOP, the freezer", (60, 60, 60), 1),
            ("a suspended machine", (1, 61, 61), 1),
            ("a suspended machine without a clock of its own", (1, 61, 1), 1),
            ("a paused VM", (0, 0, 0), 0),
            ("a paused VM whose time is set", (1, 1, 61), 1),
            ("a time of day that is set back", (1, 1, -600), 0),
            ("a time of day that is slewed", (1, 1, 2), 0),
        ] {
            let mut clocks = Moved(Clocks::now());
            let mut beats = Beats::new(clocks.0);
            beats.beat(clocks.by(moved));
            assert_eq!(beats.pauses, pauses, "{what}");
            // A usual beat adds nothing.
            beats.beat(clocks.by((1, 1, 1)));
            assert_eq!(beats.pauses, pauses, "{what}");
        }
    }

    /// 100 hours of a time of day that is set every `each` seconds: a stillness of 10 minutes comes to its end.
    #[test]
    fn repeated_wall_clock_steps_cannot_block_standstill_detection() {
        for each in [2, 7, 60, 300, 599] {
            let mut clocks = Moved(Clocks::now());
            let mut beats = Beats::new(clocks.0);
            let (mut last, mut longest) = (clocks.0.steady, Duration::ZERO);
            for second in 1..=360_000 {
                let step = if second % each == 0 { 30 } else { 1 };
                let before = beats.pauses;
                beats.beat(clocks.by((1, 1, step)));
                if beats.pauses != before {
                    longest = longest.max(clocks.0.steady - last);
                    last = clocks.0.steady;
                }
            }
            assert!(beats.pauses > 0 && beats.pauses < 20, "{each}: {}", beats.pauses);
            assert!(longest > SECOND * 600, "{each}: {longest:?}");
        }
    }

    proptest! {
        /// The clocks move arbitrarily, and torch's limit maps to the right steady time.
        #[test]
        fn torch_deadline_maps_to_the_steady_clock(
            beats in prop::collection::vec((1..4u32, 0..900u32, -900..900i64, any::<bool>()), 1..60),
            told_at in 0..60usize,
            limit in 1..1800u32,
        ) {
            let mut clocks = Moved(Clocks::now());
            let mut known = Beats::new(clocks.0);
            let mut told = None;
            for (place, (ran, slept, set, is_still)) in beats.iter().enumerate() {
                // Most of the time nothing is set, and the machine does not sleep.
                let (slept, set) = if *is_still { (0, 0) } else { (*slept, *set) };
                let wall = i64::from(*ran) + i64::from(slept) + set;
                known.beat(clocks.by((*ran, ran + slept, wall)));
                if place == told_at % beats.len() {
                    told = Some((clocks.0.wall + SECOND * limit, clocks.0.steady));
                }
            }
            let (at, since) = told.expect("one of them");
            let right = since + SECOND * limit;
            let expected = Some(right).filter(|right| *right > clocks.0.steady);
            prop_assert_eq!(known.instant(at, since), expected);
        }

        /// Without a gap in a clock and without a jump of the time of day, nothing is a pause.
        #[test]
        fn running_clocks_show_no_pause(beats in prop::collection::vec((0..4u32, -900..4i64), 1..100)) {
            let mut clocks = Moved(Clocks::now());
            let mut known = Beats::new(clocks.0);
            for (ran, set) in beats {
                known.beat(clocks.by((ran, ran, set.min(i64::from(ran) + 3))));
            }
            prop_assert_eq!(known.pauses, 0);
        }
    }
}
