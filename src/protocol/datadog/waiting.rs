//! Records that wait for the definitions of their strings, and the index from string ids to their references.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use foldhash::quality::RandomState;
use hashbrown::HashMap;

use super::record::{EntryKind, EntryValue, KEY_IN_FULL, METRIC_BYTES, OwnerRecord, RecordEntry, Ref, key_index};
use super::strings::Strings;
use super::wire::{self, ListKind, StringId};

/// Records that are complete except for texts, and the index of the references that wait, also those of the open record.
#[derive(Debug, Default)]
pub(super) struct WaitingRecords {
    records: BTreeMap<u64, Box<OwnerRecord>>,
    index: HashMap<StringId, VecDeque<(u64, u32)>, RandomState>,
    /// Number of references in the index.
    references: usize,
    bytes: u64,
}

/// Memory of one id in the index: its table entry at the worst load factor, and the smallest queue.
pub(super) const WAITED_ID_BYTES: usize = 160;

impl WaitingRecords {
    /// The capacity that the index keeps while it is empty.
    const MAX_IDLE_IDS: usize = 1024;

    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    /// Memory of the records and of the index.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes + (self.index.len() * WAITED_ID_BYTES + self.references * size_of::<(u64, u32)>()) as u64
    }

    /// The reference at `index` of the record, to an id without text: absent for id 0 (rule 13), else waiting.
    #[cold]
    pub(super) fn wait_for(&mut self, id: StringId, index: u32, record: &mut OwnerRecord) -> Ref {
        if id == StringId::ABSENT {
            return Ref::Absent;
        }
        self.index.entry(id).or_default().push_back((record.key, index));
        self.references += 1;
        record.unresolved += 1;
        Ref::Waiting(id)
    }

    /// Adds an entry with one or two texts that are not defined. `false`: over the limits of the record.
    #[cold]
    pub(super) fn add(
        &mut self,
        kind: ListKind,
        ids: &wire::WireEntry,
        (max_value, max_bytes): (usize, u64),
        record: &mut OwnerRecord,
        strings: &mut Strings,
    ) -> bool {
        let unresolved_before = record.unresolved;
        let index = key_index(record.entries.len());
        // The caller has looked up the same ids before, so the order of use does not change.
        let mut refer = |id: StringId, index: u32, limit: usize| match strings.refer(id) {
            Some(known) => (Ref::Bound(known.slot), known.bytes(limit)),
            None => (self.wait_for(id, index, record), 0),
        };
        let (key, key_bytes) = refer(StringId(ids[0]), index, KEY_IN_FULL);
        let (kind, value, value_bytes) = match kind {
            ListKind::Meta => {
                let (value, bytes) = refer(StringId(ids[1]), index + 1, max_value);
                (EntryKind::Meta, EntryValue::Text(value), bytes)
            }
            ListKind::Metrics => (EntryKind::Metric, EntryValue::Number(ids[1]), METRIC_BYTES),
        };
        let is_added = record.add(RecordEntry { kind, key, value }, key_bytes + value_bytes, max_bytes);
        if !is_added && record.unresolved > unresolved_before {
            // A part of it waits: it stays because the index refers to it, and is not written.
            record.add(RecordEntry { kind: EntryKind::Dropped, key, value }, 0, u64::MAX);
        }
        is_added
    }

    /// Whether no reference waits.
    pub(super) fn is_idle(&self) -> bool {
        self.index.is_empty()
    }

    /// Removes and returns the references that wait for `id`, which is now defined.
    pub(super) fn take_references(&mut self, id: StringId) -> VecDeque<(u64, u32)> {
        let references = self.index.remove(&id).unwrap_or_default();
        self.references -= references.len();
        self.shrink();
        references
    }

    pub(super) fn insert(&mut self, mut record: Box<OwnerRecord>) {
        // It may have reused the memory of a record with many more entries.
        record.entries.shrink_to_fit();
        self.bytes += record.memory_bytes();
        self.records.insert(record.key, record);
    }

    pub(super) fn get_mut(&mut self, key: u64) -> Option<&mut OwnerRecord> {
        self.records.get_mut(&key).map(Box::as_mut)
    }

    /// Removes one record.
    pub(super) fn remove(&mut self, key: u64) -> Option<Box<OwnerRecord>> {
        let record = self.records.remove(&key)?;
        self.bytes -= record.memory_bytes();
        Some(record)
    }

    /// Removes the oldest record.
    pub(super) fn pop_oldest(&mut self) -> Option<Box<OwnerRecord>> {
        let (_, record) = self.records.pop_first()?;
        self.bytes -= record.memory_bytes();
        Some(record)
    }

    /// When the oldest record was received.
    pub(super) fn oldest_received(&self) -> Option<Duration> {
        self.records.first_key_value().map(|(_, record)| record.position.now.elapsed)
    }

    /// Removes the references of a record that is emitted unresolved. Records are emitted unresolved in the order of
    /// arrival, so its references are at the front of each queue.
    pub(super) fn give_up(&mut self, record: &OwnerRecord) {
        record.for_each_ref(|reference| {
            let Ref::Waiting(id) = reference else { return };
            let Some(queue) = self.index.get_mut(&id) else { return };
            while queue.front().is_some_and(|(key, _)| *key <= record.key) {
                queue.pop_front();
                self.references -= 1;
            }
            if queue.is_empty() {
                self.index.remove(&id);
            }
        });
        self.shrink();
    }

    /// Releases the memory of an index that was large and is empty now.
    fn shrink(&mut self) {
        if self.index.is_empty() && self.index.capacity() > WaitingRecords::MAX_IDLE_IDS {
            self.index = HashMap::default();
        }
    }
}
