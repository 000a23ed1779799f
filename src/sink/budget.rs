//! The processor time of a sink that nothing waits for.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The time that may be spent ahead: what the sink earns in this time.
const BURST: Duration = Duration::from_secs(10);

/// A part of one processor that a sink may use. While it has used more, batches do not enter its queue: they are counted and
/// skipped. So the sink gets some batches completely and others not at all.
#[derive(Debug)]
pub struct TimeBudget {
    percent: AtomicU64,
    started: Instant,
    /// When everything that was spent is earned, in nanoseconds since `started`.
    earned_at: AtomicU64,
    skipped: AtomicU64,
}

impl TimeBudget {
    /// A budget in percent of one processor, at least 1.
    pub fn new(percent: u64) -> Self {
        let (earned_at, skipped) = (AtomicU64::new(0), AtomicU64::new(0));
        TimeBudget { percent: AtomicU64::new(percent.max(1)), started: Instant::now(), earned_at, skipped }
    }

    /// Sets the budget of what is spent from now on, in percent of one processor, at least one.
    pub fn set_percent(&self, percent: u64) {
        self.percent.store(percent.max(1), Relaxed);
    }

    /// Whether the sink may get another batch.
    pub fn admits(&self) -> bool {
        self.admits_at(self.started.elapsed())
    }

    fn admits_at(&self, now: Duration) -> bool {
        nanos(now) + nanos(BURST) > self.earned_at.load(Relaxed)
    }

    /// This processor time was used.
    pub fn spend(&self, time: Duration) {
        self.spend_at(self.started.elapsed(), time);
    }

    fn spend_at(&self, now: Duration, time: Duration) {
        let spent = nanos(time).saturating_mul(100) / self.percent();
        let add = |earned_at: u64| Some(earned_at.max(nanos(now)).saturating_add(spent));
        // It always adds.
        let _ = self.earned_at.fetch_update(Relaxed, Relaxed, add);
    }

    /// Counts events that the sink does not get.
    pub fn skip(&self, events: u64) {
        self.skipped.fetch_add(events, Relaxed);
    }

    /// The number of events that the sink did not get.
    pub fn skipped(&self) -> u64 {
        self.skipped.load(Relaxed)
    }

    /// The budget in percent of one processor.
    pub fn percent(&self) -> u64 {
        self.percent.load(Relaxed)
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_admits_until_its_burst_is_spent_and_again_when_it_is_earned() {
        let budget = TimeBudget::new(5);
        let at = |millis| budget.admits_at(Duration::from_millis(millis));
        assert!(at(0));
        budget.spend_at(Duration::ZERO, Duration::from_millis(499));
        assert!(at(0));
        budget.spend_at(Duration::ZERO, Duration::from_millis(1));
        assert!(!at(0) && at(1), "half a second is a twentieth of ten");
        budget.spend_at(Duration::from_millis(1), Duration::from_secs(1));
        assert!(!at(20_000) && at(20_001));
        // A time without work earns nothing beyond the burst.
        budget.spend_at(Duration::from_secs(100), Duration::from_millis(500));
        assert!(!at(100_000) && at(100_001));
    }
}
