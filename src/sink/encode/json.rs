//! JSON lines: one event, one line, keys always in the order of `docs/event-model.md`.
//!
//! Written by hand, because most of the collector's time is spent here: keys are constant pieces, text that the batch has
//! marked as plain is copied, and what is constant for a connection is rendered once.

use std::sync::Arc;

use super::distribution;
use super::escape::{push_json_escaped, push_short, push_string, push_string_content};
use super::number::{push_f64, push_hex, push_i64, push_id, push_number, push_u64};
use super::observed::Observed;
use super::source::{Cache, EventSource, LineFields};
use super::time::{RepeatedTime, TimeFormat};
use tributary_codec::base64::push_base64;
use tributary_event::{
    AttributeView, Attributes, DataView, DroppedCounts, EventView, FrameView, KeyView, Kind, LinkView, LossView,
    Member, Members, MetricType, MetricView, Origin, Position, Resource, SampleView, Severity, SeverityNumber,
    SpanEventView, SpanExtrasView, SpanKind, SpanView, Status, Temporality, TextView, TraceContext, ValueView,
};

/// Encodes events as JSON lines; caches the last times.
#[derive(Debug, Default)]
pub struct JsonEncoder {
    /// The times of events, and when they were observed.
    happened: RepeatedTime,
    observed: Observed,
    /// Other times.
    times: TimeFormat,
    /// Of compact lines. `None`: lines have every field.
    sources: Option<Cache>,
}

impl JsonEncoder {
    /// An encoder of lines with these fields.
    pub fn new(fields: LineFields) -> Self {
        JsonEncoder { sources: (fields == LineFields::Compact).then(Cache::default), ..JsonEncoder::default() }
    }

    /// The source that the line of an event names; it must be defined before that line. `None`: the line has every field, as
    /// those of losses have.
    #[inline]
    pub fn source(&mut self, event: EventView<'_>) -> Option<&Arc<EventSource>> {
        match &mut self.sources {
            Some(sources) if event.kind() != Kind::Loss => Some(sources.source(event)),
            _ => None,
        }
    }

    /// The nanoseconds from an event to its reading, which a compact line has instead of the time of reading. `None`: the line has
    /// that.
    #[inline]
    fn delay(&self, event: EventView<'_>) -> Option<i64> {
        if self.sources.is_none() || event.kind() == Kind::Loss {
            return None;
        }
        event.observed().0.checked_signed_diff(event.time()?.0)
    }

    /// Appends one event as a JSON line, line feed included.
    pub fn encode(&mut self, event: EventView<'_>, out: &mut Vec<u8>) {
        self.push_header(out, event);
        match event.data() {
            DataView::Log { severity, severity_number, context, body } => {
                push_severity(out, severity, severity_number);
                push_log(out, context, body);
            }
            DataView::Span(span) => self.push_span(out, span),
            DataView::Metric(metric) => self.push_metric(out, metric),
            DataView::Sample(sample) => push_sample(out, sample),
            DataView::Loss(loss) => push_loss(out, loss),
        }
        push_attributes(out, event.attribute_parts());
        if let Some(source) = self.source(event) {
            push(out, source.reference());
            push_position(out, event.position());
            if let Some(delay) = self.delay(event).filter(|delay| *delay != 0) {
                push(out, b",\"delay_ns\":");
                push_i64(out, delay);
            }
            return push(out, b"}\n");
        }
        if !event.resource().attributes().is_empty() {
            push(out, b",\"resource\":");
            push(out, event.resource().rendered(render_resource));
        }
        push_origin(out, event.origin(), event.position());
        push(out, b"}\n");
    }

    fn push_header(&mut self, out: &mut Vec<u8>, event: EventView<'_>) {
        match event.time() {
            Some(time) => {
                push(out, b"{\"time\":\"");
                self.happened.push(out, time);
                match self.delay(event) {
                    None => push(out, self.observed.after_text(event.observed())),
                    Some(_) => push(out, b"\",\"kind\":\""),
                }
            }
            None => {
                push(out, b"{\"time\":null");
                push(out, self.observed.after_null(event.observed()));
            }
        }
        match event.kind() {
            Kind::Log => push(out, b"log\",\"name\":"),
            Kind::Span => push(out, b"span\",\"name\":"),
            Kind::Metric => push(out, b"metric\",\"name\":"),
            Kind::Sample => push(out, b"sample\",\"name\":"),
            Kind::Loss => push(out, b"loss\",\"name\":"),
        }
        match event.name_key() {
            KeyView::Name(name) => push_short(out, name.quoted_padded()),
            KeyView::Text(name) => push_string(out, name),
        }
    }

