//! Builds records from objects: assigns lists to their owners, binds texts, and decides when a record waits or is emitted.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tributary_event::{Loss, Reason, TraceId, semconv};
use tributary_memory::{MemoryBudget, MemoryLease};
use tributary_protocol::{Now, Output};

use super::Options;
use super::normalize::{self, WholeSpan};
use super::record::{
    EntryKind, KEY_IN_FULL, LateOwner, METRIC_BYTES, NAME, ObjectPosition, Owner, OwnerRecord, RESOURCE, RecordEntry,
    Ref, SERVICE, TYPE, Warning, field_index,
};
use super::services::Services;
use super::strings::{StringSlot, Strings};
use super::traces::Traces;
use super::waiting::WaitingRecords;
use super::wire::{self, ENTRY_BYTES, ListKind, Lists, ProcessObject, StringId, WireSpan};

/// Memory is leased from the shared budget in steps of this size, so that not every string accesses the budget.
const LEASE_STEP_BYTES: u64 = MemoryLease::FLOOR;
/// The most entries of an open record while memory is exhausted. A larger open record counts as memory of the session.
const EXHAUSTED_ENTRIES: usize = MAX_REUSED_ENTRIES;

/// Unused texts are freed when a record closes, or when they have grown by this many bytes.
const SWEEP_BYTES: u64 = 256 * 1024;
/// The memory of a record with more entries is not reused.
const MAX_REUSED_ENTRIES: usize = 512;

/// Bytes of output that a peer is charged for each meta of its trace that a span visits.
const TRACE_META_BYTES: u64 = 32;

/// The capacity that the queue of ready records keeps while it is empty.
const MAX_IDLE_READY: usize = 64;

/// Builds the records of one connection and emits them as events.
#[derive(Debug)]
pub(super) struct Assembler {
    options: Options,
    emit_definitions: bool,
    strings: Strings,
    services: Services,
    waiting: WaitingRecords,
    traces: Traces,
    /// The last process, trace or span. It owns the lists that follow (reading 11).
    open: Option<Box<OwnerRecord>>,
    /// The owner of lists that arrive while no record is open.
    late: LateOwner,
    /// Complete records, emitted as soon as the batch has space.
    ready: VecDeque<Box<OwnerRecord>>,
    next_sequence: u64,
    next_key: u64,
    unresolved_events: u64,
    /// Output bytes to charge that are not in the batch yet: the size of waiting records, which may be emitted later
    /// without any input.
    uncharged: u64,
    lease: MemoryLease,
    leased: u64,
    /// Whether the budget granted `leased`.
    is_leased: bool,
    /// The budget is exhausted and this session has nothing left to release.
    is_memory_exhausted: bool,
    /// Memory that the session holds outside of the assembler, and the memory of the assembler at the last check.
    other_bytes: u64,
    counted: u64,
    /// Something that a limit governs was added since the last check.
    needs_limit_check: bool,
    /// Dropped texts are swept when they have more bytes than this.
    sweep_above: u64,
    /// A finished record whose memory the next one reuses.
    reusable: Option<Box<OwnerRecord>>,
}

impl Assembler {
    pub(super) fn new(options: Options, emit_definitions: bool, memory: &Arc<MemoryBudget>) -> Self {
        Assembler {
            emit_definitions,
            strings: Strings::new(&options),
            services: Services::default(),
            waiting: WaitingRecords::default(),
            traces: Traces::default(),
            open: None,
            late: LateOwner::Process,
            ready: VecDeque::new(),
            next_sequence: 0,
            next_key: 0,
            unresolved_events: 0,
            uncharged: 0,
            lease: memory.lease(),
            leased: 0,
            is_leased: true,
            is_memory_exhausted: false,
            other_bytes: 0,
            counted: 0,
            needs_limit_check: false,
            sweep_above: SWEEP_BYTES,
            reusable: None,
            options,
        }
    }

