//! Points of metrics of every type: of events, of JSON lines, and in requests.

use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::metrics::v1::exponential_histogram_data_point::Buckets;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value as Number;
use opentelemetry_proto::tonic::metrics::v1::summary_data_point::ValueAtQuantile;
use opentelemetry_proto::tonic::metrics::v1::{
    ExponentialHistogram, ExponentialHistogramDataPoint, Gauge, Histogram, HistogramDataPoint, NumberDataPoint, Sum,
    Summary, SummaryDataPoint,
};
use serde_json::Value as Json;
use tributary::event::{Buckets as EventBuckets, Distribution, DistributionForm, Temporality};

/// What every point has.
pub(super) struct Head {
    pub(super) attributes: Vec<KeyValue>,
    pub(super) start_time_unix_nano: u64,
    pub(super) time_unix_nano: u64,
}

/// The members of a distribution by their names in JSON lines.
#[derive(Default)]
struct Members {
    of: String,
    temporality: i32,
    count: u64,
    sum: Option<f64>,
    min: Option<f64>,
    max: Option<f64>,
    bounds: Vec<f64>,
    counts: Vec<u64>,
    scale: i32,
    zero_count: u64,
    zero_threshold: f64,
    positive: Option<Buckets>,
    negative: Option<Buckets>,
    quantiles: Vec<ValueAtQuantile>,
}

/// The data of a metric with the point of a gauge, or of a sum with its temporality, and whether it is monotonic.
pub(super) fn of_number(value: Number, sum: Option<(i32, bool)>, head: Head) -> Data {
    let Head { attributes, start_time_unix_nano, time_unix_nano } = head;
    let value = Some(value);
    let point =
        NumberDataPoint { attributes, start_time_unix_nano, time_unix_nano, value, ..NumberDataPoint::default() };
    let data_points = vec![point];
    match sum {
        None => Data::Gauge(Gauge { data_points }),
        Some((aggregation_temporality, is_monotonic)) => {
            Data::Sum(Sum { data_points, aggregation_temporality, is_monotonic })
        }
    }
}

/// The data of a metric with the point of a distribution.
pub(super) fn of_distribution(distribution: &Distribution<'_>, head: Head) -> Data {
    let Distribution { count, sum, min, max, form } = *distribution;
    let number = |temporality| if temporality == Temporality::Delta { 1 } else { 2 };
    let all = Members { count, sum, min, max, ..Members::default() };
    let buckets = |of: EventBuckets<'_>| {
        let buckets = Buckets { offset: of.offset, bucket_counts: of.counts.to_vec() };
        Some(buckets).filter(|_| !of.counts.is_empty())
    };
    let members = match form {
        DistributionForm::Histogram { temporality, bounds, counts } => Members {
            of: "histogram".to_owned(),
            temporality: number(temporality),
            bounds: bounds.to_vec(),
            counts: counts.to_vec(),
            ..all
        },
        DistributionForm::Exponential { temporality, scale, zero_count, zero_threshold, positive, negative } => {
            Members {
                of: "exponential_histogram".to_owned(),
                temporality: number(temporality),
                scale,
                zero_count,
                zero_threshold,
                positive: buckets(positive),
                negative: buckets(negative),
                ..all
            }
        }
        DistributionForm::Summary(quantiles) => Members {
            of: "summary".to_owned(),
            quantiles: quantiles.iter().map(|(quantile, value)| at(*quantile, *value)).collect(),
            ..all
        },
    };
    members.data(head)
}

/// The same of the member `metric` of a line.
pub(super) fn of_line(metric: &Json, head: Head) -> Data {
    let uint = |key: &str| metric.get(key).map_or(0, |number| number.as_u64().unwrap());
    let list = |of: &Json, key: &str| of.get(key).map_or(Vec::new(), |list| list.as_array().unwrap().clone());
    let counts = |of: &Json| list(of, "counts").iter().map(|count| count.as_u64().unwrap()).collect();
    let int = |of: &Json, key: &str| of.get(key).map_or(0, |number| number.as_i64().unwrap() as i32);
    let buckets =
        |key: &str| metric.get(key).map(|of| Buckets { offset: int(of, "offset"), bucket_counts: counts(of) });
    let members = Members {
        of: metric["type"].as_str().unwrap().to_owned(),
        temporality: if metric["temporality"] == "delta" { 1 } else { 2 },
        count: uint("count"),
        sum: metric.get("sum").map(double),
        min: metric.get("min").map(double),
        max: metric.get("max").map(double),
        bounds: list(metric, "bounds").iter().map(double).collect(),
        counts: counts(metric),
        scale: int(metric, "scale"),
        zero_count: uint("zero_count"),
        zero_threshold: metric.get("zero_threshold").map_or(0.0, double),
        positive: buckets("positive"),
        negative: buckets("negative"),
        quantiles: list(metric, "quantiles").iter().map(|pair| at(double(&pair[0]), double(&pair[1]))).collect(),
    };
    members.data(head)
}

