//! Support for the hostile tests: a driver that observes every result of a session, a writer of wire objects, and readers of
//! wire and output that are independent of the code under test.

pub mod raw;
pub mod wire;

use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tributary::event::{BatchBuilder, Kind, Origin, UnixNanos};
use tributary::memory::MemoryBudget;
use tributary::pipeline::accounting::{ListenerCounters, ListenerTotals};
use tributary::protocol::datadog::{DatadogSession, Options};
use tributary::protocol::{End, Flow, Now, Output, Protocol, Session};
use tributary::sink::encode::{Encoder, Format};

/// 2026-11-20T12:15:00Z, the start time of every test.
const START: u64 = 1_795_176_900_000_000_000;

/// The default `max_message_bytes` of the listener.
pub const MAX_MESSAGE: u64 = 16 << 20;

/// A session driven as a transport drives it, and its observable results.
pub struct Driven {
    session: DatadogSession,
    input: BytesMut,
    out: Output,
    counters: Arc<ListenerCounters>,
    /// The clock of the session. It advances by the pauses that the session demands.
    pub elapsed: Duration,
    /// Sum of the demanded pauses.
    pub held: Duration,
    /// The lines that a sink would write; only with [`Driven::keep_lines`].
    pub lines: Vec<u8>,
    keep_lines: bool,
    pub output_bytes: u64,
    pub longest_line: usize,
    pub events: u64,
    /// Of the largest batch.
    pub batch_events: usize,
    pub batch_bytes: usize,
    /// Calls of `receive`.
    pub calls: u64,
    pub is_closed: bool,
}

impl Driven {
    pub fn new(options: &Options) -> Self {
        Driven::with(options, MAX_MESSAGE, &MemoryBudget::new(256 << 20))
    }

    pub fn with(options: &Options, max_message: u64, memory: &Arc<MemoryBudget>) -> Self {
        Driven::emitting(false, options, max_message, memory)
    }

    /// The same, optionally with an event for each definition.
    pub fn emitting(definitions: bool, options: &Options, max_message: u64, memory: &Arc<MemoryBudget>) -> Self {
        let origin = Arc::new(Origin::new("datadog", "test".into(), "test".into(), 1));
        Driven {
            session: DatadogSession::new(options.clone(), max_message, definitions, memory),
            input: BytesMut::new(),
            out: Output::new(BatchBuilder::new(origin)),
            counters: ListenerCounters::new("test".into(), Protocol::Datadog),
            elapsed: Duration::ZERO,
            held: Duration::ZERO,
            lines: Vec::new(),
            keep_lines: false,
            output_bytes: 0,
            longest_line: 0,
            events: 0,
            batch_events: 0,
            batch_bytes: 0,
            calls: 0,
            is_closed: false,
        }
    }

    pub fn keep_lines(mut self) -> Self {
        self.keep_lines = true;
        self
    }

    /// Bytes arrive. A demanded pause passes before the rest is decoded.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.counters.received(bytes.len() as u64);
        self.input.extend_from_slice(bytes);
        loop {
            let progress = self.session.receive(&self.input, self.now(), &mut self.out);
            self.calls += 1;
            self.input.advance(progress.consumed);
            self.take();
            let hold = self.out.throttle.take().unwrap_or_default();
            self.held += hold;
            self.elapsed += hold;
            self.is_closed |= progress.flow == Flow::Close;
            if progress.flow != Flow::Again {
                return;
            }
        }
    }

    /// The same, in reads of 64 KiB.
    pub fn feed_in_reads(&mut self, bytes: &[u8]) {
        bytes.chunks(64 * 1024).for_each(|read| self.feed(read));
    }

    /// Time passes; timeouts of the session are handled when they are due.
    pub fn pass(&mut self, time: Duration) {
        let until = self.elapsed + time;
        while let Some(due) = self.session.poll_timeout().filter(|due| *due <= until) {
            self.elapsed = self.elapsed.max(due);
            while self.session.handle_timeout(self.now(), &mut self.out) == Flow::Again {
                self.take();
            }
            self.take();
        }
        self.elapsed = self.elapsed.max(until);
    }

    pub fn finish(mut self, end: End) -> Finished {
        let rest = self.input.split();
        let mut rest: &[u8] = &rest;
        while self.session.finish(rest, end, self.now(), &mut self.out) == Flow::Again {
            rest = &[];
            self.take();
        }
        self.take();
        Finished {
            totals: self.counters.totals(),
            text: String::from_utf8(self.lines).unwrap(),
            output_bytes: self.output_bytes,
            events: self.events,
            batch_events: self.batch_events,
            batch_bytes: self.batch_bytes,
        }
    }

    pub fn totals(&self) -> ListenerTotals {
        self.counters.totals()
    }

    pub fn warnings(&self, code: &str) -> u64 {
        self.counters.totals().warnings.get(code).copied().unwrap_or(0)
    }

    pub fn spans(&self) -> u64 {
        self.counters.totals().count(Kind::Span)
    }

    pub fn now(&self) -> Now {
        Now { unix: UnixNanos(START + self.elapsed.as_nanos() as u64), elapsed: self.elapsed }
    }

    fn take(&mut self) {
        self.counters.settle(&mut self.out);
        if self.out.batch.is_empty() {
            return;
        }
        let batch = self.out.batch.take();
        self.counters.handed_over(&batch);
        self.events += batch.len() as u64;
        self.batch_events = self.batch_events.max(batch.len());
        self.batch_bytes = self.batch_bytes.max(batch.memory_bytes());
        let mut encoder = Encoder::new(Format::Json);
        let mut line = Vec::new();
        for event in batch.events() {
            line.clear();
            encoder.encode(event, &mut line);
            self.output_bytes += line.len() as u64;
            self.longest_line = self.longest_line.max(line.len());
            if self.keep_lines {
                self.lines.extend_from_slice(&line);
            }
        }
    }
}

/// The results of a session that has ended.
pub struct Finished {
    pub totals: ListenerTotals,
    pub text: String,
    pub output_bytes: u64,
    pub events: u64,
    pub batch_events: usize,
    pub batch_bytes: usize,
}

impl Finished {
    pub fn events(&self) -> Vec<serde_json::Value> {
        self.text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The events of one kind.
    pub fn of_kind(&self, kind: &str) -> Vec<serde_json::Value> {
        self.events().into_iter().filter(|event| event["kind"] == kind).collect()
    }
}

/// A figure of this process in bytes, as the kernel counts it: `RssAnon` (without the program's own code), `VmRSS`, or `VmHWM`
/// for its peak.
pub fn process_memory(figure: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(figure)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// Runs this test in a process of its own, so that no other test changes its memory figures. `true`: this is that
/// process. `false`: the test has passed there, and the caller returns.
///
/// # Panics
///
/// When the test failed in its process.
pub fn is_in_own_process<T>(_test: T) -> bool {
    const OWN: &str = "TRIBUTARY_TEST_IN_OWN_PROCESS";
    if std::env::var_os(OWN).is_some() {
        return true;
    }
    let (_crate, test) = std::any::type_name::<T>().split_once("::").unwrap();
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    let output = command.args([test, "--exact", "--test-threads=1"]).env(OWN, "1").output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && stdout.contains("1 passed"),
        "{stdout}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    false
}