    pub(super) fn process(&mut self, process: ProcessObject, position: ObjectPosition) {
        self.strings.declare(process.string_cache_size);
        self.begin(Owner::Process(process), position);
    }

    pub(super) fn trace(&mut self, trace_id: TraceId, position: ObjectPosition, out: &mut Output) {
        self.close(out);
        self.begin(Owner::Trace(trace_id), position);
    }

    pub(super) fn span(&mut self, span: &WireSpan, position: ObjectPosition, out: &mut Output) {
        self.close(out);
        let record = self.begin(Owner::Span(*span), position);
        if span.error > 1 {
            record.warn(Warning::ErrorFlag, out);
        }
        if span.start.checked_add(span.duration).is_none() {
            record.warn(Warning::EndOverflows, out);
        }
        self.refer_fields(span);
        self.refer_trace(span);
    }

    /// Writes a span whose lists are all here. No record is open. `false`: it needs a record; nothing was written.
    #[inline]
    pub(super) fn whole_span(
        &mut self,
        span: &WireSpan,
        lists: &Lists<'_>,
        position: ObjectPosition,
        out: &mut Output,
    ) -> bool {
        let services_before = self.services.memory_bytes();
        let whole = WholeSpan { span, lists, sequence: self.next_sequence, position };
        let metas = whole.write(&mut self.strings, &mut self.services, &mut self.traces, &self.options, out);
        self.needs_limit_check |= self.services.memory_bytes() > services_before;
        let Some(metas) = metas else { return false };
        self.uncharged += metas as u64 * TRACE_META_BYTES;
        self.next_sequence += 1;
        self.late = LateOwner::Span(span.trace_id, span.span_id);
        if self.strings.dropped_bytes() > 0 {
            self.sweep();
        }
        true
    }

    fn begin(&mut self, owner: Owner, position: ObjectPosition) -> &mut OwnerRecord {
        let sequence = match owner {
            Owner::Late(_) => self.next_sequence.saturating_sub(1),
            _ => {
                self.next_sequence += 1;
                self.next_sequence - 1
            }
        };
        self.next_key += 1;
        let record = match self.reusable.take() {
            Some(mut reusable) => {
                reusable.reset(self.next_key, owner, sequence, position);
                reusable
            }
            None => Box::new(OwnerRecord::new(self.next_key, owner, sequence, position)),
        };
        self.open.insert(record)
    }

