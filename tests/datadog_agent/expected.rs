//! The spans of a decoded body as events have them: a second implementation of the contract, for JSON.

use serde_json::{Map, Value, json};

/// Tags that are parts of the span or of its resource.
const MOVED: [&str; 14] = [
    "env",
    "version",
    "runtime-id",
    "process_id",
    "language",
    "_dd.hostname",
    "_dd.p.tid",
    "_dd.span_links",
    "events",
    "span.kind",
    "error.message",
    "error.msg",
    "error.type",
    "error.stack",
];

/// What an event of a span must have: name, times, ids, parent, kind, status, service, env, version and tags.
pub(crate) fn spans(resolved: &Value) -> Vec<Value> {
    let mut all = Vec::new();
    let (payload, chunks) = match resolved {
        Value::Array(chunks) => (&Value::Null, chunks),
        payload => (payload, payload["chunks"].as_array().unwrap()),
    };
    for chunk in chunks {
        let spans = chunk.as_array().or_else(|| chunk["spans"].as_array()).unwrap();
        let high = spans.iter().find_map(|span| span["meta"]["_dd.p.tid"].as_str());
        for span in spans {
            let trace_id = match chunk["trace_id"].as_str() {
                Some(id) => id.to_owned(),
                None => format!("{:0>16}{:016x}", high.unwrap_or(""), span["trace_id"].as_u64().unwrap()),
            };
            all.push(expected(span, chunk, payload, &trace_id));
        }
    }
    all
}

fn expected(span: &Value, chunk: &Value, payload: &Value, trace_id: &str) -> Value {
    let mut tags = Map::new();
    for part in ["meta", "metrics"] {
        tags.extend(span[part].as_object().cloned().unwrap_or_default());
    }
    for triplet in span["attributes"].as_array().into_iter().flatten() {
        tags.insert(triplet[0].as_str().unwrap().to_owned(), triplet[2].clone());
    }
    for (key, value) in payload["tags"].as_object().into_iter().flatten() {
        tags.entry(key.clone()).or_insert_with(|| value.clone());
    }
    for (key, value) in chunk["tags"].as_object().into_iter().flatten() {
        tags.insert(key.clone(), value.clone());
    }
    for triplet in payload["attributes"].as_array().into_iter().chain(chunk["attributes"].as_array()).flatten() {
        tags.entry(triplet[0].as_str().unwrap().to_owned()).or_insert_with(|| triplet[2].clone());
    }
    let tag = |key: &str| tags.get(key).and_then(Value::as_str).map(str::to_owned);
    let kinds = ["", "internal", "server", "client", "producer", "consumer"];
    let kind = tag("span.kind").or(span["kind"].as_u64().map(|kind| kinds[kind as usize].to_owned()));
    let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    let mut own: Map<String, Value> = Map::new();
    for (key, value) in &tags {
        if !MOVED.contains(&key.as_str()) {
            own.insert(key.clone(), whole(key, value));
        }
    }
    for (of, name) in [("error.message", "message"), ("error.type", "type"), ("error.stack", "stacktrace")] {
        if let Some(text) = tag(of) {
            own.insert(format!("exception.{name}"), text.into());
        }
    }
    if let Some(mechanism) = chunk["sampling_mechanism"].as_u64() {
        own.entry("_dd.p.dm").or_insert_with(|| format!("-{mechanism}").into());
    }
    let is_error = span["error"].as_u64().unwrap_or(0) != 0 || span["error"].as_bool() == Some(true);
    json!({
        "name": span["name"],
        "start": span["start"],
        "duration": span["duration"],
        "trace_id": trace_id,
        "span_id": format!("{:016x}", span["span_id"].as_u64().unwrap()),
        "parent": span["parent_id"].as_u64().filter(|id| *id != 0).map(|id| format!("{id:016x}")),
        "kind": kind,
        "status": if is_error { "error" } else { "unset" },
        "message": if is_error { tag("error.message") } else { None },
        "service": span["service"],
        "env": text(&span["env"]).or(tag("env")).or(text(&payload["env"])),
        "version": text(&span["version"]).or(tag("version")).or(text(&payload["app_version"])),
        "resource": text(&span["resource"]),
        "type": text(&span["type"]),
        "tags": own,
    })
}

/// The number that a tag is by the name of its key.
fn whole(key: &str, value: &Value) -> Value {
    let is_number = ["http.status_code", "network.destination.port"].contains(&key);
    match value {
        Value::String(text) if is_number => text.parse::<i64>().map_or_else(|_| value.clone(), Value::from),
        Value::Number(number) if is_number => (number.as_f64().unwrap() as i64).into(),
        value => value.clone(),
    }
}

/// The same parts of an event.
pub(crate) fn parts(event: &Value) -> Value {
    let (span, resource) = (&event["span"], &event["resource"]);
    let mut tags = event["attributes"].as_object().cloned().unwrap_or_default();
    let taken = ["datadog.resource", "datadog.type"].map(|name| tags.remove(name));
    for name in ["datadog.chunk.priority", "datadog.chunk.origin", "datadog.chunk.dropped"] {
        tags.remove(name);
    }
    let start: jiff::Timestamp = event["time"].as_str().unwrap().parse().unwrap();
    json!({
        "name": event["name"],
        "start": start.as_nanosecond() as i64,
        "duration": span["duration_ns"],
        "trace_id": span["trace_id"],
        "span_id": span["span_id"],
        "parent": span["parent_span_id"],
        "kind": span["kind"],
        "status": span["status"],
        "message": span["status_message"],
        "service": resource["service.name"],
        "env": resource["deployment.environment.name"],
        "version": resource["service.version"],
        "resource": taken[0],
        "type": taken[1],
        "tags": tags,
    })
}