    fn push_span(&mut self, out: &mut Vec<u8>, span: SpanView<'_>) {
        push(out, b",\"span\":{\"trace_id\":\"");
        push_id(out, &span.trace_id.0);
        push(out, b"\",\"span_id\":\"");
        push_id(out, &span.span_id.0);
        if let Some(parent) = span.parent {
            push(out, b"\",\"parent_span_id\":\"");
            push_id(out, &parent.0);
        }
        match span.kind {
            None => {}
            Some(SpanKind::Internal) => push(out, b"\",\"kind\":\"internal"),
            Some(SpanKind::Server) => push(out, b"\",\"kind\":\"server"),
            Some(SpanKind::Client) => push(out, b"\",\"kind\":\"client"),
            Some(SpanKind::Producer) => push(out, b"\",\"kind\":\"producer"),
            Some(SpanKind::Consumer) => push(out, b"\",\"kind\":\"consumer"),
        }
        if let Some(end) = span.end {
            push(out, b"\",\"end_time\":\"");
            self.times.push(out, end);
        }
        push(out, b"\"");
        if let Some(duration) = span.duration_nanos {
            push(out, b",\"duration_ns\":");
            push_u64(out, duration);
        }
        push(
            out,
            match span.status {
                Status::Unset => b",\"status\":\"unset\"",
                Status::Ok => b",\"status\":\"ok\"",
                Status::Error => b",\"status\":\"error\"",
            },
        );
        if let Some(message) = span.status_message() {
            push(out, b",\"status_message\":");
            push_string(out, message);
        }
        if let Some(extras) = span.extras() {
            push_extras(out, extras);
        }
        if span.links().len() > 0 {
            push_links(out, span.links());
        }
        if span.events().len() > 0 {
            self.push_span_events(out, span.events());
        }
        push(out, b"}");
    }

    fn push_span_events<'a>(&mut self, out: &mut Vec<u8>, events: impl Iterator<Item = SpanEventView<'a>>) {
        push(out, b",\"events\":[");
        for event in events {
            push(out, b"{");
            if let Some(time) = event.time {
                push(out, b"\"time\":\"");
                self.times.push(out, time);
                push(out, b"\",");
            }
            push(out, b"\"name\":");
            push_string(out, event.name);
            push_own_attributes(out, event.attributes);
            push(out, b"},");
        }
        close(out, b']');
    }

    fn push_metric(&mut self, out: &mut Vec<u8>, metric: MetricView<'_>) {
        push(
            out,
            match metric.metric_type {
                MetricType::Gauge => b",\"metric\":{\"type\":\"gauge\"",
                MetricType::Sum { .. } => b",\"metric\":{\"type\":\"sum\"",
                MetricType::Histogram { .. } => b",\"metric\":{\"type\":\"histogram\"",
                MetricType::ExponentialHistogram { .. } => b",\"metric\":{\"type\":\"exponential_histogram\"",
                MetricType::Summary => b",\"metric\":{\"type\":\"summary\"",
            },
        );
        push_unit(out, metric.unit());
        match metric.distribution() {
            Some(distribution) => distribution::push_members(out, &distribution),
            None => {
                push(out, b",\"value\":");
                push_number(out, metric.value);
            }
        }
        match metric.metric_type.temporality() {
            None => {}
            Some(Temporality::Delta) => push(out, b",\"temporality\":\"delta\""),
            Some(Temporality::Cumulative) => push(out, b",\"temporality\":\"cumulative\""),
        }
        if let MetricType::Sum { monotonic, .. } = metric.metric_type {
            push(out, if monotonic { b",\"monotonic\":true" } else { b",\"monotonic\":false" });
        }
        if let Some(start) = metric.start {
            push(out, b",\"start_time\":\"");
            self.times.push(out, start);
            push(out, b"\"");
        }
        push(out, b"}");
    }
}

fn push_links<'a>(out: &mut Vec<u8>, links: impl Iterator<Item = LinkView<'a>>) {
    push(out, b",\"links\":[");
    for link in links {
        push(out, b"{\"trace_id\":\"");
        push_id(out, &link.to.trace_id.0);
        push(out, b"\",\"span_id\":\"");
        push_id(out, &link.to.span_id.0);
        push(out, b"\"");
        push_own_attributes(out, link.attributes);
        if let Some(state) = link.trace_state {
            push(out, b",\"trace_state\":");
            push_string(out, state);
        }
        if let Some(flags) = link.flags {
            push(out, b",\"flags\":");
            push_u64(out, flags.into());
        }
        push(out, b"},");
    }
    close(out, b']');
}

