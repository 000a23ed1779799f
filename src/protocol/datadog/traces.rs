//! The meta of traces, which also stand on their spans (reading 17).

use foldhash::quality::RandomState;
use hashbrown::HashMap;

use crate::codec::lru::Lru;
use crate::event::TraceId;

use super::record::{Entry, EntryKind, EntryValue, Record, Ref};
use super::strings::{Slot, Strings};
use super::waiting::WAITED_ID_BYTES;
use super::wire::StringId;

/// The meta of the traces used last on one connection.
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
