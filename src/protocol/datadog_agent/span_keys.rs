//! The keys of a span's entries: an event has no key twice.

use foldhash::quality::RandomState;
use hashbrown::HashMap;

use tributary_codec::key_filter::KeyFilter;
use tributary_event::{Name, semconv};

use super::span::{Entry, Sort, WireValue};

/// Up to this many entries of a span are compared one by one to find repeated keys.
const MAX_COMPARED: usize = 32;

/// What an entry was sent as, and its key.
type SortedKey<'a> = (Sort, &'a [u8]);

/// The keys of a span's entries.
pub(super) struct SpanKeys<'a> {
    /// Their keys, of whichever sort.
    filter: KeyFilter,
    /// Of spans with many entries.
    places: Option<HashMap<SortedKey<'a>, usize, RandomState>>,
}

impl<'a> SpanKeys<'a> {
    pub(super) fn of(entries: &[Entry], body: &'a [u8]) -> SpanKeys<'a> {
        let filter = KeyFilter::of(entries.iter().map(|entry| entry.key.of(body)));
        let places = (entries.len() > MAX_COMPARED).then(|| {
            let keys = entries.iter().map(|entry| (entry.sort, entry.key.of(body)));
            keys.enumerate().map(|(place, key)| (key, place)).collect()
        });
        SpanKeys { filter, places }
    }

    pub(super) fn is_last(&self, place: usize, entry: &Entry, entries: &[Entry], body: &[u8]) -> bool {
        if self.filter.are_distinct() {
            return true;
        }
        let key = entry.key.of(body);
        match &self.places {
            Some(places) => places.get(&(entry.sort, key)) == Some(&place),
            None => !entries[place + 1..].iter().any(|later| later.sort == entry.sort && later.key.of(body) == key),
        }
    }

    /// What distinguishes an entry from one of another sort with the same key.
    pub(super) fn prefix(&self, entry: &Entry, entries: &[Entry], body: &[u8]) -> Option<Name> {
        let has = |sort| self.has_of(sort, entry.key.of(body), entries, body);
        match entry.sort {
            _ if self.is_shown_as_used(entry, entries, body) => Some(semconv::DATADOG_META_STRUCT),
            _ if self.filter.are_distinct() => None,
            Sort::Meta => None,
            Sort::Metric => has(Sort::Meta).then_some(semconv::DATADOG_METRIC),
            Sort::Struct => (has(Sort::Meta) || has(Sort::Metric)).then_some(semconv::DATADOG_META_STRUCT),
        }
    }

    /// Whether another entry has the key under which bytes are shown.
    fn is_shown_as_used(&self, entry: &Entry, entries: &[Entry], body: &[u8]) -> bool {
        matches!(entry.value, WireValue::Bytes(_))
            && self.has(&[entry.key.of(body), b"_base64"].concat(), entries, body)
    }

    /// Whether any entry has this key.
    pub(super) fn has(&self, key: &[u8], entries: &[Entry], body: &[u8]) -> bool {
        [Sort::Meta, Sort::Metric, Sort::Struct].into_iter().any(|sort| self.has_of(sort, key, entries, body))
    }

    fn has_of(&self, sort: Sort, key: &[u8], entries: &[Entry], body: &[u8]) -> bool {
        if !self.filter.may_have(key) {
            return false;
        }
        match &self.places {
            Some(places) => places.contains_key(&(sort, key)),
            None => entries.iter().any(|entry| entry.sort == sort && entry.key.of(body) == key),
        }
    }
}
