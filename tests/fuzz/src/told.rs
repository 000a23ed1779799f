//! What went out, as a sink would have written it, and what must hold of it whatever came in.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use tributary::event::{Batch, Origin, Reason, UnixNanos};
use tributary::pipeline::accounting::{ListenerTotals, ListenerCounters};
use tributary::protocol::{Now, Protocol};
use tributary::sink::encode::{Encoder, Format};

use crate::hostile_support::raw;

/// So long after 2026-11-20T12:15:00Z, when every input begins.
pub fn now(elapsed: Duration) -> Now {
    Now { unix: UnixNanos(1_795_176_900_000_000_000 + elapsed.as_nanos() as u64), elapsed }
}

pub fn origin(protocol: Protocol, connection: u64) -> Arc<Origin> {
    Arc::new(Origin::new(protocol.as_str(), "fuzz".into(), "192.0.2.1:1234".into(), connection))
}

pub fn counters(protocol: Protocol) -> Arc<ListenerCounters> {
    ListenerCounters::new("fuzz".into(), protocol)
}

/// Every line that went out. Their texts are not kept unless it is said, for a few bytes may make many.
pub struct Told {
    pub lines: Vec<Line>,
    pub text: Option<String>,
    encoder: Encoder,
    buffer: Vec<u8>,
}

/// What is remembered of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Of the whole line.
    pub hash: u64,
    pub connection: u64,
    pub offset: u64,
    pub length: u64,
    pub loss: Option<Lost>,
    pub is_debug: bool,
}

/// What a loss says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    pub reason: usize,
    pub bytes: u64,
    pub events: Option<u64>,
}

/// No batch is larger than this, whatever is in it.
const MOST_BATCH_BYTES: usize = 64 << 20;

impl Told {
    pub fn new() -> Told {
        Told { lines: Vec::new(), text: None, encoder: Encoder::new(Format::Json), buffer: Vec::new() }
    }

    /// The same, with the texts.
    pub fn keeping_text() -> Told {
        Told { text: Some(String::new()), ..Told::new() }
    }

    /// Writes the events of a batch: each must be one line that is JSON and repeats no key.
    pub fn take(&mut self, batch: &Batch) {
        assert!(batch.memory_bytes() <= MOST_BATCH_BYTES, "a batch of {} bytes", batch.memory_bytes());
        for event in batch.events() {
            self.buffer.clear();
            self.encoder.encode(event, &mut self.buffer);
            let text = std::str::from_utf8(&self.buffer).expect("a line is UTF-8");
            let line = text.strip_suffix('\n').filter(|line| !line.contains('\n')).expect("an event is one line");
            let read: Event<'_> =
                serde_json::from_str(line).unwrap_or_else(|error| panic!("no JSON: {error}: {line:.2000}"));
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

    /// decoded + lost = received with nothing left over, and the losses that were told are those that were booked.
    pub fn check_books<'a>(&self, totals: impl IntoIterator<Item = &'a ListenerTotals>) {
        let mut booked = [0; Reason::ALL.len()];
        for totals in totals {
            assert_eq!(totals.buffered(), 0, "decoded + lost = received: {totals:?}");
            booked.iter_mut().zip(totals.bytes_lost).for_each(|(sum, bytes)| *sum += bytes);
        }
        let mut told = [0; Reason::ALL.len()];
        self.losses().for_each(|(_, loss)| told[loss.reason] += loss.bytes);
        assert_eq!(told, booked, "the losses told are the losses booked");
    }

    /// No event stands outside what its connection received.
    pub fn check_places(&self, received: impl Fn(u64) -> u64) {
        for line in &self.lines {
            let end = line.offset.checked_add(line.length).expect("an end below 2^64");
            assert!(end <= received(line.connection), "outside of {} bytes: {line:?}", received(line.connection));
        }
    }

    /// The same went out as another time.
    pub fn check_same(&self, other: &Told, how: &str) {
        if let Some(at) = self.lines.iter().zip(&other.lines).position(|(one, other)| one != other) {
            panic!("{how}, event {at} is {:?}, not {:?}", other.lines[at], self.lines[at]);
        }
        assert_eq!(self.lines.len(), other.lines.len(), "events, {how}");
    }

    pub fn losses(&self) -> impl Iterator<Item = (&Line, &Lost)> {
        self.lines.iter().filter_map(|line| Some((line, line.loss.as_ref()?)))
    }
}

impl Default for Told {
    fn default() -> Self {
        Told::new()
    }
}

/// Of a line, what is looked at. The rest must be JSON.
#[derive(Deserialize)]
struct Event<'a> {
    kind: &'a str,
    severity: Option<&'a str>,
    origin: Place,
    #[serde(borrow)]
    loss: Option<Loss<'a>>,
}

/// Whatever else is not there says nothing.
#[derive(Deserialize)]
struct Place {
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
