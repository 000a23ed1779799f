//! How long an event takes from the daemon's read until it can be read where it was written.
//!
//! `cargo bench --bench latency [-- [PROTOCOL...] [SECONDS]]` prints a table. Agents send at a rate that does not depend on
//! the daemon: what `simulate --rate` could not send in time it sends as soon as it can, and nothing is left out.
//!
//! Each line tells when the daemon took up its bytes (`observed_time`); this bench reads the lines, from a pipe or from the
//! file while it grows, and looks at the same clock when it has them. The difference is counted for every line. So a
//! figure contains: decoding, the queue, encoding, the write, and that this bench is woken up and reads (of a file, that it
//! looks again after 0.1 ms). It does not contain how long bytes wait in the socket, or behind other batches of the same
//! read. That is in a column of its own, which holds the moment at which a line was seen against the moment at which the
//! agent should have made it, were every event due alone.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used)]

#[allow(dead_code, unreachable_pub, reason = "each bench takes what it needs of it")]
mod daemon;

use std::fs::File;
use std::io::{BufRead, Read};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use daemon::loads::{FILE, Load};
use daemon::table::{self, count, fixed, head, rate, row};
use daemon::{Daemon, Simulation};
use hdrhistogram::Histogram;

const RATES: [u64; 4] = [1_000, 10_000, 100_000, 500_000];

/// How long to wait before a file is looked at again.
const LOOK: Duration = Duration::from_micros(100);

const DAY_NANOS: u64 = 86_400_000_000_000;
const SECOND_NANOS: u64 = 1_000_000_000;
/// Longer than anything takes here.
const MOST_NANOS: u64 = 600 * SECOND_NANOS;

fn main() {
    let (numbers, words) = table::arguments();
    let seconds = numbers.first().copied().unwrap_or(10).max(1);
    println!(
        "{seconds} s each; milliseconds from the daemon's read to the reader of what it writes; CPU in seconds per million events\n"
    );
    head(&[
        "offered",
        "seen",
        "p50",
        "p90",
        "p99",
        "p99.9",
        "max",
        "behind its time, p99",
        "CPU",
        "wake-ups/s",
        "sent = written + lost",
    ]);
    for load in ["datadog", "bytefrog v4"].map(Load::named) {
        if words.is_empty() || words.iter().any(|word| load.name.starts_with(word.as_str())) {
            for sink in ["stdout", "file"] {
                RATES.iter().for_each(|rate| measure(load, sink, *rate, seconds));
            }
        }
    }
}

fn measure(load: &Load, sink: &str, per_second: u64, seconds: u64) {
    let over = Arc::new(AtomicBool::new(false));
    let is_over = Arc::clone(&over);
    let meeting = load.meeting();
    let (daemon, reader) = if sink == "stdout" {
        let (daemon, stdout) = Daemon::start_piped(&load.config(meeting, "", &["type = \"stdout\""]));
        (daemon, thread::spawn(move || Seen::default().follow(stdout, || true)))
    } else {
        let daemon = Daemon::start(&load.config(meeting, "", &[FILE]));
        let path = daemon.path("out/events.ndjson");
        (daemon, thread::spawn(move || Seen::default().follow(opened(&path), || is_over.load(Ordering::Acquire))))
    };
    let process = daemon.process;
    let (cpu, sleeps, began) = (process.cpu_seconds(), process.sleeps(), Instant::now());
    let pace = ["--rate".to_owned(), per_second.to_string()];
    let arguments = load.arguments(meeting, &daemon, per_second * seconds);
    let sent = Simulation::start(&[&arguments[..], &pace].concat()).finish();
    let wakeups = (process.sleeps() - sleeps) / began.elapsed().as_secs_f64();
    let cpu = daemon.settled_cpu_seconds() - cpu;
    let counters = daemon.stop();
    let balance = counters.check(sent.events);
    over.store(true, Ordering::Release);
    let seen = reader.join().unwrap();
    assert_eq!(seen.lines, sent.events, "what the daemon wrote was not seen");
    let percentiles = [50.0, 90.0, 99.0, 99.9, 100.0].map(|percentile| seen.latency.value_at_percentile(percentile));
    let behind = seen.behind(per_second).value_at_percentile(99.0);
    let mut cells = vec![count(per_second), rate(seen.per_second())];
    cells.extend(percentiles.iter().chain([&behind]).map(|nanos| fixed(*nanos as f64 / 1e6)));
    cells.extend([fixed(cpu / sent.events as f64 * 1e6), format!("{wakeups:.0}"), balance]);
    row(&format!("{} → {sink}", load.name), &cells);
}

