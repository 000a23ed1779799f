//! One connection: MAGIC, then objects, until it ends. One direction only: the collector never sends a byte (rule 4).

use std::collections::VecDeque;
use std::time::Duration;

use crate::codec::reader::{DecodeError, DecodeErrorKind};
use crate::codec::text::cut_bytes;
use crate::event::{Header, Loss, Position, Reason, semconv};
use crate::protocol::{Awaiting, Credit, End, Flow, MemoryBudget, MemoryLease, Now, Output, Progress, Session};

use super::record::{
    Entry, EntryKind, EntryValue, LateOwner, NAME, Owner, RESOURCE, Record, Ref, SERVICE, TYPE, Traces, Waiting,
    Warning, Warnings, field_place, key_place, release_all,
};
use super::strings::{Slot, Strings};
use super::wire::{self, ENTRY_BYTES, ListKind, Object, StringId, WireLimits};
use super::{Options, normalize};

/// A limit is asked of the shared budget in steps of this size, so that not every string touches it.
const LEASE_STEP_BYTES: u64 = 16 * 1024;

/// The state of one connection.
#[derive(Debug)]
pub struct DatadogSession {
    options: Options,
    wire: WireLimits,
    emit_definitions: bool,
    phase: Phase,
    /// Offset in the stream of the first byte not consumed.
    offset: u64,
    /// Part of an object is here and waits for the rest.
    begun: bool,
    strings: Strings,
    waiting: Waiting,
    traces: Traces,
    /// The last process, trace or span: lists that follow are its own (reading 11).
    open: Option<Record>,
    /// Whom lists belong to while no record is open.
    late: LateOwner,
    /// Records that may go out as soon as the batch has room.
    ready: VecDeque<Record>,
    next_sequence: u64,
    next_key: u64,
    last_input: Duration,
    unresolved_events: u64,
    credit: Credit,
    lease: MemoryLease,
    leased: u64,
    /// Something was added that a limit governs.
    grown: bool,
    /// Memory of a finished record, for the next.
    spare: Vec<Entry>,
}

#[derive(Debug)]
enum Phase {
    /// Waiting for `process`.
    Magic,
    /// Objects.
    Objects,
    /// Inside a string longer than what is kept of it (rule 24).
    LongString(LongString),
    /// Nothing can be read any more; what still comes is counted.
    Fault(Fault),
    /// `finish` has been told everything; records may still be on their way out, and after them these last words.
    Finished(Option<Fault>),
}

#[derive(Debug)]
struct LongString {
    id: StringId,
    offset: u64,
    head_bytes: u64,
    len: u64,
    received: u64,
    kept: Vec<u8>,
}

#[derive(Debug)]
struct Fault {
    reason: Reason,
    offset: u64,
    bytes: u64,
    detail: String,
    excerpt: Vec<u8>,
}

impl DatadogSession {
    /// A session at the start of a connection. `max_string_bytes` is the listener's `max_message_bytes`.
    pub fn new(
        options: Options,
        max_string_bytes: u64,
        emit_definitions: bool,
        memory: &std::sync::Arc<MemoryBudget>,
    ) -> Self {
        let wire = WireLimits {
            max_string_bytes,
            kept_string_bytes: options.kept_string_bytes,
            list_layout: options.list_layout,
        };
        let amplification = options.amplification;
        DatadogSession {
            wire,
            emit_definitions,
            phase: Phase::Magic,
            offset: 0,
            begun: false,
            strings: Strings::new(&options),
            waiting: Waiting::default(),
            traces: Traces::default(),
            open: None,
            late: LateOwner::Process,
            ready: VecDeque::new(),
            next_sequence: 0,
            next_key: 0,
            last_input: Duration::ZERO,
            unresolved_events: 0,
            credit: Credit::new(amplification.ratio, amplification.burst, amplification.rate),
            lease: memory.lease(),
            leased: 0,
            grown: false,
            spare: Vec::new(),
            options,
        }
    }
}

impl Session for DatadogSession {
    fn receive(&mut self, input: &[u8], now: Now, out: &mut Output) -> Progress {
        let expanded_before = out.batch.total_expanded_bytes();
        self.last_input = now.elapsed;
        let progress = self.decode(input, now, out);
        self.begun = progress.flow == Flow::Continue && progress.consumed < input.len();
        let expanded = out.batch.total_expanded_bytes() - expanded_before;
        out.hold = self.credit.spend(progress.consumed as u64, expanded, now.elapsed);
        progress
    }

