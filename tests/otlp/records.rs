//! Records that `opentelemetry-proto` writes, with every field that an event has.

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, ArrayValue, InstrumentationScope, KeyValue, KeyValueList};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs};
use opentelemetry_proto::tonic::metrics::v1::{
    ExponentialHistogram, ExponentialHistogramDataPoint, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint,
    ResourceMetrics, ScopeMetrics, Sum, Summary, SummaryDataPoint, exponential_histogram_data_point, metric,
    number_data_point, summary_data_point,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span, Status, span};
use prost::Message as _;
use serde_json::{Value, json};

use crate::offline::{Offline, PROTOBUF, content};

/// 2026-11-20T10:40:00Z in nanoseconds.
const TIME: u64 = 1_795_171_200_000_000_000;

fn any(value: Any) -> AnyValue {
    AnyValue { value: Some(value) }
}

fn attribute(key: &str, value: Any) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(any(value)), ..KeyValue::default() }
}

fn text(text: &str) -> Any {
    Any::StringValue(text.to_owned())
}

fn scope() -> InstrumentationScope {
    InstrumentationScope {
        name: "shop.http".to_owned(),
        version: "1.2".to_owned(),
        attributes: vec![attribute("tier", Any::IntValue(2))],
        ..InstrumentationScope::default()
    }
}

fn resource() -> Resource {
    let arguments = Any::ArrayValue(ArrayValue { values: vec![any(text("a")), any(Any::IntValue(1))] });
    Resource {
        attributes: vec![
            attribute("service.name", text("shop")),
            attribute("service.instance.id", text("i-1")),
            attribute("process.pid", Any::IntValue(7)),
            attribute("process.command_args", arguments),
        ],
        ..Resource::default()
    }
}

/// A request with one span that has every field.
pub(crate) fn traces() -> Vec<u8> {
    let list = KeyValueList { values: vec![attribute("x", Any::DoubleValue(0.5))] };
    let span = Span {
        trace_id: vec![0xA1; 16],
        span_id: vec![0xB2; 8],
        parent_span_id: vec![0xC3; 8],
        trace_state: "vendor=1".to_owned(),
        flags: 0x301,
        dropped_attributes_count: 1,
        dropped_events_count: 2,
        dropped_links_count: 3,
        name: "GET /höfe".to_owned(),
        kind: span::SpanKind::Server.into(),
        start_time_unix_nano: TIME,
        end_time_unix_nano: TIME + 1_500,
        attributes: vec![
            attribute("a", text("twice")),
            attribute("n", Any::IntValue(-9_007_199_254_740_993)),
            attribute("d", Any::DoubleValue(1.0)),
            attribute("t", Any::BoolValue(true)),
            attribute("raw", Any::BytesValue(vec![1, 2, 255])),
            attribute("list", Any::ArrayValue(ArrayValue { values: vec![any(text("x")), AnyValue { value: None }] })),
            attribute("map", Any::KvlistValue(list)),
            KeyValue { key: "nothing".to_owned(), value: None, ..KeyValue::default() },
            attribute("a", text("last")),
        ],
        events: vec![span::Event {
            time_unix_nano: TIME + 700,
            name: "exception".to_owned(),
            attributes: vec![attribute("exception.type", text("E"))],
            ..span::Event::default()
        }],
        links: vec![span::Link {
            trace_id: vec![1; 16],
            span_id: vec![2; 8],
            trace_state: "k=v".to_owned(),
            attributes: vec![attribute("why", text("retry"))],
            flags: 1,
            ..span::Link::default()
        }],
        status: Some(Status { message: "locked".to_owned(), code: 2 }),
    };
    let spans = vec![span, Span { trace_id: vec![0xA1; 16], span_id: vec![9; 8], ..Span::default() }];
    let scope_spans = vec![ScopeSpans { scope: Some(scope()), spans, ..ScopeSpans::default() }];
    let resource_spans = vec![ResourceSpans { resource: Some(resource()), scope_spans, ..ResourceSpans::default() }];
    ExportTraceServiceRequest { resource_spans }.encode_to_vec()
}

