//! The meta of traces, which is also written on their spans (reading 17).

use foldhash::quality::RandomState;
use hashbrown::HashMap;

use tributary_codec::lru::Lru;
use tributary_event::TraceId;

use super::record::{EntryKind, EntryValue, OwnerRecord, RecordEntry, Ref};
use super::strings::{StringSlot, Strings};
use super::waiting::WAITED_ID_BYTES;
use super::wire::StringId;

/// The meta of the most recently used traces of one connection.
///
/// An entry whose id has no text yet refers to a [`PendingText`] text, which all entries with that id share. Adding,
/// resolving and forgetting therefore cost a constant time for each entry, however many entries share one id.
#[derive(Debug, Default)]
pub(super) struct Traces {
    metas: Lru<TraceId, Vec<[MetaRef; 2]>>,
    entries: usize,
    pending: Vec<PendingText>,
    /// Unused places in `pending`.
    free: Vec<u32>,
    /// Where the ids without a text are in `pending`.
    unresolved: HashMap<StringId, u32, RandomState>,
}

/// The key or value of one meta entry.
#[derive(Clone, Copy, Debug)]
enum MetaRef {
    /// Id 0, never defined.
    Absent,
    /// A text, retained once for each reference.
    Bound(StringSlot),
    /// The text of this place in [`Traces::pending`].
    Pending(u32),
}

/// A text that was not defined when the first entry referred to it.
#[derive(Debug)]
struct PendingText {
    id: StringId,
    /// Entries that refer to it.
    references: u32,
    /// Its first definition, retained once. `None`: there is none yet.
    text: Option<StringSlot>,
}

impl Traces {
    /// The most entries kept over all traces.
    const MAX_ENTRIES: usize = 65_536;

    /// A trace record is complete: its meta is written on the spans that follow, at most `max_entries` of them. `true`: there are
    /// more.
    pub(super) fn learn(
        &mut self,
        trace: TraceId,
        record: &OwnerRecord,
        max_traces: usize,
        max_entries: usize,
        strings: &mut Strings,
    ) -> bool {
        let meta = |entry: &RecordEntry| match (entry.kind, entry.value) {
            (EntryKind::Meta, EntryValue::Text(value)) => Some([entry.key, value]),
            _ => None,
        };
        let mut metas = record.entries.iter().filter_map(meta).peekable();
        if metas.peek().is_none() || max_traces == 0 {
            return false;
        }
        // Taken out while entries are added, because `refer` changes the pending texts.
        let mut known = self.metas.get(&trace).map(std::mem::take).unwrap_or_default();
        let known_before = known.len();
        for [key, value] in metas.by_ref().take(max_entries.saturating_sub(known_before)) {
            known.push([self.refer(key, strings), self.refer(value, strings)]);
        }
        self.entries += known.len() - known_before;
        self.metas.insert(trace, known);
        while self.metas.len() > max_traces || self.entries > Traces::MAX_ENTRIES {
            if !self.forget_oldest(strings) {
                break;
            }
        }
        metas.next().is_some()
    }

    /// `id` has its first definition, which is the one that counts (reading 7).
    pub(super) fn bind(&mut self, id: StringId, slot: StringSlot, strings: &mut Strings) {
        if self.unresolved.is_empty() {
            return;
        }
        if let Some(place) = self.unresolved.remove(&id) {
            self.pending[place as usize].text = Some(slot);
            strings.retain(slot);
        }
    }

    /// Key and value of each meta entry of a trace; `None` for a text that is absent or not defined yet. Counts as a use
    /// of the trace. No items: the trace is not known.
    pub(super) fn get(&mut self, trace: TraceId) -> impl ExactSizeIterator<Item = [Option<StringSlot>; 2]> {
        let metas = if self.metas.is_empty() { None } else { self.metas.get(&trace) };
        let pending = &self.pending;
        let slot = move |reference| match reference {
            MetaRef::Absent => None,
            MetaRef::Bound(slot) => Some(slot),
            MetaRef::Pending(place) => pending[place as usize].text,
        };
        metas.map_or(&[][..], |metas| metas.as_slice()).iter().map(move |meta| meta.map(slot))
    }

    /// Memory of all entries and of the pending texts.
    pub(super) fn bytes(&self) -> u64 {
        let pending = self.pending.len() * (size_of::<PendingText>() + size_of::<u32>());
        let index = self.unresolved.len() * WAITED_ID_BYTES;
        (self.entries * size_of::<[MetaRef; 2]>() + self.metas.len() * 96 + pending + index) as u64
    }

    /// Forgets the least recently used trace. `false`: no trace is known.
    pub(super) fn forget_oldest(&mut self, strings: &mut Strings) -> bool {
        let Some((_, metas)) = self.metas.pop_oldest() else { return false };
        self.entries -= metas.len();
        metas.into_iter().flatten().for_each(|reference| self.release(reference, strings));
        if self.free.len() == self.pending.len() {
            // Nothing is pending any more: the memory goes back.
            (self.pending, self.free) = (Vec::new(), Vec::new());
            self.unresolved = HashMap::default();
        }
        true
    }

    fn refer(&mut self, reference: Ref, strings: &mut Strings) -> MetaRef {
        match reference {
            Ref::Absent => MetaRef::Absent,
            Ref::Bound(slot) => {
                strings.retain(slot);
                MetaRef::Bound(slot)
            }
            Ref::Waiting(id) => {
                let place = *self.unresolved.entry(id).or_insert_with(|| {
                    let pending = PendingText { id, references: 0, text: None };
                    match self.free.pop() {
                        Some(place) => {
                            self.pending[place as usize] = pending;
                            place
                        }
                        None => {
                            self.pending.push(pending);
                            (self.pending.len() - 1) as u32
                        }
                    }
                });
                self.pending[place as usize].references += 1;
                MetaRef::Pending(place)
            }
        }
    }

    fn release(&mut self, reference: MetaRef, strings: &mut Strings) {
        let place = match reference {
            MetaRef::Absent => return,
            MetaRef::Bound(slot) => return strings.release(slot),
            MetaRef::Pending(place) => place,
        };
        let pending = &mut self.pending[place as usize];
        pending.references -= 1;
        if pending.references > 0 {
            return;
        }
        match pending.text.take() {
            Some(slot) => strings.release(slot),
            None => {
                self.unresolved.remove(&pending.id);
            }
        }
        self.free.push(place);
    }
}
