//! Messages and replies in every dialect, split and broken anywhere: every byte is decoded or reported as
//! lost, and the events do not depend on how the stream was split.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::rbkit_law_support::model::{Dialect, Message, published, write};
use crate::rbkit_law_support::pack::{Pack, Texts, frame, hello};
use crate::rbkit_law_support::{Driven, Outcome, Setting, Side, check_accounting, check_totals, read_stream};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use tributary::protocol::End;
use tributary::protocol::rbkit::{AgentOptions, Control, Options, ProfileKind, RbkitAgent, Subscription};

fn cuts_of(indexes: &[Index], length: usize) -> Vec<usize> {
    let mut cuts: Vec<usize> = indexes.iter().map(|index| index.index(length + 1)).collect();
    cuts.sort_unstable();
    cuts
}

/// Reads a stream as a whole, byte by byte and in the given pieces, which must all give the same events.
fn read_alike(setting: &Setting, side: Side, stream: &[u8], cuts: &[usize], end: End) -> Outcome {
    let whole = read_stream(setting, side, stream, &[], end);
    check_accounting(&whole, stream);
    let bytewise: Vec<usize> = (0..stream.len()).collect();
    for (how, cuts) in [("in pieces", cuts), ("byte by byte", &bytewise[..])] {
        let cut = read_stream(setting, side, stream, cuts, end);
        check_accounting(&cut, stream);
        let differs = cut.lines.iter().zip(&whole.lines).position(|(cut, whole)| cut != whole);
        if let Some(at) = differs {
            panic!("{how} event {at} is\n{:.600}\nnot\n{:.600}", cut.lines[at], whole.lines[at]);
        }
        assert_eq!(
            cut.lines.len(),
            whole.lines.len(),
            "{how}: last {:?}",
            cut.lines.last().map(|it| &it[..it.len().min(600)])
        );
    }
    whole
}

/// Events by name, metrics as one.
fn names(outcome: &Outcome) -> std::collections::BTreeMap<String, u64> {
    let mut names = std::collections::BTreeMap::new();
    for (name, count) in outcome.names() {
        let is_metric = name.starts_with("rbkit.gc.")
            && !matches!(&*name, "rbkit.gc.start" | "rbkit.gc.end_mark" | "rbkit.gc.end_sweep");
        *names.entry(if is_metric { "metrics".to_owned() } else { name }).or_insert(0) += count;
    }
    names
}

fn stream_of(dialect: Dialect, messages: &[Message]) -> Vec<u8> {
    write(dialect, messages).stream
}

/// An arbitrary MessagePack value.
fn value() -> impl Strategy<Value = Vec<u8>> {
    let leaf = prop_oneof![
        any::<u64>().prop_map(|number| packed(|pack| pack.uint(number))),
        any::<f64>().prop_map(|number| packed(|pack| pack.float(number))),
        vec(any::<u8>(), 0..40).prop_map(|text| packed(|pack| pack.text(&text))),
        prop::sample::select(vec![vec![0xC0], vec![0xC2], vec![0xFF], vec![0xD4, 1, 2], vec![0xC4, 1, 9], vec![0xC1]]),
        // Huge counts and lengths, and endless nesting.
        prop::sample::select(vec![
            vec![0xDD, 0xFF, 0xFF, 0xFF, 0xFF],
            vec![0xDF, 0x7F, 0xFF, 0xFF, 0xFF],
            vec![0xDB, 0xFF, 0xFF, 0xFF, 0xFF],
            vec![0xC6, 0, 1, 0, 0],
            vec![0x91; 60],
            vec![0x81; 60],
        ]),
    ];
    leaf.prop_recursive(5, 60, 8, |inner| {
        let key = prop_oneof![4 => (0u64..20).prop_map(|key| packed(|pack| pack.uint(key))), 1 => inner.clone()];
        prop_oneof![
            vec(inner.clone(), 0..8).prop_map(|items| packed(|pack| {
                pack.array(items.len());
                items.iter().for_each(|item| pack.raw(item));
            })),
            vec((key, inner), 0..8).prop_map(|pairs| packed(|pack| {
                pack.map(pairs.len());
                pairs.iter().for_each(|(key, value)| pack.raw(&[&key[..], value].concat()));
            })),
        ]
    })
}

