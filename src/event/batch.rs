//! The batch: events between a session and the sinks, in one flat arena.
//!
//! A session writes events through a [`super::BatchBuilder`]; the transport takes the [`Batch`] and passes it, shared, to
//! every sink; a sink reads it through [`super::EventView`]. This file is the layout that both use. Text is copied into the
//! arena once per batch, so no event holds a read buffer or a reference-counted string.

use std::sync::{Arc, OnceLock};

use super::distribution::Distributions;
use super::message_part::MessagePart;
use super::metric::{Label, MetricData, Number};
use super::span::{SpanData, SpanEvent, SpanExtras, SpanLink};
use super::text::Text;
use super::value::{Key, Span32, Value};
use super::{ContentId, Kind, Origin, Reason, Resource, SeverityNumber, SpanId, TraceId, UnixNanos};

/// Events of one connection, read-only: at least the events of one message, at most about 1,024.
#[derive(Debug, Default)]
pub struct Batch {
    pub(super) text: String,
    pub(super) bytes: Vec<u8>,
    pub(super) events: Vec<Event>,
    pub(super) attributes: Vec<Attribute>,
    pub(super) runs: Vec<Run>,
    pub(super) values: Vec<Value>,
    pub(super) members: Vec<(Key, Value)>,
    pub(super) frames: Vec<Frame>,
    pub(super) spans: Vec<SpanData>,
    /// Links and events of spans, each after the index of its span, in ascending order of these.
    pub(super) links: Vec<(u32, SpanLink)>,
    pub(super) span_events: Vec<(u32, SpanEvent)>,
    /// What few spans have, each after the index of its span, in ascending order of these.
    pub(super) span_extras: Vec<(u32, SpanExtras)>,
    /// The spans or traces that logs belong to.
    pub(super) contexts: Vec<TraceContext>,
    pub(super) metrics: Vec<MetricData>,
    pub(super) distributions: Distributions,
    pub(super) samples: Vec<SampleData>,
    pub(super) losses: Vec<LossData>,
    pub(super) origins: Vec<Arc<Origin>>,
    pub(super) resources: Vec<Arc<Resource>>,
    pub(super) counts: [u32; Kind::ALL.len()],
    /// `None`: what it is made of has no id, or it has only losses.
    pub(super) content: Option<ContentId>,
    /// Estimated bytes of its events in the output.
    pub(super) output_bytes: usize,
    pub(super) message: Option<MessagePart>,
}

impl Batch {
    /// Number of events.
    #[inline]
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether it is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// What it is of a message; `None`: it is of none, or of one that no stream stores.
    #[inline]
    pub fn message(&self) -> Option<MessagePart> {
        self.message
    }

    /// Sets the message that it is a part of.
    #[inline]
    pub fn set_message(&mut self, part: MessagePart) {
        self.message = Some(part);
    }

    /// The kind of the event with this index.
    #[inline]
    pub fn kind_of(&self, index: usize) -> Option<Kind> {
        self.events.get(index).map(|event| event.data.kind())
    }

    /// Number of events of one kind.
    #[inline]
    pub fn count(&self, kind: Kind) -> u64 {
        u64::from(self.counts[kind.index()])
    }

    /// The connection of the first event. Every event of a batch comes from one listener and one protocol.
    #[inline]
    pub fn origin(&self) -> Option<&Arc<Origin>> {
        self.origins.first()
    }

    /// The id of what the batch is made of. The same content that is sent again makes batches with the same ids, in any process.
    #[inline]
    pub fn content(&self) -> Option<ContentId> {
        self.content
    }

    /// Attributes, values, members, frames, parts of spans and of distributions, and runs.
    pub(super) fn elements(&self) -> usize {
        self.attributes.len()
            + self.values.len()
            + self.members.len()
            + self.frames.len()
            + self.links.len()
            + self.span_events.len()
            + self.span_extras.len()
            + self.distributions.elements()
            + self.runs.len()
    }

    /// Bytes of its events in the output, approximately. A text that many events share counts for each of them.
    #[inline]
    pub fn output_bytes(&self) -> usize {
        self.output_bytes
    }

    /// Bytes of memory of this batch, including its origins and resources.
    pub fn memory_bytes(&self) -> usize {
        let resources: usize = self.resources.iter().map(|resource| resource.memory_bytes()).sum();
        resources
            + self.origins.len() * Origin::MEMORY_BYTES
            + self.text.capacity()
            + self.bytes.capacity()
            + self.events.capacity() * size_of::<Event>()
            + self.attributes.capacity() * size_of::<Attribute>()
            + self.members.capacity() * size_of::<(Key, Value)>()
            + self.values.capacity() * size_of::<Value>()
            + self.frames.capacity() * size_of::<Frame>()
            + self.spans.capacity() * size_of::<SpanData>()
            + self.links.capacity() * size_of::<(u32, SpanLink)>()
            + self.span_events.capacity() * size_of::<(u32, SpanEvent)>()
            + self.span_extras.capacity() * size_of::<(u32, SpanExtras)>()
            + self.contexts.capacity() * size_of::<TraceContext>()
            + self.metrics.capacity() * size_of::<MetricData>()
            + self.distributions.memory_bytes()
            + self.samples.capacity() * size_of::<SampleData>()
            + self.losses.capacity() * size_of::<LossData>()
            + self.runs.iter().map(Run::memory_bytes).sum::<usize>()
    }
}

