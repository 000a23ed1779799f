//! Copies of batches within a bound of memory, spread evenly over the time since they began.
//!
//! Batches are kept in a ring for each class and listener. When all rings together are too large, every second batch of the
//! largest ring is dropped, and from then on only every second one of its batches is kept, and so on: a ring of much traffic
//! becomes sparse and still reaches back to the beginning of the window, and a ring of little traffic stays complete. Spans are not
//! kept by batches but by traces: of all rings of spans together, those of every second trace go, and so on, so that what is kept of a
//! trace is all of it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tributary_event::{Batch, DataView, EventView, Kind, Origin, UnixNanos};

use super::class::{Class, Classes};
use super::notable::NotableTraces;
use super::traces::TraceChoice;

/// The most rings. A listener has at most eight.
const MAX_RINGS: usize = 1024;
/// Memory of a kept batch besides what it says itself.
const KEPT_BYTES: usize = size_of::<Batch>() + size_of::<KeptBatch>() + 32;
/// Spans of several batches are kept together up to this many bytes, and this much time in nanoseconds.
const MERGED_BYTES: usize = 64 << 10;
const MERGED_NANOS: u64 = 5_000_000_000;
/// One part of this many of the memory is added for batches that wait.
pub(super) const WAITING_PART: usize = 4;
/// A ring keeps at least one batch of this many.
const MAX_STRIDE: u64 = 1 << 20;

/// The number of a kept batch; never used again.
pub type Number = u64;

/// A kept batch.
#[derive(Clone, Debug)]
pub struct KeptBatch {
    /// Its number.
    pub number: Number,
    /// Its place among all that came; that of what is left of it is the same.
    order: u64,
    /// When the last of its events was read.
    pub at: UnixNanos,
    /// When its first event was read.
    began: UnixNanos,
    /// Events of the same class and listener between the kept batch before it and this one are not kept.
    pub follows_gap: bool,
    /// The events of one class of a batch.
    pub batch: Arc<Batch>,
    bytes: usize,
}

