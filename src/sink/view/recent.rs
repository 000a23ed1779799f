//! Keys that came last, each with a number, in bounded memory.

use std::mem;

/// A table with this many places at least.
const LEAST_PLACES: usize = 1024;

/// Two tables: when the present one is full, or has been for long enough, it becomes the former one.
#[derive(Debug)]
pub(crate) struct RecentKeys {
    present: Table,
    former: Table,
    /// The most places of a table.
    most: usize,
    /// Tables that were given up before their time, because they were full.
    full: u64,
}

#[derive(Debug, Default)]
struct Table {
    /// A key and its number. The key 0: the place is free.
    places: Vec<(u64, u32)>,
    len: usize,
}

impl Table {
    fn place(&self, key: u64) -> usize {
        let mask = self.places.len() - 1;
        let mut at = (key >> 20) as usize & mask;
        while self.places[at].0 != 0 && self.places[at].0 != key {
            at = (at + 1) & mask;
        }
        at
    }

    fn get(&self, key: u64) -> Option<u32> {
        if self.places.is_empty() {
            return None;
        }
        let (known, number) = self.places[self.place(key)];
        (known == key).then_some(number)
    }

    fn insert(&mut self, key: u64, number: u32) {
        let at = self.place(key);
        self.len += usize::from(self.places[at].0 == 0);
        self.places[at] = (key, number);
    }

    fn is_full(&self) -> bool {
        self.len * 4 >= self.places.len() * 3
    }

    fn grown(&self, places: usize) -> Table {
        let mut grown = Table { places: vec![(0, 0); places], len: 0 };
        self.places.iter().filter(|(key, _)| *key != 0).for_each(|(key, number)| grown.insert(*key, *number));
        grown
    }
}

impl RecentKeys {
    /// Two tables of at most `bytes` together.
    pub(crate) fn new(bytes: usize) -> RecentKeys {
        let places = bytes / 2 / size_of::<(u64, u32)>();
        let most = if places <= LEAST_PLACES { LEAST_PLACES } else { 1 << places.ilog2() };
        RecentKeys { present: Table::default(), former: Table::default(), most, full: 0 }
    }

    /// Remembers the number of a key, which is not 0.
    #[inline]
    pub(crate) fn insert(&mut self, key: u64, number: u32) {
        if self.present.is_full() {
            self.grow();
        }
        self.present.insert(key, number);
    }

    #[cold]
    fn grow(&mut self) {
        let places = self.present.places.len();
        if places >= self.most {
            self.full += 1;
            self.turn();
        }
        let wanted = if places == 0 { LEAST_PLACES } else { (places * 2).min(self.most) };
        if self.present.places.len() < wanted {
            self.present = self.present.grown(wanted);
        }
    }

    /// The number of a key.
    #[inline]
    pub(crate) fn get(&self, key: u64) -> Option<u32> {
        self.present.get(key).or_else(|| self.former.get(key))
    }

    /// Gives up the older half of what is known.
    pub(crate) fn turn(&mut self) {
        mem::swap(&mut self.present, &mut self.former);
        self.present.places.fill((0, 0));
        self.present.len = 0;
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        (self.present.places.capacity() + self.former.places.capacity()) * size_of::<(u64, u32)>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_keys_are_known_and_memory_is_bounded() {
        let mut keys = RecentKeys::new(1 << 20);
        let key = |number: u64| (number + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        for number in 0..200_000 {
            keys.insert(key(number), number as u32);
            assert_eq!(keys.get(key(number)), Some(number as u32));
        }
        let known = (0..200_000).filter(|number| keys.get(key(*number)) == Some(*number as u32)).count();
        assert!(known >= 24_000 && keys.memory_bytes() <= 1 << 20, "{known}");
        assert!(keys.get(key(199_999 - 24_000)).is_some() && keys.get(key(7)).is_none() && keys.full > 0);
        keys.turn();
        assert!(keys.get(key(199_999)).is_some());
        keys.turn();
        assert_eq!(keys.get(key(199_999)), None);
    }
}
