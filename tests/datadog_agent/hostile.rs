//! Bodies that no tracer sends: nothing panics, every byte is accounted for, and what is refused is refused whole.

use crate::offline::{Offline, recorded};

/// Sends a body; returns whether it was accepted.
fn check(path: &str, body: &[u8]) -> bool {
    let mut offline = Offline::new();
    let answered = offline.ask(path, &[("content-type", "application/msgpack")], body);
    assert!([200, 400].contains(&answered.status), "{}", answered.body);
    let is_accepted = answered.status == 200;
    assert_eq!(answered.events.iter().any(|event| event["kind"] == "loss"), !is_accepted);
    assert!(is_accepted || answered.spans().is_empty(), "nothing of a refused body is written");
    offline.assert_balance();
    is_accepted
}

#[test]
fn every_truncation_is_refused() {
    for case in recorded().iter().filter(|case| !case.is_malformed && case.body.len() < 9_000) {
        for end in 0..case.body.len() {
            assert!(!check(&case.path, &case.body[..end]), "{} cut at {end}", case.name);
        }
    }
}

#[test]
fn a_flipped_bit_is_a_refusal_or_another_content() {
    for case in recorded().iter().filter(|case| !case.is_malformed) {
        for bit in (0..case.body.len() * 8).step_by(37) {
            let mut body = case.body.clone();
            body[bit / 8] ^= 1 << (bit % 8);
            check(&case.path, &body);
        }
    }
}

#[test]
fn a_body_of_one_version_at_the_path_of_another_is_refused() {
    const PATHS: [&str; 5] = ["/spans", "/v0.4/traces", "/v0.5/traces", "/v0.7/traces", "/v1.0/traces"];
    let group = |path: &str| if path == "/v0.3/traces" { "/v0.4/traces".to_owned() } else { path.to_owned() };
    for case in recorded().iter().filter(|case| !case.is_malformed) {
        for path in PATHS {
            assert_eq!(check(path, &case.body), group(&case.path) == path, "{} at {path}", case.name);
        }
    }
}

#[test]
fn spans_whose_ids_are_zero_or_differ_are_kept_with_a_warning() {
    let body = r#"[[{"name":"a","trace_id":7,"span_id":1},{"trace_id":8,"span_id":0,"parent_id":null,"meta":{"_dd.p.tid":"x"}}]]"#;
    let answered = Offline::new().ask("/v0.4/traces", &[("content-type", "application/json")], body.as_bytes());
    let [first, second] = answered.events.as_slice() else { panic!("{answered:?}") };
    assert!(first["attributes"].get("datadog.warnings").is_none() && first["time"].is_null());
    assert_eq!(second["name"], "datadog.span");
    let warnings = serde_json::json!(["span_id_zero", "trace_id_differs", "trace_id_high_invalid"]);
    assert_eq!(second["attributes"]["datadog.warnings"], warnings);
    assert_eq!(second["attributes"]["_dd.p.tid"], "x");
}

#[test]
fn repeated_and_reserved_keys_do_not_repeat_in_an_event() {
    let body = br#"[[{"name":"a","trace_id":7,"span_id":1,"meta":{"a":"1","a":"2","n":"x","datadog.type":"y"},"metrics":{"n":3}}]]"#;
    let answered = Offline::new().ask("/v0.4/traces", &[("content-type", "application/json")], body);
    let expected = serde_json::json!({ "a": "2", "n": "x", "datadog.metric.n": 3, "datadog.meta.datadog.type": "y" });
    assert_eq!(answered.events[0]["attributes"], expected);
}

