//! Records: a process, trace or span with the entries of its lists, on its way to becoming an event.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use foldhash::quality::RandomState;
use hashbrown::HashMap;

use crate::codec::lru::Lru;
use crate::event::{SpanId, TraceId, UnixNanos};
use crate::protocol::Output;

use super::strings::{Slot, Strings};
use super::wire::{ListKind, Process, Span, StringId};

/// Places of the four texts of a span in [`Record::fields`].
pub(super) const NAME: usize = 0;
pub(super) const TYPE: usize = 1;
pub(super) const RESOURCE: usize = 2;
pub(super) const SERVICE: usize = 3;

/// An owner object and everything that belongs to it.
#[derive(Debug)]
pub(super) struct Record {
    /// Ours, ever rising: the name by which the waiting index knows the record.
    pub(super) key: u64,
    pub(super) owner: Owner,
    /// Position among the owners of the connection (rule 14).
    pub(super) sequence: u64,
    pub(super) offset: u64,
    pub(super) length: u64,
    pub(super) observed: UnixNanos,
    /// The same moment on the clock of waits.
    pub(super) received: Duration,
    pub(super) fields: [Ref; 4],
    pub(super) entries: Vec<Entry>,
    /// Entries of its own lists, dropped ones not counted.
    pub(super) own_entries: usize,
    /// References that wait for a definition.
    pub(super) unresolved: u32,
    /// Bytes of output that its texts will take, roughly.
    pub(super) expanded_bytes: u64,
    /// Entries that a limit cut.
    pub(super) dropped: u64,
    /// Those of them that were cut only when their text came.
    pub(super) dropped_late: u64,
    pub(super) last_list: Option<ListKind>,
    pub(super) warnings: Warnings,
    /// Its texts are retained for it.
    pub(super) holds_texts: bool,
    /// The connection ended while its lists might still have come (rule 20).
    pub(super) partial: bool,
}

/// What owns lists.
#[derive(Clone, Copy, Debug)]
pub(super) enum Owner {
    Process(Process),
    Trace(TraceId),
    Span(Span),
    /// An owner that went out on the idle limit before these lists came.
    Late(LateOwner),
}

/// Whom late lists belong to.
#[derive(Clone, Copy, Debug)]
pub(super) enum LateOwner {
    Process,
    Trace(TraceId),
    Span(TraceId, SpanId),
}

/// A reference to a string.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ref {
    /// Id 0, never defined.
    Absent,
    /// Bound. Retained while the record waits.
    Bound(Slot),
    /// Waits for the first definition of this id.
    Waiting(StringId),
}

/// One entry of a list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) kind: EntryKind,
    /// Equal keys have equal prints.
    pub(super) key_print: u16,
    pub(super) key: Ref,
    pub(super) value: EntryValue,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum EntryKind {
    Meta,
    Metric,
    /// Of the span's trace.
    TraceMeta,
    /// Cut by a limit when its text came; kept only for its references.
    Dropped,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum EntryValue {
    Text(Ref),
    /// The bits of a double, exactly as sent (rule 8).
    Number(u64),
}

/// Oddities of a record, told in `datadog.warnings`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Warnings(u8);

/// One oddity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Warning {
    RepeatedList,
    ErrorFlag,
    EndOverflows,
    TooManyEntries,
    PendingOverflow,
}

impl Warning {
    const ALL: [Warning; 5] = [
        Warning::RepeatedList,
        Warning::ErrorFlag,
        Warning::EndOverflows,
        Warning::TooManyEntries,
        Warning::PendingOverflow,
    ];

    /// The code in events and counters.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Warning::RepeatedList => "repeated_list",
            Warning::ErrorFlag => "error_flag_not_0_or_1",
            Warning::EndOverflows => "end_overflows_u64",
            Warning::TooManyEntries => "too_many_entries",
            Warning::PendingOverflow => "pending_overflow",
        }
    }
}

impl Warnings {
    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(super) fn iter(self) -> impl Iterator<Item = Warning> {
        Warning::ALL.into_iter().filter(move |warning| self.0 & (1 << *warning as u8) != 0)
    }
}

impl Record {
    /// Something about it is odd: told on its event, and counted.
    pub(super) fn warn(&mut self, warning: Warning, out: &mut Output) {
        self.warnings.0 |= 1 << warning as u8;
        out.warn(warning.as_str());
    }

