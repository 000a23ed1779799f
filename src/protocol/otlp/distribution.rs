//! Points that stand for many values: of `Histogram`, `ExponentialHistogram` and `Summary` of `metrics.proto`.

use tributary_codec::protobuf::{ProtobufFields, ProtobufValue, Varints, zigzag};
use tributary_event::{Buckets, Distribution, DistributionForm, Temporality};

use super::value::{WireAttribute, fixed64};

/// What such points are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum DistributionKind {
    Histogram,
    Exponential,
    Summary,
}

/// A point on the wire. What another kind has is empty or 0.
#[derive(Debug, Default)]
pub(super) struct WireDistribution<'a> {
    pub(super) start: u64,
    pub(super) time: u64,
    pub(super) flags: u64,
    pub(super) attributes: Vec<WireAttribute<'a>>,
    count: u64,
    sum: Option<f64>,
    min: Option<f64>,
    max: Option<f64>,
    bounds: Vec<f64>,
    counts: Vec<u64>,
    scale: i32,
    zero_count: u64,
    zero_threshold: f64,
    positive: WireBuckets,
    negative: WireBuckets,
    quantiles: Vec<(f64, f64)>,
}

#[derive(Debug, Default)]
struct WireBuckets {
    offset: i32,
    counts: Vec<u64>,
}

impl<'a> WireDistribution<'a> {
    /// Reads a point. All kinds have the same numbers for their times, their count and their sum.
    pub(super) fn read(kind: DistributionKind, message: &'a [u8]) -> WireDistribution<'a> {
        use DistributionKind::{Exponential, Histogram, Summary};
        let mut point = WireDistribution::default();
        for field in ProtobufFields::of(message) {
            match (kind, field.number, field.value) {
                (_, 2, ProtobufValue::Fixed(time)) => point.start = fixed64(time),
                (_, 3, ProtobufValue::Fixed(time)) => point.time = fixed64(time),
                (_, 4, ProtobufValue::Fixed(count)) => point.count = fixed64(count),
                (_, 5, ProtobufValue::Fixed(sum)) => point.sum = Some(double(sum)),
                (Histogram, 6, value) => push_fixed(&mut point.counts, value, |bits| bits),
                (Histogram, 7, value) => push_fixed(&mut point.bounds, value, f64::from_bits),
                (Histogram, 10, ProtobufValue::Varint(flags)) => point.flags = flags,
                (Histogram, 11, ProtobufValue::Fixed(min)) => point.min = Some(double(min)),
                (Histogram, 12, ProtobufValue::Fixed(max)) => point.max = Some(double(max)),
                (Exponential, 6, ProtobufValue::Varint(scale)) => point.scale = zigzag(scale) as i32,
                (Exponential, 7, ProtobufValue::Fixed(count)) => point.zero_count = fixed64(count),
                (Exponential, 8, ProtobufValue::Bytes(buckets)) => point.positive = WireBuckets::read(buckets),
                (Exponential, 9, ProtobufValue::Bytes(buckets)) => point.negative = WireBuckets::read(buckets),
                (Exponential, 10, ProtobufValue::Varint(flags)) => point.flags = flags,
                (Exponential, 12, ProtobufValue::Fixed(min)) => point.min = Some(double(min)),
                (Exponential, 13, ProtobufValue::Fixed(max)) => point.max = Some(double(max)),
                (Exponential, 14, ProtobufValue::Fixed(threshold)) => point.zero_threshold = double(threshold),
                (Summary, 6, ProtobufValue::Bytes(quantile)) => point.quantiles.push(read_quantile(quantile)),
                (Summary, 8, ProtobufValue::Varint(flags)) => point.flags = flags,
                (Histogram, 9, ProtobufValue::Bytes(attribute))
                | (Exponential, 1, ProtobufValue::Bytes(attribute))
                | (Summary, 7, ProtobufValue::Bytes(attribute)) => {
                    point.attributes.push(WireAttribute::of(attribute));
                }
                _ => {}
            }
        }
        point
    }

    /// What the point says.
    pub(super) fn distribution(&self, kind: DistributionKind, temporality: Temporality) -> Distribution<'_> {
        let form = match kind {
            DistributionKind::Histogram => {
                DistributionForm::Histogram { temporality, bounds: &self.bounds, counts: &self.counts }
            }
            DistributionKind::Exponential => DistributionForm::Exponential {
                temporality,
                scale: self.scale,
                zero_count: self.zero_count,
                zero_threshold: self.zero_threshold,
                positive: Buckets { offset: self.positive.offset, counts: &self.positive.counts },
                negative: Buckets { offset: self.negative.offset, counts: &self.negative.counts },
            },
            DistributionKind::Summary => DistributionForm::Summary(&self.quantiles),
        };
        Distribution { count: self.count, sum: self.sum, min: self.min, max: self.max, form }
    }
}

impl WireBuckets {
    fn read(message: &[u8]) -> WireBuckets {
        let mut buckets = WireBuckets::default();
        for field in ProtobufFields::of(message) {
            match (field.number, field.value) {
                (1, ProtobufValue::Varint(offset)) => buckets.offset = zigzag(offset) as i32,
                (2, ProtobufValue::Varint(count)) => buckets.counts.push(count),
                (2, ProtobufValue::Bytes(packed)) => buckets.counts.extend(Varints::of(packed)),
                _ => {}
            }
        }
        buckets
    }
}

fn read_quantile(message: &[u8]) -> (f64, f64) {
    let (mut quantile, mut value) = (0.0, 0.0);
    for field in ProtobufFields::of(message) {
        match (field.number, field.value) {
            (1, ProtobufValue::Fixed(bytes)) => quantile = double(bytes),
            (2, ProtobufValue::Fixed(bytes)) => value = double(bytes),
            _ => {}
        }
    }
    (quantile, value)
}

/// Adds the elements of 8 bytes of a list, packed or one of them.
fn push_fixed<T>(list: &mut Vec<T>, value: ProtobufValue<'_>, of: fn(u64) -> T) {
    if let ProtobufValue::Fixed(bytes) | ProtobufValue::Bytes(bytes) = value {
        list.extend(bytes.as_chunks().0.iter().map(|element| of(u64::from_le_bytes(*element))));
    }
}

fn double(bytes: &[u8]) -> f64 {
    f64::from_bits(fixed64(bytes))
}
