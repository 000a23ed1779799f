//! `/events/live`: events as they pass, as Server-Sent Events. It reads a tap.

use std::time::Duration;

use hyper::StatusCode;
use serde_json::{Value, json};
use tokio::time::{MissedTickBehavior, interval};

use super::answer::ApiError;
use super::context::ApiContext;
use super::events::{EventFilter, FILTERS, LineEncoder};
use super::history::now_ms;
use super::query::bad;
use super::sse;
use crate::admin::Subject;
use crate::admin::response::AdminResponse;
use crate::admin::tap::open_reader;
use tributary_event::{Batch, Kind};
use tributary_pipeline::tap::{self, MAX_WAITING_BYTES, TapItem};
use tributary_sink::Kinds;

/// Events a second that are sent, by default and at most.
const RATE: (u64, u64) = (200, 1000);
/// Events a second that are compared with the filters, for each event that may be sent.
const EXAMINED: u64 = 20;
/// Events are collected for this time before they are sent.
const PAUSE: Duration = Duration::from_millis(100);
/// The most bytes of events that are collected.
const MAX_COLLECTED: usize = 1 << 20;

/// Opens the stream.
pub(super) fn open(context: ApiContext) -> Result<AdminResponse, ApiError> {
    context.query.only(&[&FILTERS[..], &["rate"]].concat())?;
    let filter = EventFilter::read(&context.query)?;
    let rate = context.query.number("rate")?.unwrap_or(RATE.0);
    if !(1..=RATE.1).contains(&rate) {
        return Err(bad(format!("rate is {rate}; it must be 1 to {}", RATE.1)));
    }
    let kinds: Kinds = filter.kinds().into_iter().collect();
    let wanted = tap::TapFilter::new(None, kinds, false);
    let opened = open_reader(&context.subject, wanted, (MAX_WAITING_BYTES + MAX_COLLECTED) as u64);
    let (mut reader, memory) = opened.map_err(|line| ApiError::new(StatusCode::SERVICE_UNAVAILABLE, line))?;
    let (response, mut body) = sse::response();
    tokio::spawn(async move {
        let mut stream = LiveEvents::new(filter, rate, &context.subject);
        let mut seconds = interval(Duration::from_secs(1));
        seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut pauses = interval(PAUSE);
        pauses.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let mut out = Vec::new();
            tokio::select! {
                biased;
                _ = seconds.tick() => {
                    stream.lines.update_names(&context.subject);
                    stream.second(&mut out);
                }
                _ = pauses.tick() => stream.send(&mut out),
                item = reader.next() => match item {
                    Some(TapItem::Events(batch)) => stream.add(&batch),
                    Some(TapItem::Bytes(_) | TapItem::Request(_)) => {}
                    None => break,
                },
            }
            stream.dropped += reader.take_dropped().map_or(0, |dropped| dropped.events);
            if !out.is_empty() && body.send_data(out.into()).await.is_err() {
                break;
            }
        }
        drop(memory);
    });
    Ok(response)
}

/// The events of one stream.
struct LiveEvents {
    filter: EventFilter,
    rate: u64,
    lines: LineEncoder,
    /// The collected events, with commas between them.
    collected: String,
    /// The names of their agents.
    agents: Vec<String>,
    /// Since the last second: events that were sent, that were compared with the filters, and that passed.
    shown: u64,
    examined: u64,
    passed: u64,
    /// Events that were not sent since their number was last reported to the reader.
    dropped: u64,
}

impl LiveEvents {
    fn new(filter: EventFilter, rate: u64, subject: &Subject) -> LiveEvents {
        let (lines, collected, agents) = (LineEncoder::new(subject), String::new(), Vec::new());
        LiveEvents { filter, rate, lines, collected, agents, shown: 0, examined: 0, passed: 0, dropped: 0 }
    }

    fn add(&mut self, batch: &Batch) {
        let Some(origin) = batch.origin() else { return };
        if !self.filter.wants_listener(origin.protocol, &origin.listener) {
            return;
        }
        let kinds = self.filter.kinds();
        let events: u64 = Kind::ALL.into_iter().filter(|kind| kinds.contains(kind)).map(|kind| batch.count(kind)).sum();
        self.passed += events;
        let mut left = events;
        for event in batch.events().filter(|event| kinds.contains(&event.kind())) {
            let is_spent = self.shown >= self.rate || self.examined >= self.rate * EXAMINED;
            if is_spent || self.collected.len() > MAX_COLLECTED / 2 {
                self.dropped += left;
                return;
            }
            left -= 1;
            self.examined += 1;
            if !self.filter.wants(event) {
                continue;
            }
            let line = self.lines.line(event);
            if self.collected.len() + line.len() > MAX_COLLECTED {
                self.dropped += 1;
            } else if self.filter.has_text(line) {
                if !self.collected.is_empty() {
                    self.collected.push(',');
                }
                self.collected.push_str(line);
                let name = self.lines.agent_name(event);
                self.agents.push(name);
                self.shown += 1;
            }
        }
    }

    /// Writes the collected events, and how many were left out.
    fn send(&mut self, out: &mut Vec<u8>) {
        if !self.collected.is_empty() {
            let agents = Value::from(std::mem::take(&mut self.agents));
            sse::push(out, "events", &format!("{{\"agents\":{agents},\"events\":[{}]}}", self.collected));
            self.collected.clear();
        }
        if self.dropped > 0 {
            sse::push(out, "dropped", &json!({ "events": self.dropped }).to_string());
            self.dropped = 0;
        }
    }

    /// A second is over.
    fn second(&mut self, out: &mut Vec<u8>) {
        self.send(out);
        let alive = json!({ "now_ms": now_ms(), "shown": self.shown, "passed": self.passed });
        sse::push(out, "alive", &alive.to_string());
        (self.shown, self.examined, self.passed) = (0, 0, 0);
    }
}
