//! The recordings below `tests/data/rbkit` are complete, and what the tests read from them agrees with their
//! manifest. The daemon takes no part.

use std::collections::{BTreeMap, BTreeSet};

use crate::rbkit_support::recording::{self, Message, Step};
use crate::rbkit_support::{compare, contract, wire};

#[test]
fn every_file_is_the_one_that_the_manifest_names() {
    let mut names = BTreeSet::new();
    for case in recording::manifest() {
        assert!(names.insert(case["name"].as_str().unwrap().to_owned()), "{case}");
        if let Some(file) = case["file"].as_str() {
            let bytes = recording::read(file);
            assert_eq!(case["bytes"], bytes.len(), "{file}");
            assert_eq!(case["sha256"], recording::sha256(&bytes), "{file}");
        }
        for (file, listed) in case["files"].as_object().into_iter().flatten() {
            let bytes = recording::read(&format!("{}/{file}", case["path"].as_str().unwrap()));
            assert_eq!(listed["sha256"], recording::sha256(&bytes), "{file}");
        }
    }
    assert_eq!(names.len(), 120);
}

#[test]
fn conversations_are_complete_and_have_the_steps_of_the_manifest() {
    let sessions = recording::sessions();
    assert_eq!(sessions.len(), 8);
    for session in sessions {
        let mut seen: BTreeMap<String, u64> = BTreeMap::new();
        for step in &session.steps {
            match step {
                Step::Ok => *seen.entry("reply_ok".to_owned()).or_default() += 1,
                Step::Handshake(_) => *seen.entry("handshake".to_owned()).or_default() += 1,
                Step::Request(request) => assert!(!request.is_empty()),
                Step::Publish(message) => {
                    for event in message.decoded["events"].as_array().unwrap() {
                        *seen.entry(event["e"].as_str().unwrap().to_owned()).or_default() += 1;
                    }
                }
            }
        }
        let listed = session.manifest["contents"].as_object().unwrap().iter();
        let listed: BTreeMap<String, u64> =
            listed.map(|(name, count)| (name.clone(), count.as_u64().unwrap())).collect();
        assert_eq!(seen, listed, "{}", session.name);
        let counters: Vec<_> = session.published().map(|message| message.counter().unwrap()).collect();
        assert!(counters.windows(2).all(|pair| pair[1] == pair[0] + 1), "{}: {counters:?}", session.name);
    }
}

/// The lists of objects belong to the dumps, and the contract expects for each dump all its objects and one summary.
#[test]
fn dumps_have_all_their_objects() {
    let mut dumps = 0;
    for session in recording::sessions() {
        for message in session.published().filter(|message| !message.objects.is_empty()) {
            let events = message.decoded["events"].as_array().unwrap();
            let of = |key: &str| -> u64 {
                events
                    .iter()
                    .filter(|event| event["e"] == "object_space_dump")
                    .map(|dump| dump[key].as_u64().unwrap())
                    .sum()
            };
            assert_eq!(message.objects.len() as u64, of("objects"), "{}", session.name);
            let references = message.objects.iter().map(|object| object.references.len() as u64);
            assert_eq!(references.sum::<u64>(), of("references"), "{}", session.name);
            assert_eq!(message.objects.iter().filter_map(|object| object.size).sum::<u64>(), of("size_sum"));
            assert_eq!(message.objects.iter().filter(|object| object.file.is_none()).count() as u64, of("nil_file"));
            let expected = contract::collection(message);
            let count = |name: &str| expected.iter().filter(|event| event.name == name).count();
            assert_eq!((count("rbkit.heap.object"), count("rbkit.heap.dump")), (message.objects.len(), 1));
            dumps += 1;
        }
    }
    assert_eq!(dumps, 4);
}

#[test]
fn times_are_dates() {
    for (millis, text) in [
        (0, "1970-01-01T00:00:00.000000000Z"),
        (951_782_400_000, "2000-02-29T00:00:00.000000000Z"),
        (wire::MILLIS, "2026-11-20T12:15:00.000000000Z"),
        (1_795_175_999_999, "2026-11-20T11:59:59.999000000Z"),
        (1_798_761_599_001, "2026-12-31T23:59:59.001000000Z"),
    ] {
        assert_eq!(compare::time(millis), text);
    }
}

/// The frames of a stream, and the rest.
fn frames(stream: &[u8]) -> (Vec<(u8, Vec<u8>)>, usize) {
    let (mut frames, mut rest) = (Vec::new(), &stream[64..]);
    while let Some((frame, behind)) = wire::split_frame(rest) {
        frames.push(frame);
        rest = behind;
    }
    (frames, rest.len())
}

#[test]
fn frames_written_by_hand_are_those_of_libzmq() {
    for name in ["libzmq-client-3.1", "minimal-client-3.0"] {
        for (socket, side) in [("PUB", "pub-agent-to-client"), ("REP", "rep-agent-to-client")] {
            let (bytes, expected) = recording::stream(name, side);
            assert_eq!(bytes[..64], wire::greeting(1), "{name} {side}");
            let (frames, left) = frames(&bytes);
            assert_eq!((frames.len() + 1, left), (expected.len(), 0), "{name} {side}");
            let mut at = 64;
            for ((flags, body), listed) in frames.iter().zip(&expected[1..]) {
                assert_eq!(
                    (listed["offset"].as_u64(), listed["size"].as_u64()),
                    (Some(at as u64), Some(body.len() as u64))
                );
                let written = wire::frame(flags & !wire::LONG, body);
                assert_eq!(bytes[at..at + written.len()], written);
                at += written.len();
            }
            assert_eq!(bytes[64..64 + wire::ready(socket).len()], wire::ready(socket));
        }
    }
}

/// Messages that tests write by hand have the form of recorded ones.
#[test]
fn messages_written_by_hand_begin_as_recorded_ones() {
    let session = recording::session("master-2.1-memory-then-cpu");
    let recorded: Vec<&Message> = session.published().collect();
    let by_hand = wire::collection(0, &[wire::created(1)]);
    let first = &recorded[0].body;
    assert_eq!((by_hand[..5].to_vec(), by_hand[13]), (first[..5].to_vec(), first[13]));
    let handshake = session.handshakes().next().unwrap();
    let by_hand = wire::handshake(9_836, false, false);
    assert_eq!((by_hand[..5].to_vec(), &by_hand[13..37]), (handshake.body[..5].to_vec(), &handshake.body[13..37]));
}
