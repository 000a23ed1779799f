//! From objects to records: who owns a list, which texts are bound, what waits, and when a record goes out.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::event::{Loss, Reason, TraceId, semconv};
use crate::memory::{MemoryBudget, MemoryLease};
use crate::protocol::{Now, Output};

use super::record::{
    Entry, EntryKind, KEY_IN_FULL, LateOwner, METRIC_BYTES, NAME, Owner, Place, RESOURCE, Record, Ref, SERVICE, TYPE,
    Warning, field_place,
};
use super::strings::{Slot, Strings};
use super::traces::Traces;
use super::waiting::Waiting;
use super::wire::{self, ENTRY_BYTES, ListKind, Process, Span, StringId};
use super::{Options, normalize};

/// A limit is asked of the shared budget in steps of this size, so that not every string touches it.
const LEASE_STEP_BYTES: u64 = MemoryLease::FLOOR;
/// Entries that an open record may collect while memory is short; a larger one counts to what the session holds.
const SHORT_ENTRIES: usize = MAX_SPARE_ENTRIES;

/// Texts that nobody needs are freed when a record closes, or when they have become this many bytes more.
const SWEEP_BYTES: u64 = 256 * 1024;
/// A record with more entries than this gives its memory back.
const MAX_SPARE_ENTRIES: usize = 512;

/// What it costs a peer, in bytes of output, that a meta of the trace is looked at for a span.
const TRACE_META_BYTES: u64 = 32;

/// Room for more ready records than this is given back once they are gone.
const MANY_READY: usize = 64;

/// Builds the records of one connection and sends them out as events.
#[derive(Debug)]
pub(super) struct Assembler {
    options: Options,
    emit_definitions: bool,
    strings: Strings,
    waiting: Waiting,
    traces: Traces,
    /// The last process, trace or span: lists that follow are its own (reading 11).
    open: Option<Box<Record>>,
    /// Whom lists belong to while no record is open.
    late: LateOwner,
    /// Records that may go out as soon as the batch has room.
    ready: VecDeque<Box<Record>>,
    next_sequence: u64,
    next_key: u64,
    unresolved_events: u64,
    /// Output bytes to be charged beside those in the batch: what records that begin to wait will take when they go out,
    /// maybe with nothing received.
    owed: u64,
    lease: MemoryLease,
    leased: u64,
    /// Whether the process had room for that.
    is_leased: bool,
    /// It had not, and there is nothing left to let go.
    is_short: bool,
    /// What the session holds beside what is held here, and what was leased in all but for that.
    beside: u64,
    counted: u64,
    /// Something was added that a limit governs.
    grown: bool,
    /// Dropped texts are swept when they are more bytes than this.
    sweep_above: u64,
    /// A finished record, whose memory the next one takes over.
    spare: Option<Box<Record>>,
}

impl Assembler {
    pub(super) fn new(options: Options, emit_definitions: bool, memory: &Arc<MemoryBudget>) -> Self {
        Assembler {
            emit_definitions,
            strings: Strings::new(&options),
            waiting: Waiting::default(),
            traces: Traces::default(),
            open: None,
            late: LateOwner::Process,
            ready: VecDeque::new(),
            next_sequence: 0,
            next_key: 0,
            unresolved_events: 0,
            owed: 0,
            lease: memory.lease(),
            leased: 0,
            is_leased: true,
            is_short: false,
            beside: 0,
            counted: 0,
            grown: false,
            sweep_above: SWEEP_BYTES,
            spare: None,
            options,
        }
    }

    pub(super) fn process(&mut self, process: Process, place: Place) {
        self.strings.declare(process.string_cache_size);
        self.begin(Owner::Process(process), place);
    }

    pub(super) fn trace(&mut self, trace_id: TraceId, place: Place, out: &mut Output) {
        self.close(out);
        self.begin(Owner::Trace(trace_id), place);
    }

    pub(super) fn span(&mut self, span: &Span, place: Place, out: &mut Output) {
        self.close(out);
        let record = self.begin(Owner::Span(*span), place);
        if span.error > 1 {
            record.warn(Warning::ErrorFlag, out);
        }
        if span.start.checked_add(span.duration).is_none() {
            record.warn(Warning::EndOverflows, out);
        }
        self.refer_fields(span);
        self.refer_trace(span);
    }

