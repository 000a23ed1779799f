//! Every recorded body gives the spans that its sender has decoded from it.

use serde_json::{Value, json};

use crate::expected::{parts, spans};
use crate::offline::{Offline, Recorded, recorded};

fn case(name: &str) -> Recorded {
    recorded().into_iter().find(|case| case.name == name).unwrap()
}

#[test]
fn every_recorded_body_gives_its_spans_and_no_loss() {
    let mut checked = 0;
    for case in recorded().iter().filter(|case| !case.is_malformed) {
        let mut offline = Offline::new();
        let answered = offline.replay(case);
        assert_eq!(answered.status, 200, "{}: {}", case.name, answered.body);
        let found: Vec<Value> = answered.events.iter().map(parts).collect();
        let expected = spans(&case.resolved);
        assert_eq!(found.len(), expected.len(), "{}", case.name);
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!(found, expected, "{}", case.name);
        }
        checked += found.len();
        offline.assert_balance();
    }
    assert!(checked > 100, "{checked} spans");
}

#[test]
fn the_spans_of_a_large_body_are_those_of_small_ones() {
    let mut checked = 0;
    for case in recorded().iter().filter(|case| case.path == "/v0.4/traces" && !case.is_malformed) {
        let of = |body: &[u8]| Offline::new().ask(&case.path, &[], body).events.iter().map(parts).collect::<Vec<_>>();
        let once = of(&case.body);
        let (count, chunks) = match *case.body {
            [first @ 0x90..=0x9F, ref chunks @ ..] => (u32::from(first & 15), chunks),
            [0xDC, a, b, ref chunks @ ..] => (u16::from_be_bytes([a, b]).into(), chunks),
            [0xDD, a, b, c, d, ref chunks @ ..] => (u32::from_be_bytes([a, b, c, d]), chunks),
            _ => panic!("{}", case.name),
        };
        // More than are kept from the check of a body.
        let times = 1500 / once.len();
        let head = [&[0xDD][..], &(count * times as u32).to_be_bytes()].concat();
        let many = of(&[&head[..], &chunks.repeat(times)].concat());
        assert_eq!(many.len(), times * once.len(), "{}", case.name);
        many.chunks(once.len()).for_each(|found| assert_eq!(found, once, "{}", case.name));
        checked += 1;
    }
    assert!(checked > 3, "{checked} bodies");
}

#[test]
fn a_damaged_body_is_refused_whole_with_the_place_and_its_number_of_traces() {
    for case in recorded().iter().filter(|case| case.is_malformed) {
        let mut offline = Offline::new();
        let answered = offline.replay(case);
        assert_eq!(answered.status, 400, "{}: {}", case.name, answered.body);
        let [loss] = answered.events.as_slice() else { panic!("{}: {:?}", case.name, answered.events) };
        assert_eq!(loss["loss"]["bytes"], case.body.len(), "{}", case.name);
        assert!(loss["loss"]["events"].is_null() && loss["loss"]["detail"].as_str().unwrap().starts_with("at "));
        let count = case.headers.iter().find(|(name, _)| name == "x-datadog-trace-count");
        let count = count.map_or(Value::Null, |(_, count)| count.parse::<u64>().unwrap().into());
        assert_eq!(loss["attributes"]["datadog.trace_count"], count, "{}", case.name);
        offline.assert_balance();
    }
}

#[test]
fn the_process_is_the_resource_of_every_span_of_a_body() {
    let case = case("py4-v05");
    let answered = Offline::new().replay(&case);
    for event in &answered.events {
        let resource = &event["resource"];
        assert_eq!(resource["service.instance.id"], "116ef3603093423092b17e75c51c0fe7");
        assert_eq!(resource["telemetry.sdk.name"], "datadog");
        assert_eq!(resource["telemetry.sdk.language"], "python");
        assert!(resource["process.pid"].is_u64() && resource["process.runtime.name"] == "CPython", "{resource}");
    }
}

#[test]
fn links_and_events_are_the_same_whether_they_are_fields_or_json_in_a_tag() {
    let of = |name: &str| {
        let answered = Offline::new().replay(&case(name));
        let spans = answered.events.iter();
        let span = spans.clone().find(|event| event["span"].get("links").is_some()).unwrap()["span"].clone();
        json!({ "links": span["links"], "events": span["events"] })
    };
    let (fields, tags, streaming) = (of("py4-v04-native-events"), of("py4-v05"), of("made-v10-from-py4"));
    assert_eq!(fields["events"], tags["events"]);
    assert_eq!(fields["links"], tags["links"]);
    assert_eq!(fields["links"], streaming["links"]);
    assert_eq!(fields["links"][0]["attributes"], json!({ "why": "test" }));
    assert_eq!(fields["links"][0]["flags"], 1);
    assert_eq!(fields["events"][0]["attributes"]["ok"], true);
}
