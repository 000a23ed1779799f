//! What a span says of its service and its operation.

use tributary_codec::mix::mix;
use tributary_codec::text;
use tributary_event::{Batch, DataView, EventView, SpanView, semconv};

/// Names are cut here.
const MAX_NAME_BYTES: usize = 256;
/// The type of an error where it is no exception (OpenTelemetry).
const ERROR_TYPE: &str = "error.type";
/// Errors whose type is not known.
pub(super) const NO_TYPE: &str = "(no type)";

pub(super) fn spans(batch: &Batch) -> impl Iterator<Item = (EventView<'_>, SpanView<'_>)> {
    batch.events().filter_map(|event| match event.data() {
        DataView::Span(span) => Some((event, span)),
        _ => None,
    })
}

/// The key of a span: tracers with ids of 64 and of 128 bits have the lower half in common.
#[inline]
pub(super) fn key(trace_id: &[u8; 16], span_id: &[u8; 8]) -> u64 {
    let trace = u128::from_be_bytes(*trace_id) as u64;
    mix(trace ^ u64::from_be_bytes(*span_id).rotate_left(32)).max(1)
}

/// The operation of a span and what it works on. `None`: the span is none, but a part of one.
pub(super) fn operation_of<'a>(event: EventView<'a>, span: SpanView<'a>) -> Option<(&'a str, &'a str)> {
    let name = event.name().text();
    match event.origin().protocol {
        // Each call is a span: the outermost ones of a thread are operations.
        "bytefrog" => span.parent.is_none().then_some((name, "")),
        "zico" => event.text_of(semconv::ZICO_TRACE_TYPE).map(|name| (name, "")),
        "datadog" | "datadog_agent" => {
            let detail = event.text_of(semconv::DATADOG_RESOURCE).filter(|detail| *detail != name);
            Some((name, detail.unwrap_or("")))
        }
        _ => Some((name, "")),
    }
}

pub(super) fn error_type<'a>(event: EventView<'a>, span: SpanView<'a>) -> &'a str {
    let of_events = span.events().find_map(|event| event.attributes.text_of(semconv::EXCEPTION_TYPE));
    let of_span = || event.text_of(semconv::EXCEPTION_TYPE);
    let error_type = || {
        let member = event.attribute_members().find(|member| member.key().text().text() == ERROR_TYPE)?;
        member.value().as_text()
    };
    of_events.or_else(of_span).or_else(error_type).filter(|name| !name.is_empty()).map_or(NO_TYPE, cut)
}

pub(super) fn cut(text: &str) -> &str {
    text::cut(text, MAX_NAME_BYTES)
}
