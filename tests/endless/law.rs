//! Damaged bundles: no panic, and every byte is decoded or lost.

use std::io::Write;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use crate::endless_support::http::sha512;
use crate::endless_support::{Case, cases};
use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::Value;
use tributary::decode;
use tributary::event::{Origin, UnixNanos};
use tributary::memory::MemoryBudget;
use tributary::pipeline::accounting::{ListenerCounters, ListenerTotals};
use tributary::protocol::endless::{Dedup, EndlessExchange, Options};
use tributary::protocol::{Now, Protocol, Request, RequestHead};
use tributary::sink::encode::{Encoder, Format};

static CASES: LazyLock<Vec<Case>> =
    LazyLock::new(|| cases().into_iter().filter(|case| case.body.len() < 8192).collect());

fn now() -> Now {
    Now { unix: UnixNanos(1_795_176_900_000_000_000), elapsed: Duration::from_secs(1) }
}

/// Uploads a body; checks that its bytes add up and that every line is JSON.
fn put(exchange: &EndlessExchange, target: String, headers: &[(&str, &str)], body: Vec<u8>) -> (u16, ListenerTotals) {
    let counters = ListenerCounters::new("test".into(), Protocol::Endless);
    let origin = Arc::new(Origin::new("endless", "test".into(), "test".into(), 1));
    let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec())).collect();
    let head = RequestHead { method: "PUT".into(), target, headers };
    let request = Request { head, body: body.into(), number: 1 };
    let mut encoder = Encoder::new(Format::Json);
    let mut lines = Vec::new();
    let mut lost = 0;
    let (response, _) = decode::answer(exchange, request, origin, &counters, now(), &mut |batch| {
        batch.events().for_each(|event| encoder.encode(event, &mut lines));
    });
    for line in std::str::from_utf8(&lines).unwrap().lines() {
        let event: Value = serde_json::from_str(line).unwrap();
        lost += event["loss"]["bytes"].as_u64().unwrap_or(0);
    }
    let totals = counters.totals();
    assert_eq!(totals.buffered(), 0, "decoded + lost = received");
    assert_eq!(totals.lost(), lost, "the losses tell what the counters say");
    (response.status, totals)
}

fn exchange() -> EndlessExchange {
    let options = Options { dedup: Dedup { entries: 0, ..Dedup::default() }, ..Options::default() };
    EndlessExchange::new(options, &MemoryBudget::new(256 << 20))
}

fn plain(exchange: &EndlessExchange, version: u64, body: &[u8]) -> (u16, ListenerTotals) {
    put(exchange, format!("/{version}/{}", sha512(body)), &[], body.to_vec())
}

#[test]
fn every_truncation_of_every_bundle_is_accounted_for() {
    let exchange = exchange();
    for case in CASES.iter().filter(|case| case.body.len() < 700) {
        for end in 1..case.body.len() {
            let (status, totals) = plain(&exchange, case.version(), &case.body[..end]);
            assert_eq!(status, 200, "{} {end}", case.name);
            assert_eq!(totals.bytes_in, end as u64);
        }
    }
}

/// Every bit of the smallest bundle, and two of each byte of the others, all bits in turn.
#[test]
fn flipped_bits_of_some_bundles_are_a_loss_or_change_a_value() {
    let exchange = exchange();
    for (name, bits) in [("v3-base", 8), ("v2-mixed", 2), ("v0-mixed", 2), ("v3-mixed", 2)] {
        let case = CASES.iter().find(|case| case.name == name).unwrap();
        for (byte, bit) in (0..case.body.len()).flat_map(|byte| (0..bits).map(move |bit| (byte, bit))) {
            let mut body = case.body.clone();
            body[byte] ^= 1 << ((byte + bit * 8 / bits) % 8);
            assert_eq!(plain(&exchange, case.version(), &body).0, 200, "{name}: byte {byte}, bit {bit}");
        }
    }
}

