//! What the page costs: the same load without the view, with the view and no page open, with one page and with ten.
//!
//! `cargo bench --bench page [-- EVENTS [REPETITIONS]]` prints a table. CPU seconds are user + system time of the daemon's own
//! process, its answers to the pages included. A page asks for what the real one asks for, as often: the overview every two
//! seconds, and live events or the list of traces.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used)]

#[allow(dead_code, unreachable_pub, reason = "each bench uses a part of it")]
mod daemon;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use daemon::loads::{FILE, Load};
use daemon::wire::Http;
use daemon::{Cost, Daemon, SentEvents, Simulation, free_address, table};

/// The rows: a name, if the view is on, and the number of open pages.
const ROWS: [(&str, bool, u64); 4] = [
    ("without the view", false, 0),
    ("the view, no page open", true, 0),
    ("one page open", true, 1),
    ("ten pages open", true, 10),
];
/// At most this many pages can show live events at the same time; the others show the list of traces.
const LIVE: u64 = 4;

fn main() {
    let (numbers, words) = table::arguments();
    let events = numbers.first().copied().unwrap_or(4_000_000);
    let repetitions = numbers.get(1).copied().unwrap_or(3).max(1);
    for name in ["datadog", "bytefrog v4"] {
        if !words.is_empty() && !words.iter().any(|word| name.starts_with(word.as_str())) {
            continue;
        }
        let load = Load::named(name);
        let mut runs: [Vec<Cost>; ROWS.len()] = Default::default();
        for _ in 0..repetitions {
            for ((_, is_on, pages), runs) in ROWS.iter().zip(&mut runs) {
                runs.push(cost(load, load.events(events), *is_on, *pages));
            }
        }
        println!("{name} → file\n");
        table::print_beside_the_first(repetitions, &ROWS.map(|(name, ..)| name), &runs);
        println!();
    }
}

/// The cost of a load while pages are open.
fn cost(load: &Load, events: u64, is_on: bool, pages: u64) -> Cost {
    let direction = load.direction();
    let admin = free_address();
    let config =
        format!("{}[admin]\nlisten = \"{admin}\"\n[view]\nenabled = {is_on}\n", load.config(direction, "", &[FILE]));
    let open = |_: &Daemon| (0..pages).map(|number| Page::open(admin, number < LIVE)).collect::<Vec<_>>();
    let send = |daemon: &Daemon, pages: Vec<Page>| {
        let events = Simulation::start(&load.arguments(direction, daemon, events)).finish().events;
        pages.iter().for_each(|page| page.is_closed.store(true, Ordering::Relaxed));
        pages.into_iter().for_each(Page::close);
        SentEvents { events, before: 0 }
    };
    Cost::of(&config, open, send).0
}

/// An open page: its requests.
struct Page {
    is_closed: Arc<AtomicBool>,
    requests: JoinHandle<()>,
    live: Option<TcpStream>,
}

impl Page {
    /// Opens a page that shows live events, or else the list of traces.
    fn open(admin: SocketAddr, is_live: bool) -> Page {
        let live = is_live.then(|| {
            let mut stream = TcpStream::connect(admin).unwrap();
            stream.write_all(head("events/live").as_bytes()).unwrap();
            let mut reader = stream.try_clone().unwrap();
            thread::spawn(move || while matches!(reader.read(&mut [0; 65_536]), Ok(1..)) {});
            stream
        });
        let is_closed = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&is_closed);
        let requests = thread::spawn(move || {
            let mut http = Http::connect(admin);
            for tenth in 0_u64.. {
                if until.load(Ordering::Relaxed) {
                    return;
                }
                if tenth.is_multiple_of(20) {
                    http.request(head("overview").as_bytes());
                }
                if !is_live && tenth.is_multiple_of(30) {
                    http.request(head("traces").as_bytes());
                }
                thread::sleep(Duration::from_millis(100));
            }
        });
        Page { is_closed, requests, live }
    }

    /// Waits for its last request, after `is_closed` is set.
    fn close(self) {
        self.requests.join().unwrap();
        if let Some(stream) = self.live {
            stream.shutdown(std::net::Shutdown::Both).unwrap();
        }
    }
}

fn head(route: &str) -> String {
    format!("GET /api/v1/{route} HTTP/1.1\r\nHost: localhost\r\n\r\n")
}
