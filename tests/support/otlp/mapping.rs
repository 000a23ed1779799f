//! Requests of OTLP as structs of `opentelemetry-proto`: events mapped by code that shares nothing with the encoder of the sink.

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, ArrayValue, InstrumentationScope, KeyValue, KeyValueList};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs};
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value as Number;
use opentelemetry_proto::tonic::metrics::v1::{Metric, ResourceMetrics, ScopeMetrics};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span, Status, span};
use prost::Message;
use tributary::event::{
    DataView, EventView, Members, MetricType, ResourceValue, Severity, SpanKind, Status as SpanStatus, Temporality,
    UnixNanos, ValueView,
};
use tributary::sink::encode::{Encoder as JsonEncoder, Format};

use super::points::{self, Head};

/// The requests for some events.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Requests {
    pub logs: ExportLogsServiceRequest,
    pub traces: ExportTraceServiceRequest,
    pub metrics: ExportMetricsServiceRequest,
}

/// The requests that the mapping of docs/event-model.md demands.
pub fn requests<'a>(events: impl Iterator<Item = EventView<'a>>, with_origin: bool) -> Requests {
    let mut requests = Requests::default();
    for event in events {
        match event.data() {
            DataView::Log { .. } | DataView::Loss(_) => {
                let record = log_record(event, with_origin);
                scope_logs(&mut requests.logs, event).log_records.push(record);
            }
            DataView::Span(_) => {
                let span = span(event, with_origin);
                scope_spans(&mut requests.traces, event).spans.push(span);
            }
            DataView::Metric(_) => add_point(scope_metrics(&mut requests.metrics, event), event, with_origin),
            DataView::Sample(_) => {}
        }
    }
    requests
}

macro_rules! group {
    ($name:ident, $request:ty, $resources:ident, $resource:ident, $scopes:ident, $scope:ident) => {
        fn $name<'a>(request: &'a mut $request, event: EventView<'_>) -> &'a mut $scope {
            let (resource, scope) = (Some(resource(event)), Some(scope(event)));
            // Compared as bytes: NaN is not equal to itself.
            let bytes = |resource: &Option<Resource>| resource.as_ref().map(Message::encode_to_vec);
            let groups = &mut request.$resources;
            let at = groups.iter().position(|group| bytes(&group.resource) == bytes(&resource)).unwrap_or_else(|| {
                groups.push($resource { resource, ..Default::default() });
                groups.len() - 1
            });
            let groups = &mut groups[at].$scopes;
            let at = groups.iter().position(|group| group.scope == scope).unwrap_or_else(|| {
                groups.push($scope { scope, ..Default::default() });
                groups.len() - 1
            });
            &mut groups[at]
        }
    };
}

group!(scope_logs, ExportLogsServiceRequest, resource_logs, ResourceLogs, scope_logs, ScopeLogs);
group!(scope_spans, ExportTraceServiceRequest, resource_spans, ResourceSpans, scope_spans, ScopeSpans);
group!(scope_metrics, ExportMetricsServiceRequest, resource_metrics, ResourceMetrics, scope_metrics, ScopeMetrics);

fn text(text: &str) -> AnyValue {
    AnyValue { value: Some(Any::StringValue(text.to_owned())) }
}

fn number(number: u64) -> AnyValue {
    AnyValue { value: Some(i64::try_from(number).map_or_else(|_| Any::StringValue(number.to_string()), Any::IntValue)) }
}

fn key_value(key: &str, value: AnyValue) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(value), ..KeyValue::default() }
}

