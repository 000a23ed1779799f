//! Rows: an event as one binary record, exactly as it was, for journals.
//!
//! A record ends in a line feed and has no other, so that a file of rows is repaired and cut like a file of lines. Its bytes:
//! `T`, the block of origin and resource, which is mostly that of the record before, header, data of the kind, attributes, and
//! a CRC-32C of all of that. Numbers are LEB128; texts have their length before them. Then each line feed is replaced by
//! `1B 01`, and each `1B` by `1B 02`.

use std::sync::Arc;

use tributary_event::varint::{push_varint, unsigned};
use tributary_event::{
    Buckets, DataView, Distribution, DistributionForm, DroppedCounts, EventView, Members, MetricType, MetricView,
    Number, Origin, Position, Resource, SpanExtrasView, SpanKind, Status, Temporality, UnixNanos, ValueView,
};

/// The first byte of every record: its form.
pub const START: u8 = b'T';
/// Begins the two bytes that stand for a line feed or for this byte.
pub(super) const ESCAPE: u8 = 0x1B;
/// The length of the checksum.
pub(super) const CRC_BYTES: usize = 4;

/// The first byte of a value.
pub(super) mod tag {
    pub(crate) const NULL: u8 = 0;
    pub(crate) const FALSE: u8 = 1;
    pub(crate) const TRUE: u8 = 2;
    pub(crate) const I64: u8 = 3;
    pub(crate) const U64: u8 = 4;
    pub(crate) const F64: u8 = 5;
    pub(crate) const TEXT: u8 = 6;
    pub(crate) const BYTES: u8 = 7;
    pub(crate) const ARRAY: u8 = 8;
    pub(crate) const MAP: u8 = 9;
}

/// Encodes events as rows; caches what consecutive events share.
#[derive(Debug, Default)]
pub struct RowEncoder {
    last: Option<(Arc<Origin>, Arc<Resource>)>,
    /// The block of `last`.
    block: Vec<u8>,
}

impl RowEncoder {
    /// Appends one event as a record, line feed included.
    pub fn encode(&mut self, event: EventView<'_>, out: &mut Vec<u8>) {
        let start = out.len();
        out.push(START);
        self.push_block(event, out);
        push_header(out, event);
        push_data(out, event);
        push_varint(out, event.attribute_members().count() as u64);
        for member in event.attribute_members() {
            push_text(out, member.key().text().text());
            push_value(out, member.value());
        }
        let crc = crc32c::crc32c(&out[start..]);
        out.extend_from_slice(&crc.to_le_bytes());
        escape(out, start);
        out.push(b'\n');
    }

    fn push_block(&mut self, event: EventView<'_>, out: &mut Vec<u8>) {
        let (origin, resource) = (event.origin(), event.resource());
        let is_last =
            |(last, of): &(Arc<Origin>, Arc<Resource>)| Arc::ptr_eq(last, origin) && Arc::ptr_eq(of, resource);
        if !self.last.as_ref().is_some_and(is_last) {
            self.last = Some((origin.clone(), resource.clone()));
            self.block.clear();
            push_origin(&mut self.block, origin);
            push_varint(&mut self.block, resource.attributes().len() as u64);
            for (key, value) in resource.attributes() {
                push_text(&mut self.block, key);
                push_value(&mut self.block, value.view());
            }
        }
        push_varint(out, self.block.len() as u64);
        out.extend_from_slice(&self.block);
    }
}

fn push_origin(out: &mut Vec<u8>, origin: &Origin) {
    push_text(out, origin.protocol);
    push_option(out, origin.version.as_deref(), push_text);
    push_text(out, &origin.listener);
    push_text(out, &origin.peer);
    push_varint(out, origin.connection);
}

fn push_header(out: &mut Vec<u8>, event: EventView<'_>) {
    let Position { sequence, offset, length } = event.position();
    push_text(out, event.name().text());
    push_option(out, event.time(), push_time);
    push_time(out, event.observed());
    push_option(out, sequence, push_varint);
    push_varint(out, offset);
    push_varint(out, length);
}

