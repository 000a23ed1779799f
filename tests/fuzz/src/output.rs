//! The output of a session as a sink writes it, and the properties that hold for any input.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use tributary::event::{Batch, Origin, Reason, UnixNanos};
use tributary::pipeline::accounting::{ListenerCounters, ListenerTotals};
use tributary::protocol::{Now, Protocol};
use tributary::sink::encode::{Encoder, Format};

use crate::hostile::raw;

/// The time `elapsed` after 2026-11-20T12:15:00Z, the start of every input.
pub fn now(elapsed: Duration) -> Now {
    Now { unix: UnixNanos(1_795_176_900_000_000_000 + elapsed.as_nanos() as u64), elapsed }
}

pub fn origin(protocol: Protocol, connection: u64) -> Arc<Origin> {
    Arc::new(Origin::new(protocol.as_str(), "fuzz".into(), "192.0.2.1:1234".into(), connection))
}

pub fn counters(protocol: Protocol) -> Arc<ListenerCounters> {
    ListenerCounters::new("fuzz".into(), protocol)
}

/// All output lines. Their texts are kept only on request, because a few input bytes may make many lines.
pub struct Output {
    pub lines: Vec<Line>,
    pub text: Option<String>,
    encoder: Encoder,
    buffer: Vec<u8>,
}

/// The checked properties of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The hash of the whole line.
    pub hash: u64,
    pub connection: u64,
    pub offset: u64,
    pub length: u64,
    pub loss: Option<Lost>,
    pub is_debug: bool,
}

/// The content of a loss event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    pub reason: usize,
    pub bytes: u64,
    pub events: Option<u64>,
}

/// The maximum size of a batch.
const MAX_BATCH_BYTES: usize = 64 << 20;

impl Output {
    pub fn new() -> Output {
        Output { lines: Vec::new(), text: None, encoder: Encoder::new(Format::Json), buffer: Vec::new() }
    }

    /// An output that also keeps the texts.
    pub fn with_text() -> Output {
        Output { text: Some(String::new()), ..Output::new() }
    }

    /// Encodes the events of a batch: each must be one line of JSON without repeated keys.
    pub fn take(&mut self, batch: &Batch) {
        assert!(batch.memory_bytes() <= MAX_BATCH_BYTES, "a batch of {} bytes", batch.memory_bytes());
        for event in batch.events() {
            self.buffer.clear();
            self.encoder.encode(event, &mut self.buffer);
            let text = std::str::from_utf8(&self.buffer).expect("a line is UTF-8");
            let line = text.strip_suffix('\n').filter(|line| !line.contains('\n')).expect("an event is one line");
            let read: Event<'_> =
                serde_json::from_str(line).unwrap_or_else(|error| panic!("invalid JSON: {error}: {line:.2000}"));
            assert_eq!(raw::repeated_keys(line), [""; 0], "{line:.2000}");
            if let Some(all) = &mut self.text {
                all.push_str(text);
            }
            let mut hasher = DefaultHasher::new();
            line.hash(&mut hasher);
            let loss = read.loss.map(|loss| Lost {
                reason: Reason::ALL.iter().position(|known| known.as_str() == loss.reason).expect("a known reason"),
                bytes: loss.bytes,
                events: loss.events,
            });
            assert_eq!(loss.is_some(), read.kind == "loss", "{line:.2000}");
            self.lines.push(Line {
                hash: hasher.finish(),
                connection: read.origin.connection,
                offset: read.origin.offset,
                length: read.origin.length,
                loss,
                is_debug: read.severity == Some("DEBUG"),
            });
        }
    }

    /// Checks that decoded + lost = received, with nothing buffered, and that the loss events have the counted bytes.
    pub fn check_totals<'a>(&self, totals: impl IntoIterator<Item = &'a ListenerTotals>) {
        let mut counted = [0; Reason::ALL.len()];
        for totals in totals {
            assert_eq!(totals.buffered(), 0, "decoded + lost = received: {totals:?}");
            counted.iter_mut().zip(totals.bytes_lost).for_each(|(sum, bytes)| *sum += bytes);
        }
        let mut reported = [0; Reason::ALL.len()];
        self.losses().for_each(|(_, loss)| reported[loss.reason] += loss.bytes);
        assert_eq!(reported, counted, "the bytes of loss events are the counted bytes");
    }

    /// Checks that no event lies outside the bytes that its connection received.
    pub fn check_offsets(&self, received: impl Fn(u64) -> u64) {
        for line in &self.lines {
            let end = line.offset.checked_add(line.length).expect("an end below 2^64");
            assert!(end <= received(line.connection), "outside of {} bytes: {line:?}", received(line.connection));
        }
    }

    /// Checks that `other` has the same lines.
    pub fn check_same(&self, other: &Output, how: &str) {
        if let Some(at) = self.lines.iter().zip(&other.lines).position(|(one, other)| one != other) {
            panic!("{how}, event {at} is {:?}, not {:?}", other.lines[at], self.lines[at]);
        }
        assert_eq!(self.lines.len(), other.lines.len(), "events, {how}");
    }

    pub fn losses(&self) -> impl Iterator<Item = (&Line, &Lost)> {
        self.lines.iter().filter_map(|line| Some((line, line.loss.as_ref()?)))
    }
}

impl Default for Output {
    fn default() -> Self {
        Output::new()
    }
}

/// The fields of a line that are checked. The rest must be JSON.
#[derive(Deserialize)]
struct Event<'a> {
    kind: &'a str,
    severity: Option<&'a str>,
    origin: Position,
    #[serde(borrow)]
    loss: Option<Loss<'a>>,
}

/// Missing fields are zero.
#[derive(Deserialize)]
struct Position {
    #[serde(default)]
    connection: u64,
    #[serde(default)]
    offset: u64,
    #[serde(default)]
    length: u64,
}

#[derive(Deserialize)]
struct Loss<'a> {
    reason: &'a str,
    #[serde(default)]
    bytes: u64,
    events: Option<u64>,
}
