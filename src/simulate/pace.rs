//! The number of events that should have been sent by now.

use std::time::Duration;

use tokio::time::{Interval, MissedTickBehavior, interval};

/// How often a paced connection checks whether events are due. Short enough that a second looks even, long enough that
/// the wake-ups cost little.
const SLICE: Duration = Duration::from_millis(10);

/// The times at which a paced connection checks that.
pub(super) fn slices() -> Interval {
    let mut slices = interval(SLICE);
    slices.set_missed_tick_behavior(MissedTickBehavior::Skip);
    slices
}

/// The share of one connection in a rate.
///
/// It counts from the start and not from the last write: a connection that the collector delayed sends the missing
/// events afterwards, and the rate over the run is exact.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    rate: Option<u64>,
    connections: u64,
}

impl Pace {
    /// An even share of `rate` (events per second) for each of `connections`, which is not 0. `None`: no limit.
    pub(super) fn new(rate: Option<u64>, connections: u64) -> Self {
        Pace { rate, connections }
    }

    /// Events that one connection should have sent after `elapsed`; `u64::MAX` without a limit.
    pub(super) fn due(self, elapsed: Duration) -> u64 {
        let Some(rate) = self.rate else { return u64::MAX };
        let second_nanos = 1_000_000_000 * u128::from(self.connections);
        let due = elapsed.as_nanos().saturating_mul(u128::from(rate)) / second_nanos;
        u64::try_from(due).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_shared_evenly_and_comes_due_with_time() {
        let pace = Pace::new(Some(3_000), 3);
        assert_eq!(pace.due(Duration::ZERO), 0);
        assert_eq!(pace.due(Duration::from_millis(10)), 10);
        assert_eq!(pace.due(Duration::from_secs(60)), 60_000);
    }

    #[test]
    fn without_a_rate_everything_is_due_immediately() {
        assert_eq!(Pace::new(None, 2).due(Duration::ZERO), u64::MAX);
    }

    #[test]
    fn a_rate_below_one_event_per_slice_still_comes_due() {
        let pace = Pace::new(Some(1), 4);
        assert_eq!(pace.due(Duration::from_millis(3_999)), 0);
        assert_eq!(pace.due(Duration::from_millis(4_000)), 1);
    }

    #[test]
    fn the_largest_rate_does_not_overflow() {
        assert_eq!(Pace::new(Some(u64::MAX), 1).due(Duration::MAX), u64::MAX);
    }
}
