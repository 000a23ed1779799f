//! The normalized event model that decoders write and sinks read.
//!
//! An event is a *header* (time, name, attributes, resource, origin) plus the data of its [`Kind`].
//! Events live in a [`Batch`]: one flat arena that a [`BatchBuilder`] writes and an [`EventView`] reads,
//! so that the layout can change behind both. `docs/event-model.md` is the contract with users;
//! [`semconv`] is the only place in the code where its names are spelled.
#![forbid(unsafe_code)]

mod agent;
mod attribute_keys;
mod batch;
mod builder;
mod content;
pub mod copy;
mod distribution;
mod id;
mod identity;
mod latest_keys;
mod loss;
mod message_part;
mod metric;
mod origin;
mod packed;
mod recent_resources;
pub mod semconv;
mod severity;
mod span;
mod text;
mod value;
pub mod varint;
mod view;
mod whole_number;

pub use agent::{AgentFacts, AgentIdentity, AgentName};
pub use attribute_keys::AttributeKeys;
pub use batch::{Batch, Frame, Header, Position, SampleClock, SampleData, TraceContext};
pub use builder::{
    BatchBuilder, BatchResource, BatchStack, EventBuilder, Interned, InternedResource, InternedRun, MOST_BATCH_BYTES,
};
pub use content::ContentId;
pub use distribution::{Buckets, Distribution, DistributionForm};
pub use id::{SpanId, TraceId, UnixNanos, hex, hex_array, hex_bytes, write_hex};
pub use identity::Identity;
pub use latest_keys::LatestKeys;
pub use loss::{Loss, Reason};
pub use loss::{TOGETHER, cause};
pub use message_part::MessagePart;
pub use metric::{Label, MetricData, MetricType, Number, Temporality};
pub use origin::{Origin, Resource, ResourceValue, peer_address};
pub use packed::PackedParts;
pub use recent_resources::RecentResources;
pub use semconv::Name;
pub use severity::{Severity, SeverityNumber};
pub use span::{DroppedCounts, Link, SpanData, SpanEvent, SpanExtras, SpanKind, SpanLink, Status};
pub use text::{Text, is_plain, output_len};
pub use value::{Key, Span32, Value};
pub use view::{
    AttributeMembers, AttributeView, Attributes, DataView, EventView, FrameView, KeyView, LinkView, LossView, Member,
    Members, MetricView, RunView, SampleView, SpanEventView, SpanExtrasView, SpanView, TextView, ValueView, Values,
};
pub use whole_number::{names_whole_number, whole_number};

/// The kind of an event. The names are those of the `kind` key in JSON.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Kind {
    /// Something happened at a time.
    Log,
    /// A timed operation.
    Span,
    /// One data point: a number or a distribution.
    Metric,
    /// A stack and a value.
    Sample,
    /// Bytes or events that could not become events.
    Loss,
}

impl Kind {
    /// Every kind, in the order of [`Kind::index`].
    pub const ALL: [Kind; 5] = [Kind::Log, Kind::Span, Kind::Metric, Kind::Sample, Kind::Loss];

    /// The kind's name in JSON and in configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Log => "log",
            Kind::Span => "span",
            Kind::Metric => "metric",
            Kind::Sample => "sample",
            Kind::Loss => "loss",
        }
    }

    /// Position in [`Kind::ALL`], for counters kept per kind.
    pub fn index(self) -> usize {
        self as usize
    }
}
