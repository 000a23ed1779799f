//! Calls of a recording, paired by an independent model, and the spans of a daemon in the same form.
//!
//! The model reads events in the order of their numbers. Per thread an entry opens a call inside the open one; an exit
//! or a bubbling exception closes the innermost; a thrown exception closes nothing. A data break ends every open call
//! when its number is reached, and the end of the run ends the rest.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use serde_json::Value;

use super::compare::Problems;
use super::contract::{Expected, UNRESOLVED_METHOD, Want};
use super::names::{self, Names};
use super::recording::{Message, Recording};
use super::text::Text;

/// A call in a comparison: where it is in its thread, and how it ended.
///
/// `thread 3: 7@12 > 9@13 | 5 ms error demo.E`: method 9 entered at 13 ms inside method 7.
pub type Line = String;

/// The events of a recording after entries and exits are paired.
#[derive(Default)]
pub struct Model {
    /// Every call.
    pub calls: Vec<Line>,
    /// Every exception that was thrown inside a call.
    pub thrown: Vec<Line>,
    /// Entries and exits that a call replaces: position and type.
    pub paired: BTreeSet<(usize, u64)>,
    /// Thrown exceptions and visits that belong to a call.
    pub inside: BTreeSet<(usize, u64)>,
}

struct Open<'a> {
    path: String,
    entry: &'a Message,
}

impl Model {
    pub fn of(recording: &Recording, heeds_breaks: bool) -> Model {
        let names = Names::of(recording);
        let mut events = BTreeMap::new();
        let mut breaks = BTreeSet::new();
        for (stream, message) in recording.messages() {
            match (message.sequence(), message.type_id()) {
                (Some(sequence), _) => drop(events.entry(sequence).or_insert((stream, message))),
                (None, Some(9)) if heeds_breaks => drop(breaks.insert(message.number("seq").unwrap() as u32)),
                _ => {}
            }
        }
        let mut model = Model::default();
        let mut threads: BTreeMap<u64, Vec<Open<'_>>> = BTreeMap::new();
        for (sequence, (stream, message)) in events {
            if breaks.first().is_some_and(|number| *number <= sequence) {
                breaks = breaks.split_off(&(sequence + 1));
                model.forget(std::mem::take(&mut threads));
            }
            let Some(thread) = message.number("thread") else { continue };
            let open = threads.entry(thread).or_default();
            let (place, time) = ((stream, message.offset()), message.number("time").unwrap());
            match message.type_id() {
                Some(20) => {
                    let outer =
                        open.last().map_or_else(|| format!("thread {thread}:"), |outer| format!("{} >", outer.path));
                    let path = format!("{outer} {}@{time}", message.number("method").unwrap());
                    open.push(Open { path, entry: message });
                    model.paired.insert(place);
                }
                Some(21 | 23) => {
                    let Some(call) = open.pop() else { continue };
                    let millis = time - call.entry.number("time").unwrap();
                    let mut line = format!("{} | {millis} ms", call.path);
                    if message.type_id() == Some(23) {
                        write!(line, " error {}", exception(&names, message)).unwrap();
                    } else if message.field("threw") == true {
                        line.push_str(" error");
                    }
                    model.calls.push(line);
                    model.paired.insert(place);
                }
                Some(22) => {
                    let Some(call) = open.last() else { continue };
                    model.thrown.push(format!("{} | {} at {time}", call.path, exception(&names, message)));
                    model.inside.insert(place);
                }
                _ => {}
            }
        }
        model.forget(threads);
        model.calls.sort();
        model.thrown.sort();
        model
    }

    /// Calls that stay open have no end.
    fn forget(&mut self, threads: BTreeMap<u64, Vec<Open<'_>>>) {
        self.calls.extend(threads.into_values().flatten().map(|call| format!("{} | no end", call.path)));
    }

