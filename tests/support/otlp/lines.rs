//! JSON lines, as the sink `file` writes them, mapped to records of OTLP: by `docs/event-model.md`, from the text alone.

use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, ArrayValue, InstrumentationScope, KeyValue, KeyValueList};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs};
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value as PointValue;
use opentelemetry_proto::tonic::metrics::v1::{Metric, ResourceMetrics, ScopeMetrics};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span, Status, span};
use serde_json::{Map, Value};

use super::mapping::Requests;
use super::points::{self, Head};
use super::profiles::{self, Object, Place, Samples};

/// Values with more levels are texts.
const MAX_LEVELS: usize = 16;

/// The records and samples of lines, origin included. Each line has a group of its own.
pub fn expected<'a>(lines: impl Iterator<Item = &'a str>) -> (Requests, Samples) {
    let (mut requests, mut samples) = (Requests::default(), Samples::default());
    for line in lines {
        let line: Value = serde_json::from_str(line).unwrap();
        let line = Line(line.as_object().unwrap());
        let (resource, scope) = (Some(line.resource()), Some(line.scope()));
        match line.text("kind") {
            "log" | "loss" => {
                let scope_logs = vec![ScopeLogs { scope, log_records: vec![line.log()], ..Default::default() }];
                requests.logs.resource_logs.push(ResourceLogs { resource, scope_logs, ..Default::default() });
                if line.text("name") == "rbkit.heap.object" {
                    line.add_object(&mut samples);
                }
            }
            "span" => {
                let scope_spans = vec![ScopeSpans { scope, spans: vec![line.span()], ..Default::default() }];
                requests.traces.resource_spans.push(ResourceSpans { resource, scope_spans, ..Default::default() });
            }
            "metric" => {
                let scope_metrics = vec![ScopeMetrics { scope, metrics: vec![line.metric()], ..Default::default() }];
                let group = ResourceMetrics { resource, scope_metrics, ..Default::default() };
                requests.metrics.resource_metrics.push(group);
            }
            _ => line.add_sample(&mut samples),
        }
    }
    (requests, samples)
}

struct Line<'a>(&'a Map<String, Value>);

