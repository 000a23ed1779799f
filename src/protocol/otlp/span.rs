//! Spans: `Span` of `trace.proto`.

use tributary_codec::protobuf::{ProtobufFields, ProtobufValue};
use tributary_event::{
    DroppedCounts, Key, Link, SpanData, SpanEvent, SpanExtras, SpanId, SpanKind, SpanLink, Status, TraceId, UnixNanos,
    Value, semconv,
};
use tributary_protocol::Output;

use super::record::{RecordContext, record_attributes};
use super::value::{ValueWriter, WireAttribute, fixed32, fixed64, messages, value_of};

/// The names of missing times in [`semconv::INCOMPLETE`], as our own sink writes them.
const MISSING_START: &str = "start";
const MISSING_END: &str = "end";

/// Most spans have fewer attributes.
const USUAL_ATTRIBUTES: usize = 16;

/// A span on the wire.
#[derive(Debug, Default)]
struct WireSpan<'a> {
    trace_id: TraceId,
    span_id: SpanId,
    parent: SpanId,
    name: &'a [u8],
    kind: u64,
    start: u64,
    end: u64,
    status: &'a [u8],
    trace_state: &'a [u8],
    flags: u32,
    dropped: DroppedCounts,
    attributes: Vec<WireAttribute<'a>>,
    events: Vec<&'a [u8]>,
    links: Vec<&'a [u8]>,
}