    /// Every reference, in the order of the wire.
    pub(super) fn refs(&self) -> impl Iterator<Item = Ref> {
        let of_entry = |entry: &Entry| match entry.value {
            EntryValue::Text(value) => [entry.key, value],
            EntryValue::Number(_) => [entry.key, Ref::Absent],
        };
        self.fields.into_iter().chain(self.entries.iter().flat_map(of_entry))
    }

    /// The reference at a place that [`field_place`] or [`key_place`] named.
    fn at_place(&mut self, place: u32) -> Option<(&mut Ref, Option<usize>)> {
        let place = place as usize;
        let Some(in_entries) = place.checked_sub(self.fields.len()) else {
            return Some((self.fields.get_mut(place)?, None));
        };
        let index = in_entries / 2;
        let entry = self.entries.get_mut(index)?;
        match (&mut entry.value, in_entries % 2) {
            (_, 0) => Some((&mut entry.key, Some(index))),
            (EntryValue::Text(value), _) => Some((value, Some(index))),
            (EntryValue::Number(_), _) => None,
        }
    }

    /// The reference at `place` was waiting for the text in `slot`, which is retained if the record holds texts.
    pub(super) fn bind(
        &mut self,
        place: u32,
        slot: Slot,
        strings: &mut Strings,
        max_value: usize,
        max_record_bytes: u64,
    ) {
        let Some((reference, entry)) = self.at_place(place) else { return };
        *reference = Ref::Bound(slot);
        if self.holds_texts {
            strings.retain(slot);
        }
        if let Some(index) = entry {
            let key = self.entries[index].key;
            self.entries[index].key_print = key_print(key, strings);
        }
        self.unresolved -= 1;
        if entry.is_some_and(|index| self.entries[index].kind == EntryKind::Dropped) {
            return;
        }
        let text_bytes = strings.text(slot).len().min(max_value) as u64;
        self.expanded_bytes += text_bytes;
        if let Some(index) = entry.filter(|_| self.expanded_bytes > max_record_bytes) {
            self.expanded_bytes -= text_bytes;
            self.entries[index].kind = EntryKind::Dropped;
            self.dropped += 1;
            self.dropped_late += 1;
        }
    }

    /// Memory that the record takes beside its part of the waiting index.
    pub(super) fn memory_bytes(&self) -> u64 {
        (size_of::<Record>() + self.entries.capacity() * size_of::<Entry>()) as u64
    }
}

/// Place of a field's reference, for the waiting index.
pub(super) fn field_place(field: usize) -> u32 {
    field as u32
}

/// Place of the key reference of an entry, for the waiting index; its value's is the next one.
pub(super) fn key_place(entry: usize) -> u32 {
    4 + 2 * entry as u32
}

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
const WAITED_ID_BYTES: usize = 160;

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

    /// The reference at `place` of the record `key` waits for `id`.
    pub(super) fn expect(&mut self, id: StringId, key: u64, place: u32) {
        self.index.entry(id).or_default().push_back((key, place));
        self.places += 1;
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
        self.records.first_key_value().map(|(_, record)| record.received)
    }

    /// The record goes out with what it lacks: nobody waits for it any more. Records leave unresolved in the order in
    /// which they came, so its places stand at the front.
    pub(super) fn give_up(&mut self, record: &Record) {
        for reference in record.refs() {
            let Ref::Waiting(id) = reference else { continue };
            let Some(queue) = self.index.get_mut(&id) else { continue };
            while queue.front().is_some_and(|(key, _)| *key <= record.key) {
                queue.pop_front();
                self.places -= 1;
            }
            if queue.is_empty() {
                self.index.remove(&id);
            }
        }
        self.give_back();
    }

    /// An index that once was large and now is empty does not stay large.
    fn give_back(&mut self) {
        if self.index.is_empty() && self.index.capacity() > Waiting::MANY_IDS {
            self.index = HashMap::default();
        }
    }
}

/// The meta of traces, for their spans (reading 17): per connection, the traces used last.
#[derive(Debug, Default)]
pub(super) struct Traces {
    metas: Lru<TraceId, Vec<[Ref; 2]>>,
    entries: usize,
    /// Where ids stand that wait for their first definition, as trace, entry and side.
    waiting: HashMap<StringId, Vec<(TraceId, usize, usize)>, RandomState>,
    places: usize,
}

impl Traces {
    /// The most entries kept over all traces.
    const MAX_ENTRIES: usize = 65_536;

