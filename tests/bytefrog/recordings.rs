//! The recordings below `tests/data/bytefrog` are complete, and the tests read them as their manifest describes. No
//! collector takes part.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use crate::bytefrog_support::calls::Model;
use crate::bytefrog_support::configuration::{self, CollectorMessage};
use crate::bytefrog_support::contract;
use crate::bytefrog_support::names::{self, Known, Names};
use crate::bytefrog_support::recording::{self, Message};
use crate::bytefrog_support::text::Text;
use crate::bytefrog_support::wire;
use serde_json::Value;

#[test]
fn the_manifest_names_every_recording() {
    let named: BTreeSet<String> = recording::all(&[""]).into_iter().map(|recording| recording.name).collect();
    let entries = fs::read_dir(recording::directory()).unwrap().map(|entry| entry.unwrap());
    let directories = entries.filter(|entry| entry.file_type().unwrap().is_dir());
    let there: BTreeSet<String> = directories.map(|entry| entry.file_name().into_string().unwrap()).collect();
    assert_eq!(there.difference(&named).collect::<Vec<_>>(), ["configuration"]);
    assert_eq!(named.len(), 71);
}

#[test]
fn every_byte_of_a_stream_is_in_one_message_and_is_written_once() {
    for recording in recording::all(&[""]) {
        for (number, stream) in recording.streams.iter().enumerate() {
            let file = &recording.manifest["files"][format!("{}.agent.bin", stream.name)];
            assert_eq!(file["bytes"], stream.bytes.len(), "{}", recording.name);
            let mut at = 0;
            for message in &stream.messages {
                assert_eq!(message.offset() as usize, at, "{} {}", recording.name, stream.name);
                at += message.bytes().len();
            }
            assert_eq!(at, stream.bytes.len(), "{} {}", recording.name, stream.name);
            let mut written = 0;
            for step in recording.steps.iter().filter(|step| step.stream == number) {
                assert_eq!(step.offset, written, "{} {}", recording.name, stream.name);
                written += step.length;
            }
            assert_eq!(written, at, "{} {}", recording.name, stream.name);
        }
    }
}

/// The bytes of a message from its decoded fields; none if the decode is not sufficient.
fn encoded(version: u8, message: &Message) -> Option<Vec<u8>> {
    let number = |key: &str| message.number(key).map(|number| number as u32);
    let text = |key: &str| match message.text(key) {
        Text::Exact(text) => Some(text),
        _ => None,
    };
    let (time, sequence, method) = (number("time"), number("seq"), number("method"));
    let thread = message.number("thread").map(|thread| thread as u16);
    Some(match message.type_id()? {
        0 => wire::hello(version),
        9 => wire::data_break(sequence?),
        10 => wire::thread_name(thread?, time?, &text("text")?),
        11 => wire::method(method?, &text("text")?),
        12 => wire::exception(number("exception")?, &text("text")?),
        14 => wire::visit(time?, sequence?, method?, number("location")?, thread?),
        20 => wire::entry(time?, sequence?, method?, thread?),
        21 if number("line") == Some(7) || message.field("threw") == false => {
            wire::exit(version, time?, sequence?, method?, thread?)
        }
        22 if number("line") == Some(7) => wire::thrown(time?, sequence?, method?, number("exception")?, thread?),
        23 => wire::bubbled(time?, sequence?, method?, number("exception")?, thread?),
        41 => wire::class_ignored(&text("text")?),
        50 => wire::marker(time?, sequence?, &text("key")?, &text("value")?),
        99 => wire::error(&text("text")?),
        _ => return None,
    })
}

#[test]
fn messages_written_by_hand_are_those_that_agents_sent() {
    let mut seen = BTreeMap::new();
    for recording in recording::all(&["v", "gen-", "edge-v1", "edge-v2", "edge-v3"]) {
        let version = recording.version().unwrap();
        for (_, message) in recording.messages() {
            if let Some(bytes) = encoded(version, message) {
                assert_eq!(bytes, message.bytes(), "{} {message:?}", recording.name);
                *seen.entry(bytes[0]).or_insert(0) += 1;
            }
        }
    }
    assert_eq!(seen.into_keys().collect::<Vec<_>>(), [0, 9, 10, 11, 12, 14, 20, 21, 22, 23, 41, 50, 99]);
}