/// The members that few spans have, each with a comma before it.
fn push_extras(out: &mut Vec<u8>, extras: SpanExtrasView<'_>) {
    let SpanExtrasView { trace_state, flags, dropped } = extras;
    if let Some(state) = trace_state {
        push(out, b",\"trace_state\":");
        push_string(out, state);
    }
    if flags != 0 {
        push(out, b",\"flags\":");
        push_u64(out, flags.into());
    }
    if !dropped.is_empty() {
        push(out, b",\"dropped\":{");
        let DroppedCounts { attributes, events, links } = dropped;
        for (key, count) in [(&b"\"attributes\":"[..], attributes), (b"\"events\":", events), (b"\"links\":", links)] {
            if count > 0 {
                push(out, key);
                push_u64(out, count.into());
                push(out, b",");
            }
        }
        close(out, b'}');
    }
}

/// The attributes of a link or of an event of a span, with a comma before them, if there are any.
fn push_own_attributes(out: &mut Vec<u8>, attributes: Members<'_>) {
    if !attributes.is_empty() {
        push(out, b",\"attributes\":{");
        push_each(attributes, out);
        close(out, b'}');
    }
}

fn push_severity(out: &mut Vec<u8>, severity: Severity, number: SeverityNumber) {
    match severity {
        Severity::Trace => push(out, b",\"severity\":\"TRACE\""),
        Severity::Debug => push(out, b",\"severity\":\"DEBUG\""),
        Severity::Info => push(out, b",\"severity\":\"INFO\""),
        Severity::Warn => push(out, b",\"severity\":\"WARN\""),
        Severity::Error => push(out, b",\"severity\":\"ERROR\""),
        Severity::Fatal => push(out, b",\"severity\":\"FATAL\""),
    }
    if !number.is_first() {
        push(out, b",\"severity_number\":");
        push_u64(out, number.get().into());
    }
}

fn push_log(out: &mut Vec<u8>, context: Option<&TraceContext>, body: Option<ValueView<'_>>) {
    if let Some(context) = context {
        push_context(out, context);
    }
    if let Some(body) = body {
        push(out, b",\"body\":");
        push_value(out, body);
    }
}

fn push_context(out: &mut Vec<u8>, context: &TraceContext) {
    push(out, b",\"trace_id\":\"");
    push_id(out, &context.trace_id.0);
    if let Some(span_id) = context.span_id {
        push(out, b"\",\"span_id\":\"");
        push_id(out, &span_id.0);
    }
    push(out, b"\"");
}

fn push_sample(out: &mut Vec<u8>, sample: SampleView<'_>) {
    push(out, b",\"sample\":{\"type\":\"");
    push_json_escaped(out, sample.sample_type());
    push(out, b"\"");
    push_unit(out, sample.unit());
    push(out, b",\"value\":");
    push_number(out, sample.data.value);
    if let Some(period) = sample.data.period_nanos {
        push(out, b",\"period_ns\":");
        push_u64(out, period);
    }
    if let Some(clock) = sample.data.clock {
        push(out, b",\"clock\":\"");
        push(out, clock.as_str().as_bytes());
        push(out, b"\"");
    }
    push(out, b",\"frames\":[");
    for frame in sample.frames() {
        push_frame(out, frame);
        push(out, b",");
    }
    close(out, b']');
    push(out, b"}");
}

fn push_frame(out: &mut Vec<u8>, frame: FrameView<'_>) {
    push(out, b"{");
    if let Some(function) = frame.function {
        push(out, b"\"function\":");
        push_string(out, function);
        push(out, b",");
    }
    if let Some(file) = frame.file {
        push(out, b"\"file\":");
        push_string(out, file);
        push(out, b",");
    }
    if let Some(line) = frame.line {
        push(out, b"\"line\":");
        push_u64(out, line);
        push(out, b",");
    }
    close(out, b'}');
}

fn push_unit(out: &mut Vec<u8>, unit: &str) {
    if !unit.is_empty() {
        push(out, b",\"unit\":\"");
        push_json_escaped(out, unit);
        push(out, b"\"");
    }
}

fn push_loss(out: &mut Vec<u8>, loss: LossView<'_>) {
    push(out, b",\"loss\":{\"reason\":\"");
    push(out, loss.reason.as_str().as_bytes());
    push(out, b"\",\"bytes\":");
    push_u64(out, loss.bytes);
    if let Some(events) = loss.events {
        push(out, b",\"events\":");
        push_u64(out, events);
    }
    if !loss.detail.text().is_empty() {
        push(out, b",\"detail\":");
        push_string(out, loss.detail);
    }
    if !loss.excerpt.is_empty() {
        push(out, b",\"excerpt\":\"");
        push_hex(out, loss.excerpt);
        push(out, b"\"");
    }
    push(out, b"}");
}

fn push_attributes(out: &mut Vec<u8>, attributes: Attributes<'_>) {
    if attributes.is_empty() {
        return;
    }
    push(out, b",\"attributes\":{");
    for attribute in attributes {
        match attribute {
            AttributeView::One(member) => push_member(out, member),
            AttributeView::Run(run) => match run.rendered(push_each) {
                Some(rendered) => push(out, rendered),
                None => push_each(run.members(), out),
            },
        }
    }
    close(out, b'}');
}

