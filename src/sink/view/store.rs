//! Copies of batches within a bound of memory, spread evenly over the time since they began.
//!
//! Batches are kept in a ring for each class and listener. When all rings together are too large, every second batch of the
//! largest ring is dropped, and from then on only every second one of its batches is kept, and so on: a ring of much traffic
//! becomes sparse and still reaches back to the beginning of the window, and a ring of little traffic stays complete. Spans are not
//! kept by batches but by traces: of all rings of spans together, those of every second trace go, and so on, so that what is kept of a
//! trace is all of it. Where spans go, they go a few batches at a time, when their memory is needed, or before anyone reads.
//!
//! Batches that are a few seconds old are packed: see [`KeptBatch::batch`].

mod kept;
mod sweep;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use hashbrown::HashSet;

use tributary_event::{Batch, EventView, Kind, Origin, UnixNanos};

use super::class::{Class, Classes};
use super::notable::NotableTraces;
use super::traces::TraceChoice;
pub(crate) use kept::PackedBatch;
pub use kept::{KeptBatch, Number};
use kept::{MERGED_BYTES, trace_of};

/// The most rings. A listener has at most eight.
const MAX_RINGS: usize = 1024;
/// One part of this many of the memory is added for batches that wait.
pub(super) const WAITING_PART: usize = 4;
/// Where spans have to go, this part of the memory is freed at a time.
const SWEEP_PART: usize = 64;
/// Batches of this age in nanoseconds are packed.
const PACKED_AGE: u64 = 2_000_000_000;
/// A ring keeps at least one batch of this many.
const MAX_STRIDE: u64 = 1 << 20;

/// All rings.
#[derive(Debug)]
pub struct ViewStore {
    rings: Vec<Ring>,
    /// Of the heap objects and the events without a ring, the events that were seen.
    unkept: u64,
    /// The bytes of all rings, and of what packed batches share.
    bytes: usize,
    shared: usize,
    limit: usize,
    window: Duration,
    next: Number,
    skipped: u64,
    traces: TraceChoice,
    notable: NotableTraces,
    /// The number of the present choice of traces, and the bytes that were freed by it.
    choice: u64,
    freed: usize,
}

#[derive(Debug)]
struct Ring {
    class: Class,
    protocol: &'static str,
    listener: Arc<str>,
    batches: VecDeque<KeptBatch>,
    bytes: usize,
    /// One batch of this many is kept.
    stride: u64,
    /// Batches that came since one was kept.
    passed: u64,
    /// Events that were not kept came since one was.
    has_gap: bool,
    /// Events that came, and those that are in `batches`.
    seen: u64,
    kept: u64,
}

impl ViewStore {
    /// A store of at most `limit` bytes, and a quarter of it for batches that wait.
    pub fn new(limit: usize, window: Duration) -> Self {
        ViewStore {
            rings: Vec::new(),
            unkept: 0,
            bytes: 0,
            shared: 0,
            limit,
            window,
            next: 1,
            skipped: 0,
            traces: TraceChoice::new(),
            notable: NotableTraces::new(limit / WAITING_PART, limit),
            choice: 0,
            freed: usize::MAX,
        }
    }

    /// Sets the most bytes, and for how long batches are kept. If nothing may be dropped now, later calls do it.
    pub(super) fn set_limits(&mut self, limit: usize, window: Duration, may_drop: bool) {
        (self.limit, self.window) = (limit, window);
        self.notable = NotableTraces::new(limit / WAITING_PART, limit);
        self.traces.drop_others();
        if may_drop {
            self.thin_to_limit();
        }
    }

    /// Sets the most bytes of what is kept; those of batches that wait stay.
    pub(super) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Bytes of memory.
    pub fn memory_bytes(&self) -> usize {
        self.kept_bytes() + self.notable.memory_bytes()
    }

    /// Bytes of what is kept.
    fn kept_bytes(&self) -> usize {
        self.bytes + self.shared
    }

    /// The events that came, and those that are kept.
    pub fn counts(&self) -> (u64, u64) {
        let rings = self.rings.iter();
        rings.fold((self.unkept, 0), |(seen, kept), ring| (seen + ring.seen, kept + ring.kept))
    }

    /// The events that came of these listeners.
    pub fn seen_of(&self, is_wanted: impl Fn(&str) -> bool) -> u64 {
        self.rings.iter().filter(|ring| is_wanted(&ring.listener)).map(|ring| ring.seen).sum()
    }

