//! The distribution of a metric of a line.

use super::super::{StoredBuckets, StoredDistribution};
use super::line::{Buckets, Double, Metric};
use tributary_event::{Label, MetricType, UnixNanos};

/// `None`: it has no count.
pub(super) fn read(
    metric: &Metric<'_>,
    metric_type: MetricType,
    unit: Label,
    start: Option<UnixNanos>,
) -> Option<StoredDistribution> {
    let double = |number: Option<Double>| number.map(|Double(number)| number);
    let buckets = |of: &Buckets| StoredBuckets { offset: of.offset, counts: of.counts.clone() };
    Some(StoredDistribution {
        start,
        count: metric.count?,
        sum: double(metric.sum),
        min: double(metric.min),
        max: double(metric.max),
        bounds: metric.bounds.iter().map(|Double(bound)| *bound).collect(),
        counts: metric.counts.clone(),
        scale: metric.scale,
        zero_count: metric.zero_count,
        zero_threshold: double(metric.zero_threshold).unwrap_or(0.0),
        positive: buckets(&metric.positive),
        negative: buckets(&metric.negative),
        quantiles: metric.quantiles.iter().map(|(Double(quantile), Double(value))| (*quantile, *value)).collect(),
        ..StoredDistribution::new(metric_type, unit)
    })
}
