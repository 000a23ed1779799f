//! Datadog-style binary spans: every recorded case, whole and cut anywhere, against its expected records.
//!
//! The expected records come from an independent decoder. This file translates each into the JSON line that
//! `docs/event-model.md` promises for it, and compares those.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use crate::common::{Decoded, decode_with, pieces};
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use tributary::protocol::End;
use tributary::protocol::datadog::{ListLayout, MaxText, Options};

/// The name of a fact of the process by semantic conventions.
fn conventional(key: &str) -> &str {
    match key {
        "env" => "deployment.environment.name",
        "version" => "service.version",
        "runtime-id" => "service.instance.id",
        "process_id" => "process.pid",
        "language" => "telemetry.sdk.language",
        "_dd.hostname" => "host.name",
        key => key,
    }
}

fn data() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/datadog")
}

/// One variant of a case: its wire bytes, the options of the variant, and the expected events.
struct Case {
    name: String,
    wire: Vec<u8>,
    options: Options,
    records: Vec<Value>,
    verdict: Value,
}

fn lines(path: &str) -> Vec<Value> {
    let text = fs::read_to_string(data().join(path)).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The options that decode records as in the captures: texts are not cut.
fn options() -> Options {
    let uncut = 1 << 20;
    Options {
        max_text: MaxText { name: uncut, service: uncut, type_: uncut, resource: uncut, key: uncut, value: uncut },
        ..Options::default()
    }
}

fn cases() -> Vec<Case> {
    let manifest: Value = serde_json::from_str(&fs::read_to_string(data().join("manifest.json")).unwrap()).unwrap();
    let mut cases = Vec::new();
    for case in manifest["cases"].as_array().unwrap() {
        let wire = fs::read(data().join(case["wire"].as_str().unwrap())).unwrap();
        for expect in case["expect"].as_array().unwrap() {
            let mut options = options();
            for (limit, value) in expect["limits"].as_object().unwrap() {
                match limit.as_str() {
                    "cache_floor" => options.string_cache.min_entries = value.as_u64().unwrap() as usize,
                    "max_pending" => options.waiting.records = value.as_u64().unwrap() as usize,
                    "max_list_entries" => options.max_record_entries = value.as_u64().unwrap() as usize,
                    "list_layout" => options.list_layout = ListLayout::Padded32,
                    other => panic!("a limit that this test does not know: {other}"),
                }
            }
            let mut records = lines(expect["records"].as_str().unwrap());
            let verdict = records.pop().unwrap();
            let name = format!("{} ({})", case["name"].as_str().unwrap(), expect["variant"].as_str().unwrap());
            cases.push(Case { name, wire: wire.clone(), options, records, verdict });
        }
    }
    assert!(cases.len() > 60, "the manifest names its cases");
    cases
}

/// A JSON attribute for ids without text: one id stands alone, several in an array.
fn ids(ids: &[&str]) -> Value {
    match ids {
        [id] => json!(id),
        ids => json!(ids),
    }
}

/// The value of a metric: of the recorded names, one is a whole number by semantic conventions.
fn number(key: Option<&str>, value: &Value) -> Value {
    match value.as_f64() {
        Some(number) if key == Some("http.status_code") && number.fract() == 0.0 && number.abs() < 9e15 => {
            json!(number as i64)
        }
        _ => value.clone(),
    }
}

/// The value of a tag: of the recorded names, one is a whole number by semantic conventions.
fn tag(key: &str, value: &Value) -> Value {
    let digits = value.as_str().filter(|text| key == "http.status_code" && !text.is_empty() && !text.starts_with('0'));
    let number =
        digits.filter(|text| text.bytes().all(|byte| byte.is_ascii_digit())).and_then(|text| text.parse().ok());
    number.map_or_else(|| value.clone(), |number: i64| json!(number))
}

/// The events that a case must give, in the order of `seq`, losses last. `objects` (the independent decoder's list of
/// wire objects) has the raw ids behind a null.
fn expected_events(records: &[Value], verdict: &Value, wire: &[u8], objects: &[Value]) -> Vec<Value> {
    let mut resource = Map::new();
    let mut traces: BTreeMap<&str, Vec<(String, String, Value, Value)>> = BTreeMap::new();
    let mut events = Vec::new();
    for record in records {
        let mut attributes = Map::new();
        let seq = &record["seq"];
        let unresolved: Vec<&str> =
            record["unresolved"].as_array().unwrap().iter().map(|id| id.as_str().unwrap()).collect();
        let own = |object: &&Value| object["off"] == record["off"] && object.get("owner_seq").is_none();
        let object = objects.iter().find(own).unwrap();
        let entries = |list: &str| -> Vec<(String, String)> {
            let is_own = |object: &&Value| object["obj"] == list && &object["owner_seq"] == seq;
            let entries =
                objects.iter().filter(is_own).flat_map(|object| object["entries"].as_array().unwrap().clone());
            entries.map(|entry| (entry[0].as_str().unwrap().into(), entry[1].as_str().unwrap().into())).collect()
        };
        let mut own_keys = Map::new();
        let mut unresolved_meta: Vec<&str> = Vec::new();
        let meta_ids = entries("metaList");
        for ((key_id, value_id), pair) in meta_ids.iter().zip(record["meta"].as_array().unwrap()) {
            for (id, text) in [(key_id, &pair[0]), (value_id, &pair[1])] {
                if text.is_null() && unresolved.contains(&id.as_str()) && !unresolved_meta.contains(&id.as_str()) {
                    unresolved_meta.push(id);
                }
            }
            match (pair[0].as_str(), &pair[1]) {
                (Some(key), Value::Null) if unresolved.contains(&value_id.as_str()) => {
                    own_keys.insert(format!("datadog.valueless_meta.{key}"), json!(value_id));
                }
                (_, Value::Null) => {}
                (Some(key), value) => {
                    own_keys.remove(key);
                    own_keys.insert(key.into(), tag(key, value));
                }
                (None, value) if unresolved.contains(&key_id.as_str()) => {
                    own_keys.insert(format!("datadog.nameless_meta.{key_id}"), value.clone());
                }
                (None, _) => {}
            }
        }
        let tags = own_keys.clone();
        let mut unresolved_metrics: Vec<&str> = Vec::new();
        let metric_ids = entries("metricsList");
        for ((key_id, _), pair) in metric_ids.iter().zip(record["metrics"].as_array().unwrap()) {
            let value = number(pair[0].as_str(), &pair[1]["value"]);
            match pair[0].as_str() {
                Some(key) if tags.contains_key(key) && record["rec"] != "process" => {
                    own_keys.insert(format!("datadog.metric.{key}"), value);
                }
                Some(key) => {
                    own_keys.insert(key.into(), value);
                }
                None if unresolved.contains(&key_id.as_str()) => {
                    if !unresolved_metrics.contains(&key_id.as_str()) {
                        unresolved_metrics.push(key_id);
                    }
                    own_keys.insert(format!("datadog.nameless_metric.{key_id}"), value);
                }
                None => {}
            }
        }
        let mut event = Map::new();
        let mut span = None;
        let mut own_resource = Map::new();
        match record["rec"].as_str().unwrap() {
            "process" => {
                event.insert("name".into(), json!("datadog.process"));
                attributes.insert("datadog.protocol.version".into(), json!("1"));
                attributes.insert("datadog.string_cache_size".into(), record["string_cache_size"].clone());
                let named = std::mem::take(&mut own_keys).into_iter();
                resource = named.map(|(key, value)| (conventional(&key).to_owned(), value)).collect();
            }
            "trace" => {
                event.insert("name".into(), json!("datadog.trace"));
                attributes.insert("datadog.trace_id".into(), record["trace_id"].clone());
                event.insert("trace_id".into(), record["trace_id"].clone());
                let texts = record["meta"].as_array().unwrap().iter().map(|pair| (pair[0].clone(), pair[1].clone()));
                let metas = meta_ids
                    .iter()
                    .zip(texts)
                    .map(|((key_id, value_id), (key, value))| (key_id.clone(), value_id.clone(), key, value));
                traces.entry(record["trace_id"].as_str().unwrap()).or_default().extend(metas);
            }
            _ => {
                let name = record["name"].as_str().unwrap_or("datadog.span");
                event.insert("name".into(), json!(name));
                for (field, attribute) in [("resource", "datadog.resource"), ("type", "datadog.type")] {
                    if !record[field].is_null() {
                        attributes.insert(attribute.into(), record[field].clone());
                    }
                }
                match record["service"].as_str() {
                    Some("") => drop(attributes.insert("service.name".into(), json!(""))),
                    Some(service) => drop(own_resource.insert("service.name".into(), json!(service))),
                    None => {}
                }
                let trace = traces.get(record["trace_id"].as_str().unwrap());
                for (key_id, value_id, key, value) in trace.into_iter().flatten() {
                    let is_defined = |id: &str| {
                        let before = |object: &&Value| object["off"].as_u64() < record["off"].as_u64();
                        objects.iter().filter(before).any(|object| object["obj"] == "string" && object["id"] == id)
                    };
                    if let (Some(key), true) = (key.as_str(), is_defined(key_id) && is_defined(value_id)) {
                        attributes.insert(format!("datadog.trace.meta.{key}"), value.clone());
                    }
                }
                let (start, duration) = (record["start"].as_u64().unwrap(), record["duration"].as_u64().unwrap());
                let mut data = Map::new();
                data.insert("trace_id".into(), record["trace_id"].clone());
                data.insert("span_id".into(), record["span_id"].clone());
                if record["parent_id"] == record["span_id"] && record["parent_id"] != "0000000000000000" {
                    attributes.insert("tributary.parent.self".into(), json!(true));
                } else if record["parent_id"] != "0000000000000000" {
                    data.insert("parent_span_id".into(), record["parent_id"].clone());
                }
                if let Some(end) = start.checked_add(duration).filter(|_| start != 0) {
                    data.insert("end_time".into(), json!(crate::common::rfc3339(end)));
                }
                data.insert("duration_ns".into(), json!(duration));
                data.insert("status".into(), json!(if record["error"] == true { "error" } else { "unset" }));
                if let Some(kind) = own_keys.remove("span.kind") {
                    data.insert("kind".into(), kind);
                }
                for part in ["message", "type", "stack"] {
                    if let Some(text) = own_keys.remove(&format!("error.{part}")) {
                        let name = if part == "stack" { "stacktrace" } else { part };
                        attributes.insert(format!("exception.{name}"), text.clone());
                        if part == "message" && record["error"] == true {
                            data.insert("status_message".into(), text);
                        }
                    }
                }
                event
                    .insert("time".into(), if start == 0 { Value::Null } else { json!(crate::common::rfc3339(start)) });
                span = Some(data);
                for field in ["name", "type", "resource", "service"] {
                    let id = object[format!("{field}_id")].as_str().unwrap();
                    if record[field].is_null() && unresolved.contains(&id) {
                        attributes.insert(format!("datadog.unresolved.{field}"), json!(id));
                    }
                }
            }
        }
        if span.is_none() {
            attributes.insert("tributary.time.basis".into(), json!("received"));
        }
        attributes.extend(own_keys);
        if !unresolved_meta.is_empty() {
            attributes.insert("datadog.unresolved.meta".into(), ids(&unresolved_meta));
        }
        if !unresolved_metrics.is_empty() {
            attributes.insert("datadog.unresolved.metrics".into(), ids(&unresolved_metrics));
        }
        if record["partial"] == true {
            attributes.insert("tributary.incomplete".into(), json!(["meta", "metrics"]));
        }
        if let Some(dropped) = record.get("entries_dropped") {
            attributes.insert("datadog.entries_dropped".into(), dropped.clone());
        }
        event.insert("kind".into(), json!(if span.is_some() { "span" } else { "log" }));
        event.insert("attributes".into(), Value::Object(attributes));
        if let Some(span) = span {
            event.insert("span".into(), Value::Object(span));
        } else {
            event.insert("severity".into(), json!("INFO"));
        }
        let mut all = resource.clone();
        all.append(&mut own_resource);
        own_resource = all;
        if !own_resource.is_empty() {
            event.insert("resource".into(), Value::Object(own_resource));
        }
        event.insert(
            "origin".into(),
            json!({"protocol": "datadog", "version": "1", "listener": "test", "peer": "test", "connection": 1,
                   "sequence": seq, "offset": record["off"], "length": object["len"]}),
        );
        events.push(Value::Object(event));
    }
    events.sort_by_key(|event| event["origin"]["sequence"].as_u64().unwrap());
    events.extend(expected_losses(records, verdict, wire));
    events
}

fn expected_losses(records: &[Value], verdict: &Value, wire: &[u8]) -> Vec<Value> {
    let mut losses = Vec::new();
    let offset = verdict["off"].as_u64().unwrap();
    let rest = &wire[offset as usize..];
    let reason = match (verdict["end"].as_str().unwrap(), verdict["error"].as_str()) {
        ("ok" | "empty", None) => None,
        ("truncated", None) => Some("truncated"),
        ("error", Some("bad_magic" | "bad_object_type" | "second_process")) => Some("malformed"),
        ("error", Some("bad_version" | "unknown_type")) => Some("unsupported"),
        ("error", Some("string_too_long" | "list_too_long")) => Some("too_large"),
        other => panic!("a verdict that this test does not know: {other:?}"),
    };
    if let Some(reason) = reason {
        let excerpt: String = rest.iter().take(64).map(|byte| format!("{byte:02x}")).collect();
        let loss = json!({"reason": reason, "bytes": rest.len(), "excerpt": excerpt});
        losses.push(json!({"kind": "loss", "name": "tributary.loss", "loss": loss, "offset": offset}));
    }
    let unresolved = records.iter().filter(|record| !record["unresolved"].as_array().unwrap().is_empty()).count();
    if unresolved > 0 {
        let loss = json!({"reason": "unresolved", "bytes": 0, "events": unresolved});
        losses.push(json!({"kind": "loss", "name": "tributary.loss", "loss": loss, "offset": wire.len()}));
    }
    losses
}

/// The events of a decode in the shape of [`expected_events`]: records by sequence, losses after them, and without what
/// differs from run to run.
fn comparable(decoded: &Decoded) -> Vec<Value> {
    let (mut records, mut losses) = (Vec::new(), Vec::new());
    for event in &decoded.events {
        let mut event = event.as_object().unwrap().clone();
        event.remove("observed_time");
        if event["kind"] == "loss" {
            let mut loss = event["loss"].clone();
            assert_ne!(loss.as_object_mut().unwrap().remove("detail"), None);
            let offset = event["origin"]["offset"].clone();
            if loss["reason"] != "too_large" || loss.get("events").is_none() {
                losses.push(json!({"kind": "loss", "name": event["name"], "loss": loss, "offset": offset}));
            }
            continue;
        }
        if event["kind"] != "span" {
            event.remove("time");
        }
        let attributes = event.entry("attributes").or_insert_with(|| json!({})).as_object_mut().unwrap();
        for mark in ["datadog.warnings", "tributary.text.repaired", "tributary.text.truncated"] {
            attributes.remove(mark);
        }
        records.push(Value::Object(event));
    }
    records.sort_by_key(|event| event["origin"]["sequence"].as_u64().unwrap());
    records.extend(losses);
    records
}

fn assert_same(name: &str, how: &str, actual: &[Value], expected: &[Value]) {
    // Maps compare without regard to order; the tests of the encoder check the order of keys.
    for (at, (actual, expected)) in actual.iter().zip(expected).enumerate() {
        assert_eq!(actual, expected, "{name}, {how}, event {at}");
    }
    assert_eq!(actual.len(), expected.len(), "{name}, {how}: number of events");
}

fn check(case: &Case) {
    let objects_name = case.name.split_once(' ').unwrap().0;
    let padded = case.options.list_layout == ListLayout::Padded32;
    let file = if padded { "objects.padded32.ndjson" } else { "objects.ndjson" };
    let objects = lines(&format!("{objects_name}/{file}"));
    let expected = expected_events(&case.records, &case.verdict, &case.wire, &objects);
    let decode = |cuts: &[usize]| decode_with(&case.options, pieces(&case.wire, cuts), End::Closed);
    let whole = decode(&[]);
    assert_same(&case.name, "whole", &comparable(&whole), &expected);
    let warnings: BTreeMap<String, u64> =
        case.verdict["warnings"].as_array().unwrap().iter().fold(BTreeMap::new(), |mut counts, warning| {
            *counts.entry(warning["warn"].as_str().unwrap().into()).or_default() += 1;
            counts
        });
    let counted: BTreeMap<String, u64> =
        whole.totals.warnings.iter().map(|(code, count)| (code.to_string(), *count)).collect();
    assert_eq!(counted, warnings, "{}", case.name);
    let small = case.wire.len() <= 600;
    let every_cut = if small { (1..case.wire.len()).collect::<Vec<_>>() } else { Vec::new() };
    for cut in every_cut {
        assert_same(&case.name, &format!("cut at {cut}"), &comparable(&decode(&[cut])), &expected);
    }
    for size in [1, 3, 7, 64] {
        if size > 1 || case.wire.len() < 30_000 {
            let cuts: Vec<_> = (1..case.wire.len()).step_by(size).collect();
            assert_same(&case.name, &format!("in pieces of {size}"), &comparable(&decode(&cuts)), &expected);
        }
    }
}

#[test]
fn every_case_decodes_to_its_expected_records_whole_and_in_pieces() {
    for case in cases() {
        check(&case);
    }
}

#[test]
fn every_prefix_of_the_small_stream_ends_as_expected() {
    let wire = fs::read(data().join("small-stream/wire.bin")).unwrap();
    let objects = lines("small-stream/objects.ndjson");
    let cuts = lines("small-stream/cuts.ndjson");
    assert_eq!(cuts.len(), wire.len());
    for cut in cuts {
        let prefix = &wire[..cut["cut"].as_u64().unwrap() as usize];
        // An incomplete list adds nothing to the record.
        let complete = |object: &&Value| {
            object
                .get("len")
                .is_some_and(|len| object["off"].as_u64().unwrap() + len.as_u64().unwrap() <= prefix.len() as u64)
        };
        let objects: Vec<_> = objects.iter().filter(complete).cloned().collect();
        let expected = expected_events(cut["records"].as_array().unwrap(), &cut["end"], prefix, &objects);
        let decoded = decode_with(&options(), vec![prefix], End::Closed);
        assert_same("small-stream", &format!("prefix of {}", prefix.len()), &comparable(&decoded), &expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn random_cuts_change_nothing(seed in any::<prop::sample::Index>(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12)) {
        let cases = cases();
        let case = seed.get(&cases);
        if !case.wire.is_empty() {
            let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(case.wire.len())).collect();
            cuts.sort_unstable();
            let whole = comparable(&decode_with(&case.options, vec![&case.wire], End::Closed));
            let cut = comparable(&decode_with(&case.options, pieces(&case.wire, &cuts), End::Closed));
            prop_assert_eq!(whole, cut, "{}", case.name);
        }
    }
}

#[test]
fn a_span_is_complete_when_idle_and_a_late_list_is_an_event_of_its_own() {
    let wire = fs::read(data().join("metrics-then-meta/wire.bin")).unwrap();
    let objects = lines("metrics-then-meta/objects.ndjson");
    let metrics_at =
        objects.iter().find(|object| object["obj"] == "metricsList").unwrap()["off"].as_u64().unwrap() as usize;
    let mut decode = crate::common::Running::new(&options());
    decode.feed(&wire[..metrics_at]);
    assert_eq!(decode.names(), ["datadog.process"]);
    decode.pass(Duration::from_millis(999));
    assert_eq!(decode.names(), ["datadog.process"]);
    decode.pass(Duration::from_millis(1));
    assert_eq!(decode.names(), ["datadog.process", "web.request"]);
    decode.feed(&wire[metrics_at..]);
    let decoded = decode.finish(End::Closed);
    let late = &decoded.events[2];
    assert_eq!(late["name"], "datadog.late_list");
    assert_eq!(late["span_id"], "0000000000000001");
    assert_eq!(late["attributes"]["span_id"], late["span_id"]);
    assert_eq!(late["attributes"]["http.status_code"], 200);
    assert_eq!(late["attributes"]["http.method"], "GET");
    assert_eq!(decoded.totals.warnings["late_list"], 1);
    assert_eq!(decoded.totals.lost(), 0);
}

#[test]
fn an_incomplete_list_keeps_its_span_open() {
    let wire = fs::read(data().join("metrics-then-meta/wire.bin")).unwrap();
    let mut decode = crate::common::Running::new(&options());
    decode.feed(&wire[..wire.len() - 1]);
    decode.pass(Duration::from_secs(9));
    assert_eq!(decode.names(), ["datadog.process"]);
    decode.feed(&wire[wire.len() - 1..]);
    decode.pass(Duration::from_secs(1));
    assert_eq!(decode.names(), ["datadog.process", "web.request"]);
}

#[test]
fn a_record_waits_for_its_strings_for_a_limited_time() {
    let wire = fs::read(data().join("string-never-defined/wire.bin")).unwrap();
    let mut decode = crate::common::Running::new(&options());
    decode.feed(&wire);
    decode.pass(Duration::from_millis(9_999));
    assert_eq!(decode.names(), ["datadog.process"]);
    decode.pass(Duration::from_millis(1));
    assert_eq!(decode.names(), ["datadog.process", "web.request", "web.request"]);
    let decoded = decode.finish(End::Closed);
    let id = "d20f64acc6e70b60";
    assert!(decoded.events[1..3].iter().all(|event| event["attributes"]["datadog.unresolved.resource"] == id));
    assert_eq!(
        (&decoded.events[3]["loss"]["reason"], &decoded.events[3]["loss"]["events"]),
        (&"unresolved".into(), &2.into())
    );
}

/// A stream of `process` and these objects.
fn stream(objects: &[Vec<u8>]) -> Vec<u8> {
    let process = [&[0xDD, 0, 0, 0, 0, 1][..], &1024_u64.to_be_bytes()].concat();
    [process, objects.concat()].concat()
}

fn string(id: u64, text: &str) -> Vec<u8> {
    [&[0xDD, 6][..], &id.to_be_bytes(), &(text.len() as u32).to_be_bytes(), text.as_bytes()].concat()
}

#[test]
fn later_definitions_do_not_change_the_meta_of_a_trace_on_its_spans() {
    let trace = [&[0xDD, 1][..], &[9; 16]].concat();
    let meta = [&[0xDD, 5, 1][..], &1_u64.to_be_bytes(), &2_u64.to_be_bytes()].concat();
    let span = || {
        let ids = [&[8; 8][..], &[0; 8], &[9; 16]].concat();
        [&[0xDD, 2][..], &ids, &1_u64.to_be_bytes(), &1_u64.to_be_bytes(), &[0; 33]].concat()
    };
    let end_of_trace = [&[0xDD, 1][..], &[7; 16]].concat();
    let wire =
        stream(&[string(1, "key"), trace, meta, end_of_trace, span(), string(2, "first"), string(2, "second"), span()]);
    let decoded = decode_with(&options(), vec![&wire], End::Closed);
    let spans: Vec<_> = decoded.events.iter().filter(|event| event["kind"] == "span").collect();
    let meta = |event: &Value| event["attributes"].get("datadog.trace.meta.key").cloned();
    // The first span was parsed before the text was known, and does not wait for it.
    assert_eq!((meta(spans[0]), meta(spans[1])), (None, Some(json!("first"))));
    let trace = decoded.events.iter().find(|event| event["name"] == "datadog.trace").unwrap();
    let event = decoded.events.iter().find(|event| event["attributes"].get("key").is_some()).unwrap();
    assert_eq!(event["attributes"]["key"], "first");
    assert_eq!(trace["kind"], "log");
}
