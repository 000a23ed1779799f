//! Endless OS metrics: every recorded bundle without a socket, compared with the result of an independent decoder.

use std::sync::Arc;
use std::time::Duration;

use crate::endless_support::{assert_events, cases, comparable, expected_events};
use serde_json::{Value, json};
use tributary::codec::gvariant::{Scratch, Skip, Slice, visit_type};
use tributary::decode;
use tributary::event::{Origin, Reason, UnixNanos};
use tributary::memory::MemoryBudget;
use tributary::pipeline::accounting::{ListenerCounters, ListenerTotals};
use tributary::protocol::endless::{EndlessExchange, Options};
use tributary::protocol::{Now, Protocol, Request, RequestHead};
use tributary::sink::encode::{Encoder, Format};

/// A listener without a socket.
struct Offline {
    exchange: EndlessExchange,
    counters: Arc<ListenerCounters>,
}

struct Answer {
    status: u16,
    aside: Option<String>,
    events: Vec<Value>,
    totals: ListenerTotals,
}

impl Offline {
    fn new(options: Options) -> Self {
        let exchange = EndlessExchange::new(options, &MemoryBudget::new(256 << 20));
        Offline { exchange, counters: ListenerCounters::new("test".into(), Protocol::Endless) }
    }

    fn put(&self, request: Request, received: u64) -> Answer {
        let origin = Arc::new(Origin::new("endless", "test".into(), "test".into(), 1));
        let now = Now { unix: UnixNanos(received), elapsed: Duration::from_secs(1) };
        let mut lines = Vec::new();
        let mut encoder = Encoder::new(Format::Json);
        let mut take = |batch: tributary::event::Batch| {
            batch.events().for_each(|event| encoder.encode(event, &mut lines));
        };
        let (response, aside) = decode::answer(&self.exchange, request, origin, &self.counters, now, &mut take);
        let text = std::str::from_utf8(&lines).unwrap();
        let events = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let totals = self.counters.totals();
        assert_eq!(totals.buffered(), 0, "decoded + lost = received");
        Answer { status: response.status, aside, events, totals }
    }
}

fn recorded(request: &[u8]) -> Request {
    let mut requests = decode::requests(request).unwrap();
    assert_eq!(requests.len(), 1);
    requests.remove(0)
}

/// A request with the right hash around this bundle.
fn upload(version: u64, bundle: &[u8]) -> Request {
    let hash = ring::digest::digest(&ring::digest::SHA512, bundle);
    let hex: String = hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    let head = RequestHead { method: "PUT".into(), target: format!("/{version}/{hex}"), headers: Vec::new() };
    Request { head, body: bundle.to_vec().into(), number: 1 }
}

fn split(events: &[Value]) -> (Vec<Value>, Vec<Value>) {
    let (losses, events): (Vec<_>, Vec<_>) = events.iter().partition(|event| event["kind"] == "loss");
    (events.into_iter().map(comparable).collect(), losses.into_iter().cloned().collect())
}

#[test]
fn every_recorded_bundle_gives_the_expected_events_losses_and_answer() {
    for case in cases() {
        let offline = Offline::new(Options::default());
        let answer = offline.put(recorded(&case.request), case.received());
        assert_eq!(answer.status, 200, "{}", case.name);
        let (events, losses) = split(&answer.events);
        assert_events(&case.name, &events, &expected_events(&case, case.received()));
        let totals = &answer.totals;
        assert_eq!(totals.bytes_in, case.body.len() as u64, "{}: the counters count what is inflated", case.name);
        if case.is_normal() {
            let empty_sequences = case.name.ends_with("-mixed") && case.version() < 3;
            assert_eq!(losses.len(), usize::from(empty_sequences), "{}: {losses:?}", case.name);
            assert_eq!(answer.aside, None, "{}", case.name);
            continue;
        }
        assert!(answer.aside.is_some(), "{}", case.name);
        assert!(losses.iter().all(|loss| loss["loss"]["reason"] == "malformed"), "{}", case.name);
        if case.is_refused() {
            assert_eq!(totals.lost(), case.body.len() as u64, "{}", case.name);
        } else {
            let faulty = |kind: &str| case.outcome["events"][kind]["faulty"].as_u64().unwrap_or(0);
            assert_eq!(losses.len() as u64, faulty("singular") + faulty("aggregate"), "{}", case.name);
        }
    }
}

#[test]
fn normal_form_verdicts_are_the_expected_ones() {
    let mut verdicts = [0, 0];
    for case in cases() {
        let mut scratch = Scratch::default();
        let walked = visit_type(case.bundle_type(), Slice::new(&case.body), 0, &mut scratch, &mut Skip);
        assert_eq!(walked.is_ok(), case.is_normal(), "{}: {walked:?}", case.name);
        verdicts[usize::from(case.is_normal())] += 1;
    }
    assert!(verdicts[0] > 15 && verdicts[1] > 60, "{verdicts:?}");
}

#[test]
fn an_unreadable_payload_is_shown_raw_and_the_other_events_are_read() {
    let case = cases().into_iter().find(|case| case.name == "bad-bool-2").unwrap();
    let answer = Offline::new(Options::default()).put(recorded(&case.request), case.received());
    let (events, losses) = split(&answer.events);
    assert_eq!(events.len(), 4);
    assert_eq!(events[2]["attributes"]["endless.payload_base64"], "AgBi", "02, the zero byte, and the type b");
    assert_eq!(losses[0]["loss"]["bytes"], 0, "no byte is missing");
    assert_eq!(losses[0]["loss"]["events"], 1);
    assert!(answer.aside.unwrap().contains("gvariant.bool: found 0x02, expected 0 or 1"));
}