impl Line<'_> {
    fn text(&self, key: &str) -> &str {
        self.0[key].as_str().unwrap()
    }

    fn attribute(&self, key: &str) -> Option<&Value> {
        self.0.get("attributes").and_then(|attributes| attributes.get(key))
    }

    /// The time of the event, and that of its reading.
    fn times(&self) -> (Option<u64>, u64) {
        (time(&self.0["time"]), time(&self.0["observed_time"]).unwrap())
    }

    fn resource(&self) -> Resource {
        let none = Map::new();
        let sent = self.0.get("resource").map_or(&none, |resource| resource.as_object().unwrap());
        let protocol = self.0["origin"]["protocol"].as_str().unwrap();
        let named = |key: &str| sent.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
        let mut attributes: Vec<KeyValue> = sent
            .iter()
            .filter(|(key, _)| !key.is_empty() && *key != "service.name")
            .map(|(key, value)| key_value(key, any(value)))
            .collect();
        let unknown = || format!("unknown_service:{}", named("process.executable.name").unwrap_or(protocol));
        let service = named("service.name").map_or_else(unknown, str::to_owned);
        attributes.push(key_value("service.name", string(&service)));
        let language = [("rbkit", "ruby"), ("zico", "java")];
        let distro =
            [("rbkit", "rbkit"), ("zico", "zorka"), ("bytefrog", "bytefrog"), ("endless", "eos-event-recorder")];
        for (key, known) in [("telemetry.sdk.language", &language[..]), ("telemetry.distro.name", &distro[..])] {
            let of = known.iter().find(|(of, _)| *of == protocol && !sent.contains_key(key));
            attributes.extend(of.map(|(_, value)| key_value(key, string(value))));
        }
        Resource { attributes, ..Resource::default() }
    }

    fn scope(&self) -> InstrumentationScope {
        let origin = &self.0["origin"];
        let version = origin.get("version").map(|version| key_value("origin.version", any(version)));
        InstrumentationScope {
            name: format!("tributary.{}", origin["protocol"].as_str().unwrap()),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            attributes: version.into_iter().collect(),
            ..InstrumentationScope::default()
        }
    }

    /// The attributes of the origin that are constant for a connection.
    fn connection(&self) -> Vec<(&'static str, AnyValue)> {
        let origin = &self.0["origin"];
        let peer = origin["peer"].as_str().unwrap();
        let divided = peer.rsplit_once(':').and_then(|(address, port)| Some((address, port.parse().ok()?)));
        let (address, port) = divided.map_or((peer, None), |(address, port)| (address, Some(port)));
        let mut all = vec![("tributary.listener", any(&origin["listener"])), ("network.peer.address", string(address))];
        all.extend(port.map(|port| ("network.peer.port", AnyValue { value: Some(Any::IntValue(port)) })));
        all.push(("tributary.connection", any(&origin["connection"])));
        all
    }

    /// The attributes of the line except those of `taken`, `added`, and those of the origin.
    fn attributes(&self, taken: &[&str], mut added: Vec<(&str, AnyValue)>, is_point: bool) -> Vec<KeyValue> {
        let none = Map::new();
        let own = self.0.get("attributes").map_or(&none, |attributes| attributes.as_object().unwrap());
        let mut all = Vec::new();
        let mut is_nested = self.0.get("body").is_some_and(|body| levels(body) > MAX_LEVELS);
        for (key, value) in own {
            if !key.is_empty() && !value.is_null() && !taken.contains(&key.as_str()) {
                is_nested |= levels(value) > MAX_LEVELS;
                all.push(key_value(key, any(value)));
            }
        }
        added.extend(self.connection().into_iter().take(if is_point { 2 } else { usize::MAX }));
        if !is_point {
            let origin = &self.0["origin"];
            added.extend(origin.get("sequence").map(|sequence| ("tributary.sequence", any(sequence))));
            added.push(("tributary.offset", any(&origin["offset"])));
        }
        if is_nested {
            added.push(("tributary.text.nested", AnyValue { value: Some(Any::BoolValue(true)) }));
        }
        let is_sent = |name: &str| own.keys().any(|key| key == name || key.strip_suffix("_base64") == Some(name));
        all.extend(added.into_iter().filter(|(key, _)| !is_sent(key)).map(|(key, value)| key_value(key, value)));
        all
    }

    fn log(&self) -> LogRecord {
        let (time, observed) = self.times();
        let id = |key: &str| self.0.get(key).map_or("", |id| id.as_str().unwrap());
        let is_field = |key: &&str| !id(key).is_empty() && self.attribute(key).is_some_and(|own| own == id(key));
        let taken: Vec<&str> = ["trace_id", "span_id"].into_iter().filter(is_field).collect();
        let mut added = Vec::new();
        if let Some(loss) = self.0.get("loss") {
            let names = [
                ("reason", "loss.reason"),
                ("bytes", "loss.bytes"),
                ("events", "loss.events"),
                ("detail", "loss.detail"),
                ("excerpt", "loss.excerpt"),
            ];
            added.extend(names.iter().filter_map(|(of, name)| loss.get(of).map(|value| (*name, any(value)))));
        }
        let severity = self.0.get("severity").map_or("WARN", |severity| severity.as_str().unwrap());
        let numbers = [("TRACE", 1), ("DEBUG", 5), ("INFO", 9), ("WARN", 13), ("ERROR", 17), ("FATAL", 21)];
        LogRecord {
            time_unix_nano: time.unwrap_or(0),
            observed_time_unix_nano: observed,
            severity_number: match self.0.get("severity_number") {
                Some(number) => number.as_i64().unwrap() as i32,
                None => numbers.iter().find(|(name, _)| *name == severity).unwrap().1,
            },
            severity_text: severity.to_owned(),
            body: self.0.get("body").map(any),
            attributes: self.attributes(&taken, added, false),
            trace_id: bytes(id("trace_id")),
            span_id: bytes(id("span_id")),
            event_name: self.text("name").to_owned(),
            ..LogRecord::default()
        }
    }

    fn span(&self) -> Span {
        let (begin, observed) = self.times();
        let data = &self.0["span"];
        let end = data.get("end_time").and_then(time);
        let last = end.unwrap_or(observed);
        let duration = data.get("duration_ns").and_then(Value::as_u64).unwrap_or(0);
        let start = begin.unwrap_or(last.checked_sub(duration).unwrap_or(last));
        let end = if begin.is_some() { end.or(start.checked_add(duration)).unwrap_or(start) } else { last };
        let id = |of: &Value, key: &str| of.get(key).map_or(Vec::new(), |id| bytes(id.as_str().unwrap()));
        let sent = |key: &str| self.attribute(key).and_then(Value::as_str);
        let kinds = [("internal", 1), ("server", 2), ("client", 3), ("producer", 4), ("consumer", 5)];
        let own = data.get("kind").map(|kind| kind.as_str().unwrap());
        let kind = kinds.iter().find(|(name, _)| own.or(sent("span.kind")) == Some(name));
        let mut taken: Vec<&str> = kind.filter(|_| own.is_none()).map(|_| "span.kind").into_iter().collect();
        let mut attributes = Vec::new();
        let missing = [("start", begin.is_none()), ("end", data.get("end_time").is_none())];
        if missing.iter().any(|(_, is_missing)| *is_missing) {
            // What the event itself calls missing, and its times.
            let mut all = match self.attribute("tributary.incomplete") {
                None => Vec::new(),
                Some(own) => own.as_array().unwrap().clone(),
            };
            let times = missing.iter().filter(|(_, is_missing)| *is_missing).map(|(name, _)| Value::from(*name));
            let new: Vec<Value> = times.filter(|name| !all.contains(name)).collect();
            all.extend(new);
            taken.push("tributary.incomplete");
            attributes.push(key_value("tributary.incomplete", any(&Value::Array(all))));
        }
        attributes.extend(self.attributes(&taken, Vec::new(), false));
        let links = data.get("links").map_or(&[][..], |links| links.as_array().unwrap());
        let link = |link: &Value| span::Link {
            trace_id: id(link, "trace_id"),
            span_id: id(link, "span_id"),
            trace_state: link.get("trace_state").map_or("", |state| state.as_str().unwrap()).to_owned(),
            attributes: members(link),
            flags: link.get("flags").map_or(0, |flags| u32::try_from(flags.as_u64().unwrap()).unwrap()),
            ..span::Link::default()
        };
        let event = |event: &Value| span::Event {
            time_unix_nano: event.get("time").and_then(time).unwrap_or(0),
            name: event["name"].as_str().unwrap().to_owned(),
            attributes: members(event),
            ..span::Event::default()
        };
        let events = data.get("events").map_or(&[][..], |events| events.as_array().unwrap());
        let message = data.get("status_message").map_or("", |message| message.as_str().unwrap());
        let small = |of: Option<&Value>| of.map_or(0, |number| u32::try_from(number.as_u64().unwrap()).unwrap());
        let dropped = |key: &str| small(data.get("dropped").and_then(|dropped| dropped.get(key)));
        let status = |code| Some(Status { code, message: message.to_owned() });
        Span {
            trace_id: id(data, "trace_id"),
            span_id: id(data, "span_id"),
            parent_span_id: id(data, "parent_span_id"),
            name: self.text("name").to_owned(),
            kind: kind.map_or(if sent("datadog.type") == Some("web") { 2 } else { 1 }, |(_, kind)| *kind),
            start_time_unix_nano: start,
            end_time_unix_nano: end,
            attributes,
            trace_state: data.get("trace_state").map_or("", |state| state.as_str().unwrap()).to_owned(),
            flags: small(data.get("flags")),
            dropped_attributes_count: dropped("attributes"),
            dropped_events_count: dropped("events"),
            dropped_links_count: dropped("links"),
            events: events.iter().map(event).collect(),
            links: links.iter().map(link).collect(),
            status: match data["status"].as_str().unwrap() {
                "ok" => status(1),
                "error" => status(2),
                _ if message.is_empty() => None,
                _ => status(0),
            },
        }
    }

    fn metric(&self) -> Metric {
        let (happened, observed) = self.times();
        let data = &self.0["metric"];
        let basis = happened.is_none().then(|| ("tributary.time.basis", string("received")));
        let head = Head {
            attributes: self.attributes(&[], basis.into_iter().collect(), true),
            start_time_unix_nano: data.get("start_time").and_then(time).unwrap_or(0),
            time_unix_nano: happened.unwrap_or(observed),
        };
        let value = || match any(&data["value"]).value {
            Some(Any::IntValue(value)) => PointValue::AsInt(value),
            Some(Any::DoubleValue(value)) => PointValue::AsDouble(value),
            // Beyond the range of integers, or not finite.
            Some(Any::StringValue(text)) => {
                PointValue::AsDouble(text.replace("Infinity", "inf").parse::<f64>().unwrap())
            }
            other => panic!("{other:?}"),
        };
        let data = match data["type"].as_str().unwrap() {
            "gauge" => points::of_number(value(), None, head),
            "sum" => {
                let temporality = if data["temporality"] == "delta" { 1 } else { 2 };
                points::of_number(value(), Some((temporality, data["monotonic"].as_bool().unwrap())), head)
            }
            _ => points::of_line(data, head),
        };
        let unit = self.0["metric"].get("unit").map_or("", |unit| unit.as_str().unwrap());
        Metric { name: self.text("name").to_owned(), unit: unit.to_owned(), data: Some(data), ..Metric::default() }
    }

    fn place(&self, more: Option<String>) -> String {
        let connection = self.connection().into_iter();
        let attributes =
            connection.map(|(key, value)| profiles::attribute(key, value.value.unwrap())).chain(more).collect();
        Place { resource: self.resource(), scope: self.scope(), attributes }.text()
    }

    fn add_sample(&self, samples: &mut Samples) {
        let (time, observed) = self.times();
        let sample = &self.0["sample"];
        let of_type = sample["type"].as_str().unwrap();
        let of = format!("{of_type}/{}", sample.get("unit").map_or("", |unit| unit.as_str().unwrap()));
        let value_type = if of_type == "cpu" { "samples/count".to_owned() } else { of.clone() };
        let period_type = match sample.get("period_ns") {
            Some(_) => format!("{}/nanoseconds", sample.get("clock").map_or(of_type, |clock| clock.as_str().unwrap())),
            None => of,
        };
        let frames = sample["frames"].as_array().unwrap().iter().map(|it| {
            let text = |key: &str| it.get(key).map_or("", |text| text.as_str().unwrap());
            let file = text("file");
            let line = it.get("line").and_then(Value::as_i64).unwrap_or(0);
            profiles::frame(text("function"), file, line, if file == "<cfunc>" { "native" } else { "ruby" })
        });
        let frames: Vec<_> = frames.collect();
        let none = Map::new();
        let own = self.0.get("attributes").map_or(&none, |attributes| attributes.as_object().unwrap());
        let own = own.iter().filter(|(key, value)| !key.is_empty() && !value.is_null());
        let mut attributes: Vec<_> =
            own.map(|(key, value)| profiles::attribute(key, any(value).value.unwrap())).collect();
        attributes.sort();
        let (place, time, value) = (self.place(None), time.unwrap_or(observed), &sample["value"]);
        let text = format!("{place} {value_type} by {period_type} {time} {value} {frames:?} {attributes:?}");
        *samples.timed.entry(text).or_default() += 1;
    }

    fn add_object(&self, samples: &mut Samples) {
        let (time, observed) = self.times();
        let dump = self.attribute("rbkit.dump.id").map(|id| {
            let id = any(id).value.unwrap();
            profiles::attribute("rbkit.dump.id", id)
        });
        let text = |key: &str| self.attribute(key).and_then(Value::as_str);
        let number = |key: &str| self.attribute(key).and_then(Value::as_i64);
        let object = Object {
            place: self.place(dump),
            time: time.unwrap_or(observed),
            class: text("rbkit.class.name"),
            file: text("code.file.path"),
            line: number("code.line.number"),
            size: number("rbkit.object.size"),
        };
        object.add_to(samples);
    }
}

