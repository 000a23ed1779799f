//! Human-readable lines for a terminal: the event first, its origin last.
//!
//! ```text
//! 2026-11-20T12:15:00.123456Z span   web.request  1.5ms  service.name=shop  [datadog 127.0.0.1:40112 #9]
//! ```
//!
//! Not a format for programs: those read JSON. Of the resource only `service.name` is shown, or behind the protocol the name of
//! an agent that has another one; the rest is the same on every line.

use std::io::Write;
use std::time::Duration;

use super::number::{push_f64, push_hex, push_i64, push_number, push_u64};
use super::time::TimeFormat;
use tributary_codec::base64::push_base64;
use tributary_codec::terminal::{push_quoted, push_word, shown};
use tributary_event::{
    AgentFacts, AgentName, DataView, Distribution, DistributionForm, EventView, FrameView, LossView, Members,
    MetricType, MetricView, SampleView, Severity, SeverityNumber, SpanData, SpanExtrasView, SpanView, Status, TextView,
    UnixNanos, ValueView, semconv,
};

/// Appends one event as a human-readable line, line feed included. Characters of a peer that a terminal interprets
/// instead of showing them are escaped.
pub fn encode(event: EventView<'_>, out: &mut Vec<u8>) {
    push_time(out, event.time());
    push(out, " ");
    push(out, kind_column(event));
    push(out, " ");
    push_word(out, event.name().text());
    match event.data() {
        DataView::Log { body: Some(body), severity_number, .. } => {
            push_severity_number(out, severity_number);
            push(out, "  ");
            push_value(out, body);
        }
        DataView::Log { body: None, severity_number, .. } => push_severity_number(out, severity_number),
        DataView::Span(span) => push_span(out, span),
        DataView::Metric(metric) => push_metric(out, metric),
        DataView::Sample(sample) => push_sample(out, sample),
        DataView::Loss(loss) => push_loss(out, loss, event.position().offset),
    }
    let mut separator = "  ";
    if let Some(service) = event.resource().text(semconv::SERVICE_NAME) {
        push(out, "  service.name=");
        push_word(out, service);
        separator = " ";
    }
    for (key, value) in event.attributes() {
        push(out, separator);
        push_member(out, key, value);
        separator = " ";
    }
    if let DataView::Span(span) = event.data() {
        push_ids(out, &span);
        push_parts(out, span);
    }
    push_origin(out, event);
}

/// To the microsecond, in UTC: more digits would only lengthen the line.
fn push_time(out: &mut Vec<u8>, time: Option<UnixNanos>) {
    match time {
        Some(time) => {
            TimeFormat::default().push(out, time);
            out.truncate(out.len() - "789Z".len());
            push(out, "Z");
        }
        None => push(out, "(time unknown)             "),
    }
}

