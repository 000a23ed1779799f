//! Conversations with rbkit agents as bytes, written by code that shares nothing with the decoder, and what must come
//! of them.
#![allow(dead_code, missing_docs, unreachable_pub, clippy::unwrap_used)]

pub mod model;
pub mod pack;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tributary::decode::Offline;
use tributary::event::{Batch, Origin, UnixNanos};
use tributary::pipeline::ledger::ListenerBooks;
use tributary::protocol::rbkit::{Agent, AgentOptions, Channel, Options, Player, Subscription};
use tributary::protocol::{End, Now, Protocol, Session};
use tributary::sink::encode::{Encoder, Format};

/// How a conversation is read.
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

/// What has become of a connection.
#[derive(Debug)]
pub struct Heard {
    pub lines: Vec<String>,
    pub received: u64,
    pub decoded: u64,
    pub lost: u64,
    /// Most bytes of memory that one batch held.
    pub largest_batch: usize,
}

impl Heard {
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

/// Which side of a conversation the bytes are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    Published,
    Replied,
}

/// Reads what a connection received, in pieces that end at `cuts` and at the end.
pub fn hear(setting: &Setting, side: Side, stream: &[u8], cuts: &[usize], end: End) -> Heard {
    let agent = Agent::new(AgentOptions::default());
    let options = Arc::new(setting.options.clone());
    match side {
        Side::Published => drive(Subscription::new(agent, options, setting.max_message_bytes), stream, cuts, end),
        // Nothing is asked of a recording, so replies are read as they come.
        Side::Replied => {
            match Player::new(agent, options, setting.max_message_bytes, &[0xFF], Some(Channel::Rep), true) {
                Player::Rep(session) => drive(*session, stream, cuts, end),
                Player::Pub(_) => unreachable!(),
            }
        }
    }
}

pub fn drive(session: impl Session, stream: &[u8], cuts: &[usize], end: End) -> Heard {
    let now = Now { unix: UnixNanos(1_795_176_900_000_000_000), elapsed: Duration::from_secs(1) };
    let books = ListenerBooks::new("test".into(), Protocol::Rbkit);
    let origin = Arc::new(Origin::new("rbkit", "test".into(), "test".into(), 1));
    let mut offline = Offline::new(session, origin, books.clone());
    let (mut lines, mut largest_batch) = (Vec::new(), 0);
    let mut take = |batch: Batch| {
        largest_batch = largest_batch.max(batch.memory_bytes());
        let mut encoder = Encoder::new(Format::Json);
        let mut bytes = Vec::new();
        batch.events().for_each(|event| encoder.encode(event, &mut bytes));
        lines.extend(String::from_utf8(bytes).unwrap().lines().map(str::to_owned));
    };
    let mut from = 0;
    for &cut in cuts {
        offline.feed(&stream[from..cut], now, &mut take);
        from = cut;
    }
    offline.feed(&stream[from..], now, &mut take);
    offline.finish(end, now, &mut take);
    let account = books.account();
    Heard { lines, received: account.bytes_in, decoded: account.bytes_decoded, lost: account.lost(), largest_batch }
}

/// Every byte is decoded or lost, every loss stands within the stream, and what the losses say adds up.
pub fn check_law(heard: &Heard, stream: &[u8]) {
    assert_eq!(heard.received, stream.len() as u64);
    assert_eq!(heard.decoded + heard.lost, heard.received, "decoded + lost = received");
    let mut lost = 0;
    for event in heard.events() {
        let offset = event["origin"]["offset"].as_u64().unwrap();
        let length = event["origin"]["length"].as_u64().unwrap();
        let name = event["name"].as_str().unwrap();
        assert!(offset <= heard.received, "{name} at {offset} of {}", heard.received);
        if event["kind"] == "loss" {
            let bytes = event["loss"]["bytes"].as_u64().unwrap();
            lost += bytes;
            // A message may be empty, or end before what its length promises right behind one of its events.
            let is_empty_message = event["loss"]["detail"].as_str().unwrap().ends_with("0 are there");
            let may_be_nothing = ["gap", "truncated"].contains(&event["loss"]["reason"].as_str().unwrap());
            assert!(bytes > 0 || may_be_nothing || is_empty_message, "a loss of nothing: {event}");
            assert!(offset + bytes <= heard.received, "a loss of {bytes} at {offset} of {}", heard.received);
        } else {
            assert!(offset + length <= heard.received, "{name} at {offset} + {length} of {}", heard.received);
        }
    }
    assert_eq!(lost, heard.lost, "the losses told are the losses booked");
}
