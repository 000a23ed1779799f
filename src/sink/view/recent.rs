//! Keys that came last, each with a small number, in bounded memory.

use std::mem;

/// The bits of a number; the greatest one stands for [`u32::MAX`]. They take the place of as many bits of the key, which is a hash.
const NUMBER_BITS: u32 = 20;
const NUMBERS: u64 = (1 << NUMBER_BITS) - 1;
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
    /// One was since the last time that it was time for it.
    was_full: bool,
}

#[derive(Debug, Default)]
struct Table {
    /// The upper bits of a key and its number. 0: the place is free.
    places: Vec<u64>,
    len: usize,
}

impl Table {
    /// The place of a key, or a free one.
    #[inline]
    fn place(&self, key: u64) -> usize {
        let mask = self.places.len() - 1;
        let mut at = (key >> NUMBER_BITS) as usize & mask;
        while self.places[at] != 0 && (self.places[at] ^ key) & !NUMBERS != 0 {
            at = (at + 1) & mask;
        }
        at
    }

    fn get(&self, key: u64) -> Option<u32> {
        if self.places.is_empty() {
            return None;
        }
        let found = self.places[self.place(key)];
        (found != 0).then_some(match found & NUMBERS {
            NUMBERS => u32::MAX,
            number => number as u32,
        })
    }

    /// `with`: the upper bits of a key, and its number.
    #[inline]
    fn insert(&mut self, with: u64) {
        let at = self.place(with);
        self.len += usize::from(self.places[at] == 0);
        self.places[at] = with;
    }

    fn is_full(&self) -> bool {
        self.len * 4 >= self.places.len() * 3
    }

    fn grown(&self, places: usize) -> Table {
        let mut grown = Table { places: vec![0; places], len: 0 };
        self.places.iter().filter(|place| **place != 0).for_each(|place| grown.insert(*place));
        grown
    }
}

impl RecentKeys {
    /// Two tables of at most `bytes` together.
    pub(crate) fn new(bytes: usize) -> RecentKeys {
        let places = bytes / 2 / size_of::<u64>();
        let most = if places <= LEAST_PLACES { LEAST_PLACES } else { 1 << places.ilog2() };
        RecentKeys { present: Table::default(), former: Table::default(), most, full: 0, was_full: false }
    }

    /// Remembers the number of a key. At least one of the upper bits of a key is not 0.
    #[inline]
    pub(crate) fn insert(&mut self, key: u64, number: u32) {
        if self.present.is_full() {
            self.grow();
        }
        self.present.insert(key & !NUMBERS | u64::from(number).min(NUMBERS));
    }

    #[cold]
    fn grow(&mut self) {
        let places = self.present.places.len();
        if places >= self.most {
            self.full += 1;
            self.was_full = true;
            self.swap();
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

    /// Time has passed: gives up the older half of what is known. Does nothing if a full table was given up since the last call: the
    /// present table can be nearly empty.
    pub(crate) fn turn(&mut self) {
        if !mem::take(&mut self.was_full) {
            self.swap();
        }
    }

    fn swap(&mut self) {
        mem::swap(&mut self.present, &mut self.former);
        self.present.places.fill(0);
        self.present.len = 0;
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        (self.present.places.capacity() + self.former.places.capacity()) * size_of::<u64>()
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
            assert_eq!(keys.get(key(number + 1_000_000)), None);
        }
        let known = (0..200_000).filter(|number| keys.get(key(*number)) == Some(*number as u32)).count();
        assert!(known >= 24_000 && keys.memory_bytes() <= 1 << 20, "{known}");
        assert!(keys.get(key(199_999 - 24_000)).is_some() && keys.get(key(7)).is_none() && keys.full > 0);
        // The time has come just after a table was full.
        keys.turn();
        assert!(keys.get(key(199_999 - 24_000)).is_some());
        keys.turn();
        assert!(keys.get(key(199_999)).is_some());
        keys.turn();
        assert_eq!(keys.get(key(199_999)), None);
    }
}
