//! Distributions: metrics that stand for many measured values.

use super::batch::Batch;
use super::metric::{MetricType, Temporality};
use super::value::Span32;

/// Many measured values (OpenTelemetry: the points of `Histogram`, `ExponentialHistogram` and `Summary`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Distribution<'a> {
    /// The number of values.
    pub count: u64,
    /// Their sum, in the unit of the metric; `None` when untold.
    pub sum: Option<f64>,
    /// The least value; `None` when untold. A summary has none.
    pub min: Option<f64>,
    /// The greatest value; `None` when untold. A summary has none.
    pub max: Option<f64>,
    /// How the values are distributed.
    pub form: DistributionForm<'a>,
}

/// How values are distributed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DistributionForm<'a> {
    /// Numbers of values between bounds.
    Histogram {
        /// The time that the numbers cover.
        temporality: Temporality,
        /// The upper bounds of the buckets, inclusive; the last bucket has none.
        bounds: &'a [f64],
        /// The number of values in each bucket.
        counts: &'a [u64],
    },
    /// Numbers of values between powers of a base.
    Exponential {
        /// The time that the numbers cover.
        temporality: Temporality,
        /// The base is 2 to the power of 2 to the power of minus `scale`.
        scale: i32,
        /// The number of values that are at most `zero_threshold` away from 0.
        zero_count: u64,
        /// In the unit of the metric.
        zero_threshold: f64,
        /// The positive values.
        positive: Buckets<'a>,
        /// The negative values.
        negative: Buckets<'a>,
    },
    /// Quantiles, 0 to 1, and the value at each of them.
    Summary(&'a [(f64, f64)]),
}

/// The buckets of an exponential histogram for values of one sign.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Buckets<'a> {
    /// The exponent of the lower bound of the first bucket. 0 without counts.
    pub offset: i32,
    /// The number of values in each bucket.
    pub counts: &'a [u64],
}

/// Estimated output size of a distribution without its lists, of a number in a list of counts, and of one in other lists.
const DISTRIBUTION_BYTES: usize = 160;
const COUNT_BYTES: usize = 8;
const DOUBLE_BYTES: usize = 16;

/// A distribution in a batch. What another form has is empty or 0.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DistributionData {
    count: u64,
    sum: Option<f64>,
    min: Option<f64>,
    max: Option<f64>,
    scale: i32,
    zero_count: u64,
    zero_threshold: f64,
    bounds: Span32,
    /// Those of a histogram, or of the positive values.
    counts: Span32,
    offset: i32,
    negative: Span32,
    negative_offset: i32,
    quantiles: Span32,
}

/// The distributions of a batch, and the numbers in their lists.
#[derive(Debug, Default)]
pub(super) struct Distributions {
    /// Each after the index of its metric, in ascending order of these.
    all: Vec<(u32, DistributionData)>,
    counts: Vec<u64>,
    bounds: Vec<f64>,
    quantiles: Vec<(f64, f64)>,
}

impl Distributions {
    /// Adds the distribution of the metric that is added next; returns its output size.
    pub(super) fn push(&mut self, metric: u32, distribution: &Distribution<'_>) -> usize {
        let Distribution { count, sum, min, max, form } = *distribution;
        let mut data = DistributionData { count, sum, min, max, ..DistributionData::default() };
        match form {
            DistributionForm::Histogram { bounds, counts, .. } => {
                data.bounds = append(&mut self.bounds, bounds);
                data.counts = append(&mut self.counts, counts);
            }
            DistributionForm::Exponential { scale, zero_count, zero_threshold, positive, negative, .. } => {
                let offset = |of: Buckets<'_>| if of.counts.is_empty() { 0 } else { of.offset };
                (data.scale, data.zero_count, data.zero_threshold) = (scale, zero_count, zero_threshold);
                (data.offset, data.counts) = (offset(positive), append(&mut self.counts, positive.counts));
                (data.negative_offset, data.negative) = (offset(negative), append(&mut self.counts, negative.counts));
            }
            DistributionForm::Summary(quantiles) => {
                (data.min, data.max) = (None, None);
                data.quantiles = append(&mut self.quantiles, quantiles);
            }
        }
        self.all.push((metric, data));
        let counts = data.counts.range().len() + data.negative.range().len();
        let doubles = data.bounds.range().len() + 2 * data.quantiles.range().len();
        DISTRIBUTION_BYTES + COUNT_BYTES * counts + DOUBLE_BYTES * doubles
    }

    /// The distribution of a metric; `None`: it has none.
    pub(super) fn of(&self, metric: u32, metric_type: MetricType) -> Option<Distribution<'_>> {
        let place = self.all.binary_search_by_key(&metric, |(of, _)| *of).ok()?;
        let (_, data) = &self.all[place];
        let form = match metric_type {
            MetricType::Gauge | MetricType::Sum { .. } => return None,
            MetricType::Histogram { temporality } => DistributionForm::Histogram {
                temporality,
                bounds: &self.bounds[data.bounds.range()],
                counts: &self.counts[data.counts.range()],
            },
            MetricType::ExponentialHistogram { temporality } => DistributionForm::Exponential {
                temporality,
                scale: data.scale,
                zero_count: data.zero_count,
                zero_threshold: data.zero_threshold,
                positive: Buckets { offset: data.offset, counts: &self.counts[data.counts.range()] },
                negative: Buckets { offset: data.negative_offset, counts: &self.counts[data.negative.range()] },
            },
            MetricType::Summary => DistributionForm::Summary(&self.quantiles[data.quantiles.range()]),
        };
        let DistributionData { count, sum, min, max, .. } = *data;
        Some(Distribution { count, sum, min, max, form })
    }

    /// Distributions and the numbers in their lists.
    pub(super) fn elements(&self) -> usize {
        self.all.len() + self.counts.len() + self.bounds.len() + 2 * self.quantiles.len()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.all.capacity() * size_of::<(u32, DistributionData)>()
            + self.counts.capacity() * size_of::<u64>()
            + self.bounds.capacity() * size_of::<f64>()
            + self.quantiles.capacity() * size_of::<(f64, f64)>()
    }
}

impl DistributionForm<'_> {
    /// The type of the metric.
    pub(super) fn metric_type(&self) -> MetricType {
        match *self {
            DistributionForm::Histogram { temporality, .. } => MetricType::Histogram { temporality },
            DistributionForm::Exponential { temporality, .. } => MetricType::ExponentialHistogram { temporality },
            DistributionForm::Summary(_) => MetricType::Summary,
        }
    }
}

fn append<T: Copy>(all: &mut Vec<T>, more: &[T]) -> Span32 {
    let start = all.len();
    all.extend_from_slice(more);
    Span32::new(start, all.len())
}

impl Batch {
    /// The distribution of the metric with this index.
    pub(super) fn distribution_of(&self, metric: u32) -> Option<Distribution<'_>> {
        self.distributions.of(metric, self.metrics[metric as usize].metric_type)
    }
}
