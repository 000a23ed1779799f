//! The string table of a connection: a cache of definitions, and the texts that records still refer to.
//!
//! A text is kept while the cache has its id or a record refers to it. An id may therefore be redefined or evicted without
//! changing the texts of records (readings 7 and 9, rule 10). Waiting records count their references
//! ([`Strings::retain`]). The open record does not, because it is usually emitted soon: instead, nothing is freed before
//! [`Strings::sweep`], which the owner calls when all references are counted.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hash::{BuildHasher, Hasher};

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use tributary_codec::text::{cut, repair};
use tributary_event::{BatchBuilder, Interned, Text, names_whole_number, whole_number};

use tributary_protocol::datadog_tags::{SpanTag, is_reserved};

use super::wire::StringId;
use super::{Options, StringCache};

/// What a cached text costs in addition to its bytes.
const TEXT_OVERHEAD_BYTES: u64 = 128;
/// The number of ids that are found without hashing, a power of two. A connection with less than half as many has no such table.
const RECENT: usize = 128;
/// The capacity that the list of dropped texts keeps after a sweep.
const MAX_IDLE_DROPPED: usize = 1024;

/// The index of a text in the table. A slot that is kept across a sweep must be retained, and released later.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct StringSlot(u32);

/// The text of an id in the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct CachedText {
    pub(super) slot: StringSlot,
    /// Length of the text.
    len: u32,
}

impl CachedText {
    /// Bytes of the text that are written: at most `limit`.
    #[inline]
    pub(super) fn bytes(self, limit: usize) -> u64 {
        (self.len as usize).min(limit) as u64
    }
}

/// How a text was changed when it was stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct TextMarks {
    /// It was not UTF-8.
    pub(super) repaired: bool,
    /// It was longer than the limit.
    pub(super) truncated: bool,
}

impl std::ops::BitOrAssign for TextMarks {
    fn bitor_assign(&mut self, other: TextMarks) {
        self.repaired |= other.repaired;
        self.truncated |= other.truncated;
    }
}

#[derive(Debug, Default)]
struct StoredText {
    text: Box<str>,
    marks: TextMarks,
    /// As a key it would collide with names that the collector writes.
    reserved: bool,
    /// As a key it names a whole number.
    is_whole: bool,
    /// What it is as the key of a meta of a span.
    meaning: Option<SpanTag>,
    /// Hash of the text as a key, cut to `max_text.key`.
    fingerprint: u16,
    references: u32,
    cached: bool,
    /// It is in the list for the next sweep.
    dropped: bool,
    memo: Interned,
    /// The number of its last use, while it is cached.
    last_use: u64,
}

impl StoredText {
    #[inline]
    fn show(&mut self, limit: usize, batch: &mut BatchBuilder) -> (Text, TextMarks) {
        if self.text.len() <= limit {
            (batch.intern(&mut self.memo, &self.text), self.marks)
        } else {
            (show_cut(&self.text, limit, batch), TextMarks { truncated: true, ..self.marks })
        }
    }

    fn cost(&self) -> u64 {
        self.text.len() as u64 + TEXT_OVERHEAD_BYTES
    }
}

/// The result of a definition.
#[derive(Debug)]
pub(super) struct Defined {
    pub(super) slot: StringSlot,
    pub(super) redefined: bool,
}

/// A text as the key of a tag or metric.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShownKey {
    /// The key in the batch.
    pub(super) text: Text,
    pub(super) marks: TextMarks,
    /// Its hash: see [`Strings::fingerprint`].
    pub(super) fingerprint: u16,
    /// See [`Strings::is_whole`].
    pub(super) is_whole: bool,
    pub(super) meaning: Option<SpanTag>,
}

/// The string table of one connection; never shared with another (reading 29).
///
/// Every text has the number of its last use. The order of use is maintained lazily, as in [`tributary_codec::lru`]: a heap has one
/// use of each id, the last or an earlier one, and an item is updated when its id would be evicted.
#[derive(Debug)]
pub(super) struct Strings {
    cache: HashMap<StringId, StringSlot, RandomState>,
    /// One use of every id in the cache.
    order: BinaryHeap<Reverse<(u64, StringId)>>,
    uses: u64,
    /// Cached ids that were used recently, each at its [place](recent_place). Empty: there are too few.
    recent: Vec<(StringId, StringSlot)>,
    texts: Vec<StoredText>,
    free: Vec<u32>,
    limits: StringCache,
    key_limit: usize,
    max_entries: usize,
    cached_bytes: u64,
    orphan_bytes: u64,
    /// Texts that were neither cached nor referred to when they were added here.
    dropped: Vec<StringSlot>,
    dropped_bytes: u64,
    hasher: RandomState,
}

