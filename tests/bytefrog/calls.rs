//! Calls as spans: the daemon pairs the entries and exits of every recorded run, and a model that reads the independent
//! decode checks them.
//!
//! The shape of spans, and the logs beside them, are checked in `bytefrog_support/calls.rs`.

use std::collections::{BTreeMap, BTreeSet};

use crate::bytefrog_support::calls::{Model, Spans, check_lines};
use crate::bytefrog_support::compare::{self, Problems};
use crate::bytefrog_support::names::{self, Known, Method};
use crate::bytefrog_support::recording::{self, Recording};
use crate::bytefrog_support::replay::{Replayed, replay};
use crate::bytefrog_support::{contract, daemon_for_recordings};
use crate::live::Stopped;
use serde_json::Value;

async fn played(recording: &Recording, options: &str) -> (Replayed, Stopped) {
    let daemon = daemon_for_recordings(options).await;
    let replayed = replay(&daemon, recording).await;
    (replayed, daemon.stop().await)
}

/// Replays recordings with calls as `mode` and compares spans and logs with the model.
async fn check_all(recordings: &[Recording], mode: &str, more: &str) {
    let mut problems = Problems::default();
    for recording in recordings {
        problems.with(&recording.name);
        let options = format!("calls = \"{mode}\"\n{more}");
        let (replayed, stopped) = played(recording, &options).await;
        check(&mut problems, recording, &replayed, &stopped, mode == "both", true);
    }
    problems.assert_none();
}

fn check(
    problems: &mut Problems,
    recording: &Recording,
    replayed: &Replayed,
    stopped: &Stopped,
    keeps_calls: bool,
    heeds_breaks: bool,
) {
    let model = Model::of(recording, heeds_breaks);
    let spans = Spans::of(problems, recording, &stopped.events);
    check_lines(problems, "a call", &model.calls, &spans.calls);
    check_lines(problems, "a thrown exception", &model.thrown, &spans.thrown);
    let mut expected = contract::expected(recording, Known::All);
    expected.retain(|event| event.severity != "DEBUG");
    let lost = expected.clone();
    let logs: Vec<Value> = stopped.events.iter().filter(|event| event["kind"] != "span").cloned().collect();
    compare::check(problems, recording, replayed, &logs, &model.logs(expected, keeps_calls));
    compare::check_books(problems, &stopped.totals.listeners[0], replayed.bytes_sent, &lost);
}

/// All recordings with meaningful calls: messages of edge values repeat their numbers, and numbers on both sides of the
/// wrap have no order that a collector could know.
fn recordings(prefixes: &[&str]) -> Vec<Recording> {
    let mut all = recording::all(prefixes);
    all.retain(|recording| {
        let name = recording.name.as_str();
        let is_odd = name.ends_with("-synthetic") || name == "edge-v1-sequence-wrap" || name == "edge-v1-late-break";
        recording.has_run() && !is_odd
    });
    all
}

#[tokio::test]
async fn calls_of_version_1_agents_become_spans() {
    check_all(&recordings(&["v1-"]), "spans", "").await;
}

#[tokio::test]
async fn calls_of_version_2_3_and_4_agents_become_spans() {
    check_all(&recordings(&["v2-", "v3-", "v4-"]), "spans", "").await;
}

#[tokio::test]
async fn calls_of_generated_conversations_become_spans() {
    check_all(&recordings(&["gen-", "edge-"]), "spans", "").await;
}

#[tokio::test]
async fn calls_before_a_malformed_end_become_spans() {
    check_all(&recordings(&["bad-"]), "spans", "").await;
}

#[tokio::test]
async fn calls_become_the_same_spans_in_order_of_sequence() {
    check_all(&recordings(&["v1-orig-m", "v4-codepulse-m", "gen-"]), "spans", "order = \"sequence\"").await;
}

#[tokio::test]
async fn calls_can_be_both_spans_and_events() {
    check_all(&recordings(&["v1-orig-m", "v2-release", "v4-codepulse-m", "gen-", "edge-v1"]), "both", "").await;
}

/// The break arrives when everything has been delivered. A collector without delay has closed the call already; one
/// with delay drops it. Both are right.
#[tokio::test]
async fn a_call_cut_by_a_late_break_is_complete_or_has_no_end() {
    let recording = recording::one("edge-v1-late-break");
    let (replayed, stopped) = played(&recording, "calls = \"spans\"").await;
    let mut tried = [true, false].map(|heeds_breaks| {
        let mut problems = Problems::default();
        check(&mut problems, &recording, &replayed, &stopped, false, heeds_breaks);
        problems
    });
    tried.sort_by_key(Problems::count);
    tried.into_iter().next().unwrap().assert_none();
}

/// Run ids are reused, so span ids cannot depend on the run id alone.
#[tokio::test]
async fn two_runs_of_the_same_run_id_have_no_span_id_in_common() {
    let recording = recording::one("v4-codepulse-modes");
    let mut problems = Problems::default();
    let mut seen = Vec::new();
    for _ in 0..2 {
        let (replayed, stopped) = played(&recording, "calls = \"spans\"").await;
        seen.push((replayed.run, Spans::of(&mut problems, &recording, &stopped.events)));
    }
    problems.assert_none();
    let [(first_run, first), (second_run, second)] = &seen[..] else { panic!() };
    assert_eq!(first_run, second_run, "each is the first of its daemon");
    assert_eq!(first.calls, second.calls);
    let common = |id: fn(&(String, String, String)) -> &str| {
        let [first, second] = [first, second].map(|spans| spans.ids.iter().map(id).collect::<BTreeSet<_>>());
        first.intersection(&second).count()
    };
    assert_eq!((common(|(trace, ..)| trace), common(|(_, span, _)| span)), (0, 0));
}

/// The generator of these conversations has counted independently.
#[tokio::test]
async fn callers_and_callees_are_as_often_as_the_generator_says() {
    for recording in recordings(&["gen-"]) {
        let (_, stopped) = played(&recording, "calls = \"spans\"").await;
        let mut problems = Problems::default();
        let spans = Spans::of(&mut problems, &recording, &stopped.events);
        let mut entries: BTreeMap<Method, u64> = BTreeMap::new();
        let mut calls: BTreeMap<(Option<Method>, Method), u64> = BTreeMap::new();
        for (caller, callee) in spans.edges {
            *entries.entry(callee.clone()).or_default() += 1;
            *calls.entry((caller, callee)).or_default() += 1;
        }
        assert_eq!(entries, counted(&recording.manifest["entries_by_signature"], |key| names::method(key).unwrap()));
        let edge = |key: &str| {
            let (caller, callee) = key.split_once(" -> ").unwrap();
            (names::method(caller), names::method(callee).unwrap())
        };
        assert_eq!(calls, counted(&recording.manifest["calls"], edge));
    }
}

fn counted<K: Ord>(counts: &Value, key: impl Fn(&str) -> K) -> BTreeMap<K, u64> {
    let mut counted = BTreeMap::new();
    for (text, count) in counts.as_object().unwrap() {
        *counted.entry(key(text)).or_default() += count.as_u64().unwrap();
    }
    counted
}
