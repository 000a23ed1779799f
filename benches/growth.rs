//! How the daemon's cost grows: with connections, with the size of messages, with the size of dictionaries, with sinks, and
//! with a slow sink.
//!
//! `cargo bench --bench growth [-- [TABLE...] EVENTS [REPETITIONS]]` prints a table each for `connections`, `sizes`,
//! `dictionaries`, `sinks` and `slow`. The rows of a table are run interleaved. The only assertion is that every event
//! arrives.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used)]

#[allow(dead_code, unreachable_pub, reason = "each bench uses a part of it")]
mod daemon;

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use daemon::loads::{DISCARD, FILE, Load};
use daemon::table::{self, count, fixed, head, median, rate, row, spread};
use daemon::wire::{BytefrogAgent, Http, Wire, datadog};
use daemon::{Cost, Daemon, SentEvents, Simulation};
use tributary::simulate::endless::{AgentVersion, Machine};

/// A row of a table, with the function that runs it.
struct Row {
    name: String,
    run: Box<dyn Fn() -> Cost>,
}

fn main() {
    let (numbers, words) = table::arguments();
    let events = numbers.first().copied().unwrap_or(500_000);
    let repetitions = numbers.get(1).copied().unwrap_or(3).max(1);
    let is_wanted = |name: &str| words.is_empty() || words.iter().any(|word| word == name);
    println!("{repetitions} interleaved repetitions; medians (lowest–highest); CPU in seconds per million events");
    if is_wanted("connections") {
        let numbers = [1, 10, 100, 1_000, 5_000];
        let title = "The same events over more connections, at full speed, each opened for the run";
        print(title, connections("datadog", events * 2, &numbers, &[]), repetitions);
        let title = "The same events over more connections, 100,000 a second together";
        print(title, connections("datadog", events, &numbers, &["--rate", "100000"]), repetitions);
        let title = "The same events over more HTTP connections, as fast as requests are answered";
        print(title, connections("zico gen2", events, &numbers[..4], &[]), repetitions);
    }
    if is_wanted("sizes") {
        print("Spans with a longer text", texts(events), repetitions);
        print("More events in a bundle", bundles(events / 2), repetitions);
        print("More records in a trace", traces(events), repetitions);
    }
    if is_wanted("dictionaries") {
        print(
            "Spans that refer to one of a number of strings, all of them defined before",
            strings(events),
            repetitions,
        );
        print("Calls of one of a number of methods, all of them defined before", methods(events * 2), repetitions);
    }
    if is_wanted("sinks") {
        print("More sinks", sinks(events), repetitions);
    }
    if is_wanted("slow") {
        slow(events / 5);
    }
}

/// Runs the rows interleaved and prints them.
fn print(title: &str, rows: Vec<Row>, repetitions: u64) {
    let mut costs: Vec<Vec<Cost>> = rows.iter().map(|_| Vec::new()).collect();
    for _ in 0..repetitions {
        rows.iter().zip(&mut costs).for_each(|(row, costs)| costs.push((row.run)()));
    }
    println!("\n{title}:\n");
    head(&["events/s", "MB in", "CPU", "× first row", "peak MiB", "sent = written + lost"]);
    let first = median(&costs[0], Cost::cpu_per_million);
    for (Row { name, .. }, costs) in rows.iter().zip(costs) {
        let cells = [
            rate(median(&costs, Cost::per_second)),
            fixed(costs[0].bytes_in as f64 / 1e6),
            spread(&costs, Cost::cpu_per_million),
            fixed(median(&costs, Cost::cpu_per_million) / first),
            fixed(median(&costs, |cost| cost.memory.peak)),
            costs[0].balance.clone(),
        ];
        row(name, &cells);
    }
}

