//! Bodies of JSON, as SDKs of browsers send them.

use serde_json::json;

use crate::offline::{JSON, Offline, content};

/// A value that is a list of a value, and so on.
fn deep(levels: usize) -> serde_json::Value {
    (0..levels).fold(json!({ "intValue": 1 }), |value, _| json!({ "arrayValue": { "values": [value] } }))
}

fn span(fields: serde_json::Value) -> String {
    json!({ "resourceSpans": [{ "scopeSpans": [{ "spans": [fields] }] }] }).to_string()
}

#[test]
fn ids_are_hex_and_integers_are_numbers_or_texts() {
    let body = json!({
        "resourceSpans": [{
            "resource": { "attributes": [{ "key": "service.name", "value": { "stringValue": "shop" } }], "unknown": 1 },
            "scopeSpans": [{
                "scope": { "name": "fetch", "version": null },
                "spans": [{
                    "traceId": "5B8EFFF798038103D269B633813FC60C",
                    "spanId": "eee19b7ec3c1b174",
                    "parentSpanId": "",
                    "name": "GET",
                    "kind": 3,
                    "startTimeUnixNano": "1795171200000000000",
                    "endTimeUnixNano": 1_795_171_200_000_000_001_u64,
                    "trace_id": "original names of fields are not valid",
                    "later": { "fields": ["are", { "ignored": true }] },
                    "attributes": [
                        { "key": "a", "value": { "intValue": "-7" } },
                        { "key": "b", "value": { "intValue": 7 } },
                        { "key": "c", "value": { "doubleValue": "NaN" } },
                        { "key": "d", "value": { "doubleValue": 1e3 } },
                        { "key": "e", "value": { "arrayValue": { "values": [{ "boolValue": false }] } } },
                        { "key": "f", "value": { "bytesValue": "AQI=" } },
                        { "key": "g\u{e9}", "value": { "stringValue": "\u{1F600}\n" } },
                        { "key": "h", "value": {} },
                    ],
                    "status": { "code": 1 },
                }],
            }],
        }],
    });
    let events = Offline::new().events("/v1/traces", &[JSON], body.to_string().as_bytes());
    let expected = json!({
        "time": "2026-11-20T10:40:00.000000000Z",
        "kind": "span",
        "name": "GET",
        "span": {
            "trace_id": "5b8efff798038103d269b633813fc60c",
            "span_id": "eee19b7ec3c1b174",
            "kind": "client",
            "end_time": "2026-11-20T10:40:00.000000001Z",
            "duration_ns": 1,
            "status": "ok",
        },
        "attributes": {
            "a": -7,
            "b": 7,
            "c": "NaN",
            "d": 1000.0,
            "e": [false],
            "f_base64": "AQI=",
            "g\u{e9}": "\u{1F600}\n",
            "otlp.scope.name": "fetch",
        },
        "resource": { "service.name": "shop" },
    });
    assert_eq!(content(&events[0]), expected);
}

#[test]
fn what_implementations_get_wrong_is_refused_with_words() {
    for (body, words) in [
        (span(json!({ "kind": "SPAN_KIND_SERVER" })), "kind: found SPAN_KIND_SERVER, expected an integer"),
        (span(json!({ "traceId": "W47/95gDgQPSabYzgT/GDA==" })), "expected 32 hex digits, or none"),
        (span(json!({ "spanId": "eee19b7ec3c1b17" })), "expected 16 hex digits, or none"),
        (span(json!({ "startTimeUnixNano": -1 })), "startTimeUnixNano: found -1, expected an integer without sign"),
        (span(json!({ "startTimeUnixNano": 1.5 })), "startTimeUnixNano: found 1.5"),
        (span(json!({ "name": 7 })), "name: found 7, expected a text"),
        (span(json!({ "attributes": { "a": "b" } })), "attributes: found an object, expected a list"),
        (span(json!({ "attributes": [["a"]] })), "attributes: found a list"),
        (span(json!(5)), "found 5"),
        (r#"{"resourceSpans":[{}]} x"#.to_owned(), "trailing characters"),
        ("[]".to_owned(), "an object: ExportTraceServiceRequest"),
        (String::new(), "EOF"),
        (span(json!({ "attributes": [{ "key": "a", "value": deep(60) }] })), "recursion limit"),
    ] {
        let mut offline = Offline::new();
        let answered = offline.ask("/v1/traces", &[JSON], body.as_bytes());
        let answer: serde_json::Value = serde_json::from_slice(&answered.body).unwrap();
        assert_eq!((answered.status, &answer["code"]), (400, &json!(3)), "{body}");
        assert!(answer["message"].as_str().unwrap().contains(words), "{answer} for {body}");
        assert_eq!(answered.events.len(), 1, "a loss: {:?}", answered.events);
        offline.assert_balance();
    }
}

#[test]
fn logs_and_metrics_are_json_too() {
    let logs = json!({ "resourceLogs": [{ "scopeLogs": [{ "logRecords": [
        { "timeUnixNano": "1795171200000000000", "severityNumber": 9, "body": { "stringValue": "paid" },
          "traceId": "07070707070707070707070707070707" },
    ] }] }] });
    let events = Offline::new().events("/v1/logs", &[JSON], logs.to_string().as_bytes());
    assert_eq!((&events[0]["body"], &events[0]["severity"]), (&json!("paid"), &json!("INFO")));
    let metrics = json!({ "resourceMetrics": [{ "scopeMetrics": [{ "metrics": [
        { "name": "orders", "unit": "1", "sum": { "aggregationTemporality": 2, "isMonotonic": true,
          "dataPoints": [{ "asInt": "3", "timeUnixNano": "1795171200000000000" }, { "asDouble": 4 }] } },
    ] }] }] });
    let events = Offline::new().events("/v1/metrics", &[JSON], metrics.to_string().as_bytes());
    let values: Vec<_> = events.iter().map(|event| event["metric"]["value"].clone()).collect();
    assert_eq!(values, [json!(3), json!(4.0)]);
}