    /// The number of events that were skipped before the next batch: if it has grown, something is missing in every ring.
    pub fn note_skipped(&mut self, skipped: u64) {
        if skipped != self.skipped {
            self.skipped = skipped;
            self.rings.iter_mut().for_each(|ring| ring.has_gap = true);
        }
    }

    /// Whether calls of a listener are missing before the next batch.
    pub fn has_gap(&self, listener: &str) -> bool {
        self.rings.iter().any(|ring| ring.class == Class::Calls && &*ring.listener == listener && ring.has_gap)
    }

    /// Adds the spans of a batch whose traces are kept. Without time for that, or without memory if nothing may be dropped now, their
    /// traces are not kept any more.
    pub(super) fn add_spans(
        &mut self,
        batch: &Arc<Batch>,
        origin: &Arc<Origin>,
        now: UnixNanos,
        has_time: bool,
        may_drop: bool,
    ) {
        let spans = batch.count(Kind::Span);
        let Some(at) = self.ring(Class::Spans, origin) else {
            self.unkept += spans;
            return;
        };
        let traces = &mut self.traces;
        if !has_time {
            traces.slow_down(now);
        }
        let notable = &self.notable;
        let mut keeps = |hash: &u64| match notable.has(*hash) {
            true => !traces.is_torn(*hash),
            false => traces.keeps(*hash),
        };
        let hashes: Vec<u64> = batch.events().map(|event| trace_of(event).filter(&mut keeps).unwrap_or(0)).collect();
        let ring = &mut self.rings[at];
        ring.seen += if has_time { spans } else { 0 };
        let count = hashes.iter().filter(|hash| **hash > 0).count() as u64;
        ring.has_gap |= count < spans;
        let is_kept =
            count == 0 || (has_time && self.keep_spans(at, batch, |index| hashes[index] > 0, count, may_drop));
        if !is_kept {
            self.rings[at].has_gap = true;
            hashes.iter().filter(|hash| **hash > 0).for_each(|hash| self.traces.tear(*hash));
        }
        if has_time && may_drop && self.traces.has_some() {
            self.keep_notable(batch, now);
        }
    }

    /// Keeps the traces that turn out to be slow or failed, with their spans of the last seconds.
    fn keep_notable(&mut self, batch: &Arc<Batch>, now: UnixNanos) {
        let (found, gone) = self.notable.add(batch, now, &self.traces);
        let is_left_out = |hash: &u64| !self.traces.still_keeps(*hash, false);
        let gone: Vec<u64> = gone.into_iter().filter(is_left_out).collect();
        gone.into_iter().for_each(|hash| self.traces.tear(hash));
        if found.is_empty() {
            return;
        }
        for waiting in self.notable.waiting() {
            let is_found = |event: EventView<'_>| trace_of(event).is_some_and(|hash| found.contains(&hash));
            let chosen: Vec<bool> = waiting.events().map(is_found).collect();
            let count = chosen.iter().filter(|chosen| **chosen).count() as u64;
            let origin = waiting.origin().filter(|_| count > 0);
            if let Some(at) = origin.and_then(|origin| self.ring(Class::Spans, origin)) {
                self.keep_spans(at, &waiting, |index| chosen[index], count, true);
            }
        }
    }

    /// Keeps these spans of a batch. `false`: there is no memory.
    fn keep_spans(
        &mut self,
        at: usize,
        batch: &Batch,
        is_chosen: impl Fn(usize) -> bool,
        count: u64,
        may_drop: bool,
    ) -> bool {
        let ring = &mut self.rings[at];
        if let Some(last) = ring.batches.back_mut() {
            let before = last.bytes;
            let is_appended = may_drop && last.append(batch, &is_chosen);
            if !is_appended {
                last.shrink();
            }
            ring.bytes = ring.bytes - before + last.bytes;
            self.bytes = self.bytes - before + last.bytes;
            if is_appended {
                ring.kept += count;
                self.thin_to_limit();
                return true;
            }
        }
        let copy = batch.copy_of(is_chosen);
        self.push(at, copy, may_drop)
    }

    /// Keeps a batch. `false`: there is no memory.
    fn push(&mut self, at: usize, batch: Batch, may_drop: bool) -> bool {
        let mut kept = KeptBatch::new(self.next, batch, self.choice);
        if kept.bytes > self.limit / 2 || (!may_drop && self.kept_bytes() + kept.bytes > self.limit) {
            return false;
        }
        self.next += 1;
        let ring = &mut self.rings[at];
        kept.follows_gap = std::mem::take(&mut ring.has_gap);
        ring.kept += kept.len() as u64;
        ring.bytes += kept.bytes;
        self.bytes += kept.bytes;
        ring.batches.push_back(kept);
        self.thin_to_limit();
        true
    }

