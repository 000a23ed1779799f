//! Events → lines. The group `encode` encodes 1,000 similar spans as JSON lines and as human-readable lines, and compares them
//! with serde_json for the same line and with a copy of the finished line: microseconds per iteration are nanoseconds per
//! event. The groups `encode …` encode the workload of each protocol, with serde_json for comparison.
//!
//! Reports bytes of lines per second.

#![allow(missing_docs, clippy::unwrap_used)]

mod otlp_structs;

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};
use otlp_structs::Structs;
use serde_json::{Map, Value as Json, json};
use tributary::event::{
    Batch, BatchBuilder, DataView, EventView, Header, Interned, Origin, Position, Resource, ResourceValue, SpanData,
    SpanId, TraceId, UnixNanos, ValueView, semconv,
};
use tributary::sink::encode::{Encoder, Format};
use tributary::sink::otlp;

const EVENTS: usize = 1000;

fn encode(c: &mut Criterion) {
    let batch = spans();
    let lines = encoded(Format::Json, &batch);
    assert_eq!(String::from_utf8_lossy(&by_serde(&batch)), String::from_utf8_lossy(&lines));

    let mut group = c.benchmark_group("encode");
    group.warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2)).sample_size(30);
    let mut out = Vec::new();
    for format in Format::ALL {
        let mut encoder = Encoder::new(format);
        group.throughput(Throughput::Bytes(encoded(format, &batch).len() as u64));
        group.bench_function(format.as_str(), |b| {
            b.iter(|| {
                out.clear();
                black_box(&batch).events().for_each(|event| encoder.encode(event, &mut out));
                black_box(&out);
            });
        });
    }
    group.throughput(Throughput::Bytes(lines.len() as u64));
    group.bench_function("serde_json: build a Value and write it", |b| b.iter(|| by_serde(black_box(&batch))));
    let trees: Vec<Json> = batch.events().map(tree).collect();
    group.bench_function("serde_json: write a finished Value", |b| {
        b.iter(|| {
            out.clear();
            black_box(&trees).iter().for_each(|tree| write_line(tree, &mut out));
            black_box(&out);
        });
    });
    group.bench_function("copy the finished line", |b| {
        b.iter(|| {
            out.clear();
            black_box(&lines).chunks(lines.len() / EVENTS).for_each(|line| out.extend_from_slice(line));
            black_box(&out);
        });
    });
    group.finish();
}

/// The events of every protocol. serde_json gets finished values, with numbers as text, so that it only has to write them.
fn encode_each(c: &mut Criterion) {
    for workload in tributary_workloads::all() {
        let batches = workload.batches();
        let mut group = c.benchmark_group(format!("encode {}", workload.name));
        group.warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2)).sample_size(20);
        let mut out = Vec::new();
        for format in Format::ALL {
            let mut encoder = Encoder::new(format);
            let bytes: usize = batches.iter().map(|batch| encoded(format, batch).len()).sum();
            group.throughput(Throughput::ElementsAndBytes { elements: workload.events, bytes: bytes as u64 });
            group.bench_function(format.as_str(), |b| {
                b.iter(|| {
                    for batch in black_box(&batches) {
                        out.clear();
                        batch.events().for_each(|event| encoder.encode(event, &mut out));
                        black_box(&out);
                    }
                });
            });
        }
        otlp(&mut group, &workload, &batches);
        let lines: Vec<u8> = batches.iter().flat_map(|batch| encoded(Format::Json, batch)).collect();
        let trees: Vec<Json> = serde_json::Deserializer::from_slice(&lines).into_iter().map(Result::unwrap).collect();
        assert_eq!(trees.len() as u64, workload.events);
        group.throughput(Throughput::ElementsAndBytes { elements: workload.events, bytes: lines.len() as u64 });
        group.bench_function("serde_json: write a finished Value", |b| {
            b.iter(|| {
                for chunk in black_box(&trees).chunks(1000) {
                    out.clear();
                    chunk.iter().for_each(|tree| write_line(tree, &mut out));
                    black_box(&out);
                }
            });
        });
        group.finish();
    }
}

/// Requests of OTLP, and the least that generated structs cost: a copy of finished structs, which allocates what building them
/// would, and writing them.
fn otlp(group: &mut BenchmarkGroup<'_, WallTime>, workload: &tributary_workloads::Workload, batches: &[Batch]) {
    let requests = |batches: &[Batch]| {
        let mut encoder = otlp::Encoder::new(3 << 20, true, 0);
        for batch in batches {
            encoder.begin_batch();
            batch.events().for_each(|event| assert!(encoder.push(event, true)));
        }
        encoder.end_requests();
        encoder.take_requests()
    };
    let finished = requests(batches);
    let bytes: usize = finished.iter().map(|request| request.body.len()).sum();
    group.throughput(Throughput::ElementsAndBytes { elements: workload.events, bytes: bytes as u64 });
    group.bench_function("otlp", |b| b.iter(|| requests(black_box(batches))));
    let structs: Vec<Structs> = finished.iter().map(|request| Structs::of(request.signal, &request.body)).collect();
    group.bench_function("otlp: prost, copy finished structs and write them", |b| {
        b.iter(|| black_box(&structs).iter().map(|structs| structs.clone().written().len()).sum::<usize>());
    });
}