fn push_data(out: &mut Vec<u8>, event: EventView<'_>) {
    out.push(event.kind().index() as u8);
    match event.data() {
        DataView::Log { severity_number, context, body, .. } => {
            out.push(severity_number.get());
            push_option(out, context, |out, context| {
                out.extend_from_slice(&context.trace_id.0);
                push_option(out, context.span_id, |out, id| out.extend_from_slice(&id.0));
            });
            push_option(out, body, push_value);
        }
        DataView::Span(span) => {
            out.extend_from_slice(&span.trace_id.0);
            out.extend_from_slice(&span.span_id.0);
            push_option(out, span.parent, |out, id| out.extend_from_slice(&id.0));
            push_option(out, span.end, push_time);
            push_option(out, span.duration_nanos, push_varint);
            out.push(match span.status {
                Status::Unset => 0,
                Status::Ok => 1,
                Status::Error => 2,
            });
            out.push(span.kind.map_or(0, SpanKind::number));
            push_option(out, span.status_message(), |out, text| push_text(out, text.text()));
            push_option(out, span.extras(), push_extras);
            push_varint(out, span.links().len() as u64);
            for link in span.links() {
                out.extend_from_slice(&link.to.trace_id.0);
                out.extend_from_slice(&link.to.span_id.0);
                push_members(out, link.attributes);
                push_option(out, link.trace_state, |out, text| push_text(out, text.text()));
                push_option(out, link.flags, |out, flags| push_varint(out, flags.into()));
            }
            push_varint(out, span.events().len() as u64);
            for event in span.events() {
                push_option(out, event.time, push_time);
                push_text(out, event.name.text());
                push_members(out, event.attributes);
            }
        }
        DataView::Metric(metric) => push_metric(out, metric),
        DataView::Sample(sample) => {
            push_text(out, sample.sample_type());
            push_text(out, sample.unit());
            push_value(out, view(sample.data.value));
            push_option(out, sample.data.period_nanos, push_varint);
            push_option(out, sample.data.clock, |out, clock| push_text(out, clock.as_str()));
            push_varint(out, sample.frames().len() as u64);
            for frame in sample.frames() {
                push_option(out, frame.function, |out, text| push_text(out, text.text()));
                push_option(out, frame.file, |out, text| push_text(out, text.text()));
                push_option(out, frame.line, push_varint);
            }
        }
        DataView::Loss(loss) => {
            push_text(out, loss.reason.as_str());
            push_varint(out, loss.bytes);
            push_option(out, loss.events, push_varint);
            push_text(out, loss.detail.text());
            push_bytes(out, loss.excerpt);
        }
    }
}

fn push_extras(out: &mut Vec<u8>, extras: SpanExtrasView<'_>) {
    let DroppedCounts { attributes, events, links } = extras.dropped;
    push_option(out, extras.trace_state, |out, text| push_text(out, text.text()));
    [extras.flags, attributes, events, links].into_iter().for_each(|number| push_varint(out, number.into()));
}

fn push_metric(out: &mut Vec<u8>, metric: MetricView<'_>) {
    out.push(match metric.metric_type {
        MetricType::Gauge => 0,
        MetricType::Sum { temporality: Temporality::Delta, monotonic } => 2 + u8::from(monotonic),
        MetricType::Sum { temporality: Temporality::Cumulative, monotonic } => 4 + u8::from(monotonic),
        MetricType::Histogram { temporality: Temporality::Delta } => 6,
        MetricType::Histogram { temporality: Temporality::Cumulative } => 7,
        MetricType::ExponentialHistogram { temporality: Temporality::Delta } => 8,
        MetricType::ExponentialHistogram { temporality: Temporality::Cumulative } => 9,
        MetricType::Summary => 10,
    });
    push_text(out, metric.unit());
    match metric.distribution() {
        Some(distribution) => push_distribution(out, &distribution),
        None => push_value(out, view(metric.value)),
    }
    push_option(out, metric.start, push_time);
}

