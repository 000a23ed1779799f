//! Kept batches, as they came or packed.

use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashSet;
use lz4_flex::block;

use crate::traces::{TraceChoice, high};
use tributary_event::{Batch, DataView, EventView, Origin, PackedParts, TraceId, UnixNanos};

/// The number of a kept batch; never used again.
pub type Number = u64;

/// Memory of a kept batch besides what it says itself.
pub(super) const KEPT_BYTES: usize = size_of::<Batch>() + size_of::<KeptBatch>() + 32;
/// The same of a packed one.
const PACKED_BYTES: usize = size_of::<PackedBatch>() + size_of::<KeptBatch>() + 64;
/// Events of several batches are kept together up to this many bytes, and this much time in nanoseconds.
pub(super) const MERGED_BYTES: usize = 128 << 10;
const MERGED_NANOS: u64 = 5_000_000_000;

/// A kept batch.
#[derive(Clone, Debug)]
pub struct KeptBatch {
    /// Its number.
    pub number: Number,
    /// Its place among all that came; that of what is left of it is the same.
    pub(super) order: u64,
    /// When the last of its events was read.
    pub at: UnixNanos,
    /// When its first event was read.
    began: UnixNanos,
    /// Events of the same class and listener between the kept batch before it and this one are not kept.
    pub follows_gap: bool,
    content: KeptEvents,
    pub(super) bytes: usize,
    /// The number of the choice of traces by which it was last looked through.
    pub(super) choice: u64,
}

/// The events of one class of a batch.
#[derive(Clone, Debug)]
enum KeptEvents {
    Open(Arc<Batch>),
    Packed(Arc<PackedBatch>),
}

/// A batch in few bytes.
#[derive(Debug)]
pub(crate) struct PackedBatch {
    /// Its columns, compressed.
    columns: Box<[u8]>,
    parts: PackedParts,
    len: usize,
    /// The upper halves of the hashes of its traces, in ascending order.
    traces: Box<[u32]>,
}

impl KeptBatch {
    pub(super) fn new(number: Number, batch: Batch, choice: u64) -> KeptBatch {
        let at = last_observed(&batch);
        let bytes = batch.memory_bytes() + KEPT_BYTES;
        let content = KeptEvents::Open(Arc::new(batch));
        KeptBatch { number, order: number, at, began: at, follows_gap: false, content, bytes, choice }
    }

    /// Its events. Those of a packed batch are unpacked each time.
    pub fn batch(&self) -> Arc<Batch> {
        match &self.content {
            KeptEvents::Open(batch) => batch.clone(),
            KeptEvents::Packed(packed) => packed.unpack(),
        }
    }

    /// Whether it is packed.
    pub fn is_packed(&self) -> bool {
        self.packed().is_some()
    }

    fn packed(&self) -> Option<&PackedBatch> {
        match &self.content {
            KeptEvents::Open(_) => None,
            KeptEvents::Packed(packed) => Some(packed),
        }
    }

