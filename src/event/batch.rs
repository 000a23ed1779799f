//! The batch: events on their way from a session to the sinks, in one flat arena.
//!
//! A session writes events through a [`BatchBuilder`]; the transport takes the [`Batch`] and hands it, shared,
//! to every sink; a sink reads it through [`super::EventView`]. Text is copied into the arena once per batch
//! (see [`BatchBuilder::intern`]), so no event holds a read buffer or a counted string.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Kind, Loss, Name, Origin, Reason, Resource, Severity, SpanId, TraceId, UnixNanos};

/// A batch is full at this many events …
const FULL_EVENTS: usize = 1024;
/// … or when its events are about this many bytes of output.
const FULL_EXPANDED_BYTES: usize = 256 * 1024;
/// What an event costs in output beside its attributes, roughly.
const EVENT_OVERHEAD_BYTES: usize = 256;

/// Numbers batches over the life of the process, so that an [`Interned`] of one is never taken for another's.
static NEXT_BATCH: AtomicU64 = AtomicU64::new(1);

/// Events of one connection, read-only. Holds at least the events of one message, about 1,024 at most.
#[derive(Debug, Default)]
pub struct Batch {
    pub(super) text: String,
    pub(super) bytes: Vec<u8>,
    pub(super) events: Vec<Event>,
    pub(super) attributes: Vec<(Key, Value)>,
    pub(super) values: Vec<Value>,
    pub(super) members: Vec<(Key, Value)>,
    pub(super) frames: Vec<Frame>,
    pub(super) origins: Vec<Arc<Origin>>,
    pub(super) resources: Vec<Arc<Resource>>,
    pub(super) counts: [u32; Kind::ALL.len()],
}

impl Batch {
    /// Number of events.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether there is no event.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Number of events of one kind.
    pub fn count(&self, kind: Kind) -> u64 {
        u64::from(self.counts[kind.index()])
    }

    /// The connection of the first event. Every event of a batch comes from one listener and one protocol.
    pub fn origin(&self) -> Option<&Arc<Origin>> {
        self.origins.first()
    }

    /// Bytes of memory that this batch holds.
    pub fn memory_bytes(&self) -> usize {
        self.text.capacity()
            + self.bytes.capacity()
            + self.events.capacity() * size_of::<Event>()
            + (self.attributes.capacity() + self.members.capacity()) * size_of::<(Key, Value)>()
            + self.values.capacity() * size_of::<Value>()
            + self.frames.capacity() * size_of::<Frame>()
    }
}

#[derive(Debug)]
pub(super) struct Event {
    pub(super) header: Header,
    pub(super) data: Data,
    pub(super) attributes: Span32,
    pub(super) origin: u32,
    pub(super) resource: u32,
}

/// What every kind of event has.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    /// The event's name.
    pub name: Key,
    /// When it happened; `None` when unknown.
    pub time: Option<UnixNanos>,
    /// When the collector read it.
    pub observed: UnixNanos,
    /// Where it stood in the peer's stream.
    pub position: Position,
}

/// Where a message stood: the peer's number, and its place in the byte stream or request body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// The peer's own number where it has one, else our running number on the connection.
    pub sequence: Option<u64>,
    /// Offset of the message's first byte.
    pub offset: u64,
    /// Length of the message in bytes.
    pub length: u64,
}

#[derive(Debug)]
pub(super) enum Data {
    Log { severity: Severity, body: Option<Value> },
    Span(SpanData),
    Metric(MetricData),
    Sample { data: SampleData, frames: Span32 },
    Loss { reason: Reason, bytes: u64, events: Option<u64>, detail: Text, excerpt: Span32 },
}

impl Data {
    pub(super) fn kind(&self) -> Kind {
        match self {
            Data::Log { .. } => Kind::Log,
            Data::Span(_) => Kind::Span,
            Data::Metric(_) => Kind::Metric,
            Data::Sample { .. } => Kind::Sample,
            Data::Loss { .. } => Kind::Loss,
        }
    }
}

/// A timed operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpanData {
    /// The trace it belongs to.
    pub trace_id: TraceId,
    /// Its own id.
    pub span_id: SpanId,
    /// The enclosing span; `None` for a root.
    pub parent: Option<SpanId>,
    /// When it ended; `None` when unknown or beyond [`UnixNanos`].
    pub end: Option<UnixNanos>,
    /// How long it took, exactly.
    pub duration_nanos: Option<u64>,
    /// How it ended.
    pub status: Status,
}

