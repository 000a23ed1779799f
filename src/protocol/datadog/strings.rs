//! The texts that a peer has defined, and who still needs them.
//!
//! A text is kept while the cache knows its id or a record refers to it, whichever is longer: records count their
//! references, so an id may be redefined or evicted under a waiting record without changing what it says
//! (readings 7 and 9, rule 10).

use std::hash::{BuildHasher, Hasher};

use crate::codec::lru::Lru;
use crate::codec::text::{cut, repair};
use crate::event::{BatchBuilder, Interned, Text};

use super::wire::StringId;
use super::{Options, StringCache};

/// What a cached text costs beside its bytes.
const TEXT_OVERHEAD_BYTES: u64 = 128;

/// A text in the table. Whoever keeps one beyond a call has retained it and releases it again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Slot(u32);

/// What happened to a text on its way into the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Marks {
    /// It was not UTF-8.
    pub(super) repaired: bool,
    /// It was longer than what is kept.
    pub(super) truncated: bool,
}

#[derive(Debug, Default)]
struct Stored {
    text: Box<str>,
    marks: Marks,
    /// As a key it would collide with names that the collector writes itself.
    reserved: bool,
    /// Of the text as a key, that is cut to `max_text.key`.
    fingerprint: u64,
    references: u32,
    cached: bool,
    memo: Interned,
}

/// The answer to a definition. The slot is retained for the caller.
#[derive(Debug)]
pub(super) struct Defined {
    pub(super) slot: Slot,
    pub(super) redefined: bool,
}

/// The string table of one connection; never shared with another (reading 29).
#[derive(Debug)]
pub(super) struct Strings {
    cache: Lru<StringId, Slot>,
    texts: Vec<Stored>,
    free: Vec<u32>,
    limits: StringCache,
    key_limit: usize,
    max_entries: usize,
    cached_bytes: u64,
    orphan_bytes: u64,
    hasher: foldhash::fast::RandomState,
}

impl Strings {
    pub(super) fn new(options: &Options) -> Self {
        Strings {
            cache: Lru::default(),
            texts: Vec::new(),
            free: Vec::new(),
            limits: options.string_cache,
            key_limit: options.max_text.key,
            max_entries: options.string_cache.min_entries,
            cached_bytes: 0,
            orphan_bytes: 0,
            hasher: foldhash::fast::RandomState::default(),
        }
    }

    /// The peer has declared the size of its own cache. Ours keeps at least `min_entries`, because the two orders of
    /// use can never be exactly equal (reading 9), and at most `max_entries`, because any number may be declared.
    pub(super) fn declare(&mut self, entries: u64) {
        let entries = usize::try_from(entries).unwrap_or(usize::MAX);
        self.max_entries = entries.clamp(self.limits.min_entries, self.limits.max_entries.max(self.limits.min_entries));
    }

    /// The text that `id` stands for now, retained. A reference counts as a use (reading 9).
    pub(super) fn refer(&mut self, id: StringId) -> Option<Slot> {
        let slot = *self.cache.get(&id)?;
        self.retain(slot);
        Some(slot)
    }

    /// The same, without counting as a use: for references that are not on the wire.
    pub(super) fn peek(&mut self, id: StringId) -> Option<Slot> {
        let slot = *self.cache.peek(&id)?;
        self.retain(slot);
        Some(slot)
    }

    /// `id` stands for this text from now on.
    pub(super) fn define(&mut self, id: StringId, bytes: &[u8], truncated: bool) -> Defined {
        let (text, repaired) = repair(bytes);
        if let Some(slot) = self.refer(id) {
            if *self.texts[slot.0 as usize].text == *text {
                return Defined { slot, redefined: false };
            }
            self.release(slot);
        }
        let key = cut(&text, self.key_limit);
        let reserved = key == "service.name" || key.starts_with("datadog.") || key.starts_with("tributary.");
        let fingerprint = self.fingerprint(key);
        let marks = Marks { repaired, truncated };
        let text = text.into_owned().into_boxed_str();
        let memo = Interned::default();
        let slot = self.store(Stored { text, marks, reserved, fingerprint, references: 1, cached: true, memo });
        self.cached_bytes += self.cost(slot);
        let replaced = self.cache.insert(id, slot);
        if let Some(replaced) = replaced {
            self.uncache(replaced);
        }
        while self.cache.len() > self.max_entries || self.cached_bytes > self.limits.bytes {
            if !self.evict_oldest() {
                break;
            }
        }
        Defined { slot, redefined: replaced.is_some() }
    }

    /// Forgets the id used longest ago (rule 27). `false`: the cache is empty.
    pub(super) fn evict_oldest(&mut self) -> bool {
        match self.cache.pop_oldest() {
            Some((_, slot)) => {
                self.uncache(slot);
                true
            }
            None => false,
        }
    }

    pub(super) fn retain(&mut self, slot: Slot) {
        self.texts[slot.0 as usize].references += 1;
    }

    pub(super) fn release(&mut self, slot: Slot) {
        let stored = &mut self.texts[slot.0 as usize];
        stored.references -= 1;
        if stored.references == 0 && !stored.cached {
            self.orphan_bytes -= self.cost(slot);
            self.forget(slot);
        }
    }

