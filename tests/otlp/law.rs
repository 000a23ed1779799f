//! What our own sink `otlp` writes comes back as the events that it was made of.

use serde_json::{Map, Value, json};
use tributary::event::{Batch, Kind};
use tributary::sink::encode::{Encoder as Lines, Format};
use tributary::sink::otlp::{Encoder, Signal};
use tributary_workloads as workloads;

use crate::offline::{Offline, PROTOBUF};

/// The most batches of each workload.
const MAX_BATCHES: usize = 2;

/// The events of batches as JSON.
fn lines(batches: &[Batch]) -> Vec<Value> {
    let (mut encoder, mut lines) = (Lines::new(Format::Json), Vec::new());
    batches.iter().flat_map(Batch::events).for_each(|event| encoder.encode(event, &mut lines));
    let lines = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| serde_json::from_slice(line).unwrap()).collect()
}

/// The events of the requests that the sink makes of them.
fn there_and_back(batches: &[Batch]) -> Vec<Value> {
    let (mut encoder, mut events) = (Encoder::new(3 << 20, false, 0), Vec::new());
    for batch in batches {
        encoder.begin_batch();
        for event in batch.events() {
            assert!(encoder.push(event, true));
        }
    }
    encoder.end_requests();
    encoder.end_heap();
    let requests = encoder.take_requests();
    for request in requests {
        if request.signal == Signal::Profiles {
            continue;
        }
        events.extend(Offline::new().events(request.signal.path(), &[PROTOBUF], &request.body));
    }
    events
}

/// What both have: where the rules of `docs/event-model.md` (OTLP) change an event, this does the same.
fn expected(mut event: Value) -> Option<Value> {
    let protocol = event["origin"]["protocol"].as_str().unwrap().to_owned();
    let all = event.as_object_mut().unwrap();
    let kind = all["kind"].as_str().unwrap().to_owned();
    if kind == "sample" {
        return None;
    }
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
            span.entry("kind").or_insert(kind.unwrap_or_else(|| default.into()));
        }
        _ => {
            all.remove("observed_time");
        }
    }
    attributes.retain(|key, value| !key.is_empty() && !value.is_null());
    // What had a scope before keeps it.
    attributes.entry("otlp.scope.name").or_insert(format!("tributary.{protocol}").into());
    all.insert("attributes".to_owned(), Value::Object(attributes));
    Some(event)
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
    let attributes = all["attributes"].as_object_mut().unwrap();
    if attributes["otlp.scope.name"].as_str().unwrap().starts_with("tributary.") {
        attributes.remove("otlp.scope.version");
        attributes.remove("otlp.scope.origin.version");
    }
    event
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
        let sent = sorted(lines(&batches).into_iter().filter_map(expected).collect());
        let back = sorted(there_and_back(&batches).into_iter().map(found).collect());
        assert_eq!(sent.len(), back.len(), "{}", workload.name);
        for (sent, back) in sent.iter().zip(&back) {
            assert_eq!(sent, back, "{}", workload.name);
        }
    }
    assert!(kinds[Kind::Log.index()] > 0 && kinds[Kind::Span.index()] > 0, "{kinds:?}");
}
