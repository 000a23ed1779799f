//! A tracer of Datadog-style binary spans: the traffic of a small web shop.
//!
//! It behaves like the reference sender where that matters to a collector: it sends an object, its metaList, every string
//! that is not defined yet, its metricsList, and the strings of that list. So texts mostly arrive after the object that
//! refers to them. Texts are sent again after a cache of [`STRING_CACHE_SIZE`] entries has evicted them; URLs with numbers
//! cause such evictions.

mod shop;
mod strings;
mod tag;

use std::fmt::Write;

use bytes::BufMut;

use super::Counts;
use super::rng::Rng;
use shop::{Operation, OperationKind, VISITS};
use strings::{Strings, Word};

/// The default number of texts that a tracer remembers, as in the reference sender.
pub const STRING_CACHE_SIZE: u32 = 1024;

const PROCESS: u16 = 0xdd00;
const TRACE: u16 = 0xdd01;
const SPAN: u16 = 0xdd02;
const METRICS_LIST: u16 = 0xdd04;
const META_LIST: u16 = 0xdd05;

const PROTOCOL_VERSION: u32 = 1;

/// Type and length of a list.
const LIST_HEAD: usize = 3;
/// An id and an id, or an id and a double.
const LIST_ENTRY: usize = 16;
/// The size of every list in [`DatadogDialect::Padded32`].
const PADDED_LIST: usize = LIST_HEAD + 32 * LIST_ENTRY;

/// The most spans of a trace.
const MOST_SPANS: u64 = 12;

/// The two layouts that senders use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DatadogDialect {
    /// As in the specification: a list has the size of its entries, and trace ids have 128 bits.
    #[default]
    Exact,
    /// As the reference sender writes: a list has 515 bytes, with zeros for unused entries, and a trace id is 64 bits
    /// followed by 64 zero bits.
    Padded32,
}

/// The traffic of a traced program on one connection.
///
/// Call [`Tracer::hello`] once, then [`Tracer::trace`] as often as you like; both append to a buffer. Equal arguments
/// give equal bytes, on every machine.
#[derive(Debug)]
pub struct Tracer {
    rng: Rng,
    dialect: DatadogDialect,
    string_cache_size: u32,
    strings: Strings,
    /// When the next trace ends, in nanoseconds since 1970.
    clock_nanos: u64,
    process_id: u32,
    runtime_id: String,
    /// The spans of the current trace, callers before their callees.
    plan: Vec<Planned>,
    /// A buffer for texts.
    scratch: String,
}

/// The data that all spans of a trace share.
#[derive(Clone, Copy)]
struct TraceFields {
    id: [u8; 16],
    /// The number of the cart, product or order: the end of its URLs.
    subject: u64,
}

/// A span before it is written.
#[derive(Clone, Copy, Debug)]
struct Planned {
    operation: &'static Operation,
    /// Position of its caller in the plan; its own for the root.
    caller: usize,
    id: u64,
    start_nanos: u64,
    duration_nanos: u64,
    failed: bool,
}

impl Tracer {
    /// A tracer that has not sent anything.
    ///
    /// `seed` and `connection` (its number in a run) determine everything but the times; `base_unix_nanos` is the end of its
    /// first trace, in nanoseconds since 1970.
    pub fn new(seed: u64, connection: u64, base_unix_nanos: u64, dialect: DatadogDialect) -> Self {
        let mut rng = Rng::new(seed, connection);
        let process_id = 2 + rng.below(4_000_000) as u32;
        let runtime_id = uuid(&mut rng);
        Tracer {
            rng,
            dialect,
            string_cache_size: STRING_CACHE_SIZE,
            strings: Strings::new(STRING_CACHE_SIZE as usize),
            clock_nanos: base_unix_nanos,
            process_id,
            runtime_id,
            plan: Vec::new(),
            scratch: String::new(),
        }
    }

    /// The same tracer with another size of the string cache, in entries; with 0 each use of a text defines it. Call it
    /// before [`Tracer::hello`], which announces the size.
    pub fn with_string_cache_size(mut self, entries: u32) -> Self {
        self.string_cache_size = entries;
        self.strings = Strings::new(entries as usize);
        self
    }

    /// Sets the clock: the next trace ends at `unix_nanos`, in nanoseconds since 1970. Without this call the clock advances
    /// by some microseconds with every trace.
    pub fn set_clock(&mut self, unix_nanos: u64) {
        self.clock_nanos = unix_nanos;
    }

    /// Appends the start of a connection: the process object, its lists and their texts. One event.
    pub fn hello(&mut self, out: &mut Vec<u8>) -> Counts {
        out.put_u16(PROCESS);
        out.put_u32(PROTOCOL_VERSION);
        out.put_u64(u64::from(self.string_cache_size));
        let mut messages = 1;

        let list = begin_list(META_LIST, out);
        let runtime_id = self.strings.text(&self.runtime_id);
        self.meta(tag::ENV, tag::PROD, out);
        self.meta(tag::VERSION, tag::VERSION_NOW, out);
        self.meta(tag::LANGUAGE, tag::RUST, out);
        self.meta_id(tag::RUNTIME_ID, runtime_id, out);
        messages += self.end_list(list, out);
        messages += self.strings.define_queued(out);

        let list = begin_list(METRICS_LIST, out);
        self.metric(tag::PROCESS_ID, f64::from(self.process_id), out);
        messages += self.end_list(list, out);
        messages += self.strings.define_queued(out);
        Counts { messages, events: 1 }
    }