pub(crate) fn resource(event: EventView<'_>) -> Resource {
    let protocol = event.origin().protocol;
    let attributes = event.resource().attributes();
    let find = |name: &str| attributes.iter().find(|(key, _)| key == name).map(|(_, value)| value);
    let text_of = |name: &str| match find(name) {
        Some(ResourceValue::Text(text)) if !text.is_empty() => Some(text.as_str()),
        _ => None,
    };
    let mut all: Vec<KeyValue> = attributes
        .iter()
        .filter(|(key, _)| !key.is_empty() && key != "service.name")
        .map(|(key, value)| {
            let value = match value {
                ResourceValue::Text(value) => text(value),
                ResourceValue::U64(value) => number(*value),
                ResourceValue::I64(value) => AnyValue { value: Some(Any::IntValue(*value)) },
                ResourceValue::F64(value) => AnyValue { value: Some(Any::DoubleValue(*value)) },
                ResourceValue::Bool(value) => AnyValue { value: Some(Any::BoolValue(*value)) },
            };
            key_value(key, value)
        })
        .collect();
    let unknown = || format!("unknown_service:{}", text_of("process.executable.name").unwrap_or(protocol));
    let service = text_of("service.name").map_or_else(unknown, str::to_owned);
    all.push(key_value("service.name", text(&service)));
    let known = [
        ("telemetry.sdk.language", [("rbkit", "ruby"), ("zico", "java")].as_slice()),
        (
            "telemetry.distro.name",
            &[("rbkit", "rbkit"), ("zico", "zorka"), ("bytefrog", "bytefrog"), ("endless", "eos-event-recorder")],
        ),
    ];
    for (name, of) in known {
        if let Some((_, value)) = of.iter().find(|(of, _)| *of == protocol).filter(|_| find(name).is_none()) {
            all.push(key_value(name, text(value)));
        }
    }
    Resource { attributes: all, ..Resource::default() }
}

/// Whether an event is a record of OTLP that goes on as it was.
pub(crate) fn is_record(event: EventView<'_>) -> bool {
    event.origin().protocol == "otlp" && !matches!(event.data(), DataView::Loss(_))
}

/// The name of its record; one that its sender has not named has none.
fn name(event: EventView<'_>) -> String {
    let name = event.name().text();
    let is_ours = is_record(event) && ["otlp.log", "otlp.span", "otlp.metric"].contains(&name);
    if is_ours { String::new() } else { name.to_owned() }
}

pub(crate) fn scope(event: EventView<'_>) -> InstrumentationScope {
    let origin = event.origin();
    if is_record(event) {
        let mut scope = InstrumentationScope::default();
        for (key, value) in event.attributes() {
            match (key.text().strip_prefix("otlp.scope."), value) {
                (Some("name"), ValueView::Text(name)) => scope.name = name.text().to_owned(),
                (Some("version"), ValueView::Text(version)) => scope.version = version.text().to_owned(),
                (Some(key), value) => scope.attributes.push(key_value(key, any(value))),
                (None, _) => {}
            }
        }
        return scope;
    }
    let version = origin.version.as_ref().map(|version| key_value("origin.version", text(version)));
    InstrumentationScope {
        name: format!("tributary.{}", origin.protocol),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        attributes: version.into_iter().collect(),
        ..InstrumentationScope::default()
    }
}

fn levels(value: ValueView<'_>) -> usize {
    match value {
        ValueView::Array(values) => 1 + values.map(levels).max().unwrap_or(0),
        ValueView::Map(members) => 1 + members.map(|member| levels(member.value())).max().unwrap_or(0),
        _ => 0,
    }
}

fn any(value: ValueView<'_>) -> AnyValue {
    let value = match value {
        ValueView::Null => None,
        ValueView::Bool(value) => Some(Any::BoolValue(value)),
        ValueView::I64(value) => Some(Any::IntValue(value)),
        ValueView::U64(value) => number(value).value,
        ValueView::F64(value) => Some(Any::DoubleValue(value)),
        ValueView::Text(value) => Some(Any::StringValue(value.text().to_owned())),
        ValueView::Bytes(bytes) => Some(Any::BytesValue(bytes.to_vec())),
        ValueView::Array(values) => Some(Any::ArrayValue(ArrayValue { values: values.map(any).collect() })),
        ValueView::Map(members) => {
            let all: Vec<_> = members.map(|member| (member.key().text().text(), member.value())).collect();
            Some(Any::KvlistValue(KeyValueList { values: key_values(&all, any) }))
        }
    };
    AnyValue { value }
}