    fn refer_fields(&mut self, span: &WireSpan) {
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
                None => self.waiting.wait_for(id, field_index(field), open),
            };
        }
        self.needs_limit_check |= open.unresolved > 0;
    }

    /// The meta of its trace is also written on a span (reading 17), as far as the texts are known now: the span waits
    /// for its own texts only. Ids without a text are reported on the trace's own event.
    fn refer_trace(&mut self, span: &WireSpan) {
        let Some(open) = &mut self.open else { return };
        let metas = self.traces.get(span.trace_id);
        let count = metas.len();
        // Charged as work, whether it becomes output or not.
        self.uncharged += count as u64 * TRACE_META_BYTES;
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
            open.entries.push(RecordEntry { kind: EntryKind::TraceMeta, ..RecordEntry::meta(key, value) });
        }
    }

    /// Adds the entries of a list to the open record. Returns the bytes of the entries that a limit cut.
    pub(super) fn list(
        &mut self,
        kind: ListKind,
        entries: &[wire::WireEntry],
        position: ObjectPosition,
        out: &mut Output,
    ) -> u64 {
        if self.open.is_none() {
            out.warn("late_list");
            self.begin(Owner::Late(self.late), position);
        }
        let Some(open) = &mut self.open else { return 0 };
        if open.last_list.replace(kind) == Some(kind) {
            open.warn(Warning::RepeatedList, out);
        }
        let (mut max_entries, max_bytes) = (self.options.max_record_entries, self.options.max_record_bytes);
        let max_value = self.options.max_text.value;
        let mut limit = "max_record_entries";
        if self.is_memory_exhausted && max_entries > EXHAUSTED_ENTRIES {
            (max_entries, limit) = (EXHAUSTED_ENTRIES, "limits.memory_bytes");
        }
        let mut dropped = 0;
        for (at, ids) in entries.iter().enumerate() {
            if open.own_entries >= max_entries {
                // Entries over the number limit neither bind nor count as use in the cache (rule 28).
                dropped += (entries.len() - at) as u64;
                break;
            }
            let is_added = if let Some(key) = self.strings.refer(StringId(ids[0])) {
                let key_bytes = key.bytes(KEY_IN_FULL);
                if kind == ListKind::Metrics {
                    open.add(RecordEntry::metric(key.slot, ids[1]), key_bytes + METRIC_BYTES, max_bytes)
                } else if let Some(value) = self.strings.refer(StringId(ids[1])) {
                    open.add(RecordEntry::meta(key.slot, value.slot), key_bytes + value.bytes(max_value), max_bytes)
                } else {
                    self.waiting.add(kind, ids, (max_value, max_bytes), open, &mut self.strings)
                }
            } else {
                self.waiting.add(kind, ids, (max_value, max_bytes), open, &mut self.strings)
            };
            dropped += u64::from(!is_added);
        }
        self.needs_limit_check |= open.unresolved > 0 || open.entries.len() > EXHAUSTED_ENTRIES / 2;
        if dropped == 0 {
            return 0;
        }
        // A record counts once: here, or in `send` when all its cut entries were cut late.
        let is_first = open.dropped == open.dropped_late;
        open.dropped += dropped;
        open.warn(Warning::TooManyEntries, out);
        let bytes = dropped * ENTRY_BYTES as u64;
        let detail = format!(
            "list: {dropped} entries are over the limits of a record, {max_entries} entries ({limit}) or {max_bytes} bytes of text (max_record_bytes)"
        );
        let loss =
            Loss { reason: Reason::TooLarge, bytes, events: Some(u64::from(is_first)), detail: &detail, excerpt: &[] };
        out.loss(position.header(semconv::LOSS, None), loss);
        bytes
    }

    /// A string definition (readings 6 and 7).
    pub(super) fn define(
        &mut self,
        id: StringId,
        text: &[u8],
        truncated: bool,
        position: ObjectPosition,
        out: &mut Output,
    ) {
        let defined = self.strings.define(id, text, truncated);
        if defined.redefined {
            out.warn("string_redefined");
        }
        if self.strings.marks(defined.slot).repaired {
            out.warn("string_not_utf8");
        }
        if self.emit_definitions {
            let header = position.header(semconv::DATADOG_STRING, None);
            normalize::write_definition(id, defined.slot, &self.strings, header, out);
        }
        if !self.waiting.is_idle() {
            self.bind(id, defined.slot);
        }
        self.traces.bind(id, defined.slot, &mut self.strings);
        if self.strings.dropped_bytes() > self.sweep_above {
            self.sweep();
        }
        self.needs_limit_check = true;
    }

    /// Frees unused texts. Texts of the open record are kept.
    fn sweep(&mut self) {
        match &self.open {
            Some(open) => {
                open.retain_all(&mut self.strings);
                self.strings.sweep();
                open.release_all(&mut self.strings);
            }
            None => self.strings.sweep(),
        }
        // Texts of the open record stay in the list of dropped texts. The next sweep runs when the list has doubled.
        self.sweep_above = 2 * self.strings.dropped_bytes() + SWEEP_BYTES;
    }

    /// Binds every reference that waits for `id`. Records that wait for nothing else become ready (rule 10).
    fn bind(&mut self, id: StringId, slot: StringSlot) {
        let (max_value, max_bytes) = (self.options.max_text.value, self.options.max_record_bytes);
        let text_bytes = self.strings.text(slot).len().min(max_value) as u64;
        for (key, index) in self.waiting.take_references(id) {
            let open = self.open.as_deref_mut().filter(|open| open.key == key);
            let is_open = open.is_some();
            let Some(record) = open.or_else(|| self.waiting.get_mut(key)) else { continue };
            record.bind(index, slot, &mut self.strings, max_value, max_bytes);
            if !is_open {
                self.uncharged += text_bytes;
            }
            if record.unresolved == 0 && !is_open {
                self.ready.extend(self.waiting.remove(key));
            }
        }
    }

    /// The open record is complete (reading 16): it is emitted, or waits for its texts.
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
            let max_entries = self.options.max_trace_entries;
            self.needs_limit_check = true;
            if self.traces.learn(trace_id, &open, max_traces, max_entries, &mut self.strings) {
                open.warn(Warning::TraceEntriesLeftOut, out);
            }
        }
        if open.unresolved == 0 {
            self.send(open, out);
        } else {
            self.uncharged += out.batch.event_bytes() as u64 + open.expanded_bytes;
            open.retain_all(&mut self.strings);
            open.holds_texts = true;
            self.waiting.insert(open);
            self.needs_limit_check = true;
        }
        if self.strings.dropped_bytes() > 0 {
            self.sweep();
        }
    }

    /// Emits ready records, as far as the batch has space.
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
        if self.ready.is_empty() && self.ready.capacity() > MAX_IDLE_READY {
            self.ready = VecDeque::new();
        }
    }

    fn send(&mut self, mut record: Box<OwnerRecord>, out: &mut Output) {
        if record.unresolved > 0 {
            record.keep_keys_without_values();
        }
        let services_before = self.services.memory_bytes();
        normalize::write(&record, &mut self.strings, &mut self.services, &self.options.max_text, out);
        self.needs_limit_check |= self.services.memory_bytes() > services_before;
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
            out.loss(record.position.header(semconv::LOSS, Some(record.sequence)), loss);
        }
        if record.holds_texts {
            record.release_all(&mut self.strings);
        }
        if record.entries.capacity() <= MAX_REUSED_ENTRIES {
            self.reusable = Some(record);
        }
    }
}

