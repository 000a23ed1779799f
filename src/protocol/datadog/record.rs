//! Records: a process, trace or span with the entries of its lists, before it becomes an event.

use tributary_event::{Header, Name, Position, SpanId, TraceId};
use tributary_protocol::{Now, Output};

use super::strings::{StringSlot, Strings};
use super::wire::{ListKind, ProcessObject, StringId, WireSpan};

/// Indexes of the four texts of a span in [`OwnerRecord::fields`].
pub(super) const NAME: usize = 0;
pub(super) const TYPE: usize = 1;
pub(super) const RESOURCE: usize = 2;
pub(super) const SERVICE: usize = 3;

/// Keys count in full, because the record holds the whole text even when the event shows a part.
pub(super) const KEY_IN_FULL: usize = usize::MAX;
/// Bytes that the value of a metric counts.
pub(super) const METRIC_BYTES: u64 = 8;

/// An owner object and everything that belongs to it.
#[derive(Debug)]
pub(super) struct OwnerRecord {
    /// Identifies the record in the waiting index. Assigned in ascending order.
    pub(super) key: u64,
    pub(super) owner: Owner,
    /// Number among the owners of the connection (rule 14).
    pub(super) sequence: u64,
    /// The position of its owner object.
    pub(super) position: ObjectPosition,
    pub(super) fields: [Ref; 4],
    pub(super) entries: Vec<RecordEntry>,
    /// Number of entries of its own lists, without dropped ones.
    pub(super) own_entries: usize,
    /// Number of references that wait for a definition.
    pub(super) unresolved: u32,
    /// Estimated output bytes of its texts.
    pub(super) expanded_bytes: u64,
    /// Number of entries that a limit cut.
    pub(super) dropped: u64,
    /// Number of entries that were cut when their text was defined.
    pub(super) dropped_late: u64,
    pub(super) last_list: Option<ListKind>,
    pub(super) warnings: Warnings,
    /// Its references are counted in [`Strings`].
    pub(super) holds_texts: bool,
    /// The connection ended while more lists could follow (rule 20).
    pub(super) partial: bool,
}

/// The position of an object in the stream, and when it was received.
#[derive(Clone, Copy, Debug)]
pub(super) struct ObjectPosition {
    pub(super) offset: u64,
    pub(super) size: u64,
    pub(super) now: Now,
}

impl ObjectPosition {
    /// The header of an event about this object, for events without a time of their own.
    pub(super) fn header(&self, name: Name, sequence: Option<u64>) -> Header {
        let position = Position { sequence, offset: self.offset, length: self.size };
        Header::observed_at(name, self.now.unix, position)
    }
}

/// The owner of lists.
#[derive(Clone, Copy, Debug)]
pub(super) enum Owner {
    Process(ProcessObject),
    Trace(TraceId),
    Span(WireSpan),
    /// The owner was emitted on the idle limit before these lists arrived.
    Late(LateOwner),
}

/// The owner of late lists.
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
    /// Bound to a text. Counted in [`Strings`] while the record waits.
    Bound(StringSlot),
    /// Waits for the first definition of this id.
    Waiting(StringId),
}

/// One entry of a list.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordEntry {
    pub(super) kind: EntryKind,
    pub(super) key: Ref,
    pub value: EntryValue,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum EntryKind {
    Meta,
    Metric,
    /// A metric with the key of a tag; only while the record is written.
    MovedMetric,
    /// Of the span's trace.
    TraceMeta,
    /// A meta whose value was never defined; only while the record is written.
    ValuelessMeta,
    /// Cut by a limit when its text was defined; kept only for its references.
    Dropped,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum EntryValue {
    Text(Ref),
    /// A double, exactly as sent (rule 8).
    Number([u8; 8]),
}

impl RecordEntry {
    /// A tag with known texts.
    #[inline]
    pub(super) fn meta(key: StringSlot, value: StringSlot) -> Self {
        RecordEntry { kind: EntryKind::Meta, key: Ref::Bound(key), value: EntryValue::Text(Ref::Bound(value)) }
    }

    /// The entry as it is written when a tag has the same key.
    pub(super) fn moved(mut self) -> Self {
        if self.kind == EntryKind::Metric {
            self.kind = EntryKind::MovedMetric;
        }
        self
    }

    /// A metric with a known key.
    #[inline]
    pub(super) fn metric(key: StringSlot, number: [u8; 8]) -> Self {
        RecordEntry { kind: EntryKind::Metric, key: Ref::Bound(key), value: EntryValue::Number(number) }
    }
}

const _: () = assert!(size_of::<RecordEntry>() <= 28, "records are mostly entries");

/// The warnings of a record, written to `datadog.warnings`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Warnings(u8);

/// One warning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Warning {
    RepeatedList,
    ErrorFlag,
    EndOverflows,
    TooManyEntries,
    PendingOverflow,
    TraceEntriesLeftOut,
}