fn at(quantile: f64, value: f64) -> ValueAtQuantile {
    ValueAtQuantile { quantile, value }
}

fn double(json: &Json) -> f64 {
    json.as_f64().unwrap_or_else(|| json.as_str().unwrap().replace("Infinity", "inf").parse().unwrap())
}

impl Members {
    fn data(self, head: Head) -> Data {
        let Head { attributes, start_time_unix_nano, time_unix_nano } = head;
        let Members { count, sum, min, max, temporality: aggregation_temporality, .. } = self;
        match self.of.as_str() {
            "histogram" => Data::Histogram(Histogram {
                data_points: vec![HistogramDataPoint {
                    attributes,
                    start_time_unix_nano,
                    time_unix_nano,
                    count,
                    sum,
                    bucket_counts: self.counts,
                    explicit_bounds: self.bounds,
                    min,
                    max,
                    ..HistogramDataPoint::default()
                }],
                aggregation_temporality,
            }),
            "exponential_histogram" => Data::ExponentialHistogram(ExponentialHistogram {
                data_points: vec![ExponentialHistogramDataPoint {
                    attributes,
                    start_time_unix_nano,
                    time_unix_nano,
                    count,
                    sum,
                    scale: self.scale,
                    zero_count: self.zero_count,
                    positive: self.positive,
                    negative: self.negative,
                    min,
                    max,
                    zero_threshold: self.zero_threshold,
                    ..ExponentialHistogramDataPoint::default()
                }],
                aggregation_temporality,
            }),
            _ => Data::Summary(Summary {
                data_points: vec![SummaryDataPoint {
                    attributes,
                    start_time_unix_nano,
                    time_unix_nano,
                    count,
                    sum: sum.unwrap_or(0.0),
                    quantile_values: self.quantiles,
                    ..SummaryDataPoint::default()
                }],
            }),
        }
    }
}

/// The same data without points.
pub(super) fn without_points(data: &Data) -> Data {
    let mut data = data.clone();
    match &mut data {
        Data::Gauge(data) => data.data_points.clear(),
        Data::Sum(data) => data.data_points.clear(),
        Data::Histogram(data) => data.data_points.clear(),
        Data::ExponentialHistogram(data) => data.data_points.clear(),
        Data::Summary(data) => data.data_points.clear(),
    }
    data
}

/// Adds the points of other data of the same type.
pub(super) fn append(known: &mut Data, new: Data) {
    match (known, new) {
        (Data::Gauge(known), Data::Gauge(new)) => known.data_points.extend(new.data_points),
        (Data::Sum(known), Data::Sum(new)) => known.data_points.extend(new.data_points),
        (Data::Histogram(known), Data::Histogram(new)) => known.data_points.extend(new.data_points),
        (Data::ExponentialHistogram(known), Data::ExponentialHistogram(new)) => {
            known.data_points.extend(new.data_points);
        }
        (Data::Summary(known), Data::Summary(new)) => known.data_points.extend(new.data_points),
        (known, new) => panic!("{known:?} {new:?}"),
    }
}

/// Each point as text.
pub(super) fn texts(data: &Data) -> Vec<String> {
    fn each<T: std::fmt::Debug>(points: &[T]) -> Vec<String> {
        points.iter().map(|point| format!("{point:?}")).collect()
    }
    match data {
        Data::Gauge(data) => each(&data.data_points),
        Data::Sum(data) => each(&data.data_points),
        Data::Histogram(data) => each(&data.data_points),
        Data::ExponentialHistogram(data) => each(&data.data_points),
        Data::Summary(data) => each(&data.data_points),
    }
}

/// Changes each list of attributes, and replaces NaN, which does not equal itself.
pub(super) fn fix(data: &mut Data, fix: &dyn Fn(&mut Vec<KeyValue>)) {
    let comparable = |number: &mut f64| *number = if number.is_nan() { 0.5 } else { *number };
    let each = |numbers: [&mut Option<f64>; 3]| numbers.into_iter().flatten().for_each(comparable);
    match data {
        Data::Gauge(Gauge { data_points }) | Data::Sum(Sum { data_points, .. }) => {
            for point in data_points {
                fix(&mut point.attributes);
                if let Some(Number::AsDouble(value)) = &mut point.value {
                    comparable(value);
                }
            }
        }
        Data::Histogram(data) => {
            for point in &mut data.data_points {
                fix(&mut point.attributes);
                each([&mut point.sum, &mut point.min, &mut point.max]);
                point.explicit_bounds.iter_mut().for_each(comparable);
            }
        }
        Data::ExponentialHistogram(data) => {
            for point in &mut data.data_points {
                fix(&mut point.attributes);
                each([&mut point.sum, &mut point.min, &mut point.max]);
                comparable(&mut point.zero_threshold);
            }
        }
        Data::Summary(data) => {
            for point in &mut data.data_points {
                fix(&mut point.attributes);
                comparable(&mut point.sum);
                point.quantile_values.iter_mut().for_each(|at| {
                    comparable(&mut at.quantile);
                    comparable(&mut at.value);
                });
            }
        }
    }
}
