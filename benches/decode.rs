//! Decoding and normalizing: wire bytes → batches, no encoding, no I/O. Report: bytes of the wire and events per second.

#![allow(missing_docs)]

mod rbkit_dump;

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use tributary::decode::{self, Offline};
use tributary::event::{Origin, UnixNanos};
use tributary::pipeline::ledger::ListenerBooks;
use tributary::protocol::bytefrog::{self, Calls, Hq, Order};
use tributary::protocol::datadog::{self, DatadogSession};
use tributary::protocol::rbkit;
use tributary::protocol::zico::{self, ZicoExchange};
use tributary::protocol::{End, Head, MemoryBudget, Now, Protocol, Request, Session};
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

/// A body of definitions, and one with so many records in traces of 40: calls to a depth of 20, some with attributes.
fn zico_bodies(dialect: &str) -> [Vec<u8>; 2] {
    let is_gen2 = dialect == "gen2";
    let mut definitions = Vec::new();
    let strings = [(1, "com.example.shop.checkout.Cart"), (2, "total"), (3, "(ILjava/lang/String;)V"), (7, "http")];
    for (id, text) in strings.into_iter().chain([(10, "http.url"), (11, "http.status")]) {
        definitions.extend_from_slice(&[0xC1, if is_gen2 { 0x82 } else { 0x83 }, id, 0x60 + text.len().min(23) as u8]);
        if text.len() > 23 {
            definitions.pop();
            definitions.extend_from_slice(&[0x78, text.len() as u8]);
        }
        definitions.extend_from_slice(text.as_bytes());
        definitions.extend_from_slice(if is_gen2 { &[] } else { &[0] });
    }
    definitions.extend_from_slice(&[0xC2, 0x84, 9, 1, 2, 3]);
    let mut trace = Vec::new();
    for number in 0..EVENTS / 20 {
        for call in 0..20 {
            if is_gen2 {
                trace.extend_from_slice(b"\xc3\x9f\x1b");
                trace.extend_from_slice(&(1_326_258_996_611 + number).to_be_bytes());
                trace.push(9);
            } else {
                trace.extend_from_slice(b"\xc8\x9f\xcb\x48");
                trace.extend_from_slice(&(9 << 40 | number).to_le_bytes());
            }
            if call == 0 {
                trace.extend_from_slice(if is_gen2 { b"\xc5" } else { b"\xd8\x21" });
                trace.extend_from_slice(b"\x82\x1b\x00\x00\x01\x8b\xcf\xe5\x68\x00\x07");
            }
            if call % 4 == 1 {
                let gen1 = b"\xc9\xa2\xc6\x0a\x6c/orders/4711\xc6\x0b\x18\xc8";
                trace.extend_from_slice(if is_gen2 {
                    b"\xc6\x82\x0a\x6c/orders/4711\xc6\x82\x0b\x63200"
                } else {
                    gen1
                });
            }
        }
        for _ in 0..20 {
            if is_gen2 {
                trace.extend_from_slice(b"\xc4\x83\x1b");
                trace.extend_from_slice(&(1_326_258_999_611 + number).to_be_bytes());
                trace.extend_from_slice(b"\x01\x19\x21\x08\xff");
            } else {
                trace.extend_from_slice(b"\xcd\x48");
                trace.extend_from_slice(&((1 << 40) | (number + 9)).to_le_bytes());
                trace.push(0xFF);
            }
        }
    }
    [definitions, trace]
}

/// Events of a body.
fn decode_zico(exchange: &ZicoExchange, dialect: &str, path: &str, body: &Bytes) -> u64 {
    let books = ListenerBooks::new("bench".into(), Protocol::Zico);
    let origin = Arc::new(Origin::new("zico", "bench".into(), "bench".into(), 1));
    let session = if dialect == "gen2" { "x-zorka-session-id" } else { "x-zorka-session-uuid" };
    let headers = vec![(session.to_owned(), b"00c0ffee12345678".to_vec())];
    let head = Head { method: "POST".to_owned(), target: format!("/agent/submit/{path}"), headers };
    let request = Request { head, body: body.clone(), number: 1 };
    let (answer, _) = decode::answer(exchange, request, origin, &books, NOW, &mut |batch| drop(black_box(batch)));
    assert_eq!((answer.status, books.account().lost()), (202, 0));
    books.account().events()
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
    for dialect in ["gen1", "gen2"] {
        let exchange = ZicoExchange::recorded(zico::Options::default(), false, &MemoryBudget::new(256 << 20));
        let [definitions, trace] = zico_bodies(dialect).map(Bytes::from);
        decode_zico(&exchange, dialect, "agd", &definitions);
        assert_eq!(decode_zico(&exchange, dialect, "trc", &trace), EVENTS);
        group.throughput(Throughput::ElementsAndBytes { elements: EVENTS, bytes: trace.len() as u64 });
        group.bench_function(format!("zico records, {dialect}"), |bencher| {
            bencher.iter(|| decode_zico(&exchange, dialect, "trc", black_box(&trace)));
        });
    }
    let dump = rbkit_wire();
    assert_eq!(decode_rbkit(&dump), rbkit_dump::OBJECTS + 1);
    group.throughput(Throughput::ElementsAndBytes { elements: rbkit_dump::OBJECTS, bytes: dump.len() as u64 });
    group.bench_function("rbkit heap dump", |bencher| bencher.iter(|| decode_rbkit(black_box(&dump))));
    group.finish();
}

criterion_group!(benches, all);
criterion_main!(benches);