/// How a span ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Status {
    Unset,
    Ok,
    Error,
}

/// One number data point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MetricData {
    /// Gauge or sum.
    pub metric_type: MetricType,
    /// Unit in UCUM notation, e.g. `By`; empty when there is none.
    pub unit: &'static str,
    /// The number.
    pub value: Number,
    /// Start of the time that the number stands for.
    pub start: Option<UnixNanos>,
}

/// What a metric's number means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum MetricType {
    Gauge,
    Sum { temporality: Temporality, monotonic: bool },
}

/// What time a sum covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Temporality {
    Delta,
    Cumulative,
}

/// A number as the peer sent it.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Number {
    I64(i64),
    U64(u64),
    F64(f64),
}

/// A stack's value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleData {
    /// What was sampled, e.g. `cpu`.
    pub sample_type: &'static str,
    /// Unit of the value, e.g. `count`.
    pub unit: &'static str,
    /// The value.
    pub value: Number,
}

/// One frame of a stack.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub struct Frame {
    pub function: Option<Text>,
    pub file: Option<Text>,
    pub line: Option<u64>,
}

/// A text in a batch's arena. Valid only with the batch it came from.
#[derive(Clone, Copy, Debug)]
pub struct Text {
    pub(super) start: u32,
    /// Length in the lower 31 bits; the top bit says that the text is plain.
    len_and_plain: u32,
}

const PLAIN: u32 = 1 << 31;

impl Text {
    pub(super) fn range(self) -> std::ops::Range<usize> {
        let start = self.start as usize;
        start..start + self.len()
    }

    /// Length in bytes.
    pub fn len(self) -> usize {
        (self.len_and_plain & !PLAIN) as usize
    }

    /// Whether it is the empty text.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Whether it can stand between quotes as it is: see [`is_plain`].
    pub(super) fn is_plain(self) -> bool {
        self.len_and_plain & PLAIN != 0
    }
}

/// Whether a text surely has no character that JSON must, or our encoder does, escape: control characters, quotes,
/// backslashes, and the line separators U+0085, U+2028, U+2029 (told by their first byte, so some innocent text
/// counts as not plain and is looked at again).
pub(super) fn is_plain(text: &str) -> bool {
    text.bytes().fold(true, |plain, b| plain & (b >= 0x20) & (b != b'"') & (b != b'\\') & (b != 0xC2) & (b != 0xE2))
}

/// Remembers where a text stands in a batch, so that the next use in the same batch copies nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Interned {
    batch: u64,
    text: Option<Text>,
}

/// The name of an event or attribute.
#[derive(Clone, Copy, Debug)]
pub enum Key {
    /// One of ours.
    Name(Name),
    /// One of the peer's.
    Text(Text),
}

impl From<Name> for Key {
    fn from(name: Name) -> Self {
        Key::Name(name)
    }
}

impl From<Text> for Key {
    fn from(text: Text) -> Self {
        Key::Text(text)
    }
}

impl Key {
    fn len(self) -> usize {
        match self {
            Key::Name(name) => name.as_str().len(),
            Key::Text(text) => text.len(),
        }
    }
}

/// The value of an attribute or of a body.
#[derive(Clone, Copy, Debug)]
pub enum Value {
    /// Nothing; stands only inside arrays, maps and bodies.
    Null,
    /// A truth value.
    Bool(bool),
    /// A signed integer.
    I64(i64),
    /// An unsigned integer.
    U64(u64),
    /// A double; every bit pattern is allowed.
    F64(f64),
    /// A text.
    Text(Text),
    /// Bytes, shown as base64; the key ends in `_base64`.
    Bytes(Span32),
    /// Made by [`BatchBuilder::array`].
    Array(Span32),
    /// Made by [`BatchBuilder::map`].
    Map(Span32),
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Value::Bool(value)
    }
}

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Value::I64(value)
    }
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Value::U64(value)
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Value::F64(value)
    }
}

impl From<Text> for Value {
    fn from(value: Text) -> Self {
        Value::Text(value)
    }
}

/// A range of one of the batch's vectors.
#[derive(Clone, Copy, Debug, Default)]
pub struct Span32 {
    start: u32,
    end: u32,
}

impl Span32 {
    fn new(start: usize, end: usize) -> Self {
        Span32 { start: index32(start), end: index32(end) }
    }

    pub(super) fn range(self) -> std::ops::Range<usize> {
        self.start as usize..self.end as usize
    }
}

