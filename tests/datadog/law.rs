//! For any input, cut anywhere and ended at any time: every byte is decoded or reported as lost, every owner object becomes one
//! event, and every event is a line that a strict parser accepts.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;

use crate::hostile_support::wire::{self, walk};
use crate::hostile_support::{Driven, Finished, raw};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::Value;
use tributary::event::Reason;
use tributary::memory::MemoryBudget;
use tributary::protocol::End;
use tributary::protocol::datadog::{ListLayout, Options};
use tributary::simulate::datadog::{DatadogDialect, Tracer};

/// The wire bytes of every recorded case.
static CAPTURES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/datadog");
    let manifest: Value = serde_json::from_str(&fs::read_to_string(data.join("manifest.json")).unwrap()).unwrap();
    let cases = manifest["cases"].as_array().unwrap().iter();
    let wires = cases.map(|case| fs::read(data.join(case["wire"].as_str().unwrap())).unwrap());
    wires.filter(|wire| wire.len() <= 64 * 1024).collect()
});

/// Texts that could be confused with keys, names and our own attributes.
const TEXTS: [&[u8]; 20] = [
    b"",
    b"a",
    b"ab",
    b"service.name",
    b"trace_id",
    b"span_id",
    b"datadog.type",
    b"datadog.meta.0000000000000003",
    b"datadog.metric.0000000000000003",
    b"tributary.text.repaired",
    b"0000000000000001",
    b"0000000000000002",
    b"0000000000000003",
    b"0000000000000004",
    b"not \xff\xfe utf-8 \xe2\x82",
    "mehrbytig \u{20ac}\u{1f600}\u{20ac}\u{1f600}\u{20ac}\u{1f600}\u{20ac}\u{1f600}".as_bytes(),
    b"quotes \" backslash \\ line\nfeed \x00 zero",
    b"a key of more than two dozen bytes",
    b"a key of more than two dozen bytes, and one that differs after them",
    &[b'x'; 300],
];

/// A stream, and how it is fed.
#[derive(Clone, Debug)]
struct Case {
    bytes: Vec<u8>,
    cuts: Vec<Index>,
    /// Milliseconds that pass after each piece.
    pauses: Vec<u16>,
    end: End,
    options: Options,
    max_message: u64,
    memory: u64,
    emit_definitions: bool,
}

/// One object with few ids and few texts, so that objects refer to each other.
fn object() -> impl Strategy<Value = Vec<u8>> {
    let id = || 0u64..8;
    let text = || any::<Index>().prop_map(|index| *index.get(&TEXTS));
    let entries = || vec((0u64..8, 0u64..8), 0..12);
    prop_oneof![
        1 => (0u128..3).prop_map(wire::trace),
        4 => (0u128..3, [id(), id(), id(), id()], any::<u64>(), any::<u64>(), 0u8..3)
            .prop_map(|(trace, texts, start, duration, error)| wire::span_with(trace, texts, start, duration, error)),
        4 => entries().prop_map(|entries| wire::meta(&entries)),
        4 => entries().prop_map(|entries| wire::metrics(&entries)),
        1 => (0u64..8, 0u64..8, 40usize..255).prop_map(|(key, value, count)| wire::meta(&vec![(key, value); count])),
        6 => (id(), text()).prop_map(|(id, text)| wire::string(id, text)),
        1 => (id(), text(), 1usize..80).prop_map(|(id, text, times)| wire::string(id, &text.repeat(times))),
    ]
}

/// A valid stream.
fn legal() -> impl Strategy<Value = Vec<u8>> {
    let objects = (prop_oneof![Just(0), 1u64..6, any::<u64>()], vec(object(), 0..60))
        .prop_map(|(size, objects)| wire::process(size).into_iter().chain(objects.concat()).collect());
    let simulated = (any::<u64>(), 0u32..40, 1u64..6, any::<bool>()).prop_map(|(seed, cache, traces, padded)| {
        let dialect = if padded { DatadogDialect::Padded32 } else { DatadogDialect::Exact };
        let mut tracer = Tracer::new(seed, 0, 1_795_176_900_000_000_000, dialect).with_string_cache_size(cache);
        let mut bytes = Vec::new();
        tracer.hello(&mut bytes);
        for _ in 0..traces {
            tracer.trace(u64::MAX, &mut bytes);
        }
        bytes
    });
    prop_oneof![4 => objects, 1 => simulated, 1 => any::<Index>().prop_map(|index| index.get(&CAPTURES).clone())]
}

#[derive(Clone, Debug)]
enum Mutation {
    Flip(Index, u8),
    Truncate(Index),
    Insert(Index, Vec<u8>),
    Delete(Index, usize),
    Duplicate(Index, usize),
    Splice(Index, Vec<u8>, Index),
}

