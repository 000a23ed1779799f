//! Every recorded conversation, replayed over loopback sockets, gives the events that an independent decode of the
//! recording expects; its malformed ends give losses at their offset; and nothing else.

use crate::bytefrog_support::compare::{self, Problems};
use crate::bytefrog_support::configuration::{self, CollectorMessage};
use crate::bytefrog_support::contract::{self, ExpectedRun};
use crate::bytefrog_support::names::Known;
use crate::bytefrog_support::recording::{self, Recording, Step};
use crate::bytefrog_support::replay::{Replayed, replay};
use crate::bytefrog_support::{daemon, daemon_for_recordings};
use crate::live::{Stopped, until};
use serde_json::Value;

/// Replays one recording to a daemon of its own.
async fn played(recording: &Recording, options: &str) -> (Replayed, Stopped) {
    let daemon = daemon_for_recordings(options).await;
    let replayed = replay(&daemon, recording).await;
    (replayed, daemon.stop().await)
}

/// Replays recordings and compares everything that is written, definitions included.
async fn check_all(recordings: Vec<Recording>, run: impl Fn(&Recording) -> ExpectedRun) {
    let mut problems = Problems::default();
    for recording in recordings {
        problems.with(&recording.name);
        let (replayed, stopped) = played(&recording, "emit_definitions = true").await;
        let expected = contract::expected(&recording, Known::All);
        compare::check(&mut problems, &recording, &replayed, &stopped.events, &expected);
        compare::check_run(&mut problems, recording.has_run(), &stopped.events, &run(&recording));
        compare::check_books(&mut problems, &stopped.totals.listeners[0], replayed.bytes_sent, &expected);
    }
    problems.assert_none();
}

#[tokio::test]
async fn conversations_of_version_1_agents_become_their_events() {
    check_all(recording::all(&["v1-orig-"]).into_iter().filter(is_conversation).collect(), contract::expected_run)
        .await;
}

#[tokio::test]
async fn conversations_of_version_2_3_and_4_agents_become_their_events() {
    let all = recording::all(&["v2-", "v3-", "v4-"]);
    check_all(all.into_iter().filter(is_conversation).collect(), contract::expected_run).await;
}

/// Whether it is more than edge values of a message writer.
fn is_conversation(recording: &Recording) -> bool {
    !recording.name.ends_with("-synthetic")
}

/// Their numbers repeat, so most messages are duplicates; they jump, and every jump has its data break.
#[tokio::test]
async fn messages_of_edge_values_are_decoded_whole() {
    let all = recording::all(&["v1-", "v2-", "v3-"]);
    check_all(all.into_iter().filter(|recording| !is_conversation(recording)).collect(), contract::expected_run).await;
}

#[tokio::test]
async fn generated_conversations_become_their_events() {
    check_all(recording::all(&["gen-"]), contract::expected_run).await;
}

#[tokio::test]
async fn legal_but_tricky_conversations_become_their_events() {
    let all = recording::all(&["edge-"]).into_iter().filter(|recording| recording.name != "edge-v1-sequence-wrap");
    check_all(all.collect(), contract::expected_run).await;
}

#[tokio::test]
async fn malformed_streams_give_their_events_and_one_located_loss() {
    check_all(recording::all(&["bad-"]), contract::expected_run).await;
}

/// The recording starts in the middle of a run: first small numbers, then those before the wrap. For a collector that
/// counts from 0 the latter arrive very late or very early. It must not drop them or report them as duplicates; it may
/// report a gap.
#[tokio::test]
async fn numbers_from_before_the_wrap_are_not_repeated_ones() {
    let recording = recording::one("edge-v1-sequence-wrap");
    let (replayed, stopped) = played(&recording, "emit_definitions = true").await;
    let mut problems = Problems::default();
    let expected = contract::expected(&recording, Known::All);
    problems.with(&recording.name);
    compare::check(&mut problems, &recording, &replayed, &stopped.events, &expected);
    compare::check_books(&mut problems, &stopped.totals.listeners[0], replayed.bytes_sent, &expected);
    problems.assert_none();
    let ended = stopped.events.iter().find(|event| event["name"] == "bytefrog.run.ended").unwrap();
    assert_eq!(ended["attributes"]["bytefrog.run.events"], 16);
}