/// Batches close long before 4 Gi elements; should that ever break, ranges stay empty rather than wrong.
fn index32(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

/// Writes batches. One per session; [`BatchBuilder::take`] ends a batch and begins the next.
#[derive(Debug)]
pub struct BatchBuilder {
    batch: Batch,
    id: u64,
    expanded: usize,
    taken_expanded: u64,
    origin: Arc<Origin>,
    resource: Arc<Resource>,
    /// What every event costs in output because of who speaks.
    resource_bytes: usize,
    origin_index: Option<u32>,
    resource_index: Option<u32>,
}

impl BatchBuilder {
    /// A builder for a connection whose speaker is not known yet.
    pub fn new(origin: Arc<Origin>) -> Self {
        BatchBuilder {
            batch: Batch::default(),
            id: NEXT_BATCH.fetch_add(1, Ordering::Relaxed),
            expanded: 0,
            taken_expanded: 0,
            origin,
            resource: Arc::default(),
            resource_bytes: 0,
            origin_index: None,
            resource_index: None,
        }
    }

    /// The origin that events get from now on.
    pub fn origin(&self) -> &Arc<Origin> {
        &self.origin
    }

    /// Events from now on come from `origin`.
    pub fn set_origin(&mut self, origin: Arc<Origin>) {
        self.origin_index = self.batch.origins.iter().position(|o| Arc::ptr_eq(o, &origin)).map(index32);
        self.origin = origin;
    }

    /// Events from now on are spoken by `resource`.
    pub fn set_resource(&mut self, resource: Arc<Resource>) {
        self.resource_index = self.batch.resources.iter().position(|r| Arc::ptr_eq(r, &resource)).map(index32);
        self.resource_bytes = resource.attributes().iter().map(|(key, value)| key.len() + 6 + value.len()).sum();
        self.resource = resource;
    }

    /// Output bytes, roughly, of an event beside its attributes.
    pub fn event_bytes(&self) -> usize {
        EVENT_OVERHEAD_BYTES + self.resource_bytes
    }

    /// Whether the batch should go out before another message is decoded.
    pub fn is_full(&self) -> bool {
        self.batch.events.len() >= FULL_EVENTS || self.expanded >= FULL_EXPANDED_BYTES
    }

    /// Whether there is nothing to take.
    pub fn is_empty(&self) -> bool {
        self.batch.is_empty()
    }

    /// Output bytes, roughly, of every event ever written here: what a sink will write for them.
    pub fn total_expanded_bytes(&self) -> u64 {
        self.taken_expanded + self.expanded as u64
    }

    /// Ends the batch and begins the next one, of about the same size.
    pub fn take(&mut self) -> Batch {
        let next = Batch {
            text: String::with_capacity(self.batch.text.len()),
            events: Vec::with_capacity(self.batch.events.len()),
            attributes: Vec::with_capacity(self.batch.attributes.len()),
            ..Batch::default()
        };
        self.id = NEXT_BATCH.fetch_add(1, Ordering::Relaxed);
        self.taken_expanded += self.expanded as u64;
        self.expanded = 0;
        self.origin_index = None;
        self.resource_index = None;
        std::mem::replace(&mut self.batch, next)
    }

    /// Gives back the memory that is kept for the next batch; for connections that have fallen silent.
    pub fn shrink(&mut self) {
        if self.is_empty() {
            let _ = self.take();
            self.batch = Batch::default();
        }
    }

    /// Copies a text into the arena.
    pub fn push_text(&mut self, text: &str) -> Text {
        self.push_parts(&[text])
    }

    /// Copies a text made of several parts into the arena.
    pub fn push_parts(&mut self, parts: &[&str]) -> Text {
        let start = self.batch.text.len();
        let mut plain = true;
        for part in parts {
            plain &= is_plain(part);
            self.batch.text.push_str(part);
        }
        let len = index32(self.batch.text.len() - start) & !PLAIN;
        Text { start: index32(start), len_and_plain: len | if plain { PLAIN } else { 0 } }
    }

    /// Copies a text into the arena unless `memo` says that this batch has it.
    pub fn intern(&mut self, memo: &mut Interned, text: &str) -> Text {
        match memo.text {
            Some(text) if memo.batch == self.id => text,
            _ => {
                let text = self.push_text(text);
                *memo = Interned { batch: self.id, text: Some(text) };
                text
            }
        }
    }

    /// Bytes as a value.
    pub fn bytes(&mut self, bytes: &[u8]) -> Value {
        Value::Bytes(self.push_bytes(bytes))
    }

    /// An array of values that were made for this batch.
    pub fn array(&mut self, items: &[Value]) -> Value {
        let start = self.batch.values.len();
        self.batch.values.extend_from_slice(items);
        self.expanded += items.len() * 8;
        Value::Array(Span32::new(start, self.batch.values.len()))
    }

    /// A map of keys and values that were made for this batch. The caller sees to it that no key repeats.
    pub fn map(&mut self, members: &[(Key, Value)]) -> Value {
        let start = self.batch.members.len();
        self.batch.members.extend_from_slice(members);
        self.expanded += members.len() * 16;
        Value::Map(Span32::new(start, self.batch.members.len()))
    }

    /// Begins an event. It counts once one of the builder's ending calls is made; dropped before, it never was.
    pub fn event(&mut self, header: Header) -> EventBuilder<'_> {
        let first_attribute = self.batch.attributes.len();
        EventBuilder { batch: self, header, first_attribute }
    }

    /// Writes a loss event. Sessions call `Output::loss`, which also keeps the byte count.
    pub fn loss(&mut self, header: Header, loss: Loss<'_>) {
        let detail = self.push_text(loss.detail);
        self.expanded += loss.detail.len();
        let excerpt = self.push_bytes(&loss.excerpt[..loss.excerpt.len().min(Loss::EXCERPT)]);
        let Loss { reason, bytes, events, .. } = loss;
        self.event(header).end(Data::Loss { reason, bytes, events, detail, excerpt });
    }

    fn current_origin(&mut self) -> u32 {
        let origins = &mut self.batch.origins;
        *self.origin_index.get_or_insert_with(|| {
            origins.push(self.origin.clone());
            index32(origins.len() - 1)
        })
    }

    fn current_resource(&mut self) -> u32 {
        let resources = &mut self.batch.resources;
        *self.resource_index.get_or_insert_with(|| {
            resources.push(self.resource.clone());
            index32(resources.len() - 1)
        })
    }

    fn push_bytes(&mut self, bytes: &[u8]) -> Span32 {
        let start = self.batch.bytes.len();
        self.batch.bytes.extend_from_slice(bytes);
        self.expanded += bytes.len();
        Span32::new(start, self.batch.bytes.len())
    }
}

