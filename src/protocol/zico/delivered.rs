//! Remembers the traces that a session delivered, so that copies of them are counted once (rule 22).

use std::collections::VecDeque;
use std::hash::{BuildHasher, Hash};

use foldhash::quality::RandomState;
use hashbrown::HashSet;

use crate::event::TraceId;

/// The identity of a trace.
pub(super) type Fingerprint = u128;

/// The approximate memory of an entry in bytes.
const ENTRY_BYTES: usize = 64;

/// The memory of one session.
#[derive(Debug)]
pub(super) struct Delivered {
    limit: usize,
    /// Two 64-bit hashes with random seeds: a peer cannot construct two traces with the same fingerprint.
    hashers: [RandomState; 2],
    known: HashSet<Fingerprint, RandomState>,
    by_age: VecDeque<Fingerprint>,
}

impl Delivered {
    /// A memory of at most `limit` entries; the oldest is removed first.
    pub(super) fn new(limit: usize) -> Self {
        let hashers = [RandomState::default(), RandomState::default()];
        Delivered { limit, hashers, known: HashSet::default(), by_age: VecDeque::new() }
    }

    /// The fingerprint of a span with an id from its agent.
    pub(super) fn span(&self, trace: TraceId, span: u64) -> Fingerprint {
        self.fingerprint((trace, span))
    }

    /// The fingerprint of a trace that began at these times of two clocks.
    pub(super) fn moment(&self, clock: i64, start: u64) -> Fingerprint {
        self.fingerprint((clock, start))
    }

    pub(super) fn knows(&self, fingerprint: Fingerprint) -> bool {
        self.known.contains(&fingerprint)
    }

    /// Remembers delivered traces.
    pub(super) fn learn(&mut self, fingerprints: &[Fingerprint]) {
        for fingerprint in fingerprints.iter().rev().take(self.limit).rev() {
            if self.known.insert(*fingerprint) {
                self.by_age.push_back(*fingerprint);
            }
            if self.by_age.len() > self.limit
                && let Some(oldest) = self.by_age.pop_front()
            {
                self.known.remove(&oldest);
            }
        }
    }

    /// The approximate memory in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.by_age.len() * ENTRY_BYTES
    }

    fn fingerprint(&self, what: impl Hash) -> Fingerprint {
        let [high, low] = self.hashers.each_ref().map(|hasher| u128::from(hasher.hash_one(&what)));
        high << 64 | low
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_removed_first_and_repeats_count_once() {
        let mut delivered = Delivered::new(2);
        let [a, b, c] = [1, 2, 3].map(|span| delivered.span(TraceId([7; 16]), span));
        delivered.learn(&[a, b, a, b]);
        assert!(delivered.knows(a) && delivered.knows(b) && !delivered.knows(c));
        delivered.learn(&[c]);
        assert!(!delivered.knows(a) && delivered.knows(b) && delivered.knows(c));
        assert_ne!(delivered.moment(1, 2), delivered.moment(2, 1));
        let mut none = Delivered::new(0);
        none.learn(&[a]);
        assert!(!none.knows(a));
    }
}
