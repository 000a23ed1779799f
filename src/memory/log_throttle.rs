//! Log lines that one cause can repeat many times: the first is logged immediately, then one a minute at most, with the
//! number of lines that were suppressed. What must not be missed is in the counters and in `loss` events, not here.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The shortest time between two log lines of one throttle.
const INTERVAL: Duration = Duration::from_secs(60);

/// Keeps one log line from filling the log. Each place that logs has its own throttle, as narrow as possible: one for a
/// listener, one for a sink, or a `static`.
#[derive(Debug, Default)]
pub struct LogThrottle {
    state: Mutex<ThrottleState>,
    /// Lines of one interval beside the first.
    further: u64,
}

#[derive(Debug, Default)]
struct ThrottleState {
    /// When the first line of the interval was logged.
    last: Option<Instant>,
    /// Lines since then.
    further: u64,
    suppressed: u64,
}

impl LogThrottle {
    /// A throttle for a `static`.
    pub const fn new() -> Self {
        LogThrottle::of(1)
    }

    /// A throttle that lets `lines` pass in one interval, at least one.
    pub const fn of(lines: u64) -> Self {
        let state = ThrottleState { last: None, further: 0, suppressed: 0 };
        LogThrottle { state: Mutex::new(state), further: lines.saturating_sub(1) }
    }

    /// Counts one occurrence. `Some`: log it, with the number of occurrences suppressed since the last line as the field
    /// `suppressed` (`None`: the field is left out). `None`: do not log it.
    pub fn permit(&self) -> Option<Option<u64>> {
        self.permit_at(Instant::now())
    }

    fn permit_at(&self, now: Instant) -> Option<Option<u64>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.last.is_some_and(|last| now.saturating_duration_since(last) < INTERVAL) {
            if state.further < self.further {
                state.further += 1;
                return Some(None);
            }
            state.suppressed += 1;
            return None;
        }
        let suppressed = std::mem::take(&mut state.suppressed);
        (state.last, state.further) = (Some(now), 0);
        Some((suppressed > 0).then_some(suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Option<Option<u64>> = Some(None);

    #[test]
    fn the_first_line_is_logged_then_one_a_minute_with_the_number_suppressed() {
        let (throttle, start) = (LogThrottle::new(), Instant::now());
        let permit = |millis| throttle.permit_at(start + Duration::from_millis(millis));
        assert_eq!(permit(0), FIRST);
        let logged = (1..60_000).filter(|millis| permit(*millis).is_some()).count();
        assert_eq!(logged, 0);
        assert_eq!(permit(60_000), Some(Some(59_999)));
        assert_eq!(permit(60_001), None);
        assert_eq!(permit(500_000), Some(Some(1)));
        assert_eq!(permit(560_000), FIRST);
    }

    #[test]
    fn a_throttle_of_several_lines_suppresses_those_behind_them() {
        let (throttle, start) = (LogThrottle::of(3), Instant::now());
        let permit = |seconds| throttle.permit_at(start + Duration::from_secs(seconds));
        assert_eq!([0, 1, 2, 3, 4].map(permit), [FIRST, FIRST, FIRST, None, None]);
        assert_eq!([60, 61, 62, 63].map(permit), [Some(Some(2)), FIRST, FIRST, None]);
    }

    #[test]
    fn an_instant_before_the_last_line_is_suppressed() {
        let (throttle, start) = (LogThrottle::new(), Instant::now());
        assert_eq!(throttle.permit_at(start + INTERVAL), FIRST);
        assert_eq!(throttle.permit_at(start), None);
    }

    #[test]
    fn of_many_threads_one_logs() {
        static THROTTLE: LogThrottle = LogThrottle::new();
        let attempt = || (0..1000).filter(|_| THROTTLE.permit().is_some()).count();
        let logged: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(attempt)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(logged, 1);
    }
}