fn string(text: &str) -> AnyValue {
    AnyValue { value: Some(Any::StringValue(text.to_owned())) }
}

/// The attributes of a link or of an event of a span.
fn members(of: &Value) -> Vec<KeyValue> {
    let Some(attributes) = of.get("attributes") else { return Vec::new() };
    attributes.as_object().unwrap().iter().map(|(key, value)| key_value(key, any(value))).collect()
}

fn key_value(key: &str, value: AnyValue) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(value), ..KeyValue::default() }
}

/// A value of a line; one that is too deep is its text.
fn any(value: &Value) -> AnyValue {
    if levels(value) > MAX_LEVELS { string(&value.to_string()) } else { whole(value) }
}

fn whole(value: &Value) -> AnyValue {
    let value = match value {
        Value::Null => None,
        Value::Bool(value) => Some(Any::BoolValue(*value)),
        Value::String(text) => Some(Any::StringValue(text.clone())),
        Value::Number(number) => {
            let text = number.to_string();
            Some(if text.contains(['.', 'e', 'E']) {
                Any::DoubleValue(text.parse().unwrap())
            } else {
                text.parse().map_or(Any::StringValue(text), Any::IntValue)
            })
        }
        Value::Array(values) => Some(Any::ArrayValue(ArrayValue { values: values.iter().map(whole).collect() })),
        Value::Object(members) => {
            let values = members.iter().map(|(key, value)| key_value(key, whole(value))).collect();
            Some(Any::KvlistValue(KeyValueList { values }))
        }
    };
    AnyValue { value }
}

fn levels(value: &Value) -> usize {
    match value {
        Value::Array(values) => 1 + values.iter().map(levels).max().unwrap_or(0),
        Value::Object(members) => 1 + members.values().map(levels).max().unwrap_or(0),
        _ => 0,
    }
}

/// Nanoseconds since 1970 of a time with nine digits.
fn time(value: &Value) -> Option<u64> {
    let time: jiff::Timestamp = value.as_str()?.parse().unwrap();
    Some(u64::try_from(time.as_nanosecond()).unwrap())
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap()).collect()
}
