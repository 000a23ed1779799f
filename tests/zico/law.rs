//! ZICO: damaged bodies. Every byte is decoded or lost exactly once, and what is before the damage does not change.

use std::collections::BTreeMap;

use crate::zico_support::offline::{Answered, Offline};
use crate::zico_support::{Case, Given, Recorded, case};
use proptest::prelude::*;
use serde_json::Value;

/// Conversations in every dialect and form, small enough to cut at each byte.
const CASES: [&str; 9] = [
    "gen1-writer-nested-attrs",
    "gen1-writer-exceptions",
    "gen1-writer-two-part",
    "random-gen1-s7-1",
    "gen2-writer-all-items",
    "random-gen2-s7-0",
    "doc-be",
    "form-zdata-gzip",
    "form-ldata-frame",
];

/// A conversation up to its last request.
struct Prepared {
    offline: Offline,
    given: Given,
    last: Recorded,
}

fn prepare(case: Case) -> Prepared {
    // Without a store, whose key digests are slow by design.
    let mut offline = Offline::recorded();
    let mut given = Given::default();
    let mut exchanges = case.exchanges;
    let last = exchanges.pop().unwrap();
    exchanges.iter().for_each(|recorded| drop(offline.again(recorded, &mut given)));
    Prepared { offline, given, last }
}

impl Prepared {
    /// Sends another body than the recorded one, in a trace of its own.
    fn ask(&mut self, body: &[u8], number: usize) -> Answered {
        let trace = format!("{:032x}", 0xABC_0000 + number);
        let headers: Vec<_> = self
            .last
            .headers
            .iter()
            .map(|(name, value)| match name.to_lowercase().as_str() {
                "x-zorka-trace-uuid" | "x-zorka-trace-id" => (name.clone(), trace.clone()),
                _ => (name.clone(), self.given.header(value)),
            })
            .collect();
        let headers: Vec<_> = headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let answer = self.offline.ask(&self.last.path, &headers, body);
        check(&answer, &self.offline);
        answer
    }
}

/// Checks what holds for every answer.
fn check(answer: &Answered, offline: &Offline) {
    assert_eq!(answer.status, 202, "{}", answer.body);
    let totals = offline.counters.totals();
    assert_eq!(totals.buffered(), 0, "decoded + lost = received: {totals:?}");
    for loss in answer.losses() {
        assert_eq!(loss["origin"]["peer"], "192.0.2.1:1234");
        let (bytes, length) = (loss["loss"]["bytes"].as_u64().unwrap(), loss["origin"]["length"].as_u64().unwrap_or(0));
        assert!(bytes == length || bytes == 0, "{loss}");
    }
    let is_kept = answer.losses().iter().any(|loss| {
        let reason = loss["loss"]["reason"].as_str().unwrap();
        let detail = loss["loss"]["detail"].as_str().unwrap();
        reason != "unresolved" && reason != "duplicate" && !detail.contains("belong to no record")
    });
    assert_eq!(answer.aside.is_some(), is_kept, "{:?}", answer.losses());
}

/// Complete spans, by trace and span id.
fn whole(answer: &Answered) -> BTreeMap<(u64, u64), Value> {
    let spans = answer.spans().into_iter().filter(|span| span["attributes"].get("tributary.incomplete").is_none());
    spans
        .map(|span| {
            let origin = &span["origin"];
            let place = (origin["offset"].as_u64().unwrap(), origin["length"].as_u64().unwrap());
            let mut span = span.clone();
            for id in ["trace_id", "span_id", "parent_span_id"] {
                span["span"].as_object_mut().unwrap().remove(id);
            }
            // Its begin may be cut off behind it, and its attributes of below.
            (place, serde_json::json!([span["name"], span["span"]["duration_ns"], span["attributes"]["zico.calls"]]))
        })
        .collect()
}

#[test]
fn a_body_cut_anywhere_keeps_what_is_before_the_cut() {
    for name in CASES {
        let mut prepared = prepare(case(name));
        let body = prepared.last.body.clone();
        let all = whole(&prepared.ask(&body, 0));
        for end in 0..body.len() {
            let answer = prepared.ask(&body[..end], 1 + end);
            for (place, span) in whole(&answer) {
                assert_eq!(all.get(&place), Some(&span), "{name} cut at {end}");
            }
        }
        prepared.offline.finish();
        assert_eq!(prepared.offline.counters.totals().buffered(), 0);
    }
}

