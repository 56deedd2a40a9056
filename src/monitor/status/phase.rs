//! The phases of a launch as a viewer sees them, and the time spent in each.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use strum::{IntoStaticStr, VariantArray};

use linux::deadline::millis;

/// The phases of a launch, in the order in which they usually come.
#[derive(
    Debug,
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    IntoStaticStr,
    VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Phase {
    /// Nothing is known yet.
    #[default]
    Starting,
    /// Reads the facts of the node.
    Observing,
    /// Plans for itself.
    Planning,
    /// Waits for the other nodes or the master, and agrees with them.
    Agreeing,
    /// Has no seat, and waits for one.
    Parked,
    /// Ends stale processes.
    Clearing,
    /// The engine or the ranks are being started.
    Launching,
    /// All ranks of this node have begun.
    Running,
    /// The ranks are being ended.
    Stopping,
    /// The ranks have ended: the cause is looked for, and the verdict agreed.
    Judging,
    /// Files are written.
    Finishing,
    /// Waits before a further attempt.
    Pausing,
    /// The verdict is final.
    Ended,
}

impl Phase {
    /// The name in JSON and in labels of metrics.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// The current phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PhaseSpan {
    pub phase: Phase,
    pub attempt: u32,
    pub began: Instant,
}

/// The time of the job by its use on this node, in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ledger {
    /// All ranks of this node lived, and the job did not stand still.
    pub running_ms: u64,
    /// All ranks ran, but an unresolved hang had been found.
    pub stalled_ms: u64,
    /// Waiting for the other nodes or the master.
    pub waiting_ms: u64,
    /// The node's own steps before the ranks ran.
    pub starting_ms: u64,
    /// From the first stop or end to the next attempt or the verdict.
    pub stopping_ms: u64,
    /// Waiting before a further attempt.
    pub pausing_ms: u64,
    /// Running time of attempts that failed: lost unless a checkpoint kept it.
    pub failed_attempts_ms: u64,
    /// The time whose steps count; None where no step is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub goodput_ms: Option<u64>,
    /// The maximum of `running_ms` so far. A hang is found after a while, and that time is then
    /// subtracted; a counter may not fall.
    #[serde(skip)]
    pub most_running_ms: u64,
}

impl Ledger {
    /// The share of the time whose steps count. None where no step is known.
    pub fn goodput(&self) -> Option<f64> {
        let Ledger {
            running_ms, stalled_ms, waiting_ms, starting_ms, stopping_ms, pausing_ms, ..
        } = *self;
        let all = [running_ms, stalled_ms, waiting_ms, starting_ms, stopping_ms, pausing_ms];
        let total = all.iter().fold(0, |sum: u64, one| sum.saturating_add(*one));
        let counts = self.goodput_ms?.min(running_ms);
        (total > 0).then(|| counts as f64 / total as f64)
    }
}

/// Maximum number of standstills that are told apart from steps; each takes minutes to be found.
const MOST_STANDSTILLS: usize = 1000;

/// The current phase, and the use of the time up to now.
#[derive(Debug)]
pub(super) struct Phases {
    current: PhaseSpan,
    /// The ledger of past phases.
    ledger: Ledger,
    /// Running time of the current attempt.
    running: Duration,
    /// Start of the present standstill.
    stalled: Option<Instant>,
    /// Past standstills.
    standstills: Vec<(Instant, Instant)>,
    /// [`Ledger::most_running_ms`] when the last hang was found.
    most_running_ms: u64,
}

impl Phases {
    pub(super) fn new(now: Instant) -> Phases {
        let current = PhaseSpan { phase: Phase::Starting, attempt: 0, began: now };
        Phases {
            current,
            ledger: Ledger::default(),
            running: Duration::ZERO,
            stalled: None,
            standstills: Vec::new(),
            most_running_ms: 0,
        }
    }

    pub(super) fn current(&self) -> PhaseSpan {
        self.current
    }

    /// False if this is already the current phase, or the last phase was final.
    pub(super) fn enter(&mut self, phase: Phase, attempt: u32, now: Instant) -> bool {
        let current = self.current;
        if (current.phase, current.attempt) == (phase, attempt) || current.phase == Phase::Ended {
            return false;
        }
        self.goes_on(now);
        let lasted = now.saturating_duration_since(current.began);
        account(&mut self.ledger, current.phase, lasted);
        if current.phase == Phase::Running {
            self.running += lasted;
        }
        if phase == Phase::Pausing {
            let lost = millis(std::mem::take(&mut self.running));
            self.ledger.failed_attempts_ms = self.ledger.failed_attempts_ms.saturating_add(lost);
        }
        self.current = PhaseSpan { phase, attempt, began: now };
        true
    }

    /// The job has stood still since this time. Counts only while the job runs: all other time has
    /// its own place.
    pub(super) fn stands_still(&mut self, since: Instant, now: Instant) {
        if self.current.phase == Phase::Running {
            self.most_running_ms = self.ledger(now).most_running_ms;
            self.stalled.get_or_insert(since.max(self.current.began));
        }
    }

    pub(super) fn goes_on(&mut self, now: Instant) {
        if let Some(since) = self.stalled.take() {
            let stood = millis(now.saturating_duration_since(since));
            self.ledger.stalled_ms = self.ledger.stalled_ms.saturating_add(stood);
            if self.standstills.len() < MOST_STANDSTILLS {
                self.standstills.push((since, now));
            }
        }
    }

    /// All standstills, the present one included.
    pub(super) fn standstills(&self, now: Instant) -> impl Iterator<Item = (Instant, Instant)> {
        let present = self.stalled.map(|since| (since, now));
        self.standstills.iter().copied().chain(present)
    }

    /// The ledger including the current phase.
    pub(super) fn ledger(&self, now: Instant) -> Ledger {
        let mut ledger = self.ledger;
        let lasts = now.saturating_duration_since(self.current.began);
        account(&mut ledger, self.current.phase, lasts);
        if let Some(since) = self.stalled {
            let stood = millis(now.saturating_duration_since(since));
            ledger.stalled_ms = ledger.stalled_ms.saturating_add(stood);
        }
        ledger.running_ms = ledger.running_ms.saturating_sub(ledger.stalled_ms);
        ledger.most_running_ms = self.most_running_ms.max(ledger.running_ms);
        ledger
    }
}

fn account(ledger: &mut Ledger, phase: Phase, time: Duration) {
    let sum = match phase {
        Phase::Starting
        | Phase::Observing
        | Phase::Planning
        | Phase::Clearing
        | Phase::Launching => &mut ledger.starting_ms,
        Phase::Agreeing | Phase::Parked => &mut ledger.waiting_ms,
        Phase::Running => &mut ledger.running_ms,
        Phase::Stopping | Phase::Judging | Phase::Finishing => &mut ledger.stopping_ms,
        Phase::Pausing => &mut ledger.pausing_ms,
        Phase::Ended => return,
    };
    *sum = sum.saturating_add(millis(time));
}