fn packed(write: impl FnOnce(&mut Pack)) -> Vec<u8> {
    let mut pack = Pack::new(Texts::Str8);
    write(&mut pack);
    pack.bytes
}

/// A collection with an arbitrary payload, or of events with arbitrary payloads.
fn hostile_body() -> impl Strategy<Value = Vec<u8>> {
    let event = (0u64..12, option_of_total(), value()).prop_map(|(kind, total, payload)| {
        packed(|pack| {
            pack.map(2 + 2 * usize::from(total.is_some()));
            pack.uint(0);
            pack.uint(kind);
            if let Some((id, total)) = total {
                pack.raw(&[10, id, 11]);
                pack.uint(total);
            }
            pack.uint(2);
            pack.raw(&payload);
        })
    });
    let element = prop_oneof![3 => event, 1 => value()];
    let collection = (prop::sample::select(vec![6u64, 7]), any::<u64>(), vec(element, 0..6)).prop_map(
        |(kind, counter, elements)| {
            packed(|pack| {
                pack.map(3);
                pack.uint(0);
                pack.uint(kind);
                pack.uint(9);
                pack.uint(counter);
                pack.uint(2);
                pack.array(elements.len());
                elements.iter().for_each(|element| pack.raw(element));
            })
        },
    );
    prop_oneof![5 => collection, 1 => value(), 1 => vec(any::<u8>(), 0..60)]
}

fn option_of_total() -> impl Strategy<Value = Option<(u8, u64)>> {
    prop::option::of((0u8..3, prop_oneof![0..9u64, Just(u64::MAX)]))
}

fn hostile_stream() -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![
        8 => (hostile_body(), prop::sample::select(vec![0u8, 0, 0, 2, 1])).prop_map(|(body, flags)| frame(flags, &body)),
        1 => Just(b"\x04\x09\x04PING\0\x10ab".to_vec()),
        1 => vec(any::<u8>(), 0..6),
    ];
    vec(part, 0..6).prop_map(|parts| [hello("PUB"), parts.concat()].concat())
}

