//! Logs and losses: `LogRecord` of `opentelemetry/proto/logs/v1/logs.proto`.

use super::attributes::{AttributeWriter, Caches};
use super::value::push_body;
use tributary_codec::protobuf::{push_bytes_field, push_fixed64_field, push_message, push_varint_field};
use tributary_event::{EventView, KeyView, LossView, Severity, SeverityNumber, TraceContext, ValueView, hex, semconv};

// Fields of LogRecord.
const TIME: u8 = 1;
const SEVERITY_NUMBER: u8 = 2;
const SEVERITY_TEXT: u8 = 3;
const BODY: u8 = 5;
const ATTRIBUTES: u8 = 6;
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
        let Some(context) = context else {
            attributes.push_all(out, &mut caches.runs, |_, _| false);
            return attributes.finish(out, caches);
        };
        let TraceContext { trace_id, span_id } = context;
        // The deprecated attributes have the same ids.
        attributes.push_all(out, &mut caches.runs, |key, value| match value {
            ValueView::Text(text) if is(key, semconv::TRACE_ID) => is_hex_of(text.text(), &trace_id.0),
            ValueView::Text(text) if is(key, semconv::SPAN_ID) => {
                span_id.is_some_and(|span_id| is_hex_of(text.text(), &span_id.0))
            }
            _ => false,
        });
        push_bytes_field(out, TRACE_ID, &trace_id.0);
        if let Some(span_id) = span_id {
            push_bytes_field(out, SPAN_ID, &span_id.0);
        }
        attributes.finish(out, caches);
    });
}

/// Appends a loss as a field of a message.
pub(super) fn push_loss(out: &mut Vec<u8>, field: u8, event: EventView<'_>, loss: LossView<'_>, caches: &mut Caches) {
    push_message(out, field, 2, |out| {
        push_head(out, event, Severity::Warn.into());
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
    push_bytes_field(out, SEVERITY_TEXT, severity.severity().as_str().as_bytes());
    push_bytes_field(out, EVENT_NAME, event.name().text().as_bytes());
}

/// Whether a key is this name, which a peer may have sent.
#[inline]
pub(super) fn is(key: KeyView<'_>, name: semconv::Name) -> bool {
    match key {
        KeyView::Name(key) => key == name,
        KeyView::Text(key) => key.len() == name.as_str().len() && key.text() == name.as_str(),
    }
}

/// Whether a text is these bytes in hex, in lower case.
fn is_hex_of(text: &str, bytes: &[u8]) -> bool {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |half: u8| DIGITS[usize::from(half & 15)];
    text.bytes().eq(bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(*byte)]))
}
