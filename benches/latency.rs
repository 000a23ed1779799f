//! The time from the daemon's read of an event until a reader of the output can read it.
//!
//! `cargo bench --bench latency [-- [PROTOCOL...] [SECONDS]]` prints a table. Agents send at a rate that does not depend on
//! the daemon: `simulate --rate` sends late events as soon as possible, and leaves none out.
//!
//! Each line contains the time at which the daemon received its bytes (`observed_time`). This bench reads the lines, from a
//! pipe or from the growing file, and reads the same clock after each read. The difference is recorded for every line. So a
//! figure contains decoding, the sink queue, encoding, the write, and the wake-up of this bench (a pipe) or its next poll
//! after 0.1 ms (a file). It does not contain the time that bytes wait in the socket, or behind other batches of the same
//! read. A separate column contains that: it compares the moment at which a line was read with the moment at which the agent
//! should have made it, had each event been sent alone.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used)]

#[allow(dead_code, unreachable_pub, reason = "each bench uses a part of it")]
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

/// The interval at which a file is read again.
const POLL_INTERVAL: Duration = Duration::from_micros(100);

const DAY_NANOS: u64 = 86_400_000_000_000;
const SECOND_NANOS: u64 = 1_000_000_000;
/// The upper bound of the histograms.
const MAX_NANOS: u64 = 600 * SECOND_NANOS;

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
    let direction = load.direction();
    let (daemon, reader) = if sink == "stdout" {
        let (daemon, stdout) = Daemon::start_piped(&load.config(direction, "", &["type = \"stdout\""]));
        (daemon, thread::spawn(move || SeenLines::default().follow(stdout, || true)))
    } else {
        let daemon = Daemon::start(&load.config(direction, "", &[FILE]));
        let path = daemon.path("out/events.ndjson");
        (
            daemon,
            thread::spawn(move || {
                SeenLines::default().follow(open_when_present(&path), || is_over.load(Ordering::Acquire))
            }),
        )
    };
    let process = daemon.process;
    let (cpu, sleeps, began) = (process.cpu_seconds(), process.sleeps(), Instant::now());
    let pace = ["--rate".to_owned(), per_second.to_string()];
    let arguments = load.arguments(direction, &daemon, per_second * seconds);
    let sent = Simulation::start(&[&arguments[..], &pace].concat()).finish();
    let wakeups = (process.sleeps() - sleeps) / began.elapsed().as_secs_f64();
    let cpu = daemon.settled_cpu_seconds() - cpu;
    let counters = daemon.stop();
    let balance = counters.check(sent.events);
    over.store(true, Ordering::Release);
    let seen = reader.join().unwrap();
    assert_eq!(seen.lines, sent.events, "not all lines of the daemon were read");
    let percentiles = [50.0, 90.0, 99.0, 99.9, 100.0].map(|percentile| seen.latency.value_at_percentile(percentile));
    let behind = seen.behind(per_second).value_at_percentile(99.0);
    let mut cells = vec![count(per_second), rate(seen.per_second())];
    cells.extend(percentiles.iter().chain([&behind]).map(|nanos| fixed(*nanos as f64 / 1e6)));
    cells.extend([fixed(cpu / sent.events as f64 * 1e6), format!("{wakeups:.0}"), balance]);
    row(&format!("{} → {sink}", load.name), &cells);
}

/// Opens a file as soon as it exists.
fn open_when_present(path: &PathBuf) -> File {
    loop {
        match File::open(path) {
            Ok(file) => return file,
            Err(_) => thread::sleep(POLL_INTERVAL),
        }
    }
}

/// The lines that were read, with their times.
struct SeenLines {
    lines: u64,
    /// The time since `observed_time`, for every line.
    latency: Histogram<u64>,
    /// For each read: its time since 1970, and the number of lines so far.
    reads: Vec<(u64, u64)>,
}

impl Default for SeenLines {
    fn default() -> Self {
        SeenLines { lines: 0, latency: histogram(), reads: Vec::new() }
    }
}

impl SeenLines {
    /// Reads to the end. The end of a file is final only after `is_over`.
    fn follow(mut self, mut input: impl Read, is_over: impl Fn() -> bool) -> SeenLines {
        let mut buffer = vec![0; 1 << 20];
        let mut held = 0;
        loop {
            // Checked before the read, so that the last read returns everything that was written before the end.
            let is_last = is_over();
            let size = input.read(&mut buffer[held..]).unwrap();
            let now = unix_nanos();
            match size {
                0 if is_last => break,
                0 => thread::sleep(POLL_INTERVAL),
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

    /// Counts the complete lines, all read at `now`. Returns the number of remaining bytes.
    fn take(&mut self, mut bytes: &[u8], now: u64) -> usize {
        let before = self.lines;
        // Most lines of one read have the same time, which is recorded once for all of them.
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
            // Midnight may lie between the two times, and clocks may be set.
            let nanos = (now % DAY_NANOS + DAY_NANOS - nanos_of_day(observed)) % DAY_NANOS;
            let nanos = if nanos > DAY_NANOS / 2 { 0 } else { nanos };
            self.latency.record_n(nanos, lines).unwrap();
        }
    }

    /// Lines per second, from the first line until 99 % of the lines, because agents end slowly.
    fn per_second(&self) -> f64 {
        let (Some((first, _)), most) = (self.reads.first(), self.lines - self.lines / 100) else { return 0.0 };
        let (at, lines) = self.reads.iter().find(|(_, lines)| *lines >= most).unwrap();
        *lines as f64 / ((at - first).max(1) as f64 / 1e9)
    }

    /// The delay of each line behind its due time. The first line is due at the start, and each next one at a fixed
    /// interval. The start is not known; the latest start is assumed for which no line was read before its due time.
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
    Histogram::new_with_max(MAX_NANOS, 3).unwrap()
}

fn unix_nanos() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos()).unwrap()
}

/// The text of a line's `observed_time`, which is its second field.
fn observed_time(line: &[u8]) -> &[u8] {
    const KEY: &[u8] = b"\"observed_time\":\"";
    let at = line.windows(KEY.len()).position(|window| window == KEY).expect("every line has an observed_time");
    &line[at + KEY.len()..][.."2026-11-22T05:00:29.458561477Z".len()]
}

/// The nanoseconds since midnight of a time like `2026-11-22T05:00:29.458561477Z`.
fn nanos_of_day(time: &[u8]) -> u64 {
    let number =
        |from: usize, to: usize| time[from..to].iter().fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0'));
    ((number(11, 13) * 60 + number(14, 16)) * 60 + number(17, 19)) * SECOND_NANOS + number(20, 29)
}