#[test]
fn a_faulty_event_is_a_loss_of_its_bytes_with_their_place() {
    let case = cases().into_iter().find(|case| case.name == "bad-spec-md-aggregate-type").unwrap();
    let answer = Offline::new(Options::default()).put(recorded(&case.request), case.received());
    let (events, losses) = split(&answer.events);
    assert_eq!((events.len(), losses.len()), (1, 1));
    assert_eq!(answer.totals.lost(), losses[0]["loss"]["bytes"].as_u64().unwrap());
    assert_eq!(losses[0]["origin"]["length"], losses[0]["loss"]["bytes"]);
}

#[test]
fn events_have_their_place_in_the_bundle() {
    let case = cases().into_iter().find(|case| case.name == "real-v3-basic").unwrap();
    let answer = Offline::new(Options::default()).put(recorded(&case.request), case.received());
    let mut end = 0;
    for event in &answer.events {
        let (offset, length) =
            (event["origin"]["offset"].as_u64().unwrap(), event["origin"]["length"].as_u64().unwrap());
        assert!(offset >= end && offset % 8 == 0);
        end = offset + length;
        assert_eq!(event["origin"]["sequence"], 1);
        assert_eq!(event["origin"]["version"], "3");
    }
    assert!(end <= case.body.len() as u64);
}

#[test]
fn a_bundle_of_the_draft_is_read_if_it_is_wholly_in_normal_form() {
    // (isa{ss}bba(aysxmv)a(aysyxxmv)): one aggregate of a day, counted 3 times.
    let start = 1_705_276_800_000_000_000i64;
    let mut event = vec![0xAB; 16];
    event.extend_from_slice(b"4.0\0d\0\0\0");
    event.extend_from_slice(&start.to_le_bytes());
    event.extend_from_slice(&3i64.to_le_bytes());
    event.extend_from_slice(&[20, 16]);
    let mut body = 7i32.to_le_bytes().to_vec();
    body.extend_from_slice(b"unknown\0\x01\0\0\0");
    let table_after = body.len() + event.len();
    body.extend_from_slice(&event);
    body.push(event.len() as u8);
    assert_eq!(table_after, body.len() - 1);
    body.extend_from_slice(&[16, 12, 12]);
    let answer = Offline::new(Options::default()).put(upload(3, &body), 1);
    let (events, losses) = split(&answer.events);
    assert_eq!((answer.status, losses.len()), (200, 0), "{:?}", answer.aside);
    assert_eq!(events[0]["metric"]["value"], 3);
    assert_eq!(events[0]["metric"]["start_time"], "2024-01-15T00:00:00.000000000Z");
    assert_eq!(events[0]["time"], "2024-01-16T00:00:00.000000000Z");
    assert_eq!(events[0]["attributes"]["endless.period"], "d");
    assert_eq!(events[0]["resource"]["endless.protocol.version"], "3-draft");
    assert_eq!(events[0]["resource"]["endless.dualboot"], true);
    body[4] = 0xFF;
    let answer = Offline::new(Options::default()).put(upload(3, &body), 1);
    assert_eq!(answer.totals.bytes_lost[Reason::Malformed.index()], body.len() as u64);
    assert_eq!(answer.events[0]["loss"]["reason"], json!("malformed"));
}

/// A version 3 bundle with these clocks, and one singular event without payload at `event` on the monotonic clock.
fn bundle_of_one(relative: i64, absolute: i64, event: i64) -> Vec<u8> {
    let mut body = relative.to_le_bytes().to_vec();
    body.extend_from_slice(&absolute.to_le_bytes());
    // Image, no site, flags, and padding to 8.
    body.extend_from_slice(b"a\0\x02\0\0\0\0\0");
    body.extend_from_slice(&[0xAB; 16]);
    body.extend_from_slice(b"1\0\0\0\0\0\0\0");
    body.extend_from_slice(&event.to_le_bytes());
    body.extend_from_slice(&[18, 16, 34]);
    body.resize(body.len().next_multiple_of(8), 0);
    body.extend_from_slice(&[59, 18, 18]);
    body
}

#[test]
fn a_time_before_1970_is_kept_as_a_signed_number() {
    let now = 1_700_000_000_000_000_000;
    let body = bundle_of_one(100, 40, 50);
    // As version 3, the clock of 1970 is implausible, and ours replaces it.
    let answer = Offline::new(Options::default()).put(upload(3, &body), now);
    assert_eq!(answer.events[0]["time"], "2023-11-14T22:13:19.999999950Z");
    assert_eq!(answer.events[0]["attributes"]["tributary.time.basis"], "received");
    assert!(answer.events[0]["attributes"].get("endless.time.unix_nanos").is_none());
    // A plausible clock, and an event from before 1970.
    let body = bundle_of_one(2_000_000_000_000_000_000, now as i64, 0);
    let answer = Offline::new(Options::default()).put(upload(3, &body), now);
    assert_eq!(answer.events[0]["time"], Value::Null);
    assert_eq!(answer.events[0]["attributes"]["endless.time.unix_nanos"], json!(-300_000_000_000_000_000i64));
}

#[test]
fn a_null_time_is_not_marked_with_a_basis() {
    let now = 1_700_000_000_000_000_000;
    let body = bundle_of_one(2_000_000_000_000_000_000, 7, 0);
    let answer = Offline::new(Options::default()).put(upload(3, &body), now);
    assert_eq!(answer.events[0]["time"], Value::Null);
    let attributes = &answer.events[0]["attributes"];
    assert!(attributes.get("tributary.time.basis").is_none(), "{attributes}");
    assert_eq!(attributes["endless.time.unix_nanos"], json!(-1_999_999_999_999_999_993i64));
}
