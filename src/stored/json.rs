//! JSON lines, as the JSON encoder writes them, to events.
//!
//! A compact line names its source, which an earlier line of the file defines: that becomes the origin and the resource of the event.
//! What JSON does not distinguish stays as it is in JSON: bytes become texts in base64, and doubles that are not finite
//! become the texts that stand for them. Written again, a line is the same.

use std::borrow::Cow;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value as Json};

use super::{OriginParts, Rebuilder, StoredData, constant, hex, hex_bytes, reason, severity};
use tributary_event::{
    Frame, Header, Key, Link, MetricData, MetricType, Number, Position, ResourceValue, SampleClock, SampleData,
    SpanData, SpanId, Status, Temporality, TraceContext, TraceId, UnixNanos, Value,
};

#[derive(Deserialize)]
struct StoredLine<'a> {
    #[serde(borrow)]
    time: Option<Cow<'a, str>>,
    #[serde(borrow)]
    observed_time: Option<Cow<'a, str>>,
    #[serde(default)]
    delay_ns: i64,
    /// `None`: the line defines a source.
    #[serde(borrow)]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow)]
    name: Option<Cow<'a, str>>,
    severity: Option<String>,
    trace_id: Option<String>,
    span_id: Option<String>,
    /// `Some(Json::Null)`: the body is null.
    #[serde(default, deserialize_with = "present")]
    body: Option<Json>,
    metric: Option<Metric>,
    span: Option<StoredSpan>,
    sample: Option<StoredSample>,
    loss: Option<Loss>,
    #[serde(default)]
    attributes: Map<String, Json>,
    #[serde(default)]
    resource: Map<String, Json>,
    #[serde(borrow)]
    origin: Option<Origin<'a>>,
    #[serde(borrow)]
    source: Option<Cow<'a, str>>,
    /// Sequence, offset and length, beside a source.
    position: Option<(Option<u64>, u64, u64)>,
}

#[derive(Deserialize)]
struct Metric {
    #[serde(rename = "type")]
    metric_type: String,
    #[serde(default)]
    unit: String,
    value: Json,
    temporality: Option<String>,
    monotonic: Option<bool>,
    start_time: Option<String>,
}

#[derive(Deserialize)]
struct StoredSpan {
    trace_id: String,
    span_id: String,
    parent_span_id: Option<String>,
    end_time: Option<String>,
    duration_ns: Option<u64>,
    status: String,
    #[serde(default)]
    links: Vec<Ids>,
}

#[derive(Deserialize)]
struct Ids {
    trace_id: String,
    span_id: String,
}

#[derive(Deserialize)]
struct StoredSample {
    #[serde(rename = "type")]
    sample_type: String,
    #[serde(default)]
    unit: String,
    value: Json,
    period_ns: Option<u64>,
    clock: Option<String>,
    frames: Vec<StoredFrame>,
}

#[derive(Deserialize)]
struct StoredFrame {
    function: Option<String>,
    file: Option<String>,
    line: Option<u64>,
}

#[derive(Deserialize)]
struct Loss {
    reason: String,
    bytes: u64,
    events: Option<u64>,
    #[serde(default)]
    detail: String,
    #[serde(default)]
    excerpt: String,
}

#[derive(Deserialize)]
struct Origin<'a> {
    #[serde(borrow)]
    protocol: Cow<'a, str>,
    version: Option<String>,
    #[serde(borrow)]
    listener: Cow<'a, str>,
    #[serde(default, borrow)]
    peer: Cow<'a, str>,
    connection: u64,
    sequence: Option<u64>,
    /// Absent in the definition of a source.
    offset: Option<u64>,
    length: Option<u64>,
}

impl Origin<'_> {
    fn parts(&self) -> OriginParts<'_> {
        let Origin { protocol, version, listener, peer, connection, .. } = self;
        OriginParts { protocol, version: version.as_deref(), listener, peer, connection: *connection }
    }
}

fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Json>, D::Error> {
    Json::deserialize(deserializer).map(Some)
}

/// Adds the event of a line to the batch. A line that defines a source adds none.
///
/// # Errors
/// The line is no event, or names a source that no line before it defines; nothing is added.
pub fn read(line: &[u8], out: &mut Rebuilder) -> Result<(), String> {
    match parse(line)? {
        StoredLine { kind: None, source: Some(id), origin: Some(origin), resource: attributes, .. } => {
            out.define_source(&id, origin.parts(), resource(attributes)?);
            Ok(())
        }
        line => add(line, out),
    }
}

