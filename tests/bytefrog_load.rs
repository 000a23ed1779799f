//! Many agents at once, as fast as they can write, and windows that are too small: whatever the order of things,
//! events stay with their runs, and every message is accounted for once.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed; the lint knows only test functions")]

mod bytefrog_support;
mod live;

use std::sync::Arc;

use bytefrog_support::calls::{Model, Spans, check_lines};
use bytefrog_support::compare::{self, Problems};
use bytefrog_support::names::Known;
use bytefrog_support::recording::{self, Recording};
use bytefrog_support::replay::{Pace, Replayed, play, replay};
use bytefrog_support::{contract, daemon_for_recordings};
use serde_json::Value;
use tokio::task::JoinSet;

/// Plays each of these recordings so many times, all at once.
async fn play_together(names: &[&str], times: usize, options: &str) -> (Vec<(Recording, Replayed)>, Vec<Value>) {
    let daemon = Arc::new(daemon_for_recordings(options).await);
    let mut agents = JoinSet::new();
    for recording in names.iter().cycle().take(times * names.len()).map(|name| recording::one(name)) {
        let daemon = daemon.clone();
        agents.spawn(async move {
            let replayed = play(&daemon, &recording, Pace::Free).await;
            (recording, replayed)
        });
    }
    let played = agents.join_all().await;
    daemon.until_all_closed().await;
    let stopped = Arc::into_inner(daemon).unwrap().stop().await;
    let sent: u64 = played.iter().map(|(_, replayed)| replayed.bytes_sent).sum();
    let books = &stopped.accounts.listeners[0];
    assert_eq!((books.bytes_in, books.bytes_decoded + books.lost()), (sent, sent));
    (played, stopped.events)
}

/// The events of the connections of one agent.
fn of(replayed: &Replayed, events: &[Value]) -> Vec<Value> {
    let is_own = |event: &&Value| replayed.peers.iter().any(|peer| event["origin"]["peer"] == **peer);
    events.iter().filter(is_own).cloned().collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_agents_at_once_have_each_their_own_events() {
    let names = ["v1-orig-mix", "v1-orig-modes", "v2-release-mix", "v4-codepulse-mix", "gen-v1-conversation"];
    let (played, events) = play_together(&names, 3, "emit_definitions = true").await;
    let mut problems = Problems::default();
    for (recording, replayed) in &played {
        problems.with(&recording.name);
        let expected = contract::expected(recording, Known::All);
        let own = of(replayed, &events);
        compare::check(&mut problems, recording, replayed, &own, &expected);
        compare::check_run(&mut problems, true, &own, &contract::expected_run(recording));
    }
    problems.assert_none();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_agents_at_once_have_each_their_own_calls() {
    let names = ["v1-orig-mix", "v1-orig-64-threads-4MiB-budget", "v2-release-mix", "v4-codepulse-mix", "gen-v3-small"];
    let (played, events) = play_together(&names, 3, "calls = \"spans\"").await;
    let mut problems = Problems::default();
    for (recording, replayed) in &played {
        problems.with(&recording.name);
        let spans = Spans::of(&mut problems, recording, &of(replayed, &events));
        check_lines(&mut problems, "a call", &Model::of(recording, true).calls, &spans.calls);
    }
    problems.assert_none();
}

/// What most listeners are. Nothing takes so long here that an event would be given up.
#[tokio::test]
async fn with_the_defaults_every_message_becomes_its_event() {
    let mut problems = Problems::default();
    for recording in recording::all(&["v1-orig-m", "v1-orig-64", "v2-rel", "v4-codepulse-m", "gen-"]) {
        problems.with(&recording.name);
        let daemon = bytefrog_support::daemon("data_connections = 3").await;
        let replayed = replay(&daemon, &recording).await;
        let stopped = daemon.stop().await;
        let mut expected = contract::expected(&recording, Known::AsItCame);
        expected.retain(|event| event.severity != "DEBUG");
        compare::check(&mut problems, &recording, &replayed, &stopped.events, &expected);
        compare::check_run(&mut problems, true, &stopped.events, &contract::expected_run(&recording));
    }
    problems.assert_none();
}

/// Numbers are given up before they come, names are not waited for: then calls stay open or exits find none, but each
/// entry and each exit is in one span or is a log.
#[tokio::test]
async fn in_windows_that_are_too_small_each_entry_and_exit_is_still_told_once() {
    let mut problems = Problems::default();
    let hasty = "calls = \"spans\"\nreorder_window = \"1ms\"\nunresolved_wait = \"0s\"\nrename_wait = \"0s\"";
    for options in [hasty, "calls = \"spans\"\nmax_waiting = 1024"] {
        for recording in recording::all(&["v1-orig-mix", "v1-orig-64", "v2-rel", "v4-codepulse-mix", "gen-v1-conv"]) {
            problems.with(&recording.name);
            let daemon = bytefrog_support::daemon(&format!("data_connections = 3\n{options}")).await;
            let replayed = replay(&daemon, &recording).await;
            let stopped = daemon.stop().await;
            let sent = |types: &[u8]| {
                let is_one = |type_id: Option<u8>| type_id.is_some_and(|type_id| types.contains(&type_id));
                recording.messages().filter(|(_, message)| is_one(message.type_id())).count()
            };
            let logs = |name: &str| stopped.events.iter().filter(|event| event["name"] == name).count();
            let spans: Vec<_> = stopped.events.iter().filter(|event| event["kind"] == "span").collect();
            let closed = spans.iter().filter(|event| event["span"].get("duration_ns").is_some()).count();
            let entries = (sent(&[20]), spans.len() + logs("bytefrog.method.entry"));
            let exits = (sent(&[21, 23]), closed + logs("bytefrog.method.exit") + logs("bytefrog.exception.bubbled"));
            let inside = (sent(&[22, 14]), logs("bytefrog.exception.thrown") + logs("bytefrog.method.visit"));
            for (what, (sent, told)) in [("entries", entries), ("exits", exits), ("others", inside)] {
                problems.check(sent == told, || format!("{sent} {what} were sent, {told} are told"));
            }
            let books = &stopped.accounts.listeners[0];
            problems.check(books.lost() == 0, || format!("{} bytes are lost", books.lost()));
            problems.check(books.bytes_decoded == replayed.bytes_sent, || format!("{} decoded", books.bytes_decoded));
        }
    }
    problems.assert_none();
}
