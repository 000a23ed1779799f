//! Remembers the traces that a session delivered, so that a trace that is sent inside another one, too, is counted once
//! (rule 22).

use std::collections::VecDeque;
use std::hash::{BuildHasher, Hash};

use foldhash::quality::{FixedState, RandomState};
use hashbrown::{HashMap, HashSet};

use tributary_event::{Link, SpanId, TraceId};

/// The identity of a trace. Two traces may have the same one if they began in the same millisecond (gen1).
pub(super) type Fingerprint = u128;

/// A delivered trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct DeliveredTrace {
    /// Its running number in the session.
    pub(super) number: u64,
    /// The ticks that it took (gen1).
    ticks: u64,
    pub(super) link: Link,
}

/// A trace to be remembered once its body is delivered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fresh {
    pub(super) fingerprint: Fingerprint,
    pub(super) ticks: u64,
    pub(super) link: Link,
}

/// What the delivery of a body changes.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// The most traces that are remembered.
    limit: usize,
    /// Traces of the body: the last ones, at least `limit` of them.
    fresh: Vec<Fresh>,
    /// The body has the one copy of each of these, in the nearest enclosing trace (gen1).
    pub(super) copied: Vec<(Fingerprint, u64)>,
    /// The numbers of those, and of traces that the body already links to.
    pub(super) linked: HashSet<u64, RandomState>,
    /// Traces of the body whose copies the body has, too, with their ticks (Fressian).
    inner: Vec<(Fingerprint, u64)>,
}

impl Changes {
    /// No changes. At most `limit` traces are remembered.
    pub(super) fn new(limit: usize) -> Self {
        Changes { limit, ..Changes::default() }
    }

    /// Remembers a trace. A body may have far more of them than are remembered.
    pub(super) fn remember(&mut self, fresh: Fresh) {
        if self.fresh.len() >= 2 * self.limit {
            self.fresh.drain(..self.limit);
        }
        if self.limit > 0 {
            self.fresh.push(fresh);
        }
    }
}

/// The memory of one session.
#[derive(Debug)]
pub(super) struct Delivered {
    limit: usize,
    /// Of two 64-bit hashes. They are random: a peer cannot construct two traces with the same fingerprint.
    seeds: [u64; 2],
    /// The oldest first.
    known: HashMap<Fingerprint, VecDeque<DeliveredTrace>, RandomState>,
    /// Every trace that was learned, also those that are forgotten since; at most `limit`.
    by_age: VecDeque<(Fingerprint, u64)>,
    /// The number of traces learned so far.
    learned: u64,
}

/// The approximate memory of an entry in bytes.
const ENTRY_BYTES: usize = 192;
/// The most traces with the same fingerprint, so that a look-up takes bounded time. A gen1 agent queues 64 traces for its one
/// sender, so it sends fewer that began in the same millisecond.
const MAX_EQUAL: usize = 64;

impl Delivered {
    /// A memory of at most `limit` entries; the oldest is removed first.
    pub(super) fn new(limit: usize) -> Self {
        let random = RandomState::default();
        let seeds = [0, 1].map(|number| random.hash_one(number));
        Delivered { limit, seeds, known: HashMap::default(), by_age: VecDeque::new(), learned: 0 }
    }

    /// The fingerprint of a span with an id from its agent.
    pub(super) fn span(&self, trace: TraceId, span: u64) -> Fingerprint {
        self.fingerprint((0u8, trace, span))
    }

    /// The fingerprint of a trace that began at these times of two clocks (gen2).
    pub(super) fn moment(&self, clock: i64, start: u64) -> Fingerprint {
        self.fingerprint((1u8, clock, start))
    }

    /// The fingerprint of a trace of a type that began in this millisecond with this method (gen1).
    pub(super) fn call(&self, clock: i64, trace_type: u64, method: impl Hash) -> Fingerprint {
        self.fingerprint((2u8, clock, trace_type, method))
    }

    /// The fingerprint of a trace of a type that began in this millisecond with this method and took this long (Fressian).
    pub(super) fn timed_call(&self, clock: i64, trace_type: u64, nanos: u64, method: impl Hash) -> Fingerprint {
        self.fingerprint((3u8, clock, trace_type, nanos, method))
    }

    /// Whether any trace is remembered.
    pub(super) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Whether a trace with this fingerprint is remembered.
    pub(super) fn knows(&self, fingerprint: Fingerprint) -> bool {
        self.known.contains_key(&fingerprint)
    }

    /// The oldest trace with this fingerprint.
    pub(super) fn first(&self, fingerprint: Fingerprint) -> Option<DeliveredTrace> {
        self.known.get(&fingerprint)?.front().copied()
    }

