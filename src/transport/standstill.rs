//! Whether the process stood still a moment ago: it was stopped, or its machine had no time for it. What peers sent meanwhile may have
//! waited longer than they wait for an answer.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How often [`Standstill::note`] is called.
pub(super) const INTERVAL: Duration = Duration::from_secs(1);
/// A call that is later by this is a standstill.
const SHORTEST: Duration = Duration::from_secs(1);
/// Connections that waited to be accepted are accepted within this time after a standstill.
const ACCEPTED: Duration = Duration::from_millis(250);
/// What has waited is read within this time after a standstill.
const READ: Duration = Duration::from_secs(1);

/// The latest standstill. Times are those of `Now::elapsed`, in microseconds; 0: none.
#[derive(Debug, Default)]
pub(super) struct Standstill {
    noted: AtomicU64,
    ended: AtomicU64,
}

impl Standstill {
    /// Called every [`INTERVAL`]; returns how long the process stood still, if it did.
    pub(super) fn note(&self, now: Duration) -> Option<Duration> {
        let before = self.noted.swap(micros(now), Ordering::Relaxed);
        let late = now.saturating_sub(Duration::from_micros(before) + INTERVAL);
        if before == 0 || late < SHORTEST {
            return None;
        }
        self.ended.store(micros(now), Ordering::Relaxed);
        Some(late)
    }

    /// Whether what is read at `now` of a connection that was accepted at `opened` may have waited for a standstill to end.
    pub(super) fn may_have_delayed(&self, opened: Duration, now: Duration) -> bool {
        let [noted, ended] = [&self.noted, &self.ended].map(|time| Duration::from_micros(time.load(Ordering::Relaxed)));
        // It has ended, and was not noted yet.
        let is_over_now = !noted.is_zero() && now >= noted + INTERVAL + SHORTEST;
        is_over_now || !ended.is_zero() && opened <= ended + ACCEPTED && now <= ended + READ
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn what_waited_during_a_standstill_may_be_late_and_nothing_else() {
        let standstill = Standstill::default();
        assert!(!standstill.may_have_delayed(millis(0), millis(99_000)), "nothing is known");
        assert_eq!(standstill.note(millis(100_000)), None);
        assert_eq!(standstill.note(millis(101_500)), None, "the machine is busy");
        assert!(!standstill.may_have_delayed(millis(101_600), millis(102_600)));
        // It stands still for 8 seconds.
        assert!(standstill.may_have_delayed(millis(110_500), millis(110_500)), "before it is noted");
        assert_eq!(standstill.note(millis(110_500)), Some(millis(8_000)));
        assert!(standstill.may_have_delayed(millis(110_600), millis(110_700)));
        assert!(standstill.may_have_delayed(millis(102_000), millis(110_700)));
        assert!(!standstill.may_have_delayed(millis(110_900), millis(110_950)), "it connected afterwards");
        assert_eq!(standstill.note(millis(111_600)), None);
        assert!(!standstill.may_have_delayed(millis(102_000), millis(111_600)), "it was sent afterwards");
    }
}
