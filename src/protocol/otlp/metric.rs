//! Metrics: `Metric` and its data points of `metrics.proto`.

use tributary_codec::protobuf::{ProtobufFields, ProtobufValue};
use tributary_event::{Interned, Key, Label, MetricData, MetricType, Number, Temporality, semconv};
use tributary_protocol::Output;

use super::record::{RecordContext, record_attributes};
use super::record_places::MessagePlace;
use super::span::time;
use super::value::{WireAttribute, fixed64};

/// The flag of a point that says that there is no value.
const NO_RECORDED_VALUE: u64 = 1;

/// A metric whose points are being written.
#[derive(Debug)]
pub(super) struct OpenMetric {
    name: MessagePlace,
    unit: MessagePlace,
    of: PointType,
    /// The rest of its points.
    pub(super) points: MessagePlace,
    name_memo: Interned,
    unit_memo: Interned,
}

/// What the points of a metric are.
#[derive(Clone, Copy, Debug)]
enum PointType {
    Number(MetricType),
    /// Its kind is not known here: its points are counted.
    Unknown,
}

impl OpenMetric {
    /// The metric at this place.
    pub(super) fn open(body: &[u8], place: MessagePlace) -> OpenMetric {
        let mut metric = OpenMetric {
            name: 0..0,
            unit: 0..0,
            of: PointType::Unknown,
            points: 0..0,
            name_memo: Interned::default(),
            unit_memo: Interned::default(),
        };
        let mut fields = ProtobufFields::of(&body[place.clone()]);
        while let Some(field) = fields.next() {
            let end = place.end - fields.rest().len();
            let ProtobufValue::Bytes(bytes) = field.value else { continue };
            let at = end - bytes.len()..end;
            match field.number {
                1 => metric.name = at,
                3 => metric.unit = at,
                5 => (metric.of, metric.points) = (PointType::Number(MetricType::Gauge), at),
                7 => (metric.of, metric.points) = (PointType::Number(sum_type(bytes)), at),
                9..=11 => (metric.of, metric.points) = (PointType::Unknown, at),
                _ => {}
            }
        }
        metric
    }

    /// Writes a point.
    pub(super) fn write(
        &mut self,
        body: &[u8],
        point: MessagePlace,
        context: &mut RecordContext<'_>,
        out: &mut Output,
    ) {
        let PointType::Number(metric_type) = self.of else {
            out.warn("metric_type_unknown");
            return;
        };
        let point = WirePoint::read(&body[point]);
        let Some(value) = point.value.filter(|_| point.flags & NO_RECORDED_VALUE == 0) else {
            out.warn("point_without_value");
            return;
        };
        let mut writer = context.values(&mut out.batch);
        let name: Key = match &body[self.name.clone()] {
            [] => semconv::OTLP_METRIC.into(),
            name => writer.interned(&mut self.name_memo, name).into(),
        };
        let unit = match &body[self.unit.clone()] {
            [] => Label::Constant(""),
            unit => writer.interned(&mut self.unit_memo, unit).into(),
        };
        let attributes = writer.pairs(&point.attributes, true);
        let own = record_attributes(attributes, writer.marks, writer.dropped);
        let event = context.event(name, time(point.time), None, &own, out);
        event.metric(MetricData { metric_type, unit, value, start: time(point.start) });
    }
}

/// The type of a message `Sum`. One without temporality is cumulative, as its senders mean it.
fn sum_type(sum: &[u8]) -> MetricType {
    let (mut temporality, mut monotonic) = (Temporality::Cumulative, false);
    for field in ProtobufFields::of(sum) {
        match (field.number, field.value) {
            (2, ProtobufValue::Varint(1)) => temporality = Temporality::Delta,
            (2, ProtobufValue::Varint(_)) => temporality = Temporality::Cumulative,
            (3, ProtobufValue::Varint(value)) => monotonic = value != 0,
            _ => {}
        }
    }
    MetricType::Sum { temporality, monotonic }
}

/// A point with one number on the wire.
#[derive(Debug, Default)]
struct WirePoint<'a> {
    start: u64,
    time: u64,
    value: Option<Number>,
    flags: u64,
    attributes: Vec<WireAttribute<'a>>,
}

impl<'a> WirePoint<'a> {
    fn read(message: &'a [u8]) -> WirePoint<'a> {
        let mut point = WirePoint::default();
        for field in ProtobufFields::of(message) {
            match (field.number, field.value) {
                (2, ProtobufValue::Fixed(time)) => point.start = fixed64(time),
                (3, ProtobufValue::Fixed(time)) => point.time = fixed64(time),
                (4, ProtobufValue::Fixed(value)) => point.value = Some(Number::F64(f64::from_bits(fixed64(value)))),
                (6, ProtobufValue::Fixed(value)) => point.value = Some(Number::I64(fixed64(value) as i64)),
                (7, ProtobufValue::Bytes(attribute)) => point.attributes.push(WireAttribute::of(attribute)),
                (8, ProtobufValue::Varint(flags)) => point.flags = flags,
                _ => {}
            }
        }
        point
    }
}