/// The one place of an id in [`Strings::recent`].
#[inline]
fn recent_place(id: StringId) -> usize {
    let spread = u64::from_ne_bytes(id.0).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (spread >> (u64::BITS - RECENT.trailing_zeros())) as usize
}

/// The content of a place without an id: an id that has another place.
fn no_id(place: usize) -> (StringId, StringSlot) {
    let id = if place == recent_place(StringId::ABSENT) { 1_u64 } else { 0 };
    (StringId(id.to_ne_bytes()), StringSlot::default())
}

impl Strings {
    pub(super) fn new(options: &Options) -> Self {
        Strings {
            cache: HashMap::default(),
            order: BinaryHeap::new(),
            uses: 0,
            recent: Vec::new(),
            texts: Vec::new(),
            free: Vec::new(),
            limits: options.string_cache,
            key_limit: options.max_text.key,
            max_entries: options.string_cache.min_entries,
            cached_bytes: 0,
            orphan_bytes: 0,
            dropped: Vec::new(),
            dropped_bytes: 0,
            hasher: RandomState::default(),
        }
    }

    /// The peer has declared the size of its own cache. Ours keeps at least `min_entries`, because the eviction orders of
    /// both sides can differ (reading 9), and at most `max_entries`, because any number may be declared.
    pub(super) fn declare(&mut self, entries: u64) {
        let entries = usize::try_from(entries).unwrap_or(usize::MAX);
        self.max_entries = entries.clamp(self.limits.min_entries, self.limits.max_entries.max(self.limits.min_entries));
    }

    /// The current definition of `id`. A reference counts as a use (reading 9).
    #[inline]
    pub(super) fn refer(&mut self, id: StringId) -> Option<CachedText> {
        let place = recent_place(id);
        let slot = match self.recent.get(place) {
            Some((recent, slot)) if *recent == id => *slot,
            _ => self.look_up(id, place)?,
        };
        self.uses += 1;
        let stored = &mut self.texts[slot.0 as usize];
        stored.last_use = self.uses;
        // The limits keep texts far below 4 GiB.
        Some(CachedText { slot, len: stored.text.len() as u32 })
    }

    #[inline(never)]
    fn look_up(&mut self, id: StringId, place: usize) -> Option<StringSlot> {
        let slot = *self.cache.get(&id)?;
        if let Some(recent) = self.recent.get_mut(place) {
            *recent = (id, slot);
        }
        Some(slot)
    }

    /// The id has another text from now on, or none.
    fn forget_recent(&mut self, id: StringId) {
        let place = recent_place(id);
        if let Some(recent) = self.recent.get_mut(place).filter(|(recent, _)| *recent == id) {
            *recent = no_id(place);
        }
    }

    /// Defines `id`.
    pub(super) fn define(&mut self, id: StringId, bytes: &[u8], truncated: bool) -> Defined {
        let (text, repaired) = repair(bytes);
        let marks = TextMarks { repaired, truncated };
        let mut is_same_text = false;
        if let Some(CachedText { slot, .. }) = self.refer(id) {
            let known = &self.texts[slot.0 as usize];
            is_same_text = *known.text == *text;
            if is_same_text && known.marks == marks {
                return Defined { slot, redefined: false };
            }
        }
        let key = cut(&text, self.key_limit);
        let reserved = is_reserved(key);
        let meaning = SpanTag::of(key);
        let is_whole = names_whole_number(key);
        let fingerprint = self.hash(key);
        let text = text.into_owned().into_boxed_str();
        let memo = Interned::default();
        self.uses += 1;
        let slot = self.store(StoredText {
            text,
            marks,
            reserved,
            is_whole,
            meaning,
            fingerprint,
            references: 0,
            cached: true,
            dropped: false,
            memo,
            last_use: self.uses,
        });
        self.cached_bytes += self.texts[slot.0 as usize].cost();
        let replaced = self.cache.insert(id, slot);
        match replaced {
            Some(replaced) => {
                self.forget_recent(id);
                self.uncache(replaced);
            }
            None => self.order.push(Reverse((self.uses, id))),
        }
        if self.recent.is_empty() && self.cache.len() >= RECENT / 2 {
            self.recent = (0..RECENT).map(no_id).collect();
        }
        while self.cache.len() > self.max_entries || self.cached_bytes > self.limits.bytes {
            if !self.evict_oldest() {
                break;
            }
        }
        Defined { slot, redefined: replaced.is_some() && !is_same_text }
    }