impl<'a> WireSpan<'a> {
    fn read(record: &'a [u8]) -> WireSpan<'a> {
        let mut span = WireSpan { attributes: Vec::with_capacity(USUAL_ATTRIBUTES), ..WireSpan::default() };
        for field in ProtobufFields::of(record) {
            match (field.number, field.value) {
                (1, ProtobufValue::Bytes(id)) => span.trace_id = trace_id(id),
                (2, ProtobufValue::Bytes(id)) => span.span_id = span_id(id),
                (3, ProtobufValue::Bytes(state)) => span.trace_state = state,
                (4, ProtobufValue::Bytes(id)) => span.parent = span_id(id),
                (5, ProtobufValue::Bytes(name)) => span.name = name,
                (6, ProtobufValue::Varint(kind)) => span.kind = kind,
                (7, ProtobufValue::Fixed(time)) => span.start = fixed64(time),
                (8, ProtobufValue::Fixed(time)) => span.end = fixed64(time),
                (9, ProtobufValue::Bytes(attribute)) => span.attributes.push(WireAttribute::of(attribute)),
                (10, ProtobufValue::Varint(count)) => span.dropped.attributes = count as u32,
                (11, ProtobufValue::Bytes(event)) => span.events.push(event),
                (12, ProtobufValue::Varint(count)) => span.dropped.events = count as u32,
                (13, ProtobufValue::Bytes(link)) => span.links.push(link),
                (14, ProtobufValue::Varint(count)) => span.dropped.links = count as u32,
                (15, ProtobufValue::Bytes(status)) => span.status = status,
                (16, ProtobufValue::Fixed(flags)) => span.flags = fixed32(flags),
                _ => {}
            }
        }
        span
    }

    /// Which of its times a daemon that sent it did not know; such a time is not kept.
    fn forget_unknown_times(&mut self) {
        let Some(incomplete) =
            self.attributes.iter().find(|member| member.key == semconv::INCOMPLETE.as_str().as_bytes())
        else {
            return;
        };
        let Some((5, ProtobufValue::Bytes(names))) = value_of(incomplete.value) else { return };
        let has = |name: &str| {
            messages(names, 1).any(|item| value_of(item) == Some((1, ProtobufValue::Bytes(name.as_bytes()))))
        };
        let (no_start, no_end) = (has(MISSING_START), has(MISSING_END));
        if no_start {
            self.start = 0;
        }
        if no_end {
            self.end = 0;
        }
    }
}

/// Writes a span.
pub(super) fn write(record: &[u8], context: &mut RecordContext<'_>, out: &mut Output) {
    let mut span = WireSpan::read(record);
    let duration = (span.start > 0).then(|| span.end.checked_sub(span.start)).flatten();
    span.forget_unknown_times();
    // Without times and without a duration, both times are that of the reading.
    let duration = duration.filter(|nanos| *nanos > 0 || span.start > 0 || span.end > 0);
    let mut writer = context.values_of(&span.attributes, &mut out.batch);
    let name = match span.name {
        [] => semconv::OTLP_SPAN.into(),
        name => writer.text(name).into(),
    };
    let attributes = writer.pairs(&span.attributes, true);
    let links: Vec<SpanLink> = span.links.iter().map(|link| read_link(link, &mut writer)).collect();
    let events: Vec<SpanEvent> = span.events.iter().map(|event| read_event(event, &mut writer)).collect();
    let trace_state = (!span.trace_state.is_empty()).then(|| writer.text(span.trace_state));
    // What a limit here leaves out is left out too.
    let dropped_here = u32::try_from(writer.dropped).unwrap_or(u32::MAX);
    let attributes_dropped = span.dropped.attributes.saturating_add(dropped_here);
    let dropped = DroppedCounts { attributes: attributes_dropped, ..span.dropped };
    let extras = SpanExtras { trace_state, flags: span.flags, dropped };
    let (status, status_message) = read_status(span.status);
    let status_message = status_message.map(|message| writer.text(message));
    let data = SpanData {
        parent: (!span.parent.is_zero()).then_some(span.parent),
        end: time(span.end),
        duration_nanos: duration,
        kind: usize::try_from(span.kind).ok().and_then(|kind| SpanKind::ALL.get(kind.checked_sub(1)?).copied()),
        status,
        status_message,
        ..SpanData::new(span.trace_id, span.span_id)
    };
    let own: Vec<(Key, Value)> = record_attributes(attributes, writer.marks, 0);
    if span.trace_id == TraceId::default() || span.span_id.is_zero() {
        out.warn("span_id_zero");
    }
    let event = context.event(name, time(span.start), None, &own, out);
    event.span_with_extras(data, extras, &links, &events);
}

fn read_link(message: &[u8], writer: &mut ValueWriter<'_>) -> SpanLink {
    let mut link = SpanLink::from(Link { trace_id: TraceId::default(), span_id: SpanId::default() });
    for field in ProtobufFields::of(message) {
        match (field.number, field.value) {
            (1, ProtobufValue::Bytes(id)) => link.to.trace_id = trace_id(id),
            (2, ProtobufValue::Bytes(id)) => link.to.span_id = span_id(id),
            (3, ProtobufValue::Bytes(state)) if !state.is_empty() => link.trace_state = Some(writer.text(state)),
            (6, ProtobufValue::Fixed(flags)) => link.flags = Some(fixed32(flags)).filter(|flags| *flags != 0),
            _ => {}
        }
    }
    link.attributes = writer.attributes_of(message, 4);
    link
}

fn read_event(message: &[u8], writer: &mut ValueWriter<'_>) -> SpanEvent {
    let (mut at, mut name) = (0, &b""[..]);
    for field in ProtobufFields::of(message) {
        match (field.number, field.value) {
            (1, ProtobufValue::Fixed(time)) => at = fixed64(time),
            (2, ProtobufValue::Bytes(text)) => name = text,
            _ => {}
        }
    }
    let attributes = writer.attributes_of(message, 3);
    SpanEvent { time: time(at), name: writer.text(name).into(), attributes }
}

fn read_status(message: &[u8]) -> (Status, Option<&[u8]>) {
    let (mut status, mut text) = (Status::Unset, None);
    for field in ProtobufFields::of(message) {
        match (field.number, field.value) {
            (2, ProtobufValue::Bytes(message)) => text = Some(message).filter(|message| !message.is_empty()),
            (3, ProtobufValue::Varint(1)) => status = Status::Ok,
            (3, ProtobufValue::Varint(2)) => status = Status::Error,
            (3, _) => status = Status::Unset,
            _ => {}
        }
    }
    (status, text)
}

/// A time; 0 is unknown.
pub(super) fn time(nanos: u64) -> Option<UnixNanos> {
    (nanos > 0).then_some(UnixNanos(nanos))
}

/// An id, whose length was checked. None: 0.
pub(super) fn trace_id(bytes: &[u8]) -> TraceId {
    bytes.try_into().map(TraceId).unwrap_or_default()
}

pub(super) fn span_id(bytes: &[u8]) -> SpanId {
    bytes.try_into().map(SpanId).unwrap_or_default()
}
