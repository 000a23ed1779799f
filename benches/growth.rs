//! How the daemon's cost grows: with connections, with the size of messages, with what it must remember, with sinks, and
//! when a sink is slow.
//!
//! `cargo bench --bench growth [-- [TABLE...] EVENTS [REPETITIONS]]` prints a table each for `connections`, `sizes`,
//! `dictionaries`, `sinks` and `slow`. The rows of a table are run by turns. Nothing is asserted but that every event arrives.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used)]

#[allow(dead_code, unreachable_pub, reason = "each bench takes what it needs of it")]
mod daemon;

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use daemon::loads::{DISCARD, FILE, Load};
use daemon::table::{self, count, fixed, head, median, rate, row, spread};
use daemon::wire::{Frog, Http, Wire, datadog};
use daemon::{Cost, Daemon, Given, Simulation};
use tributary::simulate::endless::{Machine, Version};

/// A row of a table, and how it is run.
struct Row {
    name: String,
    run: Box<dyn Fn() -> Cost>,
}

fn main() {
    let (numbers, words) = table::arguments();
    let events = numbers.first().copied().unwrap_or(500_000);
    let repetitions = numbers.get(1).copied().unwrap_or(3).max(1);
    let is_wanted = |name: &str| words.is_empty() || words.iter().any(|word| word == name);
    println!("{repetitions} repetitions by turns; medians (lowest–highest); CPU in seconds per million events");
    if is_wanted("connections") {
        let numbers = [1, 10, 100, 1_000, 5_000];
        let title = "The same events over more connections, as fast as they come, each opened for it";
        print(title, connections("datadog", events * 2, &numbers, &[]), repetitions);
        let title = "The same events over more connections, 100,000 a second together";
        print(title, connections("datadog", events, &numbers, &["--rate", "100000"]), repetitions);
        let title = "The same events over more connections by HTTP, as fast as they are answered";
        print(title, connections("zico gen2", events, &numbers[..4], &[]), repetitions);
    }
    if is_wanted("sizes") {
        print("Spans with a longer text", texts(events), repetitions);
        print("More events in a bundle", bundles(events / 2), repetitions);
        print("More records in a trace", traces(events), repetitions);
    }
    if is_wanted("dictionaries") {
        print("Spans that name one of so many strings, all of them told before", strings(events), repetitions);
        print("Calls of one of so many methods, all of them told before", methods(events * 2), repetitions);
    }
    if is_wanted("sinks") {
        print("More sinks", sinks(events), repetitions);
    }
    if is_wanted("slow") {
        slow(events / 5);
    }
}

/// Runs the rows by turns and prints them.
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
            let load = Load { agent: AGENT_ALONE[usize::from(load != "datadog")], ..*Load::named(load) };
            let arguments = [pace, &["--connections", &number]].concat();
            Cost::of_load(&load, events, "max_connections = 6000", &[FILE], &arguments).0
        }),
    };
    numbers.iter().map(row).collect()
}

/// Agents without a number of connections.
const AGENT_ALONE: [&[&str]; 2] = [&["datadog"], &["zico"]];

fn texts(events: u64) -> Vec<Row> {
    let row = |&bytes: &usize| Row {
        name: format!("datadog → file, {} bytes of text", count(bytes as u64)),
        run: Box::new(move || {
            let give = |daemon: &Daemon, ()| {
                let events = events.min(400_000_000 / bytes as u64);
                let mut wire = Wire::to(daemon.address());
                wire.say(&datadog::process(1024));
                wire.say(&datadog::string(1, b"page"));
                let mut text = vec![b'x'; bytes];
                for number in 0..events {
                    // No two are alike.
                    text[..8].copy_from_slice(format!("{number:08}").as_bytes());
                    wire.say(&datadog::string(number + 2, &text));
                    wire.say(&datadog::span(number, 1, [1, number + 2]));
                }
                wire.close();
                Given { events: events + 1, before: 0 }
            };
            Cost::of(&config("datadog", "", FILE), |_| (), give).0
        }),
    };
    [16, 64, 256, 1_024, 4_096, 16_384].iter().map(row).collect()
}

