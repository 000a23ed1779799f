//! Work grows with the bytes received, whatever they are: adversarial streams of size n and 2n.

use crate::growth_support::{Case, assert_linear, connection, connection_in_reads};
use crate::hostile_support::wire::{meta, metrics, process, span, string, trace};
use tributary::memory::MemoryBudget;
use tributary::protocol::Protocol;
use tributary::protocol::datadog::{DatadogSession, Options};

/// A case with these options; `attack` writes everything after `process`.
fn case(name: &'static str, size: u64, options: Options, attack: fn(u64) -> Vec<u8>) -> Case {
    case_with(name, size, options, 256 << 20, attack)
}

fn case_with(name: &'static str, size: u64, options: Options, memory: u64, attack: fn(u64) -> Vec<u8>) -> Case {
    Case::new(name, size, move |size| {
        let wire = [process(u64::MAX), attack(size)].concat();
        let session = DatadogSession::new(options.clone(), 16 << 20, false, &MemoryBudget::new(memory));
        move || connection(session, Protocol::Datadog, &wire)
    })
}

fn with(change: impl FnOnce(&mut Options)) -> Options {
    let mut options = Options::default();
    change(&mut options);
    options
}

/// Distinct short strings, `count` of them from id `first` on.
fn strings(first: u64, count: u64) -> Vec<u8> {
    (first..first + count).flat_map(|id| string(id, format!("{id:08}").as_bytes())).collect()
}

/// Meta lists with all of these entries.
fn metas(entries: impl Iterator<Item = (u64, u64)>) -> Vec<u8> {
    let entries: Vec<_> = entries.collect();
    entries.chunks(255).flat_map(|entries| [meta(entries), metrics(&[])].concat()).collect()
}

/// `count` traces, each with the same meta lists.
fn traces(count: u128, lists: &[u8]) -> Vec<u8> {
    (0..count).flat_map(|id| [&trace(id), lists].concat()).collect()
}

#[test]
fn twice_the_stream_is_at_most_two_and_a_half_times_the_work() {
    let cases = [
        case("an id redefined again and again", 250, Options::default(), |n| {
            (0..n).flat_map(|at| string(at % 3, &at.to_be_bytes())).collect()
        }),
        case("spans that wait for ids of their own", 200, with(|options| options.waiting.records = 50), |n| {
            (0..n).flat_map(|at| span(1, [4 * at + 1, 4 * at + 2, 4 * at + 3, 4 * at + 4])).collect()
        }),
        case("spans that wait for one id, which is defined", 200, Options::default(), |n| {
            [span(1, [1; 4]).repeat(n as usize), string(1, b"x")].concat()
        }),
        case("spans that wait for one id in vain", 200, with(|options| options.waiting.records = 50), |n| {
            span(1, [1; 4]).repeat(n as usize)
        }),
        case("one record that waits for one id, which is defined", 400, Options::default(), |n| {
            [span(1, [0; 4]), metas((0..n).map(|_| (1, 2))), strings(1, 2)].concat()
        }),
        case("one record that waits for one id in vain", 400, Options::default(), |n| {
            [span(1, [0; 4]), metas((0..n).map(|_| (1, 2)))].concat()
        }),
        case("one record with keys of its own that are defined late", 400, Options::default(), |n| {
            [span(1, [0; 4]), metas((1..=n).map(|id| (id, 1))), strings(1, n)].concat()
        }),
        case("one record with the same key in different strings", 400, Options::default(), |n| {
            let keys = (1..=n).flat_map(|id| string(id, b"the same key")).collect();
            [keys, span(1, [0; 4]), metas((1..=n).map(|id| (id, 1)))].concat()
        }),
        case("spans with tags and metrics of the same key", 50, Options::default(), |n| {
            let keys = (1..=24).flat_map(|id| string(id, &[b'k'; 200]));
            let tags: Vec<_> = (1..=24).map(|id| (id, 99)).collect();
            [keys.collect(), [span(1, [0; 4]), meta(&tags), metrics(&tags)].concat().repeat(n as usize)].concat()
        }),
        case("texts redefined while a large record is open", 400, Options::default(), |n| {
            let texts = |letter: u8| (1..=n).flat_map(move |id| string(id, &[letter; 40]));
            [texts(b'a').collect(), span(1, [0; 4]), metas((1..=n).map(|id| (id, id))), texts(b'b').collect()].concat()
        }),
        case("traces that name one undefined id", 150, with(|options| options.max_traces = 2), |n| {
            traces(8, &metas((0..n).map(|_| (1, 1))))
        }),
        case("traces that name undefined ids of their own", 150, with(|options| options.max_traces = 2), |n| {
            (0..8).flat_map(|at| [trace(at.into()), metas((0..n).map(|id| (at * n + id + 1, 1)))].concat()).collect()
        }),
        case(
            "traces that name two undefined ids, which are defined",
            150,
            with(|options| options.max_traces = 4),
            |n| {
                [traces(4, &metas((0..n).map(|_| (1, 2)))), strings(1, 2), traces(4, &metas((0..n).map(|_| (1, 2))))]
                    .concat()
            },
        ),
        case("more and more meta of one trace", 250, Options::default(), |n| {
            [strings(1, 1), [trace(1), meta(&[(1, 9)])].concat().repeat(n as usize)].concat()
        }),
        case("new traces", 250, with(|options| options.max_traces = 100), |n| {
            [strings(1, 1), traces(n.into(), &meta(&[(1, 1)]))].concat()
        }),
        case(
            "strings used in another order than defined, and evicted",
            500,
            with(|options| {
                options.string_cache.max_entries = 100;
                options.string_cache.min_entries = 100;
            }),
            |n| {
                let step = |at: u64| [strings(at + 1, 1), span(1, [at / 2, at - at % 50, at, at + 1])].concat();
                (0..n).flat_map(step).collect()
            },
        ),
        case_with("strings and waiting records beyond the memory budget", 500, Options::default(), 200 << 10, |n| {
            (0..n).flat_map(|at| [string(at + 1, &[b'x'; 100]), span(1, [at + 1, 1 << 40, at, 1])].concat()).collect()
        }),
        case("lists beyond the limits of a record", 200, with(|options| options.max_record_entries = 10), |n| {
            [span(1, [0; 4]), meta(&[(1, 1)]).repeat(n as usize)].concat()
        }),
        Case::new("a string that arrives byte by byte", 2000, |size| {
            let wire = [process(0), string(1, &vec![b'x'; size as usize]), span(1, [1; 4])].concat();
            let memory = MemoryBudget::new(256 << 20);
            let session = DatadogSession::new(Options::default(), 16 << 20, false, &memory);
            move || connection_in_reads(session, Protocol::Datadog, &wire, 1)
        }),
    ];
    assert_linear(twice_the_stream_is_at_most_two_and_a_half_times_the_work, &cases);
}