    fn begin(&mut self, owner: Owner, place: Place) -> &mut Record {
        let sequence = match owner {
            Owner::Late(_) => self.next_sequence.saturating_sub(1),
            _ => {
                self.next_sequence += 1;
                self.next_sequence - 1
            }
        };
        self.next_key += 1;
        let record = match self.spare.take() {
            Some(mut spare) => {
                spare.begin_anew(self.next_key, owner, sequence, place);
                spare
            }
            None => Box::new(Record::new(self.next_key, owner, sequence, place)),
        };
        self.open.insert(record)
    }

    fn refer_fields(&mut self, span: &Span) {
        let Some(open) = &mut self.open else { return };
        let max_text = &self.options.max_text;
        let mut limits = [0; 4];
        (limits[NAME], limits[TYPE]) = (max_text.name, max_text.type_);
        (limits[RESOURCE], limits[SERVICE]) = (max_text.resource, max_text.service);
        for (field, limit) in limits.into_iter().enumerate() {
            let id = span.texts[field];
            open.fields[field] = match self.strings.refer(id) {
                Some(known) => {
                    open.expanded_bytes += known.bytes(limit);
                    Ref::Bound(known.slot)
                }
                None => self.waiting.wait_for(id, field_place(field), open),
            };
        }
        self.grown |= open.unresolved > 0;
    }

    /// The meta of its trace is also written on a span (reading 17), as far as the texts are known now: the span waits
    /// for its own texts only. Ids without a text are reported on the trace's own event.
    fn refer_trace(&mut self, span: &Span) {
        let Some(open) = &mut self.open else { return };
        let metas = self.traces.get(span.trace_id);
        let count = metas.len();
        // Charged as work, whether it becomes output or not.
        self.owed += count as u64 * TRACE_META_BYTES;
        for (done, meta) in metas.enumerate() {
            let [Some(key), Some(value)] = meta else { continue };
            let key_bytes = self.strings.text(key).len().min(self.options.max_text.key);
            let bytes = (key_bytes + self.strings.text(value).len().min(self.options.max_text.value)) as u64;
            if open.expanded_bytes + bytes > self.options.max_record_bytes {
                let left = (count - done) as u64;
                open.dropped += left;
                open.dropped_late += left;
                break;
            }
            open.expanded_bytes += bytes;
            open.entries.push(Entry { kind: EntryKind::TraceMeta, ..Entry::meta(key, value) });
        }
    }

    /// Adds a list's entries to the open record; answers how many bytes of them a limit cut.
    pub(super) fn list(&mut self, kind: ListKind, entries: &[wire::Entry], place: Place, out: &mut Output) -> u64 {
        if self.open.is_none() {
            out.warn("late_list");
            self.begin(Owner::Late(self.late), place);
        }
        let Some(open) = &mut self.open else { return 0 };
        if open.last_list.replace(kind) == Some(kind) {
            open.warn(Warning::RepeatedList, out);
        }
        let (mut max_entries, max_bytes) = (self.options.max_record_entries, self.options.max_record_bytes);
        let max_value = self.options.max_text.value;
        let mut limit = "max_record_entries";
        if self.is_short && max_entries > SHORT_ENTRIES {
            (max_entries, limit) = (SHORT_ENTRIES, "limits.memory_bytes");
        }
        let mut dropped = 0;
        for (at, ids) in entries.iter().enumerate() {
            if open.own_entries >= max_entries {
                // What is dropped for its number neither binds nor touches the cache (rule 28).
                dropped += (entries.len() - at) as u64;
                break;
            }
            let is_added = if let Some(key) = self.strings.refer(StringId(ids[0])) {
                let key_bytes = key.bytes(KEY_IN_FULL);
                if kind == ListKind::Metrics {
                    open.add(Entry::metric(key.slot, ids[1]), key_bytes + METRIC_BYTES, max_bytes)
                } else if let Some(value) = self.strings.refer(StringId(ids[1])) {
                    open.add(Entry::meta(key.slot, value.slot), key_bytes + value.bytes(max_value), max_bytes)
                } else {
                    self.waiting.add(kind, ids, (max_value, max_bytes), open, &mut self.strings)
                }
            } else {
                self.waiting.add(kind, ids, (max_value, max_bytes), open, &mut self.strings)
            };
            dropped += u64::from(!is_added);
        }
        self.grown |= open.unresolved > 0 || open.entries.len() > SHORT_ENTRIES / 2;
        if dropped == 0 {
            return 0;
        }
        // A record counts once: here, or where it is sent when all that it lacks was cut late.
        let is_first = open.dropped == open.dropped_late;
        open.dropped += dropped;
        open.warn(Warning::TooManyEntries, out);
        let bytes = dropped * ENTRY_BYTES as u64;
        let detail = format!(
            "list: {dropped} entries are over the limits of a record, {max_entries} entries ({limit}) or {max_bytes} bytes of text (max_record_bytes)"
        );
        let loss =
            Loss { reason: Reason::TooLarge, bytes, events: Some(u64::from(is_first)), detail: &detail, excerpt: &[] };
        out.loss(place.header(semconv::LOSS, None), loss);
        bytes
    }