fn bundles(events: u64) -> Vec<Row> {
    let row = |&size: &u64| Row {
        name: format!("endless v3 → file, bundles of {}", count(size)),
        run: Box::new(move || {
            // Small ones are many requests: fewer events do.
            let uploads = (events / size).clamp(1, 20_000);
            let prepare = |daemon: &Daemon| {
                let mut machine = Machine::new(1, 0, unix_nanos(), Version::V3);
                let host = daemon.address().to_string();
                let requests = (0..uploads).map(|_| {
                    machine.set_clock(unix_nanos());
                    let upload = machine.upload(size).unwrap();
                    machine.request(&upload, &host).unwrap()
                });
                requests.collect::<Vec<_>>()
            };
            let give = |daemon: &Daemon, requests: Vec<Vec<u8>>| {
                let mut http = Http::to(daemon.address());
                requests.iter().for_each(|request| http.ask(request));
                Given { events: uploads * size, before: 0 }
            };
            Cost::of(&config("endless", "", FILE), prepare, give).0
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
                let mut http = Http::to(daemon.address());
                http.begin_session();
                http
            };
            let give = |_: &Daemon, mut http: Http| {
                (0..traces).for_each(|number| http.trace(number + 1, size));
                Given { events: traces * size, before: 1 }
            };
            Cost::of(&config("zico", "", FILE), prepare, give).0
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
                let mut wire = Wire::to(daemon.address());
                wire.say(&datadog::process(names + 10));
                wire.say(&datadog::string(1, b"page"));
                for id in 0..names {
                    wire.say(&datadog::string(id + 2, format!("GET /shelves/{id:09}").as_bytes()));
                }
                // What is last on the wire is complete only when another object follows.
                wire.say(&datadog::span(0, 1, [1, 1]));
                wire.flush();
                wire
            };
            let give = |_: &Daemon, mut wire: Wire| {
                for number in 1..=events {
                    wire.say(&datadog::span(number, scattered(number, names) + 2, [1, 1]));
                }
                wire.close();
                Given { events, before: 2 }
            };
            let cache = "string_cache = { max_entries = 2000000, bytes = \"512MiB\" }";
            Cost::of(&config("datadog", cache, FILE), prepare, give).0
        }),
    };
    NAMES.iter().map(row).collect()
}

fn methods(events: u64) -> Vec<Row> {
    let row = |&names: &u64| Row {
        name: format!("bytefrog v4 → file, {} methods", count(names)),
        run: Box::new(move || {
            let prepare = |daemon: &Daemon| {
                let mut frog = Frog::dial(daemon.address());
                (0..names as u32).for_each(|id| frog.method(id, &format!("shop.shelf.Shelf{id:09}.take;1;()V")));
                frog.data.flush();
                frog
            };
            let give = |_: &Daemon, mut frog: Frog| {
                for number in 0..events {
                    frog.entry(number as u32, scattered(number, names) as u32);
                }
                Given { events: events + frog.end(), before: 0 }
            };
            let dictionary = "dictionary = { entries = 2000000, bytes = \"512MiB\" }\nheartbeat_interval = \"5s\"\nmax_stall = \"1h\"";
            Cost::of(&config("bytefrog", dictionary, FILE), prepare, give).0
        }),
    };
    NAMES.iter().map(row).collect()
}

/// A number below `bound`, in no order that a processor foresees.
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

/// Prints what becomes of agents and of the daemon when standard output is read slowly.
fn slow(events: u64) {
    println!(
        "\nA reader of standard output that is slow; *waiting* is what it had not seen when the agent had sent everything:\n"
    );
    head(&["events/s", "MB/s out", "CPU", "× first row", "waiting", "peak MiB", "sent = written + lost"]);
    let mut first = None;
    for limit in [None, Some(100), Some(30), Some(10)] {
        let cpu = slow_row(events, limit, first);
        first.get_or_insert(cpu);
    }
}

/// Prints a row; `first` is the cost of the first one. Answers its own.
fn slow_row(events: u64, limit: Option<u64>, first: Option<f64>) -> f64 {
    let load = Load::named("datadog");
    let meeting = load.meeting();
    let (daemon, mut stdout) = Daemon::start_piped(&load.config(meeting, "", &["type = \"stdout\""]));
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
            // Of so many megabytes a second: as many bytes in each microsecond.
            let due = began + Duration::from_micros(limit.map_or(0, |limit| bytes / limit));
            thread::sleep(due.saturating_duration_since(Instant::now()));
        }
    });
    let (before, began) = (daemon.process.cpu_seconds(), Instant::now());
    let sent = Simulation::start(&load.arguments(meeting, &daemon, events)).finish();
    let sent_all = began + Duration::from_secs_f64(sent.last_byte_seconds);
    while lines.load(Ordering::Acquire) < sent.events {
        assert!(began.elapsed() < Duration::from_secs(300), "not everything arrives");
        thread::sleep(Duration::from_millis(1));
    }
    let seconds = began.elapsed().as_secs_f64();
    let cpu = (daemon.settled_cpu_seconds() - before) / sent.events as f64 * 1e6;
    let peak = daemon.process.memory().peak;
    let balance = daemon.stop().check(sent.events);
    let (bytes, reads) = reader.join().unwrap();
    let seen = reads.iter().take_while(|(at, _)| *at <= sent_all).last().map_or(0, |(_, lines)| *lines);
    let name = limit.map_or("as fast as it comes".to_owned(), |limit| format!("{limit} MB/s"));
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

/// A daemon with one listener and one sink, and more memory than what is told to it here takes.
fn config(protocol: &str, options: &str, sink: &str) -> String {
    format!(
        "limits.memory_bytes = \"4GiB\"\n[listeners.bench]\nprotocol = \"{protocol}\"\nlisten = \"127.0.0.1:0\"\n{options}\n\
         [sinks.out]\n{sink}\n"
    )
}

fn unix_nanos() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos()).unwrap()
}