    /// The logs that remain when calls are spans: everything that is not part of one. An exception thrown inside a call
    /// has the ids of its span.
    pub fn logs(&self, mut expected: Vec<Expected>, keeps_calls: bool) -> Vec<Expected> {
        expected.retain(|event| {
            keeps_calls || event.loss.is_some() || !self.paired.contains(&(event.stream, event.offset))
        });
        for event in expected.iter_mut().filter(|event| event.loss.is_none()) {
            let place = (event.stream, event.offset);
            let is_of_call = self.paired.contains(&place) || event.name == "bytefrog.method.visit";
            for id in ["trace_id", "span_id"] {
                if self.inside.contains(&place) {
                    event.wants(id, Want::Hex);
                } else if is_of_call {
                    // The event model leaves open whether these have the ids of a span.
                    event.wants(id, Want::Maybe(Box::new(Want::Hex)));
                }
            }
        }
        expected
    }
}

fn exception(names: &Names, message: &Message) -> String {
    let texts = names.exceptions(message.number("exception").unwrap());
    texts.first().and_then(Text::as_str).unwrap_or("of no name").to_owned()
}

/// The spans of a daemon in the form of the model; problems with their shape are reported.
pub struct Spans {
    pub calls: Vec<Line>,
    pub thrown: Vec<Line>,
    /// Trace and span id of every call.
    pub ids: BTreeSet<(String, String, Line)>,
    /// The signature parts of the caller (none for a root) and callee of every call.
    pub edges: Vec<(Option<names::Method>, names::Method)>,
}

impl Spans {
    pub fn of(problems: &mut Problems, recording: &Recording, events: &[Value]) -> Spans {
        let names = Names::of(recording);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut by_id = BTreeMap::new();
        for event in events.iter().filter(|event| event["kind"] == "span") {
            check_shape(problems, &names, event);
            let id = text(&event["span"]["span_id"]);
            problems.check(by_id.insert(id, event).is_none(), || format!("an id that is not its own: {event}"));
        }
        let mut spans = Spans { calls: Vec::new(), thrown: Vec::new(), ids: BTreeSet::new(), edges: Vec::new() };
        for (id, event) in &by_id {
            let span = &event["span"];
            let parent = by_id.get(&text(&span["parent_span_id"])).copied();
            problems.check(parent.is_some() || span.get("parent_span_id").is_none(), || format!("no parent: {event}"));
            let is_of_trace = parent.is_none_or(|parent| parent["span"]["trace_id"] == span["trace_id"]);
            problems.check(is_of_trace, || format!("of another trace than its parent: {event}"));
            let mut line = format!("{} |", path(&by_id, event));
            match span["duration_ns"].as_u64() {
                Some(nanos) => write!(line, " {} ms", nanos / 1_000_000).unwrap(),
                None => line.push_str(" no end"),
            }
            if span["status"] == "error" {
                line.push_str(" error");
                line.extend(event["attributes"]["exception.type"].as_str().map(|name| format!(" {name}")));
            }
            spans.ids.insert((text(&span["trace_id"]), id.clone(), line.clone()));
            spans.calls.push(line);
            if let Some(method) = shown(event) {
                spans.edges.push((parent.and_then(shown), method));
            }
        }
        for event in events.iter().filter(|event| event["name"] == "bytefrog.exception.thrown") {
            let attributes = &event["attributes"];
            let Some(call) = by_id.get(&text(&attributes["span_id"])) else { continue };
            let is_of_trace = attributes["trace_id"] == call["span"]["trace_id"]
                && ["trace_id", "span_id"].iter().all(|id| attributes[*id] == event[*id]);
            problems.check(is_of_trace, || format!("not of the trace of its span: {event}"));
            let (name, time) = (text(&attributes["exception.type"]), &attributes["bytefrog.time.relative_ms"]);
            spans.thrown.push(format!("{} | {name} at {time}", path(&by_id, call)));
        }
        spans.calls.sort();
        spans.thrown.sort();
        spans
    }
}

