//! Metrics of the sums: requests, errors and durations of each operation since the last export, as the spanmetrics connector of the
//! OpenTelemetry Collector names them.

use std::sync::Arc;

use super::latency::{Latencies, middle_of};
use super::{Operation, Service};
use tributary_event::{
    Batch, BatchBuilder, Buckets, Distribution, DistributionForm, EventBuilder, Header, MetricData, MetricType, Name,
    Number, Origin, Position, Resource, ResourceValue, SpanKind, Temporality, UnixNanos, semconv,
};

/// The most buckets of an exported histogram: those of OpenTelemetry's SDKs.
const MAX_BUCKETS: i64 = 160;
/// A bucket ends at most 2.2 % above its beginning. Wider ones are taken where durations differ much.
const FINEST_SCALE: i32 = 5;
const NANOS_PER_MILLI: f64 = 1e6;

/// The spans of an operation that are not exported: those that have not failed, and those that have.
#[derive(Clone, Debug, Default)]
pub struct Unexported([Measured; 2]);

#[derive(Clone, Debug, Default)]
struct Measured {
    count: u64,
    nanos: u128,
    least: Option<u64>,
    greatest: u64,
    latencies: Latencies,
}

impl Unexported {
    pub(super) fn add(&mut self, nanos: Option<u64>, is_error: bool) {
        let measured = &mut self.0[usize::from(is_error)];
        measured.count += 1;
        let Some(nanos) = nanos else { return };
        measured.nanos += u128::from(nanos);
        measured.least = Some(measured.least.map_or(nanos, |least| least.min(nanos)));
        measured.greatest = measured.greatest.max(nanos);
        measured.latencies.add(nanos);
    }

    pub(super) fn memory_bytes(&self) -> usize {
        size_of::<Unexported>() + self.0.iter().map(|measured| measured.latencies.memory_bytes()).sum::<usize>()
    }
}

/// What is exported of an operation.
#[derive(Debug)]
pub struct ExportedOperation {
    service: Box<str>,
    kind: Option<SpanKind>,
    name: Box<str>,
    detail: Box<str>,
    spans: Unexported,
}

impl ExportedOperation {
    pub(super) fn of(service: &Service, operation: &Operation, spans: Unexported) -> ExportedOperation {
        let Operation { kind, name, detail, .. } = operation;
        ExportedOperation {
            service: service.name.clone(),
            kind: *kind,
            name: name.clone(),
            detail: detail.clone(),
            spans,
        }
    }
}

/// The batch of metrics of operations in the time from `since` to `now`: a delta of the calls, and a histogram of the durations, of the
/// spans that have failed and of those that have not. `None`: there are none.
pub fn batch(operations: &[ExportedOperation], since: UnixNanos, now: UnixNanos) -> Option<Batch> {
    let origin = Origin::new("tributary", "(view)".into(), "".into(), 0);
    let mut batch = BatchBuilder::new(origin.into());
    let mut service: Option<&str> = None;
    for operation in operations {
        if service != Some(&*operation.service) {
            service = Some(&operation.service);
            let name = ResourceValue::Text(operation.service.to_string());
            batch.set_resource(Arc::new(Resource::new([(semconv::SERVICE_NAME.as_str().to_owned(), name)])));
        }
        for (measured, status) in operation.spans.0.iter().zip(["STATUS_CODE_UNSET", "STATUS_CODE_ERROR"]) {
            add(&mut batch, operation, measured, status, (since, now));
        }
    }
    let batch = batch.take();
    (!batch.is_empty()).then_some(batch)
}

fn add(
    batch: &mut BatchBuilder,
    operation: &ExportedOperation,
    measured: &Measured,
    status: &'static str,
    (since, now): (UnixNanos, UnixNanos),
) {
    if measured.count == 0 {
        return;
    }
    let (temporality, start) = (Temporality::Delta, Some(since));
    begin(batch, semconv::SPAN_METRICS_CALLS, operation, status, now).metric(MetricData {
        metric_type: MetricType::Sum { temporality, monotonic: true },
        unit: "{call}".into(),
        value: Number::U64(measured.count),
        start,
    });
    let count = measured.latencies.count();
    if count == 0 {
        return;
    }
    let millis = |nanos: f64| nanos / NANOS_PER_MILLI;
    let (scale, offset, counts, zero_count) = exponential(&measured.latencies);
    begin(batch, semconv::SPAN_METRICS_DURATION, operation, status, now).distribution(
        "ms",
        start,
        &Distribution {
            count,
            sum: Some(millis(measured.nanos as f64)),
            min: measured.least.map(|least| millis(least as f64)),
            max: Some(millis(measured.greatest as f64)),
            form: DistributionForm::Exponential {
                temporality,
                scale,
                zero_count,
                zero_threshold: 0.0,
                positive: Buckets { offset, counts: &counts },
                negative: Buckets::default(),
            },
        },
    );
}

