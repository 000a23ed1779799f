//! Finished batches through one sink queue to a sink that discards them, and through two sink queues.

#![allow(missing_docs)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;
use tributary::event::{Batch, BatchBuilder, Header, Origin, Position, Severity, UnixNanos, semconv};
use tributary::pipeline::Sinks;
use tributary::pipeline::options::QueueOptions;
use tributary::sink::discard::Discard;

const BATCHES: u64 = 200;
const EVENTS_PER_BATCH: u64 = 300;

/// Batches of the size that busy connections make.
fn batches() -> Vec<Batch> {
    let origin = Arc::new(Origin::new("datadog", "bench".into(), "bench".into(), 1));
    let mut builder = BatchBuilder::new(origin);
    let now = UnixNanos(1_795_176_900_000_000_000);
    let position = Position::default();
    let mut batch = || {
        for _ in 0..EVENTS_PER_BATCH {
            let header = Header { name: semconv::DATADOG_PROCESS.into(), time: Some(now), observed: now, position };
            let mut event = builder.event(header);
            event.attribute(semconv::DATADOG_STRING_CACHE_SIZE, 1024_u64);
            event.log(Severity::Info, None);
        }
        builder.take()
    };
    (0..BATCHES).map(|_| batch()).collect()
}

/// Sends all batches and waits until every sink has written them.
fn hand_over(runtime: &Runtime, sinks: usize, batches: Vec<Batch>) -> Duration {
    runtime.block_on(async {
        let mut queues = Sinks::new(CancellationToken::new());
        for number in 0..sinks {
            queues.add(&format!("sink{number}"), QueueOptions::default(), || Ok(Discard));
        }
        let counters = queues.counters().to_vec();
        let (sender, mut workers) = queues.start();
        let began = Instant::now();
        for batch in batches {
            sender.send(batch).await;
        }
        drop(sender);
        workers.drained().await;
        let took = began.elapsed();
        for counters in counters {
            assert_eq!(counters.totals().written, BATCHES * EVENTS_PER_BATCH);
        }
        took
    })
}

fn pipeline(criterion: &mut Criterion) {
    let runtime = Runtime::new().expect("a runtime");
    let mut group = criterion.benchmark_group("pipeline");
    group.sample_size(20).measurement_time(Duration::from_secs(3));
    group.throughput(Throughput::Elements(BATCHES * EVENTS_PER_BATCH));
    for sinks in [1, 2] {
        group.bench_function(format!("{sinks} queues, {EVENTS_PER_BATCH} events a batch"), |bencher| {
            bencher.iter_batched(batches, |batches| hand_over(&runtime, sinks, batches), BatchSize::LargeInput);
        });
    }
    group.finish();
}

criterion_group!(benches, pipeline);
criterion_main!(benches);
