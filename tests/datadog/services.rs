//! The resource of a span has the span's service; that of everything else is the process's.

use std::time::Duration;

use serde_json::json;
use tributary::protocol::End;
use tributary::protocol::datadog::Options;

use crate::hostile_support::wire::{meta, metrics, process, span, span_with, string, trace};
use crate::hostile_support::{Driven, Finished};

fn decoded(bytes: &[Vec<u8>]) -> Finished {
    let mut driven = Driven::new(&Options::default()).keep_lines();
    driven.feed(&bytes.concat());
    driven.finish(End::Closed)
}

#[test]
fn each_span_has_the_resource_of_its_own_service() {
    let strings = [string(1, b"env"), string(2, b"prod"), string(3, b"shop"), string(4, b"postgres"), string(5, b"")];
    let of = |service: u64| span(7, [0, 0, 0, service]);
    let done =
        decoded(&[process(0), strings.concat(), meta(&[(1, 2)]), of(3), of(4), trace(7), of(3), of(0), of(5), of(4)]);
    let events = done.events();
    let resources: Vec<_> = events.iter().map(|event| (&event["kind"], &event["resource"])).collect();
    let (log, plain) = (json!("log"), json!({"deployment.environment.name": "prod"}));
    let (spans, shop) = (json!("span"), json!({"deployment.environment.name": "prod", "service.name": "shop"}));
    let postgres = json!({"deployment.environment.name": "prod", "service.name": "postgres"});
    assert_eq!(
        resources,
        [
            (&log, &plain),
            (&spans, &shop),
            (&spans, &postgres),
            (&log, &plain),
            (&spans, &shop),
            (&spans, &plain),
            (&spans, &plain),
            (&spans, &postgres)
        ]
    );
    // What is in the resource is not an attribute as well; an empty service is one only.
    let attributes: Vec<_> = events.iter().filter_map(|event| event["attributes"].get("service.name")).collect();
    assert_eq!(attributes, [""]);
}

#[test]
fn a_service_that_is_cut_marks_its_span() {
    let mut options = Options::default();
    options.max_text.service = 3;
    let mut driven = Driven::new(&options).keep_lines();
    driven.feed(&[process(0), string(1, b"shopping"), span(1, [0, 0, 0, 1])].concat());
    let spans = driven.finish(End::Closed).of_kind("span");
    assert_eq!(spans[0]["resource"]["service.name"], "sho");
    assert_eq!(spans[0]["attributes"]["tributary.text.truncated"], true);
}

#[test]
fn more_services_than_are_kept_are_all_right() {
    let mut driven = Driven::new(&Options::default()).keep_lines();
    driven.feed(&process(0));
    for round in 0..2 {
        for number in 1..=2_000_u64 {
            let name = format!("service {number}");
            driven.feed(&[string(number, name.as_bytes()), span(round, [0, 0, 0, number])].concat());
        }
    }
    let spans = driven.finish(End::Closed).of_kind("span");
    assert_eq!(spans.len(), 4_000);
    for (at, span) in spans.iter().enumerate() {
        assert_eq!(span["resource"]["service.name"], format!("service {}", at % 2_000 + 1));
    }
}

#[test]
fn metrics_that_are_integers_by_their_names_are_integers_where_the_double_is_one() {
    let value = |number: f64| number.to_bits();
    let strings = [string(1, b"http.status_code"), string(2, b"_sampling_priority_v1"), string(3, b"process_id")];
    let done = decoded(&[
        process(0),
        strings.concat(),
        metrics(&[(3, value(4711.0))]),
        span(1, [0; 4]),
        metrics(&[(1, value(404.0)), (2, value(1.0))]),
        span(2, [0; 4]),
        metrics(&[(1, value(200.5))]),
        span(3, [0; 4]),
        metrics(&[(1, value(-0.0))]),
        span(4, [0; 4]),
        metrics(&[(1, value(1e300))]),
    ]);
    assert_eq!(done.events()[0]["resource"]["process.pid"], json!(4711));
    let shown = |key: &str| {
        let spans = done.of_kind("span");
        spans.iter().map(|span| span["attributes"][key].clone()).collect::<Vec<_>>()
    };
    assert_eq!(shown("http.status_code"), [json!(404), json!(200.5), json!(-0.0), json!(1e300)]);
    assert_eq!(shown("_sampling_priority_v1")[0], json!(1.0));
}

