//! A queue of places, some of them empty, whose memory follows its length: an agent's numbers can be a million ahead of the one
//! that is missing, and a queue that doubles its memory would take twice as much as they need.

use std::collections::VecDeque;

/// The places of a chunk.
const CHUNK: usize = 64;

/// Places by index. The first one can be removed, and any be filled.
#[derive(Debug)]
pub(super) struct Slots<T> {
    chunks: VecDeque<Box<[Option<T>]>>,
    /// A chunk of empty places that is not used now: chunks come and go all the time.
    spare: Option<Box<[Option<T>]>>,
    /// The index of the first place in the first chunk.
    head: usize,
    len: usize,
}

impl<T> Slots<T> {
    pub(super) fn new() -> Self {
        Slots { chunks: VecDeque::new(), spare: None, head: 0, len: 0 }
    }

    /// The content of the first place. `None`: it is empty, or there is none.
    pub(super) fn front(&self) -> Option<&T> {
        self.chunks.front()?[self.head].as_ref()
    }

    /// Removes the first place. `None`: there is none.
    pub(super) fn pop_front(&mut self) -> Option<Option<T>> {
        if self.len == 0 {
            return None;
        }
        let content = self.chunks.front_mut()?[self.head].take();
        self.head += 1;
        self.len -= 1;
        if self.head == CHUNK {
            self.head = 0;
            self.spare = self.chunks.pop_front();
        }
        Some(content)
    }

    /// Fills the place with this index, and adds empty ones before it if it is behind the last one.
    pub(super) fn set(&mut self, index: usize, content: T) {
        self.len = self.len.max(index + 1);
        let place = self.head + index;
        while self.chunks.len() <= place / CHUNK {
            let spare = self.spare.take();
            self.chunks.push_back(spare.unwrap_or_else(|| (0..CHUNK).map(|_| None).collect()));
        }
        self.chunks[place / CHUNK][place % CHUNK] = Some(content);
    }

    /// Removes all places, which are empty.
    pub(super) fn clear(&mut self) {
        while self.pop_front().is_some() {}
    }

    /// Bytes of memory.
    pub(super) fn memory_bytes(&self) -> usize {
        let chunks = self.chunks.len() + usize::from(self.spare.is_some());
        chunks * CHUNK * size_of::<Option<T>>() + self.chunks.capacity() * size_of::<Box<[Option<T>]>>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_filled_in_any_order_and_removed_from_the_front() {
        let mut slots = Slots::new();
        assert_eq!(slots.front(), None);
        assert_eq!(slots.pop_front(), None);
        for round in 0..3 {
            for index in (0..200).rev().step_by(2) {
                slots.set(index, round * 1000 + index);
            }
            assert_eq!(slots.front(), None);
            for index in 0..200 {
                assert_eq!(slots.pop_front(), Some((index % 2 == 1).then_some(round * 1000 + index)));
            }
            assert_eq!(slots.pop_front(), None);
        }
    }

    #[test]
    fn memory_follows_the_length() {
        let mut slots = Slots::new();
        let place = size_of::<Option<u64>>();
        (0..100_000).for_each(|index| slots.set(index, index as u64));
        let chunks = (100_000 / CHUNK + 2) * (CHUNK * place + 2 * size_of::<Box<[Option<u64>]>>() * 2);
        assert!(slots.memory_bytes() <= chunks, "{}", slots.memory_bytes());
        (0..99_999).for_each(|_| assert!(slots.pop_front().is_some()));
        assert!(slots.memory_bytes() < 64 * 1024, "{}", slots.memory_bytes());
        slots.clear();
        assert_eq!(slots.front(), None);
    }
}