    pub(super) fn text(&self, slot: Slot) -> &str {
        &self.texts[slot.0 as usize].text
    }

    pub(super) fn marks(&self, slot: Slot) -> Marks {
        self.texts[slot.0 as usize].marks
    }

    /// Whether the text, as a key, belongs to the collector.
    pub(super) fn is_reserved(&self, slot: Slot) -> bool {
        self.texts[slot.0 as usize].reserved
    }

    /// Whether two texts are the same key once both are cut to `max_text.key`.
    pub(super) fn same_key(&self, a: Slot, b: Slot) -> bool {
        a == b
            || (self.texts[a.0 as usize].fingerprint == self.texts[b.0 as usize].fingerprint
                && self.key(a) == self.key(b))
    }

    /// The text as a key.
    pub(super) fn key(&self, slot: Slot) -> &str {
        cut(self.text(slot), self.key_limit)
    }

    /// The text in a batch, at most `limit` bytes of it; `true` when it was cut for that.
    pub(super) fn intern(&mut self, slot: Slot, limit: usize, batch: &mut BatchBuilder) -> (Text, bool) {
        let stored = &mut self.texts[slot.0 as usize];
        if stored.text.len() <= limit {
            (batch.intern(&mut stored.memo, &stored.text), false)
        } else {
            (batch.push_text(cut(&stored.text, limit)), true)
        }
    }

    /// Memory of what the cache knows.
    pub(super) fn cached_bytes(&self) -> u64 {
        self.cached_bytes
    }

    /// Memory of what only records still refer to.
    pub(super) fn orphan_bytes(&self) -> u64 {
        self.orphan_bytes
    }

    fn fingerprint(&self, key: &str) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(key.as_bytes());
        hasher.finish()
    }

    fn cost(&self, slot: Slot) -> u64 {
        self.text(slot).len() as u64 + TEXT_OVERHEAD_BYTES
    }

    fn uncache(&mut self, slot: Slot) {
        let cost = self.cost(slot);
        self.cached_bytes -= cost;
        let stored = &mut self.texts[slot.0 as usize];
        stored.cached = false;
        if stored.references == 0 {
            self.forget(slot);
        } else {
            self.orphan_bytes += cost;
        }
    }

    fn store(&mut self, stored: Stored) -> Slot {
        match self.free.pop() {
            Some(place) => {
                self.texts[place as usize] = stored;
                Slot(place)
            }
            None => {
                self.texts.push(stored);
                Slot((self.texts.len() - 1) as u32)
            }
        }
    }

    fn forget(&mut self, slot: Slot) {
        self.texts[slot.0 as usize] = Stored::default();
        self.free.push(slot.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u8) -> StringId {
        StringId([0, 0, 0, 0, 0, 0, 0, number])
    }

    fn strings(entries: u64) -> Strings {
        let mut options = Options::default();
        options.string_cache.min_entries = 0;
        let mut strings = Strings::new(&options);
        strings.declare(entries);
        strings
    }

    #[test]
    fn a_reference_keeps_its_text_through_redefinition_and_eviction() {
        let mut strings = strings(2);
        let old = strings.define(id(1), b"old", false).slot;
        let new = strings.define(id(1), b"new", false);
        assert!(new.redefined);
        assert!(strings.evict_oldest());
        assert_eq!((strings.text(old), strings.text(new.slot)), ("old", "new"));
        assert!(strings.refer(id(1)).is_none());
        strings.release(old);
        strings.release(new.slot);
        assert_eq!((strings.cached_bytes(), strings.orphan_bytes()), (0, 0));
        assert_eq!(strings.free.len(), strings.texts.len());
    }

    #[test]
    fn a_cache_of_nothing_still_serves_the_definition_itself() {
        let mut strings = strings(0);
        let defined = strings.define(id(1), b"text", false);
        assert_eq!(strings.text(defined.slot), "text");
        assert!(strings.refer(id(1)).is_none());
    }

    #[test]
    fn the_byte_limit_evicts_what_was_used_longest_ago() {
        let mut options = Options::default();
        options.string_cache.bytes = 3 * (TEXT_OVERHEAD_BYTES + 10);
        let mut strings = Strings::new(&options);
        for number in 1..=3 {
            let slot = strings.define(id(number), b"0123456789", false).slot;
            strings.release(slot);
        }
        let touched = strings.refer(id(1)).unwrap();
        let slot = strings.define(id(4), b"0123456789", false).slot;
        strings.release(slot);
        assert!(strings.refer(id(2)).is_none());
        assert_eq!(strings.refer(id(1)), Some(touched));
        assert_eq!(strings.cached_bytes(), options.string_cache.bytes);
    }

    #[test]
    fn equal_definitions_are_no_redefinition() {
        let mut strings = strings(8);
        let first = strings.define(id(1), b"same", false);
        let again = strings.define(id(1), b"same", false);
        assert_eq!((again.redefined, again.slot), (false, first.slot));
    }
}
