//! Limits that sessions share: memory of the whole process, and how much output a peer may cause.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::config::Section;

/// Memory for what peers make us remember (dictionaries, waiting records, requests on their way), shared by every
/// session of the process.
#[derive(Debug)]
pub struct MemoryBudget {
    limit: AtomicU64,
    used: AtomicU64,
}

impl MemoryBudget {
    /// A budget of `limit` bytes.
    pub fn new(limit: u64) -> Arc<Self> {
        Arc::new(MemoryBudget { limit: AtomicU64::new(limit), used: AtomicU64::new(0) })
    }

    /// Bytes in use now.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// The limit in bytes.
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// From now on it is this much. What is held beyond is not taken away.
    pub fn set_limit(&self, limit: u64) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// One session's part of it, empty at first.
    pub fn lease(self: &Arc<Self>) -> MemoryLease {
        MemoryLease { budget: self.clone(), held: 0 }
    }
}

/// What one session holds of the [`MemoryBudget`]; given back when dropped.
#[derive(Debug)]
pub struct MemoryLease {
    budget: Arc<MemoryBudget>,
    held: u64,
}

impl MemoryLease {
    /// Every session may hold this much whatever the others do, so that hoarders cannot blind a modest peer.
    pub const FLOOR: u64 = 64 * 1024;

    /// The session now holds `bytes` in all. `false` when that is more than the process has left for it:
    /// then it should let something go and call again.
    #[must_use]
    pub fn hold(&mut self, bytes: u64) -> bool {
        let used = if bytes >= self.held {
            let more = bytes - self.held;
            self.budget.used.fetch_add(more, Ordering::Relaxed) + more
        } else {
            let less = self.held - bytes;
            self.budget.used.fetch_sub(less, Ordering::Relaxed) - less
        };
        self.held = bytes;
        used <= self.budget.limit() || bytes <= MemoryLease::FLOOR
    }
}

impl Drop for MemoryLease {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.held, Ordering::Relaxed);
    }
}

/// Limits of output bytes by input bytes. A peer that has spent its credit is not lost, only read more slowly.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Amplification {
    /// Output bytes that each input byte earns. At least 1.
    pub ratio: u64,
    /// The most credit that can be saved up, in output bytes; also the credit at the start. At
    /// least 64 KiB.
    pub burst: u64,
    /// Output bytes earned per second, whatever comes in. At least 1 KiB.
    pub rate: u64,
}

impl Amplification {
    /// Reads the limits; what is wrong is told to the section.
    pub fn read(section: &mut Section<'_>, default: Amplification) -> Self {
        Amplification {
            ratio: section.count("ratio", default.ratio, 1..=1_000_000),
            burst: section.size("burst", default.burst, 64 << 10..=1 << 40),
            rate: section.size("rate", default.rate, 1 << 10..=1 << 40),
        }
    }
}

/// A token bucket over *output* bytes that *input* bytes fill.
///
/// Some wires let four kilobytes name a text of 64 KiB five hundred times. Honest traffic expands a few times over and
/// never notices this limit; a peer that lives on expansion is slowed to `rate`.
#[derive(Clone, Copy, Debug)]
pub struct Credit {
    limits: Amplification,
    balance: i128,
    last: Option<Duration>,
}

impl Credit {
    /// A full bucket.
    pub fn new(limits: Amplification) -> Self {
        Credit { limits, balance: i128::from(limits.burst), last: None }
    }

    /// Books `received` input bytes and `expanded` output bytes at `elapsed`. `Some`: the credit is used up; wait
    /// this long before taking more input.
    pub fn spend(&mut self, received: u64, expanded: u64, elapsed: Duration) -> Option<Duration> {
        let Amplification { ratio, burst, rate } = self.limits;
        let since = elapsed.saturating_sub(self.last.unwrap_or(elapsed));
        self.last = Some(elapsed);
        let earned = i128::from(received) * i128::from(ratio)
            + i128::from(rate) * i128::try_from(since.as_micros()).unwrap_or(i128::MAX >> 64) / 1_000_000;
        self.balance = (self.balance + earned - i128::from(expanded)).min(i128::from(burst));
        if self.balance >= 0 {
            return None;
        }
        let micros = -self.balance * 1_000_000 / i128::from(rate.max(1));
        Some(Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_over_the_budget_is_told_so_and_gives_everything_back_when_dropped() {
        let budget = MemoryBudget::new(100_000);
        let mut greedy = budget.lease();
        assert!(greedy.hold(100_000));
        assert!(!greedy.hold(100_001));
        let mut modest = budget.lease();
        assert!(modest.hold(MemoryLease::FLOOR));
        assert!(!modest.hold(MemoryLease::FLOOR + 1));
        drop(greedy);
        assert!(modest.hold(100_000));
        drop(modest);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn honest_expansion_is_never_held_and_amplification_is_slowed_to_the_rate() {
        let mut honest = Credit::new(Amplification { ratio: 64, burst: 1_000, rate: 100 });
        for second in 0..100 {
            assert_eq!(honest.spend(1_000, 10_000, Duration::from_secs(second)), None);
        }
        let mut hostile = Credit::new(Amplification { ratio: 64, burst: 1_000, rate: 100 });
        assert_eq!(hostile.spend(0, 1_000, Duration::ZERO), None);
        assert_eq!(hostile.spend(1, 64 + 500, Duration::ZERO), Some(Duration::from_secs(5)));
        assert_eq!(hostile.spend(0, 0, Duration::from_secs(5)), None);
        assert_eq!(hostile.spend(0, 100, Duration::from_secs(5)), Some(Duration::from_secs(1)));
    }
}
