//! Pauses between attempts: exponential, with jitter.

use std::hash::{BuildHasher as _, RandomState};
use std::ops::RangeInclusive;
use std::time::Duration;

use tributary_options::{LONGEST, Section, options};

/// The shortest pause that can be configured.
const SHORTEST: Duration = Duration::from_millis(1);
/// The default of `max_retry_delay`.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(300);
/// The first pause after a destination has refused.
const REFUSED_PAUSE: Duration = Duration::from_secs(30);

options! {
    /// The limits of pauses between attempts. `min` and `max` are the defaults of a destination.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct RetryOptions(min: Duration, max: Duration) checked by check {
        /// The pause after a failed attempt. It doubles with each failure.
        pub shortest: Duration as "retry_min" = duration(min, SHORTEST..=LONGEST),
        /// The longest such pause.
        pub longest: Duration as "retry_max" = duration(max, SHORTEST..=LONGEST),
        /// The longest pause while the destination refuses everything, and the longest one that it can ask for (Retry-After); a reload
        /// ends it.
        pub max_delay: Duration as "max_retry_delay" = duration(MAX_RETRY_DELAY, SHORTEST..=LONGEST),
    }
}

impl RetryOptions {
    fn check(&self, section: &mut Section<'_>) {
        section.check_retry(self.shortest, self.longest);
    }

    /// The pauses of one series of attempts.
    pub fn pauses(&self) -> Pauses {
        Pauses::new(self.shortest..=self.longest, self.max_delay)
    }
}

/// The pauses between attempts at the same thing, by what the destination has answered.
#[derive(Debug)]
pub struct Pauses {
    away: Backoff,
    refusing: Backoff,
    longest: Duration,
}

impl Pauses {
    /// While the destination is away, pauses from the shortest to the longest of `retry`; none that a destination asks for, or
    /// that follows a refusal, is longer than `longest`.
    fn new(retry: RangeInclusive<Duration>, longest: Duration) -> Pauses {
        let refusing = Backoff::new(REFUSED_PAUSE.min(longest)..=longest);
        Pauses { away: Backoff::new(retry), refusing, longest }
    }

    /// The pause after an answer that the destination is away, and asks for a pause of this length.
    pub fn away(&mut self, asked: Option<Duration>) -> Duration {
        self.away.next().max(asked.unwrap_or_default().min(self.longest))
    }

    /// The pause after a refusal.
    pub fn refusing(&mut self) -> Duration {
        self.refusing.next()
    }
}

/// Pauses that double.
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
    fn a_destination_asks_for_no_longer_pause_than_the_longest_and_refusals_begin_with_half_a_minute() {
        let seconds = Duration::from_secs;
        let retry = Duration::from_millis(1)..=Duration::from_millis(2);
        let mut pauses = Pauses::new(retry.clone(), seconds(300));
        assert_eq!(pauses.away(Some(seconds(315_360_000))), seconds(300));
        assert_eq!(pauses.away(Some(seconds(7))), seconds(7));
        assert!(pauses.away(None) <= Duration::from_millis(2));
        let refusals: Vec<_> = (0..6).map(|_| pauses.refusing()).collect();
        assert!(refusals[0] >= seconds(15) && refusals[0] <= seconds(30), "{refusals:?}");
        assert!(refusals[5] >= seconds(150) && refusals[5] <= seconds(300), "{refusals:?}");
        assert!(Pauses::new(retry, seconds(1)).refusing() <= seconds(1));
    }

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
