//! Many agents at the same time, as fast as they can write, and limits that are too small: in any order, events stay
//! with their runs and every message is counted once.

use std::sync::Arc;

use crate::bytefrog_support::calls::{Model, Spans, check_lines};
use crate::bytefrog_support::compare::{self, Problems};
use crate::bytefrog_support::names::Known;
use crate::bytefrog_support::recording::{self, Recording};
use crate::bytefrog_support::replay::{Pace, Replayed, play, replay};
use crate::bytefrog_support::{contract, daemon_for_recordings};
use serde_json::Value;
use tokio::task::JoinSet;

/// Replays each of these recordings this many times, all at the same time.
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
    let counters = &stopped.totals.listeners[0];
    assert_eq!((counters.bytes_in, counters.bytes_decoded + counters.lost()), (sent, sent));
    (played, stopped.events)
}

/// The events of the connections of one agent.
fn of(replayed: &Replayed, events: &[Value]) -> Vec<Value> {
    let is_own = |event: &&Value| replayed.peers.iter().any(|peer| event["origin"]["peer"] == **peer);
    events.iter().filter(is_own).cloned().collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_agents_at_the_same_time_keep_their_events_apart() {
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
async fn many_agents_at_the_same_time_keep_their_calls_apart() {
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

/// Renames have their default wait; everything else has all the time that a busy machine may need.
#[tokio::test]
async fn with_the_default_wait_for_renames_every_message_becomes_its_event() {
    let mut problems = Problems::default();
    for recording in recording::all(&["v1-orig-m", "v1-orig-64", "v2-rel", "v4-codepulse-m", "gen-"]) {
        problems.with(&recording.name);
        let daemon = daemon_for_recordings("rename_wait = \"200ms\"").await;
        let replayed = replay(&daemon, &recording).await;
        let stopped = daemon.stop().await;
        let mut expected = contract::expected(&recording, Known::AsItCame);
        expected.retain(|event| event.severity != "DEBUG");
        compare::check(&mut problems, &recording, &replayed, &stopped.events, &expected);
        compare::check_run(&mut problems, true, &stopped.events, &contract::expected_run(&recording));
    }
    problems.assert_none();
}

/// Options that reach every limit of a run.
const NARROW: [&str; 6] = [
    "reorder_window = \"1ms\"\nunresolved_wait = \"0s\"\nrename_wait = \"0s\"",
    "max_waiting = 1024",
    "max_open_calls = 2",
    "dictionary = { entries = 3 }",
    "order = \"sequence\"\nunresolved_wait = \"1ms\"",
    "",
];

/// Numbers are given up before they arrive, and events do not wait for names, or names are not kept: then calls stay
/// open, exits have no call and ids have no names; but each entry and each exit is in one span or is a log.
#[tokio::test]
async fn at_any_limit_each_entry_and_exit_is_still_written_once() {
    // At the same time: replays mostly wait.
    let names = ["v1-orig-mix", "v1-orig-64", "v2-rel", "v4-codepulse-mix", "gen-v1-conv"];
    let cases = NARROW.into_iter().flat_map(|narrow| names.map(|name| check_at_limit(narrow, name)));
    let mut checks: JoinSet<()> = cases.collect();
    while let Some(checked) = checks.join_next().await {
        checked.unwrap();
    }
}

async fn check_at_limit(narrow: &'static str, name: &'static str) {
    let mut problems = Problems::default();
    for recording in recording::all(&[name]) {
        problems.with(format!("{} with {narrow}", recording.name));
        let options = format!("calls = \"spans\"\ndata_connections = 3\n{narrow}");
        // Only memory is short: enough that the connections are accepted.
        let memory = if narrow.is_empty() { 256 << 10 } else { 64 << 20 };
        let config = crate::live::config_with_memory(&crate::bytefrog_support::listener(&options), memory);
        let daemon = crate::live::Daemon::on(&config).await;
        let replayed = replay(&daemon, &recording).await;
        let stopped = daemon.stop().await;
        check_counts(&mut problems, &recording, &stopped.events);
        let counters = &stopped.totals.listeners[0];
        problems.check(counters.lost() == 0, || format!("{} bytes are lost", counters.lost()));
        problems.check(counters.bytes_decoded == replayed.bytes_sent, || format!("{} decoded", counters.bytes_decoded));
    }
    problems.assert_none();
}

fn check_counts(problems: &mut Problems, recording: &Recording, events: &[Value]) {
    let sent = |types: &[u8]| {
        let is_one = |type_id: Option<u8>| type_id.is_some_and(|type_id| types.contains(&type_id));
        recording.messages().filter(|(_, message)| is_one(message.type_id())).count()
    };
    let logs = |name: &str| events.iter().filter(|event| event["name"] == name).count();
    let spans: Vec<_> = events.iter().filter(|event| event["kind"] == "span").collect();
    let closed = spans.iter().filter(|event| event["span"].get("duration_ns").is_some()).count();
    let entries = (sent(&[20]), spans.len() + logs("bytefrog.method.entry"));
    let exits = (sent(&[21, 23]), closed + logs("bytefrog.method.exit") + logs("bytefrog.exception.bubbled"));
    let inside = (sent(&[22, 14]), logs("bytefrog.exception.thrown") + logs("bytefrog.method.visit"));
    for (what, (sent, written)) in [("entries", entries), ("exits", exits), ("others", inside)] {
        problems.check(sent == written, || format!("{sent} {what} were sent, {written} are written"));
    }
}

/// A generator of the same numbers each time.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

/// Hellos stay unchanged, or there would be no run; behind them anything may be damaged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_flipped_bits_every_byte_is_decoded_or_lost_and_the_run_ends() {
    let mut random = Random(3);
    for options in ["", "calls = \"both\"", "order = \"sequence\"\nemit_definitions = true"] {
        let daemon = daemon_for_recordings(options).await;
        let (mut sent, mut runs) = (0, 0);
        let prefixes = ["gen-", "edge-v1", "edge-v3", "v3-release", "v1-orig-markers"];
        for mut recording in (0..6).flat_map(|_| recording::all(&prefixes)) {
            for stream in &mut recording.streams {
                for _ in 0..random.below(4) {
                    let at = 2 + random.below(stream.bytes.len().saturating_sub(2).max(1));
                    if let Some(byte) = stream.bytes.get_mut(at) {
                        *byte ^= 1 << random.below(8);
                    }
                }
            }
            sent += play(&daemon, &recording, Pace::Free).await.bytes_sent;
            runs += 1;
        }
        daemon.until_all_closed().await;
        let stopped = daemon.stop().await;
        let counters = &stopped.totals.listeners[0];
        let failed: Vec<_> = stopped.events.iter().filter(|event| event["loss"]["reason"] == "failed").collect();
        assert!(failed.is_empty(), "{failed:?}");
        assert_eq!((counters.bytes_in, counters.bytes_decoded + counters.lost()), (sent, sent));
        let ended = stopped.events.iter().filter(|event| event["name"] == "bytefrog.run.ended").count();
        assert_eq!(ended, runs);
    }
}
