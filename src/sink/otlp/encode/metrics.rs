//! Metrics: `Metric` and `NumberDataPoint` of `opentelemetry/proto/metrics/v1/metrics.proto`.

use foldhash::quality::RandomState;
use hashbrown::{Equivalent, HashMap};

use super::attributes::{AttributeWriter, Caches};
use super::logs::is;
use tributary_codec::protobuf::{
    len_tag, push_bytes_field, push_fixed64_field, push_message, push_varint, push_varint_field, varint_len,
};
use tributary_event::{EventView, MetricType, MetricView, Number, Temporality, semconv};

// Fields of Metric.
const NAME: u8 = 1;
const UNIT: u8 = 3;
const GAUGE: u8 = 5;
const SUM: u8 = 7;
// Fields of Gauge and Sum.
const POINTS: u8 = 1;
const TEMPORALITY: u8 = 2;
const MONOTONIC: u8 = 3;
// Fields of NumberDataPoint.
const START: u8 = 2;
const TIME: u8 = 3;
const AS_DOUBLE: u8 = 4;
const AS_INT: u8 = 6;
const ATTRIBUTES: u8 = 7;

/// Metrics of one scope, each with its points.
#[derive(Debug, Default)]
pub(super) struct Metrics {
    metrics: Vec<Metric>,
    known: HashMap<MetricKey, usize, RandomState>,
}

/// What makes two points belong to one metric.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct KeyRef<'a> {
    name: &'a str,
    unit: &'a str,
    /// `None`: a gauge. Otherwise a sum: whether it is cumulative, and whether it is monotonic.
    sum: Option<(bool, bool)>,
}

/// The same, with its name.
#[derive(PartialEq, Eq, Hash, Debug)]
struct MetricKey {
    name: Box<str>,
    unit: Box<str>,
    sum: Option<(bool, bool)>,
}

impl Equivalent<MetricKey> for KeyRef<'_> {
    fn equivalent(&self, key: &MetricKey) -> bool {
        (self.name, self.unit, self.sum) == (&*key.name, &*key.unit, key.sum)
    }
}

#[derive(Debug)]
struct Metric {
    /// Its name and unit.
    head: Vec<u8>,
    sum: Option<(bool, bool)>,
    points: Vec<u8>,
}

/// What a metric adds to its points at most: tags, lengths, and what a sum has more than a gauge.
const METRIC_OVERHEAD: usize = 16;

impl Metrics {
    /// The index of the metric of an event, and by how much it makes a request longer, when it is new.
    pub(super) fn find(&mut self, event: EventView<'_>, data: MetricView<'_>) -> (usize, usize) {
        let sum = match data.metric_type {
            MetricType::Gauge => None,
            MetricType::Sum { temporality, monotonic } => Some((temporality == Temporality::Cumulative, monotonic)),
        };
        let key = KeyRef { name: event.name().text(), unit: data.unit(), sum };
        if let Some(known) = self.known.get(&key) {
            return (*known, 0);
        }
        let mut head = Vec::new();
        push_bytes_field(&mut head, NAME, key.name.as_bytes());
        if !key.unit.is_empty() {
            push_bytes_field(&mut head, UNIT, key.unit.as_bytes());
        }
        let added = head.len() + METRIC_OVERHEAD;
        let index = self.metrics.len();
        self.metrics.push(Metric { head, sum, points: Vec::new() });
        self.known.insert(MetricKey { name: key.name.into(), unit: key.unit.into(), sum }, index);
        (index, added)
    }

    /// The encoded points of a metric.
    pub(super) fn points_of(&mut self, index: usize) -> &mut Vec<u8> {
        &mut self.metrics[index].points
    }

    /// Appends the metrics as fields of a message.
    pub(super) fn write(&self, out: &mut Vec<u8>, field: u8) {
        for metric in self.metrics.iter().filter(|metric| !metric.points.is_empty()) {
            push_metric(out, field, &metric.head, metric.sum, &metric.points);
        }
    }
}

/// Appends a metric; its name, unit and points are encoded already.
fn push_metric(out: &mut Vec<u8>, field: u8, head: &[u8], sum: Option<(bool, bool)>, points: &[u8]) {
    let mut tail = Vec::new();
    if let Some((is_cumulative, is_monotonic)) = sum {
        push_varint_field(&mut tail, TEMPORALITY, 1 + u64::from(is_cumulative));
        if is_monotonic {
            push_varint_field(&mut tail, MONOTONIC, 1);
        }
    }
    let data = points.len() + tail.len();
    out.push(len_tag(field));
    push_varint(out, (head.len() + 1 + varint_len(data as u64) + data) as u64);
    out.extend_from_slice(head);
    out.push(len_tag(if sum.is_some() { SUM } else { GAUGE }));
    push_varint(out, data as u64);
    out.extend_from_slice(points);
    out.extend_from_slice(&tail);
}

/// Appends a point. A point without a time gets that of its reading, and says so: receivers refuse points of 1970.
pub(super) fn push_point(out: &mut Vec<u8>, event: EventView<'_>, data: MetricView<'_>, caches: &mut Caches) {
    push_message(out, POINTS, 2, |out| {
        if let Some(start) = data.start {
            push_fixed64_field(out, START, start.0);
        }
        push_fixed64_field(out, TIME, event.time().unwrap_or(event.observed()).0);
        match data.value {
            Number::I64(value) => push_fixed64_field(out, AS_INT, value as u64),
            Number::U64(value) => match i64::try_from(value) {
                Ok(value) => push_fixed64_field(out, AS_INT, value as u64),
                Err(_) => push_fixed64_field(out, AS_DOUBLE, (value as f64).to_bits()),
            },
            Number::F64(value) => push_fixed64_field(out, AS_DOUBLE, value.to_bits()),
        }
        let mut attributes = AttributeWriter::new(event, ATTRIBUTES);
        let mut has_basis = false;
        attributes.push_all(out, &mut caches.runs, |key, _| {
            has_basis |= is(key, semconv::TIME_BASIS);
            false
        });
        if event.time().is_none() && !has_basis {
            attributes.push_text(out, semconv::TIME_BASIS, semconv::TIME_BASIS_RECEIVED);
        }
        attributes.finish(out, caches);
    });
}