/// An event being written: attributes first, then one of the ending calls, which say what kind it is.
#[derive(Debug)]
#[must_use = "an event that is not ended never was"]
pub struct EventBuilder<'a> {
    batch: &'a mut BatchBuilder,
    header: Header,
    first_attribute: usize,
}

impl EventBuilder<'_> {
    /// Adds an attribute. The caller sees to it that no key repeats.
    pub fn attribute(&mut self, key: impl Into<Key>, value: impl Into<Value>) {
        let (key, value) = (key.into(), value.into());
        self.batch.expanded += key.len() + 6 + if let Value::Text(text) = value { text.len() } else { 8 };
        self.batch.batch.attributes.push((key, value));
    }

    /// Adds an attribute whose value is copied into the arena.
    pub fn text(&mut self, key: impl Into<Key>, value: &str) {
        let text = self.batch.push_text(value);
        self.attribute(key, text);
    }

    /// The builder beneath, for texts, arrays and maps.
    pub fn batch(&mut self) -> &mut BatchBuilder {
        self.batch
    }

    /// Ends a log event.
    pub fn log(self, severity: Severity, body: Option<Value>) {
        self.end(Data::Log { severity, body });
    }

    /// Ends a span.
    pub fn span(self, span: SpanData) {
        self.end(Data::Span(span));
    }

    /// Ends a metric.
    pub fn metric(self, metric: MetricData) {
        self.end(Data::Metric(metric));
    }

    /// Ends a sample; frames innermost first.
    pub fn sample(self, data: SampleData, frames: &[Frame]) {
        let start = self.batch.batch.frames.len();
        self.batch.batch.frames.extend_from_slice(frames);
        self.batch.expanded += frames.len() * 64;
        let frames = Span32::new(start, self.batch.batch.frames.len());
        self.end(Data::Sample { data, frames });
    }

    fn end(self, data: Data) {
        let builder = self.batch;
        let attributes = Span32::new(self.first_attribute, builder.batch.attributes.len());
        let (origin, resource) = (builder.current_origin(), builder.current_resource());
        builder.batch.counts[data.kind().index()] += 1;
        builder.batch.events.push(Event { header: self.header, data, attributes, origin, resource });
        let name_bytes = if let Key::Text(name) = self.header.name { name.len() } else { 0 };
        builder.expanded += builder.event_bytes() + name_bytes;
    }
}