    /// The number of its events.
    pub fn len(&self) -> usize {
        match &self.content {
            KeptEvents::Open(batch) => batch.len(),
            KeptEvents::Packed(packed) => packed.len,
        }
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it can have spans of this trace, or logs that belong to it.
    pub fn may_have(&self, trace: TraceId) -> bool {
        let upper = high(TraceChoice::hash(trace));
        self.traces().is_none_or(|traces| traces.binary_search(&upper).is_ok())
    }

    /// The upper halves of the hashes of its traces; `None`: it is not packed.
    pub(super) fn traces(&self) -> Option<&[u32]> {
        self.packed().map(|packed| &*packed.traces)
    }

    /// The batch, if it is not packed.
    pub(super) fn open(&self) -> Option<&Arc<Batch>> {
        match &self.content {
            KeptEvents::Open(batch) => Some(batch),
            KeptEvents::Packed(_) => None,
        }
    }

    /// The parts that it shares with other packed batches.
    pub(super) fn packed_parts(&self) -> Option<&PackedParts> {
        self.packed().map(|packed| &packed.parts)
    }

    /// Puts a packed batch in the place of an equal one.
    pub(super) fn replace(&mut self, packed: PackedBatch) {
        self.bytes = packed.memory_bytes();
        self.content = KeptEvents::Packed(Arc::new(packed));
    }

    /// Appends these events of a batch behind it, if both are near, and this one is small and not read by anyone.
    pub(super) fn append(&mut self, from: &Batch, is_chosen: impl Fn(usize) -> bool) -> bool {
        let observed = last_observed(from);
        let fits = self.bytes < MERGED_BYTES && self.is_near(observed);
        let KeptEvents::Open(open) = &mut self.content else { return false };
        let Some(open) = Arc::get_mut(open).filter(|_| fits) else { return false };
        open.append_copy_of(from, is_chosen);
        self.bytes = open.memory_bytes() + KEPT_BYTES;
        self.at = self.at.max(observed);
        true
    }

    /// Whether events that were read at this time may be kept together with these.
    pub(super) fn is_near(&self, at: UnixNanos) -> bool {
        at.0.saturating_sub(self.began.0) < MERGED_NANOS
    }

    /// What is left of it, or of it and later ones.
    pub(super) fn rest(mut self, number: Number, batch: Batch, is_packed: bool) -> KeptBatch {
        (self.number, self.follows_gap) = (number, true);
        match is_packed.then(|| PackedBatch::of(&batch)).flatten() {
            Some(packed) => self.replace(packed),
            None => {
                self.content = KeptEvents::Open(Arc::new(batch));
                self.shrink();
            }
        }
        self
    }

    /// Gives back the memory that no event takes.
    pub(super) fn shrink(&mut self) {
        if let KeptEvents::Open(open) = &mut self.content
            && let Some(open) = Arc::get_mut(open)
        {
            open.shrink();
            self.bytes = open.memory_bytes() + KEPT_BYTES;
        }
    }
}

impl PackedBatch {
    /// `None`: it has events of a kind that is not packed.
    pub(crate) fn of(batch: &Batch) -> Option<PackedBatch> {
        let (columns, parts) = batch.pack()?;
        let traces: HashSet<u32, RandomState> = batch.events().filter_map(trace_of_any).map(high).collect();
        let mut traces: Box<[u32]> = traces.into_iter().collect();
        traces.sort_unstable();
        let columns = block::compress_prepend_size(&columns).into_boxed_slice();
        Some(PackedBatch { columns, parts, len: batch.len(), traces })
    }

    fn unpack(&self) -> Arc<Batch> {
        let columns = block::decompress_size_prepended(&self.columns).ok();
        // It is what was packed, so it can be unpacked.
        columns.and_then(|columns| self.parts.unpack(&columns)).unwrap_or_default().into()
    }

    /// Without the parts that it shares with others.
    pub(super) fn memory_bytes(&self) -> usize {
        let parts = (self.parts.origins.len() + self.parts.resources.len()) * size_of::<Arc<Origin>>();
        PACKED_BYTES + self.columns.len() + self.traces.len() * size_of::<u32>() + parts
    }
}

/// When the last event of a batch was read.
fn last_observed(batch: &Batch) -> UnixNanos {
    batch.events().last().map_or(UnixNanos(0), |event| event.observed())
}

/// The hash of the trace of a span.
pub(super) fn trace_of(event: EventView<'_>) -> Option<u64> {
    match event.data() {
        DataView::Span(span) => Some(TraceChoice::hash(span.trace_id)),
        _ => None,
    }
}

/// The hash of the trace of a span, or of one that a log belongs to.
fn trace_of_any(event: EventView<'_>) -> Option<u64> {
    match event.data() {
        DataView::Log { context: Some(context), .. } => Some(TraceChoice::hash(context.trace_id)),
        _ => trace_of(event),
    }
}
