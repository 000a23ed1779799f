//! One series: the values of a metric with the same tags since the last flush, and how they are written.

use std::sync::Arc;

use foldhash::quality::RandomState;

use tributary_event::{
    BatchBuilder, Header, Key, Label, MetricData, MetricType, Name, Number, Position, Resource, ResourceValue,
    Temporality, UnixNanos, Value, semconv,
};

use super::line::{LineContext, MetricKind, MetricLine};
use super::values::{Distinct, Distribution};

/// The most tags of a line that are written. A datagram of 64 kB can have thousands.
const MAX_TAGS: usize = 512;

/// A metric and its values.
#[derive(Debug)]
pub(super) struct Series {
    name: Box<str>,
    unit: &'static str,
    pub(super) subject: Subject,
    values: SeriesValues,
}

#[derive(Debug)]
enum SeriesValues {
    Sum(f64),
    Last(f64),
    Distinct(Distinct),
    Distribution(Distribution),
}

/// What a series, an event or a service check is about.
#[derive(Debug)]
pub(super) struct Subject {
    pub(super) resource: Arc<Resource>,
    attributes: Vec<(Box<str>, TagValue)>,
}

#[derive(Debug)]
enum TagValue {
    /// A tag without a value.
    True,
    One(Box<str>),
    Several(Vec<Box<str>>),
}

impl Subject {
    pub(super) fn of(context: &LineContext<'_>) -> Subject {
        let mut resource: Vec<(String, ResourceValue)> = Vec::new();
        let mut attributes: Vec<(Box<str>, TagValue)> = Vec::new();
        let mut set = |name: Name, value: &str| {
            if !value.is_empty() && !resource.iter().any(|(known, _)| known == name.as_str()) {
                resource.push((name.as_str().to_owned(), ResourceValue::Text(value.to_owned())));
            }
        };
        set(semconv::HOST_NAME, context.host);
        for tag in context.tags.split(',').filter(|tag| !tag.is_empty()).take(MAX_TAGS) {
            let (key, value) = tag.split_once(':').map_or((tag, None), |(key, value)| (key, Some(value)));
            match (key, value) {
                ("service", Some(value)) => set(semconv::SERVICE_NAME, value),
                ("env", Some(value)) => set(semconv::DEPLOYMENT_ENVIRONMENT_NAME, value),
                ("version", Some(value)) => set(semconv::SERVICE_VERSION, value),
                ("host", Some(value)) => set(semconv::HOST_NAME, value),
                ("", _) => {}
                // Those that this program writes itself.
                _ if key.starts_with("dogstatsd.") => {
                    add(&mut attributes, &[semconv::DATADOG_META.as_str(), key].concat(), value);
                }
                _ => add(&mut attributes, key, value),
            }
        }
        set(semconv::CONTAINER_ID, context.container);
        for (name, value) in
            [(semconv::DATADOG_EXTERNAL_ENV, context.external), (semconv::DATADOG_CARDINALITY, context.cardinality)]
        {
            if !value.is_empty() {
                attributes.retain(|(key, _)| **key != *name.as_str());
                attributes.push((name.as_str().into(), TagValue::One(value.into())));
            }
        }
        Subject { resource: Arc::new(Resource::new(resource)), attributes }
    }

    /// The attributes in the batch.
    pub(super) fn attributes(&self, batch: &mut BatchBuilder) -> Vec<(Key, Value)> {
        let attribute = |(key, value): &(Box<str>, TagValue)| {
            let key = batch.push_text(key).into();
            let value = match value {
                TagValue::True => true.into(),
                TagValue::One(text) => batch.push_text(text).into(),
                TagValue::Several(texts) => {
                    let items: Vec<Value> = texts.iter().map(|text| batch.push_text(text).into()).collect();
                    batch.array(&items)
                }
            };
            (key, value)
        };
        self.attributes.iter().map(attribute).collect()
    }
}

/// Adds a tag; the values of a repeated key are an array.
fn add(attributes: &mut Vec<(Box<str>, TagValue)>, key: &str, value: Option<&str>) {
    let Some((_, known)) = attributes.iter_mut().find(|(known, _)| **known == *key) else {
        attributes.push((key.into(), value.map_or(TagValue::True, |value| TagValue::One(value.into()))));
        return;
    };
    let Some(value) = value else { return };
    match known {
        TagValue::True => *known = TagValue::One(value.into()),
        TagValue::One(first) if **first == *value => {}
        TagValue::One(first) => *known = TagValue::Several(vec![std::mem::take(first), value.into()]),
        TagValue::Several(all) if all.iter().any(|known| **known == *value) => {}
        TagValue::Several(all) => all.push(value.into()),
    }
}

