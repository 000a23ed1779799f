//! Histograms of durations.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::counters::Counted;

/// The upper bounds of the buckets, in microseconds. A last bucket has what is longer.
const BOUNDS: [u64; 16] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000,
    10_000_000, 30_000_000,
];
/// The number of buckets.
const BUCKETS: usize = BOUNDS.len() + 1;

/// A histogram that is counted in.
#[derive(Debug, Default)]
pub struct Durations {
    buckets: [AtomicU64; BUCKETS],
    sum_micros: AtomicU64,
}

impl Durations {
    /// Counts a duration.
    pub fn add(&self, duration: Duration) {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        // A bound belongs to its bucket.
        let bucket = BOUNDS.partition_point(|bound| *bound < micros);
        self.buckets[bucket].fetch_add(1, Relaxed);
        self.sum_micros.fetch_add(micros, Relaxed);
    }
}

impl Counted for Durations {
    type Value = DurationTotals;

    fn value(&self) -> DurationTotals {
        DurationTotals { buckets: self.buckets.value(), sum_micros: self.sum_micros.value() }
    }
}

/// The values of a histogram of durations.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DurationTotals {
    buckets: [u64; BUCKETS],
    sum_micros: u64,
}

impl DurationTotals {
    /// The number of durations.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// All of them together, in seconds.
    pub fn sum_seconds(&self) -> f64 {
        self.sum_micros as f64 / 1e6
    }

    /// The upper bound of each bucket in seconds, the last one without, and the number of durations in it.
    pub fn buckets(&self) -> [(f64, u64); BUCKETS] {
        let bound = |index: usize| BOUNDS.get(index).map_or(f64::INFINITY, |micros| *micros as f64 / 1e6);
        std::array::from_fn(|index| (bound(index), self.buckets[index]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_counted_in_the_first_bucket_whose_bound_is_not_below_it() {
        let durations = Durations::default();
        for micros in [0, 100, 101, 30_000_000, 30_000_001] {
            durations.add(Duration::from_micros(micros));
        }
        let totals = durations.value();
        let counts = totals.buckets().map(|(_, count)| count);
        assert_eq!((counts[0], counts[1], counts[15], counts[16]), (2, 1, 1, 1));
        assert_eq!((totals.count(), totals.sum_seconds()), (5, 60.000_202));
        assert_eq!((totals.buckets()[0].0, totals.buckets()[16].0), (0.000_1, f64::INFINITY));
    }
}