    fn finish(&mut self, rest: &[u8], end: End, now: Now, out: &mut Output) -> Flow {
        if !matches!(self.phase, Phase::Finished(_)) {
            let fault = self.last_fault(rest, end);
            let is_clean = fault.is_none() && end == End::Closed;
            self.phase = Phase::Finished(fault);
            self.offset += rest.len() as u64;
            if let Some(open) = &mut self.open {
                open.partial = !is_clean;
                self.close_open(out);
            }
        }
        self.enforce_limits(out);
        if out.batch.is_full() {
            return Flow::Again;
        }
        while let Some(record) = self.waiting.pop_oldest() {
            self.ready.push_back(record);
        }
        self.send_ready(out);
        if !self.ready.is_empty() {
            return Flow::Again;
        }
        if let Phase::Finished(Some(fault)) = std::mem::replace(&mut self.phase, Phase::Finished(None)) {
            report(&fault, now, out);
        }
        if self.unresolved_events > 0 {
            let events = std::mem::take(&mut self.unresolved_events);
            let detail = "events went out with raw ids: their strings were never defined";
            let loss = Loss { reason: Reason::Unresolved, bytes: 0, events: Some(events), detail, excerpt: &[] };
            out.loss(loss_header(self.offset, 0, now), loss);
        }
        Flow::Close
    }

    fn awaiting(&self) -> Awaiting {
        match &self.phase {
            Phase::Magic => Awaiting::Handshake,
            Phase::LongString(string) => Awaiting::Rest { offset: string.offset },
            Phase::Objects if self.begun => Awaiting::Rest { offset: self.offset },
            Phase::Objects | Phase::Fault(_) | Phase::Finished(_) => Awaiting::Message,
        }
    }

    fn poll_timeout(&self) -> Option<Duration> {
        let idle = self.idle_deadline();
        let waited = self.waiting.oldest_received().map(|received| received + self.options.waiting.time);
        idle.into_iter().chain(waited).min()
    }

    fn handle_timeout(&mut self, now: Now, out: &mut Output) -> Flow {
        if self.idle_deadline().is_some_and(|deadline| deadline <= now.elapsed) {
            self.close_open(out);
        }
        let too_old = |received: Duration, wait: Duration| received + wait <= now.elapsed;
        while self.waiting.oldest_received().is_some_and(|received| too_old(received, self.options.waiting.time)) {
            let Some(record) = self.waiting.pop_oldest() else { break };
            self.ready.push_back(record);
        }
        self.send_ready(out);
        if self.ready.is_empty() { Flow::Continue } else { Flow::Again }
    }
}

// Reading objects.
impl DatadogSession {
    fn decode(&mut self, input: &[u8], now: Now, out: &mut Output) -> Progress {
        let mut at = 0;
        loop {
            self.enforce_limits(out);
            self.send_ready(out);
            if out.batch.is_full() {
                return Progress { consumed: at, flow: Flow::Again };
            }
            let rest = &input[at..];
            let step = match &mut self.phase {
                Phase::Magic => self.magic(rest, now, out),
                Phase::Objects => self.object(rest, now, out),
                Phase::LongString(_) => Ok(self.long_string(rest, now, out)),
                Phase::Fault(fault) => {
                    fault.count(rest);
                    self.offset += rest.len() as u64;
                    return Progress { consumed: input.len(), flow: Flow::Close };
                }
                Phase::Finished(_) => return Progress { consumed: at, flow: Flow::Close },
            };
            match step {
                Ok(Some(size)) => {
                    at += size;
                    self.offset += size as u64;
                }
                Ok(None) => return Progress { consumed: at, flow: Flow::Continue },
                Err(error) => self.phase = Phase::Fault(self.fault(error, rest)),
            }
        }
    }

    fn magic(&mut self, rest: &[u8], now: Now, out: &mut Output) -> Result<Option<usize>, DecodeError> {
        let Some(process) = wire::decode_process(rest)? else { return Ok(None) };
        self.phase = Phase::Objects;
        self.strings.declare(process.string_cache_size);
        let origin = out.batch.origin().with_version("1");
        out.batch.set_origin(origin.into());
        self.begin(Owner::Process(process), wire::PROCESS_BYTES, now);
        out.decoded_bytes += wire::PROCESS_BYTES as u64;
        Ok(Some(wire::PROCESS_BYTES))
    }

