//! Decoding and normalizing: wire bytes → batches, no encoding, no I/O. Report: bytes of the wire and events per second.

#![allow(missing_docs)]

mod rbkit_dump;

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use tributary::decode::Offline;
use tributary::event::{Origin, UnixNanos};
use tributary::pipeline::ledger::ListenerBooks;
use tributary::protocol::bytefrog::{self, Calls, Hq, Order};
use tributary::protocol::datadog::{self, DatadogSession};
use tributary::protocol::rbkit;
use tributary::protocol::{End, MemoryBudget, Now, Protocol, Session};
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

/// The data connection of an agent: entries and exits of 16 methods in 4 threads, nested to a depth of 8.
fn bytefrog_wire(version: u8) -> Vec<u8> {
    let mut wire = vec![30, 0];
    let mut name = |head: &[u8], text: String| {
        wire.extend_from_slice(head);
        wire.extend_from_slice(&(text.len() as u16).to_be_bytes());
        wire.extend_from_slice(text.as_bytes());
    };
    for method in 0..16u8 {
        name(&[11, 0, 0, 0, method], format!("com/example/shop/checkout/Cart.method{method};1;(ILjava/lang/String;)V"));
    }
    for thread in 0..4u8 {
        name(&[10, 0, thread, 0, 0, 0, 0], format!("http-worker-{thread}"));
    }
    for number in 0..EVENTS as u32 {
        let (step, thread) = (number / 4 % 16, (number % 4) as u16);
        let method = step.min(15 - step) + u32::from(thread);
        let head = [number / 1000, number, method].map(u32::to_be_bytes).concat();
        wire.push(if step < 8 { 20 } else { 21 });
        wire.extend_from_slice(&head);
        match version {
            _ if step < 8 => {}
            1 => wire.extend_from_slice(&77u16.to_be_bytes()),
            _ => wire.push(0),
        }
        wire.extend_from_slice(&thread.to_be_bytes());
    }
    wire
}

/// What a subscription receives when a heap is dumped.
fn rbkit_wire() -> Vec<u8> {
    let count = (rbkit_dump::OBJECTS as u32).to_be_bytes();
    let head = [&[0x83, 0, 7, 9, 0, 2, 0x91, 0x84, 0, 5, 10, 1, 11, 0xCE][..], &count, &[2]].concat();
    let body = [head, rbkit_dump::dump()].concat();
    let mut wire = vec![0xFF, 0, 0, 0, 0, 0, 0, 0, 1, 0x7F, 3, 1];
    wire.extend_from_slice(b"NULL");
    wire.resize(64, 0);
    wire.extend_from_slice(b"\x04\x19\x05READY\x0BSocket-Type\0\0\0\x03PUB\x02");
    wire.extend_from_slice(&(body.len() as u64).to_be_bytes());
    wire.extend_from_slice(&body);
    wire
}

const NOW: Now = Now { unix: UnixNanos(1_795_176_900_000_000_000), elapsed: Duration::ZERO };

/// Events of one connection.
fn decode(session: impl Session, protocol: Protocol, wire: &[u8]) -> u64 {
    let books = ListenerBooks::new("bench".into(), protocol);
    let origin = Arc::new(Origin::new(protocol.as_str(), "bench".into(), "bench".into(), 1));
    let mut offline = Offline::new(session, origin, books.clone());
    for piece in wire.chunks(PIECE_BYTES) {
        offline.feed(piece, NOW, &mut |batch| drop(black_box(batch)));
    }
    offline.finish(End::Closed, NOW, &mut |batch| drop(black_box(batch)));
    books.account().events()
}

fn decode_datadog(wire: &[u8]) -> u64 {
    let options = datadog::Options::default();
    decode(DatadogSession::new(options, 16 << 20, false, &MemoryBudget::new(256 << 20)), Protocol::Datadog, wire)
}

fn decode_bytefrog(version: u8, options: &bytefrog::Options, wire: &[u8]) -> u64 {
    let hq = Hq::offline(options.clone(), false, MemoryBudget::new(256 << 20), Some(version));
    decode(hq.session(None), Protocol::Bytefrog, wire)
}

fn decode_rbkit(wire: &[u8]) -> u64 {
    let agent = rbkit::Agent::new(rbkit::AgentOptions::default());
    decode(rbkit::Subscription::new(agent, rbkit::Options::default().into(), 16 << 20), Protocol::Rbkit, wire)
}

fn all(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("decode");
    group.sample_size(20).measurement_time(Duration::from_secs(3));
    let spans = datadog_wire();
    assert_eq!(decode_datadog(&spans), EVENTS);
    group.throughput(Throughput::ElementsAndBytes { elements: EVENTS, bytes: spans.len() as u64 });
    group.bench_function("datadog spans", |bencher| bencher.iter(|| decode_datadog(black_box(&spans))));
    for (name, version, calls, order) in [
        ("bytefrog calls, version 1", 1, Calls::Events, Order::Received),
        ("bytefrog calls, version 4", 4, Calls::Events, Order::Received),
        ("bytefrog calls, version 4, in order", 4, Calls::Events, Order::Sequence),
        ("bytefrog calls as spans, version 4", 4, Calls::Spans, Order::Sequence),
    ] {
        let options = bytefrog::Options { calls, order, ..Default::default() };
        let wire = bytefrog_wire(version);
        assert!(decode_bytefrog(version, &options, &wire) > EVENTS / 2);
        group.throughput(Throughput::ElementsAndBytes { elements: EVENTS, bytes: wire.len() as u64 });
        group.bench_function(name, |bencher| bencher.iter(|| decode_bytefrog(version, &options, black_box(&wire))));
    }
    let dump = rbkit_wire();
    assert_eq!(decode_rbkit(&dump), rbkit_dump::OBJECTS + 1);
    group.throughput(Throughput::ElementsAndBytes { elements: rbkit_dump::OBJECTS, bytes: dump.len() as u64 });
    group.bench_function("rbkit heap dump", |bencher| bencher.iter(|| decode_rbkit(black_box(&dump))));
    group.finish();
}

criterion_group!(benches, all);
criterion_main!(benches);