    /// A trace record is complete: its meta stands on the spans that are parsed from now on.
    pub(super) fn learn(
        &mut self,
        trace: TraceId,
        record: &Record,
        max_traces: usize,
        max_entries: usize,
        strings: &mut Strings,
    ) {
        let meta = |entry: &Entry| match (entry.kind, entry.value) {
            (EntryKind::Meta, EntryValue::Text(value)) => Some([entry.key, value]),
            _ => None,
        };
        let mut metas = record.entries.iter().filter_map(meta).peekable();
        if metas.peek().is_none() || max_traces == 0 {
            return;
        }
        if self.metas.get(&trace).is_none() {
            self.metas.insert(trace, Vec::new());
        }
        let Some(known) = self.metas.get(&trace) else { return };
        for meta in metas.take(max_entries.saturating_sub(known.len())) {
            for (side, reference) in meta.into_iter().enumerate() {
                match reference {
                    Ref::Absent => {}
                    Ref::Bound(slot) => strings.retain(slot),
                    Ref::Waiting(id) => {
                        self.waiting.entry(id).or_default().push((trace, known.len(), side));
                        self.places += 1;
                    }
                }
            }
            known.push(meta);
            self.entries += 1;
        }
        while self.metas.len() > max_traces || self.entries > Traces::MAX_ENTRIES {
            if !self.forget_oldest(strings) {
                break;
            }
        }
    }

    /// `id` has got its text: the first definition is the one that counts (reading 7).
    pub(super) fn bind(&mut self, id: StringId, slot: Slot, strings: &mut Strings) {
        if self.waiting.is_empty() {
            return;
        }
        let places = self.waiting.remove(&id).unwrap_or_default();
        self.places -= places.len();
        for (trace, entry, side) in places {
            let reference = self.metas.peek_mut(&trace).and_then(|metas| metas.get_mut(entry)?.get_mut(side));
            if let Some(reference) = reference.filter(|reference| **reference == Ref::Waiting(id)) {
                *reference = Ref::Bound(slot);
                strings.retain(slot);
            }
        }
    }

    /// The meta of a trace, if it is known.
    pub(super) fn get(&mut self, trace: TraceId) -> Option<&[[Ref; 2]]> {
        if self.metas.is_empty() { None } else { self.metas.get(&trace).map(|metas| metas.as_slice()) }
    }

    /// Memory of all entries, and of the index of what they wait for.
    pub(super) fn bytes(&self) -> u64 {
        let index = self.waiting.len() * WAITED_ID_BYTES + self.places * size_of::<(TraceId, usize, usize)>();
        (self.entries * size_of::<[Ref; 2]>() + self.metas.len() * 96 + index) as u64
    }

    /// Forgets the trace used longest ago; `false` when none is known.
    pub(super) fn forget_oldest(&mut self, strings: &mut Strings) -> bool {
        let Some((forgotten, metas)) = self.metas.pop_oldest() else { return false };
        self.entries -= metas.len();
        for reference in metas.into_iter().flatten() {
            match reference {
                Ref::Absent => {}
                Ref::Bound(slot) => strings.release(slot),
                Ref::Waiting(id) => {
                    let Some(places) = self.waiting.get_mut(&id) else { continue };
                    let before = places.len();
                    places.retain(|(trace, ..)| *trace != forgotten);
                    self.places -= before - places.len();
                    if places.is_empty() {
                        self.waiting.remove(&id);
                    }
                }
            }
        }
        true
    }
}

/// A number that equal keys share, and others seldom: most repeated keys are told apart by it.
pub(super) fn key_print(key: Ref, strings: &Strings) -> u16 {
    match key {
        Ref::Absent => 0,
        Ref::Bound(slot) => strings.fingerprint(slot),
        Ref::Waiting(StringId([.., high, low])) => u16::from_be_bytes([high, low]),
    }
}

/// Counts references as such, before a sweep.
pub(super) fn retain_all(refs: impl IntoIterator<Item = Ref>, strings: &mut Strings) {
    for reference in refs {
        if let Ref::Bound(slot) = reference {
            strings.retain(slot);
        }
    }
}

/// Gives back the texts of references that are no longer needed.
pub(super) fn release_all(refs: impl IntoIterator<Item = Ref>, strings: &mut Strings) {
    for reference in refs {
        if let Ref::Bound(slot) = reference {
            strings.release(slot);
        }
    }
}
