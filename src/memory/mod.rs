//! Limits that sessions share: memory of the whole process, and how much output a peer may cause.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::options::Section;

/// Memory for everything that grows with peers and load: connections, what they have sent and what they make us remember.
/// Shared by every session of the process.
///
/// Who grows takes a [`MemoryLease`]. Not everyone may use all of it, so that nobody can take the last from everyone else:
///
/// - what lasts (dictionaries, waiting records) may fill six eighths,
/// - further connections, and of what lasts the first [`MemoryLease::MINIMUM`] of each session, seven,
/// - what passes (half messages, bodies, batches), which has time limits of its own, all of it.
#[derive(Debug)]
pub struct MemoryBudget {
    limit: AtomicU64,
    used: AtomicU64,
    /// When something that passes was refused last, in microseconds of [`super::Now::elapsed`]; 0: never.
    refused: AtomicU64,
}

impl MemoryBudget {
    /// A budget of `limit` bytes.
    pub fn new(limit: u64) -> Arc<Self> {
        let (used, refused) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(MemoryBudget { limit: AtomicU64::new(limit), used, refused })
    }

    /// One that ends nowhere: for whoever counts elsewhere, or not at all.
    pub fn unlimited() -> Arc<Self> {
        MemoryBudget::new(u64::MAX)
    }

    /// Bytes in use now.
    pub fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// The limit in bytes.
    pub fn limit(&self) -> u64 {
        self.limit.load(Relaxed)
    }

    /// From now on it is this much. What is held beyond is not taken away.
    pub fn set_limit(&self, limit: u64) {
        self.limit.store(limit, Relaxed);
    }

    /// Whether so much is in use that a further connection may not find room.
    pub fn is_full(&self) -> bool {
        self.used() + ROOM_FOR_ONE > self.share(CONNECTIONS)
    }

    /// Whether next to nothing is left for what lasts: then what is not in use must go.
    pub fn is_nearly_used_up(&self) -> bool {
        self.used() > self.share(LASTING) / 10 * 9
    }

    /// One session's part of it, for what lasts; empty at first. The first [`MemoryLease::FLOOR`] are not counted: the
    /// session's connection has brought them along.
    pub fn lease(self: &Arc<Self>) -> MemoryLease {
        self.leased(Use::Lasting, MemoryLease::FLOOR)
    }

    /// The same for what no connection stands for.
    pub fn bare_lease(self: &Arc<Self>) -> MemoryLease {
        self.leased(Use::Lasting, 0)
    }

    /// A part for what passes, of which the first `floor` bytes are not counted: somebody has taken them already.
    pub fn passing(self: &Arc<Self>, floor: u64) -> MemoryLease {
        self.leased(Use::TapItem, floor)
    }

    /// A part for a further connection, of so many bytes. `None`: there is no room for it now.
    pub fn admit(self: &Arc<Self>, bytes: u64) -> Option<MemoryLease> {
        let mut lease = self.leased(Use::Connection, 0);
        lease.try_hold(bytes).then_some(lease)
    }

    /// Something that passes found no room at this moment.
    pub fn refused(&self, elapsed: Duration) {
        self.refused.store(micros(elapsed).max(1), Relaxed);
    }

    /// Whether something was refused a moment ago. Then whoever holds much and does not get on must give it back.
    pub fn is_short(&self, elapsed: Duration) -> bool {
        let refused = self.refused.load(Relaxed);
        refused > 0 && micros(elapsed).saturating_sub(refused) < micros(SHORTAGE)
    }

    fn leased(self: &Arc<Self>, of: Use, floor: u64) -> MemoryLease {
        MemoryLease { budget: self.clone(), of, floor, held: 0 }
    }

    fn share(&self, eighths: u64) -> u64 {
        let limit = self.limit();
        limit / 8 * eighths + limit % 8 * eighths / 8
    }
}

/// What a connection of any kind takes with small options.
const ROOM_FOR_ONE: u64 = 72 << 10;
/// What [`MemoryBudget::is_short`] calls a moment.
const SHORTAGE: Duration = Duration::from_secs(2);
/// Eighths of the budget that each use may fill.
const LASTING: u64 = 6;
const CONNECTIONS: u64 = 7;
const PASSING: u64 = 8;

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// What memory is taken for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Use {
    Lasting,
    Connection,
    TapItem,
}

/// What one holds of the [`MemoryBudget`]; given back when dropped.
#[derive(Debug)]
pub struct MemoryLease {
    budget: Arc<MemoryBudget>,
    of: Use,
    /// So much of what is held counts elsewhere.
    floor: u64,
    /// What is held beyond that.
    held: u64,
}