    /// A string definition (readings 6 and 7).
    pub(super) fn define(&mut self, id: StringId, text: &[u8], truncated: bool, place: Place, out: &mut Output) {
        let defined = self.strings.define(id, text, truncated);
        if defined.redefined {
            out.warn("string_redefined");
        }
        if self.strings.marks(defined.slot).repaired {
            out.warn("string_not_utf8");
        }
        if self.emit_definitions {
            let header = place.header(semconv::DATADOG_STRING, None);
            normalize::write_definition(id, defined.slot, &self.strings, header, out);
        }
        if !self.waiting.expects_nothing() {
            self.bind(id, defined.slot);
        }
        self.traces.bind(id, defined.slot, &mut self.strings);
        if self.strings.dropped_bytes() > self.sweep_above {
            self.sweep();
        }
        self.grown = true;
    }

    /// Frees texts that nobody needs, whatever the open record refers to.
    fn sweep(&mut self) {
        match &self.open {
            Some(open) => {
                open.retain_all(&mut self.strings);
                self.strings.sweep();
                open.release_all(&mut self.strings);
            }
            None => self.strings.sweep(),
        }
        // What the open record needs stays dropped: to sweep again pays only when as much has come on top.
        self.sweep_above = 2 * self.strings.dropped_bytes() + SWEEP_BYTES;
    }

    /// Everything that waits for `id` gets its text, and goes out if it waited for nothing else (rule 10).
    fn bind(&mut self, id: StringId, slot: Slot) {
        let (max_value, max_bytes) = (self.options.max_text.value, self.options.max_record_bytes);
        let text_bytes = self.strings.text(slot).len().min(max_value) as u64;
        for (key, place) in self.waiting.defined(id) {
            let open = self.open.as_deref_mut().filter(|open| open.key == key);
            let is_open = open.is_some();
            let Some(record) = open.or_else(|| self.waiting.get_mut(key)) else { continue };
            record.bind(place, slot, &mut self.strings, max_value, max_bytes);
            if !is_open {
                self.owed += text_bytes;
            }
            if record.unresolved == 0 && !is_open {
                self.ready.extend(self.waiting.remove(key));
            }
        }
    }

    /// The open record is complete (reading 16): it goes out, or waits for its texts.
    pub(super) fn close(&mut self, out: &mut Output) {
        let Some(mut open) = self.open.take() else { return };
        match open.owner {
            Owner::Process(_) => self.late = LateOwner::Process,
            Owner::Trace(trace_id) => self.late = LateOwner::Trace(trace_id),
            Owner::Span(span) => self.late = LateOwner::Span(span.trace_id, span.span_id),
            Owner::Late(_) => {}
        }
        if let Owner::Trace(trace_id) | Owner::Late(LateOwner::Trace(trace_id)) = open.owner {
            let max_traces = if self.options.waiting.bytes == 0 { 0 } else { self.options.max_traces };
            let max_entries = self.options.max_record_entries;
            self.grown = true;
            self.traces.learn(trace_id, &open, max_traces, max_entries, &mut self.strings);
        }
        if open.unresolved == 0 {
            self.send(open, out);
        } else {
            self.owed += out.batch.event_bytes() as u64 + open.expanded_bytes;
            open.retain_all(&mut self.strings);
            open.holds_texts = true;
            self.waiting.insert(open);
            self.grown = true;
        }
        if self.strings.dropped_bytes() > 0 {
            self.sweep();
        }
    }

