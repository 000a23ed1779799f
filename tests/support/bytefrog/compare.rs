//! Compares events with expectations. Every difference is reported, so that one run shows them all.

use std::collections::BTreeMap;
use std::fmt::Display;

use serde_json::Value;
use tributary::event::Reason;
use tributary::pipeline::accounting::ListenerTotals;

use super::contract::{Expected, ExpectedLoss, ExpectedRun, HEALTH, Want};
use super::recording::Recording;
use super::replay::Replayed;

/// The problems found, each with its position.
#[derive(Default)]
pub struct Problems {
    context: String,
    found: Vec<String>,
}

impl Problems {
    /// From here on, problems belong to this recording.
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

    pub fn count(&self) -> usize {
        self.found.len()
    }

    /// Fails with the first problems, if there are any.
    pub fn assert_none(self) {
        let shown = self
            .found
            .iter()
            .take(std::env::var("SHOW").map_or(40, |show| show.parse().unwrap()))
            .cloned()
            .collect::<Vec<_>>()
            .join("\n");
        assert!(self.found.is_empty(), "{} problems:\n{shown}\n", self.found.len());
    }
}

impl Want {
    /// Whether this value, or its absence, is expected.
    pub fn is_met(&self, value: Option<&Value>) -> bool {
        match (self, value) {
            (Want::Maybe(_), None) => true,
            (_, None) => false,
            (Want::Is(want), Some(value)) => want == value,
            (Want::In(wants), Some(value)) => wants.contains(value),
            (Want::Repaired, Some(value)) => value.as_str().is_some_and(|text| text.contains('\u{fffd}')),
            (Want::Hex, Some(value)) => {
                value.as_str().is_some_and(|id| id.bytes().all(|byte| byte.is_ascii_hexdigit()))
            }
            (Want::Maybe(want), value) => want.is_met(value),
        }
    }
}

/// Compares everything that a daemon wrote for one replayed recording.
pub fn check(
    problems: &mut Problems,
    recording: &Recording,
    replayed: &Replayed,
    events: &[Value],
    expected: &[Expected],
) {
    let mut messages: BTreeMap<(usize, u64), Vec<&Value>> = BTreeMap::new();
    for event in events.iter().filter(|event| !is_of_run(event)) {
        let peer = replayed.peers.iter().position(|peer| event["origin"]["peer"] == **peer);
        match (peer, event["origin"]["offset"].as_u64()) {
            (Some(stream), Some(offset)) => messages.entry((stream, offset)).or_default().push(event),
            _ => problems.add(format_args!("an event of no connection: {event}")),
        }
    }
    for want in expected {
        let at = format!("{}+{} {}", recording.streams[want.stream].name, want.offset, want.name);
        let found = messages.entry((want.stream, want.offset)).or_default();
        match found.iter().position(|event| event["kind"] == want.kind && event["name"] == want.name) {
            Some(index) => {
                let event = found.remove(index);
                check_event(problems, &at, want, event);
                if want.loss.is_none() {
                    check_resource(problems, &at, recording, replayed, event);
                }
            }
            None => problems
                .add(format_args!("{at}: missing; there is {}", Value::from_iter(found.iter().copied().cloned()))),
        }
    }
    for ((stream, offset), events) in messages {
        for event in events {
            problems.add(format_args!("{}+{offset}: not expected: {event}", recording.streams[stream].name));
        }
    }
}

/// Compares one event with its message.
pub fn check_event(problems: &mut Problems, at: &str, want: &Expected, event: &Value) {
    let origin = &event["origin"];
    if want.kind == "log" {
        problems.check(event["severity"] == want.severity, || format!("{at}: severity {}", event["severity"]));
    }
    let place = (origin["offset"].as_u64(), origin["length"].as_u64());
    let is_there = place == (Some(want.offset), Some(want.length));
    problems.check(is_there || want.loss.is_some(), || format!("{at}: place {place:?}, not of {} bytes", want.length));
    if let (Some(sequence), None) = (want.sequence, &want.loss) {
        let got = origin["sequence"].as_u64();
        problems.check(got == Some(sequence.into()), || format!("{at}: sequence {got:?}, not {sequence}"));
    }
    check_attributes(problems, at, want, &event["attributes"]);
    match (&want.body, event.get("body")) {
        (None, None) => {}
        (Some(body), got) if body.is_met(got) => {}
        (body, got) => problems.add(format_args!("{at}: body {got:?}, not {body:?}")),
    }
    check_time(problems, at, want, event);
    if let Some(loss) = &want.loss {
        check_loss(problems, at, loss, &event["loss"]);
    }
}