/// What the attributes of the scope and the resource become.
fn scoped(mut attributes: Value) -> Value {
    let all = attributes.as_object_mut().unwrap();
    all.insert("otlp.scope.name".to_owned(), "shop.http".into());
    all.insert("otlp.scope.version".to_owned(), "1.2".into());
    all.insert("otlp.scope.tier".to_owned(), 2.into());
    attributes
}

fn sender() -> Value {
    json!({ "service.name": "shop", "service.instance.id": "i-1", "process.pid": 7, "process.command_args": "[\"a\",1]" })
}

#[test]
fn a_span_keeps_every_field() {
    let events = Offline::new().events("/v1/traces", &[PROTOBUF], &traces());
    let expected = json!({
        "time": "2026-11-20T10:40:00.000000000Z",
        "kind": "span",
        "name": "GET /höfe",
        "span": {
            "trace_id": "a1".repeat(16),
            "span_id": "b2".repeat(8),
            "parent_span_id": "c3".repeat(8),
            "kind": "server",
            "end_time": "2026-11-20T10:40:00.000001500Z",
            "duration_ns": 1500,
            "status": "error",
            "status_message": "locked",
            "trace_state": "vendor=1",
            "flags": 0x301,
            "dropped": { "attributes": 1, "events": 2, "links": 3 },
            "links": [{
                "trace_id": "01".repeat(16),
                "span_id": "02".repeat(8),
                "attributes": { "why": "retry" },
                "trace_state": "k=v",
                "flags": 1,
            }],
            "events": [{
                "time": "2026-11-20T10:40:00.000000700Z",
                "name": "exception",
                "attributes": { "exception.type": "E" },
            }],
        },
        "attributes": scoped(json!({
            "n": -9_007_199_254_740_993_i64,
            "d": 1.0,
            "t": true,
            "raw_base64": "AQL/",
            "list": ["x", null],
            "map": { "x": 0.5 },
            "a": "last",
        })),
        "resource": sender(),
    });
    assert_eq!(content(&events[0]), expected);
    let second = json!({
        "time": null,
        "kind": "span",
        "name": "otlp.span",
        "span": { "trace_id": "a1".repeat(16), "span_id": "09".repeat(8), "status": "unset" },
        "attributes": scoped(json!({})),
        "resource": sender(),
    });
    assert_eq!(content(&events[1]), second);
    assert_eq!((&events[0]["origin"]["sequence"], &events[1]["origin"]["sequence"]), (&json!(1), &json!(2)));
}

/// A request with logs.
pub(crate) fn logs() -> Vec<u8> {
    let log = LogRecord {
        time_unix_nano: TIME,
        observed_time_unix_nano: TIME + 5,
        severity_number: 14,
        severity_text: "Warnung".to_owned(),
        body: Some(any(Any::KvlistValue(KeyValueList { values: vec![attribute("order", Any::IntValue(41))] }))),
        attributes: vec![attribute("a", text("b"))],
        dropped_attributes_count: 3,
        flags: 1,
        trace_id: vec![7; 16],
        span_id: vec![8; 8],
        event_name: "order.paid".to_owned(),
    };
    let short = LogRecord { severity_text: "ERROR".to_owned(), body: Some(any(text("x"))), ..LogRecord::default() };
    let scope_logs = vec![ScopeLogs { scope: Some(scope()), log_records: vec![log, short], ..ScopeLogs::default() }];
    let resource_logs = vec![ResourceLogs { resource: Some(resource()), scope_logs, ..ResourceLogs::default() }];
    ExportLogsServiceRequest { resource_logs }.encode_to_vec()
}

