//! The clock of a run's agent (section 1.8): milliseconds since a base that the protocol does not transmit, in 32 bits
//! that wrap after 49.7 days.
//!
//! The base lies between the moment at which `start` was sent and the arrival of the first data connection. Within
//! these bounds, every event that arrives earlier than its time allows moves the base back, until the first event is
//! written. From then on the base is fixed, so that times of one thread never step back.

use std::time::Duration;

use tributary_event::UnixNanos;
use tributary_protocol::Now;

/// Half of what 32 bits count. An agent older than that is near the wrap.
const HALF_WRAP_MS: u64 = 1 << 31;
/// A time may lie this far behind its arrival in the future, because the base is not exact. A time further in the
/// future is nonsense, or a clock was set; then the arrival is used.
const MAX_AHEAD_NANOS: u64 = 1_000_000_000;
const NANOS_PER_MS: u64 = 1_000_000;

/// The agent's clock.
#[derive(Debug)]
pub(super) struct AgentClock {
    /// Whether arrival times are those of the agent's messages; not so when a capture is decoded.
    is_live: bool,
    base: Option<UnixNanos>,
    /// The base was used.
    is_fixed: bool,
    /// The base is not earlier than this, on the clock of `elapsed`: when `start` was sent.
    earliest_base: Option<Duration>,
    now: UnixNanos,
    pub(super) elapsed: Duration,
    /// Milliseconds from the base until now.
    age_ms: u64,
}

impl AgentClock {
    pub(super) fn new(is_live: bool) -> Self {
        AgentClock {
            is_live,
            base: None,
            is_fixed: false,
            earliest_base: None,
            now: UnixNanos(0),
            elapsed: Duration::ZERO,
            age_ms: 0,
        }
    }

    /// Sets the time of what arrives next. `started_at`: when `start` was sent.
    pub(super) fn set_now(&mut self, now: Now, started_at: Option<Duration>) {
        self.now = now.unix;
        self.elapsed = now.elapsed;
        self.earliest_base = started_at;
        self.age_ms = self.base.map_or(0, |base| self.now.0.saturating_sub(base.0) / NANOS_PER_MS);
    }

    /// A data connection has arrived: the base is not later than now.
    pub(super) fn data_arrived(&mut self, now: Now, started_at: Option<Duration>) {
        self.base.get_or_insert(now.unix);
        self.set_now(now, started_at);
    }

    /// A numbered event of this time has arrived: the base is not later than that long ago.
    pub(super) fn event_arrived(&mut self, time: u32) {
        if self.is_fixed || !self.is_live {
            return;
        }
        let since_start = self.earliest_base.map_or(Duration::ZERO, |earliest| self.elapsed.saturating_sub(earliest));
        let max_age_ms = (since_start.as_millis() as u64).min(self.now.0 / NANOS_PER_MS);
        let age_ms = u64::from(time).min(max_age_ms);
        if age_ms > self.age_ms {
            self.age_ms = age_ms;
            self.base = Some(UnixNanos(self.now.0 - age_ms * NANOS_PER_MS));
        }
    }

    /// The time of an event that is written now and arrived at `observed`. The base is fixed from here on.
    pub(super) fn time(&mut self, time: u32, observed: UnixNanos) -> UnixNanos {
        self.is_fixed = true;
        self.resolve(time, observed)
    }

    /// The time of something that arrived at `observed`: of all moments that these 32 bits stand for, the nearest to
    /// now.
    pub(super) fn resolve(&self, time: u32, observed: UnixNanos) -> UnixNanos {
        let base = self.base.map_or(self.now.0, |base| base.0);
        let since_base_ms = if self.age_ms < HALF_WRAP_MS {
            u64::from(time)
        } else {
            let distance = time.wrapping_sub(self.age_ms as u32).cast_signed();
            self.age_ms.saturating_add_signed(distance.into())
        };
        let time = base.saturating_add(since_base_ms.saturating_mul(NANOS_PER_MS));
        let is_nonsense = self.is_live && time > observed.0.saturating_add(MAX_AHEAD_NANOS);
        if is_nonsense { observed } else { UnixNanos(time) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 1_795_176_900_000_000_000;

    fn at(millis: u64) -> Now {
        Now { unix: UnixNanos(START + millis * NANOS_PER_MS), elapsed: Duration::from_millis(millis) }
    }

    /// Milliseconds from the start of the test until `time`, which arrives at `now`.
    fn millis(clock: &mut AgentClock, time: u32, now: u64) -> i64 {
        clock.set_now(at(now), Some(Duration::ZERO));
        clock.event_arrived(time);
        (clock.time(time, at(now).unix).0 as i64 - START as i64) / NANOS_PER_MS as i64
    }

    fn connected(now: u64) -> AgentClock {
        let mut clock = AgentClock::new(true);
        clock.data_arrived(at(now), Some(Duration::ZERO));
        clock
    }

    #[test]
    fn the_base_moves_back_until_it_is_used_and_not_before_start() {
        let mut clock = connected(10);
        clock.set_now(at(20), Some(Duration::ZERO));
        clock.event_arrived(15);
        assert_eq!(millis(&mut clock, 15, 20), 20);
        assert_eq!(millis(&mut clock, 60, 30), 65, "the base stays");
        let mut clock = connected(10);
        assert_eq!(millis(&mut clock, u32::MAX, 20), 20, "nonsense is given the time of its arrival");
        assert_eq!(millis(&mut clock, 15, 25), 15, "and has moved the base to the start at most");
    }

    #[test]
    fn times_wrap_after_49_days() {
        let mut clock = connected(0);
        assert_eq!(millis(&mut clock, 0, 0), 0);
        let wrap = 1_u64 << 32;
        assert_eq!(millis(&mut clock, u32::MAX, wrap + 5), wrap as i64 - 1);
        assert_eq!(millis(&mut clock, 3, wrap + 5), wrap as i64 + 3);
        assert_eq!(millis(&mut clock, 8, wrap + 5), wrap as i64 + 8);
    }
}
