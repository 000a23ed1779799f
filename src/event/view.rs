//! Reads a batch: borrowed views that hide the layout of the arena.

mod attributes;
mod span;

use std::ops::Deref;
use std::sync::Arc;

use super::batch::{Event, EventData, Frame, LossData};
use super::distribution::Distribution;
use super::text::{Escapes, Text};
use super::value::{Key, KeyContent, Span32, Value};
use super::{
    Batch, Header, Kind, Label, MetricData, Name, Origin, Position, Reason, Resource, ResourceValue, SampleData,
    Severity, SeverityNumber, TraceContext, UnixNanos, semconv,
};

use attributes::text_in;
pub use attributes::{AttributeMembers, AttributeView, Attributes, Member, Members, RunView};
pub(super) use span::of_span;
pub use span::{LinkView, SpanEventView, SpanExtrasView, SpanView};

/// One event of a batch.
#[derive(Clone, Copy, Debug)]
pub struct EventView<'a> {
    batch: &'a Batch,
    event: &'a Event,
}

/// A text of a batch, or any other.
#[derive(Clone, Copy, Debug)]
pub struct TextView<'a> {
    /// The bytes that contain it.
    arena: &'a str,
    piece: Text,
}

impl<'a> TextView<'a> {
    /// A text outside of a batch.
    #[inline]
    pub fn unchecked(text: &'a str) -> Self {
        TextView { arena: text, piece: Text::new(0, text.len(), Escapes::Many) }
    }

    /// The text.
    #[inline]
    pub fn text(self) -> &'a str {
        &self.arena[self.piece.range()]
    }

    /// Length in bytes.
    #[inline]
    pub fn len(self) -> usize {
        self.piece.len()
    }

    /// Whether it is the empty text.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.piece.is_empty()
    }

    /// Whether an encoder may write it between quotes unchanged, because it certainly has no character that JSON escapes.
    /// `false`: the encoder must check it.
    #[inline]
    pub fn is_plain(self) -> bool {
        self.piece.is_plain()
    }

    /// Its bytes and the bytes after them: copying a fixed number of bytes is fastest for short texts.
    #[inline]
    pub fn tail(self) -> &'a [u8] {
        self.arena.as_bytes().get(self.piece.range().start..).unwrap_or_default()
    }
}

/// The name of an event or attribute.
#[derive(Clone, Copy, Debug)]
pub enum KeyView<'a> {
    /// A name of [`super::semconv`].
    Name(Name),
    /// A name of the peer.
    Text(TextView<'a>),
}

impl<'a> KeyView<'a> {
    /// The name as a text.
    #[inline]
    pub fn text(self) -> TextView<'a> {
        match self {
            KeyView::Name(name) => {
                let arena = name.as_str();
                TextView { arena, piece: Text::new(0, arena.len(), Escapes::None) }
            }
            KeyView::Text(text) => text,
        }
    }

    /// Whether it is this name, which a peer may have sent.
    #[inline]
    pub fn is(self, name: Name) -> bool {
        match self {
            KeyView::Name(own) => own == name,
            KeyView::Text(text) => text.len() == name.as_str().len() && text.text() == name.as_str(),
        }
    }

    /// Its bytes and the bytes after them, as [`TextView::tail`], and its length.
    #[inline]
    pub fn tail(self) -> (&'a [u8], usize) {
        match self {
            KeyView::Name(name) => {
                let padded = name.padded_text();
                (padded.padded.as_bytes(), padded.len)
            }
            KeyView::Text(text) => (text.tail(), text.len()),
        }
    }
}

