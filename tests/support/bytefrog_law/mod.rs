//! Whole runs without sockets: their connections are driven as a transport drives them, on a clock that the test sets.

pub mod conversation;
pub mod law;

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tributary::decode::Offline;
use tributary::event::{Batch, Origin, UnixNanos};
use tributary::pipeline::accounting::{ListenerCounters, ListenerTotals};
use tributary::protocol::bytefrog::{BytefrogSession, Hq};
use tributary::protocol::{End, Now, Protocol};
use tributary::sink::encode::{Encoder, Format};

/// 2026-11-20T12:15:00Z, when every test starts.
const START: u64 = 1_795_176_900_000_000_000;

/// The connections of a run, by number, and every line written for them.
pub struct Run {
    pub hq: Hq,
    connections: Vec<Connection>,
    elapsed: Duration,
    lines: Vec<u8>,
    events: u64,
    keeps_lines: bool,
}

struct Connection {
    session: Option<Offline<BytefrogSession>>,
    counters: Arc<ListenerCounters>,
}

/// The result of a run.
#[derive(Debug)]
pub struct Finished {
    pub text: String,
    /// The counters of each connection.
    pub totals: Vec<ListenerTotals>,
}

impl Run {
    pub fn new(hq: Hq) -> Run {
        Run { hq, connections: Vec::new(), elapsed: Duration::ZERO, lines: Vec::new(), events: 0, keeps_lines: true }
    }

    /// The same, which counts events only.
    pub fn counting(hq: Hq) -> Run {
        Run { keeps_lines: false, ..Run::new(hq) }
    }

    /// Adds a connection: its number. All have the same address.
    pub fn connect(&mut self) -> usize {
        let number = self.connections.len();
        let counters = ListenerCounters::new("test".into(), Protocol::Bytefrog);
        let origin = Arc::new(Origin::new("bytefrog", "test".into(), "test".into(), number as u64));
        let session = Some(Offline::new(self.hq.session(None), origin, counters.clone()));
        self.connections.push(Connection { session, counters });
        number
    }

    /// Adds a connection that sends these bytes.
    pub fn open(&mut self, bytes: &[u8]) -> usize {
        let number = self.connect();
        self.feed(number, bytes);
        number
    }

    fn now(&self) -> Now {
        Now { unix: UnixNanos(START + self.elapsed.as_nanos() as u64), elapsed: self.elapsed }
    }

    pub fn feed(&mut self, connection: usize, bytes: &[u8]) {
        let now = self.now();
        let Run { connections, lines, events, keeps_lines, .. } = self;
        let session = connections[connection].session.as_mut().unwrap();
        session.feed(bytes, now, &mut |batch| take(&batch, lines, events, *keeps_lines));
    }

    /// Time passes for every connection.
    pub fn pass(&mut self, time: Duration) {
        self.elapsed += time;
        let now = self.now();
        let Run { connections, lines, events, keeps_lines, .. } = self;
        for session in connections.iter_mut().filter_map(|connection| connection.session.as_mut()) {
            session.pass_time(now, &mut |batch| take(&batch, lines, events, *keeps_lines));
        }
    }

    pub fn finish(&mut self, connection: usize, end: End) {
        let now = self.now();
        let Run { connections, lines, events, keeps_lines, .. } = self;
        let connection = &mut connections[connection];
        let session = connection.session.take().unwrap();
        session.finish(end, now, &mut |batch| take(&batch, lines, events, *keeps_lines));
        let totals = connection.counters.totals();
        assert_eq!(totals.buffered(), 0, "decoded + lost = received");
    }

    /// Drops a connection without an end.
    pub fn drop(&mut self, connection: usize) {
        self.connections[connection].session = None;
    }

    /// The number of connections so far.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    pub fn is_open(&self, connection: usize) -> bool {
        self.connections[connection].session.is_some()
    }

    pub fn totals(&self, connection: usize) -> ListenerTotals {
        self.connections[connection].counters.totals()
    }

    /// The number of events so far.
    pub fn count(&self) -> u64 {
        self.events
    }

    /// The lines of all events so far.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.lines).unwrap()
    }

    pub fn events(&self) -> Vec<Value> {
        self.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    pub fn named(&self, name: &str) -> Vec<Value> {
        self.events().into_iter().filter(|event| event["name"] == name).collect()
    }

    /// Ends all open connections, the last one first.
    pub fn end(mut self) -> Finished {
        for connection in (0..self.connections.len()).rev() {
            if self.is_open(connection) {
                self.finish(connection, End::Closed);
            }
        }
        let totals = self.connections.iter().map(|connection| connection.counters.totals()).collect();
        Finished { text: String::from_utf8(self.lines).unwrap(), totals }
    }
}

impl Finished {
    pub fn events(&self) -> Vec<Value> {
        self.text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    pub fn named(&self, name: &str) -> Vec<Value> {
        self.events().into_iter().filter(|event| event["name"] == name).collect()
    }

    pub fn warnings(&self, code: &str) -> u64 {
        self.totals.iter().filter_map(|totals| totals.warnings.get(code)).sum()
    }
}

fn take(batch: &Batch, lines: &mut Vec<u8>, events: &mut u64, keeps_lines: bool) {
    *events += batch.len() as u64;
    if keeps_lines {
        let mut encoder = Encoder::new(Format::Json);
        batch.events().for_each(|event| encoder.encode(event, lines));
    }
}
