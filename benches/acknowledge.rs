//! What acknowledged requests cost: the time of a lone request beside a bare fdatasync of the same file system, and requests
//! per second of many agents at once, for both levels.
//!
//! `cargo bench --bench acknowledge [-- [REQUESTS] [CONCURRENT REQUESTS]]` prints two tables. The requests are `endless` uploads
//! of one event, and lone ones of a Datadog tracer with one span, to a file sink; they are made before anything is measured. Lone requests and bare syncs alternate, because
//! disks are slower at some times than at others; each is first in half of the turns, because the first one also writes what
//! other programs have left to the disk. A bare sync appends as many bytes as the daemon writes for a request to a
//! file beside its own, and forces them to the disk.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used)]

#[allow(dead_code, unreachable_pub, reason = "each bench uses a part of it")]
mod daemon;

use std::fs::OpenOptions;
use std::io::Write as _;
use std::thread;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use daemon::Daemon;
use daemon::table::{self, count, fixed, head, row};
use daemon::wire::Http;
use hdrhistogram::Histogram;
use tributary::simulate::datadog_agent::{Tracer, TracerDialect};
use tributary::simulate::endless::{AgentVersion, Machine};

const LEVELS: [&str; 2] = ["durable", "written"];
const AGENTS: [u64; 4] = [1, 16, 64, 256];
/// Events of a request, and the bytes that they become in the file, about.
const EVENTS: u64 = 1;
const BYTES: usize = 900;

fn main() {
    let (numbers, _) = table::arguments();
    let requests = numbers.first().copied().unwrap_or(1_000).max(1);
    let concurrent_requests = numbers.get(1).copied().unwrap_or(20_000);
    println!("{} lone requests; milliseconds\n", count(requests));
    head(&["p50", "p99", "max", "p50 / sync", "p99 / sync"]);
    let mut sync_seconds = 0.0;
    for kind in [AgentKind::Endless, AgentKind::Tracer] {
        for level in LEVELS {
            let [bare, lone] = lone(kind, level, requests);
            let protocol = kind.protocol();
            print(&format!("bare fdatasync, beside {protocol}, {level}"), &bare, &bare);
            print(&format!("lone request, {protocol}, {level}"), &lone, &bare);
            if level == "durable" {
                sync_seconds = bare.mean() / 1e6;
            }
        }
    }
    println!(
        "\n{} requests; × one sync each: compared with one bare fdatasync after another\n",
        count(concurrent_requests)
    );
    head(&["requests/s", "× one sync each", "p50 ms", "p99 ms"]);
    for level in LEVELS {
        for agents in AGENTS {
            let (rate, times) = concurrent(level, agents, (concurrent_requests / agents).clamp(1, 2 * requests));
            let [p50, p99] = [50.0, 99.0].map(|percentile| fixed(times.value_at_percentile(percentile) as f64 / 1e3));
            row(&format!("{agents} agents, {level}"), &[table::rate(rate), fixed(rate * sync_seconds), p50, p99]);
        }
    }
}

fn start(kind: AgentKind, level: &str) -> Daemon {
    let protocol = kind.protocol();
    Daemon::start(&format!(
        "[listeners.bench]\nprotocol = \"{protocol}\"\nlisten = \"127.0.0.1:0\"\nmax_requests = 256\nacknowledge = \"{level}\"\n\
         [sinks.out]\ntype = \"file\"\npath = \"out/events.ndjson\"\nrotate_bytes = \"0\"\n"
    ))
}

