//! The data of metrics, and numbers and labels as samples have them too.

use super::UnixNanos;
use super::text::Text;

/// A unit or a type: a constant of ours, or a text that the peer sent.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub enum Label {
    Constant(&'static str),
    /// Valid only with its batch.
    Text(Text),
}

impl From<&'static str> for Label {
    #[inline]
    fn from(constant: &'static str) -> Self {
        Label::Constant(constant)
    }
}

impl From<Text> for Label {
    #[inline]
    fn from(text: Text) -> Self {
        Label::Text(text)
    }
}

impl Label {
    /// The most bytes of it in the output, escaped.
    pub(super) fn output_len(self) -> usize {
        match self {
            Label::Constant(text) => text.len(),
            Label::Text(text) => text.output_len(),
        }
    }
}

/// One data point.
#[derive(Clone, Copy, Debug)]
pub struct MetricData {
    /// The meaning of the number.
    pub metric_type: MetricType,
    /// Unit in UCUM notation, e.g. `By`; empty when there is none.
    pub unit: Label,
    /// The number. Of a distribution that of its values: its count.
    pub value: Number,
    /// Start of the time that the number stands for.
    pub start: Option<UnixNanos>,
}

/// The meaning of the number of a metric. The last three have a [`super::Distribution`]; the number is its count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum MetricType {
    Gauge,
    Sum { temporality: Temporality, monotonic: bool },
    Histogram { temporality: Temporality },
    ExponentialHistogram { temporality: Temporality },
    Summary,
}

impl MetricType {
    /// The name in JSON.
    #[inline]
    pub fn as_str(self) -> &'static str {
        match self {
            MetricType::Gauge => "gauge",
            MetricType::Sum { .. } => "sum",
            MetricType::Histogram { .. } => "histogram",
            MetricType::ExponentialHistogram { .. } => "exponential_histogram",
            MetricType::Summary => "summary",
        }
    }

    /// The time that its number covers; `None`: the type has none.
    #[inline]
    pub fn temporality(self) -> Option<Temporality> {
        match self {
            MetricType::Sum { temporality, .. }
            | MetricType::Histogram { temporality }
            | MetricType::ExponentialHistogram { temporality } => Some(temporality),
            MetricType::Gauge | MetricType::Summary => None,
        }
    }
}

/// The time that a sum or a histogram covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Temporality {
    Delta,
    Cumulative,
}

impl Temporality {
    /// The name in JSON.
    #[inline]
    pub fn as_str(self) -> &'static str {
        match self {
            Temporality::Delta => "delta",
            Temporality::Cumulative => "cumulative",
        }
    }

    /// The temporality with this name.
    pub fn of(name: &str) -> Option<Self> {
        [Temporality::Delta, Temporality::Cumulative].into_iter().find(|of| of.as_str() == name)
    }
}

/// A number as the peer sent it.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Number {
    I64(i64),
    U64(u64),
    F64(f64),
}