    fn object(&mut self, rest: &[u8], now: Now, out: &mut Output) -> Result<Option<usize>, DecodeError> {
        let Some((object, size)) = wire::decode(rest, &self.wire)? else { return Ok(None) };
        let mut decoded = size as u64;
        match object {
            Object::Trace(trace_id) => {
                self.close_open(out);
                self.begin(Owner::Trace(trace_id), size, now);
            }
            Object::Span(span) => {
                self.close_open(out);
                let record = self.begin(Owner::Span(span), size, now);
                if span.error > 1 {
                    record.warnings.add(Warning::ErrorFlag);
                    out.warn(Warning::ErrorFlag.as_str());
                }
                if span.start.checked_add(span.duration).is_none() {
                    record.warnings.add(Warning::EndOverflows);
                    out.warn(Warning::EndOverflows.as_str());
                }
                self.refer_fields(&span);
                self.refer_trace(&span);
            }
            Object::List(kind, entries) => {
                let lost = self.list(kind, entries, now, out);
                decoded -= lost;
            }
            Object::String(id, text) => self.define(id, text, false, size as u64, self.offset, now, out),
            Object::LongString(id, len) => {
                let (offset, head_bytes) = (self.offset, size as u64);
                let kept = Vec::new();
                self.phase =
                    Phase::LongString(LongString { id, offset, head_bytes, len: len.into(), received: 0, kept });
                decoded = 0;
            }
        }
        out.decoded_bytes += decoded;
        Ok(Some(size))
    }

    /// Streams a string's body: keeps a little more than the limit, so that the cut can see the character at it.
    fn long_string(&mut self, rest: &[u8], now: Now, out: &mut Output) -> Option<usize> {
        let Phase::LongString(string) = &mut self.phase else { return None };
        let missing = string.len - string.received;
        if rest.is_empty() && missing > 0 {
            return None;
        }
        let taken = usize::try_from(missing).unwrap_or(usize::MAX).min(rest.len());
        let limit = usize::try_from(self.options.kept_string_bytes).unwrap_or(usize::MAX);
        let room = limit.saturating_add(3).saturating_sub(string.kept.len());
        string.kept.extend_from_slice(&rest[..taken.min(room)]);
        string.received += taken as u64;
        if string.received == string.len {
            let Phase::LongString(string) = std::mem::replace(&mut self.phase, Phase::Objects) else { return None };
            out.warn("string_truncated");
            let size = string.head_bytes + string.len;
            let text = cut_bytes(&string.kept, limit);
            self.define(string.id, text, true, size, string.offset, now, out);
            out.decoded_bytes += size;
        }
        Some(taken)
    }

    /// The last words about bytes that can never be decoded, if there are any.
    fn last_fault(&mut self, rest: &[u8], end: End) -> Option<Fault> {
        let reason = if end == End::TooLarge { Reason::TooLarge } else { Reason::Truncated };
        match std::mem::replace(&mut self.phase, Phase::Finished(None)) {
            Phase::Fault(mut fault) => {
                fault.count(rest);
                Some(fault)
            }
            Phase::LongString(string) => {
                let bytes = string.head_bytes + string.received + rest.len() as u64;
                let detail = format!(
                    "string.characters: {} of {} bytes are here, and {}",
                    string.received,
                    string.len,
                    end.as_str()
                );
                let mut excerpt =
                    [&[0xDD, 6][..], &string.id.0, &(string.len as u32).to_be_bytes(), &string.kept].concat();
                excerpt.truncate(Loss::EXCERPT);
                Some(Fault { reason, offset: string.offset, bytes, detail, excerpt })
            }
            _ if !rest.is_empty() => {
                let detail = format!("{} bytes of an object are here, and {}", rest.len(), end.as_str());
                let mut fault = Fault { reason, offset: self.offset, bytes: 0, detail, excerpt: Vec::new() };
                fault.count(rest);
                Some(fault)
            }
            _ => None,
        }
    }