fn encoded(format: Format, batch: &Batch) -> Vec<u8> {
    let (mut encoder, mut out) = (Encoder::new(format), Vec::new());
    batch.events().for_each(|event| encoder.encode(event, &mut out));
    out
}

/// Spans as the Datadog session writes them: service, resource, type, and six tags. Only the URL differs between spans.
fn spans() -> Batch {
    let origin = Origin::new("datadog", "apm".into(), "127.0.0.1:40112".into(), 9).with_version("1");
    let mut builder = BatchBuilder::new(Arc::new(origin));
    builder.set_resource(Arc::new(Resource::new([
        ("host.name".to_owned(), ResourceValue::from("web-17.example.net")),
        ("process.pid".to_owned(), ResourceValue::U64(40_112)),
        ("telemetry.sdk.version".to_owned(), ResourceValue::from("2.3.0")),
    ])));
    let mut memos = [Interned::default(); 14];
    for n in 0..EVENTS as u64 {
        let url = builder.push_text(&format!("http://shop.example.net/cart/items?id={}", 7_000_000 + n));
        let mut at = 0;
        let mut text = |builder: &mut BatchBuilder, text: &str| {
            at += 1;
            builder.intern(&mut memos[at - 1], text)
        };
        let start = 1_795_176_900_123_456_789 + n * 1_000_003;
        let duration = 1_500_000 + n * 17;
        let name = text(&mut builder, "web.request");
        let (service, resource, kind) =
            (text(&mut builder, "shop"), text(&mut builder, "GET /cart/items"), text(&mut builder, "web"));
        let tags = [("http.method", "GET"), ("span.kind", "server"), ("env", "production"), ("version", "1.42.0")]
            .map(|(key, value)| (text(&mut builder, key), text(&mut builder, value)));
        let (url_key, status_key) = (text(&mut builder, "http.url"), text(&mut builder, "http.status_code"));

        let mut event = builder.event(Header {
            name: name.into(),
            time: Some(UnixNanos(start)),
            observed: UnixNanos(1_795_176_900_130_000_000),
            position: Position { sequence: Some(1000 + n), offset: 81_204 + n * 150, length: 150 },
        });
        event.attribute(semconv::SERVICE_NAME, service);
        event.attribute(semconv::DATADOG_RESOURCE, resource);
        event.attribute(semconv::DATADOG_TYPE, kind);
        event.attribute(url_key, url);
        event.attribute(status_key, 200.0);
        tags.into_iter().for_each(|(key, value)| event.attribute(key, value));
        let trace_id = TraceId((u128::from(n) << 64 | 0x463a_c35c_9f64_13ad).to_be_bytes());
        event.span(SpanData {
            parent: Some(SpanId(0x1122_3344_5566_7788_u64.to_be_bytes())),
            end: Some(UnixNanos(start + duration)),
            duration_nanos: Some(duration),
            ..SpanData::new(trace_id, SpanId((0xa2fb_4a1d_1a96_d312 + n).to_be_bytes()))
        });
    }
    builder.take()
}

/// The same lines, built and written with serde_json.
fn by_serde(batch: &Batch) -> Vec<u8> {
    let mut out = Vec::new();
    batch.events().for_each(|event| write_line(&tree(event), &mut out));
    out
}

fn write_line(tree: &Json, out: &mut Vec<u8>) {
    serde_json::to_writer(&mut *out, tree).unwrap();
    out.push(b'\n');
}

fn tree(event: EventView<'_>) -> Json {
    let DataView::Span(span) = event.data() else { panic!("a span") };
    let attributes: Map<_, _> = event
        .attributes()
        .map(|(key, value)| {
            let value = match value {
                ValueView::Text(text) => Json::from(text.text()),
                ValueView::F64(number) => Json::from(number),
                other => panic!("{other:?}"),
            };
            (key.text().to_owned(), value)
        })
        .collect();
    let resource: Map<_, _> = event
        .resource()
        .attributes()
        .iter()
        .map(|(key, value)| {
            let value = match value {
                ResourceValue::Text(text) => Json::from(text.as_str()),
                ResourceValue::U64(number) => Json::from(*number),
                other => panic!("{other:?}"),
            };
            (key.clone(), value)
        })
        .collect();
    let (origin, position) = (event.origin(), event.position());
    json!({
        "time": event.time().map(rfc_3339),
        "observed_time": rfc_3339(event.observed()),
        "kind": event.kind().as_str(),
        "name": event.name().text(),
        "span": {
            "trace_id": span.trace_id.to_string(),
            "span_id": span.span_id.to_string(),
            "parent_span_id": span.parent.map(|id| id.to_string()),
            "end_time": span.end.map(rfc_3339),
            "duration_ns": span.duration_nanos,
            "status": "unset",
        },
        "attributes": attributes,
        "resource": resource,
        "origin": {
            "protocol": origin.protocol,
            "version": origin.version.as_deref(),
            "listener": &*origin.listener,
            "peer": &*origin.peer,
            "connection": origin.connection,
            "sequence": position.sequence,
            "offset": position.offset,
            "length": position.length,
        },
    })
}

fn rfc_3339(time: UnixNanos) -> String {
    format!("{:.9}", jiff::Timestamp::from_nanosecond(i128::from(time.0)).unwrap())
}

criterion_group!(benches, encode, encode_each);
criterion_main!(benches);
