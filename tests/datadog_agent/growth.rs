//! Work grows with the bytes received, whatever they are.

use crate::growth_support::{Case, assert_linear, requests};
use tributary::memory::MemoryBudget;
use tributary::protocol::datadog_agent::{DatadogAgentExchange, Options};
use tributary::protocol::{Protocol, RequestHead};

fn case(name: &'static str, path: &'static str, size: usize, attack: fn(usize) -> Vec<u8>) -> Case {
    Case::new(name, size as u64, move |size| {
        let form = ("content-type".to_owned(), b"multipart/form-data; boundary=b".to_vec());
        let head = RequestHead { method: "PUT".to_owned(), target: path.to_owned(), headers: vec![form] };
        let bodies = [(head, attack(size as usize))];
        let exchange = DatadogAgentExchange::new(Options::default(), &MemoryBudget::unlimited());
        move || {
            let statuses = requests(&exchange, Protocol::DatadogAgent, &bodies);
            assert!(statuses.iter().all(|status| [200, 400].contains(status)), "{statuses:?}");
        }
    })
}

fn array(count: usize) -> Vec<u8> {
    [&[0xDD][..], &(count as u32).to_be_bytes()].concat()
}

fn map(count: usize) -> Vec<u8> {
    [&[0xDF][..], &(count as u32).to_be_bytes()].concat()
}

/// A body of version 0.4 with one span, whose `meta` has these bytes.
fn meta(count: usize, content: Vec<u8>) -> Vec<u8> {
    [&[0x91, 0x91, 0x81, 0xA4][..], b"meta", &map(count), &content].concat()
}

/// A form with a profile.
fn form(profile: &[u8]) -> Vec<u8> {
    let head = "--b\r\ncontent-disposition: form-data; name=\"a.pprof\"; filename=\"a.pprof\"\r\n\r\n";
    [head.as_bytes(), profile, b"\r\n--b--\r\n"].concat()
}

/// A field of a message of Protocol Buffers.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len();
    let varint = [length as u8 & 0x7F | 0x80, (length >> 7) as u8 & 0x7F | 0x80, (length >> 14) as u8];
    [&[number << 3 | 2][..], &varint, content].concat()
}

#[test]
fn twice_the_bytes_are_at_most_two_and_a_half_times_the_work() {
    assert_linear(
        twice_the_bytes_are_at_most_two_and_a_half_times_the_work,
        &[
            case("empty chunks", "/v0.4/traces", 20_000, |size| [array(size), vec![0x90; size]].concat()),
            case("empty spans", "/v0.4/traces", 20_000, |size| [vec![0x91], array(size), vec![0x80; size]].concat()),
            case("chunks of an empty span", "/v0.4/traces", 20_000, |size| {
                [array(size / 2), [0x91, 0x80].repeat(size / 2)].concat()
            }),
            case("tags with one key", "/v0.4/traces", 8_000, |size| meta(size, [0xA1, b'k', 0xA1, b'v'].repeat(size))),
            case("tags with different keys", "/v0.4/traces", 4_000, |size| {
                let tags =
                    (0..size).flat_map(|number| [&[0xA6][..], format!("{number:06}").as_bytes(), &[0xA0]].concat());
                meta(size, tags.collect())
            }),
            case("nested values that are skipped", "/v0.4/traces", 20_000, |size| {
                [
                    &[0x91, 0x91, 0x81, 0xA1, b'x'][..],
                    &array(size / 31),
                    &[&[0x91; 30][..], &[0xC0]].concat().repeat(size / 31),
                ]
                .concat()
            }),
            case("strings of a table that no span names", "/v0.5/traces", 20_000, |size| {
                [&[0x92][..], &array(size), &vec![0xA0; size], &[0x90]].concat()
            }),
            case("spans that name a long string", "/v0.5/traces", 1_000, |size| {
                let text = [&[0xDB][..], &500u32.to_be_bytes(), &[b'x'; 500]].concat();
                let span = [&[0x9C][..], &[0; 9], &[0x80, 0x80, 0]].concat();
                [&[0x92, 0x91][..], &text, &[0x91], &array(size), &span.repeat(size)].concat()
            }),
            case("parts of a form", "/profiling/v1/input", 60_000, |size| {
                [b"--b\r\n\r\n\r\n\r\n".repeat(size / 12), b"--b--".to_vec()].concat()
            }),
            case("boundaries that are none", "/profiling/v1/input", 60_000, |size| form(&b"\r\n--".repeat(size / 4))),
            case("samples without a value", "/profiling/v1/input", 60_000, |size| form(&[0x12, 0].repeat(size / 2))),
            case("a sample with many labels", "/profiling/v1/input", 30_000, |size| {
                let labels = [0x1A, 2, 0x08, 1].repeat(size / 4);
                let sample = [&[0x12, 1, 7][..], &labels].concat();
                let all = [&[0x0A, 0][..], &field(2, &sample), &[0x32, 0, 0x32, 1, b'k']].concat();
                form(&all)
            }),
            case("stacks of a location with many lines", "/profiling/v1/input", 20_000, |size| {
                let location = [&[0x08, 1][..], &[0x22, 2, 0x08, 1].repeat(size / 8)].concat();
                let samples = [0x12, 6, 0x0A, 1, 1, 0x12, 1, 1].repeat(size / 64);
                let function = [0x2A, 4, 0x08, 1, 0x10, 1];
                let strings = [0x32, 0, 0x32, 1, b'f'];
                form(&[&[0x0A, 0][..], &samples, &field(4, &location), &function, &strings].concat())
            }),
            case("series of different names", "/dogstatsd/v2/proxy", 20_000, |size| {
                (0..size / 10).flat_map(|number| format!("{number:06}:1|c\n").into_bytes()).collect()
            }),
            case("tags with one key", "/dogstatsd/v2/proxy", 20_000, |size| {
                let tags = (0..size / 9).map(|number| format!(",a:{number:06}")).collect::<String>();
                format!("a:1|c|#{tags}").into_bytes()
            }),
            case("values of a distribution", "/dogstatsd/v2/proxy", 60_000, |size| {
                [b"a".to_vec(), b":1".repeat(size / 2), b"|d".to_vec()].concat()
            }),
            case("bad lines", "/dogstatsd/v2/proxy", 20_000, |size| b"x\n".repeat(size / 2)),
            case("nested attributes", "/v1.0/traces", 1_000, |size| {
                // [6, [6, [ … ]]], 30 deep.
                let value = [&[0x06, 0x92].repeat(30)[..], &[0x01, 0xA0]].concat();
                let attribute = [&[0xA1, b'k'][..], &value].concat();
                let attributes = [&array(size * 3)[..], &attribute.repeat(size)].concat();
                [&[0x81, 0x0B, 0x91, 0x81, 0x04, 0x91, 0x81, 0x09][..], &attributes].concat()
            }),
        ],
    );
}