#[derive(Debug)]
pub(super) struct Event {
    pub(super) header: Header,
    pub(super) data: EventData,
    pub(super) attributes: Span32,
    pub(super) origin: u32,
    pub(super) resource: u32,
}

/// The data that every kind of event has.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    /// The event's name.
    pub name: Key,
    /// When it happened; `None` when unknown.
    pub time: Option<UnixNanos>,
    /// When the collector read it.
    pub observed: UnixNanos,
    /// Its position in the stream of the peer.
    pub position: Position,
}

impl Header {
    /// The header of an event without a time of its own: its time is when it was observed.
    #[inline]
    pub fn observed_at(name: impl Into<Key>, at: UnixNanos, position: Position) -> Self {
        Header { name: name.into(), time: Some(at), observed: at, position }
    }
}

/// The position of a message: its number, and its range in the byte stream or request body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// The number that the peer gave it, else our consecutive number on the connection.
    pub sequence: Option<u64>,
    /// Offset of the first byte of the message.
    pub offset: u64,
    /// Length of the message in bytes.
    pub length: u64,
}

/// The data of a kind, or its index among the data of that kind: most events are small.
#[derive(Debug)]
pub(super) enum EventData {
    /// `context` is an index among the contexts of the batch, or [`NO_CONTEXT`].
    Log {
        severity: SeverityNumber,
        context: u32,
        body: Option<Value>,
    },
    Span(u32),
    Metric(u32),
    Sample {
        data: u32,
        frames: Span32,
    },
    Loss(u32),
}

/// A log that belongs to no trace.
pub(super) const NO_CONTEXT: u32 = u32::MAX;

impl EventData {
    pub(super) fn kind(&self) -> Kind {
        match self {
            EventData::Log { .. } => Kind::Log,
            EventData::Span(_) => Kind::Span,
            EventData::Metric(_) => Kind::Metric,
            EventData::Sample { .. } => Kind::Sample,
            EventData::Loss(_) => Kind::Loss,
        }
    }
}

/// The trace that a log belongs to, and its span (OpenTelemetry: `LogRecord.trace_id` and `span_id`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// The trace.
    pub trace_id: TraceId,
    /// The span; `None`: the log is about the trace as a whole.
    pub span_id: Option<SpanId>,
}

/// The value of a stack.
#[derive(Clone, Copy, Debug)]
pub struct SampleData {
    /// The type of the sample, e.g. `cpu`.
    pub sample_type: Label,
    /// Unit of the value, e.g. `count`.
    pub unit: Label,
    /// The value.
    pub value: Number,
    /// The time between two samples by `clock`, in nanoseconds: a sample stands for that much time. `None`: the samples are
    /// not taken by time, or the period is unknown.
    pub period_nanos: Option<u64>,
    /// The clock that the period is measured by; `None` when unknown.
    pub clock: Option<SampleClock>,
}

impl SampleData {
    /// A sample that is not taken by time.
    #[inline]
    pub fn new(sample_type: impl Into<Label>, unit: impl Into<Label>, value: Number) -> Self {
        SampleData { sample_type: sample_type.into(), unit: unit.into(), value, period_nanos: None, clock: None }
    }

    /// The period in nanoseconds and the clock of a profile of pprof or OTLP, from the type, unit and length of its period.
    pub fn period_of(of: &[u8], unit: &[u8], period: i64) -> (Option<u64>, Option<SampleClock>) {
        // Samples that are not taken by time have 1.
        let nanos = u64::try_from(period).ok().filter(|period| *period > 1 && unit == b"nanoseconds");
        let clock = match of {
            b"cpu" | b"cpu-time" => Some(SampleClock::Cpu),
            b"wall" | b"wall-time" => Some(SampleClock::Wall),
            _ => None,
        };
        (nanos, clock.filter(|_| nanos.is_some()))
    }
}

/// The clock of a profiler that samples by time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleClock {
    /// Processor time of the process.
    Cpu,
    /// Time of day.
    Wall,
}

impl SampleClock {
    /// The clock's name in JSON.
    #[inline]
    pub fn as_str(self) -> &'static str {
        match self {
            SampleClock::Cpu => "cpu",
            SampleClock::Wall => "wall",
        }
    }
}

/// The data of a loss.
#[derive(Debug)]
pub(super) struct LossData {
    pub(super) reason: Reason,
    pub(super) bytes: u64,
    pub(super) events: Option<u64>,
    pub(super) detail: Text,
    pub(super) excerpt: Span32,
}

/// One frame of a stack.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub struct Frame {
    pub function: Option<Text>,
    pub file: Option<Text>,
    pub line: Option<u64>,
}

/// An attribute of an event. Small, because events are mostly attributes, and batches are passed between processors.
#[derive(Clone, Copy, Debug)]
pub(super) enum Attribute {
    /// An attribute of this event only.
    One(Key, Value),
    /// Several attributes that it shares with other events: a run of the batch.
    Run(u32),
}

const _: () = assert!(size_of::<Attribute>() == 24 && size_of::<Event>() <= 112 && size_of::<MetricData>() <= 72);

/// Attributes that several events of a batch share.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) members: Span32,
    /// Their estimated size in output.
    pub(super) expanded: usize,
    /// Number of events with this run.
    pub(super) uses: u32,
    /// Their rendering by an encoder.
    pub(super) rendered: OnceLock<Box<[u8]>>,
}

impl Run {
    /// Memory of the run without its members, after an encoder has rendered it.
    fn memory_bytes(&self) -> usize {
        size_of::<Run>() + if self.uses > 1 { self.expanded } else { 0 }
    }
}