impl Series {
    /// The series of a line, without its values.
    pub(super) fn of(line: &MetricLine<'_>) -> Series {
        let values = match line.kind {
            MetricKind::Counter => SeriesValues::Sum(0.0),
            MetricKind::Gauge => SeriesValues::Last(0.0),
            MetricKind::Set => SeriesValues::Distinct(Distinct::default()),
            MetricKind::Histogram | MetricKind::Timing | MetricKind::Distribution => {
                SeriesValues::Distribution(Distribution::default())
            }
        };
        let unit = if line.kind == MetricKind::Timing { "ms" } else { "" };
        Series { name: line.name.into(), unit, subject: Subject::of(&line.context), values }
    }

    /// Adds the values of a line.
    pub(super) fn add(&mut self, line: &MetricLine<'_>, hashes: &RandomState) {
        match &mut self.values {
            SeriesValues::Sum(sum) => *sum += line.numbers().flatten().sum::<f64>() / line.rate,
            SeriesValues::Last(last) => *last = line.numbers().flatten().last().unwrap_or(*last),
            SeriesValues::Distinct(values) => values.add(line.values, hashes),
            SeriesValues::Distribution(values) => {
                line.numbers().flatten().for_each(|value| values.add(value, 1.0 / line.rate));
            }
        }
    }

    /// Memory of its values.
    pub(super) fn value_bytes(&self) -> usize {
        match &self.values {
            SeriesValues::Sum(_) | SeriesValues::Last(_) => 0,
            SeriesValues::Distinct(values) => values.memory_bytes(),
            SeriesValues::Distribution(values) => values.memory_bytes(),
        }
    }

    /// Writes its values, which were received from `start` to `time`.
    pub(super) fn write(&mut self, start: Option<UnixNanos>, at: LineTimes, batch: &mut BatchBuilder) {
        batch.set_resource(self.subject.resource.clone());
        let attributes = self.subject.attributes(batch);
        let delta = MetricType::Sum { temporality: Temporality::Delta, monotonic: false };
        let (unit, name) = (self.unit, &*self.name);
        let mut write = |suffix: &str, metric_type, value: f64, estimate: bool| {
            let name = batch.push_parts(&[name, suffix]).into();
            let is_sum = metric_type == delta;
            let unit = Label::Constant(if is_sum { "" } else { unit });
            let LineTimes { time, observed, position } = at;
            let mut event = batch.event(Header { name, time: Some(time), observed, position });
            attributes.iter().for_each(|(key, value)| event.attribute(*key, *value));
            if estimate {
                event.attribute(semconv::DOGSTATSD_ESTIMATE, true);
            }
            let start = start.filter(|_| is_sum);
            event.metric(MetricData { metric_type, unit, value: number(value), start });
        };
        match &mut self.values {
            SeriesValues::Sum(sum) => write("", delta, *sum, false),
            SeriesValues::Last(last) => write("", MetricType::Gauge, *last, false),
            SeriesValues::Distinct(values) => {
                let (count, is_estimate) = values.count();
                write("", MetricType::Gauge, count as f64, is_estimate);
            }
            SeriesValues::Distribution(values) => {
                write(".count", delta, values.count, false);
                let [median, p95, p99] = values.quantiles([0.5, 0.95, 0.99]);
                for (suffix, value) in [
                    (".min", values.min),
                    (".max", values.max),
                    (".avg", values.average()),
                    (".median", median),
                    (".95percentile", p95),
                    (".99percentile", p99),
                ] {
                    write(suffix, MetricType::Gauge, value, false);
                }
            }
        }
    }
}

/// A whole number if it is one that a double has exactly.
fn number(value: f64) -> Number {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if value.fract() == 0.0 && value.abs() < EXACT { Number::I64(value as i64) } else { Number::F64(value) }
}

/// The times of what is written, and where it stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct LineTimes {
    pub(super) time: UnixNanos,
    pub(super) observed: UnixNanos,
    pub(super) position: Position,
}
