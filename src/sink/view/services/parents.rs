//! The services of the spans that came last, by which the caller of a span is found.

use std::mem;

/// A table with this many places at least.
const LEAST_PLACES: usize = 1024;

/// Two tables: when the present one is full, or has been for long enough, it becomes the former one.
#[derive(Debug)]
pub(super) struct Parents {
    present: Table,
    former: Table,
    /// The most places of a table.
    most: usize,
    /// Tables that were given up before their time, because they were full.
    full: u64,
}

#[derive(Debug, Default)]
struct Table {
    /// The key of a span, and its service. 0: the place is free.
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
        let (known, service) =
            *self.places.get(..).filter(|places| !places.is_empty()).map(|places| &places[self.place(key)])?;
        (known == key).then_some(service)
    }

    fn insert(&mut self, key: u64, service: u32) {
        let at = self.place(key);
        self.len += usize::from(self.places[at].0 == 0);
        self.places[at] = (key, service);
    }

    fn is_full(&self) -> bool {
        self.len * 4 >= self.places.len() * 3
    }

    fn grown(&self, places: usize) -> Table {
        let mut grown = Table { places: vec![(0, 0); places], len: 0 };
        self.places.iter().filter(|(key, _)| *key != 0).for_each(|(key, service)| grown.insert(*key, *service));
        grown
    }
}

impl Parents {
    /// Two tables of at most `bytes` together.
    pub(super) fn new(bytes: usize) -> Parents {
        let places = bytes / 2 / size_of::<(u64, u32)>();
        let most = if places <= LEAST_PLACES { LEAST_PLACES } else { 1 << places.ilog2() };
        Parents { present: Table::default(), former: Table::default(), most, full: 0 }
    }

    /// Remembers the service of a span.
    #[inline]
    pub(super) fn insert(&mut self, key: u64, service: u32) {
        if self.present.is_full() {
            self.grow();
        }
        self.present.insert(key, service);
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

    /// The service of a span.
    #[inline]
    pub(super) fn get(&self, key: u64) -> Option<u32> {
        self.present.get(key).or_else(|| self.former.get(key))
    }

    /// Gives up the older half of what is known.
    pub(super) fn turn(&mut self) {
        mem::swap(&mut self.present, &mut self.former);
        self.present.places.fill((0, 0));
        self.present.len = 0;
    }

    pub(super) fn memory_bytes(&self) -> usize {
        (self.present.places.capacity() + self.former.places.capacity()) * size_of::<(u64, u32)>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_spans_are_known_and_memory_is_bounded() {
        let mut parents = Parents::new(1 << 20);
        let key = |number: u64| (number + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        for number in 0..200_000 {
            parents.insert(key(number), number as u32);
            assert_eq!(parents.get(key(number)), Some(number as u32));
        }
        let known = (0..200_000).filter(|number| parents.get(key(*number)) == Some(*number as u32)).count();
        assert!(known >= 24_000 && parents.memory_bytes() <= 1 << 20, "{known}");
        assert!(parents.get(key(199_999 - 24_000)).is_some() && parents.get(key(7)).is_none() && parents.full > 0);
        parents.turn();
        assert!(parents.get(key(199_999)).is_some());
        parents.turn();
        assert_eq!(parents.get(key(199_999)), None);
    }
}