    /// Drops until the rest is within the limit.
    fn thin_to_limit(&mut self) {
        while self.kept_bytes() > self.limit && self.bytes > 0 {
            self.thin();
            self.count_shared();
        }
    }

    /// Counts what packed batches share.
    fn count_shared(&mut self) {
        let parts = || self.rings.iter().flat_map(|ring| &ring.batches).filter_map(KeptBatch::packed_parts);
        let mut counted: HashSet<usize, RandomState> = HashSet::default();
        let resources = parts().flat_map(|parts| &parts.resources);
        let of_resources: usize = resources
            .filter(|resource| counted.insert(Arc::as_ptr(resource).addr()))
            .map(|resource| resource.memory_bytes())
            .sum();
        let origins = parts().flat_map(|parts| &parts.origins);
        let of_origins =
            origins.filter(|origin| counted.insert(Arc::as_ptr(origin).addr())).count() * Origin::MEMORY_BYTES;
        self.shared = of_resources + of_origins;
    }

    /// Adds the events of a batch but its spans. If nothing may be dropped now and there is no memory, they are not kept.
    pub(super) fn add(&mut self, batch: &Batch, origin: &Arc<Origin>, classes: &Classes, may_drop: bool) {
        for (class, events) in classes.counts().filter(|(class, _)| *class != Class::Spans) {
            let ring = if class == Class::HeapObjects { None } else { self.ring(class, origin) };
            let Some(at) = ring else {
                self.unkept += events;
                continue;
            };
            let has_memory = may_drop || self.kept_bytes() < self.limit;
            let ring = &mut self.rings[at];
            ring.seen += events;
            ring.passed += 1;
            if ring.passed < ring.stride || !has_memory {
                ring.has_gap = true;
                continue;
            }
            ring.passed = 0;
            let copy = batch.copy_of(|index| classes.is(index, class));
            if !self.push(at, copy, may_drop) {
                self.rings[at].has_gap = true;
            }
        }
    }

    fn ring(&mut self, class: Class, origin: &Origin) -> Option<usize> {
        let is_it =
            |ring: &Ring| ring.class == class && *ring.listener == *origin.listener && ring.protocol == origin.protocol;
        if let Some(at) = self.rings.iter().position(is_it) {
            return Some(at);
        }
        if self.rings.len() >= MAX_RINGS {
            return None;
        }
        self.rings.push(Ring {
            class,
            protocol: origin.protocol,
            listener: origin.listener.clone(),
            batches: VecDeque::new(),
            bytes: 0,
            stride: 1,
            passed: 0,
            has_gap: false,
            seen: 0,
            kept: 0,
        });
        Some(self.rings.len() - 1)
    }

    /// Drops every second trace, or every second batch of the largest ring of other events, or its only one.
    fn thin(&mut self) {
        let is_of_spans = |ring: &&Ring| ring.class == Class::Spans;
        let of_spans: usize = self.rings.iter().filter(is_of_spans).map(|ring| ring.bytes).sum();
        let others = self.rings.iter().filter(|ring| ring.class != Class::Spans);
        if of_spans >= others.map(|ring| ring.bytes).max().unwrap_or(0) && of_spans > 0 {
            if self.drop_traces() {
                return;
            }
            // One trace has all the memory: its oldest spans go.
            let rings = self.rings.iter_mut().filter(|ring| ring.class == Class::Spans);
            if let Some(ring) = rings.max_by_key(|ring| ring.bytes) {
                self.bytes -= ring.pop();
                ring.has_gap = true;
            }
            return;
        }
        let others = self.rings.iter_mut().filter(|ring| ring.class != Class::Spans);
        let Some(ring) = others.max_by_key(|ring| ring.bytes) else { return };
        if ring.batches.len() == 1 {
            self.bytes -= ring.pop();
            ring.has_gap = true;
            return;
        }
        let mut is_dropped = false;
        let mut index = 0;
        // The newest batch stays.
        let keeps = ring.batches.len() % 2 == 0;
        let freed = ring.retain(|kept| {
            index += 1;
            let stays = (index % 2 == 0) == keeps;
            kept.follows_gap |= std::mem::replace(&mut is_dropped, !stays);
            stays
        });
        ring.stride = (ring.stride * 2).min(MAX_STRIDE);
        self.bytes -= freed;
    }

