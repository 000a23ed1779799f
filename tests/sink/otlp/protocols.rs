//! The events of each protocol, as requests: by prost, and by a receiver of another implementation, in Python.

use std::path::Path;
use std::sync::Arc;

use tributary::decode::Offline;
use tributary::event::{
    Batch, BatchBuilder, Frame, Header, Kind, Number, Origin, Position, SampleData, UnixNanos, semconv,
};
use tributary::memory::MemoryBudget;
use tributary::pipeline::accounting::ListenerCounters;
use tributary::protocol::datadog::{DatadogSession, Options as DatadogOptions};
use tributary::protocol::{End, Protocol};
use tributary::sink::otlp::{Compression, Encoder, Options};

use super::python::Python;
use super::start;
use crate::otlp_support::{Decoded, profiles, records, requests, sorted};
use tributary_workloads::{self as workloads, NOW};

/// The most batches of each generated workload.
const MAX_BATCHES: usize = 3;

/// Recorded connections of one protocol, and generated ones of all.
fn batches() -> Vec<(String, Vec<Batch>)> {
    let mut all: Vec<_> = workloads::all()
        .into_iter()
        .map(|workload| (workload.name.to_owned(), workload.batches().into_iter().take(MAX_BATCHES).collect()))
        .collect();
    all.push(("samples".to_owned(), vec![samples()]));
    let recorded = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/datadog");
    for entry in std::fs::read_dir(recorded).unwrap() {
        let path = entry.unwrap().path();
        let Ok(bytes) = std::fs::read(path.join("wire.bin")) else { continue };
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let counters = ListenerCounters::new("spans".into(), Protocol::Datadog);
        let origin = Arc::new(Origin::new("datadog", "spans".into(), "127.0.0.1:1".into(), 1));
        let session = DatadogSession::new(DatadogOptions::default(), 16 << 20, false, &MemoryBudget::unlimited());
        let (mut offline, mut batches) = (Offline::new(session, origin, counters), Vec::new());
        offline.feed(&bytes, NOW, &mut |batch| batches.push(batch));
        offline.finish(End::Closed, NOW, &mut |batch| batches.push(batch));
        all.push((name, batches));
    }
    all
}

/// Samples of both types over 25 seconds, with frames in C, without a file or a name, and without frames.
fn samples() -> Batch {
    let origin = Origin::new("rbkit", "ruby".into(), "127.0.0.1:5555".into(), 4);
    let mut builder = BatchBuilder::new(Arc::new(origin));
    for number in 0..250u64 {
        let name = if number % 3 == 0 { semconv::RBKIT_ALLOCATIONS } else { semconv::RBKIT_CPU };
        let file = builder.push_text(["app.rb", "<cfunc>", ""][(number % 3) as usize]);
        let function = builder.push_text(&format!("Shop#cart{}", number % 7));
        let frames = [
            Frame { function: Some(function), file: Some(file), line: Some(number % 5) },
            Frame { function: None, file: Some(file), line: None },
            Frame { function: Some(function), file: None, line: Some(u64::MAX) },
            Frame::default(),
        ];
        let time = Some(UnixNanos(NOW.unix.0 + number * 100_000_000)).filter(|_| number % 11 > 0);
        let header = Header { name: name.into(), time, observed: NOW.unix, position: Position::default() };
        let mut event = builder.event(header);
        event.attribute(semconv::THREAD_ID, number % 4);
        let value = Number::U64(1 + number % 2);
        let sample_type = if number % 3 == 0 { "alloc_objects" } else { "cpu" };
        event.sample(SampleData::new(sample_type, "count", value), &frames[..(number % 5) as usize]);
    }
    builder.take()
}

#[test]
fn the_events_of_each_protocol_are_the_same_in_requests() {
    let mut kinds = [0; 5];
    for (name, batches) in batches() {
        for limit in [64 << 20, 20_000] {
            let mut encoder = Encoder::new(limit, true, 0);
            for batch in &batches {
                encoder.begin_batch();
                for event in batch.events() {
                    assert!(encoder.push(event, true), "{name}");
                    kinds[event.kind().index()] += 1;
                }
            }
            encoder.end_requests();
            encoder.end_heap();
            let mut decoded = Decoded::default();
            let mut events = 0;
            for request in encoder.take_requests() {
                assert!(request.body.len() <= limit);
                decoded.add(request.signal, &request.body);
                events += request.events as usize;
            }
            assert_eq!(events, batches.iter().map(Batch::len).sum::<usize>());
            let all = || batches.iter().flat_map(Batch::events);
            assert_eq!(profiles::samples(&decoded), profiles::expected(all()), "{name}");
            if limit > 1 << 20 {
                assert_eq!(sorted(decoded.requests), sorted(requests(all(), true)), "{name}");
            }
        }
    }
    let has = |kind: Kind| kinds[kind.index()] > 0;
    assert!(
        has(Kind::Log) && has(Kind::Span) && has(Kind::Metric) && has(Kind::Sample) && has(Kind::Loss),
        "{kinds:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_in_python_reads_the_same() {
    let Some(mut python) = Python::start() else { return };
    let endpoint: hyper::Uri = format!("http://{}", python.address()).parse().unwrap();
    for compression in [Compression::Gzip, Compression::None] {
        let options = Options { compression, max_request_bytes: 1 << 20, ..Options::to(endpoint.clone()) };
        let sending = start(options);
        for (_, batches) in batches() {
            for batch in batches {
                sending.deliver(batch).await;
            }
        }
        let totals = sending.finish().await;
        assert_eq!((totals.failed, totals.written), (0, totals.events));
    }
    let decoded = python.take();
    let batches: Vec<Batch> = (0..2).flat_map(|_| batches().into_iter().flat_map(|(_, batches)| batches)).collect();
    let all = || batches.iter().flat_map(Batch::events);
    assert_eq!(profiles::samples(&decoded), profiles::expected(all()));
    assert_eq!(records(&decoded.requests), records(&requests(all(), true)));
}
