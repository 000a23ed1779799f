//! What our own sink `otlp` writes comes back as the events that it was made of.

use serde_json::{Map, Value, json};
use tributary::driver::decode;
use tributary::event::{Batch, Kind};
use tributary::simulate::otlp::{OtlpDialect, OtlpProgram};
use tributary::sink::otlp::{Encoder, ExportRequest, Signal};
use tributary_testing::otlp::records::{Decoded, sorted as sorted_requests};
use tributary_workloads as workloads;

use crate::offline::{Offline, PROTOBUF, content, lines};
use crate::{profiles, records};

/// The most batches of each workload.
const MAX_BATCHES: usize = 2;

/// The requests that the sink makes of them.
fn requests(batches: &[Batch]) -> Vec<ExportRequest> {
    let mut encoder = Encoder::new(3 << 20, false, 0);
    for batch in batches {
        encoder.begin_batch();
        for event in batch.events() {
            assert!(encoder.push(event, true));
        }
    }
    encoder.end_requests();
    encoder.end_heap();
    let requests = encoder.take_requests().into_iter();
    // Those of heap dumps have no events that count.
    requests.filter(|request| request.signal != Signal::Profiles || request.events > 0).collect()
}

/// The events of these requests.
fn there_and_back(batches: &[Batch]) -> Vec<Value> {
    let events = |request: ExportRequest| Offline::new().events(request.signal.path(), &[PROTOBUF], &request.body);
    requests(batches).into_iter().flat_map(events).collect()
}

/// What both have: where the rules of `docs/event-model.md` (OTLP) change an event, this does the same.
fn expected(mut event: Value) -> Value {
    let protocol = event["origin"]["protocol"].as_str().unwrap().to_owned();
    let all = event.as_object_mut().unwrap();
    let kind = all["kind"].as_str().unwrap().to_owned();
    for key in ["origin", "resource"] {
        all.remove(key);
    }
    let mut attributes = match all.remove("attributes") {
        Some(Value::Object(attributes)) => attributes,
        _ => Map::new(),
    };
    match kind.as_str() {
        "loss" => {
            let loss = all.remove("loss").unwrap();
            for (key, value) in loss.as_object().unwrap() {
                attributes.insert(format!("loss.{key}"), value.clone());
            }
            all.insert("kind".to_owned(), "log".into());
            all.insert("severity".to_owned(), "WARN".into());
        }
        "log" => {
            // The deprecated attributes are the ids of the record.
            for key in ["trace_id", "span_id"] {
                if all.contains_key(key) {
                    attributes.remove(key);
                }
            }
        }
        "span" => {
            all.remove("observed_time");
            let is_web = attributes.get("datadog.type") == Some(&json!("web"));
            let span = all["span"].as_object_mut().unwrap();
            let kind = attributes.remove("span.kind").filter(|_| !span.contains_key("kind"));
            let default = if is_web { "server" } else { "internal" };
            if protocol != "otlp" {
                span.entry("kind").or_insert(kind.unwrap_or_else(|| default.into()));
            }
        }
        "sample" => {
            let observed = all.remove("observed_time");
            all.entry("time").or_insert_with(|| observed.unwrap());
            all.insert("name".to_owned(), "otlp.profile.sample".into());
            let sample = all["sample"].as_object_mut().unwrap();
            if (&sample["type"], &sample["unit"]) == (&json!("cpu"), &json!("count")) {
                sample.insert("type".to_owned(), "samples".into());
            }
        }
        _ => {
            all.remove("observed_time");
        }
    }
    attributes.retain(|key, value| !key.is_empty() && !value.is_null());
    // What came by OTLP keeps its scope, or has none.
    if protocol != "otlp" {
        attributes.entry("otlp.scope.name").or_insert(format!("tributary.{protocol}").into());
    }
    if !attributes.is_empty() {
        all.insert("attributes".to_owned(), Value::Object(attributes));
    }
    event
}

fn found(mut event: Value) -> Value {
    let all = event.as_object_mut().unwrap();
    let is_log = all["kind"] == "log";
    for key in ["origin", "resource"] {
        all.remove(key);
    }
    if !is_log {
        all.remove("observed_time");
    }
    if let Some(attributes) = all.get_mut("attributes").and_then(Value::as_object_mut)
        && attributes.get("otlp.scope.name").is_some_and(|name| name.as_str().unwrap().starts_with("tributary."))
    {
        attributes.remove("otlp.scope.version");
        attributes.remove("otlp.scope.origin.version");
    }
    event
}

#[test]
fn what_an_sdk_sends_is_the_same_event_behind_two_daemons() {
    for (path, body) in [
        ("/v1/traces", records::traces()),
        ("/v1/logs", records::logs()),
        ("/v1/metrics", records::metrics()),
        (profiles::PATH, profiles::profiles()),
    ] {
        let batches = Offline::new().batches(path, &body);
        let mut back = there_and_back(&batches);
        // Spans must have times: the sink says which ones it has made up.
        for attributes in back.iter_mut().filter_map(|event| event["attributes"].as_object_mut()) {
            attributes.remove("tributary.incomplete");
        }
        let all = |events: Vec<Value>| sorted(events.iter().map(content).collect());
        assert_eq!(all(lines(&batches)), all(back), "{path}");
    }
}

/// A sink `otlp` sends what a program has sent unchanged, byte for byte where the specification leaves no choice.
#[test]
fn the_requests_of_an_sdk_go_on_as_they_were() {
    for dialect in [OtlpDialect::Traces, OtlpDialect::Logs] {
        let request = OtlpProgram::new(1, 2, 1_795_171_200_000_000_000, dialect).request(50).unwrap();
        let [request] = &decode::requests(&request).unwrap()[..] else { panic!("one request") };
        let batches = Offline::new().batches(request.head.path(), &request.body);
        let [back] = &requests(&batches)[..] else { panic!("one request") };
        let decoded = |body: &[u8]| {
            let mut decoded = Decoded::default();
            decoded.add(back.signal, body);
            sorted_requests(decoded.requests)
        };
        assert_eq!(decoded(&back.body), decoded(&request.body));
    }
}

fn sorted(mut events: Vec<Value>) -> Vec<String> {
    events.iter_mut().for_each(Value::sort_all_objects);
    let mut lines: Vec<_> = events.iter().map(Value::to_string).collect();
    lines.sort_unstable();
    lines
}

#[test]
fn what_our_sink_writes_comes_back_as_it_was() {
    let mut kinds = [0; Kind::ALL.len()];
    for workload in workloads::all() {
        let batches: Vec<Batch> = workload.batches().into_iter().take(MAX_BATCHES).collect();
        batches.iter().flat_map(Batch::events).for_each(|event| kinds[event.kind().index()] += 1);
        let sent = sorted(lines(&batches).into_iter().map(expected).collect());
        let back = sorted(there_and_back(&batches).into_iter().map(found).collect());
        assert_eq!(sent.len(), back.len(), "{}", workload.name);
        for (sent, back) in sent.iter().zip(&back) {
            assert_eq!(sent, back, "{}", workload.name);
        }
    }
    for kind in [Kind::Log, Kind::Span, Kind::Metric, Kind::Sample] {
        assert!(kinds[kind.index()] > 0, "{kinds:?}");
    }
}
