//! The two encoders, seen from outside: golden lines for every kind, and every corner of escaping.
#![allow(clippy::unwrap_used)]

mod compact;
mod distributions;
mod escaping;
mod identity;
mod json;
mod terminal;
mod text;

use std::sync::Arc;

use serde_json::Value as Json;
use tributary::event::{
    Batch, BatchBuilder, EventBuilder, Header, Loss, MetricData, Name, Origin, Position, Severity, SpanData, SpanId,
    Status, TraceId, UnixNanos, semconv,
};
use tributary::sink::encode::{Encoder, Format};

pub(crate) const TIME: UnixNanos = UnixNanos(1_795_176_900_123_456_789);
pub(crate) const HEAD: &str =
    r#"{"time":"2026-11-20T12:15:00.123456789Z","observed_time":"2026-11-20T12:15:00.130000000Z","#;
pub(crate) const TAIL: &str = r#","origin":{"protocol":"datadog","listener":"apm","peer":"127.0.0.1:40112","connection":9,"sequence":1007,"offset":81204,"length":15}}"#;

pub(crate) fn builder() -> BatchBuilder {
    BatchBuilder::new(Arc::new(Origin::new("datadog", "apm".into(), "127.0.0.1:40112".into(), 9)))
}

pub(crate) fn header(name: Name) -> Header {
    Header {
        name: name.into(),
        time: Some(TIME),
        observed: UnixNanos(1_795_176_900_130_000_000),
        position: Position { sequence: Some(1007), offset: 81_204, length: 15 },
    }
}

pub(crate) fn span() -> SpanData {
    let trace_id = TraceId([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
    SpanData {
        parent: Some(SpanId([0, 0, 0, 0, 0, 0, 0, 0xff])),
        end: Some(UnixNanos(TIME.0 + 12_300_000)),
        duration_nanos: Some(12_300_000),
        status: Status::Error,
        ..SpanData::new(trace_id, SpanId(0xa2fb_4a1d_1a96_d312_u64.to_be_bytes()))
    }
}

pub(crate) fn json(batch: &Batch) -> String {
    encoded(Format::Json, batch)
}

pub(crate) fn text(batch: &Batch) -> String {
    encoded(Format::Text, batch)
}

/// Every event through one encoder, as a sink does it.
pub(crate) fn encoded(format: Format, batch: &Batch) -> String {
    let (mut encoder, mut out) = (Encoder::new(format), Vec::new());
    batch.events().for_each(|event| encoder.encode(event, &mut out));
    String::from_utf8(out).unwrap()
}

pub(crate) fn json_metric(metric: MetricData) -> String {
    let mut builder = builder();
    builder.event(header(semconv::DATADOG_PROCESS)).metric(metric);
    json(&builder.take())
}

pub(crate) fn json_loss(loss: Loss<'_>) -> String {
    let mut builder = builder();
    builder.loss(header(semconv::LOSS), loss);
    json(&builder.take())
}

pub(crate) fn json_attributes(write: impl FnOnce(&mut EventBuilder<'_>)) -> String {
    let mut builder = builder();
    let mut event = builder.event(header(semconv::DATADOG_PROCESS));
    write(&mut event);
    event.log(Severity::Info, None);
    json(&builder.take())
}

pub(crate) fn parse(line: &str) -> Json {
    serde_json::from_str(line).unwrap()
}

/// One line for every reader: those that end lines at a line feed, and those that know Unicode's separators.
pub(crate) fn assert_one_line(line: &str) {
    assert_eq!(line.lines().count(), 1, "{line}");
    let ends =
        line.chars().filter(|c| matches!(c, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{85}' | '\u{2028}' | '\u{2029}'));
    assert_eq!(ends.collect::<String>(), "\n", "{line}");
}
