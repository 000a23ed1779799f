//! The data of spans.

use super::text::Text;
use super::value::{Key, Span32};
use super::{SpanId, TraceId, UnixNanos};

/// A timed operation.
#[derive(Clone, Copy, Debug)]
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
    /// Its part in the communication; `None`: the peer does not tell it.
    pub kind: Option<SpanKind>,
    /// How it ended.
    pub status: Status,
    /// What went wrong.
    pub status_message: Option<Text>,
}

impl SpanData {
    /// A span with these ids and nothing else.
    #[inline]
    pub fn new(trace_id: TraceId, span_id: SpanId) -> Self {
        SpanData {
            trace_id,
            span_id,
            parent: None,
            end: None,
            duration_nanos: None,
            kind: None,
            status: Status::Unset,
            status_message: None,
        }
    }
}

/// What few spans have, with texts of a batch.
#[derive(Clone, Copy, Debug, Default)]
pub struct SpanExtras {
    /// The state of its trace, in the form of W3C's header `tracestate`.
    pub trace_state: Option<Text>,
    /// Its flags, as W3C's header `traceparent` has them and OpenTelemetry extends them; 0: none.
    pub flags: u32,
    /// What its sender has left out of it.
    pub dropped: DroppedCounts,
}

impl SpanExtras {
    /// Whether there is nothing in it.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.trace_state.is_none() && self.flags == 0 && self.dropped.is_empty()
    }
}

/// How many parts of a span its sender has left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct DroppedCounts {
    pub attributes: u32,
    pub events: u32,
    pub links: u32,
}

impl DroppedCounts {
    /// Whether nothing was left out.
    #[inline]
    pub fn is_empty(&self) -> bool {
        *self == DroppedCounts::default()
    }
}

/// The part of a span in the communication between processes (OpenTelemetry: `Span.kind`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum SpanKind {
    Internal,
    Server,
    Client,
    Producer,
    Consumer,
}

impl SpanKind {
    /// All kinds, in the order of their numbers in OpenTelemetry, which begin at 1.
    pub const ALL: [SpanKind; 5] =
        [SpanKind::Internal, SpanKind::Server, SpanKind::Client, SpanKind::Producer, SpanKind::Consumer];

    /// The kind's name in JSON.
    #[inline]
    pub fn as_str(self) -> &'static str {
        match self {
            SpanKind::Internal => "internal",
            SpanKind::Server => "server",
            SpanKind::Client => "client",
            SpanKind::Producer => "producer",
            SpanKind::Consumer => "consumer",
        }
    }

    /// The kind with this name.
    #[inline]
    pub fn of(name: &str) -> Option<Self> {
        SpanKind::ALL.into_iter().find(|kind| kind.as_str() == name)
    }

    /// Its number in OpenTelemetry.
    #[inline]
    pub fn number(self) -> u8 {
        self as u8 + 1
    }
}

/// A span of the same or of another trace, to which a span is related (OpenTelemetry: `Span.links`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Link {
    pub trace_id: TraceId,
    pub span_id: SpanId,
}

/// A link of a span of a batch, with texts and members of that batch.
#[derive(Clone, Copy, Debug)]
pub struct SpanLink {
    /// The span that it leads to.
    pub to: Link,
    /// Made by [`super::BatchBuilder::members`].
    pub attributes: Span32,
    /// The state of the linked trace, in the form of W3C's header `tracestate`.
    pub trace_state: Option<Text>,
    /// The flags of the linked span, as W3C's header `traceparent` has them; `None` when untold.
    pub flags: Option<u32>,
}

impl From<Link> for SpanLink {
    fn from(to: Link) -> Self {
        SpanLink { to, attributes: Span32::default(), trace_state: None, flags: None }
    }
}

/// What happened during a span (OpenTelemetry: `Span.events`), with texts and members of a batch.
#[derive(Clone, Copy, Debug)]
pub struct SpanEvent {
    /// When it happened; `None` when unknown.
    pub time: Option<UnixNanos>,
    /// What it is.
    pub name: Key,
    /// Made by [`super::BatchBuilder::members`].
    pub attributes: Span32,
}

/// How a span ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Status {
    Unset,
    Ok,
    Error,
}