/// Small limits.
fn tight() -> impl Strategy<Value = Setting> {
    let limits =
        (prop::sample::select(vec![40u64, 200, 1000, 1 << 24]), prop::sample::select(vec![100u64, 2000, 1 << 28]));
    (limits, prop::sample::select(vec![1usize, 2, 2048])).prop_map(
        |((max_message_bytes, max_frame_bytes), max_frames)| Setting {
            options: Options { max_frame_bytes, max_references: max_frames as u32, max_frames, ..Options::default() },
            max_message_bytes,
        },
    )
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, max_shrink_iters: 300, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config(192))]

    #[test]
    fn published_messages_give_the_same_events_however_they_are_cut(
        (dialect, messages) in published(),
        cuts in vec(any::<Index>(), 0..12),
    ) {
        let written = write(dialect, &messages);
        let stream = &written.stream;
        let outcome = read_alike(&Setting::default(), Side::Published, stream, &cuts_of(&cuts, stream.len()), End::Closed);
        prop_assert_eq!(names(&outcome), written.names);
        // The place of each event is inside its message.
        for event in outcome.events() {
            let place = |key: &str| event["origin"][key].as_u64().unwrap() as usize;
            let body = &written.bodies[place("sequence")];
            prop_assert!(body.start <= place("offset") && place("offset") + place("length") <= body.end);
        }
        prop_assert!(written.has_odd || outcome.lost == 0);
    }

    #[test]
    fn a_stream_is_decoded_up_to_its_end_wherever_that_is(
        (dialect, messages) in published(),
        end in any::<Index>(),
        cuts in vec(any::<Index>(), 0..6),
    ) {
        let stream = stream_of(dialect, &messages);
        let whole = read_stream(&Setting::default(), Side::Published, &stream, &[], End::Closed);
        let stream = &stream[..end.index(stream.len() + 1)];
        let outcome = read_alike(&Setting::default(), Side::Published, stream, &cuts_of(&cuts, stream.len()), End::Closed);
        let ended = outcome.events().iter().filter(|event| event["kind"] == "loss").count();
        let sound: Vec<&String> = outcome.lines.iter().filter(|line| !line.contains("\"kind\":\"loss\"")).collect();
        let first: Vec<&String> = whole.lines.iter().filter(|line| !line.contains("\"kind\":\"loss\"")).take(sound.len()).collect();
        prop_assert_eq!(sound, first);
        // The cut message, a dump in it, and invalid events before it.
        let odd = whole.lines.iter().filter(|line| line.contains("\"kind\":\"loss\"")).count();
        prop_assert!(ended <= odd + 2);
    }

    #[test]
    fn a_flipped_bit_does_not_affect_earlier_messages(
        (dialect, messages) in published(),
        flips in vec((any::<Index>(), 0..8u8), 1..4),
        cuts in vec(any::<Index>(), 0..6),
    ) {
        let written = write(dialect, &messages);
        let mut stream = written.stream.clone();
        for (at, bit) in &flips {
            let at = at.index(stream.len());
            stream[at] ^= 1 << bit;
        }
        let outcome = read_alike(&Setting::default(), Side::Published, &stream, &cuts_of(&cuts, stream.len()), End::Closed);
        // The events before the first flipped bit are unchanged.
        let first = flips.iter().map(|(at, _)| at.index(stream.len())).min().unwrap_or(0);
        let intact = written.bodies.iter().take_while(|body| body.end <= first).count();
        let before = read_stream(&Setting::default(), Side::Published, &written.stream, &[], End::Closed);
        let is_in = |line: &&String| {
            let event: serde_json::Value = serde_json::from_str(line).unwrap();
            let offset = event["origin"]["offset"].as_u64().unwrap() as usize;
            written.bodies[..intact].iter().any(|body| (body.start..=body.end).contains(&offset))
        };
        let expected: Vec<&String> = before.lines.iter().filter(is_in).collect();
        let found: Vec<&String> = outcome.lines.iter().take(expected.len()).collect();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn an_invalid_message_does_not_affect_the_next_one(
        body in hostile_body(),
        (dialect, messages) in published(),
    ) {
        let mut message = messages;
        message.truncate(1);
        let written = write(dialect, &message);
        let stream = [&hello("PUB")[..], &frame(0, &body), &written.stream[hello("PUB").len()..]].concat();
        let outcome = read_alike(&Setting::default(), Side::Published, &stream, &[], End::Closed);
        let start = hello("PUB").len() + frame(0, &body).len();
        let behind = outcome.events().into_iter().filter(|event| event["origin"]["offset"].as_u64().unwrap() as usize > start);
        let sound = behind.filter(|event| event["name"] != "rbkit.agent.restarted" && event["loss"]["reason"] != "gap");
        let count: u64 = written.names.values().sum();
        // The invalid message may have started a dump that ends now, or may have completed a dump with the same id.
        let count_of_dumps = written.names.get("rbkit.heap.dump").copied().unwrap_or(0);
        let found = sound.count() as u64;
        prop_assert!((count - count_of_dumps..=count).contains(&found), "{} of {}", found, count);
    }

    #[test]
    fn all_bytes_of_hostile_streams_are_accounted_for_under_any_limits(
        stream in hostile_stream(),
        setting in tight(),
        cuts in vec(any::<Index>(), 0..6),
        end in prop::sample::select(vec![End::Closed, End::Reset, End::TimedOut, End::Stopped]),
    ) {
        read_alike(&setting, Side::Published, &stream, &cuts_of(&cuts, stream.len()), end);
    }

    #[test]
    fn all_bytes_of_valid_streams_are_accounted_for_under_any_limits(
        (dialect, messages) in published(),
        setting in tight(),
        cuts in vec(any::<Index>(), 0..6),
        end in any::<Index>(),
    ) {
        let stream = stream_of(dialect, &messages);
        let stream = &stream[..end.index(stream.len() + 1)];
        read_alike(&setting, Side::Published, stream, &cuts_of(&cuts, stream.len()), End::Closed);
    }

    #[test]
    fn all_bytes_of_two_connections_of_one_process_are_accounted_for(
        (dialect, messages) in published(),
        steps in vec((0..4u8, any::<Index>(), handshake()), 0..30),
        enabled in any::<bool>(),
    ) {
        let every = if enabled { Duration::from_secs(1) } else { Duration::ZERO };
        let agent = RbkitAgent::new(AgentOptions {
            publish: Some("127.0.0.1:5555".to_owned()),
            request: Some("127.0.0.1:5556".to_owned()),
            enable: if enabled { vec![ProfileKind::Memory, ProfileKind::Cpu] } else { Vec::new() },
            snapshot_interval: every,
            gc_interval: every,
            ..AgentOptions::default()
        });
        let options = Arc::new(Options::default());
        let stream = stream_of(dialect, &messages);
        let mut subscription = Driven::new(Subscription::new(agent.clone(), options.clone(), 16 << 20));
        let mut control = Driven::new(Control::new(agent, options));
        let (mut fed, mut elapsed) = (0, Duration::ZERO);
        subscription.pass_time(elapsed);
        control.pass_time(elapsed);
        control.feed(&hello("REP"), elapsed);
        for (step, index, body) in &steps {
            match step {
                0 => {
                    let end = fed + index.index(stream.len() - fed + 1);
                    subscription.feed(&stream[fed..end], elapsed);
                    fed = end;
                }
                1 => control.feed(&[frame(1, b""), frame(0, body)].concat(), elapsed),
                2 => control.feed(&[frame(1, b""), frame(0, b"ok")].concat(), elapsed),
                _ => {
                    elapsed += Duration::from_millis(index.index(7000) as u64);
                    subscription.pass_time(elapsed);
                    control.pass_time(elapsed);
                }
            }
        }
        check_totals(&control.finish(End::Closed, elapsed));
        let outcome = subscription.finish(End::Closed, elapsed);
        check_accounting(&outcome, &stream[..fed]);
    }

    #[test]
    fn all_bytes_of_replies_are_accounted_for(
        bodies in vec(prop_oneof![2 => handshake(), 1 => Just(b"ok".to_vec()), 1 => value(), 1 => vec(any::<u8>(), 0..40)], 0..5),
        flips in vec((any::<Index>(), 0..8u8), 0..2),
        cuts in vec(any::<Index>(), 0..6),
        end in any::<Index>(),
    ) {
        let replies: Vec<u8> = bodies.iter().flat_map(|body| [frame(1, b""), frame(0, body)].concat()).collect();
        let mut stream = [hello("REP"), replies].concat();
        for (at, bit) in &flips {
            let at = at.index(stream.len());
            stream[at] ^= 1 << bit;
        }
        stream.truncate(end.index(stream.len() + 1));
        read_alike(&Setting::default(), Side::Replied, &stream, &cuts_of(&cuts, stream.len()), End::Closed);
    }
}

