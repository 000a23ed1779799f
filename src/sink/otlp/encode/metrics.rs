//! Metrics: `Metric` of `opentelemetry/proto/metrics/v1/metrics.proto`.

use foldhash::quality::RandomState;
use hashbrown::{Equivalent, HashMap};

use super::logs::is_nameless;
use tributary_codec::protobuf::{len_tag, push_bytes_field, push_varint, push_varint_field, varint_len};
use tributary_event::{EventView, MetricType, MetricView, Temporality, semconv};

// Fields of Metric.
const NAME: u8 = 1;
const UNIT: u8 = 3;
const GAUGE: u8 = 5;
const SUM: u8 = 7;
const HISTOGRAM: u8 = 9;
const EXPONENTIAL_HISTOGRAM: u8 = 10;
const SUMMARY: u8 = 11;
// Fields of the data of a metric, whose first one has the points.
const TEMPORALITY: u8 = 2;
const MONOTONIC: u8 = 3;

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
    metric_type: MetricType,
}

/// The same, with its name.
#[derive(PartialEq, Eq, Hash, Debug)]
struct MetricKey {
    name: Box<str>,
    unit: Box<str>,
    metric_type: MetricType,
}

impl Equivalent<MetricKey> for KeyRef<'_> {
    fn equivalent(&self, key: &MetricKey) -> bool {
        (self.name, self.unit, self.metric_type) == (&*key.name, &*key.unit, key.metric_type)
    }
}

#[derive(Debug)]
struct Metric {
    /// Its name and unit.
    head: Vec<u8>,
    metric_type: MetricType,
    points: Vec<u8>,
}

/// What a metric adds to its points at most: tags, lengths, and what a sum has more than a gauge.
const METRIC_OVERHEAD: usize = 16;

impl Metrics {
    /// The index of the metric of an event, and by how much it makes a request longer, when it is new.
    pub(super) fn find(&mut self, event: EventView<'_>, data: MetricView<'_>) -> (usize, usize) {
        let metric_type = data.metric_type;
        let name = if is_nameless(event, semconv::OTLP_METRIC) { "" } else { event.name().text() };
        let key = KeyRef { name, unit: data.unit(), metric_type };
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
        self.metrics.push(Metric { head, metric_type, points: Vec::new() });
        self.known.insert(MetricKey { name: key.name.into(), unit: key.unit.into(), metric_type }, index);
        (index, added)
    }

    /// The encoded points of a metric.
    pub(super) fn points_of(&mut self, index: usize) -> &mut Vec<u8> {
        &mut self.metrics[index].points
    }

    /// Appends the metrics as fields of a message.
    pub(super) fn write(&self, out: &mut Vec<u8>, field: u8) {
        for metric in self.metrics.iter().filter(|metric| !metric.points.is_empty()) {
            push_metric(out, field, &metric.head, metric.metric_type, &metric.points);
        }
    }
}

/// Appends a metric; its name, unit and points are encoded already.
fn push_metric(out: &mut Vec<u8>, field: u8, head: &[u8], of: MetricType, points: &[u8]) {
    let mut tail = Vec::new();
    match of.temporality() {
        None => {}
        Some(Temporality::Delta) => push_varint_field(&mut tail, TEMPORALITY, 1),
        Some(Temporality::Cumulative) => push_varint_field(&mut tail, TEMPORALITY, 2),
    }
    if let MetricType::Sum { monotonic: true, .. } = of {
        push_varint_field(&mut tail, MONOTONIC, 1);
    }
    let data = points.len() + tail.len();
    out.push(len_tag(field));
    push_varint(out, (head.len() + 1 + varint_len(data as u64) + data) as u64);
    out.extend_from_slice(head);
    out.push(len_tag(match of {
        MetricType::Gauge => GAUGE,
        MetricType::Sum { .. } => SUM,
        MetricType::Histogram { .. } => HISTOGRAM,
        MetricType::ExponentialHistogram { .. } => EXPONENTIAL_HISTOGRAM,
        MetricType::Summary => SUMMARY,
    }));
    push_varint(out, data as u64);
    out.extend_from_slice(points);
    out.extend_from_slice(&tail);
}