/// All rings.
#[derive(Debug)]
pub struct ViewStore {
    rings: Vec<Ring>,
    /// Of the heap objects and the events without a ring, the events that were seen.
    unkept: u64,
    bytes: usize,
    limit: usize,
    window: Duration,
    next: Number,
    skipped: u64,
    traces: TraceChoice,
    notable: NotableTraces,
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
            limit,
            window,
            next: 1,
            skipped: 0,
            traces: TraceChoice::new(),
            notable: NotableTraces::new(limit / WAITING_PART, limit),
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
        self.bytes + self.notable.memory_bytes()
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
        let bytes = copy.memory_bytes() + KEPT_BYTES;
        let has_memory = bytes <= self.limit / 2 && (may_drop || self.bytes + bytes <= self.limit);
        if has_memory {
            self.push(at, copy, bytes, count);
        }
        has_memory
    }

    fn push(&mut self, at: usize, copy: Batch, bytes: usize, events: u64) {
        let ring = &mut self.rings[at];
        let observed = last_observed(&copy);
        let follows_gap = std::mem::take(&mut ring.has_gap);
        ring.kept += events;
        ring.bytes += bytes;
        self.bytes += bytes;
        let kept = KeptBatch {
            number: self.next,
            order: self.next,
            at: observed,
            began: observed,
            follows_gap,
            batch: Arc::new(copy),
            bytes,
        };
        self.next += 1;
        ring.batches.push_back(kept);
        self.thin_to_limit();
    }

    /// Drops until the rest is within the limit.
    fn thin_to_limit(&mut self) {
        while self.bytes > self.limit {
            self.thin();
        }
    }

    /// Adds the events of a batch but its spans. If nothing may be dropped now and there is no memory, they are not kept.
    pub(super) fn add(&mut self, batch: &Batch, origin: &Arc<Origin>, classes: &Classes, may_drop: bool) {
        for (class, events) in classes.counts().filter(|(class, _)| *class != Class::Spans) {
            let ring = if class == Class::HeapObjects { None } else { self.ring(class, origin) };
            let Some(at) = ring else {
                self.unkept += events;
                continue;
            };
            let ring = &mut self.rings[at];
            ring.seen += events;
            ring.passed += 1;
            if ring.passed < ring.stride || (!may_drop && self.bytes >= self.limit) {
                ring.has_gap = true;
                continue;
            }
            ring.passed = 0;
            let copy = batch.copy_of(|index| classes.is(index, class));
            let bytes = copy.memory_bytes() + KEPT_BYTES;
            if bytes > self.limit / 2 || (!may_drop && self.bytes + bytes > self.limit) {
                ring.has_gap = true;
                continue;
            }
            self.push(at, copy, bytes, events);
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
            let before = self.bytes;
            if self.traces.halve() {
                self.drop_traces();
            }
            if self.bytes > before / 4 * 3 && self.notable.halve() {
                self.drop_traces();
            }
            if self.bytes < before {
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

    /// Drops the spans of traces that are not kept any more. What is left of a batch gets another number: its events have other
    /// places.
    fn drop_traces(&mut self) {
        let (traces, notable) = (&self.traces, &self.notable);
        let stays =
            |event: EventView<'_>| trace_of(event).is_some_and(|hash| traces.still_keeps(hash, notable.has(hash)));
        for ring in self.rings.iter_mut().filter(|ring| ring.class == Class::Spans) {
            let all = std::mem::take(&mut ring.batches);
            for mut kept in all {
                let chosen: Vec<bool> = kept.batch.events().map(stays).collect();
                match chosen.iter().filter(|chosen| **chosen).count() {
                    0 => continue,
                    count if count == chosen.len() => {}
                    _ if ring.batches.back_mut().is_some_and(|last| last.append_part(&kept.batch, &chosen)) => continue,
                    _ => {
                        let copy = kept.batch.copy_of(|index| chosen[index]);
                        kept.bytes = copy.memory_bytes() + KEPT_BYTES;
                        (kept.batch, kept.follows_gap, kept.number) = (Arc::new(copy), true, self.next);
                        self.next += 1;
                    }
                }
                ring.batches.push_back(kept);
            }
            let before = ring.bytes;
            ring.count();
            self.bytes = self.bytes - before + ring.bytes;
        }
        self.traces.have_dropped();
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
            if self.bytes < self.limit / 2 {
                ring.stride = (ring.stride / 2).max(1);
            }
        }
        if self.traces.has_to_drop() {
            self.drop_traces();
        }
        self.traces.advance(now, self.bytes < self.limit / 4);
        self.notable.expire(now);
        self.thin_to_limit();
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

impl KeptBatch {
    /// Appends these spans of a batch behind it, if both are near, and this one is small and not read by anyone.
    fn append(&mut self, from: &Batch, is_chosen: impl Fn(usize) -> bool) -> bool {
        let observed = last_observed(from);
        let fits = self.bytes < MERGED_BYTES && observed.0.saturating_sub(self.began.0) < MERGED_NANOS;
        let Some(open) = Arc::get_mut(&mut self.batch).filter(|_| fits) else { return false };
        open.append_copy_of(from, is_chosen);
        self.bytes = open.memory_bytes() + KEPT_BYTES;
        self.at = self.at.max(observed);
        true
    }

    /// The same; nothing follows soon.
    fn append_part(&mut self, from: &Batch, chosen: &[bool]) -> bool {
        let is_appended = self.append(from, |index| chosen[index]);
        if is_appended {
            self.shrink();
        }
        is_appended
    }

    /// Gives back the memory that no event takes.
    fn shrink(&mut self) {
        if let Some(open) = Arc::get_mut(&mut self.batch) {
            open.shrink();
            self.bytes = open.memory_bytes() + KEPT_BYTES;
        }
    }
}

/// When the last event of a batch was read.
fn last_observed(batch: &Batch) -> UnixNanos {
    batch.events().last().map_or(UnixNanos(0), |event| event.observed())
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
        self.kept = self.batches.iter().map(|kept| kept.batch.len() as u64).sum();
    }

    fn pop(&mut self) -> usize {
        let Some(kept) = self.batches.pop_front() else { return 0 };
        self.bytes -= kept.bytes;
        self.kept -= kept.batch.len() as u64;
        if let Some(next) = self.batches.front_mut() {
            next.follows_gap = true;
        }
        kept.bytes
    }
}

/// The hash of the trace of a span.
fn trace_of(event: EventView<'_>) -> Option<u64> {
    match event.data() {
        DataView::Span(span) => Some(TraceChoice::hash(span.trace_id)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class::classes;
    use tributary_event::{BatchBuilder, Header, Position, Severity, SpanData, SpanId, Status, TraceId, semconv};

    /// Logs of a listener that were read at `at`, with names of `bytes` bytes.
    fn batch(listener: &str, at: u64, events: usize, bytes: usize) -> Batch {
        let origin = Origin::new("datadog", listener.into(), "peer".into(), at);
        let mut batch = BatchBuilder::new(origin.into());
        let name = batch.push_text(&"n".repeat(bytes));
        for _ in 0..events {
            let header =
                Header { name: name.into(), time: None, observed: UnixNanos(at), position: Position::default() };
            batch.event(header).log(Severity::Info, None);
        }
        batch.take()
    }

    fn add(store: &mut ViewStore, batch: &Batch, may_drop: bool) {
        let origin = batch.origin().unwrap().clone();
        store.add(batch, &origin, &classes(batch), may_drop);
    }

    fn times(store: &ViewStore, listener: &str) -> Vec<(u64, bool)> {
        let batches = store.batches(UnixNanos(0), |_, _, of| of == listener);
        batches.into_iter().map(|(_, kept)| (kept.at.0, kept.follows_gap)).collect()
    }

    #[test]
    fn a_busy_ring_becomes_sparse_and_a_quiet_one_stays_complete() {
        let mut store = ViewStore::new(100_000, Duration::from_secs(1));
        for at in 0..1000 {
            add(&mut store, &batch("busy", at, 1, 1000), true);
            if at % 100 == 0 {
                add(&mut store, &batch("quiet", at, 1, 10), true);
            }
            assert!(store.memory_bytes() <= 100_000);
        }
        let quiet: Vec<u64> = times(&store, "quiet").into_iter().map(|(at, _)| at).collect();
        assert_eq!(quiet, (0..1000).step_by(100).collect::<Vec<_>>());
        let busy = times(&store, "busy");
        assert!(busy.len() > 20 && busy[0].0 < 200 && busy.last().unwrap().0 > 900, "{busy:?}");
        assert!(busy.windows(2).all(|pair| pair[1].1 == (pair[1].0 - pair[0].0 > 1)), "{busy:?}");
        assert_eq!(store.counts(), (1010, (busy.len() + quiet.len()) as u64));
    }

    #[test]
    fn batches_leave_the_window_and_their_numbers_find_nothing_then() {
        let mut store = ViewStore::new(1 << 20, Duration::from_nanos(50));
        (0..10).for_each(|at| add(&mut store, &batch("test", at * 10, 2, 10), true));
        assert_eq!(store.batch(1).unwrap().batch.len(), 2);
        store.expire(UnixNanos(100));
        assert_eq!(times(&store, "test").first(), Some(&(50, true)));
        assert!(store.batch(5).is_none() && store.batch(6).is_some());
        store.expire(UnixNanos(1000));
        assert_eq!((store.counts(), store.memory_bytes()), ((20, 0), 0));
    }

    #[test]
    fn while_batches_are_read_none_is_dropped_and_none_exceeds_the_limit() {
        let mut store = ViewStore::new(20_000, Duration::from_secs(1));
        (0..100).for_each(|at| add(&mut store, &batch("test", at, 1, 1000), false));
        let kept = times(&store, "test");
        assert!(!kept.is_empty() && store.memory_bytes() <= 20_000);
        assert!(kept.iter().enumerate().all(|(index, (at, _))| *at == index as u64), "the first ones stay: {kept:?}");
        add(&mut store, &batch("test", 100, 1, 1000), true);
        assert_eq!(times(&store, "test").last(), Some(&(100, true)));
        // One that would fill the store alone is not kept.
        add(&mut store, &batch("other", 101, 1, 15_000), true);
        assert!(times(&store, "other").is_empty());
    }

    /// A batch with the spans of these traces, which are read at `at`.
    fn spans(listener: &str, at: u64, traces: &[u64]) -> Arc<Batch> {
        let origin = Origin::new("otlp", listener.into(), "peer".into(), 1);
        let mut batch = BatchBuilder::new(origin.into());
        for trace in traces {
            let name = batch.push_text("GET /orders");
            let header =
                Header { name: name.into(), time: None, observed: UnixNanos(at), position: Position::default() };
            let mut event = batch.event(header);
            event.text(semconv::SERVICE_NAME, "a text that takes some memory");
            event.span(SpanData::new(TraceId(u128::from(*trace).to_be_bytes()), SpanId(*b"12345678")));
        }
        batch.take().into()
    }

    /// How many spans of each trace are kept.
    fn kept_spans(store: &ViewStore) -> std::collections::BTreeMap<u64, usize> {
        let mut kept = std::collections::BTreeMap::new();
        let batches = store.batches(UnixNanos(0), |class, _, _| class == Class::Spans);
        for event in batches.iter().flat_map(|(_, kept)| kept.batch.events()) {
            if let DataView::Span(span) = event.data() {
                *kept.entry(u128::from_be_bytes(span.trace_id.0) as u64).or_default() += 1;
            }
        }
        kept
    }

    #[test]
    fn of_a_trace_all_spans_are_kept_or_none_over_all_listeners_and_batches() {
        const TRACES: u64 = 10_000;
        const SPANS: usize = 8;
        // Its spans come in any order, with those of a thousand traces around it, over two listeners.
        let mut order: Vec<u64> = (0..TRACES).flat_map(|trace| [trace; SPANS]).collect();
        let mut state = 0x5EED_u64;
        for at in (1..order.len()).rev() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let near = at.saturating_sub((state >> 33) as usize % 8000);
            order.swap(at, near);
        }
        let mut store = ViewStore::new(4 << 20, Duration::from_secs(3600));
        for (at, part) in (0..).zip(order.chunks(50)) {
            let batch = spans(if at % 2 == 0 { "one" } else { "two" }, at, part);
            let origin = batch.origin().unwrap().clone();
            store.add_spans(&batch, &origin, UnixNanos(at), true, true);
            assert!(store.memory_bytes() <= 5 << 20);
        }
        let kept = kept_spans(&store);
        let partial = kept.values().filter(|count| **count != SPANS).count();
        assert_eq!(partial, 0, "of {} traces", kept.len());
        assert!((300..5000).contains(&kept.len()), "{} traces", kept.len());
        let (seen, kept_events) = store.counts();
        assert_eq!((seen, kept_events), (TRACES * SPANS as u64, (kept.len() * SPANS) as u64));
        // Numbers find their batches.
        for (_, batch) in store.batches(UnixNanos(0), |_, _, _| true) {
            assert!(Arc::ptr_eq(&store.batch(batch.number).unwrap().batch, &batch.batch));
        }
    }

    #[test]
    fn a_trace_without_time_for_all_its_spans_goes_and_later_ones_are_kept_again() {
        let mut store = ViewStore::new(4 << 20, Duration::from_secs(3600));
        let second = |seconds: u64| UnixNanos(seconds * 1_000_000_000);
        let add = |store: &mut ViewStore, at: u64, traces: &[u64], has_time: bool| {
            let batch = spans("one", second(at).0, traces);
            let origin = batch.origin().unwrap().clone();
            store.add_spans(&batch, &origin, second(at), has_time, true);
        };
        let all: Vec<u64> = (0..1000).collect();
        add(&mut store, 10, &all, true);
        add(&mut store, 11, &all[..100], false);
        add(&mut store, 12, &all, true);
        store.expire(second(13));
        let kept = kept_spans(&store);
        assert!(kept.keys().all(|trace| *trace >= 100) && kept.values().all(|count| *count == 2), "{kept:?}");
        assert!((300..600).contains(&kept.len()), "half of them: {}", kept.len());
        // With time and memory, all traces again, but not the rest of one that was left out.
        (20..100).for_each(|at| store.expire(second(at)));
        add(&mut store, 100, &all, true);
        add(&mut store, 100, &(5000..6000).collect::<Vec<_>>(), true);
        let kept = kept_spans(&store);
        assert_eq!(kept.range(5000..).count(), 1000);
        assert!(kept.range(..1000).all(|(_, count)| *count == 3 || *count == 1), "{kept:?}");
    }

    /// A batch with one span: a child, or the root of its trace with its duration.
    fn one_span(at: u64, trace: u64, root: Option<(u64, Status)>) -> Arc<Batch> {
        let origin = Origin::new("otlp", "one".into(), "peer".into(), 1);
        let mut batch = BatchBuilder::new(origin.into());
        let name = batch.push_text(if root.is_some() { "GET /orders" } else { "query" });
        let header = Header { name: name.into(), time: None, observed: UnixNanos(at), position: Position::default() };
        let (nanos, status) = root.unwrap_or((1000, Status::Unset));
        batch.event(header).span(SpanData {
            parent: root.is_none().then_some(SpanId(*b"the root")),
            duration_nanos: Some(nanos),
            status,
            ..SpanData::new(TraceId(u128::from(trace).to_be_bytes()), SpanId(*b"12345678"))
        });
        batch.take().into()
    }

    #[test]
    fn the_slowest_and_a_failed_trace_of_each_minute_are_kept_with_all_their_spans() {
        const SPANS: usize = 5;
        let mut store = ViewStore::new(1 << 20, Duration::from_secs(3600));
        let mut add = |batch: &Arc<Batch>, at: u64| {
            let origin = batch.origin().unwrap().clone();
            store.add_spans(batch, &origin, UnixNanos(at), true, true);
        };
        // A trace each millisecond; its children come before its root.
        let at = |trace: u64| 1_795_171_200_000_000_000 + trace * 1_000_000;
        for trace in 0..30_000 {
            (1..SPANS).for_each(|_| add(&one_span(at(trace), trace, None), at(trace)));
            let is_slow = trace % 1000 == 500;
            let status = if trace == 20_000 { Status::Error } else { Status::Unset };
            let nanos = if is_slow { 100_000 + trace } else { 1_000 + trace % 17 };
            add(&one_span(at(trace), trace, Some((nanos, status))), at(trace));
        }
        let kept = kept_spans(&store);
        assert!(kept.len() < 3000, "{} traces", kept.len());
        let partial: Vec<_> = kept.iter().filter(|(_, count)| **count != SPANS).collect();
        assert!(partial.is_empty(), "{partial:?}");
        // The slowest one that came, and the failed one.
        assert!(kept.contains_key(&29_500) && kept.contains_key(&20_000), "{:?}", kept.keys());
    }

    #[test]
    fn few_large_batches_of_many_listeners_do_not_exceed_the_limit() {
        let mut store = ViewStore::new(20_000, Duration::from_secs(1));
        for at in 0..10 {
            add(&mut store, &batch(&format!("listener-{at}"), at, 1, 7000), true);
            assert!(store.memory_bytes() <= 20_000);
        }
        assert!(store.counts().1 >= 1);
    }
}