impl Mutation {
    fn apply(&self, bytes: &mut Vec<u8>) {
        let len = bytes.len();
        let at = |index: &Index| index.index(len + 1);
        match self {
            Mutation::Flip(index, bit) if len > 0 => bytes[index.index(len)] ^= 1 << bit,
            Mutation::Flip(..) => {}
            Mutation::Truncate(index) => bytes.truncate(at(index)),
            Mutation::Insert(index, more) => drop(bytes.splice(at(index)..at(index), more.iter().copied())),
            Mutation::Delete(index, count) => drop(bytes.drain(at(index)..len.min(at(index) + count))),
            Mutation::Duplicate(index, count) => {
                let part = bytes[at(index)..len.min(at(index) + count)].to_vec();
                bytes.splice(at(index)..at(index), part);
            }
            Mutation::Splice(index, other, from) => {
                bytes.truncate(at(index));
                bytes.extend(&other[from.index(other.len() + 1)..]);
            }
        }
    }
}

fn mutation() -> impl Strategy<Value = Mutation> {
    prop_oneof![
        (any::<Index>(), 0u8..8).prop_map(|(at, bit)| Mutation::Flip(at, bit)),
        any::<Index>().prop_map(Mutation::Truncate),
        (any::<Index>(), vec(any::<u8>(), 1..20)).prop_map(|(at, bytes)| Mutation::Insert(at, bytes)),
        (any::<Index>(), object()).prop_map(|(at, bytes)| Mutation::Insert(at, bytes)),
        (any::<Index>(), 1usize..100).prop_map(|(at, count)| Mutation::Delete(at, count)),
        (any::<Index>(), 1usize..200).prop_map(|(at, count)| Mutation::Duplicate(at, count)),
        (any::<Index>(), legal(), any::<Index>()).prop_map(|(at, other, from)| Mutation::Splice(at, other, from)),
    ]
}

fn stream() -> impl Strategy<Value = Vec<u8>> {
    let mutated = (legal(), vec(mutation(), 1..4)).prop_map(|(mut bytes, mutations)| {
        mutations.iter().for_each(|mutation| mutation.apply(&mut bytes));
        bytes
    });
    let noise = vec(any::<u8>(), 0..300);
    let noise_after_process = noise.clone().prop_map(|noise| [wire::process(9), noise].concat());
    prop_oneof![6 => legal(), 6 => mutated, 1 => noise, 1 => noise_after_process]
}

/// Small limits, so that they are reached, and the default ones.
fn options() -> impl Strategy<Value = Options> {
    let texts = [1usize..40, 1usize..40, 1usize..40, 1usize..400];
    let cache = (prop_oneof![Just(0), 0usize..8, Just(1024)], 1usize..8, prop_oneof![200u64..2000, Just(8 << 20)]);
    let waiting = (prop_oneof![0usize..6, Just(4096)], prop_oneof![0u64..6000, Just(8 << 20)], 0u64..12_000);
    let record = (prop_oneof![1usize..20, Just(4096)], prop_oneof![1u64..2000, Just(1 << 20)], 0usize..4);
    (any::<bool>(), texts, cache, waiting, record, prop_oneof![0u64..600, Just(65_536)], any::<bool>()).prop_map(
        |(padded, [name, service, key, value], cache, waiting, record, kept, are_texts_usual)| {
            let mut options = Options::default();
            if padded {
                options.list_layout = ListLayout::Padded32;
            }
            (options.string_cache.min_entries, options.string_cache.max_entries, options.string_cache.bytes) = cache;
            (options.waiting.records, options.waiting.bytes) = (waiting.0, waiting.1);
            options.waiting.time = Duration::from_millis(waiting.2);
            (options.max_record_entries, options.max_record_bytes, options.max_traces) = record;
            options.kept_string_bytes = kept;
            if !are_texts_usual {
                options.max_text.name = name;
                (options.max_text.service, options.max_text.type_) = (service, service);
                (options.max_text.key, options.max_text.value, options.max_text.resource) = (key, value, value);
            }
            options
        },
    )
}

fn case() -> impl Strategy<Value = Case> {
    let ends = prop::sample::select(vec![End::Closed, End::Reset, End::TimedOut, End::TooLarge, End::Stopped]);
    let max_message = prop_oneof![1u64..500, Just(16 << 20)];
    let memory = prop_oneof![1 => 0u64..100_000, 3 => Just(256 << 20)];
    let pauses = vec(prop_oneof![3 => Just(0u16), 1 => 0u16..12_000], 1..8);
    let definitions = prop::bool::weighted(0.2);
    (stream(), vec(any::<Index>(), 0..12), pauses, ends, options(), max_message, memory, definitions).prop_map(
        |(bytes, cuts, pauses, end, options, max_message, memory, emit_definitions)| Case {
            bytes,
            cuts,
            pauses,
            end,
            options,
            max_message,
            memory,
            emit_definitions,
        },
    )
}

impl Case {
    /// The offsets of the cuts, in order, ending with the end of the stream.
    fn cuts(&self) -> Vec<usize> {
        let mut cuts: Vec<_> = self.cuts.iter().map(|cut| cut.index(self.bytes.len() + 1)).collect();
        cuts.push(self.bytes.len());
        cuts.sort_unstable();
        cuts
    }