#[test]
fn tags_that_are_integers_by_their_names_are_integers_where_their_text_is_one() {
    let texts = ["http.status_code", "process_id", "server.port", "peer.service", "503", "4711", "8080x", "007", "99"];
    let strings: Vec<u8> = (1..).zip(texts).flat_map(|(id, text)| string(id, text.as_bytes())).collect();
    let done = decoded(&[
        process(0),
        strings,
        meta(&[(2, 6)]),
        // A span with its lists at hand, and one whose value arrives after it.
        span(1, [0; 4]),
        meta(&[(1, 5), (3, 9), (4, 5)]),
        span(2, [0; 4]),
        meta(&[(1, 7), (3, 8)]),
        span(3, [0; 4]),
        meta(&[(1, 20), (3, 9)]),
        string(20, b"404"),
        span(4, [0; 4]),
    ]);
    assert_eq!(done.events()[0]["resource"]["process.pid"], json!(4711));
    let shown = |key: &str| {
        let spans = done.of_kind("span");
        spans.iter().map(|span| span["attributes"][key].clone()).collect::<Vec<_>>()
    };
    assert_eq!(shown("http.status_code")[..3], [json!(503), json!("8080x"), json!(404)]);
    assert_eq!(shown("server.port")[..3], [json!(99), json!("007"), json!(99)]);
    assert_eq!(shown("peer.service")[0], json!("503"));
}

#[test]
fn a_span_that_names_itself_as_its_parent_is_a_root() {
    let mut driven = Driven::new(&Options::default()).keep_lines();
    let mut own = span(1, [0; 4]);
    // span_id at 2, parent_id at 10.
    own.copy_within(2..10, 10);
    driven.feed(&[process(0), own].concat());
    driven.pass(Duration::from_secs(2));
    let spans = driven.finish(End::Closed).of_kind("span");
    assert!(spans[0]["span"].get("parent_span_id").is_none(), "{}", spans[0]);
    assert_eq!(spans[0]["attributes"]["tributary.parent.self"], true);
}

#[test]
fn the_process_the_kind_and_the_error_of_a_span_have_the_names_of_conventions() {
    let texts = [
        "env",
        "version",
        "runtime-id",
        "process_id",
        "language",
        "_dd.hostname",
        "span.kind",
        "error.msg",
        "error.message",
        "error.type",
        "error.stack",
        "server",
        "boom",
        "ValueError",
        "at 1",
        "17",
        "sideways",
        "exception.type",
    ];
    let strings: Vec<u8> = (1..).zip(texts).flat_map(|(id, text)| string(id, text.as_bytes())).collect();
    let failed = |list: &[(u64, u64)]| [span_with(1, [0; 4], 1, 1, 1), meta(list)].concat();
    let done = decoded(&[
        process(0),
        strings,
        meta(&[(1, 12), (2, 13), (3, 14), (4, 16), (5, 15), (6, 12)]),
        failed(&[(7, 12), (8, 13), (10, 14), (11, 15)]),
        failed(&[(8, 13), (9, 14), (7, 17), (18, 15)]),
        failed(&[(7, 12), (7, 17), (10, 14), (10, 15)]),
    ]);
    let resource = json!({
        "deployment.environment.name": "server", "service.version": "boom", "service.instance.id": "ValueError",
        "process.pid": 17, "telemetry.sdk.language": "at 1", "host.name": "server",
    });
    assert_eq!(done.events()[0]["resource"], resource);
    let spans = done.of_kind("span");
    assert_eq!((&spans[0]["span"]["kind"], &spans[0]["span"]["status_message"]), (&json!("server"), &json!("boom")));
    let attributes =
        json!({"exception.message": "boom", "exception.type": "ValueError", "exception.stacktrace": "at 1"});
    assert_eq!(spans[0]["attributes"], attributes);
    // Of two messages the other one stays, as do a kind that is none and a key that this program writes.
    let attributes = json!({
        "exception.message": "boom", "error.message": "ValueError", "span.kind": "sideways",
        "datadog.meta.exception.type": "at 1",
    });
    assert_eq!(spans[1]["attributes"], attributes);
    // Of a repeated key the last one counts.
    assert_eq!((spans[2]["span"].get("kind"), &spans[2]["attributes"]["span.kind"]), (None, &json!("sideways")));
    assert_eq!(spans[2]["attributes"]["exception.type"], "at 1");
}