impl MemoryLease {
    /// Every session may hold this much whatever the others do: its connection brings it along.
    pub const FLOOR: u64 = 8 * 1024;

    /// A session that holds no more than this beyond its floor finds room where one that holds much does not, so that
    /// hoarders cannot blind a modest peer.
    pub const MINIMUM: u64 = 64 * 1024;

    /// What is held now is `bytes` in all, in any case. `false` when that is more than the process has left for it:
    /// then something is to be let go, and this is called again.
    #[must_use]
    pub fn hold(&mut self, bytes: u64) -> bool {
        let bytes = bytes.saturating_sub(self.floor);
        let used = if bytes >= self.held {
            let more = bytes - self.held;
            self.budget.used.fetch_add(more, Relaxed) + more
        } else {
            let less = self.held - bytes;
            self.budget.used.fetch_sub(less, Relaxed) - less
        };
        self.held = bytes;
        let eighths = match self.of {
            Use::Lasting if bytes > MemoryLease::MINIMUM => LASTING,
            Use::Lasting | Use::Connection => CONNECTIONS,
            Use::TapItem => PASSING,
        };
        bytes == 0 || used <= self.budget.share(eighths)
    }

    /// Holds `bytes` in all if there is room for them; otherwise what is held stays as it is, and the answer is `false`.
    /// Less is always to be had.
    #[must_use]
    pub fn try_hold(&mut self, bytes: u64) -> bool {
        let before = self.held;
        let has_room = self.hold(bytes) || self.held <= before;
        if !has_room {
            let _ = self.hold(before + self.floor);
        }
        has_room
    }

    /// Whether it holds more than was brought along.
    pub fn is_beyond_floor(&self) -> bool {
        self.held > 0
    }

    /// The budget it is of.
    pub fn budget(&self) -> &Arc<MemoryBudget> {
        &self.budget
    }
}

impl Drop for MemoryLease {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.held, Relaxed);
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

    const KIB: u64 = 1024;

    #[test]
    fn what_lasts_leaves_room_for_the_modest_connections_for_what_passes_and_all_is_given_back() {
        let budget = MemoryBudget::new(800 * KIB);
        let mut greedy = budget.lease();
        assert!(greedy.hold(MemoryLease::FLOOR + 600 * KIB));
        assert!(!greedy.hold(MemoryLease::FLOOR + 600 * KIB + 1));
        assert!(greedy.hold(MemoryLease::FLOOR + 600 * KIB), "what fits again is good again");
        let mut modest = budget.lease();
        assert!(modest.hold(MemoryLease::FLOOR + MemoryLease::MINIMUM));
        assert!(!modest.hold(MemoryLease::FLOOR + MemoryLease::MINIMUM + 1));
        assert!(modest.hold(MemoryLease::FLOOR + MemoryLease::MINIMUM));
        let connection = budget.admit(36 * KIB).expect("seven eighths are for connections, too");
        assert!(budget.is_full() && budget.admit(1).is_none());
        let mut body = budget.passing(10);
        assert!(body.try_hold(10 + 100 * KIB));
        assert!(!body.try_hold(10 + 100 * KIB + 1));
        assert_eq!(budget.used(), 800 * KIB, "what was refused was not taken");
        assert!(body.try_hold(10 + KIB) && body.is_beyond_floor());
        drop((greedy, modest, connection, body));
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn the_floor_is_there_when_nothing_else_is() {
        let budget = MemoryBudget::new(0);
        let mut lease = budget.lease();
        assert!(lease.hold(MemoryLease::FLOOR));
        assert!(!lease.hold(MemoryLease::FLOOR + 1));
        let mut passing = budget.passing(100);
        assert!(passing.try_hold(100) && !passing.try_hold(101) && !passing.is_beyond_floor());
        assert!(budget.admit(1).is_none());
    }

    #[test]
    fn less_is_always_to_be_had_also_when_the_limit_was_lowered() {
        let budget = MemoryBudget::new(1000);
        let mut lease = budget.passing(0);
        assert!(lease.try_hold(1000));
        budget.set_limit(100);
        assert!(!lease.try_hold(1001) && lease.try_hold(900));
        assert_eq!(budget.used(), 900);
    }

    #[test]
    fn memory_is_short_for_a_moment_after_something_was_refused() {
        let budget = MemoryBudget::new(0);
        assert!(!budget.is_short(Duration::ZERO));
        budget.refused(Duration::ZERO);
        assert!(budget.is_short(SHORTAGE - Duration::from_micros(2)));
        assert!(!budget.is_short(SHORTAGE + Duration::from_micros(2)));
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
