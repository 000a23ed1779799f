//! Spans: `Span` of `opentelemetry/proto/trace/v1/trace.proto`.

use super::attributes::{AttributeWriter, Caches};
use super::logs::is_nameless;
use super::scopes;
use super::value::{push_attribute, push_text_list_attribute};
use tributary_codec::protobuf::{
    push_bytes_field, push_fixed32_field, push_fixed64_field, push_message, push_varint_field,
};
use tributary_event::{
    EventView, KeyView, Members, SpanData, SpanExtrasView, SpanKind, SpanView, Status, UnixNanos, ValueView, semconv,
};

// Fields of Span.
const TRACE_ID: u8 = 1;
const SPAN_ID: u8 = 2;
const TRACE_STATE: u8 = 3;
const PARENT_SPAN_ID: u8 = 4;
const NAME: u8 = 5;
const KIND: u8 = 6;
const START: u8 = 7;
const END: u8 = 8;
const ATTRIBUTES: u8 = 9;
const DROPPED_ATTRIBUTES: u8 = 10;
const EVENTS: u8 = 11;
const DROPPED_EVENTS: u8 = 12;
const LINKS: u8 = 13;
const DROPPED_LINKS: u8 = 14;
const STATUS: u8 = 15;
const FLAGS: u8 = 16;
// Fields of Status.
const STATUS_MESSAGE: u8 = 2;
const STATUS_CODE: u8 = 3;
// Fields of Span.Event.
const EVENT_TIME: u8 = 1;
const EVENT_NAME: u8 = 2;
const EVENT_ATTRIBUTES: u8 = 3;
// Fields of Span.Link; its ids have the numbers of those of Span.
const LINK_TRACE_STATE: u8 = 3;
const LINK_ATTRIBUTES: u8 = 4;
const LINK_FLAGS: u8 = 6;

/// The value of `datadog.type` for requests that a web server handles.
const WEB: &str = "web";
/// The names of missing times in [`semconv::INCOMPLETE`].
const MISSING_START: &str = "start";
const MISSING_END: &str = "end";

/// Appends a span as a field of a message.
pub(super) fn push_span(out: &mut Vec<u8>, field: u8, event: EventView<'_>, span: SpanView<'_>, caches: &mut Caches) {
    push_message(out, field, 2, |out| {
        push_bytes_field(out, TRACE_ID, &span.trace_id.0);
        push_bytes_field(out, SPAN_ID, &span.span_id.0);
        if let Some(parent) = span.parent {
            push_bytes_field(out, PARENT_SPAN_ID, &parent.0);
        }
        if !is_nameless(event, semconv::OTLP_SPAN) {
            push_bytes_field(out, NAME, event.name().text().as_bytes());
        }
        let (start, end) = times(event, &span);
        push_fixed64_field(out, START, start.0);
        push_fixed64_field(out, END, end.0);

        let (mut kind, mut is_web, mut known_missing) = (span.kind, false, None);
        let is_incomplete = event.time().is_none() || span.end.is_none();
        let mut attributes = AttributeWriter::new(event, ATTRIBUTES);
        let is_record = caches.is_record;
        attributes.push_all(out, &mut caches.runs, |key, value| match value {
            _ if is_record && scopes::is_of_scope(key) => true,
            _ if is_incomplete && key.is(semconv::INCOMPLETE) => {
                known_missing = Some(value);
                true
            }
            ValueView::Text(text) if kind.is_none() && key.is(semconv::SPAN_KIND) => {
                kind = SpanKind::of(text.text());
                kind.is_some()
            }
            ValueView::Text(text) if key.is(semconv::DATADOG_TYPE) => {
                is_web = text.text() == WEB;
                false
            }
            _ => false,
        });
        let default = if is_web { SpanKind::Server } else { SpanKind::Internal };
        // What an SDK has left out stays so.
        if let Some(kind) = kind.or((!caches.is_record).then_some(default)) {
            push_varint_field(out, KIND, kind.number().into());
        }
        if is_incomplete && (known_missing.is_some() || !attributes.has(semconv::INCOMPLETE)) {
            let missing = [(event.time().is_none(), MISSING_START), (span.end.is_none(), MISSING_END)];
            attributes.note_nested(push_incomplete(out, known_missing, missing));
        }
        attributes.finish(out, caches);
        if let Some(extras) = span.extras() {
            push_extras(out, extras);
        }
        push_parts(out, span);
        push_status(out, span);
    });
}

/// What few spans have. A count of 0 is the same as none.
fn push_extras(out: &mut Vec<u8>, extras: SpanExtrasView<'_>) {
    let SpanExtrasView { trace_state, flags, dropped } = extras;
    if let Some(state) = trace_state {
        push_bytes_field(out, TRACE_STATE, state.text().as_bytes());
    }
    push_varint_field(out, DROPPED_ATTRIBUTES, dropped.attributes.into());
    push_varint_field(out, DROPPED_EVENTS, dropped.events.into());
    push_varint_field(out, DROPPED_LINKS, dropped.links.into());
    push_fixed32_field(out, FLAGS, flags);
}

/// Events and links.
fn push_parts(out: &mut Vec<u8>, span: SpanView<'_>) {
    for event in span.events() {
        push_message(out, EVENTS, 2, |out| {
            // The time is no optional field: 0 is unknown.
            push_fixed64_field(out, EVENT_TIME, event.time.map_or(0, |time| time.0));
            push_bytes_field(out, EVENT_NAME, event.name.text().as_bytes());
            push_own_attributes(out, EVENT_ATTRIBUTES, event.attributes);
        });
    }
    for link in span.links() {
        push_message(out, LINKS, 1, |out| {
            push_bytes_field(out, TRACE_ID, &link.to.trace_id.0);
            push_bytes_field(out, SPAN_ID, &link.to.span_id.0);
            if let Some(state) = link.trace_state {
                push_bytes_field(out, LINK_TRACE_STATE, state.text().as_bytes());
            }
            push_own_attributes(out, LINK_ATTRIBUTES, link.attributes);
            if let Some(flags) = link.flags {
                push_fixed32_field(out, LINK_FLAGS, flags);
            }
        });
    }
}

fn push_own_attributes(out: &mut Vec<u8>, field: u8, attributes: Members<'_>) {
    for member in attributes {
        let (key, value) = (member.key(), member.value());
        if !key.text().is_empty() && !matches!(value, ValueView::Null) {
            let has_key = |key: &str| attributes.into_iter().any(|other| other.key().text().text() == key);
            push_attribute(out, field, key, value, has_key);
        }
    }
}

fn push_status(out: &mut Vec<u8>, span: SpanView<'_>) {
    let code = match span.status {
        Status::Unset => None,
        Status::Ok => Some(1),
        Status::Error => Some(2),
    };
    if code.is_none() && span.status_message().is_none() {
        return;
    }
    push_message(out, STATUS, 1, |out| {
        if let Some(message) = span.status_message() {
            push_bytes_field(out, STATUS_MESSAGE, message.text().as_bytes());
        }
        if let Some(code) = code {
            push_varint_field(out, STATUS_CODE, code);
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