/// Keys and values, each with its comma.
fn push_each(members: Members<'_>, out: &mut Vec<u8>) {
    members.for_each(|member| push_member(out, member));
}

/// A key, its value and a comma. Text values have a branch of their own, so that fewer pieces are written.
#[inline(always)]
fn push_member(out: &mut Vec<u8>, member: Member<'_>) {
    if let ValueView::Text(text) = member.value() {
        match member.key() {
            KeyView::Name(name) => push_short(out, name.before_text_padded()),
            KeyView::Text(key) => {
                push(out, b"\"");
                push_string_content(out, key);
                push(out, b"\":\"");
            }
        }
        push_string_content(out, text);
        push(out, b"\",");
    } else {
        match member.key() {
            KeyView::Name(name) => push_short(out, name.before_value_padded()),
            KeyView::Text(key) => {
                push_string(out, key);
                push(out, b":");
            }
        }
        push_value(out, member.value());
        push(out, b",");
    }
}

/// Appends a value.
pub fn push_value(out: &mut Vec<u8>, value: ValueView<'_>) {
    match value {
        ValueView::Text(text) => push_string(out, text),
        ValueView::I64(value) => push_i64(out, value),
        ValueView::U64(value) => push_u64(out, value),
        ValueView::F64(value) => push_f64(out, value),
        ValueView::Bool(value) => push(out, if value { b"true" } else { b"false" }),
        ValueView::Null => push(out, b"null"),
        ValueView::Bytes(bytes) => {
            push(out, b"\"");
            push_base64(out, bytes);
            push(out, b"\"");
        }
        ValueView::Array(values) => {
            push(out, b"[");
            for value in values {
                push_value(out, value);
                push(out, b",");
            }
            close(out, b']');
        }
        ValueView::Map(members) => {
            push(out, b"{");
            push_each(members, out);
            close(out, b'}');
        }
    }
}

fn push_origin(out: &mut Vec<u8>, origin: &Origin, position: Position) {
    push(out, b",\"origin\":");
    push(out, origin.rendered(render_origin));
    if let Some(sequence) = position.sequence {
        push(out, b",\"sequence\":");
        push_u64(out, sequence);
    }
    push(out, b",\"offset\":");
    push_u64(out, position.offset);
    push(out, b",\"length\":");
    push_u64(out, position.length);
    push(out, b"}");
}

/// Appends what follows the bracket of a position; `null` stands for a number of the message that there is not.
fn push_position(out: &mut Vec<u8>, position: Position) {
    match position.sequence {
        Some(sequence) => push_u64(out, sequence),
        None => push(out, b"null"),
    }
    push(out, b",");
    push_u64(out, position.offset);
    push(out, b",");
    push_u64(out, position.length);
    push(out, b"]");
}

/// Appends the member `resource`, with a comma before it, if it is not empty.
pub(super) fn push_resource(out: &mut Vec<u8>, resource: &Resource) {
    if !resource.attributes().is_empty() {
        push(out, b",\"resource\":");
        push(out, &render_resource(resource));
    }
}

/// The part of an origin that is constant for a connection: an object without its closing brace.
pub(super) fn render_origin(origin: &Origin) -> Vec<u8> {
    let mut out = Vec::new();
    let text_member = |out: &mut Vec<u8>, piece: &[u8], text: &str| {
        push(out, piece);
        push(out, b"\"");
        push_json_escaped(out, text);
        push(out, b"\"");
    };
    text_member(&mut out, b"{\"protocol\":", origin.protocol);
    if let Some(version) = &origin.version {
        text_member(&mut out, b",\"version\":", version);
    }
    text_member(&mut out, b",\"listener\":", &origin.listener);
    if !origin.peer.is_empty() {
        text_member(&mut out, b",\"peer\":", &origin.peer);
    }
    push(&mut out, b",\"connection\":");
    push_u64(&mut out, origin.connection);
    out
}

/// A resource as a whole object.
fn render_resource(resource: &Resource) -> Vec<u8> {
    let mut out = vec![b'{'];
    for (key, value) in resource.attributes() {
        push_string(&mut out, TextView::unchecked(key));
        push(&mut out, b":");
        push_value(&mut out, value.view());
        push(&mut out, b",");
    }
    close(&mut out, b'}');
    out
}

#[inline]
fn push(out: &mut Vec<u8>, piece: &[u8]) {
    out.extend_from_slice(piece);
}

/// Ends an array or object in which a comma follows each element.
fn close(out: &mut Vec<u8>, bracket: u8) {
    match out.last_mut() {
        Some(last) if *last == b',' => *last = bracket,
        _ => out.push(bracket),
    }
}