    /// The oldest trace with this fingerprint whose copy takes `ticks`, and which the body does not link to yet. An
    /// agent sends inner traces in the order in which it sends their copies.
    ///
    /// An agent counts the ticks of a trace from its start, and those of a copy from the start of the outer trace. So both are
    /// rounded down at different places, and the copy may take one more.
    pub(super) fn original(&self, fingerprint: Fingerprint, ticks: u64, changes: &Changes) -> Option<DeliveredTrace> {
        let mut equal = self.known.get(&fingerprint)?.iter();
        let is_original = |known: &&DeliveredTrace| {
            matches!(ticks.wrapping_sub(known.ticks), 0 | 1) && !changes.linked.contains(&known.number)
        };
        equal.find(is_original).copied()
    }

    /// Applies what the delivery of a body changes.
    pub(super) fn apply(&mut self, changes: &Changes) {
        for (fingerprint, number) in &changes.copied {
            self.forget(*fingerprint, *number);
        }
        for fresh in changes.fresh.iter().rev().take(self.limit).rev() {
            self.learn(*fresh);
        }
        for (fingerprint, ticks) in &changes.inner {
            let equal = self.known.get(fingerprint).into_iter().flatten();
            if let Some(number) = equal.filter(|known| known.ticks == *ticks).map(|known| known.number).next() {
                self.forget(*fingerprint, number);
            }
        }
    }

    /// An empty memory for the traces of one body, with the same fingerprints.
    pub(super) fn of_body(&self) -> Delivered {
        // Their numbers are none of this one's.
        Delivered { seeds: self.seeds, learned: 1 << 63, ..Delivered::new(self.limit) }
    }

    /// The oldest trace of this body, like [`Delivered::original`]. It has one copy.
    pub(super) fn take_original(
        &mut self,
        fingerprint: Fingerprint,
        ticks: u64,
        changes: &mut Changes,
    ) -> Option<DeliveredTrace> {
        let known = self.original(fingerprint, ticks, changes)?;
        self.forget(fingerprint, known.number);
        changes.inner.push((fingerprint, known.ticks));
        Some(known)
    }

    pub(super) fn learn(&mut self, Fresh { fingerprint, ticks, link }: Fresh) {
        let equal = self.known.entry(fingerprint).or_insert_with(|| VecDeque::with_capacity(1));
        if equal.len() == MAX_EQUAL {
            equal.pop_front();
        }
        equal.push_back(DeliveredTrace { number: self.learned, ticks, link });
        self.by_age.push_back((fingerprint, self.learned));
        self.learned += 1;
        if self.by_age.len() > self.limit
            && let Some((fingerprint, number)) = self.by_age.pop_front()
        {
            self.forget(fingerprint, number);
        }
    }

    fn forget(&mut self, fingerprint: Fingerprint, number: u64) {
        let Some(equal) = self.known.get_mut(&fingerprint) else { return };
        if let Ok(place) = equal.binary_search_by_key(&number, |known| known.number) {
            equal.remove(place);
        }
        if equal.is_empty() {
            self.known.remove(&fingerprint);
        }
    }

    /// The approximate memory in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.by_age.len() * ENTRY_BYTES
    }

    fn fingerprint(&self, what: impl Hash) -> Fingerprint {
        let [high, low] = self.seeds.map(|seed| u128::from(FixedState::with_seed(seed).hash_one(&what)));
        high << 64 | low
    }

    /// Appends what another process needs to go on with this memory.
    pub(super) fn store(&self, into: &mut Vec<u8>) {
        self.seeds.iter().for_each(|seed| into.extend(seed.to_be_bytes()));
        for (fingerprint, number) in &self.by_age {
            let equal = self.known.get(fingerprint).into_iter().flatten();
            for DeliveredTrace { ticks, link, .. } in equal.filter(|known| known.number == *number) {
                into.extend(fingerprint.to_be_bytes());
                into.extend(ticks.to_be_bytes());
                into.extend(link.trace_id.0);
                into.extend(link.span_id.0);
            }
        }
    }

    /// The memory that was stored like this. `None`: it was not.
    pub(super) fn restore(limit: usize, stored: &[u8]) -> Option<Delivered> {
        let (seeds, entries) = stored.split_first_chunk::<16>()?;
        let (entries, []) = entries.as_chunks::<STORED_BYTES>() else { return None };
        let (high, low) = seeds.split_first_chunk::<8>()?;
        let seeds = [*high, *low.first_chunk()?].map(u64::from_be_bytes);
        let mut restored = Delivered { seeds, ..Delivered::new(limit) };
        for entry in entries {
            let (fingerprint, entry) = entry.split_first_chunk::<16>()?;
            let (ticks, entry) = entry.split_first_chunk::<8>()?;
            let (trace, span) = entry.split_first_chunk::<16>()?;
            let link = Link { trace_id: TraceId(*trace), span_id: SpanId(*span.first_chunk()?) };
            let (fingerprint, ticks) = (u128::from_be_bytes(*fingerprint), u64::from_be_bytes(*ticks));
            restored.learn(Fresh { fingerprint, ticks, link });
        }
        Some(restored)
    }
}

