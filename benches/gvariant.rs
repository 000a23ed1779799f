//! GVariant, compared with two libraries, over the recorded upload of 5,000 events: our strict check, and their decoding to
//! values. Our decoding to batches is in the bench `decode`. Reports bytes of the bundle and events per second.

#![allow(missing_docs)]

use std::collections::HashMap;
use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use tributary_workloads::endless::{EVENTS, bundle, check};

/// The type of a bundle for a GVariant library.
type Bundle<'a, V> = (
    i64,
    i64,
    &'a str,
    HashMap<&'a str, &'a str>,
    u8,
    Vec<(Vec<u8>, &'a str, i64, Option<V>)>,
    Vec<(Vec<u8>, &'a str, &'a str, u32, Option<V>)>,
);

fn zvariant_events(bundle: &[u8]) -> usize {
    #[expect(deprecated, reason = "the replacement is measured too")]
    let context = zvariant::serialized::Context::new_gvariant(zvariant::LE, 0);
    let data = zvariant::serialized::Data::new(bundle, context);
    data.deserialize::<Bundle<'_, zvariant::Value<'_>>>().map_or(0, |(bundle, _)| bundle.5.len())
}

fn zgvariant_events(bundle: &[u8]) -> usize {
    let context = zgvariant::serialized::Context::new(zgvariant::LE, 0);
    let data = zgvariant::serialized::Data::new(bundle, context);
    data.deserialize::<Bundle<'_, zgvariant::Variant<'_>>>().map_or(0, |(bundle, _)| bundle.5.len())
}

fn gvariant(criterion: &mut Criterion) {
    let bundle = bundle();
    assert!(check(&bundle) > 0);
    assert_eq!([zvariant_events(&bundle), zgvariant_events(&bundle)], [EVENTS as usize; 2]);
    let mut group = criterion.benchmark_group("gvariant");
    group.sample_size(20).measurement_time(Duration::from_secs(3));
    group.throughput(Throughput::ElementsAndBytes { elements: EVENTS, bytes: bundle.len() as u64 });
    group.bench_function("our strict check", |bencher| bencher.iter(|| check(black_box(&bundle))));
    group.bench_function("zvariant, to values", |bencher| bencher.iter(|| zvariant_events(black_box(&bundle))));
    group.bench_function("zgvariant, to values", |bencher| bencher.iter(|| zgvariant_events(black_box(&bundle))));
    group.finish();
}

criterion_group!(benches, gvariant);
criterion_main!(benches);