/// A metric with the attributes of an operation.
fn begin<'a>(
    batch: &'a mut BatchBuilder,
    name: Name,
    operation: &ExportedOperation,
    status: &'static str,
    now: UnixNanos,
) -> EventBuilder<'a> {
    let mut event = batch.event(Header::observed_at(name, now, Position::default()));
    event.text(semconv::SPAN_NAME, &operation.name);
    if !operation.detail.is_empty() {
        event.text(semconv::DATADOG_RESOURCE, &operation.detail);
    }
    event.text(semconv::SPAN_KIND, kind(operation.kind));
    event.text(semconv::STATUS_CODE, status);
    event
}

/// The scale, the offset and the counts of the buckets of an exponential histogram in milliseconds, and the number of zeros.
fn exponential(latencies: &Latencies) -> (i32, i32, Vec<u64>, u64) {
    let buckets = latencies.buckets();
    let zeros = buckets.iter().find(|(bucket, _)| middle_of(*bucket) == 0).map_or(0, |(_, count)| *count);
    let values: Vec<(f64, u64)> = buckets
        .into_iter()
        .filter(|(bucket, _)| middle_of(*bucket) > 0)
        .map(|(bucket, count)| ((middle_of(bucket) as f64 / NANOS_PER_MILLI).log2(), count))
        .collect();
    let (Some((first, _)), Some((last, _))) = (values.first(), values.last()) else { return (0, 0, vec![], zeros) };
    // A bucket has its upper bound and not its lower one.
    let index = |log: f64, scale: i32| (log * f64::from(scale).exp2()).ceil() as i64 - 1;
    let fits = |scale: &i32| index(*last, *scale) - index(*first, *scale) < MAX_BUCKETS;
    let scale = (0..=FINEST_SCALE).rev().find(fits).unwrap_or(0);
    let offset = index(*first, scale);
    let mut counts = vec![0; (index(*last, scale) - offset + 1) as usize];
    for (log, count) in &values {
        counts[(index(*log, scale) - offset) as usize] += count;
    }
    (scale, offset as i32, counts, zeros)
}

fn kind(kind: Option<SpanKind>) -> &'static str {
    match kind {
        None => "SPAN_KIND_UNSPECIFIED",
        Some(SpanKind::Internal) => "SPAN_KIND_INTERNAL",
        Some(SpanKind::Server) => "SPAN_KIND_SERVER",
        Some(SpanKind::Client) => "SPAN_KIND_CLIENT",
        Some(SpanKind::Producer) => "SPAN_KIND_PRODUCER",
        Some(SpanKind::Consumer) => "SPAN_KIND_CONSUMER",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_in_the_buckets_that_have_them() {
        let mut latencies = Latencies::default();
        let nanos = [0, 1, 950_000, 1_000_000, 1_050_000, 40_000_000, 3_600_000_000_000];
        nanos.into_iter().for_each(|nanos| latencies.add(nanos));
        let (scale, offset, counts, zeros) = exponential(&latencies);
        assert_eq!((zeros, counts.iter().sum::<u64>()), (1, 6));
        assert!(counts.len() <= MAX_BUCKETS as usize, "{}", counts.len());
        let base = (-f64::from(scale)).exp2().exp2();
        for nanos in &nanos[1..] {
            let is_near = |(at, count): (usize, &u64)| {
                let lower = base.powf(f64::from(offset) + at as f64);
                let millis = *nanos as f64 / NANOS_PER_MILLI;
                *count > 0 && lower / 1.01 <= millis && millis <= lower * base * 1.01
            };
            assert!(counts.iter().enumerate().any(is_near), "{nanos}");
        }
        let mut alike = Latencies::default();
        (100..200u64).for_each(|millis| alike.add(millis * 1_000_000));
        assert_eq!(exponential(&alike).0, FINEST_SCALE);
    }
}
