//! Traces that are kept although their ids are not chosen: the slowest and the failed ones of each operation and minute. They are found
//! when a root comes, which says how long all of the trace took, so the batches of the last seconds wait here, until that is known of their spans.

use std::collections::VecDeque;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::{HashMap, HashSet};

use super::recent::RecentKeys;
use super::traces::TraceChoice;
use tributary_event::{Batch, DataView, EventView, SpanView, Status, UnixNanos};

/// How long batches wait, in nanoseconds.
const WAIT_NANOS: u64 = 10_000_000_000;
const MINUTE_NANOS: u64 = 60_000_000_000;
/// The memory of the traces that have failed lately.
const ERROR_BYTES: usize = 64 << 10;
/// The most operations for which slow traces are looked for.
const MAX_OPERATIONS: usize = 4096;
/// The most traces of each sort for each mebibyte of the store.
const TRACES_PER_MIB: usize = 8;

/// The choice of slow and failed traces.
#[derive(Debug)]
pub(super) struct NotableTraces {
    waiting: VecDeque<WaitingBatch>,
    bytes: usize,
    limit: usize,
    most: usize,
    operations: HashMap<u64, OperationRecord, RandomState>,
    /// The durations of slow traces, and their hashes.
    slow: Vec<(u64, u64)>,
    failed: VecDeque<u64>,
    /// Traces with a failed span that came lately, and when the older ones were forgotten.
    with_errors: RecentKeys,
    turned: UnixNanos,
    chosen: HashSet<u64, RandomState>,
    hasher: RandomState,
}

#[derive(Debug)]
struct WaitingBatch {
    at: UnixNanos,
    batch: Arc<Batch>,
    bytes: usize,
}

/// What there was of an operation in a minute.
#[derive(Debug, Default)]
struct OperationRecord {
    minute: u64,
    longest: u64,
    has_failed: bool,
}

impl NotableTraces {
    /// In at most `limit` bytes, for a store of `store` bytes.
    pub(super) fn new(limit: usize, store: usize) -> NotableTraces {
        NotableTraces {
            waiting: VecDeque::new(),
            bytes: 0,
            limit,
            most: ((store >> 20) * TRACES_PER_MIB).max(TRACES_PER_MIB),
            operations: HashMap::default(),
            slow: Vec::new(),
            failed: VecDeque::new(),
            with_errors: RecentKeys::new(ERROR_BYTES),
            turned: UnixNanos(0),
            chosen: HashSet::default(),
            hasher: RandomState::default(),
        }
    }

    /// Whether a trace is one of them.
    pub(super) fn has(&self, hash: u64) -> bool {
        self.chosen.contains(&hash)
    }

