//! Bodies that no SDK sends: nothing panics, every byte is accounted for, and what is refused is refused whole.

use tributary::protocol::otlp::Options;

use crate::offline::{Offline, PROTOBUF};
use crate::{profiles, records};

/// Sends a body; returns whether it was accepted.
fn check(path: &str, body: &[u8]) -> bool {
    let mut offline = Offline::new();
    let answered = offline.ask(path, &[PROTOBUF], body);
    assert!([200, 400, 413].contains(&answered.status), "{}", answered.status);
    let is_accepted = answered.status == 200;
    let losses = answered.events.iter().filter(|event| event["kind"] == "loss").count();
    assert_eq!(losses, usize::from(!is_accepted));
    assert!(is_accepted || answered.events.len() == 1, "nothing of a refused body is written");
    offline.assert_balance();
    is_accepted
}

fn bodies() -> [(&'static str, Vec<u8>); 4] {
    [
        ("/v1/traces", records::traces()),
        ("/v1/logs", records::logs()),
        ("/v1/metrics", records::metrics()),
        (profiles::PATH, profiles::profiles()),
    ]
}

#[test]
fn every_truncation_and_every_flipped_bit_is_a_refusal_or_another_content() {
    for (path, body) in bodies() {
        for end in 1..body.len() {
            // A request has one field: any cut is inside it.
            assert!(!check(path, &body[..end]), "{path} cut at {end}");
        }
        for bit in 0..body.len() * 8 {
            let mut body = body.clone();
            body[bit / 8] ^= 1 << (bit % 8);
            check(path, &body);
        }
    }
}

/// A message that contains another one, this many times.
fn nested(path: &[u8], times: usize, mut inner: Vec<u8>) -> Vec<u8> {
    for number in (0..times).rev() {
        let mut outer = vec![path[number % path.len()] << 3 | 2];
        let mut length = inner.len();
        while length >= 0x80 {
            outer.push(length as u8 | 0x80);
            length >>= 7;
        }
        outer.push(length as u8);
        outer.extend_from_slice(&inner);
        inner = outer;
    }
    inner
}

/// A request with an attribute of a span whose value is this.
fn with_value(value: Vec<u8>) -> Vec<u8> {
    let member = [&[0x0A, 1, b'k'][..], &nested(&[2], 1, value)].concat();
    nested(&[1, 2, 2, 9], 4, member)
}

#[test]
fn values_are_nested_to_a_limit() {
    // A value that is an array of a value, and so on: two messages a level.
    assert!(check("/v1/traces", &with_value(nested(&[5, 1], 80, vec![0x10, 1]))));
    assert!(!check("/v1/traces", &with_value(nested(&[5, 1], 120, vec![0x10, 1]))));
    assert!(!check("/v1/traces", &with_value(nested(&[5, 1], 20_000, vec![0x10, 1]))));
    // Fields that are not known are not read.
    assert!(check("/v1/traces", &nested(&[15], 20_000, vec![0x10, 1])));
}

#[test]
fn a_field_of_another_type_is_refused_with_its_name_and_place() {
    for (body, words) in [
        (with_value(vec![0x08, 1]), "at 13: stringValue: found 0x00, expected a text"),
        (nested(&[1, 2, 2], 3, vec![0x0A, 3, 1, 2, 3]), "at 6: traceId: found 0x03, expected 16 bytes or none"),
        (nested(&[1, 2, 2], 3, vec![0x39, 1, 2, 3, 4, 5, 6, 7]), "at 6: Span: found 0x39"),
        (vec![0x00, 1], "at 0: ExportTraceServiceRequest: found 0x00, expected a field with a number above 0"),
        (vec![0x0B], "at 0: ExportTraceServiceRequest: found 0x0b"),
    ] {
        let answered = Offline::new().ask("/v1/traces", &[PROTOBUF], &body);
        assert_eq!(answered.status, 400);
        let detail = answered.events[0]["loss"]["detail"].as_str().unwrap();
        assert!(detail.starts_with(words), "{detail}");
    }
}

#[test]
fn what_is_not_otlp_and_what_is_too_large_is_refused() {
    let ask = |path: &str, headers: &[(&str, &str)], body: &[u8]| {
        let options = Options { max_inflated_bytes: 4096, ..Options::default() };
        let mut offline = Offline::with(options);
        let status = offline.ask(path, headers, body).status;
        offline.assert_balance();
        status
    };
    assert_eq!(ask("/v1/spans", &[PROTOBUF], b""), 404);
    assert_eq!(ask("/v1/traces", &[], b""), 415);
    assert_eq!(ask("/v1/traces", &[("content-type", "text/plain")], b""), 415);
    assert_eq!(ask("/v1/traces", &[PROTOBUF, ("content-encoding", "br")], b"x"), 415);
    assert_eq!(ask("/v1/traces", &[PROTOBUF, ("content-encoding", "gzip")], b"x"), 400);
    assert_eq!(ask("/v1/traces", &[PROTOBUF], b""), 200, "an empty request is a request");
    let zstd = zstd::encode_all([0; 5000].as_slice(), 3).unwrap();
    assert_eq!(ask("/v1/traces", &[PROTOBUF, ("content-encoding", "zstd")], &zstd), 413);
    let path = "/opentelemetry.proto.collector.logs.v1.LogsService/Export";
    for frame in [&b""[..], b"\0\0\0\0", b"\0\0\0\0\x01", b"\x02\0\0\0\0", b"\0\0\0\0\0\0", b"\x01\0\0\0\0"] {
        let answered = Offline::new().ask(path, &[("content-type", "application/grpc")], frame);
        assert_eq!((answered.status, answered.grpc_status.as_deref()), (200, Some("3")), "{frame:?}");
    }
}

#[test]
fn texts_that_are_no_utf8_are_repaired_and_long_ones_and_many_attributes_are_cut() {
    let attribute = |key: &[u8], text: &[u8]| {
        let value = nested(&[2, 1], 2, text.to_vec());
        nested(&[9], 1, [&[0x0A, key.len() as u8][..], key, &value].concat())
    };
    let attributes = [attribute(b"a", b"x\xFFy"), attribute(b"b\xFE", &[b'z'; 40]), attribute(b"c", b"d")].concat();
    let options = Options { max_text_bytes: 16, max_attributes: 2, ..Options::default() };
    let answered = Offline::with(options).ask("/v1/traces", &[PROTOBUF], &nested(&[1, 2, 2], 3, attributes));
    let expected = serde_json::json!({
        "a": "x\u{FFFD}y",
        "b\\xfe": "z".repeat(16),
        "tributary.text.repaired": true,
        "tributary.text.truncated": true,
    });
    assert_eq!(answered.events[0]["attributes"], expected);
    assert_eq!(answered.events[0]["span"]["dropped"], serde_json::json!({ "attributes": 1 }));
}