impl Warning {
    const ALL: [Warning; 6] = [
        Warning::RepeatedList,
        Warning::ErrorFlag,
        Warning::EndOverflows,
        Warning::TooManyEntries,
        Warning::PendingOverflow,
        Warning::TraceEntriesLeftOut,
    ];

    /// The code in events and counters.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Warning::RepeatedList => "repeated_list",
            Warning::ErrorFlag => "error_flag_not_0_or_1",
            Warning::EndOverflows => "end_overflows_u64",
            Warning::TooManyEntries => "too_many_entries",
            Warning::PendingOverflow => "pending_overflow",
            Warning::TraceEntriesLeftOut => "trace_entries_left_out",
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

impl OwnerRecord {
    pub(super) fn new(key: u64, owner: Owner, sequence: u64, position: ObjectPosition) -> Self {
        OwnerRecord {
            key,
            owner,
            sequence,
            position,
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

    /// Turns this record into a new one that reuses the memory of its entries.
    pub(super) fn reset(&mut self, key: u64, owner: Owner, sequence: u64, position: ObjectPosition) {
        self.entries.clear();
        let entries = std::mem::take(&mut self.entries);
        *self = OwnerRecord { entries, ..OwnerRecord::new(key, owner, sequence, position) };
    }

    /// Adds a warning to its event and counts it.
    pub(super) fn warn(&mut self, warning: Warning, out: &mut Output) {
        self.warnings.0 |= 1 << warning as u8;
        out.warn(warning.as_str());
    }

    /// Called when the record is emitted: a meta with a known key whose value is not defined keeps its key.
    pub(super) fn keep_keys_without_values(&mut self) {
        for entry in &mut self.entries {
            if let (EntryKind::Meta, Ref::Bound(_), EntryValue::Text(Ref::Waiting(_))) =
                (entry.kind, entry.key, entry.value)
            {
                entry.kind = EntryKind::ValuelessMeta;
            }
        }
    }

    /// Adds an entry of its own lists that takes this many bytes of output. `false`: over `max_bytes`, not added.
    #[inline]
    pub(super) fn add(&mut self, entry: RecordEntry, bytes: u64, max_bytes: u64) -> bool {
        let has_space = self.expanded_bytes + bytes <= max_bytes;
        if has_space {
            self.expanded_bytes += bytes;
            self.entries.push(entry);
            self.own_entries += 1;
        }
        has_space
    }

    /// Calls `each` with every reference, in wire order.
    pub(super) fn for_each_ref(&self, mut each: impl FnMut(Ref)) {
        self.fields.iter().for_each(|field| each(*field));
        for entry in &self.entries {
            each(entry.key);
            if let EntryValue::Text(value) = entry.value {
                each(value);
            }
        }
    }

    /// Counts its references in [`Strings`].
    pub(super) fn retain_all(&self, strings: &mut Strings) {
        self.for_each_ref(|reference| {
            if let Ref::Bound(slot) = reference {
                strings.retain(slot);
            }
        });
    }

    /// Releases its references.
    pub(super) fn release_all(&self, strings: &mut Strings) {
        self.for_each_ref(|reference| {
            if let Ref::Bound(slot) = reference {
                strings.release(slot);
            }
        });
    }

    /// The reference with this index, and the index of its entry.
    fn reference_at(&mut self, index: u32) -> Option<(&mut Ref, Option<usize>)> {
        let index = index as usize;
        let Some(in_entries) = index.checked_sub(self.fields.len()) else {
            return Some((self.fields.get_mut(index)?, None));
        };
        let at = in_entries / 2;
        let entry = self.entries.get_mut(at)?;
        match (&mut entry.value, in_entries % 2) {
            (_, 0) => Some((&mut entry.key, Some(at))),
            (EntryValue::Text(value), _) => Some((value, Some(at))),
            (EntryValue::Number(_), _) => None,
        }
    }

    /// Binds the waiting reference at `index` to the text in `slot`, which is retained if the record holds texts.
    pub(super) fn bind(
        &mut self,
        index: u32,
        slot: StringSlot,
        strings: &mut Strings,
        max_value: usize,
        max_record_bytes: u64,
    ) {
        let Some((reference, entry)) = self.reference_at(index) else { return };
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

    /// Memory of the record without its references in the waiting index.
    pub(super) fn memory_bytes(&self) -> u64 {
        (size_of::<OwnerRecord>() + self.entries.capacity() * size_of::<RecordEntry>()) as u64
    }
}

/// The index of the reference of a field, for the waiting index.
pub(super) fn field_index(field: usize) -> u32 {
    field as u32
}

/// The index of the key reference of an entry, for the waiting index. The value reference has the next index.
pub(super) fn key_index(entry: usize) -> u32 {
    4 + 2 * entry as u32
}