    /// Forgets the least recently used id (rule 27). `false`: the cache is empty.
    pub(super) fn evict_oldest(&mut self) -> bool {
        loop {
            let Some(Reverse((known_use, id))) = self.order.pop() else { return false };
            let Some(slot) = self.cache.get(&id).copied() else { continue };
            let last_use = self.texts[slot.0 as usize].last_use;
            if last_use != known_use {
                self.order.push(Reverse((last_use, id)));
                continue;
            }
            self.cache.remove(&id);
            self.forget_recent(id);
            self.uncache(slot);
            return true;
        }
    }

    pub(super) fn retain(&mut self, slot: StringSlot) {
        self.texts[slot.0 as usize].references += 1;
    }

    pub(super) fn release(&mut self, slot: StringSlot) {
        self.texts[slot.0 as usize].references -= 1;
        self.drop_if_unused(slot);
    }

    /// Frees unused texts. All references must be counted.
    pub(super) fn sweep(&mut self) {
        self.dropped_bytes = 0;
        for at in 0..self.dropped.len() {
            let slot = self.dropped[at];
            let stored = &mut self.texts[slot.0 as usize];
            stored.dropped = false;
            if stored.references == 0 {
                self.orphan_bytes -= stored.cost();
                *stored = StoredText::default();
                self.free.push(slot.0);
            }
        }
        self.dropped.clear();
        self.dropped.shrink_to(MAX_IDLE_DROPPED);
    }

    /// Memory that a sweep may free.
    pub(super) fn dropped_bytes(&self) -> u64 {
        self.dropped_bytes
    }

    pub(super) fn text(&self, slot: StringSlot) -> &str {
        &self.texts[slot.0 as usize].text
    }

    pub(super) fn marks(&self, slot: StringSlot) -> TextMarks {
        self.texts[slot.0 as usize].marks
    }

    /// Whether two texts are the same key after both are cut to `max_text.key`.
    pub(super) fn same_key(&self, a: StringSlot, b: StringSlot) -> bool {
        a == b || (self.fingerprint(a) == self.fingerprint(b) && self.key(a) == self.key(b))
    }

    /// Whether the text as a key names a whole number: see [`names_whole_number`].
    #[inline]
    pub(super) fn is_whole(&self, slot: StringSlot) -> bool {
        self.texts[slot.0 as usize].is_whole
    }

    /// What the text is as the key of a meta of a span.
    #[inline]
    pub(super) fn meaning(&self, slot: StringSlot) -> Option<SpanTag> {
        self.texts[slot.0 as usize].meaning
    }

    /// The whole number that the text is, if it is one.
    pub(super) fn whole_number(&self, slot: StringSlot) -> Option<i64> {
        whole_number(self.text(slot))
    }

    /// A hash of the text as a key.
    pub(super) fn fingerprint(&self, slot: StringSlot) -> u16 {
        self.texts[slot.0 as usize].fingerprint
    }

    /// The text as a key.
    pub(super) fn key(&self, slot: StringSlot) -> &str {
        cut(self.text(slot), self.key_limit)
    }

    /// Writes at most `limit` bytes of the text into the batch. Returns it with its marks.
    #[inline]
    pub(super) fn show(&mut self, slot: StringSlot, limit: usize, batch: &mut BatchBuilder) -> (Text, TextMarks) {
        self.texts[slot.0 as usize].show(limit, batch)
    }

    /// The same for the text as a key. `None`: the key is reserved.
    #[inline]
    pub(super) fn show_key(&mut self, slot: StringSlot, batch: &mut BatchBuilder) -> Option<ShownKey> {
        let stored = &mut self.texts[slot.0 as usize];
        if stored.reserved {
            return None;
        }
        let (text, marks) = stored.show(self.key_limit, batch);
        Some(ShownKey {
            text,
            marks,
            fingerprint: stored.fingerprint,
            is_whole: stored.is_whole,
            meaning: stored.meaning,
        })
    }

    /// Memory of the cache and of its texts.
    pub(super) fn cached_bytes(&self) -> u64 {
        self.cached_bytes + (self.recent.len() * size_of::<(StringId, StringSlot)>()) as u64
    }

    /// Memory of texts that only counted references keep.
    pub(super) fn held_bytes(&self) -> u64 {
        self.orphan_bytes.saturating_sub(self.dropped_bytes)
    }