fn key_values(all: &[(&str, ValueView<'_>)], any: impl Fn(ValueView<'_>) -> AnyValue) -> Vec<KeyValue> {
    let key_of = |key: &str, value: ValueView<'_>| match (value, key.strip_suffix("_base64")) {
        (ValueView::Bytes(_), Some(short)) if !short.is_empty() && all.iter().all(|(key, _)| *key != short) => {
            short.to_owned()
        }
        _ => key.to_owned(),
    };
    all.iter().map(|(key, value)| key_value(&key_of(key, *value), any(*value))).collect()
}

/// The value, or its JSON text; notes whether it is the text.
fn flat(event: EventView<'_>, at: Option<&str>, value: ValueView<'_>, is_nested: &mut bool) -> AnyValue {
    if levels(value) <= 16 {
        return any(value);
    }
    *is_nested = true;
    // The text as the file has it.
    let mut line = Vec::new();
    JsonEncoder::new(Format::Json).encode(event, &mut line);
    let json: serde_json::Value = serde_json::from_slice(&line).unwrap();
    let value = at.map_or(&json["body"], |key| &json["attributes"][key]);
    text(&value.to_string())
}

/// The attributes of an event without those that `take` takes, and those that the sink adds.
fn attributes<'a>(
    event: EventView<'a>,
    with_origin: bool,
    added: Vec<(&str, AnyValue)>,
    mut is_nested: bool,
    mut take: impl FnMut(&str, ValueView<'a>) -> bool,
) -> Vec<KeyValue> {
    let all: Vec<_> = event.attributes().map(|(key, value)| (key.text(), value)).collect();
    let mut kept = Vec::new();
    for (key_value, (key, value)) in key_values(&all, any).into_iter().zip(&all) {
        let is_scope = is_record(event) && key.starts_with("otlp.scope.");
        if key.is_empty() || is_scope || matches!(value, ValueView::Null) || take(key, *value) {
            continue;
        }
        let value = flat(event, Some(key), *value, &mut is_nested);
        kept.push(KeyValue { value: Some(value), ..key_value });
    }
    let mut added = added;
    let origin = event.origin();
    if with_origin {
        added.push(("tributary.listener", text(&origin.listener)));
        let (address, port) = origin.peer.rsplit_once(':').unwrap();
        added.push(("network.peer.address", text(address)));
        if !matches!(event.data(), DataView::Metric(_)) {
            added.push(("network.peer.port", number(port.parse().unwrap())));
            added.push(("tributary.connection", number(origin.connection)));
            let sequence = event.position().sequence.map(|sequence| ("tributary.sequence", number(sequence)));
            added.extend(sequence);
            added.push(("tributary.offset", number(event.position().offset)));
        }
    }
    if is_nested {
        added.push(("tributary.text.nested", AnyValue { value: Some(Any::BoolValue(true)) }));
    }
    for (key, value) in added {
        let is_same = |own: &str| own == key || own.strip_suffix("_base64") == Some(key);
        if !all.iter().any(|(own, value)| is_same(own) && !matches!(value, ValueView::Null)) {
            kept.push(key_value(key, value));
        }
    }
    kept
}

