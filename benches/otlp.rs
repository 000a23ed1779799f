//! The sink `otlp`: what a whole daemon needs to send events by gRPC, next to what it needs to write them to a file; what writing
//! requests costs next to structs of prost; and the time from the daemon's read of an event until a receiver has it.
//!
//! `cargo bench --bench otlp [-- [cpu] [encode] [latency] [EVENTS [REPETITIONS]]]` prints tables. CPU seconds are user + system
//! time of the daemon's own process; machines differ, so compare the ratios of one run. The receiver is a server of gRPC in this
//! process that discards requests, or, for latency, decodes them. The only assertion is that every event arrives.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used)]

#[allow(dead_code, unreachable_pub, reason = "each bench uses a part of it")]
mod daemon;
mod otlp_receiver;
mod otlp_structs;

use std::hint::black_box;
use std::time::Duration;

use daemon::loads::{FILE, Load};
use daemon::process::thread_cpu_seconds;
use daemon::table::{self, count, fixed, head, median, row, spread};
use daemon::{Cost, Daemon, Simulation, raw};
use otlp_receiver::Receiver;
use otlp_structs::Structs;
use tributary::event::Batch;
use tributary::sink::encode::{Encoder as LineEncoder, Format};
use tributary::sink::otlp::{Body, Encoder, Signal};

/// As in the daemon: requests of megabytes are allocated again and again.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Spans, calls, logs and metrics, objects of a heap.
const LOADS: [&str; 4] = ["datadog", "bytefrog v4", "endless v3", "rbkit dump"];
/// The default length of a request.
const REQUEST_BYTES: usize = 3 << 20;
const RATES: [u64; 2] = [10_000, 100_000];
/// Seconds of a run that measures latency.
const LATENCY_SECONDS: u64 = 10;

fn main() {
    let (numbers, words) = table::arguments();
    let events = numbers.first().copied().unwrap_or(500_000);
    let repetitions = numbers.get(1).copied().unwrap_or(3).max(1);
    let is_asked = |part: &str| words.is_empty() || words.iter().any(|word| word == part);
    let receiver = Receiver::start();
    if is_asked("cpu") {
        println!(
            "{repetitions} interleaved repetitions; medians (lowest–highest); CPU in seconds per million events\n"
        );
        head(&["CPU", "× file", "bytes an event", "sent = written + lost"]);
        for load in LOADS.map(Load::named) {
            daemon_costs(load, load.events(events), repetitions, &receiver);
        }
    }
    if is_asked("encode") {
        println!("\nIn one thread, from batches in memory; nanoseconds of CPU per event, medians of {repetitions}\n");
        head(&["JSON lines", "OTLP", "prost", "prost ÷ OTLP", "bytes an event"]);
        for workload in tributary_workloads::all() {
            encoding(&workload, repetitions);
        }
    }
    if is_asked("latency") {
        println!(
            "\n{LATENCY_SECONDS} s each, bytefrog v4; milliseconds from the daemon's read until the receiver has the event\n"
        );
        head(&["offered", "events a request", "p50", "p99", "max", "CPU", "sent = written + lost"]);
        for delay in ["1s", "50ms"] {
            RATES.iter().for_each(|rate| latency(*rate, delay, &receiver));
        }
    }
}

/// The options of a sink that sends to the receiver.
fn sink(receiver: &Receiver, options: &str) -> String {
    format!("type = \"otlp\"\nendpoint = \"http://{}\"\n{options}", receiver.address)
}

/// Prints the cost of a load with each sink.
fn daemon_costs(load: &Load, events: u64, repetitions: u64, receiver: &Receiver) {
    let compressions = ["none", "gzip", "zstd"];
    let mut files = Vec::new();
    let mut sent: Vec<Vec<(Cost, u64)>> = compressions.iter().map(|_| Vec::new()).collect();
    for _ in 0..repetitions {
        // Frees as much memory of the machine before each run.
        raw::copy(events * load.bytes_per_event);
        files.push(Cost::of_load(load, events, "", &[FILE], &[]).0);
        for (compression, runs) in compressions.iter().zip(&mut sent) {
            receiver.take();
            let options = sink(receiver, &format!("compression = \"{compression}\""));
            let (cost, _) = Cost::of_load(load, events, "", &[&options], &[]);
            runs.push((cost, receiver.take().bytes));
        }
    }
    let bytes_an_event = |cost: &Cost, bytes: u64| fixed(bytes as f64 / cost.events as f64);
    let file = &files[0];
    let cells = [
        spread(&files, Cost::cpu_per_million),
        "1".to_owned(),
        bytes_an_event(file, file.bytes_out),
        file.balance.clone(),
    ];
    row(&format!("{} → file", load.name), &cells);
    for (compression, runs) in compressions.iter().zip(&sent) {
        let ratios: Vec<f64> =
            runs.iter().zip(&files).map(|((otlp, _), file)| otlp.cpu_seconds / file.cpu_seconds).collect();
        let (cost, bytes) = &runs[0];
        let cells = [
            spread(runs, |(cost, _)| cost.cpu_per_million()),
            spread(&ratios, |ratio| *ratio),
            bytes_an_event(cost, *bytes),
            cost.balance.clone(),
        ];
        row(&format!("{} → OTLP, {compression}", load.name), &cells);
    }
}

