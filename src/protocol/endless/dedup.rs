//! What was delivered already: a bounded memory of bundles and events, so that a repeated upload is recognised.
//!
//! A retry stamps the clocks at the front of the body anew; everything behind them stays (rule 21). So a bundle is known
//! by what stands behind its clocks. A later upload may hold more events than the one that was lost on its way back:
//! then each event is known by itself, together with who speaks.

use std::collections::VecDeque;
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use foldhash::quality::RandomState;
use hashbrown::HashSet;

use super::options::Dedup;

/// A bundle or event as it is remembered.
pub(super) type Fingerprint = u128;

/// What is known of a bundle that has just come in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Seen {
    /// Nothing; from now on it is being delivered.
    New,
    /// It was delivered.
    Delivered,
    /// The same one is being delivered at this moment.
    InFlightRequest,
}

/// The memory of one listener.
#[derive(Debug)]
pub(super) struct Memory {
    options: Dedup,
    /// Two hashes of 64 bits, seeded at random: nobody can make two events alike.
    hashers: [RandomState; 2],
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    known: HashSet<Fingerprint, AsItIs>,
    /// In the order in which they came, with the time of each.
    by_age: VecDeque<(Fingerprint, Duration)>,
    underway: HashSet<Fingerprint, AsItIs>,
}

/// A fingerprint is two hashes already, and is not hashed again to find its place.
pub(super) type AsItIs = BuildHasherDefault<LowHalf>;

/// The hasher of [`AsItIs`].
#[derive(Debug, Default)]
pub(super) struct LowHalf(u64);

impl Hasher for LowHalf {
    fn write_u128(&mut self, fingerprint: u128) {
        self.0 = fingerprint as u64;
    }

    /// Nothing but numbers of 128 bits is looked up.
    fn write(&mut self, _bytes: &[u8]) {}

    fn finish(&self) -> u64 {
        self.0
    }
}

/// What a memory with these limits takes at most: a table that has twice the room it needs, with those who came by age,
/// and both once more in half while they grow.
pub(super) fn most_bytes(options: Dedup) -> u64 {
    if options.entries == 0 || options.time.is_zero() {
        return 0;
    }
    let table = options.entries.saturating_mul(8).div_ceil(7).next_power_of_two() * (size_of::<Fingerprint>() + 1);
    let by_age = options.entries.next_power_of_two() * size_of::<(Fingerprint, Duration)>();
    (table as u64).saturating_add(by_age as u64).saturating_mul(3) / 2
}

impl Memory {
    pub(super) fn new(options: Dedup) -> Self {
        Memory { options, hashers: [RandomState::default(), RandomState::default()], state: Mutex::default() }
    }

    /// What stands for these parts together.
    pub(super) fn fingerprint(&self, parts: impl Hash) -> Fingerprint {
        let [high, low] = &self.hashers;
        u128::from(high.hash_one(&parts)) << 64 | u128::from(low.hash_one(&parts))
    }

    /// Whether anything is remembered at all.
    pub(super) fn is_on(&self) -> bool {
        self.options.entries > 0 && !self.options.time.is_zero()
    }

    /// A bundle has come in, known by any of these.
    pub(super) fn begin(&self, bundle: &[Fingerprint], now: Duration) -> Seen {
        if !self.is_on() {
            return Seen::New;
        }
        let mut state = self.lock();
        state.forget(now.saturating_sub(self.options.time), self.options.entries);
        if bundle.iter().any(|one| state.known.contains(one)) {
            return Seen::Delivered;
        }
        if bundle.iter().any(|one| state.underway.contains(one)) {
            return Seen::InFlightRequest;
        }
        state.underway.extend(bundle.first());
        Seen::New
    }

    /// Whether an event, known by any of these, was delivered.
    pub(super) fn knows(&self, event: &[Fingerprint]) -> bool {
        let state = self.lock();
        event.iter().any(|one| state.known.contains(one))
    }

    /// The bundle that began is over; these are remembered when it was delivered.
    pub(super) fn end(&self, bundle: Fingerprint, delivered: &[Fingerprint], now: Duration) {
        let mut state = self.lock();
        state.underway.remove(&bundle);
        state.known.reserve(delivered.len());
        for fingerprint in delivered {
            if state.known.insert(*fingerprint) {
                state.by_age.push_back((*fingerprint, now));
            }
        }
        state.forget(now.saturating_sub(self.options.time), self.options.entries);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Lets go of what is older than `since`, and of the oldest of more than `entries`.
    fn forget(&mut self, since: Duration, entries: usize) {
        while let Some((fingerprint, at)) = self.by_age.front()
            && (*at < since || self.by_age.len() > entries)
        {
            self.known.remove(fingerprint);
            self.by_age.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(seconds: u64, entries: usize) -> Memory {
        Memory::new(Dedup { time: Duration::from_secs(seconds), entries })
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_bundle_is_known_once_it_was_delivered_and_not_before() {
        let memory = memory(10, 10);
        assert_eq!(memory.begin(&[1], at(0)), Seen::New);
        assert_eq!(memory.begin(&[1], at(0)), Seen::InFlightRequest);
        memory.end(1, &[], at(1));
        assert_eq!(memory.begin(&[1], at(1)), Seen::New);
        memory.end(1, &[1, 7], at(2));
        assert_eq!(memory.begin(&[1], at(3)), Seen::Delivered);
        assert_eq!(memory.begin(&[9, 1], at(3)), Seen::Delivered);
        assert!(memory.knows(&[7]) && !memory.knows(&[8]));
    }

    #[test]
    fn what_is_remembered_is_bounded_in_number_and_in_time() {
        let memory = memory(10, 3);
        memory.end(0, &[1, 2, 3, 4], at(0));
        assert!(!memory.knows(&[1]) && memory.knows(&[2]) && memory.knows(&[4]));
        memory.end(0, &[5], at(10));
        assert_eq!(memory.begin(&[4], at(10)), Seen::Delivered);
        assert_eq!(memory.begin(&[4], at(11)), Seen::New);
        assert_eq!(memory.begin(&[5], at(11)), Seen::Delivered);
    }

    #[test]
    fn without_room_or_time_nothing_is_a_repeat() {
        for memory in [memory(10, 0), memory(0, 10)] {
            assert!(!memory.is_on());
            memory.end(1, &[1], at(0));
            assert_eq!(memory.begin(&[1], at(1)), Seen::New);
            assert_eq!(memory.begin(&[1], at(1)), Seen::New);
        }
    }
}
