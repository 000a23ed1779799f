//! Conversations with agents as bytes, written by code that shares nothing with the decoder, and the expected
//! of them.

pub mod model;
pub mod pack;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tributary::decode::Offline;
use tributary::event::{Batch, Origin, UnixNanos};
use tributary::pipeline::accounting::ListenerCounters;
use tributary::protocol::rbkit::{AgentOptions, Channel, Options, Player, RbkitAgent, Subscription};
use tributary::protocol::{End, Now, Protocol, Session};
use tributary::sink::encode::{Encoder, Format};

/// The options of reading a conversation.
#[derive(Clone, Debug)]
pub struct Setting {
    pub options: Options,
    pub max_message_bytes: u64,
}

impl Default for Setting {
    fn default() -> Self {
        Setting { options: Options::default(), max_message_bytes: 16 << 20 }
    }
}

/// The result of reading a connection.
#[derive(Debug)]
pub struct Outcome {
    pub lines: Vec<String>,
    pub received: u64,
    pub decoded: u64,
    pub lost: u64,
    /// The memory of the largest batch, in bytes.
    pub largest_batch: usize,
}

impl Outcome {
    pub fn events(&self) -> Vec<Value> {
        self.lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Events by name; losses by reason.
    pub fn names(&self) -> BTreeMap<String, u64> {
        let mut names = BTreeMap::new();
        for event in self.events() {
            let reason = event["loss"]["reason"].as_str().map(|reason| format!("loss {reason}"));
            let name = reason.unwrap_or_else(|| event["name"].as_str().unwrap().to_owned());
            *names.entry(name).or_insert(0) += 1;
        }
        names
    }
}

/// The socket of the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    Published,
    Replied,
}

/// Reads what a connection received, in pieces that end at `cuts` and at the end.
pub fn read_stream(setting: &Setting, side: Side, stream: &[u8], cuts: &[usize], end: End) -> Outcome {
    let agent = RbkitAgent::new(AgentOptions::default());
    let options = Arc::new(setting.options.clone());
    match side {
        Side::Published => drive(Subscription::new(agent, options, setting.max_message_bytes), stream, cuts, end),
        // A recording has no requests, so its replies are read without them.
        Side::Replied => {
            let player = Player::new(agent, options, setting.max_message_bytes, &[0xFF], Some(Channel::Rep), true);
            drive(player, stream, cuts, end)
        }
    }
}

pub fn drive(session: impl Session, stream: &[u8], cuts: &[usize], end: End) -> Outcome {
    let mut driven = Driven::new(session);
    let mut from = 0;
    for &cut in cuts {
        driven.feed(&stream[from..cut], Duration::ZERO);
        from = cut;
    }
    driven.feed(&stream[from..], Duration::ZERO);
    driven.finish(end, Duration::ZERO)
}

/// A session without a socket.
pub struct Driven<S> {
    offline: Offline<S>,
    counters: Arc<ListenerCounters>,
    lines: Vec<String>,
    largest_batch: usize,
}

impl<S: Session> Driven<S> {
    pub fn new(session: S) -> Self {
        let counters = ListenerCounters::new("test".into(), Protocol::Rbkit);
        let origin = Arc::new(Origin::new("rbkit", "test".into(), "test".into(), 1));
        let offline = Offline::new(session, origin, counters.clone());
        Driven { offline, counters, lines: Vec::new(), largest_batch: 0 }
    }

    pub fn feed(&mut self, bytes: &[u8], elapsed: Duration) {
        let Driven { offline, lines, largest_batch, .. } = self;
        offline.feed(bytes, now(elapsed), &mut |batch| take(&batch, lines, largest_batch));
    }

    pub fn pass_time(&mut self, elapsed: Duration) {
        let Driven { offline, lines, largest_batch, .. } = self;
        offline.pass_time(now(elapsed), &mut |batch| take(&batch, lines, largest_batch));
    }

    pub fn finish(self, end: End, elapsed: Duration) -> Outcome {
        let Driven { offline, counters, mut lines, mut largest_batch } = self;
        offline.finish(end, now(elapsed), &mut |batch| take(&batch, &mut lines, &mut largest_batch));
        let totals = counters.totals();
        Outcome { lines, received: totals.bytes_in, decoded: totals.bytes_decoded, lost: totals.lost(), largest_batch }
    }
}

/// This time after 2026-11-20T12:15:00Z.
fn now(elapsed: Duration) -> Now {
    Now { unix: UnixNanos(1_795_176_900_000_000_000 + elapsed.as_nanos() as u64), elapsed }
}

fn take(batch: &Batch, lines: &mut Vec<String>, largest_batch: &mut usize) {
    *largest_batch = batch.memory_bytes().max(*largest_batch);
    let mut encoder = Encoder::new(Format::Json);
    let mut bytes = Vec::new();
    batch.events().for_each(|event| encoder.encode(event, &mut bytes));
    lines.extend(String::from_utf8(bytes).unwrap().lines().map(str::to_owned));
}

/// Asserts that every byte is decoded or lost, that losses are inside the stream, and that their bytes add up.
pub fn check_accounting(outcome: &Outcome, stream: &[u8]) {
    assert_eq!(outcome.received, stream.len() as u64);
    check_totals(outcome);
    for event in outcome.events().iter().filter(|event| event["kind"] == "loss") {
        let offset = event["origin"]["offset"].as_u64().unwrap() as usize;
        let hex = event["loss"]["excerpt"].as_str().unwrap_or_default();
        let excerpt: Vec<u8> =
            (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
        // In order, but not always contiguous: commands between the frames of a message are not lost.
        let mut rest = stream[offset..].iter();
        let is_there = excerpt.iter().all(|byte| rest.any(|other| other == byte));
        assert!(is_there, "an excerpt that does not stand behind {offset}: {event}");
    }
}

/// The same for a connection that the daemon may have closed before all bytes arrived.
pub fn check_totals(outcome: &Outcome) {
    assert_eq!(outcome.decoded + outcome.lost, outcome.received, "decoded + lost = received");
    let mut lost = 0;
    for event in outcome.events() {
        let offset = event["origin"]["offset"].as_u64().unwrap();
        let length = event["origin"]["length"].as_u64().unwrap();
        let name = event["name"].as_str().unwrap();
        assert!(offset <= outcome.received, "{name} at {offset} of {}", outcome.received);
        if event["kind"] == "loss" {
            let bytes = event["loss"]["bytes"].as_u64().unwrap();
            lost += bytes;
            // A message may be empty, or may end early directly after one of its events.
            let is_empty_message = event["loss"]["detail"].as_str().unwrap().ends_with("0 are there");
            let may_be_nothing = ["gap", "truncated"].contains(&event["loss"]["reason"].as_str().unwrap());
            assert!(bytes > 0 || may_be_nothing || is_empty_message, "a loss of nothing: {event}");
            assert!(offset + bytes <= outcome.received, "a loss of {bytes} at {offset} of {}", outcome.received);
        } else {
            assert!(offset + length <= outcome.received, "{name} at {offset} + {length} of {}", outcome.received);
        }
    }
    assert_eq!(lost, outcome.lost, "the bytes of loss events are the counted lost bytes");
}