fn connections(load: &'static str, events: u64, numbers: &[u64], pace: &'static [&'static str]) -> Vec<Row> {
    let row = |&number: &u64| Row {
        name: format!("{load} → file, {} connection{}", count(number), if number == 1 { "" } else { "s" }),
        run: Box::new(move || {
            let number = number.to_string();
            let load = Load { agent: AGENT[usize::from(load != "datadog")], ..*Load::named(load) };
            let arguments = [pace, &["--connections", &number]].concat();
            Cost::of_load(&load, events, "max_connections = 6000", &[FILE], &arguments).0
        }),
    };
    numbers.iter().map(row).collect()
}

/// Agents without the argument `--connections`.
const AGENT: [&[&str]; 2] = [&["datadog"], &["zico"]];

fn texts(events: u64) -> Vec<Row> {
    let row = |&bytes: &usize| Row {
        name: format!("datadog → file, {} bytes of text", count(bytes as u64)),
        run: Box::new(move || {
            let send = |daemon: &Daemon, ()| {
                let events = events.min(400_000_000 / bytes as u64);
                let mut wire = Wire::connect(daemon.address());
                wire.push(&datadog::process(1024));
                wire.push(&datadog::string(1, b"page"));
                let mut text = vec![b'x'; bytes];
                for number in 0..events {
                    // Every text is different.
                    text[..8].copy_from_slice(format!("{number:08}").as_bytes());
                    wire.push(&datadog::string(number + 2, &text));
                    wire.push(&datadog::span(number, 1, [1, number + 2]));
                }
                wire.close();
                SentEvents { events: events + 1, before: 0 }
            };
            Cost::of(&config("datadog", "", FILE), |_| (), send).0
        }),
    };
    [16, 64, 256, 1_024, 4_096, 16_384].iter().map(row).collect()
}

fn bundles(events: u64) -> Vec<Row> {
    let row = |&size: &u64| Row {
        name: format!("endless v3 → file, bundles of {}", count(size)),
        run: Box::new(move || {
            // Small bundles mean many requests, so fewer events are enough.
            let uploads = (events / size).clamp(1, 20_000);
            let prepare = |daemon: &Daemon| {
                let mut machine = Machine::new(1, 0, unix_nanos(), AgentVersion::V3);
                let host = daemon.address().to_string();
                let requests = (0..uploads).map(|_| {
                    machine.set_clock(unix_nanos());
                    let upload = machine.upload(size).unwrap();
                    machine.request(&upload, &host).unwrap()
                });
                requests.collect::<Vec<_>>()
            };
            let send = |daemon: &Daemon, requests: Vec<Vec<u8>>| {
                let mut http = Http::connect(daemon.address());
                requests.iter().for_each(|request| http.request(request));
                SentEvents { events: uploads * size, before: 0 }
            };
            Cost::of(&config("endless", "", FILE), prepare, send).0
        }),
    };
    [1, 10, 100, 1_000, 10_000].iter().map(row).collect()
}

fn traces(events: u64) -> Vec<Row> {
    let row = |&size: &u64| Row {
        name: format!("zico gen2 → file, {} record{} a trace", count(size), if size == 1 { "" } else { "s" }),
        run: Box::new(move || {
            let traces = (events / size).clamp(1, 20_000);
            let prepare = |daemon: &Daemon| {
                let mut http = Http::connect(daemon.address());
                http.begin_session();
                http
            };
            let send = |_: &Daemon, mut http: Http| {
                (0..traces).for_each(|number| http.trace(number + 1, size));
                SentEvents { events: traces * size, before: 1 }
            };
            Cost::of(&config("zico", "", FILE), prepare, send).0
        }),
    };
    [1, 10, 100, 1_000, 10_000, 100_000].iter().map(row).collect()
}

const NAMES: [u64; 6] = [10, 100, 1_000, 10_000, 100_000, 1_000_000];

fn strings(events: u64) -> Vec<Row> {
    let row = |&names: &u64| Row {
        name: format!("datadog → file, {} strings", count(names)),
        run: Box::new(move || {
            let prepare = |daemon: &Daemon| {
                let mut wire = Wire::connect(daemon.address());
                wire.push(&datadog::process(names + 10));
                wire.push(&datadog::string(1, b"page"));
                for id in 0..names {
                    wire.push(&datadog::string(id + 2, format!("GET /shelves/{id:09}").as_bytes()));
                }
                // The last object on the wire is complete only when another one follows.
                wire.push(&datadog::span(0, 1, [1, 1]));
                wire.flush();
                wire
            };
            let send = |_: &Daemon, mut wire: Wire| {
                for number in 1..=events {
                    wire.push(&datadog::span(number, scattered(number, names) + 2, [1, 1]));
                }
                wire.close();
                SentEvents { events, before: 2 }
            };
            let cache = "string_cache = { max_entries = 2000000, bytes = \"512MiB\" }";
            Cost::of(&config("datadog", cache, FILE), prepare, send).0
        }),
    };
    NAMES.iter().map(row).collect()
}

fn methods(events: u64) -> Vec<Row> {
    let row = |&names: &u64| Row {
        name: format!("bytefrog v4 → file, {} methods", count(names)),
        run: Box::new(move || {
            let prepare = |daemon: &Daemon| {
                let mut agent = BytefrogAgent::connect(daemon.address());
                (0..names as u32).for_each(|id| agent.method(id, &format!("shop.shelf.Shelf{id:09}.take;1;()V")));
                agent.data.flush();
                agent
            };
            let send = |_: &Daemon, mut agent: BytefrogAgent| {
                for number in 0..events {
                    agent.entry(number as u32, scattered(number, names) as u32);
                }
                SentEvents { events: events + agent.end(), before: 0 }
            };
            let dictionary = "dictionary = { entries = 2000000, bytes = \"512MiB\" }\nheartbeat_interval = \"5s\"\nmax_stall = \"1h\"";
            Cost::of(&config("bytefrog", dictionary, FILE), prepare, send).0
        }),
    };
    NAMES.iter().map(row).collect()
}

/// A number below `bound`, in an order that a processor cannot predict.
fn scattered(number: u64, bound: u64) -> u64 {
    let mixed = (number ^ (number >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) % bound
}

fn sinks(events: u64) -> Vec<Row> {
    let second = FILE.replace("out/events", "out/second");
    let both: [(&str, Vec<String>); 4] = [
        ("file", vec![FILE.to_owned()]),
        ("discard", vec![DISCARD.to_owned()]),
        ("file and discard", vec![FILE.to_owned(), DISCARD.to_owned()]),
        ("file and file", vec![FILE.to_owned(), second]),
    ];
    let row = |(name, sinks): (&str, Vec<String>)| Row {
        name: format!("datadog → {name}"),
        run: Box::new(move || {
            let sinks: Vec<&str> = sinks.iter().map(String::as_str).collect();
            Cost::of_load(Load::named("datadog"), events, "", &sinks, &[]).0
        }),
    };
    both.into_iter().map(row).collect()
}

/// Prints the rows of agents and a daemon whose standard output is read slowly.
fn slow(events: u64) {
    println!(
        "\nA slow reader of standard output; *waiting* is the number of events that it had not read when the agent had sent everything:\n"
    );
    head(&["events/s", "MB/s out", "CPU", "× first row", "waiting", "peak MiB", "sent = written + lost"]);
    let mut first = None;
    for limit in [None, Some(100), Some(30), Some(10)] {
        let cpu = slow_row(events, limit, first);
        first.get_or_insert(cpu);
    }
}

/// Prints a row; `first` is the cost of the first row. Returns the cost of this row.
fn slow_row(events: u64, limit: Option<u64>, first: Option<f64>) -> f64 {
    let load = Load::named("datadog");
    let direction = load.direction();
    let (daemon, mut stdout) = Daemon::start_piped(&load.config(direction, "", &["type = \"stdout\""]));
    let lines = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&lines);
    let reader = thread::spawn(move || {
        let mut buffer = vec![0; 64 * 1024];
        let (mut bytes, mut reads, began) = (0, Vec::new(), Instant::now());
        loop {
            let size = stdout.read(&mut buffer).unwrap();
            if size == 0 {
                return (bytes, reads);
            }
            bytes += size as u64;
            let number = buffer[..size].iter().filter(|byte| **byte == b'\n').count() as u64;
            reads.push((Instant::now(), seen.fetch_add(number, Ordering::Release) + number));
            // `limit` is in megabytes per second, which is bytes per microsecond.
            let due = began + Duration::from_micros(limit.map_or(0, |limit| bytes / limit));
            thread::sleep(due.saturating_duration_since(Instant::now()));
        }
    });
    let (before, began) = (daemon.process.cpu_seconds(), Instant::now());
    let sent = Simulation::start(&load.arguments(direction, &daemon, events)).finish();
    let sent_all = began + Duration::from_secs_f64(sent.last_byte_seconds);
    while lines.load(Ordering::Acquire) < sent.events {
        assert!(began.elapsed() < Duration::from_secs(300), "not all events arrive");
        thread::sleep(Duration::from_millis(1));
    }
    let seconds = began.elapsed().as_secs_f64();
    let cpu = (daemon.settled_cpu_seconds() - before) / sent.events as f64 * 1e6;
    let peak = daemon.process.memory().peak;
    let balance = daemon.stop().check(sent.events);
    let (bytes, reads) = reader.join().unwrap();
    let seen = reads.iter().take_while(|(at, _)| *at <= sent_all).last().map_or(0, |(_, lines)| *lines);
    let name = limit.map_or("full speed".to_owned(), |limit| format!("{limit} MB/s"));
    let cells = [
        rate(sent.events as f64 / seconds),
        fixed(bytes as f64 / 1e6 / seconds),
        fixed(cpu),
        fixed(cpu / first.unwrap_or(cpu)),
        count(sent.events - seen),
        fixed(peak),
        balance,
    ];
    row(&format!("datadog → stdout, {name}"), &cells);
    cpu
}

/// The configuration of a daemon with one listener and one sink, and with enough memory for the dictionaries here.
fn config(protocol: &str, options: &str, sink: &str) -> String {
    format!(
        "limits.memory_bytes = \"4GiB\"\n[listeners.bench]\nprotocol = \"{protocol}\"\nlisten = \"127.0.0.1:0\"\n{options}\n\
         [sinks.out]\n{sink}\n"
    )
}

fn unix_nanos() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos()).unwrap()
}
