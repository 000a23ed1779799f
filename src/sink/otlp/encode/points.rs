//! Points of metrics: `NumberDataPoint`, `HistogramDataPoint`, `ExponentialHistogramDataPoint` and `SummaryDataPoint` of
//! `opentelemetry/proto/metrics/v1/metrics.proto`.

use super::attributes::{AttributeWriter, Caches};
use super::scopes;
use tributary_codec::protobuf::{
    len_tag, push_fixed64_field, push_message, push_varint, push_zigzag_field, varint_len,
};
use tributary_event::{Buckets, Distribution, DistributionForm, EventView, MetricType, MetricView, Number, semconv};

/// Field of `Gauge`, `Sum`, `Histogram`, `ExponentialHistogram` and `Summary`.
const POINTS: u8 = 1;
// Fields of every point.
const START: u8 = 2;
const TIME: u8 = 3;
// Fields of NumberDataPoint.
const AS_DOUBLE: u8 = 4;
const AS_INT: u8 = 6;
const ATTRIBUTES: u8 = 7;
// Fields of the other points.
const COUNT: u8 = 4;
const SUM: u8 = 5;
// Fields of HistogramDataPoint.
const BUCKET_COUNTS: u8 = 6;
const BOUNDS: u8 = 7;
const HISTOGRAM_ATTRIBUTES: u8 = 9;
const HISTOGRAM_MIN: u8 = 11;
const HISTOGRAM_MAX: u8 = 12;
// Fields of ExponentialHistogramDataPoint.
const EXPONENTIAL_ATTRIBUTES: u8 = 1;
const SCALE: u8 = 6;
const ZERO_COUNT: u8 = 7;
const POSITIVE: u8 = 8;
const NEGATIVE: u8 = 9;
const EXPONENTIAL_MIN: u8 = 12;
const EXPONENTIAL_MAX: u8 = 13;
const ZERO_THRESHOLD: u8 = 14;
// Fields of its buckets.
const OFFSET: u8 = 1;
const COUNTS: u8 = 2;
// Fields of SummaryDataPoint; its attributes have the number of those of NumberDataPoint.
const QUANTILES: u8 = 6;
// Fields of its quantiles.
const QUANTILE: u8 = 1;
const VALUE: u8 = 2;

/// Appends a point. A point without a time gets that of its reading, and says so: receivers refuse points of 1970.
pub(super) fn push_point(out: &mut Vec<u8>, event: EventView<'_>, data: MetricView<'_>, caches: &mut Caches) {
    push_message(out, POINTS, 2, |out| {
        if let Some(start) = data.start {
            push_fixed64_field(out, START, start.0);
        }
        push_fixed64_field(out, TIME, event.time().unwrap_or(event.observed()).0);
        match data.distribution() {
            Some(distribution) => push_distribution(out, &distribution),
            None => push_number(out, data.value),
        }
        let field = match data.metric_type {
            MetricType::Gauge | MetricType::Sum { .. } | MetricType::Summary => ATTRIBUTES,
            MetricType::Histogram { .. } => HISTOGRAM_ATTRIBUTES,
            MetricType::ExponentialHistogram { .. } => EXPONENTIAL_ATTRIBUTES,
        };
        let mut attributes = AttributeWriter::new(event, field);
        let (mut has_basis, is_record) = (false, caches.is_record);
        attributes.push_all(out, &mut caches.runs, |key, _| {
            has_basis |= key.is(semconv::TIME_BASIS);
            is_record && scopes::is_of_scope(key)
        });
        if event.time().is_none() && !has_basis {
            attributes.push_text(out, semconv::TIME_BASIS, semconv::TIME_BASIS_RECEIVED);
        }
        attributes.finish(out, caches);
    });
}

fn push_number(out: &mut Vec<u8>, number: Number) {
    match number {
        Number::I64(value) => push_fixed64_field(out, AS_INT, value as u64),
        Number::U64(value) => match i64::try_from(value) {
            Ok(value) => push_fixed64_field(out, AS_INT, value as u64),
            Err(_) => push_double(out, AS_DOUBLE, value as f64),
        },
        Number::F64(value) => push_double(out, AS_DOUBLE, value),
    }
}

fn push_distribution(out: &mut Vec<u8>, distribution: &Distribution<'_>) {
    let Distribution { count, sum, min, max, form } = *distribution;
    push_fixed64_field(out, COUNT, count);
    let mut optional = |field: u8, number: Option<f64>| number.into_iter().for_each(|it| push_double(out, field, it));
    optional(SUM, sum);
    match form {
        DistributionForm::Histogram { bounds, counts, .. } => {
            optional(HISTOGRAM_MIN, min);
            optional(HISTOGRAM_MAX, max);
            push_packed(out, BUCKET_COUNTS, counts.iter().copied());
            push_packed(out, BOUNDS, bounds.iter().map(|bound| bound.to_bits()));
        }
        DistributionForm::Exponential { scale, zero_count, zero_threshold, positive, negative, .. } => {
            optional(EXPONENTIAL_MIN, min);
            optional(EXPONENTIAL_MAX, max);
            push_zigzag_field(out, SCALE, scale);
            push_fixed64_field(out, ZERO_COUNT, zero_count);
            push_double(out, ZERO_THRESHOLD, zero_threshold);
            push_buckets(out, POSITIVE, positive);
            push_buckets(out, NEGATIVE, negative);
        }
        DistributionForm::Summary(quantiles) => {
            for (quantile, value) in quantiles {
                push_message(out, QUANTILES, 1, |out| {
                    push_double(out, QUANTILE, *quantile);
                    push_double(out, VALUE, *value);
                });
            }
        }
    }
}

fn push_buckets(out: &mut Vec<u8>, field: u8, buckets: Buckets<'_>) {
    if buckets.counts.is_empty() {
        return;
    }
    push_message(out, field, 2, |out| {
        push_zigzag_field(out, OFFSET, buckets.offset);
        let len: usize = buckets.counts.iter().map(|count| varint_len(*count)).sum();
        out.push(len_tag(COUNTS));
        push_varint(out, len as u64);
        buckets.counts.iter().for_each(|count| push_varint(out, *count));
    });
}

/// Appends a packed list of numbers of 8 bytes, if it is not empty.
fn push_packed(out: &mut Vec<u8>, field: u8, numbers: impl ExactSizeIterator<Item = u64>) {
    if numbers.len() > 0 {
        out.push(len_tag(field));
        push_varint(out, 8 * numbers.len() as u64);
        numbers.for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
    }
}

fn push_double(out: &mut Vec<u8>, field: u8, value: f64) {
    push_fixed64_field(out, field, value.to_bits());
}