/// The published messages of a recording as a stream, without the longest ones, which take long and show nothing more.
fn recorded(session: &str) -> Vec<u8> {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/rbkit/sessions").join(session);
    let mut files: Vec<PathBuf> = fs::read_dir(directory).unwrap().map(|file| file.unwrap().path()).collect();
    files.retain(|file| file.to_str().unwrap().ends_with("-pub-events.msgpack"));
    files.sort();
    let bodies = files.iter().map(|file| fs::read(file).unwrap()).filter(|body| body.len() < 30_000);
    bodies.fold(hello("PUB"), |stream, body| [stream, frame(0, &body)].concat())
}

#[test]
fn recordings_are_decoded_to_the_last_byte() {
    for session in SESSIONS {
        let stream = recorded(session);
        let outcome = read_stream(&Setting::default(), Side::Published, &stream, &[stream.len() / 3], End::Closed);
        check_accounting(&outcome, &stream);
        assert!(outcome.lost == 0 && stream.len() > 10_000, "{session}");
    }
}

/// Live, too, a reply makes an event only if it differs from the last one.
#[test]
fn equal_replies_of_a_recording_give_one_event() {
    let reply = [frame(1, b""), frame(0, &crate::rbkit_support::wire::handshake(7, false, false))].concat();
    let changed = [frame(1, b""), frame(0, &crate::rbkit_support::wire::handshake(7, true, false))].concat();
    let stream = [&hello("REP")[..], &reply, &reply, &changed, &changed].concat();
    let outcome = read_stream(&Setting::default(), Side::Replied, &stream, &[], End::Closed);
    check_accounting(&outcome, &stream);
    assert_eq!(outcome.names(), [("rbkit.handshake".to_owned(), 2)].into());
}