/// Every byte of these is received before the next is sent.
#[tokio::test]
async fn one_byte_at_a_time_gives_the_same_events() {
    let mut problems = Problems::default();
    let names = [
        "edge-v1-unbalanced",
        "edge-v1-late-m",
        "edge-v3-late",
        "edge-v4",
        "bad-v1-string-bytes",
        "bad-v2-truncated-map",
    ];
    for mut recording in recording::all(&names) {
        problems.with(&recording.name);
        let is_whole = |step: &Step| step.offset == 0 || step.length == 0;
        let bytes =
            |step: Step| (step.offset..step.offset + step.length).map(move |offset| Step { offset, length: 1, ..step });
        let split = |step: Step| if is_whole(&step) { vec![step] } else { bytes(step).collect() };
        recording.steps = recording.steps.into_iter().flat_map(split).collect();
        let (replayed, stopped) = played(&recording, "emit_definitions = true").await;
        let expected = contract::expected(&recording, Known::All);
        compare::check(&mut problems, &recording, &replayed, &stopped.events, &expected);
        compare::check_books(&mut problems, &stopped.totals.listeners[0], replayed.bytes_sent, &expected);
    }
    problems.assert_none();
}

/// Without a wait for renames, events have the names that were known when they arrived.
#[tokio::test]
async fn threads_have_the_names_known_on_arrival_without_a_wait_for_renames() {
    let mut problems = Problems::default();
    for recording in recording::all(&["v1-orig-m", "v1-orig-64", "v1-orig-re", "v2-rel", "gen-v1", "edge-v1-re"]) {
        problems.with(&recording.name);
        let (replayed, stopped) = played(&recording, "rename_wait = \"0s\"\nemit_definitions = true").await;
        let expected = contract::expected(&recording, Known::AsItCame);
        compare::check(&mut problems, &recording, &replayed, &stopped.events, &expected);
    }
    problems.assert_none();
}

/// Definitions always resolve names; they are written only if the listener is configured to.
#[tokio::test]
async fn without_emit_definitions_only_definitions_are_missing() {
    let mut problems = Problems::default();
    for name in ["v1-orig-mix", "v2-release-mix", "v4-codepulse-mix", "edge-v3-late-locations"] {
        let recording = recording::one(name);
        problems.with(name);
        let (replayed, stopped) = played(&recording, "").await;
        let mut expected = contract::expected(&recording, Known::All);
        expected.retain(|event| event.severity != "DEBUG");
        compare::check(&mut problems, &recording, &replayed, &stopped.events, &expected);
        compare::check_books(&mut problems, &stopped.totals.listeners[0], replayed.bytes_sent, &expected);
    }
    problems.assert_none();
}

/// Within one connection events are written in the order of arrival, unless they waited for a name.
#[tokio::test]
async fn as_received_means_in_the_order_of_each_connection() {
    let recording = recording::one("edge-v1-gap");
    let (_, stopped) = played(&recording, "").await;
    let is_call = |event: &&Value| event["name"].as_str().unwrap().starts_with("bytefrog.method.");
    let offsets: Vec<_> =
        stopped.events.iter().filter(is_call).map(|event| event["origin"]["offset"].as_u64().unwrap()).collect();
    assert_eq!(offsets.len(), 90);
    assert!(offsets.is_sorted(), "{offsets:?}");
}

