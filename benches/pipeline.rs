//! Finished batches through one sink queue to a sink that discards them, and through two sink queues; and what the rules of a
//! sink cost.

#![allow(missing_docs)]

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;
use tributary::config::Config;
use tributary::event::{Batch, BatchBuilder, Header, Origin, Position, Severity, UnixNanos, semconv};
use tributary::pipeline::Sinks;
use tributary::pipeline::options::QueueOptions;
use tributary::select::Rules;
use tributary::sink::discard::Discard;
use tributary::sink::{Kinds, Selection};

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

/// The rules of a sink with these lines of configuration.
fn rules(lines: &str) -> Arc<Rules> {
    let text = format!("[sinks.a]\ntype = \"discard\"\n{lines}\n");
    let config = Config::parse("bench", &text).unwrap_or_else(|errors| panic!("{errors}")).config;
    Rules::new(&config.sinks[0].select).ok().flatten().expect("rules")
}

fn selection(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("rules");
    group.sample_size(20).measurement_time(Duration::from_secs(2));
    group.throughput(Throughput::Elements(EVENTS_PER_BATCH));
    let batch = batches().remove(0);
    let ten = (0..10).map(|number| format!("{{ name = \"zico.{number}*\" }}")).collect::<Vec<_>>().join(", ");
    for (name, lines) in [
        ("one condition, another kind", "where = [{ kind = \"span\", min_duration = \"100ms\" }]"),
        ("one condition, another name", "where = [{ name = \"rbkit.object.*\" }]"),
        ("three conditions and two exceptions, other kinds and names", THREE),
        ("ten conditions, other names", &format!("where = [{ten}]")),
        (
            "one condition, an attribute that is compared",
            "where = [{ attribute = \"datadog.string_cache_size\", min = 2000 }]",
        ),
    ] {
        let rules = rules(lines);
        group.bench_function(name, |bencher| bencher.iter(|| rules.choose(black_box(&batch), Kinds::ALL)));
    }
    let events = Selection::new(&batch, Kinds::ALL);
    for (name, lines) in [
        ("remove: no such key", "remove = [\"http.request.header.cookie\", \"*.password\", \"resource:host.name\"]"),
        ("remove: one attribute", "remove = [\"datadog.string_cache_size\"]"),
    ] {
        let rules = rules(lines);
        group.bench_function(name, |bencher| bencher.iter(|| rules.redact(black_box(events))));
    }
    group.finish();
}

/// Rules of a sink for slow and failed spans.
const THREE: &str = "where = [{ kind = \"span\", min_duration = \"100ms\" }, { kind = \"span\", status = \"error\" }, { kind = \"loss\" }]\n\
                     unless = [{ name = \"rbkit.object.*\" }, { kind = \"span\", attribute = \"http.route\", equals = \"/health\" }]";

criterion_group!(benches, pipeline, selection);
criterion_main!(benches);
