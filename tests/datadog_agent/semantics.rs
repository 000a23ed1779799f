//! Spans with the names of OpenTelemetry's semantic conventions, and messages of tracers about themselves.

use serde_json::{Value, json};
use tributary::protocol::datadog_agent::{Options, Semantics};

use crate::offline::Offline;

fn span(meta: Value, other: Value) -> Value {
    let mut span = json!({
        "service": "shop", "name": "web.request", "resource": "GET /cart", "type": "web", "trace_id": 1, "span_id": 2,
        "start": 1_700_000_000_000_000_000_u64, "duration": 5_000_000, "meta": meta,
    });
    span.as_object_mut().unwrap().extend(other.as_object().unwrap().clone());
    let options = Options { semantics: Semantics::OpenTelemetry, ..Options::default() };
    let body = json!([[span]]).to_string();
    let answered = Offline::with(options).ask("/v0.4/traces", &[("content-type", "application/json")], body.as_bytes());
    assert_eq!(answered.status, 200, "{}", answered.body);
    answered.events[0].clone()
}

#[test]
fn a_request_has_the_name_of_its_resource_and_todays_attributes() {
    let meta = json!({"http.method": "GET", "http.status_code": "200", "http.url": "http://a/b", "custom": "x"});
    let event = span(meta, json!({}));
    assert_eq!((&event["name"], &event["span"]["kind"]), (&json!("GET /cart"), &json!("server")));
    let attributes = json!({
        "datadog.name": "web.request", "datadog.resource": "GET /cart", "datadog.type": "web",
        "custom": "x", "http.request.method": "GET", "http.response.status_code": 200, "url.full": "http://a/b",
    });
    assert_eq!(event["attributes"], attributes);
}

#[test]
fn a_query_keeps_its_own_kind_and_other_types_their_names() {
    let meta = json!({"span.kind": "internal", "db.system": "postgresql", "out.host": "db1", "db.name": "shop"});
    let other = json!({"type": "sql", "resource": "SELECT 1", "metrics": {"network.destination.port": 5432.0}});
    let event = span(meta, other);
    assert_eq!((&event["name"], &event["span"]["kind"]), (&json!("SELECT 1"), &json!("internal")));
    assert_eq!(event["attributes"]["db.system.name"], "postgresql");
    assert_eq!(
        (&event["attributes"]["server.address"], &event["attributes"]["server.port"]),
        (&json!("db1"), &json!(5432))
    );
    let event = span(json!({}), json!({"type": "custom"}));
    assert_eq!((&event["name"], event["span"].get("kind")), (&json!("web.request"), None));
    assert!(event["attributes"].get("datadog.name").is_none());
    assert_eq!(span(json!({}), json!({"type": "redis"}))["span"]["kind"], "client");
}

#[test]
fn numbers_of_json_are_numbers_of_any_form() {
    let metrics = json!({"whole": 7, "negative": -7, "part": 1.5, "large": 1e300});
    let attributes = &span(json!({}), json!({"metrics": metrics}))["attributes"];
    let found = ["whole", "negative", "part", "large"].map(|key| attributes[key].as_f64());
    assert_eq!(found, [Some(7.0), Some(-7.0), Some(1.5), Some(1e300)]);
}

#[test]
fn two_tags_of_one_name_are_both_kept() {
    let meta = json!({"out.host": "a", "peer.hostname": "b", "http.method": "GET", "http.request.method": "PUT"});
    let attributes = &span(meta, json!({}))["attributes"];
    // Tags of JSON come in the order of their keys.
    let hosts = [&attributes["server.address"], &attributes["out.host"], &attributes["peer.hostname"]];
    assert!(hosts.contains(&&json!("a")) && hosts.contains(&&json!("b")), "{attributes}");
    assert_eq!((&attributes["http.request.method"], &attributes["http.method"]), (&json!("PUT"), &json!("GET")));
}

#[test]
fn an_error_is_an_event_of_the_span() {
    let meta = json!({"error.message": "boom", "error.type": "ValueError", "error.stack": "at 1"});
    let event = span(meta, json!({"error": 1}));
    assert_eq!((&event["span"]["status"], &event["span"]["status_message"]), (&json!("error"), &json!("boom")));
    let [exception] = event["span"]["events"].as_array().unwrap().as_slice() else { panic!("{event}") };
    assert_eq!(exception["name"], "exception");
    assert_eq!(exception["time"], "2023-11-14T22:13:20.005000000Z");
    let attributes =
        json!({"exception.message": "boom", "exception.type": "ValueError", "exception.stacktrace": "at 1"});
    assert_eq!(exception["attributes"], attributes);
    assert!(event["attributes"].get("exception.type").is_none());
}

#[test]
fn telemetry_is_ignored_or_a_log_for_each_message() {
    let path = "/telemetry/proxy/api/v2/apmtelemetry";
    let body = json!({
        "api_version": "v2", "request_type": "message-batch", "tracer_time": 1_700_000_000, "runtime_id": "r1", "seq_id": 3,
        "application": {"service_name": "shop", "env": "prod", "language_name": "python", "tracer_version": "4.16.0"},
        "host": {"hostname": "web"},
        "payload": [{"request_type": "app-heartbeat", "payload": {}}, {"request_type": "generate-metrics", "payload": {"a": 1}}],
    });
    let body = body.to_string();
    let mut offline = Offline::new();
    let answered = offline.ask(path, &[], body.as_bytes());
    assert_eq!((answered.status, answered.events.len()), (202, 0));
    assert_eq!(offline.counters.totals().bytes_ignored["telemetry"], body.len() as u64);
    let mut offline = Offline::with(Options { telemetry: true, ..Options::default() });
    let answered = offline.ask(path, &[], body.as_bytes());
    let [beat, metrics] = answered.events.as_slice() else { panic!("{answered:?}") };
    assert_eq!((&beat["name"], &beat["body"]), (&json!("datadog.telemetry"), &json!("{}")));
    assert_eq!(metrics["attributes"], json!({"datadog.telemetry.type": "generate-metrics"}));
    assert_eq!((&metrics["body"], &metrics["time"]), (&json!("{\"a\":1}"), &json!("2023-11-14T22:13:20.000000000Z")));
    assert_eq!(metrics["resource"]["service.instance.id"], "r1");
    assert_eq!(metrics["resource"]["host.name"], "web");
    offline.assert_balance();
    let answered = offline.ask(path, &[], b"no JSON");
    assert_eq!((answered.status, answered.events.len()), (202, 0));
    offline.assert_balance();
}
