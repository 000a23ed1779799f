//! The string table of a connection: a cache of definitions, and the texts that records still refer to.
//!
//! A text is kept while the cache has its id or a record refers to it. An id may therefore be redefined or evicted without
//! changing the texts of records (readings 7 and 9, rule 10). Waiting records count their references
//! ([`Strings::retain`]). The open record does not, because it is usually emitted soon: instead, nothing is freed before
//! [`Strings::sweep`], which the owner calls when all references are counted.

use std::hash::{BuildHasher, Hasher};

use crate::codec::lru::Lru;
use crate::codec::text::{cut, repair};
use crate::event::{BatchBuilder, Interned, Text};

use super::wire::StringId;
use super::{Options, StringCache};

/// What a cached text costs in addition to its bytes.
const TEXT_OVERHEAD_BYTES: u64 = 128;
/// The capacity that the list of dropped texts keeps after a sweep.
const MAX_IDLE_DROPPED: usize = 1024;

/// Whether a metric of this name is a whole number: an integer by OpenTelemetry's semantic conventions, or the name of an
/// older convention or of Datadog's tracers for the same. All are doubles on the wire (field notes, section 6).
fn names_whole_number(key: &str) -> bool {
    matches!(
        key,
        "client.port"
            | "code.column.number"
            | "code.line.number"
            | "db.response.returned_rows"
            | "http.request.body.size"
            | "http.request.resend_count"
            | "http.request.size"
            | "http.request_content_length"
            | "http.response.body.size"
            | "http.response.size"
            | "http.response.status_code"
            | "http.response_content_length"
            | "http.status_code"
            | "messaging.batch.message_count"
            | "messaging.message.body.size"
            | "network.destination.port"
            | "network.local.port"
            | "network.peer.port"
            | "process.parent_pid"
            | "process.pid"
            | "process_id"
            | "rpc.grpc.status_code"
            | "server.port"
            | "thread.id"
    )
}

/// The index of a text in the table. A slot that is kept across a sweep must be retained, and released later.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Slot(u32);

/// The cache entry of an id. It has the length of the text, so that a lookup does not access the text itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct CachedText {
    pub(super) slot: Slot,
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
    /// As the key of a metric it names a whole number.
    is_whole: bool,
    /// Hash of the text as a key, cut to `max_text.key`.
    fingerprint: u16,
    references: u32,
    cached: bool,
    /// It is in the list for the next sweep.
    dropped: bool,
    memo: Interned,
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
    pub(super) slot: Slot,
    pub(super) redefined: bool,
}

/// The string table of one connection; never shared with another (reading 29).
#[derive(Debug)]
pub(super) struct Strings {
    cache: Lru<StringId, CachedText>,
    texts: Vec<StoredText>,
    free: Vec<u32>,
    limits: StringCache,
    key_limit: usize,
    max_entries: usize,
    cached_bytes: u64,
    orphan_bytes: u64,
    /// Texts that were neither cached nor referred to when they were added here.
    dropped: Vec<Slot>,
    dropped_bytes: u64,
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
            dropped: Vec::new(),
            dropped_bytes: 0,
            hasher: foldhash::fast::RandomState::default(),
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
        self.cache.get(&id).copied()
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
        let reserved = key == "service.name" || key.starts_with("datadog.") || key.starts_with("tributary.");
        let is_whole = names_whole_number(key);
        let fingerprint = self.hash(key);
        let text = text.into_owned().into_boxed_str();
        let memo = Interned::default();
        let slot = self.store(StoredText {
            text,
            marks,
            reserved,
            is_whole,
            fingerprint,
            references: 0,
            cached: true,
            dropped: false,
            memo,
        });
        self.cached_bytes += self.texts[slot.0 as usize].cost();
        // The limits keep texts far below 4 GiB.
        let len = self.text(slot).len() as u32;
        let replaced = self.cache.insert(id, CachedText { slot, len });
        if let Some(replaced) = replaced {
            self.uncache(replaced.slot);
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
        match self.cache.pop_oldest() {
            Some((_, known)) => {
                self.uncache(known.slot);
                true
            }
            None => false,
        }
    }

    pub(super) fn retain(&mut self, slot: Slot) {
        self.texts[slot.0 as usize].references += 1;
    }

    pub(super) fn release(&mut self, slot: Slot) {
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

    pub(super) fn text(&self, slot: Slot) -> &str {
        &self.texts[slot.0 as usize].text
    }

    pub(super) fn marks(&self, slot: Slot) -> TextMarks {
        self.texts[slot.0 as usize].marks
    }

    /// Whether two texts are the same key after both are cut to `max_text.key`.
    pub(super) fn same_key(&self, a: Slot, b: Slot) -> bool {
        a == b || (self.fingerprint(a) == self.fingerprint(b) && self.key(a) == self.key(b))
    }

    /// Whether the text as a key names a whole number: see [`names_whole_number`].
    #[inline]
    pub(super) fn is_whole(&self, slot: Slot) -> bool {
        self.texts[slot.0 as usize].is_whole
    }

    /// A hash of the text as a key.
    pub(super) fn fingerprint(&self, slot: Slot) -> u16 {
        self.texts[slot.0 as usize].fingerprint
    }

    /// The text as a key.
    pub(super) fn key(&self, slot: Slot) -> &str {
        cut(self.text(slot), self.key_limit)
    }

    /// Writes at most `limit` bytes of the text into the batch. Returns it with its marks.
    #[inline]
    pub(super) fn show(&mut self, slot: Slot, limit: usize, batch: &mut BatchBuilder) -> (Text, TextMarks) {
        self.texts[slot.0 as usize].show(limit, batch)
    }

    /// The same for the text as a key. `None`: the key is reserved.
    #[inline]
    pub(super) fn show_key(&mut self, slot: Slot, batch: &mut BatchBuilder) -> Option<(Text, TextMarks)> {
        let stored = &mut self.texts[slot.0 as usize];
        if stored.reserved { None } else { Some(stored.show(self.key_limit, batch)) }
    }

    /// Memory of the texts in the cache.
    pub(super) fn cached_bytes(&self) -> u64 {
        self.cached_bytes
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

    fn uncache(&mut self, slot: Slot) {
        let stored = &mut self.texts[slot.0 as usize];
        stored.cached = false;
        let cost = stored.cost();
        self.cached_bytes -= cost;
        self.orphan_bytes += cost;
        self.drop_if_unused(slot);
    }

    fn drop_if_unused(&mut self, slot: Slot) {
        let stored = &mut self.texts[slot.0 as usize];
        if stored.references == 0 && !stored.cached && !stored.dropped {
            stored.dropped = true;
            self.dropped_bytes += stored.cost();
            self.dropped.push(slot);
        }
    }

    fn store(&mut self, stored: StoredText) -> Slot {
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
    fn an_equal_definition_is_not_a_redefinition() {
        let mut strings = strings(8);
        let first = strings.define(id(1), b"same", false);
        let again = strings.define(id(1), b"same", false);
        assert_eq!((again.redefined, again.slot), (false, first.slot));
    }
}