fn push_distribution(out: &mut Vec<u8>, distribution: &Distribution<'_>) {
    let Distribution { count, sum, min, max, form } = *distribution;
    push_varint(out, count);
    [sum, min, max].into_iter().for_each(|number| push_option(out, number, push_double));
    match form {
        DistributionForm::Histogram { bounds, counts, .. } => {
            push_list(out, bounds, push_double);
            push_list(out, counts, push_varint);
        }
        DistributionForm::Exponential { scale, zero_count, zero_threshold, positive, negative, .. } => {
            push_signed(out, scale.into());
            push_varint(out, zero_count);
            push_double(out, zero_threshold);
            for Buckets { offset, counts } in [positive, negative] {
                push_signed(out, offset.into());
                push_list(out, counts, push_varint);
            }
        }
        DistributionForm::Summary(quantiles) => push_list(out, quantiles, |out, (quantile, value)| {
            push_double(out, quantile);
            push_double(out, value);
        }),
    }
}

fn push_list<T: Copy>(out: &mut Vec<u8>, items: &[T], push: fn(&mut Vec<u8>, T)) {
    push_varint(out, items.len() as u64);
    items.iter().for_each(|item| push(out, *item));
}

fn view(number: Number) -> ValueView<'static> {
    match number {
        Number::I64(number) => ValueView::I64(number),
        Number::U64(number) => ValueView::U64(number),
        Number::F64(number) => ValueView::F64(number),
    }
}

fn push_value(out: &mut Vec<u8>, value: ValueView<'_>) {
    match value {
        ValueView::Null => out.push(tag::NULL),
        ValueView::Bool(false) => out.push(tag::FALSE),
        ValueView::Bool(true) => out.push(tag::TRUE),
        ValueView::I64(number) => {
            out.push(tag::I64);
            push_signed(out, number);
        }
        ValueView::U64(number) => {
            out.push(tag::U64);
            push_varint(out, number);
        }
        ValueView::F64(number) => {
            out.push(tag::F64);
            push_double(out, number);
        }
        ValueView::Text(text) => {
            out.push(tag::TEXT);
            push_text(out, text.text());
        }
        ValueView::Bytes(bytes) => {
            out.push(tag::BYTES);
            push_bytes(out, bytes);
        }
        ValueView::Array(values) => {
            out.push(tag::ARRAY);
            push_varint(out, values.count() as u64);
            values.for_each(|value| push_value(out, value));
        }
        ValueView::Map(members) => {
            out.push(tag::MAP);
            push_members(out, members);
        }
    }
}

fn push_members(out: &mut Vec<u8>, members: Members<'_>) {
    push_varint(out, members.len() as u64);
    for member in members {
        push_text(out, member.key().text().text());
        push_value(out, member.value());
    }
}

fn push_option<T>(out: &mut Vec<u8>, value: Option<T>, push: impl FnOnce(&mut Vec<u8>, T)) {
    out.push(u8::from(value.is_some()));
    if let Some(value) = value {
        push(out, value);
    }
}

/// Zigzag: small negative numbers are short, too.
fn push_signed(out: &mut Vec<u8>, number: i64) {
    push_varint(out, unsigned(number));
}

fn push_double(out: &mut Vec<u8>, number: f64) {
    out.extend_from_slice(&number.to_bits().to_le_bytes());
}

fn push_time(out: &mut Vec<u8>, time: UnixNanos) {
    out.extend_from_slice(&time.0.to_le_bytes());
}

fn push_text(out: &mut Vec<u8>, text: &str) {
    push_bytes(out, text.as_bytes());
}

fn push_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    push_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Replaces line feeds and escapes from `start` on.
fn escape(out: &mut Vec<u8>, start: usize) {
    let find = |bytes: &[u8]| memchr::memchr2(b'\n', ESCAPE, bytes);
    let Some(first) = find(&out[start..]) else { return };
    let special = out.split_off(start + first);
    let mut rest = &special[..];
    while let Some(at) = find(rest) {
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(&[ESCAPE, if rest[at] == b'\n' { 1 } else { 2 }]);
        rest = &rest[at + 1..];
    }
    out.extend_from_slice(rest);
}
