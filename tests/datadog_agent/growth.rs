//! Work grows with the bytes received, whatever they are.

use crate::growth_support::{Case, assert_linear, requests};
use tributary::memory::MemoryBudget;
use tributary::protocol::datadog_agent::{DatadogAgentExchange, Options};
use tributary::protocol::{Protocol, RequestHead};

fn case(name: &'static str, path: &'static str, size: usize, attack: fn(usize) -> Vec<u8>) -> Case {
    Case::new(name, size as u64, move |size| {
        let head = RequestHead { method: "PUT".to_owned(), target: path.to_owned(), headers: Vec::new() };
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