    fn fault(&self, error: DecodeError, rest: &[u8]) -> Fault {
        let reason = match error.kind {
            DecodeErrorKind::Short { .. } | DecodeErrorKind::Invalid { .. } => Reason::Malformed,
            DecodeErrorKind::Unsupported { .. } => Reason::Unsupported,
            DecodeErrorKind::TooLarge { .. } => Reason::TooLarge,
        };
        // Operators mix up ports: say what the first byte looks like (rule 30).
        let looks_like = match (&self.phase, rest.first()) {
            (Phase::Magic, Some(0x16)) => {
                "; this looks like TLS: set `tls` on the listener or turn it off in the agent"
            }
            (Phase::Magic, Some(byte)) if byte.is_ascii_uppercase() => {
                "; this looks like HTTP, which is another protocol"
            }
            _ => "",
        };
        let detail = format!("at {}: {error}{looks_like}", self.offset + error.offset as u64);
        Fault { reason, offset: self.offset, bytes: 0, detail, excerpt: Vec::new() }
    }
}

impl Fault {
    /// More bytes that are lost with it.
    fn count(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        let room = Loss::EXCERPT - self.excerpt.len();
        self.excerpt.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }
}

fn report(fault: &Fault, now: Now, out: &mut Output) {
    let Fault { reason, offset, bytes, detail, excerpt } = fault;
    let loss = Loss { reason: *reason, bytes: *bytes, events: None, detail, excerpt };
    out.loss(loss_header(*offset, *bytes, now), loss);
}

fn loss_header(offset: u64, length: u64, now: Now) -> Header {
    let position = Position { sequence: None, offset, length };
    Header { name: semconv::LOSS.into(), time: Some(now.unix), observed: now.unix, position }
}

// Building records.
impl DatadogSession {
    fn begin(&mut self, owner: Owner, size: usize, now: Now) -> &mut Record {
        let sequence = match owner {
            Owner::Late(_) => self.next_sequence.saturating_sub(1),
            _ => {
                self.next_sequence += 1;
                self.next_sequence - 1
            }
        };
        self.next_key += 1;
        self.open.insert(Record {
            key: self.next_key,
            owner,
            sequence,
            offset: self.offset,
            length: size as u64,
            observed: now.unix,
            received: now.elapsed,
            fields: [Ref::Absent; 4],
            entries: std::mem::take(&mut self.spare),
            own_entries: 0,
            unresolved: 0,
            expanded_bytes: 0,
            dropped: 0,
            dropped_late: 0,
            last_list: None,
            warnings: Warnings::default(),
            partial: false,
        })
    }

    fn refer_fields(&mut self, span: &wire::Span) {
        let Some(open) = &mut self.open else { return };
        for field in [NAME, TYPE, RESOURCE, SERVICE] {
            let id = span.texts[field];
            open.fields[field] = match self.strings.refer(id) {
                Some(slot) => Ref::Bound(slot),
                None => wait_for(id, open.key, field_place(field), &mut open.unresolved, &mut self.waiting),
            };
        }
        self.grown |= open.unresolved > 0;
    }

    /// The meta of its trace stand on a span (reading 17), as far as their texts are known by now: the span waits for
    /// its own texts only, and what never gets one is told on the trace's own event.
    fn refer_trace(&mut self, span: &wire::Span) {
        let Some(open) = &mut self.open else { return };
        let Some(metas) = self.traces.get(span.trace_id) else { return };
        for (done, pair) in metas.iter_mut().enumerate() {
            let (key, value) = pair;
            for reference in [&mut *key, &mut *value] {
                if let Ref::Waiting(id) = *reference
                    && let Some(slot) = self.strings.peek(id)
                {
                    *reference = Ref::Bound(slot);
                }
            }
            let (Ref::Bound(key_slot), Ref::Bound(value_slot)) = (*key, *value) else { continue };
            open.expanded_bytes += self.strings.text(value_slot).len().min(self.options.max_text.value) as u64;
            if open.expanded_bytes > self.options.max_record_bytes {
                let left = (metas.len() - done) as u64;
                open.dropped += left;
                open.dropped_late += left;
                break;
            }
            self.strings.retain(key_slot);
            self.strings.retain(value_slot);
            open.entries.push(Entry { kind: EntryKind::TraceMeta, key: *key, value: EntryValue::Text(*value) });
        }
    }