/// An entry as it is stored: fingerprint, ticks, trace and span.
const STORED_BYTES: usize = 16 + 8 + 16 + 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn fresh(fingerprint: Fingerprint, ticks: u64) -> Fresh {
        let link = Link { trace_id: TraceId([7; 16]), span_id: SpanId(ticks.to_be_bytes()) };
        Fresh { fingerprint, ticks, link }
    }

    fn learn(delivered: &mut Delivered, fresh: &[Fresh]) {
        let mut changes = Changes::new(delivered.limit);
        fresh.iter().for_each(|fresh| changes.remember(*fresh));
        delivered.apply(&changes);
    }

    #[test]
    fn the_oldest_is_removed_first() {
        let mut delivered = Delivered::new(2);
        let [a, b, c] = [1, 2, 3].map(|span| delivered.span(TraceId([7; 16]), span));
        learn(&mut delivered, &[fresh(a, 1), fresh(b, 1)]);
        assert!(delivered.knows(a) && delivered.knows(b) && !delivered.knows(c));
        learn(&mut delivered, &[fresh(c, 1)]);
        assert!(!delivered.knows(a) && delivered.knows(b) && delivered.knows(c));
        assert_ne!(delivered.moment(1, 2), delivered.moment(2, 1));
        let mut none = Delivered::new(0);
        learn(&mut none, &[fresh(a, 1)]);
        assert!(!none.knows(a) && none.is_empty());
    }

    #[test]
    fn each_of_several_equal_traces_has_one_copy_in_their_order() {
        let mut delivered = Delivered::new(10);
        let key = delivered.call(5, 7, "a.B.run");
        learn(&mut delivered, &[fresh(key, 4), fresh(key, 5), fresh(key, 4)]);
        let mut changes = Changes::default();
        // Copies of 5, 6 and 4 ticks are those of traces of 4, 5 and 4.
        let numbers = [5, 6, 4, 4].map(|ticks| {
            let known = delivered.original(key, ticks, &changes)?;
            changes.linked.insert(known.number);
            changes.copied.push((key, known.number));
            Some(known.number)
        });
        assert_eq!(numbers, [Some(0), Some(1), Some(2), None]);
        assert_eq!(delivered.original(key, 3, &Changes::default()), None, "a copy takes no less");
        delivered.apply(&changes);
        assert!(delivered.is_empty());
        assert_eq!(delivered.by_age.len(), 3);
    }

    #[test]
    fn a_body_with_many_traces_takes_memory_for_those_that_are_remembered() {
        let (mut delivered, mut changes) = (Delivered::new(100), Changes::new(100));
        let keys: Vec<_> = (0..1_000).map(|start| delivered.moment(1, start)).collect();
        for key in &keys {
            changes.remember(fresh(*key, 0));
            assert!(changes.fresh.len() <= 200);
        }
        delivered.apply(&changes);
        assert!(keys[900..].iter().all(|key| delivered.knows(*key)));
        assert!(!keys[..900].iter().any(|key| delivered.knows(*key)));
    }

    #[test]
    fn another_process_goes_on_with_what_was_stored() {
        let mut delivered = Delivered::new(10);
        let key = delivered.call(5, 7, "a.B.run");
        let other = delivered.call(5, 8, "a.B.run");
        learn(&mut delivered, &[fresh(key, 4), fresh(other, 9), fresh(key, 5)]);
        delivered.forget(key, 0);
        let mut stored = Vec::new();
        delivered.store(&mut stored);
        let restored = Delivered::restore(10, &stored).unwrap();
        assert_eq!(restored.call(5, 7, "a.B.run"), key);
        let found = [(key, 4), (key, 5), (other, 9)]
            .map(|(key, ticks)| restored.first(key).map(|known| known.ticks) == Some(ticks));
        assert_eq!(found, [false, true, true]);
        assert_eq!(restored.memory_bytes(), 2 * ENTRY_BYTES);
        assert!(Delivered::restore(10, &stored[1..]).is_none());
        assert!(Delivered::restore(1, &stored).is_some_and(|one| one.memory_bytes() == ENTRY_BYTES));
    }

    #[test]
    fn traces_with_the_same_fingerprint_are_limited() {
        let mut delivered = Delivered::new(10_000);
        let key = delivered.call(5, 7, "a.B.run");
        learn(&mut delivered, &vec![fresh(key, 4); 1000]);
        assert_eq!(delivered.known[&key].len(), MAX_EQUAL);
        assert_eq!(delivered.first(key).unwrap().number, 1000 - MAX_EQUAL as u64);
    }
}