    /// Appends one trace of at most `max_events` events (its trace object, which not every trace has, counts as one,
    /// and so does each of its 1 to 12 spans); 0 appends nothing.
    pub fn trace(&mut self, max_events: u64, out: &mut Vec<u8>) -> Counts {
        let mut counts = Counts::default();
        if max_events == 0 {
            return counts;
        }
        let trace = TraceFields { id: self.trace_id(), subject: self.subject() };
        self.clock_nanos = self.clock_nanos.saturating_add(1_000 + self.rng.below(8_000));
        if self.rng.one_in(4) && max_events > 1 {
            counts += self.trace_object(&trace, out);
        }
        let spans = 1 + self.rng.below(MOST_SPANS);
        // At least one is left: the trace object is written only if `max_events` allows both.
        self.plan_spans(spans.min(max_events - counts.events));
        for at in 0..self.plan.len() {
            counts += self.span(&trace, at, out);
        }
        counts
    }

    /// Plans the spans of the next trace: first a visit, then calls of earlier spans.
    fn plan_spans(&mut self, spans: u64) {
        self.plan.clear();
        // Mostly some milliseconds, sometimes a whole second.
        let duration_nanos = 2_000_000 + self.rng.below(40_000_000) * (1 + 24 * u64::from(self.rng.one_in(40)));
        let start_nanos = self.clock_nanos.saturating_sub(duration_nanos);
        let visit = *self.rng.pick(&VISITS);
        self.plan_span(visit, 0, start_nanos, duration_nanos);
        for planned in 1..spans {
            let near = self.rng.below(planned) as usize;
            // A span without calls: continue with its caller, which has calls.
            let at = if self.plan[near].operation.calls.is_empty() { self.plan[near].caller } else { near };
            let caller = self.plan[at];
            let operation = *self.rng.pick(caller.operation.calls);
            let waited = self.rng.below(caller.duration_nanos / 2);
            let took = 1 + self.rng.below(caller.duration_nanos / 2);
            self.plan_span(operation, at, caller.start_nanos + waited, took);
        }
    }

    fn plan_span(&mut self, operation: &'static Operation, caller: usize, start_nanos: u64, duration_nanos: u64) {
        // Span id 0 would be "no span".
        let id = self.rng.next().max(1);
        let failed = self.rng.one_in(50);
        self.plan.push(Planned { operation, caller, id, start_nanos, duration_nanos, failed });
    }

    fn trace_object(&mut self, trace: &TraceFields, out: &mut Vec<u8>) -> Counts {
        out.put_u16(TRACE);
        out.put_slice(&trace.id);
        let mut messages = 1;
        let customer = *self.rng.pick(&[tag::NEW_CUSTOMER, tag::REGULAR_CUSTOMER]);
        let list = begin_list(META_LIST, out);
        self.meta(tag::CUSTOMER, customer, out);
        messages += self.end_list(list, out);
        messages += self.strings.define_queued(out);
        Counts { messages, events: 1 }
    }

    fn span(&mut self, trace: &TraceFields, at: usize, out: &mut Vec<u8>) -> Counts {
        let span = self.plan[at];
        let operation = span.operation;
        let caller = self.plan[span.caller];
        let is_root = span.caller == at;
        let is_top_level = is_root || caller.operation.service.id != operation.service.id;

        out.put_u16(SPAN);
        out.put_u64(span.id);
        out.put_u64(if is_root { 0 } else { caller.id });
        out.put_slice(&trace.id);
        out.put_u64(span.start_nanos);
        out.put_u64(span.duration_nanos);
        out.put_u64(self.strings.word(operation.name));
        out.put_u64(self.strings.word(operation.kind.span_type()));
        out.put_u64(self.strings.word(operation.resource));
        out.put_u64(self.strings.word(operation.service));
        out.put_u8(u8::from(span.failed));
        let mut messages = 1;

        let list = begin_list(META_LIST, out);
        self.span_meta(trace, &span, is_root, is_top_level, out);
        messages += self.end_list(list, out);
        messages += self.strings.define_queued(out);

        let list = begin_list(METRICS_LIST, out);
        self.span_metrics(&span, is_root, is_top_level, out);
        messages += self.end_list(list, out);
        messages += self.strings.define_queued(out);
        Counts { messages, events: 1 }
    }