#[test]
fn every_truncation_of_a_compressed_body_is_a_400() {
    let exchange = exchange();
    let case = CASES.iter().find(|case| case.name == "v3-mixed").unwrap();
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(&case.body).unwrap();
    let body = encoder.finish().unwrap();
    let target = format!("/3/{}", sha512(&case.body));
    for end in 0..=body.len() {
        let headers = [("content-encoding", "gzip")];
        let (status, totals) = put(&exchange, target.clone(), &headers, body[..end].to_vec());
        assert_eq!(status, if end == body.len() { 200 } else { 400 }, "{end}");
        assert_eq!(totals.bytes_in, if status == 200 { case.body.len() } else { end } as u64);
    }
}

#[derive(Clone, Debug)]
enum Mutation {
    Flip(Index, u8),
    Set(Index, u8),
    Truncate(Index),
    Insert(Index, Vec<u8>),
    Delete(Index, usize),
    Repeat(Index, usize),
}

impl Mutation {
    fn apply(&self, bytes: &mut Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        let part = |at: usize, length: usize| at..(at + length).min(bytes.len());
        match self {
            Mutation::Flip(index, mask) => *index.get_mut(bytes) ^= mask,
            Mutation::Set(index, value) => *index.get_mut(bytes) = *value,
            Mutation::Truncate(index) => bytes.truncate(index.index(bytes.len()) + 1),
            Mutation::Insert(index, more) => {
                let at = index.index(bytes.len());
                bytes.splice(at..at, more.iter().copied());
            }
            Mutation::Delete(index, length) => {
                bytes.drain(part(index.index(bytes.len()), *length));
            }
            Mutation::Repeat(index, length) => {
                let at = index.index(bytes.len());
                let again = bytes[part(at, *length)].to_vec();
                bytes.splice(at..at, again);
            }
        }
    }
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let index = any::<Index>;
    prop_oneof![
        4 => (index(), 1u8..).prop_map(|(at, mask)| Mutation::Flip(at, mask)),
        2 => (index(), any::<u8>()).prop_map(|(at, value)| Mutation::Set(at, value)),
        1 => index().prop_map(Mutation::Truncate),
        1 => (index(), prop::collection::vec(any::<u8>(), 1..20)).prop_map(|(at, more)| Mutation::Insert(at, more)),
        1 => (index(), 1usize..20).prop_map(|(at, length)| Mutation::Delete(at, length)),
        1 => (index(), 1usize..200).prop_map(|(at, length)| Mutation::Repeat(at, length)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_becomes_of_a_bundle_its_bytes_add_up(
        which in any::<Index>(),
        version in prop_oneof![4 => Just(None), 1 => (0u64..4).prop_map(Some)],
        mutations in prop::collection::vec(mutation(), 0..6),
    ) {
        let case = which.get(&CASES);
        let mut body = case.body.clone();
        mutations.iter().for_each(|mutation| mutation.apply(&mut body));
        let (status, totals) = plain(&exchange(), version.unwrap_or(case.version()), &body);
        prop_assert!(status == 200 || body.is_empty());
        prop_assert_eq!(totals.bytes_in, body.len() as u64);
    }

    #[test]
    fn whatever_becomes_of_a_compressed_body_its_bytes_add_up(
        which in any::<Index>(),
        mutations in prop::collection::vec(mutation(), 0..4),
        chunk in 1u64..5000,
    ) {
        let case = which.get(&CASES);
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(&case.body).unwrap();
        let mut body = encoder.finish().unwrap();
        mutations.iter().for_each(|mutation| mutation.apply(&mut body));
        let options = Options { max_inflated_bytes: 1024 + chunk, max_payload_bytes: 1024, ..Options::default() };
        let exchange = EndlessExchange::new(options, &MemoryBudget::new(256 << 20));
        let target = format!("/{}/{}", case.version(), sha512(&case.body));
        let (status, _) = put(&exchange, target, &[("x-endless-content-encoding", "gzip")], body);
        prop_assert!([200, 400, 413].contains(&status), "{}", status);
    }
}