const SESSIONS: [&str; 8] = [
    "master-2.1-dump-while-tracing",
    "master-2.1-memory-then-cpu",
    "master-2.1-raw-dump",
    "master-2.1-raw-memory-then-cpu",
    "spec-2.1-dump-then-stop",
    "spec-2.1-snapshots",
    "v0.1.10-memory",
    "v0.1.10-unsplit-dump",
];

proptest! {
    #![proptest_config(config(48))]

    #[test]
    fn all_bytes_of_damaged_recordings_are_accounted_for(
        session in prop::sample::select(SESSIONS.to_vec()),
        flips in vec((any::<Index>(), 0..8u8), 1..6),
        cuts in vec(any::<Index>(), 1..6),
        end in any::<Index>(),
    ) {
        let mut stream = recorded(session);
        for (at, bit) in &flips {
            let at = at.index(stream.len());
            stream[at] ^= 1 << bit;
        }
        stream.truncate(stream.len() / 2 + end.index(stream.len() / 2 + 1));
        let whole = read_stream(&Setting::default(), Side::Published, &stream, &[], End::Closed);
        check_accounting(&whole, &stream);
        let cut = read_stream(&Setting::default(), Side::Published, &stream, &cuts_of(&cuts, stream.len()), End::Closed);
        prop_assert!(cut.lines == whole.lines, "the events depend on the cuts");
    }
}

/// A handshake reply, not always a valid one.
fn handshake() -> impl Strategy<Value = Vec<u8>> {
    let keys =
        ["rbkit_server_version", "rbkit_protocol_version", "process_name", "pwd", "pid", "object_trace_enabled", "odd"];
    let pair = (
        prop::sample::select(keys.to_vec()),
        prop_oneof![any::<u32>().prop_map(Ok), vec(any::<u8>(), 0..40).prop_map(Err)],
    );
    (prop::sample::select(vec![7u64, 8, 9]), vec(pair, 0..9)).prop_map(|(kind, pairs)| {
        packed(|pack| {
            pack.map(3);
            pack.uint(0);
            pack.uint(kind);
            pack.uint(1);
            pack.float(1_436_012_100_123.0);
            pack.uint(2);
            pack.map(pairs.len());
            for (key, value) in pairs {
                pack.text(key.as_bytes());
                match value {
                    Ok(number) => pack.uint(number.into()),
                    Err(text) => pack.text(&text),
                }
            }
        })
    })
}
