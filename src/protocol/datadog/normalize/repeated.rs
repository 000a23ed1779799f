//! Repeated keys of a record: an event has no key twice, and the last entry counts.

use std::collections::HashSet;

use super::super::record::{EntryKind, RecordEntry, Ref};
use super::super::wire::StringId;
use super::{Writer, is_written};

/// Repeated keys of at most this many entries are found by comparing all pairs.
pub(super) const FEW_ENTRIES: usize = 48;
/// Size of the bit set that detects whether a key may be repeated, in words.
const SEEN_WORDS: usize = 16;

/// Hashes of keys.
#[derive(Default)]
pub(super) struct SeenKeys([u64; SEEN_WORDS]);

impl SeenKeys {
    /// Adds a key by its hash. `false`: it may be there already.
    #[inline]
    pub(super) fn add(&mut self, print: u16) -> bool {
        let print = usize::from(print);
        let (word, bit) = (&mut self.0[print / 64 % SEEN_WORDS], 1 << (print % 64));
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }
}

impl Writer<'_> {
    /// Whether certainly no key is repeated. Fast, because most records have few keys and each of them once. Other keys with the
    /// same bit are not rare, so few entries are compared before they are treated as repeated.
    pub(super) fn have_distinct_keys(&self, entries: &[RecordEntry]) -> bool {
        let mut seen = SeenKeys::default();
        entries.iter().enumerate().all(|(at, entry)| {
            let print = self.key_print(entry.key);
            seen.add(print) || (entries.len() <= FEW_ENTRIES && !self.is_among(entry.key, print, &entries[..at]))
        })
    }

    #[cold]
    fn is_among(&self, key: Ref, print: u16, entries: &[RecordEntry]) -> bool {
        entries.iter().any(|other| self.key_print(other.key) == print && self.same_key(other.key, key))
    }

    /// The last entry of each repeated key. A metric with the key of a tag becomes a [`EntryKind::MovedMetric`].
    #[cold]
    pub(super) fn unrepeated(&self, entries: &[RecordEntry]) -> Vec<RecordEntry> {
        if entries.len() <= FEW_ENTRIES { self.few_unrepeated(entries) } else { self.many_unrepeated(entries) }
    }

    fn few_unrepeated(&self, entries: &[RecordEntry]) -> Vec<RecordEntry> {
        let prints: Vec<_> = entries.iter().map(|entry| self.key_print(entry.key)).collect();
        let same = |at: usize, kind, other: usize| {
            prints[at] == prints[other]
                && entries[other].kind == kind
                && is_written(&entries[other])
                && self.same_key(entries[at].key, entries[other].key)
        };
        let all = 0..entries.len();
        let is_repeated = |at: usize| (at + 1..entries.len()).any(|other| same(at, entries[at].kind, other));
        let is_moved = |at| all.clone().any(|other| same(at, EntryKind::Meta, other));
        let last = all.clone().filter(|at| is_written(&entries[*at]) && !is_repeated(*at));
        let kept = last.map(|at| match entries[at] {
            metric if metric.kind == EntryKind::Metric && is_moved(at) => metric.moved(),
            entry => entry,
        });
        kept.collect()
    }

    /// The same result in linear time.
    fn many_unrepeated(&self, entries: &[RecordEntry]) -> Vec<RecordEntry> {
        let identity = |key: Ref| match key {
            Ref::Bound(slot) => (Some(self.strings.key(slot)), StringId::ABSENT),
            Ref::Waiting(id) => (None, id),
            Ref::Absent => (None, StringId::ABSENT),
        };
        let written = || entries.iter().filter(|entry| is_written(entry));
        let metas = written().filter(|entry| entry.kind == EntryKind::Meta);
        let tags: HashSet<_> = metas.map(|entry| identity(entry.key)).collect();
        let mut seen = HashSet::new();
        let mut kept: Vec<_> = written()
            .rev()
            .filter(|entry| seen.insert((entry.kind as u8, identity(entry.key))))
            .map(|entry| if tags.contains(&identity(entry.key)) { entry.moved() } else { *entry })
            .collect();
        kept.reverse();
        kept
    }

    /// A hash of the key.
    #[inline]
    fn key_print(&self, key: Ref) -> u16 {
        match key {
            Ref::Bound(slot) => self.strings.fingerprint(slot),
            Ref::Waiting(StringId([.., high, low])) => u16::from_be_bytes([high, low]),
            Ref::Absent => 0,
        }
    }

    fn same_key(&self, a: Ref, b: Ref) -> bool {
        match (a, b) {
            (Ref::Bound(a), Ref::Bound(b)) => self.strings.same_key(a, b),
            _ => a == b,
        }
    }
}
