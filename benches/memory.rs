//! Memory of the daemon: idle, with thousands of silent and of busy connections, at full speed, and with the longest messages.
//!
//! `cargo bench --bench memory [-- [EVENTS]]` prints a table. Resident memory is that of the daemon's process,
//! including the program itself, when it is idle again and at its peak. The only assertion is that every event arrives.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used)]

#[allow(dead_code, unreachable_pub, reason = "each bench uses a part of it")]
mod daemon;

use std::thread;
use std::time::{Duration, Instant};

use daemon::loads::{FILE, LOADS, Load};
use daemon::table::{self, count, fixed, head, row};
use daemon::wire::{Http, Wire, datadog};
use daemon::{Cost, Daemon, SentEvents, Simulation};

const IDLE_CONNECTIONS: u64 = 5_000;
/// Connections that send at full speed.
const BUSY_CONNECTIONS: [u64; 2] = [100, 5_000];
/// When memory is read again after busy connections have closed.
const AFTER: [u64; 3] = [1, 3, 10];
/// Objects of a heap dump of 60 MB, and records of a trace of 40 MB.
const OBJECTS: u64 = 1_120_000;
const RECORDS: u64 = 1_060_000;
/// How long an idle daemon is observed.
const OBSERVED: Duration = Duration::from_secs(5);

fn main() {
    let (numbers, _) = table::arguments();
    let events = numbers.first().copied().unwrap_or(1_000_000);
    println!("Resident MiB of the whole process; a file sink\n");
    head(&["at rest", "peak", "MB in", "events/s", "sent = written + lost"]);
    for load in LOADS.iter().filter(|load| load.name != "rbkit dump") {
        let (cost, _) = Cost::of_load(load, load.events(events), "", &[FILE], &[]);
        print(&format!("{}, full speed", load.name), &cost);
    }
    let dump = Cost::of_load(Load::named("rbkit dump"), OBJECTS, "", &[FILE], &[]).0;
    print(&format!("rbkit, a heap dump of {} objects in one message", count(OBJECTS)), &dump);
    print(&format!("zico gen2, a trace of {} records in one request", count(RECORDS)), &long_trace());

    println!("\nBusy connections, and memory after they have closed:\n");
    head(&["peak", "after 1 s", "3 s", "10 s", "CPU", "sent = written + lost"]);
    BUSY_CONNECTIONS.iter().for_each(|connections| busy(*connections, events));

    println!("\nAt rest, observed for {} s:\n", OBSERVED.as_secs());
    head(&["MiB", "KiB per connection", "CPU ms/s", "wake-ups/s", "sent = written + lost"]);
    let alone = at_rest("nothing connected", 0, None);
    at_rest(&format!("{} connections, one span on each", count(IDLE_CONNECTIONS)), IDLE_CONNECTIONS, Some(alone));
}

fn print(name: &str, cost: &Cost) {
    let megabytes = fixed(cost.bytes_in as f64 / 1e6);
    let per_second = table::rate(cost.per_second());
    row(name, &[fixed(cost.memory.now), fixed(cost.memory.peak), megabytes, per_second, cost.balance.clone()]);
}

/// Prints a row of `connections` connections that send `events` spans together, as fast as they can.
fn busy(connections: u64, events: u64) {
    let load = Load::named("datadog");
    let direction = load.direction();
    let config = load.config(direction, "max_connections = 6000", &[FILE]);
    let mut afterwards = Vec::new();
    let send = |daemon: &Daemon, ()| {
        let number = ["--connections".to_owned(), connections.to_string()];
        let arguments = [load.arguments(direction, daemon, events), number.to_vec()].concat();
        let sent = Simulation::start(&arguments).finish();
        let closed = Instant::now();
        for seconds in AFTER {
            thread::sleep(Duration::from_secs(seconds).saturating_sub(closed.elapsed()));
            afterwards.push(fixed(daemon.process.memory().now));
        }
        SentEvents { events: sent.events, before: 0 }
    };
    let (cost, _) = Cost::of(&config, |_| (), send);
    let mut cells = vec![fixed(cost.memory.peak)];
    cells.append(&mut afterwards);
    cells.extend([fixed(cost.cpu_per_million()), cost.balance]);
    row(&format!("{} busy connections", count(connections)), &cells);
}

fn long_trace() -> Cost {
    let send = |daemon: &Daemon, ()| {
        let mut http = Http::connect(daemon.address());
        http.begin_session();
        http.trace(1, RECORDS);
        SentEvents { events: RECORDS + 1, before: 0 }
    };
    let config = format!("[listeners.bench]\nprotocol = \"zico\"\nlisten = \"127.0.0.1:0\"\n[sinks.out]\n{FILE}\n");
    Cost::of(&config, |_| (), send).0
}

/// Prints a row of a daemon with `connections` silent connections; `alone` is its memory without connections. Returns its
/// memory.
fn at_rest(name: &str, connections: u64, alone: Option<f64>) -> f64 {
    let config = format!(
        "[listeners.bench]\nprotocol = \"datadog\"\nlisten = \"127.0.0.1:0\"\nmax_connections = 6000\n[sinks.out]\n{FILE}\n"
    );
    let daemon = Daemon::start(&config);
    let mut peers = Vec::new();
    for number in 0..connections {
        let mut wire = Wire::connect(daemon.address());
        wire.push(&datadog::process(1024));
        wire.push(&datadog::string(1, b"GET /shelves"));
        wire.push(&datadog::span(number, 1, [1, 1]));
        wire.flush();
        peers.push(wire);
    }
    // The span of each connection is written when no data follows for a second.
    thread::sleep(Duration::from_secs(2));
    daemon.settled_cpu_seconds();
    let (cpu, sleeps, began) = (daemon.process.cpu_seconds(), daemon.process.sleeps(), Instant::now());
    thread::sleep(OBSERVED);
    let seconds = began.elapsed().as_secs_f64();
    let millis = (daemon.process.cpu_seconds() - cpu) * 1e3 / seconds;
    let wakeups = (daemon.process.sleeps() - sleeps) / seconds;
    let resident = daemon.process.memory().now;
    let each = alone.map_or(String::new(), |alone| fixed((resident - alone) * 1024.0 / connections as f64));
    peers.into_iter().for_each(Wire::close);
    // Each connection has a process object and a span.
    let balance = daemon.stop().check(2 * connections);
    row(name, &[fixed(resident), each, fixed(millis), fixed(wakeups), balance]);
    resident
}
