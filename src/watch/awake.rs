//! Notices that this process did not run for a while: it was stopped by a signal, a control group froze it
//! (`docker pause`, `scontrol suspend`), the machine was paused. In such a time nobody looked, so that it says
//! nothing of the ranks. Also notices that the time of day was set forward, by which torch's limits are told.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// Between two beats.
const BEAT: Duration = Duration::from_secs(1);
/// A busy machine is not so late.
const LATE: Duration = Duration::from_secs(3);

/// Ends its thread when it is dropped.
#[derive(Debug)]
pub(crate) struct Awake(Arc<Mutex<Beats>>);

#[derive(Debug)]
struct Beats {
    at: Instant,
    wall: SystemTime,
    pauses: u32,
    ahead: Duration,
}

impl Awake {
    /// Without a thread only those who ask beat, and a pause may be seen that was none.
    pub(crate) fn start() -> Awake {
        let beats = Arc::new(Mutex::new(Beats::new(Instant::now(), SystemTime::now())));
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

    /// How often this process did not run, up to this moment.
    pub(crate) fn pauses(&self) -> u32 {
        beat(&self.0).pauses
    }

    /// By how much the time of day was set forward, also while the machine slept.
    pub(crate) fn ahead(&self) -> Duration {
        beat(&self.0).ahead
    }
}

fn beat(beats: &Mutex<Beats>) -> MutexGuard<'_, Beats> {
    let mut beats = beats.lock().unwrap_or_else(PoisonError::into_inner);
    beats.beat(Instant::now(), SystemTime::now());
    beats
}

impl Beats {
    fn new(at: Instant, wall: SystemTime) -> Beats {
        Beats { at, wall, pauses: 0, ahead: Duration::ZERO }
    }

    fn beat(&mut self, at: Instant, wall: SystemTime) {
        let passed = at.duration_since(self.at);
        if passed > BEAT + LATE {
            self.pauses += 1;
        }
        // Set back, it makes limits late, which costs nothing but time.
        let told = wall.duration_since(self.wall).unwrap_or_default();
        let ahead = told.saturating_sub(passed);
        if ahead > LATE {
            self.ahead = self.ahead.saturating_add(ahead);
        }
        (self.at, self.wall) = (at, wall);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_long_gap_is_a_pause() {
        let (at, wall) = (Instant::now(), SystemTime::now());
        let second = Duration::from_secs(1);
        // Seconds until the next beat by both clocks; pauses and seconds ahead after it.
        let rows = [(1, 1, 0, 0), (3, 3, 0, 0), (60, 60, 1, 0), (1, 600, 0, 599), (1, 0, 0, 0)];
        for (passed, told, pauses, ahead) in rows {
            let mut beats = Beats::new(at, wall);
            beats.beat(at + second * passed, wall + second * told);
            assert_eq!((beats.pauses, beats.ahead), (pauses, second * ahead), "{passed} {told}");
            // A usual one adds nothing.
            beats.beat(at + second * (passed + 1), wall + second * (told + 1));
            assert_eq!((beats.pauses, beats.ahead), (pauses, second * ahead), "{passed} {told}");
        }
    }
}