#[test]
fn a_log_keeps_every_field() {
    let events = Offline::new().events("/v1/logs", &[PROTOBUF], &logs());
    assert_eq!(events[0]["observed_time"], "2026-11-20T10:40:00.000000005Z");
    let expected = json!({
        "time": "2026-11-20T10:40:00.000000000Z",
        "kind": "log",
        "name": "order.paid",
        "severity": "WARN",
        "severity_number": 14,
        "trace_id": "07".repeat(16),
        "span_id": "08".repeat(8),
        "body": { "order": 41 },
        "attributes": scoped(json!({
            "a": "b",
            "otlp.severity_text": "Warnung",
            "otlp.flags": 1,
            "otlp.dropped_attributes_count": 3,
        })),
        "resource": sender(),
    });
    assert_eq!(content(&events[0]), expected);
    let second = json!({
        "time": null,
        "kind": "log",
        "name": "otlp.log",
        "severity": "ERROR",
        "body": "x",
        "attributes": scoped(json!({})),
        "resource": sender(),
    });
    assert_eq!(content(&events[1]), second);
}

/// A request with a gauge of two points, a sum, and a point that has no value.
pub(crate) fn metrics() -> Vec<u8> {
    let point = |value| NumberDataPoint {
        attributes: vec![attribute("region", text("eu"))],
        start_time_unix_nano: TIME - 10,
        time_unix_nano: TIME,
        value: Some(value),
        ..NumberDataPoint::default()
    };
    let as_int = number_data_point::Value::AsInt;
    let stale = NumberDataPoint { flags: 1, ..point(as_int(0)) };
    let gauge = Gauge { data_points: vec![point(as_int(-4)), point(number_data_point::Value::AsDouble(2.5)), stale] };
    let sum = Sum { data_points: vec![point(as_int(9))], aggregation_temporality: 1, is_monotonic: true };
    let metric = |name: &str, unit: &str, data| Metric {
        name: name.to_owned(),
        unit: unit.to_owned(),
        description: "of a test".to_owned(),
        data: Some(data),
        ..Metric::default()
    };
    let metrics =
        vec![metric("temperature", "Cel", metric::Data::Gauge(gauge)), metric("orders", "", metric::Data::Sum(sum))];
    let scope_metrics = vec![ScopeMetrics { scope: Some(scope()), metrics, ..ScopeMetrics::default() }];
    let resource_metrics =
        vec![ResourceMetrics { resource: Some(resource()), scope_metrics, ..ResourceMetrics::default() }];
    ExportMetricsServiceRequest { resource_metrics }.encode_to_vec()
}

#[test]
fn every_point_of_a_metric_is_an_event() {
    let mut offline = Offline::new();
    let events = offline.events("/v1/metrics", &[PROTOBUF], &metrics());
    let start = "2026-11-20T10:39:59.999999990Z";
    let found: Vec<_> = events.iter().map(|event| (event["name"].as_str().unwrap(), event["metric"].clone())).collect();
    assert_eq!(
        found,
        [
            ("temperature", json!({ "type": "gauge", "unit": "Cel", "value": -4, "start_time": start })),
            ("temperature", json!({ "type": "gauge", "unit": "Cel", "value": 2.5, "start_time": start })),
            (
                "orders",
                json!({ "type": "sum", "value": 9, "temporality": "delta", "monotonic": true, "start_time": start })
            ),
        ]
    );
    assert!(events.iter().all(|event| event["attributes"] == scoped(json!({ "region": "eu" }))));
    assert!(events.iter().all(|event| event["resource"] == sender()));
}