    fn hash(&self, key: &str) -> u16 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(key.as_bytes());
        hasher.finish() as u16
    }

    fn uncache(&mut self, slot: StringSlot) {
        let stored = &mut self.texts[slot.0 as usize];
        stored.cached = false;
        let cost = stored.cost();
        self.cached_bytes -= cost;
        self.orphan_bytes += cost;
        self.drop_if_unused(slot);
    }

    fn drop_if_unused(&mut self, slot: StringSlot) {
        let stored = &mut self.texts[slot.0 as usize];
        if stored.references == 0 && !stored.cached && !stored.dropped {
            stored.dropped = true;
            self.dropped_bytes += stored.cost();
            self.dropped.push(slot);
        }
    }

    fn store(&mut self, stored: StoredText) -> StringSlot {
        match self.free.pop() {
            Some(place) => {
                self.texts[place as usize] = stored;
                StringSlot(place)
            }
            None => {
                self.texts.push(stored);
                StringSlot((self.texts.len() - 1) as u32)
            }
        }
    }
}

#[cold]
fn show_cut(text: &str, limit: usize, batch: &mut BatchBuilder) -> Text {
    batch.push_text(cut(text, limit))
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
        strings.retain(old);
        let new = strings.define(id(1), b"new", false);
        strings.retain(new.slot);
        assert!(new.redefined);
        assert!(strings.evict_oldest());
        strings.sweep();
        assert_eq!((strings.text(old), strings.text(new.slot)), ("old", "new"));
        assert!(strings.refer(id(1)).is_none());
        strings.release(old);
        strings.release(new.slot);
        assert_eq!((strings.held_bytes(), strings.dropped_bytes()), (0, strings.orphan_bytes));
        strings.sweep();
        assert_eq!((strings.cached_bytes(), strings.orphan_bytes, strings.dropped_bytes()), (0, 0, 0));
        assert_eq!(strings.free.len(), strings.texts.len());
    }

    #[test]
    fn a_text_that_is_dropped_and_retained_again_survives_the_sweep_and_is_freed_once() {
        let mut strings = strings(0);
        let slot = strings.define(id(1), b"text", false).slot;
        strings.retain(slot);
        strings.release(slot);
        strings.retain(slot);
        strings.sweep();
        assert_eq!(strings.text(slot), "text");
        strings.release(slot);
        strings.sweep();
        strings.sweep();
        assert_eq!((strings.free.len(), strings.orphan_bytes), (1, 0));
    }

    #[test]
    fn a_cache_without_entries_still_returns_the_new_definition() {
        let mut strings = strings(0);
        let defined = strings.define(id(1), b"text", false);
        assert_eq!(strings.text(defined.slot), "text");
        assert!(strings.refer(id(1)).is_none());
    }

    #[test]
    fn the_byte_limit_evicts_the_least_recently_used_text() {
        let mut options = Options::default();
        options.string_cache.bytes = 3 * (TEXT_OVERHEAD_BYTES + 10);
        let mut strings = Strings::new(&options);
        for number in 1..=3 {
            strings.define(id(number), b"0123456789", false);
        }
        let touched = strings.refer(id(1)).unwrap();
        strings.define(id(4), b"0123456789", false);
        assert!(strings.refer(id(2)).is_none());
        assert_eq!(strings.refer(id(1)), Some(touched));
        assert_eq!(strings.cached_bytes(), options.string_cache.bytes);
    }

    #[test]
    fn an_id_has_its_latest_text_in_every_place_and_none_after_its_eviction() {
        let mut strings = strings(200);
        let id = |number: u64| StringId(number.to_ne_bytes());
        assert!(strings.refer(id(0)).is_none());
        // More than there are places.
        for number in 1..=200 {
            strings.define(id(number), format!("a{number}").as_bytes(), false);
        }
        assert!(strings.refer(id(0)).is_none());
        for number in (1..=200).step_by(3) {
            strings.define(id(number), format!("b{number}").as_bytes(), false);
        }
        for _ in 0..2 {
            for number in 1..=200 {
                let known = strings.refer(id(number)).unwrap();
                let letter = if number % 3 == 1 { 'b' } else { 'a' };
                assert_eq!(strings.text(known.slot), format!("{letter}{number}"));
            }
        }
        strings.refer(id(1));
        for number in (2..=200).chain([1]) {
            assert!(strings.refer(StringId::ABSENT).is_none());
            assert!(strings.evict_oldest());
            assert!(strings.refer(id(number)).is_none(), "{number}");
        }
        assert!(!strings.evict_oldest());
    }

    #[test]
    fn an_equal_definition_is_not_a_redefinition() {
        let mut strings = strings(8);
        let first = strings.define(id(1), b"same", false);
        let again = strings.define(id(1), b"same", false);
        assert_eq!((again.redefined, again.slot), (false, first.slot));
    }
}
