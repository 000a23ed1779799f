//! Compares events with expectations. All differences are collected, so that one run shows them all.

use std::fmt::Display;

use serde_json::Value;

use super::contract::{self, Expected, Want};
use super::recording::{Message, sha256};

/// The differences, each with its place.
#[derive(Default)]
pub struct Problems {
    context: String,
    found: Vec<String>,
}

impl Problems {
    /// Sets the recording for the following differences.
    pub fn with(&mut self, context: impl Into<String>) -> &mut Self {
        self.context = context.into();
        self
    }

    pub fn add(&mut self, problem: impl Display) {
        self.found.push(format!("{}: {problem}", self.context));
    }

    pub fn check(&mut self, holds: bool, problem: impl FnOnce() -> String) {
        if !holds {
            self.add(problem());
        }
    }

    /// Fails with the first differences, if there are any.
    pub fn assert_none(self) {
        let shown: Vec<_> = self.found.iter().take(40).map(|problem| shortened(problem)).collect();
        assert!(self.found.is_empty(), "{} problems:\n{}\n", self.found.len(), shown.join("\n"));
    }
}

fn shortened(text: &str) -> String {
    if text.chars().count() > 600 { text.chars().take(600).chain("…".chars()).collect() } else { text.to_owned() }
}

/// Compares the events of one message, in order; losses and the ends of dumps separately where they are unknown.
pub fn check_message(problems: &mut Problems, message: &Message, events: &[Value]) {
    let expected = contract::collection(message);
    let events: Vec<&Value> = events.iter().filter(|event| event["kind"] != "loss").collect();
    if message.objects.is_empty() {
        // Generated dumps announce arbitrary numbers of objects: most are never complete.
        let is_compared = |name: &str| name != "rbkit.heap.dump";
        let expected: Vec<_> = expected.into_iter().filter(|event| is_compared(&event.name)).collect();
        let events: Vec<_> = events.into_iter().filter(|event| is_compared(event["name"].as_str().unwrap())).collect();
        check_list(problems, &expected, &events);
        check_sums(problems, message, &events);
    } else {
        check_list(problems, &expected, &events);
    }
}

fn check_list(problems: &mut Problems, expected: &[Expected], events: &[&Value]) {
    problems.check(expected.len() == events.len(), || {
        let mut lists = (expected.iter().map(|event| event.name.as_str()), events.iter().map(|event| &event["name"]));
        let differ = (0..).find(|_| match (lists.0.next(), lists.1.next()) {
            (Some(want), Some(found)) => want != found,
            _ => true,
        });
        format!("{} events, not {}; they differ from number {differ:?} on", events.len(), expected.len())
    });
    for (number, (expected, event)) in expected.iter().zip(events).enumerate() {
        for difference in differences(expected, event) {
            problems.add(format_args!("event {number}, {}: {difference}", expected.name));
        }
    }
}

/// The difference between an event and its expectation.
fn differences(expected: &Expected, event: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let mut check = |what: &str, want: &Want, value: &Value| {
        if !want.is_met(value) {
            found.push(format!("{what} is {value}, not {want:?}"));
        }
    };
    check("kind", &Want::Is(expected.kind.into()), &event["kind"]);
    check("name", &Want::Is(expected.name.clone().into()), &event["name"]);
    check("time", &Want::Is(time(expected.millis).into()), &event["time"]);
    check("basis", &Want::Absent, &event["attributes"]["tributary.time.basis"]);
    let repaired = if expected.is_repaired { Want::Is(true.into()) } else { Want::Absent };
    let is_listed = expected.name != "rbkit.heap.object" || !expected.attributes.is_empty();
    if is_listed {
        for (name, want) in &expected.attributes {
            check(name, want, &event["attributes"][*name]);
        }
        check("text repaired", &repaired, &event["attributes"]["tributary.text.repaired"]);
    }
    for (name, want) in &expected.data {
        check(name, want, &event[expected.kind][*name]);
    }
    if expected.kind == "sample" {
        let none = Vec::new();
        let frames = event["sample"]["frames"].as_array().unwrap_or(&none);
        check("frames", &Want::Is(expected.frames.len().into()), &frames.len().into());
        for (frame, want) in frames.iter().zip(&expected.frames) {
            for (name, want) in ["function", "file", "line"].into_iter().zip(want) {
                check(name, want, &frame[name]);
            }
        }
    }
    let attributes = event["attributes"].as_object().into_iter().flatten();
    for (name, value) in attributes.filter(|(name, _)| is_listed && !name.starts_with("tributary.")) {
        if !expected.attributes.iter().any(|(known, _)| known == name) {
            found.push(format!("{name} is {value}, which is not expected"));
        }
    }
    found
}