/// The value of an attribute or of a body.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub enum ValueView<'a> {
    Null,
    Bool(bool),
    I64(i64),
    U64(u64),
    F64(f64),
    Text(TextView<'a>),
    Bytes(&'a [u8]),
    Array(Values<'a>),
    Map(Members<'a>),
}

impl<'a> ValueView<'a> {
    /// The text, if it is one.
    #[inline]
    pub fn as_text(self) -> Option<&'a str> {
        if let ValueView::Text(text) = self { Some(text.text()) } else { None }
    }

    /// The number, if it is a whole one that is not negative.
    #[inline]
    pub fn as_u64(self) -> Option<u64> {
        match self {
            ValueView::U64(number) => Some(number),
            ValueView::I64(number) => u64::try_from(number).ok(),
            _ => None,
        }
    }
}

impl ResourceValue {
    /// The value as that of an attribute.
    #[inline]
    pub fn view(&self) -> ValueView<'_> {
        match self {
            ResourceValue::Bool(value) => ValueView::Bool(*value),
            ResourceValue::I64(value) => ValueView::I64(*value),
            ResourceValue::U64(value) => ValueView::U64(*value),
            ResourceValue::F64(value) => ValueView::F64(*value),
            ResourceValue::Text(text) => ValueView::Text(TextView::unchecked(text)),
        }
    }
}

/// The data of an event without its header.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub enum DataView<'a> {
    Log {
        severity: Severity,
        /// One of the numbers of `severity`.
        severity_number: SeverityNumber,
        context: Option<&'a TraceContext>,
        body: Option<ValueView<'a>>,
    },
    Span(SpanView<'a>),
    Metric(MetricView<'a>),
    Sample(SampleView<'a>),
    Loss(LossView<'a>),
}

/// A data point and its unit.
#[derive(Clone, Copy, Debug)]
pub struct MetricView<'a> {
    batch: &'a Batch,
    place: u32,
    data: &'a MetricData,
}

/// A sample and its stack.
#[derive(Clone, Copy, Debug)]
pub struct SampleView<'a> {
    /// Its value, and by what it was taken.
    pub data: &'a SampleData,
    batch: &'a Batch,
    frames: &'a [Frame],
}

/// One frame of a stack.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct FrameView<'a> {
    pub function: Option<TextView<'a>>,
    pub file: Option<TextView<'a>>,
    pub line: Option<u64>,
}

/// The data of a loss.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct LossView<'a> {
    pub reason: Reason,
    pub bytes: u64,
    pub events: Option<u64>,
    pub detail: TextView<'a>,
    pub excerpt: &'a [u8],
}

impl Batch {
    /// The events, in the order in which they were written.
    #[inline]
    pub fn events(&self) -> impl ExactSizeIterator<Item = EventView<'_>> + Clone {
        self.events.iter().map(|event| EventView { batch: self, event })
    }

    #[inline]
    fn label(&self, label: Label) -> &str {
        match label {
            Label::Constant(text) => text,
            Label::Text(text) => self.text(text).text(),
        }
    }

    #[inline]
    fn text(&self, text: Text) -> TextView<'_> {
        TextView { arena: &self.text, piece: text }
    }

    #[inline]
    pub(super) fn key(&self, key: Key) -> KeyView<'_> {
        match key.named() {
            KeyContent::Name(name) => KeyView::Name(name),
            KeyContent::Text(text) => KeyView::Text(self.text(text)),
        }
    }

    #[inline]
    fn members_of(&self, range: Span32) -> Members<'_> {
        Members { batch: self, members: &self.members[range.range()] }
    }

    #[inline(always)]
    pub(super) fn value(&self, value: Value) -> ValueView<'_> {
        match value {
            Value::Null => ValueView::Null,
            Value::Bool(value) => ValueView::Bool(value),
            Value::I64(value) => ValueView::I64(value),
            Value::U64(value) => ValueView::U64(value),
            Value::F64(value) => ValueView::F64(value),
            Value::Text(text) => ValueView::Text(self.text(text)),
            Value::Bytes(range) => ValueView::Bytes(&self.bytes[range.range()]),
            Value::Array(range) => ValueView::Array(Values { batch: self, values: &self.values[range.range()] }),
            Value::Map(range) => ValueView::Map(self.members_of(range)),
        }
    }
}

impl<'a> EventView<'a> {
    /// The kind of the event.
    #[inline]
    pub fn kind(&self) -> Kind {
        self.event.data.kind()
    }