/// Prints what encoding a workload costs. The structs of prost are finished: they are copied, which allocates what building them
/// would, and written. Mapping events to them would come on top.
fn encoding(workload: &tributary_workloads::Workload, repetitions: u64) {
    let batches = workload.batches();
    let mut lines = LineEncoder::new(Format::Json);
    let mut out = Vec::new();
    let mut write_lines = || {
        for batch in &batches {
            out.clear();
            batch.events().for_each(|event| lines.encode(event, &mut out));
            black_box(&out);
        }
    };
    let mut encoder = Encoder::new(REQUEST_BYTES, true, 0);
    let mut requests = |batches: &[Batch]| requests(&mut encoder, batches);
    let structs: Vec<Structs> = requests(&batches).iter().map(|(signal, body)| Structs::of(*signal, body)).collect();
    let bytes: usize = requests(&batches).iter().map(|(_, body)| body.len()).sum();
    let nanos = |work: &mut dyn FnMut()| {
        let times: Vec<f64> = (0..repetitions.max(5)).map(|_| seconds_of(work)).collect();
        median(&times, |seconds| seconds * 1e9 / workload.events as f64)
    };
    let line = nanos(&mut write_lines);
    let ours = nanos(&mut || drop(black_box(requests(&batches))));
    let theirs = nanos(&mut || structs.iter().for_each(|structs| drop(black_box(structs.clone().written()))));
    let bytes = fixed(bytes as f64 / workload.events as f64);
    row(workload.name, &[fixed(line), fixed(ours), fixed(theirs), fixed(theirs / ours), bytes]);
}

/// CPU seconds of one call, from as many calls as take a tenth of a second.
fn seconds_of(work: &mut dyn FnMut()) -> f64 {
    let (before, mut calls) = (thread_cpu_seconds(), 0.0);
    loop {
        work();
        calls += 1.0;
        let taken = thread_cpu_seconds() - before;
        if taken > 0.1 {
            return taken / calls;
        }
    }
}

fn requests(encoder: &mut Encoder, batches: &[Batch]) -> Vec<(Signal, Body)> {
    for batch in batches {
        encoder.begin_batch();
        batch.events().for_each(|event| assert!(encoder.push(event, true)));
    }
    encoder.end_requests();
    encoder.end_heap();
    encoder.take_requests().into_iter().map(|request| (request.signal, request.body)).collect()
}

/// Prints the latency at a rate.
fn latency(per_second: u64, delay: &str, receiver: &Receiver) {
    let load = Load::named("bytefrog v4");
    let options = sink(receiver, &format!("compression = \"none\"\nmax_request_delay = \"{delay}\""));
    let direction = load.direction();
    receiver.take();
    receiver.decode_times(true);
    let daemon = Daemon::start(&load.config(direction, "", &[&options]));
    let cpu = daemon.process.cpu_seconds();
    let arguments = load.arguments(direction, &daemon, per_second * LATENCY_SECONDS);
    let pace = ["--rate".to_owned(), per_second.to_string()];
    let sent = Simulation::start(&[&arguments[..], &pace].concat()).finish();
    // Longer than a request stays open.
    std::thread::sleep(Duration::from_secs(2));
    let cpu = daemon.process.cpu_seconds() - cpu;
    let balance = daemon.stop().check(sent.events);
    let received = receiver.take();
    receiver.decode_times(false);
    assert_eq!(received.times.len(), sent.events, "not all events were received");
    let at = |percentile: f64| fixed(received.times.value_at_percentile(percentile) as f64 / 1e6);
    let cells = [
        count(per_second),
        fixed(sent.events as f64 / received.requests as f64),
        at(50.0),
        at(99.0),
        at(100.0),
        fixed(cpu / sent.events as f64 * 1e6),
        balance,
    ];
    row(&format!("max_request_delay {delay}"), &cells);
}