    /// Sends what may go out, as far as the batch has room.
    #[inline]
    pub(super) fn send_ready(&mut self, out: &mut Output) {
        if !self.ready.is_empty() {
            self.send_some_ready(out);
        }
    }

    fn send_some_ready(&mut self, out: &mut Output) {
        while !out.batch.is_full() {
            let Some(record) = self.ready.pop_front() else { break };
            self.send(record, out);
        }
        if self.ready.is_empty() && self.ready.capacity() > MANY_READY {
            self.ready = VecDeque::new();
        }
    }

    fn send(&mut self, record: Box<Record>, out: &mut Output) {
        normalize::write(&record, &mut self.strings, &self.options.max_text, out);
        if record.unresolved > 0 {
            self.unresolved_events += 1;
            self.waiting.give_up(&record);
        }
        if record.dropped_late > 0 {
            let detail = format!(
                "{} entries made the record longer than {} bytes of text (max_record_bytes)",
                record.dropped_late, self.options.max_record_bytes
            );
            let events = Some(u64::from(record.dropped_late == record.dropped));
            let loss = Loss { reason: Reason::TooLarge, bytes: 0, events, detail: &detail, excerpt: &[] };
            out.loss(record.place.header(semconv::LOSS, Some(record.sequence)), loss);
        }
        if record.holds_texts {
            record.release_all(&mut self.strings);
        }
        if record.entries.capacity() <= MAX_SPARE_ENTRIES {
            self.spare = Some(record);
        }
    }
}

// The end of things, and time.
impl Assembler {
    /// Whether a process, trace or span may still get lists.
    pub(super) fn has_open(&self) -> bool {
        self.open.is_some()
    }

    /// When the record that has waited longest has waited long enough.
    pub(super) fn waiting_deadline(&self) -> Option<Duration> {
        self.waiting.oldest_received().map(|received| received + self.options.waiting.time)
    }

    /// Records that have waited long enough go out with what they lack. `false`: the batch is full, call again.
    pub(super) fn expire(&mut self, now: Now, out: &mut Output) -> bool {
        while self.waiting_deadline().is_some_and(|deadline| deadline <= now.elapsed) {
            self.ready.extend(self.waiting.pop_oldest());
        }
        self.send_ready(out);
        // What has been let go is the process's again, though nothing may be received for long.
        self.grown = true;
        self.enforce_limits(out);
        self.ready.is_empty() && !self.grown
    }

    /// The connection is over; if not cleanly, the open record may lack lists (rule 20).
    pub(super) fn end(&mut self, is_clean: bool, out: &mut Output) {
        if let Some(open) = &mut self.open {
            open.partial = !is_clean;
            self.close(out);
        }
    }

    /// Sends out everything that is left (rule 15). `false`: the batch is full, call again.
    pub(super) fn drain(&mut self, out: &mut Output) -> bool {
        self.enforce_limits(out);
        if out.batch.is_full() {
            return false;
        }
        while let Some(record) = self.waiting.pop_oldest() {
            self.ready.push_back(record);
        }
        self.send_ready(out);
        self.ready.is_empty()
    }

    /// Output bytes to be charged beside those in the batch.
    pub(super) fn owed_bytes(&self) -> u64 {
        self.owed
    }

    /// They are being charged.
    pub(super) fn take_owed_bytes(&mut self) -> u64 {
        std::mem::take(&mut self.owed)
    }

    /// How many events went out with raw ids, told once.
    pub(super) fn take_unresolved_events(&mut self) -> u64 {
        std::mem::take(&mut self.unresolved_events)
    }

    /// Lets go of what is over a limit: waiting records go out unresolved, oldest first; then trace meta, then cached
    /// strings are forgotten.
    #[inline]
    pub(super) fn enforce_limits(&mut self, out: &mut Output) {
        if self.grown {
            self.enforce_limits_grown(out);
        }
    }

