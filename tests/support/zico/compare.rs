//! Compares the events of a conversation with the contract.

use std::collections::BTreeMap;

use serde_json::Value;

use super::contract::{Before, Expected, expected, found};
use super::offline::Answered;
use super::{Case, Recorded};

/// Compares the events of a conversation with the contract: spans by trace, losses by request.
pub fn compare(case: &Case, answers: &[Answered], rest: &[Value]) {
    let mut before = Before::default();
    let mut joined = BTreeMap::<&str, Vec<&Value>>::new();
    for (recorded, answer) in case.exchanges.iter().zip(answers) {
        let place = format!("{} {}", case.name, recorded.number);
        assert!(recorded.statuses.contains(&u64::from(answer.status)), "{place}: {} {}", answer.status, answer.body);
        if !recorded.is_trace() {
            continue;
        }
        let trace = recorded.expected["trace"].as_str();
        let mut events: Vec<&Value> = answer.events.iter().collect();
        // Records that were open at the end are emitted later.
        let is_part = parts(case).contains(&recorded.number);
        if let Some(trace) = trace.filter(|_| is_part) {
            joined.entry(trace).or_default().extend(&events);
            if recorded.expected["joined"].is_null() {
                continue;
            }
            events = joined.remove(trace).unwrap();
        }
        let id = trace.map(|trace| trace.replace('-', "").to_lowercase()).unwrap_or_default();
        let is_late = |event: &&Value| match event.get("span") {
            Some(span) => span["trace_id"] == id,
            None => event["origin"]["sequence"] == recorded.number,
        };
        events.extend(rest.iter().filter(is_late));
        let decode = recorded.expected.pointer("/joined/trc").unwrap_or(&recorded.expected["trc"]);
        if decode["records"].is_array() {
            let expected = expected(decode, recorded, &mut before);
            assert_spans(&place, &events, &expected);
        } else {
            assert_summary(&place, &events, &decode["summary"]);
        }
        if !is_part {
            assert_losses(&place, recorded, answer);
        }
    }
}

/// The requests with parts of traces in several parts.
fn parts(case: &Case) -> Vec<u64> {
    let joined = case.exchanges.iter().filter_map(|recorded| recorded.expected.pointer("/joined/parts"));
    joined.flat_map(|parts| parts.as_array().unwrap()).map(|part| part.as_u64().unwrap()).collect()
}

fn assert_spans(place: &str, events: &[&Value], expected: &Expected) {
    let found = found(events);
    assert_eq!(found.len(), expected.spans.len(), "{place}: how many spans");
    for (found, expected) in found.iter().zip(&expected.spans) {
        assert!(found.agrees(expected), "{place}\nfound    {found:?}\nexpected {expected:?}");
    }
    let total = |reason: &str| -> u64 {
        let losses = events.iter().filter(|event| event["loss"]["reason"] == reason);
        losses.map(|event| event["loss"]["events"].as_u64().unwrap()).sum()
    };
    assert_eq!(total("duplicate"), expected.duplicates, "{place}");
    assert_eq!(total("unresolved"), expected.unresolved, "{place}");
}

/// Only sums are recorded of large bodies.
fn assert_summary(place: &str, events: &[&Value], summary: &Value) {
    let spans: Vec<_> = events.iter().filter(|event| event["kind"] == "span").collect();
    assert_eq!(spans.len() as u64, summary["records"].as_u64().unwrap(), "{place}");
    let calls: u64 = spans.iter().filter_map(|span| span["attributes"]["zico.calls"].as_u64()).sum();
    assert_eq!(calls, summary["sum_calls"].as_u64().unwrap(), "{place}");
    let open = spans.iter().filter(|span| span["attributes"].get("tributary.incomplete").is_some()).count();
    assert_eq!(open as u64, summary["open"].as_u64().unwrap(), "{place}");
    let parents: BTreeMap<_, _> = spans
        .iter()
        .map(|span| (span["span"]["span_id"].as_str().unwrap(), span["span"]["parent_span_id"].as_str()))
        .collect();
    let roots = parents.values().filter(|parent| parent.is_none()).count();
    assert_eq!((parents.len(), roots), (spans.len(), 1), "{place}: one tree");
}

fn assert_losses(place: &str, recorded: &Recorded, answer: &Answered) {
    let decode = &recorded.expected["trc"];
    let fault = answer.losses().into_iter().find(|loss| {
        let detail = loss["loss"]["detail"].as_str().unwrap();
        detail.starts_with("the item at")
    });
    assert_eq!(fault.is_some(), !decode["error"].is_null(), "{place}: {:?}", answer.losses());
    assert_eq!(answer.aside.is_some(), fault.is_some(), "{place}: kept");
    if let Some(fault) = fault {
        assert_eq!(fault["origin"]["offset"], decode["error_at"], "{place}: {fault}");
    }
    let orphans = decode["orphans"].as_array().map_or(0, Vec::len) as u64;
    let reported = answer
        .losses()
        .into_iter()
        .filter(|loss| loss["loss"]["detail"].as_str().unwrap().contains("belong to no record"));
    let reported: u64 = reported.map(|loss| loss["loss"]["events"].as_u64().unwrap()).sum();
    assert_eq!(reported, orphans, "{place}");
}
