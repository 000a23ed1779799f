//! A map that knows its least recently used entry.
//!
//! Protocols that send a text once and refer to it later need one on each side. A lookup is by far the most frequent
//! operation, so it costs one hash and one store: every entry has the number of its last use. The order is maintained
//! lazily, in a heap that may have an older use of an entry; [`Lru::pop_oldest`] updates such items, each at most once per
//! use. The hash is seeded, because peers choose the keys.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hash::Hash;

use foldhash::quality::RandomState;
use hashbrown::HashMap;

/// Entries in order of use. It does not evict: the owner calls [`Lru::pop_oldest`] when it is over its limits.
#[derive(Debug)]
pub struct Lru<K, V> {
    entries: HashMap<K, LruEntry<V>, RandomState>,
    /// One use of every key: the last one or an earlier one.
    order: BinaryHeap<Reverse<(u64, K)>>,
    uses: u64,
}

#[derive(Debug)]
struct LruEntry<V> {
    pub value: V,
    last_use: u64,
}

impl<K: Ord, V> Default for Lru<K, V> {
    fn default() -> Self {
        Lru { entries: HashMap::default(), order: BinaryHeap::new(), uses: 0 }
    }
}

impl<K: Copy + Ord + Hash, V> Lru<K, V> {
    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the map is empty.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The value of `key`, which becomes the most recently used one.
    #[inline]
    pub fn get(&mut self, key: &K) -> Option<&mut V> {
        let entry = self.entries.get_mut(key)?;
        self.uses += 1;
        entry.last_use = self.uses;
        Some(&mut entry.value)
    }

    /// The value of `key`, without counting as a use.
    pub fn peek_mut(&mut self, key: &K) -> Option<&mut V> {
        self.entries.get_mut(key).map(|entry| &mut entry.value)
    }

    /// Sets the value of `key`, which becomes the most recently used one. Returns the replaced value.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        self.uses += 1;
        let entry = LruEntry { value, last_use: self.uses };
        let replaced = self.entries.insert(key, entry);
        if replaced.is_none() {
            self.order.push(Reverse((self.uses, key)));
        }
        replaced.map(|entry| entry.value)
    }

    /// The entries, in unspecified order.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.entries.iter().map(|(key, entry)| (key, &entry.value))
    }

    /// Removes the least recently used entry.
    pub fn pop_oldest(&mut self) -> Option<(K, V)> {
        loop {
            let Reverse((known_use, key)) = self.order.pop()?;
            let last_use = self.entries.get(&key)?.last_use;
            if last_use == known_use {
                let entry = self.entries.remove(&key)?;
                return Some((key, entry.value));
            }
            self.order.push(Reverse((last_use, key)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_least_recently_used_entry_is_removed_first() {
        let mut lru = Lru::default();
        for key in 1..=3 {
            assert_eq!(lru.insert(key, key * 10), None);
        }
        assert_eq!(lru.get(&1), Some(&mut 10));
        assert_eq!(lru.insert(2, 21), Some(20));
        let order: Vec<_> = std::iter::from_fn(|| lru.pop_oldest()).collect();
        assert_eq!(order, [(3, 30), (1, 10), (2, 21)]);
        assert!(lru.is_empty());
    }

    proptest! {
        /// Compares with the obvious implementation: a list in order of use.
        #[test]
        fn it_agrees_with_a_plain_list(operations in prop::collection::vec((0u8..3, 0u8..8, any::<u16>()), 0..200)) {
            let mut lru = Lru::default();
            let mut list: Vec<(u8, u16)> = Vec::new();
            for (operation, key, value) in operations {
                let known = list.iter().position(|(k, _)| *k == key);
                match operation {
                    0 => {
                        prop_assert_eq!(lru.peek_mut(&key).copied(), known.map(|at| list[at].1));
                        prop_assert_eq!(lru.get(&key).copied(), known.map(|at| list[at].1));
                        if let Some(at) = known {
                            let entry = list.remove(at);
                            list.push(entry);
                        }
                    }
                    1 => {
                        prop_assert_eq!(lru.insert(key, value), known.map(|at| list.remove(at).1));
                        list.push((key, value));
                    }
                    _ => {
                        let oldest = (!list.is_empty()).then(|| list.remove(0));
                        prop_assert_eq!(lru.pop_oldest(), oldest);
                    }
                }
                prop_assert_eq!(lru.len(), list.len());
            }
        }
    }
}
