//! Work grows with the bytes received, whatever they are.

use crate::growth_support::{Case, assert_linear, requests};
use crate::profiles;
use tributary::memory::MemoryBudget;
use tributary::protocol::otlp::{Options, OtlpExchange};
use tributary::protocol::{Protocol, RequestHead};

fn case(name: &'static str, path: &'static str, size: usize, attack: fn(usize) -> Vec<u8>) -> Case {
    Case::new(name, size as u64, move |size| {
        let body = attack(size as usize);
        let of: &[u8] = if body.first() == Some(&b'{') { b"application/json" } else { b"application/x-protobuf" };
        let headers = vec![("content-type".to_owned(), of.to_vec())];
        let head = RequestHead { method: "POST".to_owned(), target: path.to_owned(), headers };
        let bodies = [(head, body)];
        let exchange = OtlpExchange::new(Options::default(), &MemoryBudget::unlimited());
        move || {
            let statuses = requests(&exchange, Protocol::Otlp, &bodies);
            assert!(statuses.iter().all(|status| [200, 400, 413].contains(status)), "{statuses:?}");
        }
    })
}

/// A field with a length of three bytes.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len();
    let varint = [length as u8 & 0x7F | 0x80, (length >> 7) as u8 & 0x7F | 0x80, (length >> 14) as u8];
    [&[number << 3 | 2][..], &varint, content].concat()
}

/// A request whose span has this content.
fn span(content: &[u8]) -> Vec<u8> {
    field(1, &field(2, &field(2, content)))
}

/// A sample with one value whose field with this number is an index.
fn sample(number: u8, index: usize) -> [u8; 8] {
    [0x12, 6, number << 3, index as u8 & 0x7F | 0x80, (index >> 7) as u8, 0x22, 1, 1]
}

/// A dictionary with these tables, each behind its empty entry.
fn tables(content: &[u8]) -> Vec<u8> {
    [&[0x12, 0, 0x3A, 0][..], content].concat()
}

#[test]
fn twice_the_bytes_are_at_most_two_and_a_half_times_the_work() {
    assert_linear(
        twice_the_bytes_are_at_most_two_and_a_half_times_the_work,
        &[
            case("empty resources", "/v1/traces", 40_000, |size| [0x0A, 0].repeat(size / 2)),
            case("empty scopes", "/v1/traces", 40_000, |size| field(1, &[0x12, 0].repeat(size / 2))),
            case("empty spans", "/v1/traces", 20_000, |size| field(1, &field(2, &[0x12, 0].repeat(size / 2)))),
            case("scopes behind their spans", "/v1/traces", 20_000, |size| {
                field(1, &[[0x12, 2, 0x12, 0].repeat(size / 4), field(1, b"")].concat())
            }),
            case("resources with a scope behind each other", "/v1/logs", 20_000, |size| {
                [0x0A, 6, 0x12, 4, 0x12, 2, 0x10, 9].repeat(size / 8)
            }),
            case("unknown fields", "/v1/traces", 40_000, |size| span(&[0xA0, 6, 1].repeat(size / 3))),
            case("attributes with one key", "/v1/traces", 20_000, |size| {
                span(&[0x4A, 3, 0x0A, 1, b'k'].repeat(size / 5))
            }),
            case("attributes with different keys", "/v1/traces", 20_000, |size| {
                let one = |number| {
                    [&[0x4A, 12, 0x0A, 6][..], format!("{number:06}").as_bytes(), &[0x12, 2, 0x10, 1]].concat()
                };
                span(&(0..size / 14).flat_map(one).collect::<Vec<_>>())
            }),
            case("maps with different keys", "/v1/traces", 20_000, |size| {
                let one = |number| [&[0x0A, 8, 0x0A, 6][..], format!("{number:06}").as_bytes()].concat();
                let map = field(6, &(0..size / 10).flat_map(one).collect::<Vec<_>>());
                span(&field(9, &field(2, &map)))
            }),
            case("a value with many fields", "/v1/traces", 40_000, |size| {
                span(&field(9, &field(2, &[0x10, 1].repeat(size / 2))))
            }),
            case("links and events", "/v1/traces", 20_000, |size| span(&[0x5A, 0, 0x6A, 0].repeat(size / 4))),
            case("metrics without points", "/v1/metrics", 20_000, |size| {
                field(1, &field(2, &[0x12, 0].repeat(size / 2)))
            }),
            case("points without a value", "/v1/metrics", 20_000, |size| {
                field(1, &field(2, &field(2, &field(5, &[0x0A, 0].repeat(size / 2)))))
            }),
            case("points of a metric with a long name", "/v1/metrics", 10_000, |size| {
                let points = [0x0A, 9, 0x21, 0, 0, 0, 0, 0, 0, 0, 0].repeat(size / 11);
                let metric = [field(1, &[b'n'; 500]), field(5, &points)];
                field(1, &field(2, &field(2, &metric.concat())))
            }),
            case("samples of one deep stack", profiles::PATH, 10_000, |size| {
                let samples = [0x12, 5, 8, 1, 0x22, 1, 1].repeat(size / 7);
                let stack = [vec![0x12, 0], field(7, &field(1, &vec![1; size / 4]))].concat();
                [field(1, &field(2, &field(2, &samples))), field(2, &tables(&stack))].concat()
            }),
            case("stacks of one location with many lines", profiles::PATH, 10_000, |size| {
                let samples: Vec<_> = (0..size / 14).flat_map(|number| sample(1, number + 1)).collect();
                let location = field(2, &[0x1A, 0].repeat(size / 8));
                let stacks = [0x3A, 3, 0x0A, 1, 1].repeat(size / 10);
                [field(1, &field(2, &field(2, &samples))), field(2, &tables(&[location, stacks].concat()))].concat()
            }),
            case("attributes with one long text", profiles::PATH, 10_000, |size| {
                let samples: Vec<_> = (0..size / 14).flat_map(|number| sample(2, number + 1)).collect();
                let text = field(5, &[b'x'; 1000]);
                let attributes = [0x32, 6, 8, 1, 0x12, 2, 0x40, 1].repeat(size / 14);
                let tables = [vec![0x2A, 0, 0x32, 0], text, attributes].concat();
                [field(1, &field(2, &field(2, &samples))), field(2, &tables)].concat()
            }),
            case("empty samples", profiles::PATH, 40_000, |size| {
                field(1, &field(2, &field(2, &[0x12, 0].repeat(size / 2))))
            }),
            case("profiles with many attributes", profiles::PATH, 10_000, |size| {
                let of_profile = field(11, &vec![0; size / 4]);
                let samples = [0x12, 3, 0x22, 1, 1].repeat(size / 40);
                field(1, &field(2, &field(2, &[of_profile, samples].concat())))
            }),
            case("empty objects", "/v1/traces", 20_000, |size| {
                let spans = "{},".repeat(size / 3);
                format!(r#"{{"resourceSpans":[{{"scopeSpans":[{{"spans":[{spans}{{}}]}}]}}]}}"#).into_bytes()
            }),
            case("unknown members", "/v1/traces", 20_000, |size| {
                let members = r#""x":[{}],"#.repeat(size / 9);
                format!(r#"{{{members}"resourceSpans":[]}}"#).into_bytes()
            }),
            case("a text with escapes", "/v1/traces", 20_000, |size| {
                let text = r"\u00e9".repeat(size / 6);
                format!(r#"{{"resourceSpans":[{{"schemaUrl":"{text}"}}]}}"#).into_bytes()
            }),
        ],
    );
}
