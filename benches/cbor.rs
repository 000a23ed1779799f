//! CBOR, compared with two libraries, over bodies of traces of both generations of agents: the items of traces, all items one
//! by one, and skipping whole documents. Reports bytes of the body per second.

#![allow(missing_docs)]

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use minicbor::data::Type;
use serde::de::IgnoredAny;
use tributary::codec::cbor::{MOST_DEPTH, Reader};
use tributary::protocol::zico::wire::ZicoDialect;
use tributary_workloads::EVENTS;
use tributary_workloads::zico::{DEPTH, entries, records};

fn skipped(body: &[u8]) -> usize {
    let (mut reader, mut items) = (Reader::new(body), 0);
    while !reader.is_at_end() && reader.skip(MOST_DEPTH).is_ok() {
        items += 1;
    }
    items
}

fn minicbor_skipped(body: &[u8]) -> usize {
    let (mut decoder, mut items) = (minicbor::Decoder::new(body), 0);
    while decoder.position() < body.len() && decoder.skip().is_ok() {
        items += 1;
    }
    items
}

/// Reads one item after the other, as our reader does.
fn minicbor_pulled(body: &[u8]) -> Result<usize, minicbor::decode::Error> {
    let (mut decoder, mut items) = (minicbor::Decoder::new(body), 0);
    while decoder.position() < body.len() {
        match decoder.datatype()? {
            Type::U8 | Type::U16 | Type::U32 | Type::U64 => drop(black_box(decoder.u64()?)),
            Type::Bytes => drop(black_box(decoder.bytes()?)),
            Type::String => drop(black_box(decoder.str()?)),
            Type::Array | Type::ArrayIndef => drop(black_box(decoder.array()?)),
            Type::Map | Type::MapIndef => drop(black_box(decoder.map()?)),
            Type::Tag => drop(black_box(decoder.tag()?)),
            Type::Break => decoder.set_position(decoder.position() + 1),
            _ => decoder.skip()?,
        }
        items += 1;
    }
    Ok(items)
}

/// Reads one item after the other with our reader.
fn pulled(body: &[u8]) -> usize {
    let (mut reader, mut items) = (Reader::new(body), 0);
    while let Ok(item) = reader.item() {
        black_box(item);
        items += 1;
    }
    items
}

fn ciborium_items<T: serde::de::DeserializeOwned>(mut body: &[u8]) -> usize {
    let mut items = 0;
    while !body.is_empty() {
        match ciborium::from_reader::<T, _>(&mut body) {
            Ok(item) => drop(black_box(item)),
            Err(_) => break,
        }
        items += 1;
    }
    items
}

fn all(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("cbor");
    group.sample_size(20).measurement_time(Duration::from_secs(3));
    for (name, dialect) in [("gen1", ZicoDialect::Gen1), ("gen2", ZicoDialect::Gen2)] {
        let (body, traces) = (records(dialect), (EVENTS / DEPTH) as usize);
        assert_eq!(skipped(&body), traces);
        assert_eq!(minicbor_skipped(&body), traces);
        assert_eq!(minicbor_pulled(&body).ok(), Some(pulled(&body)));
        assert_eq!(ciborium_items::<IgnoredAny>(&body), traces);
        assert_eq!(ciborium_items::<ciborium::Value>(&body), traces);
        assert!(entries(&body, dialect) > EVENTS as usize);
        group.throughput(Throughput::Bytes(body.len() as u64));
        let body = black_box(body.as_slice());
        group.bench_function(format!("{name}, items of traces"), |b| b.iter(|| entries(body, dialect)));
        group.bench_function(format!("{name}, skipped"), |b| b.iter(|| skipped(body)));
        group.bench_function(format!("{name}, minicbor, skipped"), |b| b.iter(|| minicbor_skipped(body)));
        group.bench_function(format!("{name}, one by one"), |b| b.iter(|| pulled(body)));
        group.bench_function(format!("{name}, minicbor, one by one"), |b| b.iter(|| minicbor_pulled(body).ok()));
        group.bench_function(format!("{name}, ciborium, ignored"), |b| b.iter(|| ciborium_items::<IgnoredAny>(body)));
        group.bench_function(format!("{name}, ciborium, values"), |b| {
            b.iter(|| ciborium_items::<ciborium::Value>(body));
        });
    }
    group.finish();
}

criterion_group!(benches, all);
criterion_main!(benches);
