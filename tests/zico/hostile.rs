//! ZICO: hostile bodies, and the limits that they reach.

use std::time::Duration;

use crate::zico_support::cbor::{array, gen1, gen2, int, text};
use crate::zico_support::offline::{Answered, Offline};
use tributary::memory::MemoryBudget;
use tributary::protocol::zico::Options;

const OWN: (&str, &str) = ("X-Zorka-Session-Id", "00c0ffee12345678");
const RESET: (&str, &str) = ("X-Zorka-Session-Reset", "true");

fn agd(offline: &mut Offline, body: &[u8]) -> Answered {
    offline.ask("/agent/submit/agd", &[OWN, RESET], body)
}

fn trc(offline: &mut Offline, body: &[u8]) -> Answered {
    offline.ask("/agent/submit/trc", &[OWN], body)
}

fn open(options: Options) -> Offline {
    let mut offline = Offline::new(options);
    let definitions = [gen2::string(1, "a.B"), gen2::string(2, "run"), gen2::method(1, [1, 2, 0])].concat();
    assert_eq!(agd(&mut offline, &definitions).status, 202);
    offline
}

fn details(answer: &Answered) -> Vec<&str> {
    answer.losses().iter().map(|loss| loss["loss"]["detail"].as_str().unwrap()).collect()
}

#[test]
fn a_loss_at_a_limit_names_the_configuration_key() {
    let small = Options {
        max_symbols: 5,
        max_symbol_bytes: 64 << 10,
        max_text_bytes: 100,
        max_record_bytes: 1 << 10,
        max_open_bytes: 64 << 10,
        max_inflated_bytes: 1 << 10,
        ..Options::default()
    };
    let mut offline = open(small);
    let many: Vec<u8> = (10..20).flat_map(|id| gen2::string(id, "text")).collect();
    let answer = offline.ask("/agent/submit/agd", &[OWN], &many);
    assert_eq!(details(&answer), ["8 definitions are over the limit of 5 (max_symbols)"]);
    assert_eq!((answer.status, answer.aside.is_some()), (202, false));
    let records = gen2::open(1, 1).repeat(2000);
    let answer = trc(&mut offline, &records);
    assert!(details(&answer).iter().any(|detail| detail.contains("max_open_bytes")), "{:?}", details(&answer));
    assert!(answer.spans().len() > 100);
    let long = gen2::attribute(10, text(&"x".repeat(1100)));
    let answer = trc(&mut offline, &[gen2::open(1, 1), long, gen2::close(2, 1, None)].concat());
    assert!(details(&answer)[0].contains("max_record_bytes"));
    assert_eq!(answer.spans()[0]["attributes"]["tributary.incomplete"], serde_json::json!(["attributes"]));
    let frames = array(&vec![array(&[int(1), int(2), int(0), int(1)]); 300]);
    let exception = crate::zico_support::cbor::tag(7, array(&[int(1), int(1), text("m"), int(0), frames]));
    let answer = trc(&mut offline, &[gen2::open(1, 1), exception, gen2::close(2, 1, None)].concat());
    assert!(details(&answer)[0].contains("max_record_bytes"));
    assert_eq!(answer.spans()[0]["span"]["status"], "error");
    let answer = agd(&mut offline, &[gen2::string(1, &"y".repeat(101)), gen2::method(1, [1, 0, 0])].concat());
    assert!(answer.losses().is_empty());
    let answer = trc(&mut offline, &[gen2::open(1, 1), gen2::close(2, 1, None)].concat());
    assert_eq!(answer.spans()[0]["name"], "y".repeat(100));
    assert_eq!(answer.spans()[0]["attributes"]["tributary.text.truncated"], true);
    let zeros = [&b"host=h&data="[..], &b"AAAA".repeat(400)].concat();
    let answer = offline.ask("/submit/agent", &[], &zeros);
    assert_eq!((answer.status, answer.aside.is_some()), (413, false));
    assert!(details(&answer)[0].contains("max_inflated_bytes"));
    assert_eq!(offline.counters.totals().buffered(), 0);
}