/// The same if all events of the batch are of the listener that this one is of. `false`: they are not, and nothing is added.
///
/// # Errors
/// As for [`read`]; and the line defines or names a source.
pub fn read_of_listener(line: &[u8], out: &mut Rebuilder) -> Result<bool, String> {
    let line = parse(line)?;
    let (None, Some(origin)) = (&line.source, &line.origin) else {
        return Err("it has no `origin`, or a `source` as lines of `fields = \"compact\"` have it".to_owned());
    };
    for (key, name) in [("protocol", &origin.protocol), ("listener", &origin.listener)] {
        // They are parts of file names.
        let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
        if !is_plain || !(1..=64).contains(&name.len()) {
            return Err(format!("`origin.{key}` is no name: 1 to 64 characters of A-Z a-z 0-9 _ -"));
        }
    }
    let (builder, Origin { protocol, listener, .. }) = (out.builder(), origin);
    if !builder.is_empty() && (builder.origin().protocol != *protocol || *builder.origin().listener != **listener) {
        return Ok(false);
    }
    add(line, out).map(|()| true)
}

fn parse(line: &[u8]) -> Result<StoredLine<'_>, String> {
    serde_json::from_slice(line).map_err(|error| error.to_string())
}

fn wrong<T>(what: &str) -> Result<T, String> {
    Err(format!("`{what}` is not as events have it"))
}

fn add(line: StoredLine<'_>, out: &mut Rebuilder) -> Result<(), String> {
    let at = match line.time.as_deref().map(time) {
        Some(None) => return wrong("time"),
        at => at.flatten(),
    };
    let observed = match (&line.observed_time, at) {
        (Some(text), _) => time(text),
        (None, Some(at)) if line.source.is_some() => at.0.checked_add_signed(line.delay_ns).map(UnixNanos),
        (None, _) => None,
    };
    let Some(observed) = observed else { return wrong("observed_time") };
    let Some(name) = &line.name else { return wrong("name") };
    let Some(data) = data(&line, out) else { return wrong(line.kind.as_deref().unwrap_or("kind")) };
    let position = match (&line.source, &line.origin, line.position) {
        (Some(id), None, Some((sequence, offset, length))) => {
            if !out.set_source(id) {
                return Err(format!("no line before it defines the source {id}"));
            }
            Position { sequence, offset, length }
        }
        (None, Some(origin), None) => {
            let (Some(offset), Some(length)) = (origin.offset, origin.length) else { return wrong("origin") };
            let resource = resource(line.resource)?;
            out.set_origin(origin.parts());
            out.set_resource(resource);
            Position { sequence: origin.sequence, offset, length }
        }
        _ => return Err("it has neither an `origin` nor a `source` and a `position`".to_owned()),
    };
    let attributes = members(&line.attributes, out);
    let name = out.key(name);
    out.push(Header { name, time: at, observed, position }, &attributes, data);
    Ok(())
}

fn resource(attributes: Map<String, Json>) -> Result<Vec<(String, ResourceValue)>, String> {
    let attributes = attributes.into_iter().map(|(key, value)| Some((key, scalar(value)?)));
    attributes.collect::<Option<_>>().map_or_else(|| wrong("resource"), Ok)
}

