//! The clock of a run's agent (field notes, section 1.8): it tells milliseconds since a moment that it never tells, in 32
//! bits that go round after 49.7 days.

use std::time::Duration;

use crate::event::UnixNanos;
use crate::protocol::Now;

/// An agent that is as old as that has had its 32 bits nearly go round.
const HALF_ROUND_MS: u64 = 1 << 31;

/// The agent's clock: milliseconds since a moment that it never tells (section 1.8).
#[derive(Debug)]
pub(super) struct AgentClock {
    is_live: bool,
    base: Option<UnixNanos>,
    now: UnixNanos,
    pub(super) elapsed: Duration,
    /// Milliseconds from the base until now.
    age_ms: u64,
}

impl AgentClock {
    pub(super) fn new(is_live: bool) -> Self {
        AgentClock { is_live, base: None, now: UnixNanos(0), elapsed: Duration::ZERO, age_ms: 0 }
    }

    pub(super) fn now(&mut self, now: Now) {
        self.now = now.unix;
        self.elapsed = now.elapsed;
        self.age_ms = self.base.map_or(0, |base| self.now.0.saturating_sub(base.0) / 1_000_000);
    }

    /// The base is not later than now.
    pub(super) fn see_base(&mut self, now: Now) {
        self.base.get_or_insert(now.unix);
        self.now(now);
    }

    /// Something of this time has arrived now: so the base is not later than that long ago.
    pub(super) fn see(&mut self, time: u32) {
        let ahead = if self.age_ms < HALF_ROUND_MS {
            u64::from(time).saturating_sub(self.age_ms)
        } else {
            u64::try_from(time.wrapping_sub(self.age_ms as u32).cast_signed()).unwrap_or(0)
        };
        if ahead > 0 && self.is_live {
            // No agent began before 1970, whatever it says.
            self.age_ms = (self.age_ms + ahead).min(self.now.0 / 1_000_000);
            self.base = Some(UnixNanos(self.now.0 - self.age_ms * 1_000_000));
        }
    }

    /// When that was: of all the moments that these 32 bits stand for, the latest that is not to come.
    pub(super) fn time(&self, time: u32) -> UnixNanos {
        let base = self.base.map_or(self.now.0, |base| base.0);
        let ago = (self.age_ms as u32).wrapping_sub(time);
        let time = self.age_ms.checked_sub(ago.into()).unwrap_or(time.into());
        UnixNanos(base.saturating_add(time * 1_000_000))
    }
}