fn log_record(event: EventView<'_>, with_origin: bool) -> LogRecord {
    let mut record = LogRecord {
        time_unix_nano: event.time().map_or(0, |time| time.0),
        observed_time_unix_nano: event.observed().0,
        event_name: name(event),
        ..LogRecord::default()
    };
    let severity = match event.data() {
        DataView::Log { severity, severity_number, context, body } => {
            let mut is_nested = false;
            record.body = body.map(|body| flat(event, None, body, &mut is_nested));
            let trace_id = context.map(|context| context.trace_id);
            let span_id = context.and_then(|context| context.span_id);
            record.attributes = attributes(event, with_origin, Vec::new(), is_nested, |key, value| {
                if is_record(event) && key == "otlp.flags" {
                    record.flags = value.as_u64().unwrap() as u32;
                    return true;
                }
                let id = match key {
                    "trace_id" => trace_id.map(|id| id.to_string()),
                    "span_id" => span_id.map(|id| id.to_string()),
                    _ => None,
                };
                id.is_some_and(|id| matches!(value, ValueView::Text(text) if text.text() == id))
            });
            record.trace_id = trace_id.map_or(Vec::new(), |id| id.0.to_vec());
            record.span_id = span_id.map_or(Vec::new(), |id| id.0.to_vec());
            record.severity_number = severity_number.get().into();
            severity
        }
        DataView::Loss(loss) => {
            let mut added = vec![("loss.reason", text(loss.reason.as_str())), ("loss.bytes", number(loss.bytes))];
            added.extend(loss.events.map(|events| ("loss.events", number(events))));
            if !loss.detail.text().is_empty() {
                added.push(("loss.detail", text(loss.detail.text())));
            }
            if !loss.excerpt.is_empty() {
                let hex: String = loss.excerpt.iter().map(|byte| format!("{byte:02x}")).collect();
                added.push(("loss.excerpt", text(&hex)));
            }
            record.attributes = attributes(event, with_origin, added, false, |_, _| false);
            record.severity_number = 13;
            Severity::Warn
        }
        _ => unreachable!(),
    };
    record.severity_text = severity.as_str().to_owned();
    record
}

fn span(event: EventView<'_>, with_origin: bool) -> Span {
    let DataView::Span(data) = event.data() else { unreachable!() };
    let extras = data.extras();
    let duration = data.duration_nanos.unwrap_or(0);
    let (start, end) = match (event.time(), data.end) {
        (Some(start), Some(end)) => (start.0, end.0),
        (Some(UnixNanos(start)), None) => (start, start.checked_add(duration).unwrap_or(start)),
        (None, end) => {
            let end = end.unwrap_or(event.observed()).0;
            (end.checked_sub(duration).unwrap_or(end), end)
        }
    };
    let find = |name: &str| event.attributes().find(|(key, _)| key.text() == name).map(|(_, value)| value);
    let text_of = |name: &str| match find(name) {
        Some(ValueView::Text(text)) => Some(text.text()),
        _ => None,
    };
    let kinds = [("internal", 1), ("server", 2), ("client", 3), ("producer", 4), ("consumer", 5)];
    let own = data.kind.map(SpanKind::as_str);
    let name_of_kind = own.or(text_of("span.kind"));
    let kind = kinds.into_iter().find(|(name, _)| name_of_kind == Some(name)).map(|(_, kind)| kind);
    let mut missing: Vec<&str> = Vec::new();
    missing.extend(event.time().is_none().then_some("start"));
    missing.extend(data.end.is_none().then_some("end"));
    let known = match find("tributary.incomplete") {
        Some(ValueView::Null) => None,
        known => known,
    };
    let known_texts = known.map(|known| match known {
        ValueView::Array(values) => {
            values.map(|value| if let ValueView::Text(text) = value { Some(text.text()) } else { None }).collect()
        }
        _ => None,
    });
    let mut added = Vec::new();
    let mut merged = None;
    if !missing.is_empty() {
        let texts: Option<Vec<&str>> = known_texts.unwrap_or(Some(Vec::new()));
        if let Some(mut all) = texts {
            missing.retain(|name| !all.contains(name));
            all.extend(missing);
            let values = all.into_iter().map(text).collect();
            let list = AnyValue { value: Some(Any::ArrayValue(ArrayValue { values })) };
            merged = Some(list.clone());
            if known.is_none() {
                added.push(("tributary.incomplete", list));
            }
        }
    }
    let mut attributes = attributes(event, with_origin, added, false, |key, value| match (key, value) {
        ("span.kind", _) => kind.is_some() && own.is_none(),
        _ => false,
    });
    if let Some(merged) = merged {
        attributes.iter_mut().filter(|known| known.key == "tributary.incomplete").for_each(|known| {
            if !matches!(known.value, Some(AnyValue { value: Some(Any::BytesValue(_)) })) {
                known.value = Some(merged.clone());
            }
        });
    }
    Span {
        trace_id: data.trace_id.0.to_vec(),
        span_id: data.span_id.0.to_vec(),
        parent_span_id: data.parent.map_or(Vec::new(), |parent| parent.0.to_vec()),
        name: name(event),
        kind: kind.unwrap_or(if text_of("datadog.type") == Some("web") { 2 } else { 1 }),
        start_time_unix_nano: start,
        end_time_unix_nano: end,
        attributes,
        trace_state: extras.and_then(|extras| extras.trace_state).map_or("", |state| state.text()).to_owned(),
        flags: extras.map_or(0, |extras| extras.flags),
        dropped_attributes_count: extras.map_or(0, |extras| extras.dropped.attributes),
        dropped_events_count: extras.map_or(0, |extras| extras.dropped.events),
        dropped_links_count: extras.map_or(0, |extras| extras.dropped.links),
        events: data
            .events()
            .map(|event| span::Event {
                time_unix_nano: event.time.map_or(0, |time| time.0),
                name: event.name.text().to_owned(),
                attributes: members(event.attributes),
                ..span::Event::default()
            })
            .collect(),
        links: data
            .links()
            .map(|link| span::Link {
                trace_id: link.to.trace_id.0.to_vec(),
                span_id: link.to.span_id.0.to_vec(),
                trace_state: link.trace_state.map_or(String::new(), |state| state.text().to_owned()),
                attributes: members(link.attributes),
                flags: link.flags.unwrap_or(0),
                ..span::Link::default()
            })
            .collect(),
        status: match (data.status, data.status_message()) {
            (SpanStatus::Unset, None) => None,
            (status, message) => Some(Status {
                code: [SpanStatus::Unset, SpanStatus::Ok, SpanStatus::Error]
                    .iter()
                    .position(|of| *of == status)
                    .unwrap() as i32,
                message: message.map_or(String::new(), |text| text.text().to_owned()),
            }),
        },
    }
}