    fn enforce_limits_grown(&mut self, out: &mut Output) {
        while !out.batch.is_full() {
            let too_many = self.waiting.len() > self.options.waiting.records;
            let held = self.waiting.bytes() + self.traces.bytes() + self.strings.held_bytes();
            let too_large = held > self.options.waiting.bytes;
            let open = self.open.as_ref().map_or(0, |open| open.memory_bytes());
            self.counted = held + self.strings.cached_bytes() + open;
            let over_budget = !self.lease(self.counted + self.beside);
            self.is_short = false;
            if !(too_many || too_large || over_budget) {
                break;
            }
            if over_budget
                && !too_many
                && !too_large
                && self.strings.cached_bytes() > held
                && self.strings.evict_oldest()
            {
                continue;
            }
            if let Some(mut record) = self.waiting.pop_oldest() {
                record.warn(Warning::PendingOverflow, out);
                self.send(record, out);
            } else if !((too_large || over_budget) && self.traces.forget_oldest(&mut self.strings))
                && !(over_budget && self.strings.evict_oldest())
            {
                self.is_short = over_budget;
                break;
            }
        }
        self.grown = out.batch.is_full();
    }

    /// Beside all this the session holds so many bytes now. `false`: there is no room for them; it is as before.
    #[must_use]
    pub(super) fn hold_beside(&mut self, bytes: u64) -> bool {
        let before = std::mem::replace(&mut self.beside, bytes);
        if self.lease(self.counted + bytes) || bytes <= before {
            return true;
        }
        self.beside = before;
        let _ = self.lease(self.counted + before);
        false
    }

    /// Whether the process has room for this much memory of this session.
    fn lease(&mut self, bytes: u64) -> bool {
        let bytes = bytes.next_multiple_of(LEASE_STEP_BYTES);
        // A refusal is not remembered: others may have let go meanwhile.
        if bytes != self.leased || !self.is_leased {
            self.leased = bytes;
            self.is_leased = self.lease.resize(bytes);
        }
        self.is_leased
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{BatchBuilder, Origin, SpanId, UnixNanos};

    /// An open record may need megabytes of texts that have been redefined since. Sweeping them in vain with every
    /// further definition would let 14 bytes cost thousands of steps.
    #[test]
    fn texts_that_the_open_record_needs_are_not_swept_for_again_and_again() {
        let mut out = Output::new(BatchBuilder::new(Arc::new(Origin::new("datadog", "".into(), "".into(), 1))));
        let mut assembler = Assembler::new(Options::default(), false, &MemoryBudget::new(256 << 20));
        let now = Now { unix: UnixNanos(1), elapsed: Duration::ZERO };
        let place = Place { offset: 0, size: 0, now };
        let id = |number: u8| StringId([1, 1, 1, 1, 1, 1, 1, number]);
        for number in 0..40 {
            assembler.define(id(number), "x".repeat(20_000).as_bytes(), false, place, &mut out);
        }
        let texts = [id(0); 4];
        let (span_id, trace_id) = (SpanId([1; 8]), TraceId([1; 16]));
        let span = Span { span_id, parent_id: span_id, trace_id, start: 1, duration: 1, texts, error: 0 };
        assembler.span(&span, place, &mut out);
        let entries: Vec<wire::Entry> = (0..40).map(|number| [id(0).0, id(number).0]).collect();
        // The key in full and the value, 40,000 bytes an entry: 26 of them fit into the record.
        assembler.list(ListKind::Meta, &entries, place, &mut out);
        for number in 0..40 {
            assembler.define(id(number), b"new", false, place, &mut out);
        }
        let (held, threshold) = (assembler.strings.dropped_bytes(), assembler.sweep_above);
        assert!(held > 26 * 20_000, "the open record still needs its old texts");
        for number in 0..200 {
            assembler.define(id(number), b"newer", false, place, &mut out);
        }
        assert_eq!(assembler.sweep_above, threshold, "nothing was swept for");
        assembler.close(&mut out);
        assert_eq!(assembler.strings.dropped_bytes(), 0, "and all of it is freed with the record");
    }
}
