//! Decoding and normalizing: wire bytes → batches, no encoding, no I/O. Report: bytes of the wire and spans per second.

#![allow(missing_docs)]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use tributary::decode::Offline;
use tributary::event::{Origin, UnixNanos};
use tributary::pipeline::ledger::ListenerBooks;
use tributary::protocol::datadog::{DatadogSession, Options};
use tributary::protocol::{End, MemoryBudget, Now, Protocol};
use tributary::simulate::datadog::{Dialect, Tracer};

const EVENTS: u64 = 20_000;
/// Pieces as a busy socket gives them.
const PIECE_BYTES: usize = 256 * 1024;

fn datadog_wire() -> Vec<u8> {
    let mut wire = Vec::new();
    let mut tracer = Tracer::new(1, 1, 1_795_176_900_000_000_000, Dialect::Exact);
    let mut events = tracer.hello(&mut wire).events;
    while events < EVENTS {
        events += tracer.trace(EVENTS - events, &mut wire).events;
    }
    wire
}

fn decode(wire: &[u8]) -> u64 {
    let books = ListenerBooks::new("bench".into(), Protocol::Datadog);
    let origin = Arc::new(Origin::new("datadog", "bench".into(), "bench".into(), 1));
    let session = DatadogSession::new(Options::default(), 16 << 20, false, &MemoryBudget::new(256 << 20));
    let now = Now { unix: UnixNanos(1_795_176_900_000_000_000), elapsed: Duration::ZERO };
    let mut offline = Offline::new(session, origin, books.clone());
    for piece in wire.chunks(PIECE_BYTES) {
        offline.feed(piece, now, &mut |batch| drop(black_box(batch)));
    }
    offline.finish(End::Closed, now, &mut |batch| drop(black_box(batch)));
    books.account().events()
}

fn datadog(criterion: &mut Criterion) {
    let wire = datadog_wire();
    assert_eq!(decode(&wire), EVENTS);
    let mut group = criterion.benchmark_group("decode");
    group.sample_size(20).measurement_time(Duration::from_secs(3));
    group.throughput(Throughput::ElementsAndBytes { elements: EVENTS, bytes: wire.len() as u64 });
    group.bench_function("datadog spans", |bencher| bencher.iter(|| decode(black_box(&wire))));
    group.finish();
}

criterion_group!(benches, datadog);
criterion_main!(benches);