/// A file, once it is there.
fn opened(path: &PathBuf) -> File {
    loop {
        match File::open(path) {
            Ok(file) => return file,
            Err(_) => thread::sleep(LOOK),
        }
    }
}

/// Lines, and when they were seen.
struct Seen {
    lines: u64,
    /// From `observed_time`, of every line.
    latency: Histogram<u64>,
    /// After each read: when that was, since 1970, and how many lines there had been by then.
    reads: Vec<(u64, u64)>,
}

impl Default for Seen {
    fn default() -> Self {
        Seen { lines: 0, latency: histogram(), reads: Vec::new() }
    }
}

impl Seen {
    /// Reads to the end; that of a file is one only once `is_over`.
    fn follow(mut self, mut input: impl Read, is_over: impl Fn() -> bool) -> Seen {
        let mut buffer = vec![0; 1 << 20];
        let mut held = 0;
        loop {
            // TapRequest before the read: what was written before the end is read after it.
            let is_last = is_over();
            let size = input.read(&mut buffer[held..]).unwrap();
            let now = unix_nanos();
            match size {
                0 if is_last => break,
                0 => thread::sleep(LOOK),
                _ => {
                    let rest = self.take(&buffer[..held + size], now);
                    let consumed = held + size - rest;
                    buffer.copy_within(consumed..consumed + rest, 0);
                    held = rest;
                }
            }
        }
        assert_eq!(held, 0, "half a line at the end");
        self
    }

    /// Takes whole lines, all of them seen at `now`; answers how many bytes are left.
    fn take(&mut self, mut bytes: &[u8], now: u64) -> usize {
        let before = self.lines;
        // Lines of one read have the same time mostly: told once for all of them.
        let (mut observed, mut alike): (&[u8], u64) = (&[], 0);
        loop {
            let line = bytes;
            let size = bytes.skip_until(b'\n').unwrap();
            if size == 0 || line[size - 1] != b'\n' {
                self.record(observed, alike, now);
                self.lines += alike;
                if self.lines > before {
                    self.reads.push((now, self.lines));
                }
                return size;
            }
            let time = observed_time(&line[..size]);
            if time != observed {
                self.record(observed, alike, now);
                self.lines += alike;
                (observed, alike) = (time, 0);
            }
            alike += 1;
        }
    }

    fn record(&mut self, observed: &[u8], lines: u64, now: u64) {
        if lines > 0 {
            // Midnight may lie between, and clocks may be set.
            let nanos = (now % DAY_NANOS + DAY_NANOS - nanos_of_day(observed)) % DAY_NANOS;
            let nanos = if nanos > DAY_NANOS / 2 { 0 } else { nanos };
            self.latency.record_n(nanos, lines).unwrap();
        }
    }

    /// Lines per second, from the first until all but one in a hundred: agents take their time to end.
    fn per_second(&self) -> f64 {
        let (Some((first, _)), most) = (self.reads.first(), self.lines - self.lines / 100) else { return 0.0 };
        let (at, lines) = self.reads.iter().find(|(_, lines)| *lines >= most).unwrap();
        *lines as f64 / ((at - first).max(1) as f64 / 1e9)
    }

    /// How long after its time each line was seen, when the first of all is due at the start and each next one at its
    /// distance. The start is not known: it is the latest one at which no line was seen before its time.
    fn behind(&self, per_second: u64) -> Histogram<u64> {
        let due = |line: u64| line * SECOND_NANOS / per_second;
        let start = self.reads.iter().map(|(now, lines)| now - due(lines - 1)).min().unwrap_or_default();
        let mut behind = histogram();
        let mut line = 0;
        for (now, lines) in &self.reads {
            while line < *lines {
                behind.record(now - start - due(line)).unwrap();
                line += 1;
            }
        }
        behind
    }
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_max(MOST_NANOS, 3).unwrap()
}

fn unix_nanos() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos()).unwrap()
}

/// The text of a line's `observed_time`, which is the second of its fields.
fn observed_time(line: &[u8]) -> &[u8] {
    const KEY: &[u8] = b"\"observed_time\":\"";
    let at = line.windows(KEY.len()).position(|window| window == KEY).expect("every line has it");
    &line[at + KEY.len()..][.."2026-11-22T05:00:29.458561477Z".len()]
}

/// Of `2026-11-22T05:00:29.458561477Z`, what has passed of the day.
fn nanos_of_day(time: &[u8]) -> u64 {
    let number =
        |from: usize, to: usize| time[from..to].iter().fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0'));
    ((number(11, 13) * 60 + number(14, 16)) * 60 + number(17, 19)) * SECOND_NANOS + number(20, 29)
}
