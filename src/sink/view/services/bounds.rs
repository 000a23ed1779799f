//! The memory of the sums: how many rows there can be, and when durations are given up.

use crate::recent::RecentKeys;

use super::tables::MinuteTotals;
use super::{STEPS_PER_MINUTE, Services, Sums, first_minute};

/// Memory for which the most rows are those of [`Limits::of`].
pub(super) const FULL_BYTES: usize = 8 << 20;
/// One part of this many of the memory is for the services of spans that may have children.
pub(super) const PARENTS_PART: usize = 8;

/// The most rows of each table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) bytes: usize,
    pub(super) services: usize,
    pub(super) operations: usize,
    pub(super) edges: usize,
    pub(super) children: usize,
}

impl Limits {
    pub(super) fn of(bytes: usize) -> Limits {
        let part = |most: usize| (most * bytes.min(FULL_BYTES) / FULL_BYTES).max(16);
        Limits { bytes, services: part(1000), operations: part(2000), edges: part(1000), children: part(32_768) }
    }
}

impl Services {
    /// Sets the most bytes.
    pub fn set_limit(&mut self, bytes: usize) {
        self.limits = Limits::of(bytes);
        self.services.set_most(self.limits.services);
        self.operations.set_most(self.limits.operations + self.limits.services);
        self.edges.set_most(self.limits.edges + self.limits.services);
        self.parents = RecentKeys::new(bytes / PARENTS_PART);
        self.look();
    }

    /// Measures the memory. Where it is above its limit, gives up durations, the oldest first.
    pub(super) fn look(&mut self) {
        self.spans_since_look = 0;
        self.measure();
        let minute = self.now / STEPS_PER_MINUTE;
        let mut from = self.latencies_from.max(first_minute(self.now));
        if self.bytes > self.limits.bytes {
            self.all_sums().for_each(Sums::settle);
            self.measure();
        }
        while self.bytes > self.limits.bytes && from <= minute {
            from += 1;
            self.latencies_from = from;
            self.all_sums().for_each(|sums| sums.forget_latencies(from));
            self.measure();
        }
    }

    fn all_sums(&mut self) -> impl Iterator<Item = &mut Sums> {
        let services = self.services.iter_mut().map(|row| &mut row.entries);
        let operations = self.operations.iter_mut().map(|row| &mut row.sums);
        services.chain(operations).chain(self.edges.iter_mut().map(|row| &mut row.sums))
    }

    fn measure(&mut self) {
        let names = |name: &str| name.len() + 16;
        let services = self.services.iter().map(|row| {
            row.entries.memory_bytes() + names(&row.name) + row.history.capacity() * size_of::<MinuteTotals>()
        });
        let operations = self.operations.iter().map(|row| {
            let unexported = row.unexported.as_ref().map_or(0, |spans| spans.memory_bytes());
            row.sums.memory_bytes() + unexported + names(&row.name) + names(&row.detail)
        });
        let edges = self.edges.iter().map(|row| row.sums.memory_bytes());
        self.bytes = services.chain(operations).chain(edges).sum::<usize>()
            + self.services.memory_bytes()
            + self.operations.memory_bytes()
            + self.edges.memory_bytes()
            + self.parents.memory_bytes()
            + self.waiting.memory_bytes();
    }
}