// Timeouts, limits and the end of the connection.
impl Assembler {
    /// Whether a process, trace or span is open and may still get lists.
    pub(super) fn has_open(&self) -> bool {
        self.open.is_some()
    }

    /// When the oldest waiting record reaches `waiting.time`.
    pub(super) fn waiting_deadline(&self) -> Option<Duration> {
        self.waiting.oldest_received().map(|received| received + self.options.waiting.time)
    }

    /// Emits records that have waited for `waiting.time` with their raw ids. `false`: the batch is full, call again.
    pub(super) fn expire(&mut self, now: Now, out: &mut Output) -> bool {
        while self.waiting_deadline().is_some_and(|deadline| deadline <= now.elapsed) {
            self.ready.extend(self.waiting.pop_oldest());
        }
        self.send_ready(out);
        // Return the released memory to the budget now: the next input may be far away.
        self.needs_limit_check = true;
        self.enforce_limits(out);
        self.ready.is_empty() && !self.needs_limit_check
    }

    /// The connection has ended. If not cleanly, lists of the open record may be missing (rule 20).
    pub(super) fn end(&mut self, is_clean: bool, out: &mut Output) {
        if let Some(open) = &mut self.open {
            open.partial = !is_clean;
            self.close(out);
        }
    }

    /// Emits all remaining records (rule 15). `false`: the batch is full, call again.
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

    /// Output bytes to charge that are not in the batch.
    pub(super) fn uncharged_bytes(&self) -> u64 {
        self.uncharged
    }

    /// Returns [`Assembler::uncharged_bytes`] and resets them, because the caller charges them.
    pub(super) fn take_uncharged_bytes(&mut self) -> u64 {
        std::mem::take(&mut self.uncharged)
    }

    /// The number of events emitted with raw ids since the last call.
    pub(super) fn take_unresolved_events(&mut self) -> u64 {
        std::mem::take(&mut self.unresolved_events)
    }

