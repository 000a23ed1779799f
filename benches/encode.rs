//! What one event costs to encode: a realistic Datadog span as our JSON line, as our line for eyes, and by serde_json
//! from a derived-like struct and from a ready `serde_json::Value`.
//!
//!     cargo bench --bench encode

#![allow(missing_docs)]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use serde_json::Value as Json;
use tributary::event::{
    Batch, BatchBuilder, Header, Interned, Origin, Position, Resource, ResourceValue, SpanData, SpanId, Status,
    TraceId, UnixNanos, semconv,
};
use tributary::sink::encode::{Encoder, Format};

const EVENTS: u64 = 1000;

fn encode(c: &mut Criterion) {
    let batch = batch();
    let line = json_lines(&batch);
    let value: Json = serde_json::from_slice(line.split(|b| *b == b'\n').next().expect("a line")).expect("JSON");

    let mut group = c.benchmark_group("encode");
    group.warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2)).sample_size(30);

    for format in Format::ALL {
        let mut encoder = Encoder::new(format);
        let mut out = Vec::new();
        batch.events().for_each(|event| encoder.encode(event, &mut out));
        // Per event, not per batch: the figures are nanoseconds of one event.
        group.throughput(Throughput::Bytes(out.len() as u64));
        group.bench_function(format!("{}, {EVENTS} spans", format.as_str()), |b| {
            b.iter(|| {
                out.clear();
                for event in black_box(&batch).events() {
                    encoder.encode(event, &mut out);
                }
                black_box(&out);
            });
        });
    }

    group.throughput(Throughput::Bytes(line.len() as u64));
    group.bench_function(format!("serde_json value, {EVENTS} spans"), |b| {
        let mut out = Vec::new();
        b.iter(|| {
            out.clear();
            for _ in 0..EVENTS {
                serde_json::to_writer(&mut out, black_box(&value)).expect("memory");
                out.push(b'\n');
            }
            black_box(&out);
        });
    });
    group.bench_function(format!("raw copy, {EVENTS} lines"), |b| {
        let mut out: Vec<u8> = Vec::new();
        b.iter(|| {
            out.clear();
            for line in black_box(&line).chunks(line.len() / EVENTS as usize) {
                out.extend_from_slice(line);
            }
            black_box(&out);
        });
    });
    group.finish();
}

fn json_lines(batch: &Batch) -> Vec<u8> {
    let mut encoder = Encoder::new(Format::Json);
    let mut out = Vec::new();
    batch.events().for_each(|event| encoder.encode(event, &mut out));
    out
}

/// Spans as the Datadog session writes them: six tags, a metric, the service's name, resource and type.
fn batch() -> Batch {
    let origin = Origin::new("datadog", "apm".into(), "127.0.0.1:40112".into(), 9).with_version("1");
    let mut builder = BatchBuilder::new(Arc::new(origin));
    builder.set_resource(Arc::new(Resource::new([
        ("host.name".to_owned(), ResourceValue::from("web-17.example.net")),
        ("process.pid".to_owned(), ResourceValue::U64(40_112)),
        ("telemetry.sdk.version".to_owned(), ResourceValue::from("2.3.0")),
    ])));
    let mut memos = [Interned::default(); 24];
    let texts = [
        "web.request",
        "shop",
        "GET /cart",
        "web",
        "http.method",
        "GET",
        "http.url",
        "http.status_code",
        "span.kind",
        "server",
        "env",
        "production",
        "version",
        "1.42.0",
    ];
    for n in 0..EVENTS {
        let mut intern =
            texts.iter().zip(&mut memos).map(|(text, memo)| builder.intern(memo, text)).collect::<Vec<_>>().into_iter();
        let mut next = || intern.next().expect("enough texts");
        let url = builder.push_text(&format!("http://shop.example.net/cart/items?id={}", 7_000_000 + n));
        let start = 1_795_176_900_123_456_789 + n * 1_000_003;
        let duration = 1_500_000 + n * 17;
        let mut event = builder.event(Header {
            name: next().into(),
            time: Some(UnixNanos(start)),
            observed: UnixNanos(1_795_176_900_130_000_000),
            position: Position { sequence: Some(1000 + n), offset: 81_204 + n * 150, length: 150 },
        });
        event.attribute(semconv::SERVICE_NAME, next());
        event.attribute(semconv::DATADOG_RESOURCE, next());
        event.attribute(semconv::DATADOG_TYPE, next());
        event.attribute(next(), next());
        event.attribute(next(), url);
        event.attribute(next(), 200.0);
        event.attribute(next(), next());
        event.attribute(next(), next());
        event.attribute(next(), next());
        event.span(SpanData {
            trace_id: TraceId((u128::from(n) << 64 | 0x463a_c35c_9f64_13ad).to_be_bytes()),
            span_id: SpanId((0xa2fb_4a1d_1a96_d312 + n).to_be_bytes()),
            parent: Some(SpanId(0x1122_3344_5566_7788_u64.to_be_bytes())),
            end: Some(UnixNanos(start + duration)),
            duration_nanos: Some(duration),
            status: Status::Unset,
        });
    }
    builder.take()
}

criterion_group!(benches, encode);
criterion_main!(benches);
