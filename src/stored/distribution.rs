//! Distributions that were stored.

use tributary_event::{Buckets, Distribution, DistributionForm, Label, MetricType, Temporality, UnixNanos};

/// The data of a metric that is a distribution, by the names that it has in JSON lines. What another type has is not used.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct StoredDistribution {
    /// Histogram, exponential histogram or summary.
    pub metric_type: MetricType,
    pub unit: Label,
    pub start: Option<UnixNanos>,
    pub count: u64,
    pub sum: Option<f64>,
    pub min: Option<f64>,
    pub max: Option<f64>,
    pub bounds: Vec<f64>,
    pub counts: Vec<u64>,
    pub scale: i32,
    pub zero_count: u64,
    pub zero_threshold: f64,
    pub positive: StoredBuckets,
    pub negative: StoredBuckets,
    pub quantiles: Vec<(f64, f64)>,
}

/// The buckets of values of one sign.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct StoredBuckets {
    pub offset: i32,
    pub counts: Vec<u64>,
}

impl StoredDistribution {
    /// One of no values.
    pub fn new(metric_type: MetricType, unit: Label) -> Self {
        StoredDistribution {
            metric_type,
            unit,
            start: None,
            count: 0,
            sum: None,
            min: None,
            max: None,
            bounds: Vec::new(),
            counts: Vec::new(),
            scale: 0,
            zero_count: 0,
            zero_threshold: 0.0,
            positive: StoredBuckets::default(),
            negative: StoredBuckets::default(),
            quantiles: Vec::new(),
        }
    }

    /// The distribution.
    pub fn view(&self) -> Distribution<'_> {
        let StoredDistribution { count, sum, min, max, scale, zero_count, zero_threshold, .. } = *self;
        let form = match self.metric_type {
            MetricType::ExponentialHistogram { temporality } => DistributionForm::Exponential {
                temporality,
                scale,
                zero_count,
                zero_threshold,
                positive: self.positive.view(),
                negative: self.negative.view(),
            },
            MetricType::Summary => DistributionForm::Summary(&self.quantiles),
            of => DistributionForm::Histogram {
                temporality: of.temporality().unwrap_or(Temporality::Cumulative),
                bounds: &self.bounds,
                counts: &self.counts,
            },
        };
        Distribution { count, sum, min, max, form }
    }
}

impl StoredBuckets {
    fn view(&self) -> Buckets<'_> {
        Buckets { offset: self.offset, counts: &self.counts }
    }
}

/// The type of a metric, by what JSON lines and tables have of it; `None`: there is no such type.
pub fn metric_type(name: &str, temporality: Option<&str>, monotonic: Option<bool>) -> Option<MetricType> {
    let temporality = match temporality {
        Some(name) => Some(Temporality::of(name)?),
        None => None,
    };
    Some(match (name, temporality) {
        ("gauge", None) => MetricType::Gauge,
        ("sum", Some(temporality)) => MetricType::Sum { temporality, monotonic: monotonic? },
        ("histogram", Some(temporality)) => MetricType::Histogram { temporality },
        ("exponential_histogram", Some(temporality)) => MetricType::ExponentialHistogram { temporality },
        ("summary", None) => MetricType::Summary,
        _ => return None,
    })
}
