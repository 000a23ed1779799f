//! Drops the spans of traces that are not kept any more.

use super::*;
use crate::traces::high;

/// What is left of batches that follow each other.
struct BatchRest {
    /// The first of them.
    first: KeptBatch,
    batch: Batch,
    is_packed: bool,
}

impl ViewStore {
    /// Drops spans whose traces are not kept any more; if there are none, fewer traces are kept. `false`: nothing goes.
    pub(super) fn drop_traces(&mut self) -> bool {
        let before = self.bytes;
        self.sweep(self.limit / SWEEP_PART);
        // If little went by the last choice, most of the memory has traces that are slow or failed.
        for _ in 0..2 {
            if self.bytes < before {
                return true;
            }
            let has_few = self.freed < self.limit / 4 && self.notable.halve();
            if self.traces.halve() || has_few {
                self.choice += 1;
                self.freed = 0;
                self.sweep(self.limit / SWEEP_PART);
            }
        }
        self.bytes < before
    }

    /// Drops the spans of all traces that are not kept any more.
    pub(crate) fn finish_sweep(&mut self) {
        self.sweep(usize::MAX);
    }

    /// Looks through batches of spans that were not looked through since the choice of traces changed, until this many bytes are free.
    /// What is left of a batch gets another number: its events have other places.
    fn sweep(&mut self, enough: usize) {
        let aim = self.bytes.saturating_sub(enough);
        let (choice, dropped) = (self.choice, DroppedSpans::of(&self.traces, &self.notable));
        for ring in self.rings.iter_mut().filter(|ring| ring.class == Class::Spans) {
            if self.bytes <= aim {
                break;
            }
            let before = ring.bytes;
            let others = self.bytes - before;
            let all = std::mem::take(&mut ring.batches);
            ring.batches.reserve_exact(all.len());
            let (mut bytes, mut rest) = (self.bytes, None);
            for mut kept in all {
                if kept.choice == choice || (rest.is_none() && bytes <= aim) || dropped.is_none_of(&kept) {
                    bytes += finish(&mut rest, &mut ring.batches, &mut self.next);
                    if bytes > aim {
                        kept.choice = choice;
                    }
                    ring.batches.push_back(kept);
                    continue;
                }
                let batch = kept.batch();
                let stays: Vec<bool> = batch.events().map(|event| dropped.stays(event)).collect();
                let count = stays.iter().filter(|stays| **stays).count();
                if count == stays.len() {
                    bytes += finish(&mut rest, &mut ring.batches, &mut self.next);
                    kept.choice = choice;
                    ring.batches.push_back(kept);
                    continue;
                }
                bytes -= kept.bytes;
                if count == 0 {
                    continue;
                }
                if rest.as_mut().is_some_and(|rest| rest.append(&kept, &batch, &stays)) {
                    continue;
                }
                bytes += finish(&mut rest, &mut ring.batches, &mut self.next);
                kept.choice = choice;
                let is_packed = kept.is_packed();
                rest = Some(BatchRest { first: kept, batch: batch.copy_of(|index| stays[index]), is_packed });
            }
            finish(&mut rest, &mut ring.batches, &mut self.next);
            ring.count();
            self.bytes = others + ring.bytes;
            self.freed = self.freed.saturating_add(before.saturating_sub(ring.bytes));
        }
    }
}

impl BatchRest {
    /// Appends what stays of a batch, if both are near and small.
    fn append(&mut self, kept: &KeptBatch, batch: &Batch, stays: &[bool]) -> bool {
        let is_near = self.batch.memory_bytes() < MERGED_BYTES && self.first.is_near(kept.at);
        if is_near {
            self.batch.append_copy_of(batch, |index| stays[index]);
            self.first.at = self.first.at.max(kept.at);
            self.is_packed |= kept.is_packed();
        }
        is_near
    }
}

/// Keeps what is left of batches; returns its bytes.
fn finish(rest: &mut Option<BatchRest>, to: &mut VecDeque<KeptBatch>, next: &mut Number) -> usize {
    let Some(BatchRest { first, batch, is_packed }) = rest.take() else { return 0 };
    let kept = first.rest(*next, batch, is_packed);
    *next += 1;
    let bytes = kept.bytes;
    to.push_back(kept);
    bytes
}

/// Which spans go.
struct DroppedSpans<'a> {
    traces: &'a TraceChoice,
    notable: &'a NotableTraces,
    /// The upper halves of the hashes of chosen traces.
    chosen: HashSet<u32, RandomState>,
    /// The same of torn ones.
    torn: HashSet<u32, RandomState>,
}

impl<'a> DroppedSpans<'a> {
    fn of(traces: &'a TraceChoice, notable: &'a NotableTraces) -> DroppedSpans<'a> {
        let chosen = notable.chosen().map(high).collect();
        DroppedSpans { traces, notable, chosen, torn: traces.torn().map(high).collect() }
    }

    fn stays(&self, event: EventView<'_>) -> bool {
        trace_of(event).is_some_and(|hash| self.traces.still_keeps(hash, self.notable.has(hash)))
    }

    /// Whether certainly no span of a batch goes, without unpacking it.
    fn is_none_of(&self, kept: &KeptBatch) -> bool {
        let stays = |upper: &u32| {
            (self.traces.keeps_all_of(*upper) || self.chosen.contains(upper)) && !self.torn.contains(upper)
        };
        kept.traces().is_some_and(|traces| traces.iter().all(stays))
    }
}
