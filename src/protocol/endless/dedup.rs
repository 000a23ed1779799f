//! Recognises repeated uploads: a bounded memory of bundles and events that were delivered.
//!
//! A retry writes new clocks at the front of the body; the bytes behind the clocks do not change (rule 21). A bundle is
//! therefore identified by the bytes behind its clocks. A retry may hold more events than the upload whose answer was
//! lost: then each event is identified by its own bytes together with the bundle's head.

use std::collections::VecDeque;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use foldhash::quality::RandomState;
use hashbrown::HashSet;

use tributary_event::ContentId;
use tributary_options::{LONGEST, options};

options! {
    /// Limits of the memory for bundles and events that were delivered (rule 21).
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Dedup {
        /// How long each entry is remembered. "0s": nothing is remembered, and every upload is new.
        pub time: Duration = duration(Duration::from_secs(48 * 3600), Duration::ZERO..=LONGEST),
        /// The number of entries, bundles and events together; the oldest entry is removed first. Each takes about 64 bytes.
        /// 0: none.
        pub entries: usize = count(100_000, 0..=100_000_000),
    }
}

impl Dedup {
    /// The most memory that a [`DedupCache`] with these limits takes, in bytes: a hash table at twice the size that it
    /// needs, the queue by age, and both one and a half times while they grow.
    pub(super) fn max_memory_bytes(self) -> u64 {
        if self.entries == 0 || self.time.is_zero() {
            return 0;
        }
        let table = self.entries.saturating_mul(8).div_ceil(7).next_power_of_two() * (size_of::<Fingerprint>() + 1);
        let by_age = self.entries.next_power_of_two() * size_of::<(Fingerprint, Duration)>();
        (table as u64).saturating_add(by_age as u64).saturating_mul(3) / 2
    }
}

/// The identity of a bundle or event.
pub type Fingerprint = u128;

/// What is known of a bundle that was received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BundleStatus {
    /// It was not seen before; from now on it is in flight.
    New,
    /// It was delivered.
    Delivered,
    /// The same bundle is being delivered by another request.
    InFlight,
}

/// The memory of one listener.
#[derive(Debug)]
pub(super) struct DedupCache {
    options: Dedup,
    /// Two 64-bit hashes with random seeds: a peer cannot construct two events with the same fingerprint. `None`: fingerprints are
    /// those of [`ContentId`], because other daemons must find the same ones.
    hashers: Option<[RandomState; 2]>,
    state: Mutex<DedupState>,
}

#[derive(Debug, Default)]
struct DedupState {
    known: HashSet<Fingerprint, BuildIdentityHasher>,
    /// In the order of delivery, with the time of each.
    by_age: VecDeque<(Fingerprint, Duration)>,
    in_flight: HashSet<Fingerprint, BuildIdentityHasher>,
}

/// Keys of a hash table that are random already, such as fingerprints, are not hashed again.
pub(super) type BuildIdentityHasher = BuildHasherDefault<IdentityHasher>;

/// Takes the low half of a 128-bit key as its hash.
#[derive(Debug, Default)]
pub(super) struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn write_u128(&mut self, fingerprint: u128) {
        self.0 = fingerprint as u64;
    }

    /// Never called: all keys are 128-bit numbers.
    fn write(&mut self, _bytes: &[u8]) {}

    fn finish(&self) -> u64 {
        self.0
    }
}

impl DedupCache {
    /// An empty memory. Other daemons find the same fingerprints if `is_shared`.
    pub(super) fn new(options: Dedup, is_shared: bool) -> Self {
        let hashers = (!is_shared).then(|| [RandomState::default(), RandomState::default()]);
        DedupCache { options, hashers, state: Mutex::default() }
    }