    /// Adds a list's entries to the open record; answers how many bytes of them a limit cut.
    fn list(&mut self, kind: ListKind, entries: &[[u8; ENTRY_BYTES]], now: Now, out: &mut Output) -> u64 {
        if self.open.is_none() {
            out.warn("late_list");
            self.begin(Owner::Late(self.late), entries.len() * ENTRY_BYTES + 3, now);
        }
        let Some(open) = &mut self.open else { return 0 };
        if open.last_list.replace(kind) == Some(kind) {
            open.warnings.add(Warning::RepeatedList);
            out.warn(Warning::RepeatedList.as_str());
        }
        let (max_entries, max_bytes) = (self.options.max_record_entries, self.options.max_record_bytes);
        let mut dropped = 0;
        for (at, entry) in entries.iter().enumerate() {
            if open.own_entries >= max_entries {
                // What is dropped for its number neither binds nor touches the cache (rule 28).
                dropped += (entries.len() - at) as u64;
                break;
            }
            let place = key_place(open.entries.len());
            let (name, value) = entry.split_first_chunk::<8>().map_or(([0; 8], [0; 8]), |(name, value)| {
                (*name, value.first_chunk::<8>().copied().unwrap_or_default())
            });
            let unresolved_before = open.unresolved;
            let mut refer = |id: StringId, place: u32, limit: usize| match self.strings.refer(id) {
                Some(slot) => (Ref::Bound(slot), self.strings.text(slot).len().min(limit) as u64),
                None => (wait_for(id, open.key, place, &mut open.unresolved, &mut self.waiting), 0),
            };
            let (key, key_bytes) = refer(StringId(name), place, self.options.max_text.key);
            let (kind, value, value_bytes) = match kind {
                ListKind::Meta => {
                    let (value, bytes) = refer(StringId(value), place + 1, self.options.max_text.value);
                    (EntryKind::Meta, EntryValue::Text(value), bytes)
                }
                ListKind::Metrics => (EntryKind::Metric, EntryValue::Number(u64::from_be_bytes(value)), 8),
            };
            open.expanded_bytes += key_bytes + value_bytes;
            let mut entry = Entry { kind, key, value };
            if open.expanded_bytes > max_bytes {
                open.expanded_bytes -= key_bytes + value_bytes;
                dropped += 1;
                if open.unresolved == unresolved_before {
                    let value = if let EntryValue::Text(value) = value { value } else { Ref::Absent };
                    release_all([key, value], &mut self.strings);
                    continue;
                }
                // Part of it waits: it stays for the index's sake, and is not written.
                entry.kind = EntryKind::Dropped;
            }
            open.entries.push(entry);
            open.own_entries += 1;
        }
        self.grown |= open.unresolved > 0;
        if dropped == 0 {
            return 0;
        }
        let is_first = open.dropped == 0;
        open.dropped += dropped;
        open.warnings.add(Warning::TooManyEntries);
        out.warn(Warning::TooManyEntries.as_str());
        let bytes = dropped * ENTRY_BYTES as u64;
        let detail = format!(
            "list: {dropped} entries are over the limits of a record, {max_entries} entries (max_record_entries) or {max_bytes} bytes of text (max_record_bytes)"
        );
        let loss =
            Loss { reason: Reason::TooLarge, bytes, events: Some(u64::from(is_first)), detail: &detail, excerpt: &[] };
        out.loss(loss_header(self.offset, (entries.len() * ENTRY_BYTES + 3) as u64, now), loss);
        bytes
    }

