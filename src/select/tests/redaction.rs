//! What is left of an event from which values are removed or hashed.

use std::fs;
use std::sync::Arc;

use super::{builder, header, read, rules};
use crate::Rules;
use tributary_event::{
    Batch, BatchBuilder, Distribution, DistributionForm, Identity, InternedRun, Link, Loss, Origin, Reason, Resource,
    ResourceValue, Severity, SpanData, SpanEvent, SpanExtras, SpanId, SpanKind, SpanLink, Status, Temporality,
    TraceContext, TraceId, Value, semconv,
};
use tributary_sink::encode::json::JsonEncoder;
use tributary_sink::{Kinds, Selection};

fn lines(batch: &Batch) -> Vec<serde_json::Value> {
    let (mut encoder, mut out) = (JsonEncoder::default(), Vec::new());
    batch.events().for_each(|event| encoder.encode(event, &mut out));
    out.split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect()
}

/// The events after the rules; the same batch if nothing of it changes.
fn redacted(rules: &Rules, batch: &Batch) -> Vec<serde_json::Value> {
    lines(rules.redact(Selection::new(batch, Kinds::ALL)).as_ref().unwrap_or(batch))
}

/// Hash options with a key file.
fn hash(directory: &tempfile::TempDir, attributes: &str, key: &[u8]) -> String {
    let path = directory.path().join("key");
    fs::write(&path, key).unwrap();
    format!("hash = {{ attributes = [{attributes}], key_file = {:?} }}", path.display().to_string())
}

/// Two logs with shared and own attributes, objects, a body, and a resource.
fn logs() -> Batch {
    let mut builder = builder("datadog", "shop");
    let resource = [
        ("service.name".to_owned(), "shop".into()),
        ("host.name".to_owned(), "host-7".into()),
        ("user.id".to_owned(), ResourceValue::U64(17)),
    ];
    builder.set_resource(Arc::new(Resource::new(resource)));
    let mut memo = InternedRun::default();
    for number in 0..2_u64 {
        let run = builder.intern_run(&mut memo, |batch| {
            let name = batch.push_text("main");
            let cookie = batch.push_text("a=b");
            [(semconv::THREAD_NAME.into(), name.into()), (batch.push_text("cookie").into(), cookie.into())]
        });
        let mut log = builder.event(header(semconv::DATADOG_TRACE, number));
        log.run(run);
        let key = log.batch().push_text("user.id");
        log.attribute(key, number);
        let (password, other) = (log.batch().push_text("password"), log.batch().push_text("other"));
        let inner = log.batch().map(&[(password.into(), Value::I64(-5)), (other.into(), Value::Bool(true))]);
        let items = log.batch().array(&[inner, Value::Null]);
        let key = log.batch().push_text("form");
        log.attribute(key, items);
        let body = log.batch().map(&[(password.into(), Value::F64(0.5)), (other.into(), items)]);
        log.log(Severity::Info, Some(body));
    }
    builder.take()
}

#[test]
fn removed_keys_are_gone_from_attributes_runs_objects_bodies_and_resources() {
    let batch = logs();
    let before = lines(&batch);
    let after =
        redacted(&rules("remove = ['cookie', '*password', 'resource:host.name', 'body.other.nothing']"), &batch);
    for (before, after) in before.iter().zip(&after) {
        let mut expected = before.clone();
        expected["attributes"].as_object_mut().unwrap().shift_remove("cookie");
        expected["attributes"]["form"][0].as_object_mut().unwrap().shift_remove("password");
        expected["body"].as_object_mut().unwrap().shift_remove("password");
        expected["body"]["other"][0].as_object_mut().unwrap().shift_remove("password");
        expected["resource"].as_object_mut().unwrap().shift_remove("host.name");
        assert_eq!(after, &expected);
        assert_ne!(before, after);
    }
}

#[test]
fn a_key_without_prefix_is_meant_everywhere_and_with_it_in_the_resource_only() {
    let batch = logs();
    let has = |events: &[serde_json::Value]| {
        events.iter().map(|event| [&event["attributes"], &event["resource"]].map(|of| of["user.id"].is_u64())).collect()
    };
    let everywhere: Vec<[bool; 2]> = has(&redacted(&rules("remove = ['user.*']"), &batch));
    assert_eq!(everywhere, [[false; 2]; 2]);
    let resource: Vec<[bool; 2]> = has(&redacted(&rules("remove = ['resource:user.id']"), &batch));
    assert_eq!(resource, [[true, false]; 2]);
}

#[test]
fn members_are_named_by_their_own_key_or_by_their_path_and_a_body_as_a_whole() {
    let batch = logs();
    let after = &redacted(&rules("remove = ['form.password', 'body.other']"), &batch)[0];
    assert_eq!(after["attributes"]["form"], serde_json::json!([{ "other": true }, null]));
    assert_eq!(after["body"], serde_json::json!({ "password": 0.5 }));
    let after = &redacted(&rules("remove = ['body']"), &batch)[0];
    assert!(after.get("body").is_none() && after["attributes"]["form"][0]["password"] == -5);
}

