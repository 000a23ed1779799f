//! Logs and losses: `LogRecord` of `opentelemetry/proto/logs/v1/logs.proto`.

use super::attributes::{AttributeWriter, Caches};
use super::scopes;
use super::value::push_body;
use tributary_codec::protobuf::{
    push_bytes_field, push_fixed32_field, push_fixed64_field, push_message, push_varint_field,
};
use tributary_event::{EventView, KeyView, LossView, Severity, SeverityNumber, TraceContext, ValueView, hex, semconv};

// Fields of LogRecord.
const TIME: u8 = 1;
const SEVERITY_NUMBER: u8 = 2;
const SEVERITY_TEXT: u8 = 3;
const BODY: u8 = 5;
const ATTRIBUTES: u8 = 6;
const DROPPED_ATTRIBUTES: u8 = 7;
const FLAGS: u8 = 8;
const TRACE_ID: u8 = 9;
const SPAN_ID: u8 = 10;
const OBSERVED_TIME: u8 = 11;
const EVENT_NAME: u8 = 12;

/// Appends a log as a field of a message.
pub(super) fn push_log(
    out: &mut Vec<u8>,
    field: u8,
    event: EventView<'_>,
    (severity, context, body): (SeverityNumber, Option<&TraceContext>, Option<ValueView<'_>>),
    caches: &mut Caches,
) {
    push_message(out, field, 2, |out| {
        push_head(out, event, severity);
        let mut attributes = AttributeWriter::new(event, ATTRIBUTES);
        if let Some(body) = body {
            attributes.note_nested(push_body(out, BODY, body));
        }
        if caches.is_record {
            push_record_parts(out, &mut attributes, context, severity, caches);
        } else {
            push_bytes_field(out, SEVERITY_TEXT, severity.severity().as_str().as_bytes());
            match context {
                None => attributes.push_all(out, &mut caches.runs, |_, _| false),
                // The deprecated attributes have the same ids.
                Some(context) => {
                    attributes.push_all(out, &mut caches.runs, |key, value| is_id_of(context, key, value));
                }
            }
        }
        if let Some(TraceContext { trace_id, span_id }) = context {
            push_bytes_field(out, TRACE_ID, &trace_id.0);
            if let Some(span_id) = span_id {
                push_bytes_field(out, SPAN_ID, &span_id.0);
            }
        }
        attributes.finish(out, caches);
    });
}

/// Appends the attributes of a record of OTLP; some of its event are other parts of it.
fn push_record_parts(
    out: &mut Vec<u8>,
    attributes: &mut AttributeWriter<'_>,
    context: Option<&TraceContext>,
    severity: SeverityNumber,
    caches: &mut Caches,
) {
    let mut parts = LogParts::default();
    attributes.push_all(out, &mut caches.runs, |key, value| {
        scopes::is_of_scope(key)
            || context.is_some_and(|context| is_id_of(context, key, value))
            || parts.take(key, value)
    });
    let text = parts.severity_text.unwrap_or(severity.severity().as_str());
    push_bytes_field(out, SEVERITY_TEXT, text.as_bytes());
    push_varint_field(out, DROPPED_ATTRIBUTES, parts.dropped.into());
    push_fixed32_field(out, FLAGS, parts.flags);
}

/// Whether an attribute is deprecated: its id is that of the record.
fn is_id_of(context: &TraceContext, key: KeyView<'_>, value: ValueView<'_>) -> bool {
    let ValueView::Text(text) = value else { return false };
    if key.is(semconv::TRACE_ID) {
        return is_hex_of(text.text(), &context.trace_id.0);
    }
    key.is(semconv::SPAN_ID) && context.span_id.is_some_and(|span_id| is_hex_of(text.text(), &span_id.0))
}

/// Parts of a record that came by OTLP, which are attributes of its event.
#[derive(Default)]
struct LogParts<'a> {
    severity_text: Option<&'a str>,
    flags: u32,
    dropped: u32,
}

impl<'a> LogParts<'a> {
    /// Takes an attribute, if it is such a part.
    fn take(&mut self, key: KeyView<'a>, value: ValueView<'a>) -> bool {
        let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
        match (value, number) {
            (ValueView::Text(text), _) if key.is(semconv::OTLP_SEVERITY_TEXT) => {
                self.severity_text = Some(text.text());
            }
            (_, Some(flags)) if key.is(semconv::OTLP_FLAGS) => self.flags = flags,
            (_, Some(count)) if key.is(semconv::OTLP_DROPPED_ATTRIBUTES) => self.dropped = count,
            _ => return false,
        }
        true
    }
}

/// Appends a loss as a field of a message.
pub(super) fn push_loss(out: &mut Vec<u8>, field: u8, event: EventView<'_>, loss: LossView<'_>, caches: &mut Caches) {
    push_message(out, field, 2, |out| {
        push_head(out, event, Severity::Warn.into());
        push_bytes_field(out, SEVERITY_TEXT, Severity::Warn.as_str().as_bytes());
        let mut attributes = AttributeWriter::new(event, ATTRIBUTES);
        attributes.push_all(out, &mut caches.runs, |_, _| false);
        attributes.push_text(out, semconv::LOSS_REASON, loss.reason.as_str());
        attributes.push_u64(out, semconv::LOSS_BYTES, loss.bytes);
        if let Some(events) = loss.events {
            attributes.push_u64(out, semconv::LOSS_EVENTS, events);
        }
        if !loss.detail.is_empty() {
            attributes.push_text(out, semconv::LOSS_DETAIL, loss.detail.text());
        }
        if !loss.excerpt.is_empty() {
            attributes.push_text(out, semconv::LOSS_EXCERPT, &hex(loss.excerpt));
        }
        attributes.finish(out, caches);
    });
}

fn push_head(out: &mut Vec<u8>, event: EventView<'_>, severity: SeverityNumber) {
    if let Some(time) = event.time() {
        push_fixed64_field(out, TIME, time.0);
    }
    push_fixed64_field(out, OBSERVED_TIME, event.observed().0);
    push_varint_field(out, SEVERITY_NUMBER, severity.get().into());
    if !is_nameless(event, semconv::OTLP_LOG) {
        push_bytes_field(out, EVENT_NAME, event.name().text().as_bytes());
    }
}

/// Whether an event has this name because its record had none.
pub(super) fn is_nameless(event: EventView<'_>, name: semconv::Name) -> bool {
    event.name_key().is(name) && scopes::is_record(event)
}

/// Whether a text is these bytes in hex, in lower case.
fn is_hex_of(text: &str, bytes: &[u8]) -> bool {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |half: u8| DIGITS[usize::from(half & 15)];
    text.bytes().eq(bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(*byte)]))
}