    #[allow(clippy::too_many_arguments)]
    fn define(
        &mut self,
        id: StringId,
        text: &[u8],
        truncated: bool,
        size: u64,
        offset: u64,
        now: Now,
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
            let position = Position { sequence: None, offset, length: size };
            let header =
                Header { name: semconv::DATADOG_STRING.into(), time: Some(now.unix), observed: now.unix, position };
            normalize::write_definition(id, defined.slot, &self.strings, header, out);
        }
        if !self.waiting.expects_nothing() {
            self.bind(id, defined.slot);
        }
        self.strings.release(defined.slot);
        self.grown = true;
    }

    /// Everything that waits for `id` gets its text, and goes out if it waited for nothing else (rule 10).
    fn bind(&mut self, id: StringId, slot: Slot) {
        let text_bytes = self.strings.text(slot).len().min(self.options.max_text.value) as u64;
        let max_bytes = self.options.max_record_bytes;
        for (key, place) in self.waiting.defined(id) {
            let open = self.open.as_mut().filter(|open| open.key == key);
            let is_open = open.is_some();
            let Some(record) = open.or_else(|| self.waiting.get_mut(key)) else { continue };
            self.strings.retain(slot);
            record.bind(place, slot, text_bytes, max_bytes);
            if record.unresolved == 0 && !is_open {
                self.ready.extend(self.waiting.remove(key));
            }
        }
    }

    /// The open record is complete (reading 16): it goes out, or waits for its texts.
    fn close_open(&mut self, out: &mut Output) {
        let Some(open) = self.open.take() else { return };
        match open.owner {
            Owner::Process(_) => self.late = LateOwner::Process,
            Owner::Trace(trace_id) => self.late = LateOwner::Trace(trace_id),
            Owner::Span(span) => self.late = LateOwner::Span(span.trace_id, span.span_id),
            Owner::Late(_) => {}
        }
        if let Owner::Trace(trace_id) | Owner::Late(LateOwner::Trace(trace_id)) = open.owner {
            let (max_traces, max_entries) = (self.options.max_traces, self.options.max_record_entries);
            self.traces.learn(trace_id, &open, max_traces, max_entries, &mut self.strings);
        }
        if open.unresolved == 0 {
            self.send(open, out);
        } else {
            self.waiting.insert(open);
            self.grown = true;
        }
    }

    fn send_ready(&mut self, out: &mut Output) {
        while !out.batch.is_full() {
            let Some(record) = self.ready.pop_front() else { return };
            self.send(record, out);
        }
    }

    fn send(&mut self, mut record: Record, out: &mut Output) {
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
            let position = Position { sequence: Some(record.sequence), offset: record.offset, length: record.length };
            let header =
                Header { name: semconv::LOSS.into(), time: Some(record.observed), observed: record.observed, position };
            out.loss(header, loss);
        }
        release_all(record.refs(), &mut self.strings);
        record.entries.clear();
        if record.entries.capacity() > self.spare.capacity() && record.entries.capacity() <= 512 {
            self.spare = record.entries;
        }
    }
}

/// A reference to an id without text: absent when it is 0 (rule 13), else one that waits.
fn wait_for(id: StringId, key: u64, place: u32, unresolved: &mut u32, waiting: &mut Waiting) -> Ref {
    if id == StringId::ABSENT {
        return Ref::Absent;
    }
    waiting.expect(id, key, place);
    *unresolved += 1;
    Ref::Waiting(id)
}

// Limits and time.
impl DatadogSession {
    /// When the open record counts as complete though nothing follows it. While an object is half here, it may be one
    /// of its lists.
    fn idle_deadline(&self) -> Option<Duration> {
        let idle = matches!(self.phase, Phase::Objects) && !self.begun && self.open.is_some();
        idle.then(|| self.last_input + self.options.span_idle)
    }

    /// Lets go of what is over a limit: waiting records go out unresolved, oldest first; then trace meta, then cached
    /// strings are forgotten.
    fn enforce_limits(&mut self, out: &mut Output) {
        if !self.grown {
            return;
        }
        while !out.batch.is_full() {
            let too_many = self.waiting.len() > self.options.waiting.records;
            let held = self.waiting.bytes() + self.traces.bytes() + self.strings.orphan_bytes();
            let too_large = held > self.options.waiting.bytes;
            let over_budget = !self.lease(held + self.strings.cached_bytes());
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
                record.warnings.add(Warning::PendingOverflow);
                out.warn(Warning::PendingOverflow.as_str());
                self.send(record, out);
            } else if !((too_large || over_budget) && self.traces.forget_oldest(&mut self.strings))
                && !(over_budget && self.strings.evict_oldest())
            {
                break;
            }
        }
        self.grown = out.batch.is_full();
    }

    /// Whether the process has room for this much memory of this session.
    fn lease(&mut self, bytes: u64) -> bool {
        let bytes = bytes.next_multiple_of(LEASE_STEP_BYTES);
        if bytes == self.leased {
            return true;
        }
        self.leased = bytes;
        self.lease.hold(bytes)
    }
}