    fn span_meta(&mut self, trace: &TraceFields, span: &Planned, is_root: bool, is_top_level: bool, out: &mut Vec<u8>) {
        let operation = span.operation;
        self.meta(tag::SPAN_KIND, operation.kind.span_kind(), out);
        if let Some(http) = &operation.http {
            self.meta(tag::HTTP_METHOD, http.method, out);
            let url = self.text_with_subject("", operation, trace);
            self.meta_id(tag::HTTP_URL, url, out);
            self.meta(tag::HTTP_STATUS_CODE, if span.failed { tag::STATUS_503 } else { tag::STATUS_200 }, out);
        }
        if is_top_level {
            self.meta(tag::ENV, tag::PROD, out);
            self.meta(tag::VERSION, tag::VERSION_NOW, out);
        }
        if is_root {
            let runtime_id = self.strings.text(&self.runtime_id);
            self.meta_id(tag::RUNTIME_ID, runtime_id, out);
            // A 64-bit trace id has no upper half.
            if self.dialect == DatadogDialect::Exact {
                let upper = self.upper_half(trace);
                self.meta_id(tag::TRACE_ID_UPPER, upper, out);
            }
        }
        if span.failed {
            self.meta(tag::ERROR_TYPE, operation.failure.error_type, out);
            let message = self.text_with_subject(operation.failure.message, operation, trace);
            self.meta_id(tag::ERROR_MESSAGE, message, out);
        }
    }

    fn span_metrics(&mut self, span: &Planned, is_root: bool, is_top_level: bool, out: &mut Vec<u8>) {
        if is_root {
            // 2: kept by request. 1: kept by sampling.
            let priority = if span.failed { 2.0 } else { 1.0 };
            self.metric(tag::SAMPLING_PRIORITY, priority, out);
            self.metric(tag::PROCESS_ID, f64::from(self.process_id), out);
        }
        if is_top_level {
            self.metric(tag::TOP_LEVEL, 1.0, out);
        }
        if matches!(span.operation.kind, OperationKind::Http | OperationKind::Db) || is_root {
            self.metric(tag::MEASURED, 1.0, out);
        }
    }

    /// 128 bits begin with the second of the trace's end, as Datadog's tracers have them; 64 bits come first.
    fn trace_id(&mut self) -> [u8; 16] {
        let number = self.rng.next().max(1);
        let (first, last) = match self.dialect {
            DatadogDialect::Exact => ((self.clock_nanos / 1_000_000_000) << 32, number),
            DatadogDialect::Padded32 => (number, 0),
        };
        (u128::from(first) << 64 | u128::from(last)).to_be_bytes()
    }

    /// A few subjects that are visited often, more that are visited again after their URLs were evicted, and many that are
    /// visited once.
    fn subject(&mut self) -> u64 {
        match self.rng.below(4) {
            0 | 1 => 1 + self.rng.below(64),
            2 => 1_000 + self.rng.below(4_000),
            _ => 100_000 + self.rng.below(90_000_000),
        }
    }

    /// The id of `before`, followed by the URL of the operation if it has one.
    fn text_with_subject(&mut self, before: &str, operation: &Operation, trace: &TraceFields) -> u64 {
        self.scratch.clear();
        self.scratch.push_str(before);
        if let Some(http) = &operation.http {
            self.scratch.push_str(http.url);
            self.scratch.push_str(itoa::Buffer::new().format(trace.subject));
        }
        self.strings.text(&self.scratch)
    }

    /// The id of the first half of the trace id, in 16 hex digits.
    fn upper_half(&mut self, trace: &TraceFields) -> u64 {
        self.scratch.clear();
        let upper = u128::from_be_bytes(trace.id) >> 64;
        // Writing to a String does not fail.
        let _ = write!(self.scratch, "{upper:016x}");
        self.strings.text(&self.scratch)
    }

    #[inline]
    fn meta(&mut self, name: Word, value: Word, out: &mut Vec<u8>) {
        out.put_u64(self.strings.word(name));
        out.put_u64(self.strings.word(value));
    }

    #[inline]
    fn meta_id(&mut self, name: Word, value: u64, out: &mut Vec<u8>) {
        out.put_u64(self.strings.word(name));
        out.put_u64(value);
    }

    #[inline]
    fn metric(&mut self, name: Word, value: f64, out: &mut Vec<u8>) {
        out.put_u64(self.strings.word(name));
        out.put_f64(value);
    }

    /// Finishes the list that begins at `list`, after its entries were appended to `out`. Returns the number of lists: 0 if
    /// there are no entries.
    fn end_list(&self, list: usize, out: &mut Vec<u8>) -> u64 {
        let entries = (out.len() - list - LIST_HEAD) / LIST_ENTRY;
        if entries == 0 {
            out.truncate(list);
            return 0;
        }
        out[list + 2] = entries as u8;
        if self.dialect == DatadogDialect::Padded32 {
            out.resize(list + PADDED_LIST, 0);
        }
        1
    }
}

/// Writes the head of a list without its length. Returns its offset.
fn begin_list(object_type: u16, out: &mut Vec<u8>) -> usize {
    let list = out.len();
    out.put_u16(object_type);
    out.put_u8(0);
    list
}

/// A random UUID, version 4.
fn uuid(rng: &mut Rng) -> String {
    let (a, b) = (rng.next(), rng.next());
    let (version, variant) = (0x4000 | a & 0x0fff, 0x8000 | b >> 48 & 0x3fff);
    format!("{:08x}-{:04x}-{version:04x}-{variant:04x}-{:012x}", a >> 32, a >> 16 & 0xffff, b & 0xffff_ffff_ffff)
}