    /// The event's name.
    #[inline]
    pub fn name(&self) -> TextView<'a> {
        self.name_key().text()
    }

    /// The same, with its origin: a name of ours or of the peer.
    #[inline]
    pub fn name_key(&self) -> KeyView<'a> {
        self.batch.key(self.header().name)
    }

    /// When it happened; `None` when unknown.
    #[inline]
    pub fn time(&self) -> Option<UnixNanos> {
        self.header().time
    }

    /// When the collector read it.
    #[inline]
    pub fn observed(&self) -> UnixNanos {
        self.header().observed
    }

    /// Its position in the stream of the peer.
    #[inline]
    pub fn position(&self) -> Position {
        self.header().position
    }

    /// The attributes, in the order in which they were written, one by one.
    #[inline]
    pub fn attributes(&self) -> impl Iterator<Item = (TextView<'a>, ValueView<'a>)> {
        self.attribute_members().map(|member| (member.key().text(), member.value()))
    }

    /// The same, looked up on access.
    #[inline]
    pub fn attribute_members(&self) -> AttributeMembers<'a> {
        self.attribute_parts().members()
    }

    /// The text of the attribute with this name; `None`: there is none, or it is no text.
    #[inline]
    pub fn text_of(&self, name: Name) -> Option<&'a str> {
        text_in(self.attribute_members(), name)
    }

    /// The service of a span: that of its resource, else its own.
    pub fn service(&self) -> Option<&'a str> {
        let of_resource = self.resource().text(semconv::SERVICE_NAME).filter(|text| !text.is_empty());
        of_resource.or_else(|| self.text_of(semconv::SERVICE_NAME))
    }

    /// The same, with shared attributes as runs.
    #[inline]
    pub fn attribute_parts(&self) -> Attributes<'a> {
        Attributes { batch: self.batch, attributes: &self.batch.attributes[self.event.attributes.range()] }
    }

    /// The data of its kind.
    pub fn data(&self) -> DataView<'a> {
        let batch = self.batch;
        match &self.event.data {
            EventData::Log { severity, context, body } => DataView::Log {
                severity: severity.severity(),
                severity_number: *severity,
                context: batch.contexts.get(*context as usize),
                body: body.map(|body| batch.value(body)),
            },
            EventData::Span(place) => {
                DataView::Span(SpanView { batch, place: *place, data: &batch.spans[*place as usize] })
            }
            EventData::Metric(place) => {
                DataView::Metric(MetricView { batch, place: *place, data: &batch.metrics[*place as usize] })
            }
            EventData::Sample { data, frames } => {
                let data = &batch.samples[*data as usize];
                DataView::Sample(SampleView { data, batch, frames: &batch.frames[frames.range()] })
            }
            EventData::Loss(place) => {
                let LossData { reason, bytes, events, detail, excerpt } = &batch.losses[*place as usize];
                DataView::Loss(LossView {
                    reason: *reason,
                    bytes: *bytes,
                    events: *events,
                    detail: batch.text(*detail),
                    excerpt: &batch.bytes[excerpt.range()],
                })
            }
        }
    }

    /// The connection that it was received on.
    #[inline]
    pub fn origin(&self) -> &'a Arc<Origin> {
        &self.batch.origins[self.event.origin as usize]
    }

    /// The resource that it is about.
    #[inline]
    pub fn resource(&self) -> &'a Arc<Resource> {
        &self.batch.resources[self.event.resource as usize]
    }

    fn header(&self) -> &'a Header {
        &self.event.header
    }
}

impl Deref for MetricView<'_> {
    type Target = MetricData;

    #[inline]
    fn deref(&self) -> &MetricData {
        self.data
    }
}

impl<'a> MetricView<'a> {
    /// Its unit in UCUM notation; empty when there is none.
    #[inline]
    pub fn unit(&self) -> &'a str {
        self.batch.label(self.data.unit)
    }

    /// The values that it stands for; `None`: it is a gauge or a sum.
    #[inline]
    pub fn distribution(&self) -> Option<Distribution<'a>> {
        self.batch.distribution_of(self.place)
    }
}

impl<'a> SampleView<'a> {
    /// The type of the sample, e.g. `cpu`.
    #[inline]
    pub fn sample_type(&self) -> &'a str {
        self.batch.label(self.data.sample_type)
    }

    /// The unit of its value, e.g. `count`.
    #[inline]
    pub fn unit(&self) -> &'a str {
        self.batch.label(self.data.unit)
    }

    /// The stack, innermost frame first.
    #[inline]
    pub fn frames(&self) -> impl ExactSizeIterator<Item = FrameView<'a>> {
        let batch = self.batch;
        self.frames.iter().map(|frame| FrameView {
            function: frame.function.map(|text| batch.text(text)),
            file: frame.file.map(|text| batch.text(text)),
            line: frame.line,
        })
    }
}

/// The elements of an array.
#[derive(Clone, Copy, Debug)]
pub struct Values<'a> {
    batch: &'a Batch,
    values: &'a [Value],
}

impl<'a> Iterator for Values<'a> {
    type Item = ValueView<'a>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let (first, rest) = self.values.split_first()?;
        self.values = rest;
        Some(self.batch.value(*first))
    }
}
