//! Shared by several test binaries: sessions driven without sockets, and their events as JSON.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tributary::decode::Offline;
use tributary::event::{Batch, Origin, UnixNanos};
use tributary::memory::MemoryBudget;
use tributary::pipeline::accounting::{ListenerCounters, ListenerTotals};
use tributary::protocol::datadog::{DatadogSession, Options};
use tributary::protocol::{End, Now, Protocol};
use tributary::sink::encode::{Encoder, Format};

/// 2026-11-20T12:15:00Z, the start time of every test.
pub const START: UnixNanos = UnixNanos(1_795_176_900_000_000_000);

pub struct Decoded {
    pub events: Vec<Value>,
    pub totals: ListenerTotals,
}

/// A session with a clock that the test controls.
pub struct Running {
    offline: Offline<DatadogSession>,
    counters: Arc<ListenerCounters>,
    elapsed: Duration,
    lines: Vec<u8>,
}

impl Running {
    pub fn new(options: &Options) -> Self {
        Running::with_budget(options, &MemoryBudget::new(256 << 20))
    }

    pub fn with_budget(options: &Options, memory: &Arc<MemoryBudget>) -> Self {
        let counters = ListenerCounters::new("test".into(), Protocol::Datadog);
        let origin = Arc::new(Origin::new("datadog", "test".into(), "test".into(), 1));
        let session = DatadogSession::new(options.clone(), 16 << 20, false, memory);
        let offline = Offline::new(session, origin, counters.clone());
        Running { offline, counters, elapsed: Duration::ZERO, lines: Vec::new() }
    }

    fn now(&self) -> Now {
        Now { unix: UnixNanos(START.0 + self.elapsed.as_nanos() as u64), elapsed: self.elapsed }
    }

    pub fn feed(&mut self, bytes: &[u8]) {
        let now = self.now();
        self.offline.feed(bytes, now, &mut |batch| encode(&batch, &mut self.lines));
    }

    pub fn pass(&mut self, time: Duration) {
        self.elapsed += time;
        let now = self.now();
        self.offline.pass_time(now, &mut |batch| encode(&batch, &mut self.lines));
    }

    pub fn events(&self) -> Vec<Value> {
        let text = std::str::from_utf8(&self.lines).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    pub fn names(&self) -> Vec<String> {
        self.events().iter().map(|event| event["name"].as_str().unwrap().to_owned()).collect()
    }

    pub fn finish(mut self, end: End) -> Decoded {
        let now = self.now();
        let Running { offline, .. } = self;
        offline.finish(end, now, &mut |batch| encode(&batch, &mut self.lines));
        let text = std::str::from_utf8(&self.lines).unwrap();
        let events = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let totals = self.counters.totals();
        assert_eq!(totals.buffered(), 0, "decoded + lost = received");
        Decoded { events, totals }
    }
}

pub fn encode(batch: &Batch, lines: &mut Vec<u8>) {
    let mut encoder = Encoder::new(Format::Json);
    batch.events().for_each(|event| encoder.encode(event, lines));
}

pub fn decode_with(options: &Options, pieces: Vec<&[u8]>, end: End) -> Decoded {
    let mut running = Running::new(options);
    pieces.into_iter().for_each(|piece| running.feed(piece));
    running.finish(end)
}

/// `bytes` cut at the given offsets.
pub fn pieces<'a>(bytes: &'a [u8], cuts: &[usize]) -> Vec<&'a [u8]> {
    let mut from = 0;
    let mut pieces = Vec::new();
    for &cut in cuts {
        pieces.push(&bytes[from..cut]);
        from = cut;
    }
    pieces.push(&bytes[from..]);
    pieces
}

/// An instant in the format of the encoder, made independently of it.
pub fn rfc3339(unix_nanos: u64) -> String {
    let at = jiff::Timestamp::from_nanosecond(i128::from(unix_nanos)).unwrap();
    let date = at.strftime("%Y-%m-%dT%H:%M:%S").to_string();
    format!("{date}.{:09}Z", unix_nanos % 1_000_000_000)
}
