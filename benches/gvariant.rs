//! GVariant, next to two libraries for it, over the recorded upload of 5,000 events: our strict check, and our whole way
//! from the request to batches, against their way to values. Report: bytes of the bundle and events per second.

#![allow(missing_docs)]

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use tributary::codec::gvariant::{Scratch, Skip, Slice, walk_type};
use tributary::codec::inflate::Gunzip;
use tributary::decode;
use tributary::event::{Origin, UnixNanos};
use tributary::pipeline::ledger::ListenerBooks;
use tributary::protocol::endless::{self, EndlessExchange};
use tributary::protocol::{MemoryBudget, Now, Protocol, Request};

/// The recorded upload of 5,000 events, as it was on the wire.
const BULK: &[u8] = include_bytes!("../tests/data/endless/real-v3-bulk-5000/request.http");
const BULK_EVENTS: u64 = 5_000;
const BUNDLE_TYPE: &str = "(xxsa{ss}ya(aysxmv)a(ayssumv))";

/// A bundle as a library for GVariant has it.
type Bundle<'a, V> = (
    i64,
    i64,
    &'a str,
    HashMap<&'a str, &'a str>,
    u8,
    Vec<(Vec<u8>, &'a str, i64, Option<V>)>,
    Vec<(Vec<u8>, &'a str, &'a str, u32, Option<V>)>,
);

fn upload() -> Request {
    decode::requests(BULK).unwrap_or_default().remove(0)
}

fn bundle() -> Vec<u8> {
    let body = upload().body;
    let mut gunzip = Gunzip::new(1 << 20);
    while let Ok(false) = gunzip.step(&body) {}
    gunzip.into_output()
}

fn check(bundle: &[u8]) -> bool {
    walk_type(BUNDLE_TYPE, Slice::new(bundle), 0, &mut Scratch::default(), &mut Skip).is_ok()
}

fn zvariant_events(bundle: &[u8]) -> usize {
    #[expect(deprecated, reason = "what replaces it is measured too")]
    let context = zvariant::serialized::Context::new_gvariant(zvariant::LE, 0);
    let data = zvariant::serialized::Data::new(bundle, context);
    data.deserialize::<Bundle<'_, zvariant::Value<'_>>>().map_or(0, |(bundle, _)| bundle.5.len())
}

fn zgvariant_events(bundle: &[u8]) -> usize {
    let context = zgvariant::serialized::Context::new(zgvariant::LE, 0);
    let data = zgvariant::serialized::Data::new(bundle, context);
    data.deserialize::<Bundle<'_, zgvariant::Variant<'_>>>().map_or(0, |(bundle, _)| bundle.5.len())
}

fn put(request: Request) -> u64 {
    let options = endless::Options { dedup: endless::Dedup { entries: 0, ..Default::default() }, ..Default::default() };
    let exchange = EndlessExchange::new(options, &MemoryBudget::new(256 << 20));
    let books = ListenerBooks::new("bench".into(), Protocol::Endless);
    let origin = Arc::new(Origin::new("endless", "bench".into(), "bench".into(), 1));
    let now = Now { unix: UnixNanos(1_795_176_900_000_000_000), elapsed: Duration::ZERO };
    decode::answer(&exchange, request, origin, &books, now, &mut |batch| drop(black_box(batch)));
    books.account().events()
}

fn gvariant(criterion: &mut Criterion) {
    let (request, bundle) = (upload(), bundle());
    let plain = {
        let mut head = request.head.clone();
        head.headers.clear();
        Request { head, body: bundle.clone().into(), number: 1 }
    };
    assert!(check(&bundle));
    assert_eq!((put(request.clone()), put(plain.clone())), (BULK_EVENTS, BULK_EVENTS));
    assert_eq!([zvariant_events(&bundle), zgvariant_events(&bundle)], [BULK_EVENTS as usize; 2]);
    let mut group = criterion.benchmark_group("gvariant");
    group.sample_size(20).measurement_time(Duration::from_secs(3));
    group.throughput(Throughput::ElementsAndBytes { elements: BULK_EVENTS, bytes: bundle.len() as u64 });
    group.bench_function("our strict check", |bencher| bencher.iter(|| check(black_box(&bundle))));
    group.bench_function("zvariant, to values", |bencher| bencher.iter(|| zvariant_events(black_box(&bundle))));
    group.bench_function("zgvariant, to values", |bencher| bencher.iter(|| zgvariant_events(black_box(&bundle))));
    group.bench_function("plain upload to batches", |bencher| bencher.iter(|| put(black_box(plain.clone()))));
    group.bench_function("gzip upload to batches", |bencher| bencher.iter(|| put(black_box(request.clone()))));
    group.finish();
}

criterion_group!(benches, gvariant);
criterion_main!(benches);