/// A request with a histogram, an exponential histogram and a summary.
fn distributions() -> Vec<u8> {
    let histogram = HistogramDataPoint {
        time_unix_nano: TIME,
        start_time_unix_nano: TIME - 10,
        count: 7,
        sum: Some(20.5),
        min: Some(-1.0),
        max: Some(9.0),
        explicit_bounds: vec![0.0, 5.0],
        bucket_counts: vec![1, 2, 4],
        attributes: vec![attribute("region", text("eu"))],
        ..HistogramDataPoint::default()
    };
    let buckets = |offset, bucket_counts: &[u64]| {
        Some(exponential_histogram_data_point::Buckets { offset, bucket_counts: bucket_counts.to_vec() })
    };
    let exponential = ExponentialHistogramDataPoint {
        time_unix_nano: TIME,
        count: 300,
        scale: -2,
        zero_count: 1,
        zero_threshold: 0.25,
        positive: buckets(-3, &[0, 298, 1]),
        negative: buckets(4, &[]),
        attributes: vec![attribute("region", text("eu"))],
        ..ExponentialHistogramDataPoint::default()
    };
    let quantile = |quantile, value| summary_data_point::ValueAtQuantile { quantile, value };
    let summary = SummaryDataPoint {
        time_unix_nano: TIME,
        count: 3,
        sum: 4.5,
        quantile_values: vec![quantile(0.5, 1.0), quantile(1.0, f64::INFINITY)],
        attributes: vec![attribute("region", text("eu"))],
        ..SummaryDataPoint::default()
    };
    let metric = |name: &str, data| Metric { name: name.to_owned(), data: Some(data), ..Metric::default() };
    let metrics = vec![
        metric("h", metric::Data::Histogram(Histogram { data_points: vec![histogram], aggregation_temporality: 2 })),
        metric(
            "e",
            metric::Data::ExponentialHistogram(ExponentialHistogram {
                data_points: vec![exponential],
                aggregation_temporality: 1,
            }),
        ),
        metric("s", metric::Data::Summary(Summary { data_points: vec![summary] })),
    ];
    let scope_metrics = vec![ScopeMetrics { metrics, ..ScopeMetrics::default() }];
    let resource_metrics = vec![ResourceMetrics { scope_metrics, ..ResourceMetrics::default() }];
    ExportMetricsServiceRequest { resource_metrics }.encode_to_vec()
}

#[test]
fn histograms_and_summaries_keep_every_field() {
    let events = Offline::new().events("/v1/metrics", &[PROTOBUF], &distributions());
    let found: Vec<_> = events.iter().map(|event| event["metric"].clone()).collect();
    let expected = [
        json!({
            "type": "histogram", "count": 7, "sum": 20.5, "min": -1.0, "max": 9.0, "bounds": [0.0, 5.0], "counts": [1, 2, 4],
            "temporality": "cumulative", "start_time": "2026-11-20T10:39:59.999999990Z",
        }),
        json!({
            "type": "exponential_histogram", "count": 300, "scale": -2, "zero_count": 1, "zero_threshold": 0.25,
            "positive": { "offset": -3, "counts": [0, 298, 1] }, "temporality": "delta",
        }),
        json!({ "type": "summary", "count": 3, "sum": 4.5, "quantiles": [[0.5, 1.0], [1.0, "Infinity"]] }),
    ];
    assert_eq!(found, expected);
    assert!(events.iter().all(|event| event["attributes"] == json!({ "region": "eu" })));
}

#[test]
fn the_same_request_is_read_alike_however_it_is_compressed_or_framed() {
    let body = traces();
    let plain = Offline::new().events("/v1/traces", &[PROTOBUF], &body);
    let gzip = gzip(&body);
    let zstd = zstd::encode_all(body.as_slice(), 3).unwrap();
    for (name, compressed) in [("gzip", &gzip), ("zstd", &zstd)] {
        let events = Offline::new().events("/v1/traces", &[PROTOBUF, ("content-encoding", name)], compressed);
        assert_eq!(events, plain, "{name}");
        let framed = [&[1][..], &(compressed.len() as u32).to_be_bytes(), compressed].concat();
        let headers = [("content-type", "application/grpc"), ("grpc-encoding", name)];
        let path = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
        assert_eq!(Offline::new().events(path, &headers, &framed), plain, "{name} by gRPC");
    }
    let framed = [&[0][..], &(body.len() as u32).to_be_bytes(), &body].concat();
    let path = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
    assert_eq!(Offline::new().events(path, &[("content-type", "application/grpc+proto")], &framed), plain);
}

#[test]
fn a_request_that_is_sent_again_counts_once() {
    let mut offline = Offline::new();
    assert_eq!(offline.events("/v1/traces", &[PROTOBUF], &traces()).len(), 2);
    assert_eq!(offline.events("/v1/traces", &[PROTOBUF], &traces()).len(), 0);
    let counters = offline.counters.totals();
    assert_eq!(counters.bytes_ignored["traces"], traces().len() as u64);
    offline.elapsed = std::time::Duration::from_secs(61);
    assert_eq!(offline.events("/v1/traces", &[PROTOBUF], &traces()).len(), 2);
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write as _;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}