    /// Enforces the limits: emits the oldest waiting records unresolved, then forgets trace meta, then cached strings.
    #[inline]
    pub(super) fn enforce_limits(&mut self, out: &mut Output) {
        if self.needs_limit_check {
            self.enforce_limits_now(out);
        }
    }

    fn enforce_limits_now(&mut self, out: &mut Output) {
        while !out.batch.is_full() {
            let too_many = self.waiting.len() > self.options.waiting.records;
            let held = self.waiting.bytes() + self.traces.bytes() + self.strings.held_bytes();
            let too_large = held > self.options.waiting.bytes;
            let open = self.open.as_ref().map_or(0, |open| open.memory_bytes());
            self.counted = held + self.strings.cached_bytes() + self.services.memory_bytes() + open;
            let over_budget = !self.lease(self.counted + self.other_bytes);
            self.is_memory_exhausted = false;
            if !(too_many || too_large || over_budget) {
                break;
            }
            if over_budget && self.services.clear() {
                continue;
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
                self.is_memory_exhausted = over_budget;
                break;
            }
        }
        self.needs_limit_check = out.batch.is_full();
    }

    /// Sets the memory that the session holds outside of the assembler. `false`: the budget refused it; nothing changes.
    #[must_use]
    pub(super) fn reserve_other(&mut self, bytes: u64) -> bool {
        let before = std::mem::replace(&mut self.other_bytes, bytes);
        if self.lease(self.counted + bytes) || bytes <= before {
            return true;
        }
        self.other_bytes = before;
        let _ = self.lease(self.counted + before);
        false
    }

    /// Leases this much memory for the session. `false`: the budget refused it.
    fn lease(&mut self, bytes: u64) -> bool {
        let bytes = bytes.next_multiple_of(LEASE_STEP_BYTES);
        // A refusal is not cached: other sessions may have released memory since.
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
    use tributary_event::{BatchBuilder, Origin, SpanId, UnixNanos};

    /// An open record may refer to megabytes of texts that were redefined later. A sweep at each further definition would
    /// free nothing, and let 14 bytes cost thousands of steps.
    #[test]
    fn texts_of_the_open_record_do_not_cause_repeated_sweeps() {
        let mut out = Output::new(BatchBuilder::new(Arc::new(Origin::new("datadog", "".into(), "".into(), 1))));
        let mut assembler = Assembler::new(Options::default(), false, &MemoryBudget::new(256 << 20));
        let now = Now { unix: UnixNanos(1), elapsed: Duration::ZERO };
        let position = ObjectPosition { offset: 0, size: 0, now };
        let id = |number: u8| StringId([1, 1, 1, 1, 1, 1, 1, number]);
        for number in 0..40 {
            assembler.define(id(number), "x".repeat(20_000).as_bytes(), false, position, &mut out);
        }
        let texts = [id(0); 4];
        let (span_id, trace_id) = (SpanId([1; 8]), TraceId([1; 16]));
        let span = WireSpan { span_id, parent_id: span_id, trace_id, start: 1, duration: 1, texts, error: 0 };
        assembler.span(&span, position, &mut out);
        let entries: Vec<wire::WireEntry> = (0..40).map(|number| [id(0).0, id(number).0]).collect();
        // Key and value count in full, 40,000 bytes per entry: 26 entries fit into the record.
        assembler.list(ListKind::Meta, &entries, position, &mut out);
        for number in 0..40 {
            assembler.define(id(number), b"new", false, position, &mut out);
        }
        let (held, threshold) = (assembler.strings.dropped_bytes(), assembler.sweep_above);
        assert!(held > 26 * 20_000, "the open record still refers to its old texts");
        for number in 0..200 {
            assembler.define(id(number), b"newer", false, position, &mut out);
        }
        assert_eq!(assembler.sweep_above, threshold, "no sweep ran");
        assembler.close(&mut out);
        assert_eq!(assembler.strings.dropped_bytes(), 0, "all of it is freed with the record");
    }
}
