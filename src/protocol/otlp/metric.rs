//! Metrics: `Metric` and its data points of `metrics.proto`.

use tributary_codec::protobuf::{ProtobufFields, ProtobufValue};
use tributary_event::{EventBuilder, Interned, Key, Label, MetricData, MetricType, Number, Temporality, semconv};
use tributary_protocol::Output;

use super::distribution::{DistributionKind, WireDistribution};
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
    Distribution(DistributionKind, Temporality),
}

impl OpenMetric {
    /// The metric at this place.
    pub(super) fn open(body: &[u8], place: MessagePlace) -> OpenMetric {
        let mut metric = OpenMetric {
            name: 0..0,
            unit: 0..0,
            of: PointType::Number(MetricType::Gauge),
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
                _ => {
                    let Some(of) = PointType::read(field.number, bytes) else { continue };
                    (metric.of, metric.points) = (of, at);
                }
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
        let message = &body[point];
        match self.of {
            PointType::Number(metric_type) => {
                let point = WirePoint::read(message);
                let Some(value) = point.value.filter(|_| point.flags & NO_RECORDED_VALUE == 0) else {
                    out.warn("point_without_value");
                    return;
                };
                let (unit, event) = self.event(body, point.time, &point.attributes, context, out);
                event.metric(MetricData { metric_type, unit, value, start: time(point.start) });
            }
            PointType::Distribution(kind, temporality) => {
                let point = WireDistribution::read(kind, message);
                if point.flags & NO_RECORDED_VALUE != 0 {
                    out.warn("point_without_value");
                    return;
                }
                let (unit, event) = self.event(body, point.time, &point.attributes, context, out);
                event.distribution(unit, time(point.start), &point.distribution(kind, temporality));
            }
        }
    }

    /// Begins the event of a point; returns the unit too.
    fn event<'b>(
        &mut self,
        body: &[u8],
        nanos: u64,
        attributes: &[WireAttribute<'_>],
        context: &mut RecordContext<'_>,
        out: &'b mut Output,
    ) -> (Label, EventBuilder<'b>) {
        let mut writer = context.values_of(attributes, &mut out.batch);
        let name: Key = match &body[self.name.clone()] {
            [] => semconv::OTLP_METRIC.into(),
            name => writer.interned(&mut self.name_memo, name).into(),
        };
        let unit = match &body[self.unit.clone()] {
            [] => Label::Constant(""),
            unit => writer.interned(&mut self.unit_memo, unit).into(),
        };
        let attributes = writer.pairs(attributes, true);
        let own = record_attributes(attributes, writer.marks, writer.dropped);
        (unit, context.event(name, time(nanos), None, &own, out))
    }
}

impl PointType {
    /// Of a field of a metric. `None`: it has no points.
    fn read(field: u64, data: &[u8]) -> Option<PointType> {
        Some(match field {
            5 => PointType::Number(MetricType::Gauge),
            7 => {
                let (temporality, monotonic) = aggregation(data);
                PointType::Number(MetricType::Sum { temporality, monotonic })
            }
            9 => PointType::Distribution(DistributionKind::Histogram, aggregation(data).0),
            10 => PointType::Distribution(DistributionKind::Exponential, aggregation(data).0),
            11 => PointType::Distribution(DistributionKind::Summary, Temporality::Cumulative),
            _ => return None,
        })
    }
}

/// The temporality of a sum or a histogram, and whether a sum is monotonic. Without temporality it is cumulative, as its senders
/// mean it.
fn aggregation(data: &[u8]) -> (Temporality, bool) {
    let (mut temporality, mut monotonic) = (Temporality::Cumulative, false);
    for field in ProtobufFields::of(data) {
        match (field.number, field.value) {
            (2, ProtobufValue::Varint(1)) => temporality = Temporality::Delta,
            (2, ProtobufValue::Varint(_)) => temporality = Temporality::Cumulative,
            (3, ProtobufValue::Varint(value)) => monotonic = value != 0,
            _ => {}
        }
    }
    (temporality, monotonic)
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