#[test]
fn values_that_are_messagepack_are_what_it_says_and_others_are_base64() {
    // meta: {"a": "1", "c_base64": "2"}, metrics: {"a": 3}, meta_struct: {"a": {"x": 1}, "b": 2 bytes, "c": 1 byte that is cut}
    let meta = [&[0xA4][..], b"meta", &[0x82, 0xA1], b"a", &[0xA1], b"1", &[0xA8], b"c_base64", &[0xA1], b"2"].concat();
    let metrics = [&[0xA7][..], b"metrics", &[0x81, 0xA1], b"a", &[3]].concat();
    let structs = [
        &[0xAB][..],
        b"meta_struct",
        &[0x83, 0xA1],
        b"a",
        &[0xC4, 4, 0x81, 0xA1, b'x', 1, 0xA1],
        b"b",
        &[0xC4, 2, 0xC3, 0xC3, 0xA1],
        b"c",
        &[0xC4, 1, 0x92],
    ]
    .concat();
    let body = [&[0x91, 0x91, 0x83][..], &meta, &metrics, &structs].concat();
    let answered = Offline::new().ask("/v0.4/traces", &[], &body);
    assert_eq!(answered.status, 200, "{}", answered.body);
    let attributes = answered.events[0]["attributes"].as_object().unwrap();
    let expected = serde_json::json!({
        "a": "1",
        "c_base64": "2",
        "datadog.metric.a": 3,
        "datadog.meta_struct.a": { "x": 1 },
        "b_base64": "w8M=",
        "datadog.meta_struct.c_base64": "kg==",
        "datadog.warnings": ["trace_id_zero", "span_id_zero"],
    });
    assert_eq!(attributes, expected.as_object().unwrap());
}

#[test]
fn keys_that_are_no_utf8_stay_different() {
    let meta =
        [&[0x91, 0x91, 0x81, 0xA4][..], b"meta", &[0x82, 0xA1, 0xFF, 0xA1], b"1", &[0xA1, 0xFE, 0xA1], b"2"].concat();
    let answered = Offline::new().ask("/v0.4/traces", &[], &meta);
    assert_eq!(
        (&answered.events[0]["attributes"]["\\xff"], &answered.events[0]["attributes"]["\\xfe"]),
        (&"1".into(), &"2".into())
    );
}

#[test]
fn json_of_an_old_client_is_read_and_what_is_no_json_is_refused() {
    let json = [("content-type", "application/json; charset=utf-8")];
    let flat = br#"[{"name":"a","trace_id":1,"span_id":2},{"name":"b","trace_id":3,"span_id":4}]"#;
    let answered = Offline::new().ask("/v0.1/spans", &json, flat);
    assert_eq!((answered.status, answered.body.as_str(), answered.spans().len()), (200, "OK", 2));
    assert!(answered.events.iter().all(|event| event["attributes"].get("datadog.warnings").is_none()));
    for body in [&b"{"[..], b"[[{}]] x", b"[[1]]", &[b'['; 5000]] {
        assert_eq!(Offline::new().ask("/v0.4/traces", &json, body).status, 400);
    }
    assert_eq!(Offline::new().ask("/v0.5/traces", &json, b"[]").status, 400);
}

#[test]
fn attributes_of_a_chunk_and_of_the_payload_are_on_each_span_once() {
    let tags = |pairs: &[(&str, &str)]| {
        let text = |text: &str| [&[0xA0 | text.len() as u8][..], text.as_bytes()].concat();
        let all = pairs.iter().flat_map(|(key, value)| [text(key), text(value)].concat()).collect::<Vec<_>>();
        [&[0xA4][..], b"tags", &[0x80 | pairs.len() as u8], &all].concat()
    };
    let span = [&[0x81, 0xA4][..], b"meta", &[0x81, 0xA1], b"s", &[0xA1], b"1"].concat();
    let chunk = [&[0x82][..], &tags(&[("c", "1"), ("c", "2"), ("p", "3")]), &[0xA5], b"spans", &[0x92], &span, &[0x80]]
        .concat();
    let body =
        [&[0x82][..], &tags(&[("p", "1"), ("s", "2"), ("q", "4"), ("q", "5")]), &[0xA6], b"chunks", &[0x91], &chunk]
            .concat();
    let answered = Offline::new().ask("/v0.7/traces", &[], &body);
    assert_eq!(answered.status, 200, "{}", answered.body);
    let attributes = |index: usize| {
        let mut attributes = answered.events[index]["attributes"].clone();
        attributes.as_object_mut().unwrap().remove("datadog.warnings");
        attributes
    };
    assert_eq!(attributes(0), serde_json::json!({ "s": "1", "p": "3", "q": "5", "c": "2" }));
    assert_eq!(attributes(1), serde_json::json!({ "p": "3", "s": "2", "q": "5", "c": "2" }));
}
