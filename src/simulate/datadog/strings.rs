//! Texts as the tracer sends them: an 8-byte id for every use of a text, and the text itself once, or again after it was
//! evicted.

use bytes::BufMut;
use hashbrown::HashMap;

use tributary_codec::mix::mix;

/// The object type of a string.
const STRING: u16 = 0xdd06;

/// A text that is known at compile time, with its id.
#[derive(Clone, Copy, Debug)]
pub(super) struct Word {
    pub(super) text: &'static str,
    pub(super) id: u64,
}

impl Word {
    /// `text` as a word.
    pub(super) const fn new(text: &'static str) -> Self {
        Word { text, id: string_id(text) }
    }
}

/// The id of a text: FNV-1a, its bits spread. Never 0, which stands for "no text" on the wire.
const fn string_id(text: &str) -> u64 {
    let bytes = text.as_bytes();
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut at = 0;
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u64).wrapping_mul(0x0100_0000_01b3);
        at += 1;
    }
    match mix(hash) {
        0 => 1,
        id => id,
    }
}

/// The string cache of the tracer: which texts the collector has, and which definitions are pending.
#[derive(Debug)]
pub(super) struct Strings {
    sent: Recent,
    /// String objects to send.
    queue: Vec<u8>,
    /// Number of objects in `queue`.
    queued: u64,
}

impl Strings {
    /// An empty cache of `capacity` texts.
    pub(super) fn new(capacity: usize) -> Self {
        Strings { sent: Recent::new(capacity), queue: Vec::new(), queued: 0 }
    }

    /// The id to use for a word; queues its definition if the collector may not have it.
    #[inline]
    pub(super) fn word(&mut self, word: Word) -> u64 {
        self.refer(word.id, word.text)
    }

    /// The id to use for a text made at run time; queues its definition if the collector may not have it.
    pub(super) fn text(&mut self, text: &str) -> u64 {
        self.refer(string_id(text), text)
    }

    /// Writes the queued definitions; returns their number.
    pub(super) fn define_queued(&mut self, out: &mut Vec<u8>) -> u64 {
        out.put_slice(&self.queue);
        self.queue.clear();
        std::mem::take(&mut self.queued)
    }

    #[inline]
    fn refer(&mut self, id: u64, text: &str) -> u64 {
        if !self.sent.touch(id) {
            self.queue.put_u16(STRING);
            self.queue.put_u64(id);
            self.queue.put_u32(text.len() as u32);
            self.queue.put_slice(text.as_bytes());
            self.queued += 1;
        }
        id
    }
}

/// The ids used most recently: a map into a ring that runs from the newest to the oldest and back through slot 0,
/// which holds no id.
#[derive(Debug)]
struct Recent {
    capacity: usize,
    slots: Vec<CacheSlot>,
    index: HashMap<u64, u32, foldhash::fast::FixedState>,
}

#[derive(Clone, Copy, Debug)]
struct CacheSlot {
    id: u64,
    newer: u32,
    older: u32,
}

/// The slot before the newest and after the oldest.
const ENDS: u32 = 0;

impl Recent {
    fn new(capacity: usize) -> Self {
        Recent { capacity, slots: vec![CacheSlot { id: 0, newer: ENDS, older: ENDS }], index: HashMap::default() }
    }

    /// Makes `id` the most recently used one; evicts the least recently used one if the cache is full. Returns whether it
    /// was cached before.
    #[inline]
    fn touch(&mut self, id: u64) -> bool {
        if let Some(&slot) = self.index.get(&id) {
            if self.slots[ENDS as usize].older != slot {
                self.unlink(slot);
                self.link_newest(slot);
            }
            return true;
        }
        if self.capacity > 0 {
            self.insert(id);
        }
        false
    }

    fn insert(&mut self, id: u64) {
        let slot = if self.index.len() < self.capacity {
            self.slots.push(CacheSlot { id, newer: ENDS, older: ENDS });
            (self.slots.len() - 1) as u32
        } else {
            let oldest = self.slots[ENDS as usize].newer;
            self.unlink(oldest);
            self.index.remove(&self.slots[oldest as usize].id);
            self.slots[oldest as usize].id = id;
            oldest
        };
        self.index.insert(id, slot);
        self.link_newest(slot);
    }

    fn unlink(&mut self, slot: u32) {
        let CacheSlot { newer, older, .. } = self.slots[slot as usize];
        self.slots[newer as usize].older = older;
        self.slots[older as usize].newer = newer;
    }

    fn link_newest(&mut self, slot: u32) {
        let second = self.slots[ENDS as usize].older;
        self.slots[second as usize].newer = slot;
        self.slots[ENDS as usize].older = slot;
        self.slots[slot as usize].newer = ENDS;
        self.slots[slot as usize].older = second;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_used_longest_ago_is_forgotten_first() {
        let mut recent = Recent::new(3);
        for id in [1, 2, 3] {
            assert!(!recent.touch(id), "{id} is new");
        }
        assert!(recent.touch(1), "1 is still there, and now the newest");
        assert!(!recent.touch(4), "4 takes the place of 2");
        assert!(recent.touch(3));
        assert!(recent.touch(1));
        assert!(!recent.touch(2), "2 comes back, and 4 goes");
        assert!(!recent.touch(4));
        assert_eq!(recent.index.len(), 3);
    }

    #[test]
    fn a_memory_of_no_texts_defines_every_use() {
        let mut strings = Strings::new(0);
        strings.text("cart");
        strings.text("cart");
        assert_eq!(strings.define_queued(&mut Vec::new()), 2);
    }

    #[test]
    fn a_text_is_defined_once_with_its_length_and_bytes() {
        let mut strings = Strings::new(8);
        let id = strings.word(Word::new("cart"));
        assert_eq!(strings.text("cart"), id, "a text has one id, however it came about");
        let mut out = Vec::new();
        assert_eq!(strings.define_queued(&mut out), 1);
        let mut expected = vec![0xdd, 0x06];
        expected.extend(id.to_be_bytes());
        expected.extend([0, 0, 0, 4]);
        expected.extend(b"cart");
        assert_eq!(out, expected);
        assert_eq!(strings.define_queued(&mut out), 0, "the queue is empty after it was written");
    }
}
