//! Pauses between attempts: exponential, with jitter.

use std::hash::{BuildHasher as _, RandomState};
use std::ops::RangeInclusive;
use std::time::Duration;

/// The pauses of one request.
#[derive(Debug)]
pub(crate) struct Backoff {
    pauses: RangeInclusive<Duration>,
    attempts: u32,
    random: RandomState,
}

impl Backoff {
    /// Pauses from the shortest to the longest of the range.
    pub(crate) fn new(pauses: RangeInclusive<Duration>) -> Backoff {
        Backoff { pauses, attempts: 0, random: RandomState::new() }
    }

    /// The next pause: twice the last one, less a random part of up to a half, so that requests which fail together are not
    /// sent again together.
    pub(crate) fn next(&mut self) -> Duration {
        let (shortest, longest) = (*self.pauses.start(), *self.pauses.end());
        let pause = shortest.saturating_mul(1 << self.attempts.min(20)).clamp(shortest, longest.max(shortest));
        let part = (self.random.hash_one(self.attempts) % 512) as u32;
        self.attempts += 1;
        pause - pause * part / 1024
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_differ_between_requests() {
        let range = Duration::from_millis(100)..=Duration::from_secs(30);
        let pauses = |_| {
            let mut backoff = Backoff::new(range.clone());
            (0..40).map(|_| backoff.next()).collect::<Vec<_>>()
        };
        let several: Vec<_> = (0..4).map(pauses).collect();
        for pauses in &several {
            for (attempt, pause) in pauses.iter().enumerate() {
                let full = Duration::from_millis(100 << attempt.min(20)).min(Duration::from_secs(30));
                assert!(*pause <= full && *pause >= full / 2, "attempt {attempt}: {pause:?}");
            }
        }
        assert!(several.iter().any(|pauses| pauses != &several[0]));
    }
}