/// `None`: it is not as its kind has it.
fn data(line: &StoredLine<'_>, out: &mut Rebuilder) -> Option<StoredData> {
    Some(match line.kind.as_deref()? {
        "log" => {
            let trace_id = line.trace_id.as_deref().map(hex);
            let span_id = line.span_id.as_deref().map(hex).map(|id| id.map(SpanId));
            let context = match trace_id {
                Some(id) => Some(TraceContext { trace_id: TraceId(id?), span_id: flat(span_id)? }),
                None => None,
            };
            let body = line.body.as_ref().map(|body| value(body, out));
            StoredData::Log { severity: severity(line.severity.as_deref()?)?, context, body }
        }
        "span" => {
            let span = line.span.as_ref()?;
            let link =
                |ids: &Ids| Some(Link { trace_id: TraceId(hex(&ids.trace_id)?), span_id: SpanId(hex(&ids.span_id)?) });
            let status = match &*span.status {
                "unset" => Status::Unset,
                "ok" => Status::Ok,
                "error" => Status::Error,
                _ => return None,
            };
            let data = SpanData {
                trace_id: TraceId(hex(&span.trace_id)?),
                span_id: SpanId(hex(&span.span_id)?),
                parent: flat(span.parent_span_id.as_deref().map(|id| hex(id).map(SpanId)))?,
                end: flat(span.end_time.as_deref().map(time))?,
                duration_nanos: span.duration_ns,
                status,
            };
            StoredData::Span { span: data, links: span.links.iter().map(link).collect::<Option<_>>()? }
        }
        "metric" => {
            let metric = line.metric.as_ref()?;
            let metric_type = match (&*metric.metric_type, metric.temporality.as_deref()) {
                ("gauge", None) => MetricType::Gauge,
                ("sum", Some(temporality)) => {
                    let temporality = match temporality {
                        "delta" => Temporality::Delta,
                        "cumulative" => Temporality::Cumulative,
                        _ => return None,
                    };
                    MetricType::Sum { temporality, monotonic: metric.monotonic? }
                }
                _ => return None,
            };
            let start = flat(metric.start_time.as_deref().map(time))?;
            StoredData::Metric(MetricData {
                metric_type,
                unit: constant(&metric.unit),
                value: number(&metric.value)?,
                start,
            })
        }
        "sample" => {
            let sample = line.sample.as_ref()?;
            let clock = match sample.clock.as_deref() {
                None => None,
                Some("cpu") => Some(SampleClock::Cpu),
                Some("wall") => Some(SampleClock::Wall),
                Some(_) => return None,
            };
            let builder = out.builder();
            let frame = |frame: &StoredFrame| Frame {
                function: frame.function.as_deref().map(|text| builder.push_text(text)),
                file: frame.file.as_deref().map(|text| builder.push_text(text)),
                line: frame.line,
            };
            let frames = sample.frames.iter().map(frame).collect();
            let (sample_type, unit) = (constant(&sample.sample_type), constant(&sample.unit));
            let value = number(&sample.value)?;
            StoredData::Sample {
                sample: SampleData { sample_type, unit, value, period_nanos: sample.period_ns, clock },
                frames,
            }
        }
        "loss" => {
            let Loss { reason: name, bytes, events, detail, excerpt } = line.loss.as_ref()?;
            let excerpt = hex_bytes(excerpt)?;
            StoredData::Loss { reason: reason(name)?, bytes: *bytes, events: *events, detail: detail.clone(), excerpt }
        }
        _ => return None,
    })
}

/// `None` only for something that is there and invalid.
fn flat<T>(read: Option<Option<T>>) -> Option<Option<T>> {
    match read {
        Some(None) => None,
        Some(valid) => Some(valid),
        None => Some(None),
    }
}

fn time(text: &str) -> Option<UnixNanos> {
    let time: Timestamp = text.parse().ok()?;
    u64::try_from(time.as_nanosecond()).ok().map(UnixNanos)
}

/// A number, or the text that stands for one that is not finite.
fn number(json: &Json) -> Option<Number> {
    match json {
        Json::Number(number) => Some(match (number.as_u64(), number.as_i64()) {
            (Some(number), _) => Number::U64(number),
            (None, Some(number)) => Number::I64(number),
            (None, None) => Number::F64(number.as_f64()?),
        }),
        Json::String(text) => match text.as_str() {
            "NaN" => Some(Number::F64(f64::NAN)),
            "Infinity" => Some(Number::F64(f64::INFINITY)),
            "-Infinity" => Some(Number::F64(f64::NEG_INFINITY)),
            _ => None,
        },
        _ => None,
    }
}

fn scalar(json: Json) -> Option<ResourceValue> {
    Some(match json {
        Json::Bool(value) => ResourceValue::Bool(value),
        Json::String(text) => ResourceValue::Text(text),
        json => match number(&json)? {
            Number::U64(number) => ResourceValue::U64(number),
            Number::I64(number) => ResourceValue::I64(number),
            Number::F64(number) => ResourceValue::F64(number),
        },
    })
}

fn members(map: &Map<String, Json>, out: &mut Rebuilder) -> Vec<(Key, Value)> {
    map.iter().map(|(key, json)| (out.key(key), value(json, out))).collect()
}

/// A value of the batch.
pub fn value(json: &Json, out: &mut Rebuilder) -> Value {
    match json {
        Json::Null => Value::Null,
        Json::Bool(value) => Value::Bool(*value),
        Json::Number(_) => match number(json) {
            Some(Number::U64(number)) => Value::U64(number),
            Some(Number::I64(number)) => Value::I64(number),
            Some(Number::F64(number)) => Value::F64(number),
            None => Value::Null,
        },
        Json::String(text) => Value::Text(out.builder().push_text(text)),
        Json::Array(items) => {
            let items: Vec<_> = items.iter().map(|item| value(item, out)).collect();
            out.builder().array(&items)
        }
        Json::Object(map) => {
            let members = members(map, out);
            out.builder().map(&members)
        }
    }
}
