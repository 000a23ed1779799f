//! What waits for strings: records that are complete but for texts, and who wants which id.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use foldhash::quality::RandomState;
use hashbrown::HashMap;

use super::record::{Entry, EntryKind, EntryValue, KEY_IN_FULL, METRIC_BYTES, Record, Ref, key_place};
use super::strings::Strings;
use super::wire::{self, ListKind, StringId};

/// Records that are complete but for texts, and the index of what they (and the open record) wait for.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    records: BTreeMap<u64, Box<Record>>,
    index: HashMap<StringId, VecDeque<(u64, u32)>, RandomState>,
    /// References in the index.
    places: usize,
    bytes: u64,
}

/// What an id in the index costs: its place in the table, at the worst load, and the smallest queue.
pub(super) const WAITED_ID_BYTES: usize = 160;

impl Waiting {
    /// Room for more ids than this is given back once they are gone.
    const MANY_IDS: usize = 1024;

    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    /// Memory of the records and of the index.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes + (self.index.len() * WAITED_ID_BYTES + self.places * size_of::<(u64, u32)>()) as u64
    }

    /// A reference, at `place` of the record, to an id without text: absent when it is 0 (rule 13), else one that waits.
    #[cold]
    pub(super) fn wait_for(&mut self, id: StringId, place: u32, record: &mut Record) -> Ref {
        if id == StringId::ABSENT {
            return Ref::Absent;
        }
        self.index.entry(id).or_default().push_back((record.key, place));
        self.places += 1;
        record.unresolved += 1;
        Ref::Waiting(id)
    }

    /// Adds to the record an entry that lacks one text or both. `false`: there is no room for what is there of it.
    #[cold]
    pub(super) fn add(
        &mut self,
        kind: ListKind,
        ids: &wire::Entry,
        (max_value, max_bytes): (usize, u64),
        record: &mut Record,
        strings: &mut Strings,
    ) -> bool {
        let unresolved_before = record.unresolved;
        let place = key_place(record.entries.len());
        // Looked up once more: that leaves the order of use as it was.
        let mut refer = |id: StringId, place: u32, limit: usize| match strings.refer(id) {
            Some(known) => (Ref::Bound(known.slot), known.bytes(limit)),
            None => (self.wait_for(id, place, record), 0),
        };
        let (key, key_bytes) = refer(StringId(ids[0]), place, KEY_IN_FULL);
        let (kind, value, value_bytes) = match kind {
            ListKind::Meta => {
                let (value, bytes) = refer(StringId(ids[1]), place + 1, max_value);
                (EntryKind::Meta, EntryValue::Text(value), bytes)
            }
            ListKind::Metrics => (EntryKind::Metric, EntryValue::Number(ids[1]), METRIC_BYTES),
        };
        let is_added = record.add(Entry { kind, key, value }, key_bytes + value_bytes, max_bytes);
        if !is_added && record.unresolved > unresolved_before {
            // Part of it waits: it stays for the index's sake, and is not written.
            record.add(Entry { kind: EntryKind::Dropped, key, value }, 0, u64::MAX);
        }
        is_added
    }

    /// Whether nothing waits for any text.
    pub(super) fn expects_nothing(&self) -> bool {
        self.index.is_empty()
    }

    /// Everything that waits for `id`, which is now defined.
    pub(super) fn defined(&mut self, id: StringId) -> VecDeque<(u64, u32)> {
        let places = self.index.remove(&id).unwrap_or_default();
        self.places -= places.len();
        self.give_back();
        places
    }

    pub(super) fn insert(&mut self, mut record: Box<Record>) {
        // Its memory may come from a record with many more entries.
        record.entries.shrink_to_fit();
        self.bytes += record.memory_bytes();
        self.records.insert(record.key, record);
    }

    pub(super) fn get_mut(&mut self, key: u64) -> Option<&mut Record> {
        self.records.get_mut(&key).map(Box::as_mut)
    }

    /// Takes out one record, as it is.
    pub(super) fn remove(&mut self, key: u64) -> Option<Box<Record>> {
        let record = self.records.remove(&key)?;
        self.bytes -= record.memory_bytes();
        Some(record)
    }

    /// Takes out the record that came first.
    pub(super) fn pop_oldest(&mut self) -> Option<Box<Record>> {
        let (_, record) = self.records.pop_first()?;
        self.bytes -= record.memory_bytes();
        Some(record)
    }

    /// When the record that has waited longest was received.
    pub(super) fn oldest_received(&self) -> Option<Duration> {
        self.records.first_key_value().map(|(_, record)| record.place.now.elapsed)
    }

    /// The record goes out with what it lacks: nobody waits for it any more. Records leave unresolved in the order in
    /// which they came, so its places stand at the front.
    pub(super) fn give_up(&mut self, record: &Record) {
        record.for_each_ref(|reference| {
            let Ref::Waiting(id) = reference else { return };
            let Some(queue) = self.index.get_mut(&id) else { return };
            while queue.front().is_some_and(|(key, _)| *key <= record.key) {
                queue.pop_front();
                self.places -= 1;
            }
            if queue.is_empty() {
                self.index.remove(&id);
            }
        });
        self.give_back();
    }

    /// An index that once was large and now is empty does not stay large.
    fn give_back(&mut self) {
        if self.index.is_empty() && self.index.capacity() > Waiting::MANY_IDS {
            self.index = HashMap::default();
        }
    }
}