    /// The fingerprint of these bytes, which are something of `context`.
    pub(super) fn fingerprint(&self, context: &[u8], bytes: &[u8]) -> Fingerprint {
        match &self.hashers {
            Some([high, low]) => {
                let parts = (context, bytes);
                u128::from(high.hash_one(parts)) << 64 | u128::from(low.hash_one(parts))
            }
            None => ContentId::of("endless", bytes).with(context).0,
        }
    }

    /// Whether anything is remembered.
    pub(super) fn is_on(&self) -> bool {
        self.options.entries > 0 && !self.options.time.is_zero()
    }

    /// Looks up a received bundle by any of these fingerprints. A new bundle is in flight from now on, under the first.
    pub(super) fn begin(&self, bundle: &[Fingerprint], now: Duration) -> BundleStatus {
        if !self.is_on() {
            return BundleStatus::New;
        }
        let mut state = self.lock();
        state.evict(now.saturating_sub(self.options.time), self.options.entries);
        if bundle.iter().any(|one| state.known.contains(one)) {
            return BundleStatus::Delivered;
        }
        if bundle.iter().any(|one| state.in_flight.contains(one)) {
            return BundleStatus::InFlight;
        }
        state.in_flight.extend(bundle.first());
        BundleStatus::New
    }

    /// Whether an event with any of these fingerprints was delivered.
    pub(super) fn knows(&self, event: &[Fingerprint]) -> bool {
        let state = self.lock();
        event.iter().any(|one| state.known.contains(one))
    }

    /// Ends the delivery of a bundle that was in flight, and remembers these fingerprints as delivered.
    pub(super) fn end(&self, bundle: Fingerprint, delivered: &[Fingerprint], now: Duration) {
        let mut state = self.lock();
        state.in_flight.remove(&bundle);
        state.known.reserve(delivered.len());
        for fingerprint in delivered {
            if state.known.insert(*fingerprint) {
                state.by_age.push_back((*fingerprint, now));
            }
        }
        state.evict(now.saturating_sub(self.options.time), self.options.entries);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, DedupState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DedupState {
    /// Removes entries older than `since`, then the oldest until at most `entries` are left.
    fn evict(&mut self, since: Duration, entries: usize) {
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

    fn cache(seconds: u64, entries: usize) -> DedupCache {
        DedupCache::new(Dedup { time: Duration::from_secs(seconds), entries }, false)
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_bundle_is_a_repeat_only_after_it_was_delivered() {
        let cache = cache(10, 10);
        assert_eq!(cache.begin(&[1], at(0)), BundleStatus::New);
        assert_eq!(cache.begin(&[1], at(0)), BundleStatus::InFlight);
        cache.end(1, &[], at(1));
        assert_eq!(cache.begin(&[1], at(1)), BundleStatus::New);
        cache.end(1, &[1, 7], at(2));
        assert_eq!(cache.begin(&[1], at(3)), BundleStatus::Delivered);
        assert_eq!(cache.begin(&[9, 1], at(3)), BundleStatus::Delivered);
        assert!(cache.knows(&[7]) && !cache.knows(&[8]));
    }

    #[test]
    fn entries_are_bounded_in_number_and_in_time() {
        let cache = cache(10, 3);
        cache.end(0, &[1, 2, 3, 4], at(0));
        assert!(!cache.knows(&[1]) && cache.knows(&[2]) && cache.knows(&[4]));
        cache.end(0, &[5], at(10));
        assert_eq!(cache.begin(&[4], at(10)), BundleStatus::Delivered);
        assert_eq!(cache.begin(&[4], at(11)), BundleStatus::New);
        assert_eq!(cache.begin(&[5], at(11)), BundleStatus::Delivered);
    }

    #[test]
    fn with_zero_entries_or_time_nothing_is_a_repeat() {
        for cache in [cache(10, 0), cache(0, 10)] {
            assert!(!cache.is_on());
            cache.end(1, &[1], at(0));
            assert_eq!(cache.begin(&[1], at(1)), BundleStatus::New);
            assert_eq!(cache.begin(&[1], at(1)), BundleStatus::New);
        }
    }
}
