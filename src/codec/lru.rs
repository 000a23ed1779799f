//! A map that knows which of its entries was used longest ago.
//!
//! Protocols that send a text once and refer to it later need one on each side. Every operation takes constant time;
//! the hash is seeded, because peers choose the keys.

use std::hash::Hash;

use foldhash::quality::RandomState;
use hashbrown::HashMap;

const NONE: u32 = u32::MAX;

/// Entries in order of use. It never evicts by itself: the owner calls [`Lru::pop_oldest`] when it has too much.
#[derive(Debug)]
pub struct Lru<K, V> {
    places: HashMap<K, u32, RandomState>,
    nodes: Vec<Node<K, V>>,
    free: Vec<u32>,
    newest: u32,
    oldest: u32,
}

#[derive(Debug)]
struct Node<K, V> {
    key: K,
    value: V,
    newer: u32,
    older: u32,
}

impl<K, V> Default for Lru<K, V> {
    fn default() -> Self {
        Lru { places: HashMap::default(), nodes: Vec::new(), free: Vec::new(), newest: NONE, oldest: NONE }
    }
}

impl<K: Copy + Eq + Hash, V: Default> Lru<K, V> {
    /// Number of entries.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The value of `key`, which now counts as used last.
    pub fn get(&mut self, key: &K) -> Option<&mut V> {
        let place = *self.places.get(key)?;
        self.touch(place);
        Some(&mut self.nodes[place as usize].value)
    }

    /// The value of `key`; its place in the order stays.
    pub fn peek(&self, key: &K) -> Option<&V> {
        self.places.get(key).map(|place| &self.nodes[*place as usize].value)
    }

    /// Sets the value of `key`, which now counts as used last; gives back the value it replaces.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        if let Some(known) = self.get(&key) {
            return Some(std::mem::replace(known, value));
        }
        let node = Node { key, value, newer: NONE, older: NONE };
        let place = match self.free.pop() {
            Some(place) => {
                self.nodes[place as usize] = node;
                place
            }
            None => {
                self.nodes.push(node);
                (self.nodes.len() - 1) as u32
            }
        };
        self.places.insert(key, place);
        self.link_newest(place);
        None
    }

    /// Takes out the entry that was used longest ago.
    pub fn pop_oldest(&mut self) -> Option<(K, V)> {
        let place = self.oldest;
        let node = self.nodes.get_mut(place as usize)?;
        let (key, value) = (node.key, std::mem::take(&mut node.value));
        self.unlink(place);
        self.free.push(place);
        self.places.remove(&key);
        Some((key, value))
    }

    fn touch(&mut self, place: u32) {
        if self.newest != place {
            self.unlink(place);
            self.link_newest(place);
        }
    }

    fn unlink(&mut self, place: u32) {
        let Node { newer, older, .. } = self.nodes[place as usize];
        match newer {
            NONE => self.newest = older,
            newer => self.nodes[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.nodes[older as usize].newer = newer,
        }
    }

    fn link_newest(&mut self, place: u32) {
        let older = std::mem::replace(&mut self.newest, place);
        let node = &mut self.nodes[place as usize];
        (node.newer, node.older) = (NONE, older);
        match older {
            NONE => self.oldest = place,
            older => self.nodes[older as usize].newer = place,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_entry_used_longest_ago_goes_first() {
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
        /// Against the obvious implementation: a list in order of use.
        #[test]
        fn it_agrees_with_a_plain_list(operations in prop::collection::vec((0u8..3, 0u8..8, any::<u16>()), 0..200)) {
            let mut lru = Lru::default();
            let mut list: Vec<(u8, u16)> = Vec::new();
            for (operation, key, value) in operations {
                let known = list.iter().position(|(k, _)| *k == key);
                match operation {
                    0 => {
                        prop_assert_eq!(lru.peek(&key).copied(), known.map(|at| list[at].1));
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