#[test]
fn the_oldest_sessions_are_removed_and_their_open_records_emitted() {
    let options = Options { max_sessions: 32, ..Options::default() };
    let mut offline = Offline::recorded();
    offline.exchange = tributary::protocol::zico::ZicoExchange::recorded(options, false, &MemoryBudget::new(1 << 28));
    let session = |number: usize| format!("{number:032x}");
    let trace = ("X-Zorka-Trace-UUID", "5e5e0000-0000-4000-8000-000000000006");
    for number in 0..100 {
        offline.elapsed += Duration::from_millis(10);
        let name = session(number);
        let answer = offline.ask("/agent/submit/trc", &[("X-Zorka-Session-UUID", &name), trace], &gen1::open(1, 1));
        assert_eq!((answer.status, answer.events.len()), (202, 0));
    }
    let gone = offline.pass(Duration::ZERO).iter().filter(|event| event["kind"] == "span").count();
    assert!((68..100).contains(&gone), "{gone}");
    let rest = offline.finish().iter().filter(|event| event["kind"] == "span").count();
    assert_eq!(gone + rest, 100);
}

#[test]
fn an_exhausted_budget_is_an_overload_for_traces_and_a_limit_for_definitions() {
    let budget = MemoryBudget::new(1 << 20);
    let mut offline = Offline::with(Options::default(), budget.clone(), false);
    let answer = agd(&mut offline, &[gen2::string(1, "a.B"), gen2::method(1, [1, 0, 0])].concat());
    assert_eq!(answer.status, 202);
    let many: Vec<u8> = (10..20_000).flat_map(|id| gen2::string(id, "some text")).collect();
    let answer = offline.ask("/agent/submit/agd", &[OWN], &many);
    assert_eq!(answer.status, 202);
    assert!(details(&answer)[0].contains("limits.memory_bytes"), "{:?}", details(&answer));
    let records = [gen2::open(1, 1).repeat(50_000), gen2::close(2, 1, None).repeat(50_000)].concat();
    let answer = trc(&mut offline, &records);
    assert_eq!(answer.status, 503);
    assert!(details(&answer).iter().any(|detail| detail.contains("limits.memory_bytes")));
    assert_eq!(offline.counters.totals().buffered(), 0);
    drop(offline);
    assert_eq!(budget.used(), 0);
}

#[test]
fn a_body_with_expensive_references_is_read_in_one_pass() {
    // Each record begins a trace and refers to an unknown type: the look-up must not scan all open records.
    let mut offline = open(Options::default());
    let record = |number: i64| {
        [
            gen2::open(number, 1),
            gen2::begin(1_700_000_000_000, 7, &[number]),
            crate::zico_support::cbor::tag(6, array(&[int(9), int(1), int(1)])),
        ]
        .concat()
    };
    let body: Vec<u8> = (1..20_000).flat_map(record).collect();
    assert_eq!(trc(&mut offline, &body).spans().len(), 19_999);
    // Each of them may be a copy, which only its end would show: reading ahead is bounded.
    let once = [gen2::open(5, 1), gen2::begin(77, 7, &[]), gen2::close(6, 1, Some(0x2108))].concat();
    assert_eq!(trc(&mut offline, &once).spans().len(), 1);
    let nested = [gen2::open(1, 1), [gen2::open(5, 1), gen2::begin(77, 7, &[])].concat().repeat(20_000)].concat();
    assert_eq!(trc(&mut offline, &nested).spans().len(), 20_001);
}

#[test]
fn invalid_requests_are_answered() {
    let mut offline = open(Options::default());
    for (path, headers, body, status) in [
        ("/agent/submit/trc", vec![], &b""[..], 401),
        ("/agent/submit/trc", vec![("X-Zorka-Session-Id", "")], b"", 401),
        ("/agent/submit/trc", vec![("X-Zorka-Session-UUID", "unknown")], b"", 401),
        ("/agent/register", vec![], b"", 400),
        ("/agent/session", vec![], b"[]", 400),
        ("/agent/register", vec![("Content-Type", "application/edn")], b"{:name", 400),
        ("/submit/agent", vec![], b"", 202),
        ("/submit/agent", vec![], b"host=h&data=%zz", 202),
        ("/agent/submit/agd", vec![OWN], b"*", 202),
        ("/agent/submit/agd", vec![OWN], b"AAA", 202),
    ] {
        let answer = offline.ask(path, &headers, body);
        assert_eq!(answer.status, status, "{path} {headers:?}: {}", answer.body);
        assert_eq!(offline.counters.totals().buffered(), 0);
    }
    let id = "x".repeat(200);
    assert_eq!(offline.ask("/agent/submit/agd", &[("X-Zorka-Session-Id", &id), RESET], b"").status, 401);
}