/// The attributes of a link or of an event of a span.
fn members(of: Members<'_>) -> Vec<KeyValue> {
    let all: Vec<_> = of.map(|member| (member.key().text().text(), member.value())).collect();
    let is_sent = |(key, value): &(&str, ValueView<'_>)| !key.is_empty() && !matches!(value, ValueView::Null);
    key_values(&all, any).into_iter().zip(&all).filter(|(_, one)| is_sent(one)).map(|(sent, _)| sent).collect()
}

fn add_point(scope: &mut ScopeMetrics, event: EventView<'_>, with_origin: bool) {
    let DataView::Metric(data) = event.data() else { unreachable!() };
    let mut added = Vec::new();
    if event.time().is_none() {
        added.push(("tributary.time.basis", text("received")));
    }
    let head = Head {
        attributes: attributes(event, with_origin, added, false, |_, _| false),
        start_time_unix_nano: data.start.map_or(0, |start| start.0),
        time_unix_nano: event.time().unwrap_or(event.observed()).0,
    };
    let value = match data.value {
        tributary::event::Number::I64(value) => Number::AsInt(value),
        tributary::event::Number::U64(value) => {
            i64::try_from(value).map_or(Number::AsDouble(value as f64), Number::AsInt)
        }
        tributary::event::Number::F64(value) => Number::AsDouble(value),
    };
    let new = match (data.distribution(), data.metric_type) {
        (Some(distribution), _) => points::of_distribution(&distribution, head),
        (None, MetricType::Sum { temporality, monotonic }) => {
            points::of_number(value, Some((if temporality == Temporality::Delta { 1 } else { 2 }, monotonic)), head)
        }
        (None, _) => points::of_number(value, None, head),
    };
    let (name, unit) = (event.name().text(), data.unit());
    let is_same = |metric: &&mut Metric| {
        let known = metric.data.as_ref().map(points::without_points);
        metric.name == name && metric.unit == unit && known == Some(points::without_points(&new))
    };
    match scope.metrics.iter_mut().find(is_same) {
        Some(known) => points::append(known.data.as_mut().unwrap(), new),
        None => {
            let (name, unit) = (name.to_owned(), unit.to_owned());
            scope.metrics.push(Metric { name, unit, data: Some(new), ..Metric::default() });
        }
    }
}