/// The kind, or for a log its severity, padded to the longest; in capitals what is important.
pub(super) fn kind_column(event: EventView<'_>) -> &'static str {
    match event.data() {
        DataView::Log { severity: Severity::Trace, .. } => "trace ",
        DataView::Log { severity: Severity::Debug, .. } => "debug ",
        DataView::Log { severity: Severity::Info, .. } => "info  ",
        DataView::Log { severity: Severity::Warn, .. } => "WARN  ",
        DataView::Log { severity: Severity::Error, .. } => "ERROR ",
        DataView::Log { severity: Severity::Fatal, .. } => "FATAL ",
        DataView::Span(_) => "span  ",
        DataView::Metric(_) => "metric",
        DataView::Sample(_) => "sample",
        DataView::Loss(_) => "LOSS  ",
    }
}

/// Only where the name of the severity does not say it.
fn push_severity_number(out: &mut Vec<u8>, number: SeverityNumber) {
    if !number.is_first() {
        push_display(out, format_args!("  severity={}", number.get()));
    }
}

fn push_span(out: &mut Vec<u8>, span: SpanView<'_>) {
    if let Some(kind) = span.kind {
        push(out, "  ");
        push(out, kind.as_str());
    }
    match span.duration_nanos {
        Some(nanos) => push_display(out, format_args!("  {:?}", Duration::from_nanos(nanos))),
        None => push(out, "  (not ended)"),
    }
    match span.status {
        Status::Unset => {}
        Status::Ok => push(out, "  ok"),
        Status::Error => push(out, "  ERROR"),
    }
    if let Some(message) = span.status_message() {
        push(out, " ");
        push_quoted(out, message.text());
    }
}

/// The ids follow the attributes: they are long and rarely read.
fn push_ids(out: &mut Vec<u8>, span: &SpanData) {
    push(out, "  trace=");
    push_hex(out, &span.trace_id.0);
    push(out, " span=");
    push_hex(out, &span.span_id.0);
    if let Some(parent) = span.parent {
        push(out, " parent=");
        push_hex(out, &parent.0);
    }
}

/// What few spans have, links and events.
fn push_parts(out: &mut Vec<u8>, span: SpanView<'_>) {
    if let Some(SpanExtrasView { trace_state, flags, dropped }) = span.extras() {
        if let Some(state) = trace_state {
            push(out, " trace_state=");
            push_word(out, state.text());
        }
        let counts = [
            ("flags", flags),
            ("dropped.attributes", dropped.attributes),
            ("dropped.events", dropped.events),
            ("dropped.links", dropped.links),
        ];
        for (name, count) in counts.into_iter().filter(|(_, count)| *count > 0) {
            push_display(out, format_args!(" {name}={count}"));
        }
    }
    for link in span.links() {
        push(out, " link=");
        push_hex(out, &link.to.trace_id.0);
        push(out, "/");
        push_hex(out, &link.to.span_id.0);
        push_own_attributes(out, link.attributes);
    }
    for event in span.events() {
        push(out, " event=");
        push_word(out, event.name.text());
        push_own_attributes(out, event.attributes);
    }
}

fn push_own_attributes(out: &mut Vec<u8>, attributes: Members<'_>) {
    if !attributes.is_empty() {
        push_value(out, ValueView::Map(attributes));
    }
}

fn push_metric(out: &mut Vec<u8>, metric: MetricView<'_>) {
    push(out, "  ");
    match metric.distribution() {
        Some(distribution) => push_distribution(out, &distribution),
        None => push_number(out, metric.value),
    }
    push_unit(out, metric.unit());
    push(out, if let MetricType::Sum { monotonic: true, .. } = metric.metric_type { "  monotonic" } else { " " });
    if let Some(temporality) = metric.metric_type.temporality() {
        push(out, " ");
        push(out, temporality.as_str());
    }
    push(out, " ");
    push(out, metric.metric_type.as_str());
    if let Some(start) = metric.start {
        push(out, " since ");
        push_time(out, Some(start));
    }
}

/// In short: without the buckets.
pub(super) fn push_distribution(out: &mut Vec<u8>, distribution: &Distribution<'_>) {
    let Distribution { count, sum, min, max, form } = distribution;
    push(out, "count=");
    push_u64(out, *count);
    for (name, value) in [(" sum=", sum), (" min=", min), (" max=", max)] {
        if let Some(value) = value {
            push(out, name);
            push_f64(out, *value);
        }
    }
    if let DistributionForm::Summary(quantiles) = form {
        for (quantile, value) in *quantiles {
            push(out, " q");
            push_f64(out, *quantile);
            push(out, "=");
            push_f64(out, *value);
        }
    }
}

fn push_sample(out: &mut Vec<u8>, sample: SampleView<'_>) {
    push(out, "  ");
    push(out, &shown(sample.sample_type()));
    push(out, " ");
    push_number(out, sample.data.value);
    push_unit(out, sample.unit());
    let mut separator = "  ";
    for frame in sample.frames() {
        push(out, separator);
        push_frame(out, frame);
        separator = " < ";
    }
}

pub(super) fn push_frame(out: &mut Vec<u8>, frame: FrameView<'_>) {
    push_word(out, frame.function.map_or("?", |function| function.text()));
    if let Some(file) = frame.file {
        push(out, " (");
        push_word(out, file.text());
        if let Some(line) = frame.line {
            push(out, ":");
            push_u64(out, line);
        }
        push(out, ")");
    }
}

fn push_unit(out: &mut Vec<u8>, unit: &str) {
    if !unit.is_empty() {
        push(out, " ");
        push(out, &shown(unit));
    }
}

fn push_loss(out: &mut Vec<u8>, loss: LossView<'_>, offset: u64) {
    push_display(out, format_args!("  {}: {} bytes at offset {offset}", loss.reason.as_str(), loss.bytes));
    match loss.events {
        Some(1) => push(out, ", 1 event"),
        Some(events) => push_display(out, format_args!(", {events} events")),
        None => push(out, ", events unknown"),
    }
    if !loss.detail.text().is_empty() {
        push(out, "  ");
        push_quoted(out, loss.detail.text());
    }
    if !loss.excerpt.is_empty() {
        push(out, "  excerpt ");
        push_hex(out, loss.excerpt);
    }
}

fn push_member(out: &mut Vec<u8>, key: TextView<'_>, value: ValueView<'_>) {
    push_word(out, key.text());
    push(out, "=");
    push_value(out, value);
}

pub(super) fn push_value(out: &mut Vec<u8>, value: ValueView<'_>) {
    match value {
        ValueView::Null => push(out, "null"),
        ValueView::Bool(value) => push(out, if value { "true" } else { "false" }),
        ValueView::I64(value) => push_i64(out, value),
        ValueView::U64(value) => push_u64(out, value),
        ValueView::F64(value) => push_f64(out, value),
        ValueView::Text(text) => push_word(out, text.text()),
        ValueView::Bytes(bytes) => push_base64(out, bytes),
        ValueView::Array(values) => {
            let mut separator = "[";
            for value in values {
                push(out, separator);
                push_value(out, value);
                separator = ", ";
            }
            push(out, if separator == "[" { "[]" } else { "]" });
        }
        ValueView::Map(members) => {
            let mut separator = "{";
            for member in members {
                push(out, separator);
                push_member(out, member.key().text(), member.value());
                separator = ", ";
            }
            push(out, if separator == "{" { "{}" } else { "}" });
        }
    }
}

fn push_origin(out: &mut Vec<u8>, event: EventView<'_>) {
    let origin = event.origin();
    push(out, "  [");
    push(out, origin.protocol);
    if event.resource().text(semconv::SERVICE_NAME).is_none()
        && let facts = AgentFacts::of(event.resource().attributes())
        && let AgentName::Own(name) = facts.name(origin.protocol, &origin.listener, &origin.peer)
    {
        push(out, " ");
        push_word(out, &name);
    }
    if !origin.peer.is_empty() {
        push(out, " ");
        push_word(out, &origin.peer);
    }
    push(out, " #");
    push_u64(out, origin.connection);
    push(out, "]\n");
}

fn push(out: &mut Vec<u8>, piece: &str) {
    out.extend_from_slice(piece.as_bytes());
}

fn push_display(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    // Writing into memory cannot fail.
    let _ = out.write_fmt(text);
}
