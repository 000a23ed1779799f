//! Costs grow linearly, also for traces that are built to be expensive.

use std::fs;
use std::time::Duration;

use crate::zico_support::cbor::gen2;
use crate::zico_support::cbor::{gen1, reference, text};
use crate::zico_support::offline::Offline;
use serde_json::Value;
use tributary::protocol::zico::Options;

/// Below this, CPU times are not exact.
const SLACK: Duration = Duration::from_millis(100);
const CLOCK: i64 = 1_700_000_000_000;
const TRACE: &str = "0123456789abcdef0123456789abcdef";

/// The CPU time of this thread so far, exact to a few milliseconds.
fn cpu_time() -> Duration {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}

/// A gen1 session: the headers of its submissions.
fn gen1_session(offline: &mut Offline) -> String {
    let json = |body: &str| serde_json::from_str::<Value>(body).unwrap();
    let body = br#"{"rkey":"k","name":"host","app":"demo","env":"TST"}"#;
    let registered = json(&offline.ask("/agent/register", &[], body).body);
    let body = serde_json::json!({ "uuid": registered["uuid"], "authkey": registered["authkey"] }).to_string();
    json(&offline.ask("/agent/session", &[], body.as_bytes()).body)["session"].as_str().unwrap().to_owned()
}

/// The CPU time that 300 small parts of a trace cost while this many records are open.
fn cost_of_parts(open: usize, part: &[u8]) -> Duration {
    let mut offline = Offline::new(Options::default());
    let session = gen1_session(&mut offline);
    let headers = [("X-Zorka-Session-UUID", session.as_str()), ("X-Zorka-Trace-UUID", TRACE)];
    let strings = [gen1::string(1, "a.B", 5), gen1::string(7, "http", 0), gen1::string(10, "x", 0)];
    offline.ask("/agent/submit/agd", &[headers[0]], &strings.concat());
    let first = [gen1::open(100, 1), gen1::begin(CLOCK, 7), gen1::open(100, 1).repeat(open)].concat();
    assert_eq!(offline.ask("/agent/submit/trc", &headers, &first).status, 202);
    let before = cpu_time();
    for _ in 0..300 {
        let answer = offline.ask("/agent/submit/trc", &headers, part);
        assert!(answer.status == 202 && answer.spans().is_empty(), "{:?}", answer.events);
    }
    cpu_time() - before
}

#[test]
fn a_small_part_of_a_trace_costs_the_same_however_many_records_are_open() {
    let upward = gen1::upward(7, &[(reference(10), text("late"))]);
    for part in [gen1::open(110, 1), upward] {
        let [small, large] = [2_000, 64_000].map(|open| cost_of_parts(open, &part));
        // A walk over all open records would take 1.3 s.
        assert!(large < small * 6 + SLACK, "{small:?} with 2,000 open records, {large:?} with 64,000");
    }
}

#[test]
fn nested_traces_that_may_be_copies_cost_linear_time() {
    let cost = |nested: usize| {
        let mut offline = Offline::new(Options::default());
        let session = [("X-Zorka-Session-Id", "0000000000000001"), ("X-Zorka-Session-Reset", "true")];
        offline.ask("/agent/submit/agd", &session, &gen2::string(8, "job"));
        let headers = [session[0], ("X-Zorka-Trace-Id", TRACE)];
        let one = |span: i64| [gen2::open(50, 1), gen2::begin(CLOCK, 8, &[span])].concat();
        // The moment is known from a trace of its own, so each nested record is looked at as a possible copy.
        let known = [one(1), gen2::close(60, 1, Some(0x2108))].concat();
        assert_eq!(offline.ask("/agent/submit/trc", &headers, &known).spans().len(), 1);
        let mut body: Vec<u8> = (0..nested).flat_map(|number| one(number as i64 + 2)).collect();
        (0..nested).for_each(|_| body.extend_from_slice(&gen2::close(60, 1, Some(0x108))));
        let other = [session[0], ("X-Zorka-Trace-Id", "0123456789abcdef0123456789abcdee")];
        let before = cpu_time();
        let answer = offline.ask("/agent/submit/trc", &other, &body);
        assert_eq!((answer.status, answer.spans().len()), (202, nested));
        cpu_time() - before
    };
    let [small, large] = [1_000, 16_000].map(|nested| (0..3).map(|_| cost(nested)).min().unwrap());
    assert!(large < small * 48 + SLACK, "{small:?} for 1,000 nested traces, {large:?} for 16,000");
}