/// The recordings show how agents react to harmful messages; this collector sends none.
#[tokio::test]
async fn every_recorded_agent_is_configured_and_started_and_gets_no_harmful_message() {
    let mut problems = Problems::default();
    for recording in recording::all(&["v", "gen-", "edge-"]) {
        problems.with(&recording.name);
        let (replayed, _) = played(&recording, "").await;
        let version = recording.version().unwrap();
        let (messages_received, length) = configuration::read(version, &replayed.received[0]);
        problems.check(length == replayed.received[0].len(), || "control ends inside a message".to_owned());
        problems.check(
            matches!(messages_received[..], [CollectorMessage::Configuration(_), CollectorMessage::Start, ..]),
            || format!("it messages_received {messages_received:?}"),
        );
        let may_follow = |message: &CollectorMessage| *message == CollectorMessage::Stop;
        problems.check(messages_received.iter().skip(2).all(may_follow), || {
            format!("it also messages_received {messages_received:?}")
        });
        for (stream, received) in replayed.received.iter().enumerate().skip(1) {
            problems.check(*received == [31], || format!("data-{}: it received {received:02x?}", stream - 1));
        }
    }
    problems.assert_none();
}

#[tokio::test]
async fn an_unknown_first_byte_or_version_is_answered_with_an_error() {
    for name in ["bad-first-bytes-http", "bad-first-bytes-version-0", "bad-first-bytes-version-5-or-more"] {
        let daemon = daemon("").await;
        let recording = recording::one(name);
        let mut unregistered = crate::bytefrog_support::agent::Connection::open(&daemon.server).await;
        unregistered.send(&recording.streams[0].bytes).await;
        if name.ends_with("http") {
            let answer = unregistered.until_closed().await;
            assert!(answer.starts_with(b"HTTP/1.1 501 "), "{name}: {}", answer.escape_ascii());
        } else {
            assert!(!unregistered.until_refused().await.is_empty(), "{name}");
        }
        until("the loss", || (daemon.counters().lost() == recording.streams[0].bytes.len() as u64).then_some(())).await;
        let stopped = daemon.stop().await;
        assert!(stopped.events.iter().all(|event| event["kind"] == "loss"), "{name}: no run is created");
    }
}

#[tokio::test]
async fn a_data_connection_for_an_unknown_run_gets_an_error_and_joins_no_run() {
    let recording = recording::one("bad-v1-unknown-run");
    let (replayed, stopped) = played(&recording, "").await;
    let (messages_received, _) = configuration::read(1, &replayed.received[2]);
    assert!(
        matches!(&messages_received[..], [CollectorMessage::Error(text)] if !text.is_empty()),
        "{messages_received:?}"
    );
    let ended = stopped.events.iter().find(|event| event["name"] == "bytefrog.run.ended").unwrap();
    assert_eq!(ended["attributes"]["bytefrog.run.events"], 0);
}

/// Rule 28: the ends of runs are distinguished.
#[tokio::test]
async fn the_end_of_a_run_says_how_it_ended() {
    let outcomes = [
        ("complete", &["v1-orig-mix", "v1-orig-modes", "v2-release-mix", "v4-codepulse-project-hello", "gen-"][..]),
        ("control_lost", &["v1-orig-hq-closes-control"]),
        ("without_shutdown", &["v4-codepulse-no-exclusions-hang", "edge-v1-late-mappings", "edge-v1-empty"]),
        ("with_gaps", &["edge-v1-gap"]),
        ("agent_error", &["v1-orig-start-suspend", "v1-orig-data-refused", "v1-orig-error-before-start"]),
        ("never_started", &["v1-orig-stop-before-start"]),
        ("aborted_in_handshake", &["v1-orig-hello-drop", "v1-orig-hello-error", "v1-orig-config-split"]),
    ];
    let mut problems = Problems::default();
    for (outcome, names) in outcomes {
        for recording in recording::all(names) {
            problems.with(&recording.name);
            let (_, stopped) = played(&recording, "").await;
            let ended = stopped.events.iter().find(|event| event["name"] == "bytefrog.run.ended").unwrap();
            let got = &ended["attributes"]["bytefrog.run.outcome"];
            problems.check(got == outcome, || format!("it ended as {got}, not {outcome}"));
        }
    }
    problems.assert_none();
}
