//! Spans: `Span` of `opentelemetry/proto/trace/v1/trace.proto`.

use super::attributes::{AttributeWriter, Caches};
use super::logs::is;
use super::value::{push_attribute, push_text_list_attribute};
use tributary_codec::protobuf::{push_bytes_field, push_fixed64_field, push_message, push_varint_field};
use tributary_event::{EventView, KeyView, SpanData, Status, UnixNanos, ValueView, semconv};

// Fields of Span.
const TRACE_ID: u8 = 1;
const SPAN_ID: u8 = 2;
const PARENT_SPAN_ID: u8 = 4;
const NAME: u8 = 5;
const KIND: u8 = 6;
const START: u8 = 7;
const END: u8 = 8;
const ATTRIBUTES: u8 = 9;
const LINKS: u8 = 13;
const STATUS: u8 = 15;
/// Of Status.
const STATUS_CODE: u8 = 3;

// Values of SpanKind.
const INTERNAL: u64 = 1;
const SERVER: u64 = 2;
const CLIENT: u64 = 3;
const PRODUCER: u64 = 4;
const CONSUMER: u64 = 5;

/// The value of `datadog.type` for requests that a web server handles.
const WEB: &str = "web";
/// The names of missing times in [`semconv::INCOMPLETE`].
const MISSING_START: &str = "start";
const MISSING_END: &str = "end";

/// Appends a span as a field of a message.
pub(super) fn push_span(out: &mut Vec<u8>, field: u8, event: EventView<'_>, span: &SpanData, caches: &mut Caches) {
    push_message(out, field, 2, |out| {
        push_bytes_field(out, TRACE_ID, &span.trace_id.0);
        push_bytes_field(out, SPAN_ID, &span.span_id.0);
        if let Some(parent) = span.parent {
            push_bytes_field(out, PARENT_SPAN_ID, &parent.0);
        }
        push_bytes_field(out, NAME, event.name().text().as_bytes());
        let (start, end) = times(event, span);
        push_fixed64_field(out, START, start.0);
        push_fixed64_field(out, END, end.0);

        let (mut kind, mut is_web, mut known_missing) = (None, false, None);
        let is_incomplete = event.time().is_none() || span.end.is_none();
        let mut attributes = AttributeWriter::new(event, ATTRIBUTES);
        attributes.push_all(out, &mut caches.runs, |key, value| match value {
            _ if is_incomplete && is(key, semconv::INCOMPLETE) => {
                known_missing = Some(value);
                true
            }
            ValueView::Text(text) if is(key, semconv::SPAN_KIND) => {
                kind = kind_of(text.text());
                kind.is_some()
            }
            ValueView::Text(text) if is(key, semconv::DATADOG_TYPE) => {
                is_web = text.text() == WEB;
                false
            }
            _ => false,
        });
        push_varint_field(out, KIND, kind.unwrap_or(if is_web { SERVER } else { INTERNAL }));
        if is_incomplete && (known_missing.is_some() || !attributes.has(semconv::INCOMPLETE)) {
            let missing = [(event.time().is_none(), MISSING_START), (span.end.is_none(), MISSING_END)];
            attributes.note_nested(push_incomplete(out, known_missing, missing));
        }
        attributes.finish(out, caches);
        for link in event.links() {
            push_message(out, LINKS, 1, |out| {
                push_bytes_field(out, TRACE_ID, &link.trace_id.0);
                push_bytes_field(out, SPAN_ID, &link.span_id.0);
            });
        }
        match span.status {
            Status::Unset => {}
            Status::Ok => push_message(out, STATUS, 1, |out| push_varint_field(out, STATUS_CODE, 1)),
            Status::Error => push_message(out, STATUS, 1, |out| push_varint_field(out, STATUS_CODE, 2)),
        }
    });
}

/// The start and the end. One that is unknown follows from the duration, if that is known and no clock overflows; without both,
/// the span has ended when it was read.
fn times(event: EventView<'_>, span: &SpanData) -> (UnixNanos, UnixNanos) {
    let duration = span.duration_nanos.unwrap_or(0);
    let start_before = |end: UnixNanos| UnixNanos(end.0.checked_sub(duration).unwrap_or(end.0));
    match (event.time(), span.end) {
        (Some(start), Some(end)) => (start, end),
        (Some(start), None) => (start, UnixNanos(start.0.checked_add(duration).unwrap_or(start.0))),
        (None, Some(end)) => (start_before(end), end),
        (None, None) => (start_before(event.observed()), event.observed()),
    }
}

fn kind_of(text: &str) -> Option<u64> {
    Some(match text {
        "internal" => INTERNAL,
        "server" => SERVER,
        "client" => CLIENT,
        "producer" => PRODUCER,
        "consumer" => CONSUMER,
        _ => return None,
    })
}

/// Writes which parts are missing: what the event says itself, and its times. Something else than a list is kept as it is;
/// returns whether it was sent as JSON text.
fn push_incomplete(out: &mut Vec<u8>, known: Option<ValueView<'_>>, missing: [(bool, &str); 2]) -> bool {
    let key = KeyView::Name(semconv::INCOMPLETE);
    let known = match known {
        None => Vec::new(),
        Some(ValueView::Array(values)) if values.clone().all(|value| matches!(value, ValueView::Text(_))) => {
            let text = |value| if let ValueView::Text(text) = value { Some(text.text()) } else { None };
            values.filter_map(text).collect()
        }
        Some(other) => {
            return push_attribute(out, ATTRIBUTES, key, other, |_| false);
        }
    };
    let added = missing.into_iter().filter(|(is_missing, name)| *is_missing && !known.contains(name));
    let all: Vec<&str> = known.iter().copied().chain(added.map(|(_, name)| name)).collect();
    push_text_list_attribute(out, ATTRIBUTES, key.text().text(), &all);
    false
}