/// The hashes are those of `printf VALUE | openssl dgst -sha256 -hmac KEY`.
#[test]
fn hashes_are_the_first_digits_of_an_hmac_of_the_text_or_of_the_json_text() {
    let directory = tempfile::tempdir().unwrap();
    let batch = logs();
    let text = hash(&directory, "'cookie', 'user.id', 'password', 'body.other'", b"a key\n");
    let after = &redacted(&rules(&text), &batch)[1];
    let digits = |value: &str| {
        let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, b"a key");
        let digest = ring::hmac::sign(&key, value.as_bytes());
        digest.as_ref().iter().take(8).map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    assert_eq!(digits("a=b"), OPENSSL);
    assert_eq!(after["attributes"]["cookie"], digits("a=b"));
    assert_eq!(after["attributes"]["user.id"], digits("1"));
    assert_eq!(after["resource"]["user.id"], digits("17"));
    assert_eq!(after["attributes"]["form"][0]["password"], digits("-5"));
    assert_eq!(after["body"]["password"], digits("0.5"));
    assert_eq!(after["body"]["other"], digits("[{\"password\":-5,\"other\":true},null]"));
}

/// `printf 'a=b' | openssl dgst -sha256 -hmac 'a key' | cut -c1-16`
const OPENSSL: &str = "75b7e618096152e4";

#[test]
fn one_line_feed_at_the_end_of_the_key_file_does_not_belong_to_the_key() {
    let directory = tempfile::tempdir().unwrap();
    let batch = logs();
    let cookie = |key: &[u8]| {
        let text = hash(&directory, "'cookie'", key);
        redacted(&rules(&text), &batch)[0]["attributes"]["cookie"].as_str().unwrap().to_owned()
    };
    assert_eq!(cookie(b"k"), cookie(b"k\n"));
    assert_ne!(cookie(b"k"), cookie(b"k\n\n"));
    assert_ne!(cookie(b"k"), cookie(b" k"));
}

#[test]
fn a_key_that_cannot_be_used_is_an_error_that_names_its_file() {
    let directory = tempfile::tempdir().unwrap();
    let error = |key: &[u8]| {
        let options = read(&hash(&directory, "'a'", key)).unwrap();
        Rules::new(&options).unwrap_err().to_string()
    };
    assert!(error(b"").ends_with("/key: is empty"), "{}", error(b""));
    assert!(error(b"\n").ends_with("/key: is empty"));
    assert!(error(&[b'k'; (64 << 10) + 1]).ends_with("longer than 64 KiB"));
    let missing = read("hash = { attributes = ['a'], key_file = '/nowhere/key' }").unwrap();
    assert!(Rules::new(&missing).unwrap_err().to_string().starts_with("key_file /nowhere/key: "));
}

#[test]
fn rules_with_another_key_are_other_rules() {
    let directory = tempfile::tempdir().unwrap();
    let text = hash(&directory, "'a'", b"first-key");
    let before = rules(&text);
    assert!(before == rules(&text));
    hash(&directory, "'a'", b"second-key");
    assert!(before != rules(&text));
    assert!(!format!("{before:?}").contains("first-key"), "the key is not shown");
}

#[test]
fn a_batch_without_such_keys_is_not_copied() {
    let batch = logs();
    let is_copied = |text: &str| rules(text).redact(Selection::new(&batch, Kinds::ALL)).is_some();
    assert!(!is_copied("remove = ['nothing.*', 'resource:cookie']") && is_copied("remove = ['body.other.password']"));
}