    /// The hashes of all of them.
    pub(super) fn chosen(&self) -> impl Iterator<Item = u64> {
        self.chosen.iter().copied()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a batch, and looks for traces that are now known to be slow or failed: returns the hashes of those that are not kept yet,
    /// and of the traces in whose place they are.
    pub(super) fn add(&mut self, batch: &Arc<Batch>, now: UnixNanos, traces: &TraceChoice) -> (Vec<u64>, Vec<u64>) {
        if !traces.has_all() {
            let bytes = batch.memory_bytes();
            self.bytes += bytes;
            self.waiting.push_back(WaitingBatch { at: now, batch: batch.clone(), bytes });
        }
        self.expire(now);
        let oldest = self.waiting.front().map_or(now, |first| first.at);
        let (mut found, mut gone) = (Vec::new(), Vec::new());
        for event in batch.events() {
            let DataView::Span(span) = event.data() else { continue };
            let hash = TraceChoice::hash(span.trace_id);
            if span.status == Status::Error {
                self.with_errors.insert(hash, 0);
            }
            // The root says how long all of the trace took.
            if span.parent.is_some() || traces.is_torn(hash) || self.has(hash) {
                continue;
            }
            let is_kept = traces.still_keeps(hash, false);
            if !is_kept && !began_after(event, span, oldest) {
                continue;
            }
            let is_failed = self.with_errors.get(hash).is_some();
            if self.is_notable(event, span, is_failed, now) && self.choose(hash, span, is_failed, &mut gone) {
                found.extend((!is_kept).then_some(hash));
            }
        }
        found.retain(|hash| self.has(*hash));
        (found, gone)
    }

    /// Batches that do not wait any more go.
    pub(super) fn expire(&mut self, now: UnixNanos) {
        if now.0.saturating_sub(self.turned.0) >= WAIT_NANOS {
            self.with_errors.turn();
            self.turned = now;
        }
        let is_over = |first: &WaitingBatch, bytes: usize, limit: usize| {
            bytes > limit || first.at.0.saturating_add(WAIT_NANOS) < now.0
        };
        while self.waiting.front().is_some_and(|first| is_over(first, self.bytes, self.limit)) {
            self.bytes -= self.waiting.pop_front().map_or(0, |first| first.bytes);
        }
    }

    /// The batches that wait, the oldest first.
    pub(super) fn waiting(&self) -> Vec<Arc<Batch>> {
        self.waiting.iter().map(|waiting| waiting.batch.clone()).collect()
    }

    /// Whether a span is the slowest root of its operation in this minute, one of the slowest of all, or the first that has failed.
    fn is_notable(&mut self, event: EventView<'_>, span: SpanView<'_>, is_failed: bool, now: UnixNanos) -> bool {
        if self.operations.len() >= MAX_OPERATIONS {
            self.operations.clear();
        }
        let key = self.hash_of(event);
        let record = self.operations.entry(key).or_default();
        let minute = now.0 / MINUTE_NANOS;
        if record.minute != minute {
            *record = OperationRecord { minute, ..OperationRecord::default() };
        }
        if is_failed && !std::mem::replace(&mut record.has_failed, true) {
            return true;
        }
        let nanos = span.duration_nanos.unwrap_or(0);
        let is_slowest = nanos > record.longest;
        record.longest = record.longest.max(nanos);
        is_slowest || self.slow.len() < self.most || self.slow.get(self.most / 2).is_some_and(|(than, _)| nanos > *than)
    }

    fn hash_of(&self, event: EventView<'_>) -> u64 {
        use std::hash::BuildHasher as _;
        self.hasher.hash_one((Arc::as_ptr(event.resource()).addr(), event.name().text()))
    }

    /// Adds a trace; of too many the quickest, or the oldest failed one, goes. `false`: that is this one.
    fn choose(&mut self, hash: u64, span: SpanView<'_>, is_failed: bool, gone: &mut Vec<u64>) -> bool {
        let before = gone.len();
        if is_failed {
            self.failed.push_back(hash);
            if self.failed.len() > self.most {
                gone.extend(self.failed.pop_front());
            }
        } else {
            let nanos = span.duration_nanos.unwrap_or(0);
            let at = self.slow.partition_point(|(known, _)| *known < nanos);
            if at == 0 && self.slow.len() >= self.most {
                return false;
            }
            self.slow.insert(at, (nanos, hash));
            if self.slow.len() > self.most {
                gone.push(self.slow.remove(0).1);
            }
        }
        for gone in &gone[before..] {
            self.chosen.remove(gone);
        }
        self.chosen.insert(hash)
    }

    /// There is no memory for all of them: half of them go.
    pub(super) fn halve(&mut self) -> bool {
        let (slow, failed) = (self.slow.len() / 2, self.failed.len() / 2);
        let gone = self.slow.drain(..slow).map(|(_, hash)| hash).chain(self.failed.drain(..failed));
        let gone: Vec<u64> = gone.collect();
        for hash in &gone {
            self.chosen.remove(hash);
        }
        !gone.is_empty()
    }
}

/// Whether the whole trace of a root can be among the batches since `oldest`: its time or its duration says so.
fn began_after(event: EventView<'_>, span: SpanView<'_>, oldest: UnixNanos) -> bool {
    let took = event.time().map(|time| event.observed().0.saturating_sub(time.0)).max(span.duration_nanos);
    took.is_some_and(|took| event.observed().0.saturating_sub(took) >= oldest.0)
}