    fn is_padded(&self) -> bool {
        self.options.list_layout == ListLayout::Padded32
    }

    fn start(&self) -> Driven {
        let memory = MemoryBudget::new(self.memory);
        Driven::emitting(self.emit_definitions, &self.options, self.max_message, &memory).keep_lines()
    }

    fn whole(&self) -> Finished {
        let mut driven = self.start();
        driven.feed(&self.bytes);
        driven.finish(self.end)
    }

    fn in_pieces(&self, do_pause: bool) -> Finished {
        let mut driven = self.start();
        let mut from = 0;
        for (cut, pause) in self.cuts().into_iter().zip(self.pauses.iter().cycle()) {
            driven.feed(&self.bytes[from..cut]);
            from = cut;
            if do_pause {
                driven.pass(Duration::from_millis(u64::from(*pause)));
            }
            let buffered = driven.totals().buffered();
            assert!(buffered >= 0, "more is accounted for than has come");
            let most = i128::from(4083.max(14 + self.max_message));
            assert!(driven.is_closed || buffered <= most, "{buffered} bytes are undecided");
        }
        driven.finish(self.end)
    }
}

fn check(case: &Case, done: &Finished) {
    let totals = &done.totals;
    assert_eq!(totals.buffered(), 0, "decoded + lost = received");
    assert_eq!(totals.bytes_in, case.bytes.len() as u64);
    assert!(done.batch_events <= 1024 + 3, "a batch of {} events", done.batch_events);
    assert!(done.batch_bytes <= 8 << 20, "a batch of {} bytes", done.batch_bytes);

    let mut lost: BTreeMap<String, u64> = BTreeMap::new();
    let (mut records, mut incomplete, mut reported_incomplete) = (0, 0, 0);
    let mut definitions = 0;
    let (mut cut_records, mut reported_cut, mut cut_bytes) = (0, 0, 0);
    for line in done.text.lines() {
        let event: Value = serde_json::from_str(line).unwrap();
        assert_eq!(raw::repeated_keys(line), [""; 0], "{line}");
        let origin = &event["origin"];
        let end = origin["offset"].as_u64().unwrap() + origin["length"].as_u64().unwrap();
        assert!(end <= case.bytes.len() as u64, "outside the stream of {} bytes: {line}", case.bytes.len());
        if event["kind"] == "loss" {
            let loss = &event["loss"];
            let (reason, bytes) = (loss["reason"].as_str().unwrap(), loss["bytes"].as_u64().unwrap());
            *lost.entry(reason.to_owned()).or_default() += bytes;
            match loss["events"].as_u64() {
                Some(events) if reason == "unresolved" => reported_incomplete += events,
                Some(events) => {
                    assert_eq!(reason, "too_large", "{line}");
                    (reported_cut, cut_bytes) = (reported_cut + events, cut_bytes + bytes);
                }
                None => {}
            }
        } else if event["severity"] == "DEBUG" {
            definitions += 1;
        } else {
            records += 1;
            let attributes = event["attributes"].as_object();
            let has = |prefix: &str| attributes.is_some_and(|all| all.keys().any(|key| key.starts_with(prefix)));
            incomplete += u64::from(has("datadog.unresolved."));
            cut_records += u64::from(has("datadog.entries_dropped"));
        }
    }
    for reason in Reason::ALL {
        let reported = lost.get(reason.as_str()).copied().unwrap_or(0);
        assert_eq!(reported, totals.bytes_lost[reason.index()], "bytes lost as {}", reason.as_str());
    }
    let walk = walk(&case.bytes, case.max_message, case.is_padded());
    assert_eq!(totals.bytes_decoded + cut_bytes, walk.good as u64, "what can be decoded is");
    assert_eq!(records, walk.owners + totals.warnings.get("late_list").unwrap_or(&0), "one event for each owner");
    assert_eq!(definitions, if case.emit_definitions { walk.strings } else { 0 }, "one event for each definition");
    assert_eq!(reported_incomplete, incomplete, "events with raw ids");
    assert_eq!(reported_cut, cut_records, "events with dropped entries");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(400), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn for_any_input_all_bytes_are_accounted_for_and_events_are_valid(case in case()) {
        check(&case, &case.in_pieces(true));
    }

    #[test]
    fn no_cut_changes_an_event_when_no_time_passes(case in case()) {
        let whole = case.whole();
        check(&case, &whole);
        let cut = case.in_pieces(false);
        prop_assert_eq!(whole.text, cut.text);
        prop_assert_eq!(whole.totals, cut.totals);
    }
}

/// The default number of cases, or `PROPTEST_CASES`.
fn cases(usual: u32) -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(usual)
}

#[test]
fn a_repeated_key_is_found_in_its_own_object_only() {
    assert_eq!(raw::repeated_keys(r#"{"a":1,"b":{"a":2},"c":[{"a":3},{"a":4}]}"#), [""; 0]);
    assert_eq!(raw::repeated_keys(r#"{"a":"a","b":{"a":"x\":","a":2}}"#), ["a"]);
}