#[test]
fn the_messages_of_recorded_collectors_are_read() {
    for recording in recording::all(&["v1-orig-m", "v1-orig-reconfigure", "v2-r", "v4-codepulse-m", "gen-"]) {
        let path = recording::directory().join(&recording.name).join("control.hq.bin");
        let bytes = fs::read(path).unwrap();
        let (messages_received, length) = configuration::read(recording.version().unwrap(), &bytes);
        assert_eq!(length, bytes.len(), "{}", recording.name);
        let mut configurations = messages_received.iter().filter_map(|messages_received| match messages_received {
            CollectorMessage::Configuration(configuration) => Some(u64::from(configuration.run)),
            _ => None,
        });
        assert_eq!(configurations.next_back(), recording.recorded_run(1), "{}", recording.name);
        assert!(messages_received.contains(&CollectorMessage::Start), "{}", recording.name);
    }
}

#[test]
fn numbers_and_gaps_are_those_of_the_manifest() {
    for recording in recording::all(&["v", "gen-", "edge-v1-gap"]) {
        let sequence = &recording.manifest["sequence"];
        if let Some(events) = sequence["events"].as_u64() {
            let run = contract::expected_run(&recording);
            let missing: u64 = run.gaps.iter().map(|(first, last)| u64::from(last - first) + 1).sum();
            assert_eq!((run.sequenced, Some(missing)), (events, sequence["missing"].as_u64()), "{}", recording.name);
        }
    }
}

#[test]
fn rule_21_gives_the_names_that_the_generator_knew() {
    for recording in recording::all(&["gen-v1"]) {
        let names = Names::of(&recording);
        let path = recording::directory().join(&recording.name).join("resolved.ndjson");
        let truths: BTreeMap<u64, Value> = fs::read_to_string(path)
            .unwrap()
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap())
            .map(|truth| (truth["seq"].as_u64().unwrap(), truth))
            .collect();
        let is_of_thread = |message: &Message| message.sequence().is_some() && message.number("thread").is_some();
        for (stream, message) in recording.messages().filter(|(_, message)| is_of_thread(message)) {
            let truth = truths[&message.number("seq").unwrap()]["thread_name"].as_str();
            let certain = names.threads(message, stream, Known::All);
            assert!(certain.iter().any(|text| text.as_str() == truth), "{truth:?} is none of {certain:?}");
            let possible = names.threads(message, stream, Known::AsItCame);
            assert!(certain.iter().all(|text| possible.contains(text)), "{certain:?} is not in {possible:?}");
        }
    }
}

#[test]
fn the_model_of_calls_counts_as_the_generator_does() {
    for recording in recording::all(&["gen-"]) {
        let names = Names::of(&recording);
        let model = Model::of(&recording, true);
        let signature = |step: &str| {
            let id = step.split('@').next().unwrap().parse().unwrap();
            names.methods(id)[0].as_str().unwrap().to_owned()
        };
        let mut calls: BTreeMap<String, u64> = BTreeMap::new();
        for line in &model.calls {
            let path = line.split(" | ").next().unwrap().split_once(": ").unwrap().1;
            let steps: Vec<&str> = path.split(" > ").collect();
            let caller = steps.len().checked_sub(2).map(|outer| signature(steps[outer])).unwrap_or_default();
            *calls.entry(format!("{caller} -> {}", signature(steps[steps.len() - 1]))).or_default() += 1;
        }
        let counted = recording.manifest["calls"].as_object().unwrap().iter();
        let counted: BTreeMap<String, u64> =
            counted.map(|(edge, count)| (edge.clone(), count.as_u64().unwrap())).collect();
        assert_eq!(calls, counted, "{}", recording.name);
    }
}

#[test]
fn signatures_are_split_as_the_event_model_says() {
    let method = names::method("demo/Tracee.main;9;([Ljava/lang/String;)V").unwrap();
    assert_eq!((method.function.as_str(), method.access), ("demo.Tracee.main", 9));
    assert_eq!(method.descriptor, "([Ljava/lang/String;)V");
    for other in ["", "a", "demo/A.f", "demo/A.f;1", "demo/A.f;x;()V"] {
        assert_eq!((names::method(other), names::function(other)), (None, other.to_owned()));
    }
}
