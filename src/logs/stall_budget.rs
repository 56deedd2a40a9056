//! The time that a producer may wait for a sink that is only slower than the producer.
//!
//! A blocked sink must not block a rank, so lines are dropped when a buffer is full. But a healthy disk at 700 MB/s
//! with ranks that write 2 GB/s would then lose lines that the ranks could write without us. So each stream has a small
//! budget: it may wait [`BURST`] in total for a blocked sink, and earns [`EARNED_PER_BYTE`] with every byte that the
//! sink accepts. A sink above 250 MB/s loses nothing; a rank is never delayed by more than 0.4 s per 100 MB that it
//! logs.

use std::time::Duration;

const BURST: Duration = Duration::from_millis(250);
const EARNED_PER_BYTE: Duration = Duration::from_nanos(4);

#[derive(Debug, Clone, Copy)]
pub(super) struct StallBudget(Duration);

impl StallBudget {
    pub(super) fn new() -> StallBudget {
        StallBudget(BURST)
    }

    pub(super) fn left(self) -> Duration {
        self.0
    }

    pub(super) fn spend(&mut self, waited: Duration) {
        self.0 = self.0.saturating_sub(waited);
    }

    pub(super) fn earn(&mut self, bytes: usize) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.0 = self.0.saturating_add(EARNED_PER_BYTE.saturating_mul(bytes)).min(BURST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stopped_sink_exhausts_budget_accepted_bytes_restore_it() {
        let mut budget = StallBudget::new();
        budget.spend(Duration::from_secs(9));
        assert_eq!(budget.left(), Duration::ZERO);
        budget.earn(1_000_000);
        assert_eq!(budget.left(), Duration::from_millis(4));
        budget.earn(usize::MAX);
        assert_eq!(budget.left(), BURST);
    }
}