    /// Drops batches that are older than the window, and those for which there is no memory. If there is memory then, a
    /// larger part of later batches is kept.
    pub fn expire(&mut self, now: UnixNanos) {
        let window = u64::try_from(self.window.as_nanos()).unwrap_or(u64::MAX);
        let oldest = UnixNanos(now.0.saturating_sub(window));
        for ring in &mut self.rings {
            while ring.batches.front().is_some_and(|kept| kept.at < oldest) {
                self.bytes -= ring.pop();
            }
            if self.bytes + self.shared < self.limit / 2 {
                ring.stride = (ring.stride / 2).max(1);
            }
        }
        if self.traces.has_to_drop() {
            self.choice += 1;
            self.finish_sweep();
            self.traces.have_dropped();
        }
        self.count_shared();
        // Of what else is kept, much goes when spans need the memory.
        let of_spans: usize = self.rings.iter().filter(|ring| ring.class == Class::Spans).map(|ring| ring.bytes).sum();
        self.traces.advance(now, of_spans < self.limit / 4);
        self.notable.expire(now);
        self.thin_to_limit();
    }

    /// Batches that are to be packed, each after its place.
    pub(super) fn to_pack(&self, now: UnixNanos) -> Vec<(PackedPlace, Arc<Batch>)> {
        let mut found = Vec::new();
        for (ring, of) in self.rings.iter().enumerate().filter(|(_, ring)| is_packed(ring.class)) {
            for (index, kept) in of.batches.iter().enumerate() {
                let is_last = index + 1 == of.batches.len();
                let is_old = kept.at.0.saturating_add(PACKED_AGE) <= now.0 && (!is_last || !kept.is_near(now));
                if let Some(batch) = kept.open().filter(|_| is_old) {
                    found.push((PackedPlace { ring, order: kept.order }, batch.clone()));
                }
            }
        }
        found
    }

    /// Puts a packed batch in the place of what it was made of, if that is still there.
    pub(super) fn set_packed(&mut self, place: PackedPlace, of: &Arc<Batch>, packed: PackedBatch) {
        let ring = &mut self.rings[place.ring];
        let Ok(index) = ring.batches.binary_search_by_key(&place.order, |kept| kept.order) else { return };
        let kept = &mut ring.batches[index];
        if kept.open().is_some_and(|open| Arc::ptr_eq(open, of)) {
            let before = kept.bytes;
            kept.replace(packed);
            ring.bytes = ring.bytes - before + kept.bytes;
            self.bytes = self.bytes - before + kept.bytes;
        }
    }

    /// The batches of the wanted rings whose events were read at `from` or later, in the order of their numbers.
    pub fn batches(&self, from: UnixNanos, is_wanted: impl Fn(Class, &str, &str) -> bool) -> Vec<(Class, KeptBatch)> {
        let rings = self.rings.iter().filter(|ring| is_wanted(ring.class, ring.protocol, &ring.listener));
        let batches = |ring: &'_ Ring| {
            let class = ring.class;
            ring.batches
                .iter()
                .filter(|kept| kept.at >= from)
                .map(move |kept| (class, kept.clone()))
                .collect::<Vec<_>>()
        };
        let mut batches: Vec<(Class, KeptBatch)> = rings.flat_map(batches).collect();
        batches.sort_by_key(|(_, kept)| kept.order);
        batches
    }

    /// A kept batch.
    pub fn batch(&self, number: Number) -> Option<KeptBatch> {
        self.rings.iter().find_map(|ring| {
            // What is left of a batch has another number than those around it.
            ring.batches.iter().find(|kept| kept.number == number).cloned()
        })
    }
}

/// The place of a batch that is packed.
#[derive(Clone, Copy, Debug)]
pub(super) struct PackedPlace {
    ring: usize,
    order: u64,
}

/// Whether batches of a class are packed: those of spans and logs.
fn is_packed(class: Class) -> bool {
    matches!(class.kind(), Kind::Span | Kind::Log)
}

impl Ring {
    /// Drops the batches for which `stays` is false. Returns their bytes.
    fn retain(&mut self, stays: impl FnMut(&mut KeptBatch) -> bool) -> usize {
        let before = self.bytes;
        self.batches.retain_mut(stays);
        self.count();
        before - self.bytes
    }

    /// Counts what there is.
    fn count(&mut self) {
        self.bytes = self.batches.iter().map(|kept| kept.bytes).sum();
        self.kept = self.batches.iter().map(|kept| kept.len() as u64).sum();
    }

    fn pop(&mut self) -> usize {
        let Some(kept) = self.batches.pop_front() else { return 0 };
        self.bytes -= kept.bytes;
        self.kept -= kept.len() as u64;
        if let Some(next) = self.batches.front_mut() {
            next.follows_gap = true;
        }
        kept.bytes
    }
}

#[cfg(test)]
mod tests;
