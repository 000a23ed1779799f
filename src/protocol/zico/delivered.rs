//! What a session has delivered: a bounded memory of traces, so that copies of them are counted once (rule 22).

use std::collections::VecDeque;
use std::hash::{BuildHasher, Hash};

use foldhash::quality::RandomState;
use hashbrown::HashSet;

use crate::event::TraceId;

/// A trace as it is remembered.
pub(super) type Fingerprint = u128;

/// What an entry costs, roughly.
const ENTRY_BYTES: usize = 64;

/// The memory of one session.
#[derive(Debug)]
pub(super) struct Delivered {
    limit: usize,
    /// Two hashes of 64 bits, seeded at random: nobody can make two traces alike.
    hashers: [RandomState; 2],
    known: HashSet<Fingerprint, RandomState>,
    by_age: VecDeque<Fingerprint>,
}

impl Delivered {
    /// Of at most `limit` entries; the oldest is forgotten first.
    pub(super) fn new(limit: usize) -> Self {
        let hashers = [RandomState::default(), RandomState::default()];
        Delivered { limit, hashers, known: HashSet::default(), by_age: VecDeque::new() }
    }

    /// Of a span that its agent has named.
    pub(super) fn span(&self, trace: TraceId, span: u64) -> Fingerprint {
        self.fingerprint((trace, span))
    }

    /// Of a trace that began at this moment of two clocks.
    pub(super) fn moment(&self, clock: i64, start: u64) -> Fingerprint {
        self.fingerprint((clock, start))
    }

    pub(super) fn knows(&self, fingerprint: Fingerprint) -> bool {
        self.known.contains(&fingerprint)
    }

    /// These are delivered.
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

    /// Memory, roughly.
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
    fn the_oldest_is_forgotten_first_and_none_counts_twice() {
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
