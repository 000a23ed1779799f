//! Wire bytes → batches, without encoding and I/O. The group `decode` measures all of it, the group `read` only the parsing of
//! the same bytes. The difference is normalizing: sessions, names, attributes.
//!
//! Reports events and wire bytes per second.

#![allow(missing_docs)]

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use tributary::protocol::bytefrog::{CallOutput, Options, Order};
use tributary_workloads::{Workload, bytefrog, endless};

fn all(criterion: &mut Criterion) {
    let workloads: Vec<_> = tributary_workloads::all().into_iter().chain(variants()).collect();
    for is_read in [false, true] {
        let mut group = criterion.benchmark_group(if is_read { "read" } else { "decode" });
        group.sample_size(20).measurement_time(Duration::from_secs(3));
        for workload in &workloads {
            group.throughput(Throughput::ElementsAndBytes { elements: workload.events, bytes: workload.wire_bytes });
            match &workload.read {
                _ if !is_read => group.bench_function(workload.name, |bencher| {
                    bencher.iter(|| workload.decode(&mut |batch| drop(black_box(batch))));
                }),
                Some(read) => group.bench_function(workload.name, |bencher| bencher.iter(read)),
                None => &mut group,
            };
        }
        group.finish();
    }
}

/// Workloads with other options or another form of upload.
fn variants() -> [Workload; 3] {
    let in_order = Options { order: Order::Sequence, ..Default::default() };
    let as_spans = Options { calls: CallOutput::Spans, ..Default::default() };
    [
        bytefrog::calls("bytefrog v4, in order", 4, in_order),
        bytefrog::calls("bytefrog v4, as spans", 4, as_spans),
        endless::plain_upload(),
    ]
}

criterion_group!(benches, all);
criterion_main!(benches);