pub fn check_attributes(problems: &mut Problems, at: &str, want: &Expected, attributes: &Value) {
    for (key, want) in &want.attributes {
        let got = attributes.get(key);
        problems.check(want.is_met(got), || format!("{at}: {key} is {got:?}, not {want:?}"));
    }
    let more =
        attributes.as_object().into_iter().flatten().filter(|(key, _)| !want.attributes.contains_key(key.as_str()));
    for (key, value) in more.filter(|_| !want.may_have_more) {
        problems.add(format_args!("{at}: not expected: {key} = {value}"));
    }
}

/// Times of the peer are on a base that is fixed when the first event is written. A recording is replayed faster than it
/// was recorded, so its events may lie ahead of their arrival, but for a second at most.
fn check_time(problems: &mut Problems, at: &str, want: &Expected, event: &Value) {
    let [time, observed] = ["time", "observed_time"].map(|key| event[key].as_str().unwrap_or_default());
    let is_right = match want.relative_millis {
        _ if want.loss.is_some() => true,
        // A file has no arrival time that could give the base.
        Some(_) if event["origin"]["listener"] == "decode" => !time.is_empty(),
        Some(_) => {
            let [time, observed] = [time, observed].map(|text| text.parse::<jiff::Timestamp>().unwrap());
            time <= observed + jiff::SignedDuration::from_secs(1)
        }
        None => time == observed,
    };
    problems.check(is_right, || format!("{at}: time {time}, observed {observed}"));
}

fn check_loss(problems: &mut Problems, at: &str, want: &ExpectedLoss, loss: &Value) {
    let reason = loss["reason"].as_str().unwrap_or_default();
    problems.check(want.reasons.contains(&reason), || format!("{at}: reason {reason}, not {:?}", want.reasons));
    problems.check(loss["bytes"] == want.bytes, || format!("{at}: {} bytes lost, not {}", loss["bytes"], want.bytes));
    if want.events.is_some() {
        let events = loss["events"].as_u64();
        problems.check(events == want.events, || format!("{at}: {events:?} events lost, not {:?}", want.events));
    }
    let lost: String = want.lost.iter().take(64).map(|byte| format!("{byte:02x}")).collect();
    let excerpt = loss["excerpt"].as_str().unwrap_or_default();
    let is_right = lost.starts_with(excerpt) && (excerpt.is_empty() == lost.is_empty());
    problems.check(is_right, || format!("{at}: excerpt {excerpt} of {lost}"));
    problems.check(loss["detail"].is_string(), || format!("{at}: no detail"));
}

/// Checks the resource. Numbers may be numbers or text.
fn check_resource(problems: &mut Problems, at: &str, recording: &Recording, replayed: &Replayed, event: &Value) {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let hello = &recording.streams[0].messages[0];
    let mut want = vec![
        ("bytefrog.run.id", replayed.run.unwrap().to_string()),
        ("bytefrog.protocol.version", recording.version().unwrap().to_string()),
    ];
    want.extend(hello.number("project_id").map(|project| ("bytefrog.project.id", project.to_string())));
    let resource = event["resource"].as_object();
    for (key, want) in &want {
        let got = resource.and_then(|resource| resource.get(*key)).map(text);
        problems.check(got.as_ref() == Some(want), || format!("{at}: resource {key} is {got:?}, not {want}"));
    }
    let is_listed = |key: &str| want.iter().any(|(listed, _)| *listed == key);
    for (key, value) in resource.into_iter().flatten().filter(|(key, _)| !is_listed(key)) {
        problems.add(format_args!("{at}: not expected: resource {key} = {value}"));
    }
    let version = text(&event["origin"]["version"]);
    problems.check(version == want[1].1, || format!("{at}: origin.version is {version}"));
    let (protocol, listener) = (&event["origin"]["protocol"], &event["origin"]["listener"]);
    let is_named = listener == "test" || listener == "decode";
    problems.check(protocol == "bytefrog" && is_named, || format!("{at}: of {protocol}, {listener}"));
}