/// The times of bare syncs and of lone requests, in microseconds.
fn lone(kind: AgentKind, level: &str, requests: u64) -> [Histogram<u64>; 2] {
    let daemon = start(kind, level);
    let mut http = Http::connect(daemon.address());
    let mut agent = Agent::new(kind, 1, &daemon);
    // The daemon creates the directory.
    http.request(&agent.request());
    let mut file = OpenOptions::new().append(true).create(true).open(daemon.path("out/bare")).unwrap();
    let bytes = vec![b'x'; BYTES];
    let [mut bare, mut lone] = [histogram(), histogram()];
    let mut sync = || {
        let began = Instant::now();
        file.write_all(&bytes).unwrap();
        file.sync_data().unwrap();
        record(&mut bare, began);
    };
    for number in 0..requests {
        if number % 2 == 0 {
            sync();
        }
        let request = agent.request();
        let began = Instant::now();
        http.request(&request);
        record(&mut lone, began);
        if number % 2 == 1 {
            sync();
        }
    }
    daemon.stop().check((requests + 1) * EVENTS);
    [bare, lone]
}

/// Requests per second, and their times in microseconds, when each agent sends `requests` of them.
fn concurrent(level: &str, agents: u64, requests: u64) -> (f64, Histogram<u64>) {
    let daemon = start(AgentKind::Endless, level);
    let mut times = histogram();
    let agent = |number| {
        let mut agent = Agent::new(AgentKind::Endless, number, &daemon);
        let requests: Vec<_> = (0..requests).map(|_| agent.request()).collect();
        (Http::connect(daemon.address()), requests)
    };
    let prepared: Vec<_> = (0..agents).map(agent).collect();
    let began = Instant::now();
    thread::scope(|scope| {
        let run = |(mut http, requests): (Http, Vec<Vec<u8>>)| {
            move || {
                let mut times = histogram();
                for request in &requests {
                    let sent = Instant::now();
                    http.request(request);
                    record(&mut times, sent);
                }
                times
            }
        };
        let running: Vec<_> = prepared.into_iter().map(|agent| scope.spawn(run(agent))).collect();
        running.into_iter().for_each(|agent| times.add(agent.join().unwrap()).unwrap());
    });
    let rate = times.len() as f64 / began.elapsed().as_secs_f64();
    daemon.stop().check(times.len() * EVENTS);
    (rate, times)
}

#[derive(Clone, Copy)]
enum AgentKind {
    Endless,
    Tracer,
}

impl AgentKind {
    fn protocol(self) -> &'static str {
        match self {
            AgentKind::Endless => "endless",
            AgentKind::Tracer => "datadog_agent",
        }
    }
}

/// An agent that makes uploads.
enum Agent {
    Endless { machine: Machine, host: String },
    Tracer(Tracer),
}

impl Agent {
    fn new(kind: AgentKind, number: u64, daemon: &Daemon) -> Agent {
        match kind {
            AgentKind::Endless => {
                let machine = Machine::new(number, 0, unix_nanos(), AgentVersion::V3);
                Agent::Endless { machine, host: daemon.address().to_string() }
            }
            AgentKind::Tracer => Agent::Tracer(Tracer::new(number, 0, unix_nanos(), TracerDialect::V04)),
        }
    }

    fn request(&mut self) -> Vec<u8> {
        match self {
            Agent::Endless { machine, host } => {
                machine.set_clock(unix_nanos());
                let upload = machine.upload(EVENTS).unwrap();
                machine.request(&upload, host).unwrap()
            }
            Agent::Tracer(tracer) => tracer.request(EVENTS).unwrap(),
        }
    }
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000, 3).unwrap()
}

fn record(times: &mut Histogram<u64>, began: Instant) {
    times.saturating_record(u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX));
}

fn print(name: &str, times: &Histogram<u64>, bare: &Histogram<u64>) {
    let at = |times: &Histogram<u64>, percentile| times.value_at_percentile(percentile) as f64;
    let millis = [50.0, 99.0, 100.0].map(|percentile| fixed(at(times, percentile) / 1e3));
    let ratios = [50.0, 99.0].map(|percentile| fixed(at(times, percentile) / at(bare, percentile)));
    row(name, &[millis.as_slice(), &ratios].concat());
}

fn unix_nanos() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos()).unwrap()
}