/// The parts of a signature that a span has.
fn shown(event: &Value) -> Option<names::Method> {
    let attributes = &event["attributes"];
    Some(names::Method {
        function: attributes["code.function.name"].as_str()?.to_owned(),
        access: attributes["bytefrog.method.access"].as_i64()?,
        descriptor: attributes["bytefrog.method.descriptor"].as_str()?.to_owned(),
    })
}

/// The calls around a span, outermost first, and the span.
fn path(by_id: &BTreeMap<String, &Value>, event: &Value) -> String {
    let mut chain = Vec::new();
    let mut at = Some(event);
    while let Some(event) = at.filter(|_| chain.len() <= by_id.len()) {
        let attributes = &event["attributes"];
        chain.push(format!("{}@{}", attributes["bytefrog.method.id"], attributes["bytefrog.time.relative_ms"]));
        at = event["span"]["parent_span_id"].as_str().and_then(|parent| by_id.get(parent).copied());
    }
    chain.reverse();
    format!("thread {}: {}", event["attributes"]["thread.id"], chain.join(" > "))
}

/// Checks what every span must have.
fn check_shape(problems: &mut Problems, names: &Names, event: &Value) {
    let (span, attributes) = (&event["span"], &event["attributes"]);
    let is_hex = |value: &Value, digits: usize| {
        let text = value.as_str().unwrap_or_default();
        text.len() == digits
            && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
            && !text.trim_matches('0').is_empty()
    };
    problems.check(is_hex(&span["trace_id"], 32) && is_hex(&span["span_id"], 16), || format!("ids of {event}"));
    let id = attributes["bytefrog.method.id"].as_u64().unwrap_or(u64::MAX);
    let signatures: Vec<&str> = names.methods(id).iter().filter_map(Text::as_str).collect();
    if names.methods(id).is_empty() {
        problems.check(attributes.get(UNRESOLVED_METHOD).is_some(), || format!("no raw id: {event}"));
    } else if !signatures.is_empty() {
        let function = attributes["code.function.name"].as_str().unwrap_or_default();
        let is_right = |signature: &&str| match names::method(signature) {
            Some(method) => shown(event).as_ref() == Some(&method),
            None => function == *signature,
        };
        problems.check(signatures.iter().any(is_right), || format!("not of {signatures:?}: {event}"));
        problems.check(event["name"] == function || function.is_empty(), || format!("name of {event}"));
    }
    let basis = &attributes["tributary.time.basis"];
    problems.check(basis == "peer_relative", || format!("time basis of {event}"));
    let has_status = ["unset", "ok", "error"].iter().any(|status| span["status"] == **status);
    problems.check(has_status, || format!("status of {event}"));
    let is_open = span.get("duration_ns").is_none();
    let incomplete = attributes.get("tributary.incomplete");
    let says_so = incomplete == Some(&Value::from_iter(["end"]));
    problems.check(is_open == says_so && is_open == span.get("end_time").is_none(), || format!("the end of {event}"));
    if let (Some(nanos), Some(end)) = (span["duration_ns"].as_u64(), span["end_time"].as_str()) {
        let [start, end]: [jiff::Timestamp; 2] =
            [event["time"].as_str().unwrap(), end].map(|time| time.parse().unwrap());
        let between = end.as_nanosecond() - start.as_nanosecond();
        problems.check(between == i128::from(nanos), || format!("{between} ns between the times of {event}"));
    }
}

/// Reports the lines that only one side has.
pub fn check_lines(problems: &mut Problems, what: &str, want: &[Line], got: &[Line]) {
    let mut counts: BTreeMap<&str, i64> = BTreeMap::new();
    want.iter().for_each(|line| *counts.entry(line).or_default() += 1);
    got.iter().for_each(|line| *counts.entry(line).or_default() -= 1);
    for (line, count) in counts.into_iter().filter(|(_, count)| *count != 0) {
        let side = if count > 0 { "missing" } else { "not expected" };
        problems.add(format_args!("{what} {side}, {} times: {line}", count.abs()));
    }
}