/// The objects of a dump when only their hash is known.
fn check_sums(problems: &mut Problems, message: &Message, events: &[&Value]) {
    let mut objects = events.iter().filter(|event| event["name"] == "rbkit.heap.object");
    for dump in message.decoded["events"].as_array().unwrap() {
        if dump["e"] != "object_space_dump" {
            continue;
        }
        let mine = objects.by_ref().take(dump["objects"].as_u64().unwrap() as usize);
        let lines: Vec<u8> = mine.flat_map(|event| line(&event["attributes"])).collect();
        problems.check(dump["objects_sha256"] == sha256(&lines), || format!("objects of {dump} differ"));
    }
}

/// The only text of generated dumps that is not UTF-8, as sent and as repaired.
const LATIN: (&[u8], &str) = (b"caf\xe9.rb", "caf\u{fffd}.rb");

/// An object in the form of the hash.
fn line(attributes: &Value) -> Vec<u8> {
    let text = |name: &str| match attributes[name].as_str() {
        Some(text) => text.replace('\\', "\\\\").replace('\t', "\\t").replace('\n', "\\n"),
        None => "\\N".to_owned(),
    };
    let number = |name: &str| match &attributes[name] {
        Value::Null => "\\N".to_owned(),
        number => number.to_string(),
    };
    let references = attributes["rbkit.object.references"].as_array().into_iter().flatten();
    let references: Vec<_> = references.map(Value::to_string).collect();
    let [id, line, size] = ["rbkit.object.id", "code.line.number", "rbkit.object.size"].map(number);
    let [class, file] = ["rbkit.class.name", "code.file.path"].map(|name| match text(name) {
        text if text == LATIN.1 => LATIN.0.to_vec(),
        text => text.into_bytes(),
    });
    let fields =
        [id.into_bytes(), class, file, line.into_bytes(), size.into_bytes(), references.join(",").into_bytes()];
    [fields.join(&b'\t'), b"\n".to_vec()].concat()
}

/// Milliseconds since 1970 in the time format of JSON lines.
pub fn time(millis: u64) -> String {
    let days = millis / 86_400_000;
    let (hours, minutes) = (millis / 3_600_000 % 24, millis / 60_000 % 60);
    let (seconds, millis) = (millis / 1_000 % 60, millis % 1_000);
    // From days to a date: https://howardhinnant.github.io/date_algorithms.html
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{hours:02}:{minutes:02}:{seconds:02}.{millis:03}000000Z")
}

/// The events of the message with this counter.
pub fn of_message(events: &[Value], counter: u64) -> Vec<Value> {
    let mine = |event: &&Value| event["origin"]["sequence"] == counter && event["name"] != "rbkit.handshake";
    events.iter().filter(mine).cloned().collect()
}

pub fn named<'a>(events: &'a [Value], name: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event["name"] == name).collect()
}

/// Compares the resource of events with a handshake.
pub fn check_resource<'a>(problems: &mut Problems, handshake: &Value, events: impl IntoIterator<Item = &'a Value>) {
    let resource = contract::resource(handshake);
    for event in events {
        for (name, value) in &resource {
            let found = &event["resource"][*name];
            problems.check(found == value, || format!("{} has {name} {found}, not {value}", event["name"]));
        }
    }
}