#[test]
fn flipped_bits_are_accounted_for() {
    for name in CASES {
        let mut prepared = prepare(case(name));
        let body = prepared.last.body.clone();
        // An odd step, so that each bit of a byte has its turn.
        let bits = body.len() * 8;
        for bit in (0..bits).step_by((bits / 2_000) | 1) {
            let mut damaged = body.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            prepared.ask(&damaged, bit);
        }
    }
}

#[test]
fn any_cut_of_definitions_keeps_those_before_it() {
    for name in ["gen2-writer-all-items", "doc-be", "gen1-writer-flags"] {
        let mut case = case(name);
        let trace = case.exchanges.pop().unwrap();
        let definitions = case.exchanges.last().unwrap().body.clone();
        let defined = case.exchanges.last().unwrap().expected["agd"].as_array().unwrap().len();
        let mut prepared = prepare(case);
        let mut faults = 0;
        for end in 0..=definitions.len() {
            let answer = prepared.ask(&definitions[..end], end);
            faults += usize::from(answer.aside.is_some());
        }
        // A cut between two definitions, or before the first, is none.
        assert_eq!(faults, definitions.len() + 1 - (defined + 1), "{name}");
        prepared.last = trace;
        let body = prepared.last.body.clone();
        let answer = prepared.ask(&body, 0);
        assert!(answer.losses().is_empty(), "{name}: everything is defined: {:?}", answer.losses());
    }
}

/// Items of every dialect, in random order.
fn items() -> impl Strategy<Value = Vec<u8>> {
    let pieces: Vec<Vec<u8>> = [
        &b"\xc8\x9f\xcb\x48\x01\x00\x00\x00\x00\x01\x00\x00"[..],
        b"\xc8\x9f",
        b"\xca\x48\x00\x00\x01\x00\x00\x00\x00\x02",
        b"\xcd\x48\x09\x00\x00\x00\x00\x01\x00\x00\xff",
        b"\xcc\x50\x00\x00\x00\x00\x00\x00\x00\x09\x00\x00\x00\x00\x01\x00\x00\x00\xff",
        b"\xd8\x21\x82\x1b\x00\x00\x01\x7c\x00\x00\x00\x00\x07",
        b"\xc9\xa1\xc6\x0a\x01",
        b"\xd8\x26\x82\x07\xa1\xc6\x0a\x02",
        b"\xd8\x22\x85\x01\xc6\x01\x60\x00\x81\x84\x01\x02\x03\x04",
        b"\xd8\x23\x01",
        b"\xcf\x08",
        b"\xff",
        b"\xc3\x9f\x01\x01",
        b"\xc4\x83\x02\x01\x19\x21\x08\xff",
        b"\xc4\x82\x02\x01\xff",
        b"\xc5\x84\x1b\x00\x00\x01\x7c\x00\x00\x00\x00\x07\x11\x12",
        b"\xc6\x82\x0a\x61\x78",
        b"\xc6\x83\x07\x0a\xf6",
        b"\xc7\x86\x01\x01\xf6\x00\x80\xa1\x0a\x01",
        b"\xc8\x01",
        b"\xcb\x9f\x48\x01\x00\x00\x00\x00\x01\x00\x00",
        b"\xd8\x0a\x9f\x48\x00\x00\x01\x00\x00\x00\x00\x01",
        b"\x00",
    ]
    .iter()
    .map(|piece| piece.to_vec())
    .collect();
    prop::collection::vec(prop::sample::select(pieces), 0..60).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, max_shrink_iters: 500, ..ProptestConfig::default() })]

    #[test]
    fn any_order_of_items_is_accounted_for(bodies in prop::collection::vec(items(), 1..4)) {
        for name in ["gen1-writer-two-part", "gen2-writer-min", "doc-be"] {
            let mut prepared = prepare(case(name));
            for body in &bodies {
                prepared.ask(body, 0);
            }
            let rest = prepared.offline.finish();
            prop_assert_eq!(prepared.offline.counters.totals().buffered(), 0);
            prop_assert!(rest.iter().all(|event| event["kind"] != "loss" || event["loss"]["bytes"] == 0));
        }
    }

    #[test]
    fn any_bytes_are_accounted_for(body in prop::collection::vec(any::<u8>(), 0..400)) {
        for name in ["gen1-writer-flags", "gen2-writer-min", "form-data"] {
            let mut prepared = prepare(case(name));
            prepared.ask(&body, 0);
        }
    }
}