/// Whether an event belongs to the run and not to a message.
pub fn is_of_run(event: &Value) -> bool {
    let name = event["name"].as_str().unwrap_or_default();
    let is_run_loss =
        name == "tributary.loss" && (event["loss"]["reason"] == "gap" || event["loss"]["reason"] == "unresolved");
    name == "bytefrog.run.ended" || HEALTH.contains(&name) || is_run_loss
}

/// Checks what is reported about the run: its end, its gaps, and the number of events with raw ids.
pub fn check_run(problems: &mut Problems, has_run: bool, events: &[Value], want: &ExpectedRun) {
    let ended: Vec<_> = events.iter().filter(|event| event["name"] == "bytefrog.run.ended").collect();
    problems.check(ended.len() == usize::from(has_run), || format!("{} ends of runs", ended.len()));
    for end in ended {
        let attribute = |key: &str| end["attributes"][key].as_u64();
        let got = (attribute("bytefrog.run.events"), attribute("bytefrog.run.gaps"));
        let wanted = (Some(want.sequenced), Some(want.gaps.len() as u64));
        problems.check(got == wanted, || format!("run.ended has (events, gaps) {got:?}, not {wanted:?}"));
        problems.check(attribute("bytefrog.run.duration_ms").is_some(), || format!("no duration: {end}"));
        problems.check(end["severity"] == "INFO", || format!("severity of {end}"));
    }
    let losses = |reason: &str| {
        let is_of_run = |event: &&Value| event["name"] == "tributary.loss" && event["loss"]["reason"] == reason;
        events.iter().filter(is_of_run).collect::<Vec<_>>()
    };
    let mut gaps = Vec::new();
    for loss in losses("gap") {
        let number = |key: &str| loss["attributes"][key].as_u64().unwrap_or(u64::MAX);
        let (first, last) = (number("bytefrog.sequence.first"), number("bytefrog.sequence.last"));
        gaps.push((first as u32, last as u32));
        let is_counted = loss["loss"]["bytes"] == 0
            && loss["loss"]["events"].as_u64() == last.checked_sub(first).map(|more| more + 1);
        problems.check(is_counted, || format!("the figures of {loss}"));
    }
    gaps.sort_unstable();
    problems.check(gaps == want.gaps, || format!("gaps {gaps:?}, not {:?}", want.gaps));
    let is_unresolved = |event: &&Value| {
        let mut keys = event["attributes"].as_object().into_iter().flatten();
        keys.any(|(key, _)| key.starts_with("bytefrog.unresolved."))
    };
    let unresolved = events.iter().filter(is_unresolved).count() as u64;
    let reported: u64 =
        losses("unresolved").iter().map(|loss| loss["loss"]["events"].as_u64().unwrap_or_default()).sum();
    problems.check(reported == unresolved, || format!("{unresolved} events have raw ids, losses report {reported}"));
}

/// Checks that received bytes are decoded or lost, and lost for the reasons of the losses.
pub fn check_books(problems: &mut Problems, counters: &ListenerTotals, bytes_sent: u64, expected: &[Expected]) {
    problems.check(counters.bytes_in == bytes_sent, || format!("{} bytes in, not {bytes_sent}", counters.bytes_in));
    let sum = counters.bytes_decoded + counters.lost();
    problems.check(sum == bytes_sent, || format!("{sum} bytes are decoded or lost, not {bytes_sent}"));
    let lost: u64 = expected.iter().filter_map(|event| event.loss.as_ref()).map(|loss| loss.bytes).sum();
    let by_reason: Vec<_> =
        Reason::ALL.iter().map(|reason| (reason.as_str(), counters.bytes_lost[reason.index()])).collect();
    problems.check(counters.lost() == lost, || format!("{} bytes lost, not {lost}: {by_reason:?}", counters.lost()));
    for (reason, bytes) in by_reason {
        let losses =
            expected.iter().filter_map(|event| event.loss.as_ref()).filter(|loss| loss.reasons.contains(&reason));
        let most: u64 = losses.map(|loss| loss.bytes).sum();
        problems.check(bytes <= most, || format!("{bytes} bytes lost as {reason}, not {most}"));
    }
}