#[test]
fn everything_else_of_every_kind_is_copied_as_it_is() {
    let mut builder = builder("zico", "shop");
    let (trace_id, span_id) = (TraceId([3; 16]), SpanId([4; 8]));
    for number in 0..3_u8 {
        let name = builder.push_text("span \"é\"");
        let mut event = builder.event(header(name, number.into()));
        event.text(semconv::SERVICE_NAME, "a \u{1} b");
        let bytes = event.batch().bytes(&[1, 2, number]);
        let key = event.batch().push_text("raw_base64");
        event.attribute(key, bytes);
        let message = event.batch().push_text("no space left");
        let of_link = event.batch().push_text("of link");
        let attributes = event.batch().members(&[(of_link.into(), Value::U64(number.into()))]);
        let to = Link { trace_id, span_id: SpanId([number; 8]) };
        let link = SpanLink { attributes, ..SpanLink::from(to) };
        let happened = SpanEvent { time: None, name: semconv::ZICO_EXCEPTION.into(), attributes };
        let span = SpanData {
            duration_nanos: Some(5),
            kind: Some(SpanKind::Client),
            status: Status::Error,
            status_message: Some(message),
            ..SpanData::new(trace_id, span_id)
        };
        let trace_state = Some(event.batch().push_text("vendor=user"));
        let extras = SpanExtras { trace_state, flags: number.into(), ..SpanExtras::default() };
        event.span_with_extras(span, extras, &[link][usize::from(number == 1)..], &[happened]);
        let context = TraceContext { trace_id, span_id: Some(span_id) };
        builder.event(header(semconv::ZICO_EXCEPTION, 9)).log_in(context, Severity::Fatal, None);
        let (function, file) = (builder.push_text("f"), builder.push_text("f.rb"));
        let frame = tributary_event::Frame { function: Some(function), file: Some(file), line: Some(3) };
        let data = tributary_event::SampleData::new("cpu", "count", tributary_event::Number::U64(1));
        builder.event(header(semconv::RBKIT_CPU, 9)).sample(data, &[frame, frame]);
        let value = tributary_event::Number::F64(f64::NAN);
        let metric = tributary_event::MetricData {
            metric_type: tributary_event::MetricType::Gauge,
            unit: "By".into(),
            value,
            start: None,
        };
        builder.event(header(semconv::ENDLESS_AGGREGATE, 9)).metric(metric);
        let temporality = Temporality::Delta;
        let counts = [number.into(), 1];
        let form = DistributionForm::Histogram { temporality, bounds: &[0.5], counts: &counts };
        let distribution = Distribution { count: 2, sum: None, min: Some(f64::NAN), max: None, form };
        builder.event(header(semconv::ENDLESS_AGGREGATE, 9)).distribution("By", None, &distribution);
        let loss =
            Loss { reason: Reason::Malformed, bytes: 3, events: Some(1), detail: "what was found", excerpt: &[1, 255] };
        builder.loss(header(semconv::LOSS, 9), loss);
    }
    let batch = builder.take();
    let all = lines(&batch);
    assert_eq!(lines(&batch.copy_of(|_| true)), all);
    let every_second: Vec<_> = all.iter().step_by(2).cloned().collect();
    let copy = batch.copy_of(|index| index % 2 == 0);
    assert_eq!(lines(&copy), every_second);
    assert_eq!((copy.len() as u64, copy.count(tributary_event::Kind::Span)), (9, 3));
    let after = redacted(&rules("remove = ['loss.detail', 'loss.excerpt', 'raw_base64']"), &batch);
    assert_eq!(after[5]["loss"], serde_json::json!({ "reason": "malformed", "bytes": 3, "events": 1 }));
    assert!(after[0]["attributes"].get("raw_base64").is_none() && after[0]["span"] == all[0]["span"]);
    let span = &redacted(&rules("remove = ['of link', 'span.status_message', 'span.trace_state']"), &batch)[0]["span"];
    assert!(all[0]["span"]["events"][0]["attributes"]["of link"].is_number() && all[0]["span"]["kind"] == "client");
    assert!(span["events"][0].get("attributes").is_none() && span.get("status_message").is_none());
    assert!(all[0]["span"]["trace_state"] == "vendor=user" && span.get("trace_state").is_none());
    let only_state = &redacted(&rules("remove = ['span.trace_state']"), &batch)[6]["span"];
    assert!(only_state.get("trace_state").is_none() && only_state["flags"] == 1);
}

#[test]
fn the_address_of_the_peer_is_a_key_too_and_is_hashed_once() {
    let directory = tempfile::tempdir().unwrap();
    let removing = rules("remove = ['origin.peer']");
    assert!(redacted(&removing, &logs())[0]["origin"].get("peer").is_none());
    let hashing = rules(&hash(&directory, "'network.peer.address'", b"k"));
    let first = hashing.redact(Selection::new(&logs(), Kinds::ALL)).unwrap();
    let peer = lines(&first)[0]["origin"]["peer"].as_str().unwrap().to_owned();
    assert_eq!(peer.len(), 16);
    // A loss that a sink reports has the origin of an event that it got.
    assert_eq!(redacted(&hashing, &first)[0]["origin"]["peer"], *peer);
    let mut other = BatchBuilder::new(Arc::new(Origin::new("datadog", "shop".into(), "192.0.2.7:1".into(), 10)));
    other.event(header(semconv::DATADOG_TRACE, 0)).log(Severity::Info, None);
    assert_eq!(redacted(&hashing, &other.take())[0]["origin"]["peer"], *peer, "the port is not hashed");
}

#[test]
fn what_the_listener_adds_to_a_resource_does_not_come_back() {
    let attributes = vec![("host.name".to_owned(), ResourceValue::from("host-7"))];
    let identity = Arc::new(Identity::new(attributes, true));
    let origin = Origin::new("datadog", "shop".into(), "peer".into(), 1).with_identity(Some(identity));
    let mut builder = BatchBuilder::new(Arc::new(origin));
    builder.event(header(semconv::DATADOG_TRACE, 0)).log(Severity::Info, None);
    let batch = builder.take();
    assert_eq!(lines(&batch)[0]["resource"]["host.name"], "host-7");
    assert!(redacted(&rules("remove = ['host.name']"), &batch)[0].get("resource").is_none());
}
