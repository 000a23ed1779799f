//! What is known of keys that came lately: peers send the same ones again and again, mostly in the same order.

use std::hash::BuildHasher as _;

use foldhash::quality::RandomState;
use hashbrown::HashTable;

/// The most keys that are remembered, and the longest of them.
const MAX_KEYS: usize = 1024;
const MAX_KEY_BYTES: usize = 256;

/// A value for each of the latest keys.
#[derive(Debug)]
pub struct LatestKeys<V> {
    hasher: RandomState,
    /// The places of keys, by their hash.
    places: HashTable<u32>,
    known: Vec<KnownKey<V>>,
    /// The place of the key that was found last.
    last: usize,
}

#[derive(Debug)]
struct KnownKey<V> {
    key: Box<[u8]>,
    value: V,
    /// The place of the key that was found after it.
    next: usize,
}

impl<V> Default for LatestKeys<V> {
    fn default() -> Self {
        LatestKeys { hasher: RandomState::default(), places: HashTable::new(), known: Vec::new(), last: 0 }
    }
}

impl<V> LatestKeys<V> {
    /// The value of a key.
    #[inline]
    pub fn find(&mut self, key: &[u8]) -> Option<&mut V> {
        let next = self.known.get(self.last)?.next;
        let is_next = self.known.get(next).is_some_and(|known| *known.key == *key);
        let place = if is_next { next } else { self.place(key)? };
        self.last = place;
        self.known.get_mut(place).map(|known| &mut known.value)
    }

    fn place(&mut self, key: &[u8]) -> Option<usize> {
        let hash = self.hasher.hash_one(key);
        let place = *self.places.find(hash, |place| *self.known[*place as usize].key == *key)? as usize;
        if place != self.last {
            self.known[self.last].next = place;
        }
        Some(place)
    }

    /// Remembers a key that is not found, unless it is too long. With too many keys, forgets all others.
    pub fn add(&mut self, key: &[u8], value: V) {
        if key.len() > MAX_KEY_BYTES {
            return;
        }
        if self.known.len() >= MAX_KEYS {
            self.known.clear();
            self.places.clear();
        }
        let place = self.known.len();
        self.known.push(KnownKey { key: key.into(), value, next: 0 });
        let LatestKeys { hasher, places, known, .. } = self;
        let hash_of = |place: &u32| hasher.hash_one(&*known[*place as usize].key);
        places.insert_unique(hasher.hash_one(key), place as u32, hash_of);
        if let Some(last) = known.get_mut(self.last) {
            last.next = place;
        }
        self.last = place;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_in_any_order_and_their_number_is_bounded() {
        let mut keys = LatestKeys::default();
        let of = |number: usize| format!("key {number}").into_bytes();
        assert!(keys.find(b"").is_none());
        for number in 0..3 * MAX_KEYS {
            assert!(keys.find(&of(number)).is_none());
            keys.add(&of(number), number);
            for known in [number, number - number % MAX_KEYS, number, number] {
                assert_eq!(keys.find(&of(known)).copied(), Some(known));
            }
        }
        assert_eq!(keys.known.len(), MAX_KEYS);
        for number in (2 * MAX_KEYS..3 * MAX_KEYS).chain((2 * MAX_KEYS..3 * MAX_KEYS).rev().step_by(7)) {
            *keys.find(&of(number)).unwrap() += 1;
            assert_eq!(keys.find(&of(number)).copied(), Some(number + 1));
            *keys.find(&of(number)).unwrap() -= 1;
        }
        keys.add(&[b'k'; MAX_KEY_BYTES + 1], 0);
        assert!(keys.find(&[b'k'; MAX_KEY_BYTES + 1]).is_none());
    }
}
