//! Records: a process, trace or span with the entries of its lists, on its way to becoming an event.

use crate::event::{Header, Name, Position, SpanId, TraceId};
use crate::protocol::{Now, Output};

use super::strings::{Slot, Strings};
use super::wire::{ListKind, Process, Span, StringId};

/// Places of the four texts of a span in [`Record::fields`].
pub(super) const NAME: usize = 0;
pub(super) const TYPE: usize = 1;
pub(super) const RESOURCE: usize = 2;
pub(super) const SERVICE: usize = 3;

/// Keys count in full: the record holds all of them, however little of each it shows.
pub(super) const KEY_IN_FULL: usize = usize::MAX;
/// What a metric's value counts.
pub(super) const METRIC_BYTES: u64 = 8;

/// An owner object and everything that belongs to it.
#[derive(Debug)]
pub(super) struct Record {
    /// Ours, ever rising: the name by which the waiting index knows the record.
    pub(super) key: u64,
    pub(super) owner: Owner,
    /// Position among the owners of the connection (rule 14).
    pub(super) sequence: u64,
    /// Of its owner.
    pub(super) place: Place,
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

/// An object's place in the stream, and when it came.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) offset: u64,
    pub(super) size: u64,
    pub(super) now: Now,
}

impl Place {
    /// The header of an event about this place that has no clock of its own.
    pub(super) fn header(&self, name: Name, sequence: Option<u64>) -> Header {
        let position = Position { sequence, offset: self.offset, length: self.size };
        Header::observed_at(name, self.now.unix, position)
    }
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
    pub(super) key: Ref,
    pub(super) value: EntryValue,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum EntryKind {
    Meta,
    Metric,
    /// A metric whose key is that of a tag; only while the record is written.
    TakenMetric,
    /// Of the span's trace.
    TraceMeta,
    /// Cut by a limit when its text came; kept only for its references.
    Dropped,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum EntryValue {
    Text(Ref),
    /// A double, exactly as sent (rule 8).
    Number([u8; 8]),
}

impl Entry {
    /// A tag whose texts are known.
    #[inline]
    pub(super) fn meta(key: Slot, value: Slot) -> Self {
        Entry { kind: EntryKind::Meta, key: Ref::Bound(key), value: EntryValue::Text(Ref::Bound(value)) }
    }

    /// The same when a tag has its key.
    pub(super) fn taken(mut self) -> Self {
        if self.kind == EntryKind::Metric {
            self.kind = EntryKind::TakenMetric;
        }
        self
    }

    /// A metric whose key is known.
    #[inline]
    pub(super) fn metric(key: Slot, number: [u8; 8]) -> Self {
        Entry { kind: EntryKind::Metric, key: Ref::Bound(key), value: EntryValue::Number(number) }
    }
}

const _: () = assert!(size_of::<Entry>() <= 28, "records are mostly entries");

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
    pub(super) fn new(key: u64, owner: Owner, sequence: u64, place: Place) -> Self {
        Record {
            key,
            owner,
            sequence,
            place,
            fields: [Ref::Absent; 4],
            entries: Vec::new(),
            own_entries: 0,
            unresolved: 0,
            expanded_bytes: 0,
            dropped: 0,
            dropped_late: 0,
            last_list: None,
            warnings: Warnings::default(),
            holds_texts: false,
            partial: false,
        }
    }

    /// Becomes another record, which has the memory of this one's entries.
    pub(super) fn begin_anew(&mut self, key: u64, owner: Owner, sequence: u64, place: Place) {
        self.entries.clear();
        let entries = std::mem::take(&mut self.entries);
        *self = Record { entries, ..Record::new(key, owner, sequence, place) };
    }

    /// Something about it is odd: told on its event, and counted.
    pub(super) fn warn(&mut self, warning: Warning, out: &mut Output) {
        self.warnings.0 |= 1 << warning as u8;
        out.warn(warning.as_str());
    }

    /// Adds an entry of its own lists that takes so many bytes of output. `false`: there is no room for them.
    #[inline]
    pub(super) fn add(&mut self, entry: Entry, bytes: u64, max_bytes: u64) -> bool {
        let has_room = self.expanded_bytes + bytes <= max_bytes;
        if has_room {
            self.expanded_bytes += bytes;
            self.entries.push(entry);
            self.own_entries += 1;
        }
        has_room
    }

    /// Every reference, in the order of the wire.
    pub(super) fn for_each_ref(&self, mut each: impl FnMut(Ref)) {
        self.fields.iter().for_each(|field| each(*field));
        for entry in &self.entries {
            each(entry.key);
            if let EntryValue::Text(value) = entry.value {
                each(value);
            }
        }
    }

    /// Counts its references as such, before a sweep.
    pub(super) fn retain_all(&self, strings: &mut Strings) {
        self.for_each_ref(|reference| {
            if let Ref::Bound(slot) = reference {
                strings.retain(slot);
            }
        });
    }

    /// Gives back its references, which are no longer needed or no longer counted.
    pub(super) fn release_all(&self, strings: &mut Strings) {
        self.for_each_ref(|reference| {
            if let Ref::Bound(slot) = reference {
                strings.release(slot);
            }
        });
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
