//! The order of a run: by number within a window, across connections, gaps and the wrap; and names that arrive late.

use std::fs;

use crate::bytefrog_support::agent::{Agent, Connection};
use crate::bytefrog_support::compare::{self, Problems};
use crate::bytefrog_support::names::{self, Known, Names};
use crate::bytefrog_support::recording::{self, Recording};
use crate::bytefrog_support::replay::replay;
use crate::bytefrog_support::{contract, daemon, daemon_for_recordings, wire};
use crate::live::Daemon;
use serde_json::Value;

/// The sequenced logs, in the order in which they were written.
fn sequenced(events: &[Value]) -> Vec<&Value> {
    let is_sequenced = |event: &&Value| {
        let name = event["name"].as_str().unwrap();
        ["bytefrog.method.", "bytefrog.exception.", "bytefrog.marker"].iter().any(|prefix| name.starts_with(prefix))
            && event["severity"] != "DEBUG"
    };
    events.iter().filter(is_sequenced).collect()
}

fn numbers(events: &[Value]) -> Vec<u64> {
    sequenced(events).iter().map(|event| event["origin"]["sequence"].as_u64().unwrap()).collect()
}

#[tokio::test]
async fn in_order_of_sequence_a_run_is_written_number_by_number() {
    let mut problems = Problems::default();
    let names = ["v1-orig-m", "v1-orig-64", "v1-orig-default", "v2-rel", "v4-codepulse-m", "gen-", "edge-v1-late-m"];
    for recording in recording::all(&names) {
        problems.with(&recording.name);
        let daemon = daemon_for_recordings("order = \"sequence\"").await;
        let replayed = replay(&daemon, &recording).await;
        let stopped = daemon.stop().await;
        let mut expected = contract::expected(&recording, Known::All);
        expected.retain(|event| event.severity != "DEBUG");
        compare::check(&mut problems, &recording, &replayed, &stopped.events, &expected);
        compare::check_run(&mut problems, true, &stopped.events, &contract::expected_run(&recording));
        compare::check_books(&mut problems, &stopped.totals.listeners[0], replayed.bytes_sent, &expected);
        let numbers = numbers(&stopped.events);
        let first_wrong = numbers.windows(2).position(|pair| pair[0] >= pair[1]);
        problems.check(first_wrong.is_none(), || format!("number {first_wrong:?} is out of order: {numbers:?}"));
    }
    problems.assert_none();
}

/// Sends the mappings of a run first, on the first data connection, and then its events: mappings have no order
/// relative to events, so agents might do so. Then timing does not matter, and rule 21 has one answer, unless renames
/// of a thread have the same millisecond.
async fn mappings_first(daemon: &Daemon, recording: &Recording) {
    let is_mapping = |type_id: Option<u8>| matches!(type_id, Some(10..=13 | 15));
    let mut agent = Agent::connect(&daemon.server, recording.version().unwrap()).await;
    let mut data = Vec::new();
    for _ in 1..recording.streams.len() {
        data.push(agent.data(&daemon.server).await);
    }
    agent.control.send(&recording.streams[0].bytes[2..]).await;
    let mappings: Vec<_> = recording.messages().filter(|(_, message)| is_mapping(message.type_id())).collect();
    for (_, message) in &mappings {
        data[0].send(message.bytes()).await;
    }
    let is_known =
        |events: &[Value]| events.iter().filter(|event| event["severity"] == "DEBUG").count() == mappings.len();
    daemon.until("every mapping is there", is_known).await;
    for (stream, message) in recording.messages().filter(|(_, message)| message.sequence().is_some()) {
        data[stream - 1].send(message.bytes()).await;
    }
    for connection in &mut data {
        connection.end().await;
        connection.until_closed().await;
    }
    agent.control.end().await;
    daemon.until_named("bytefrog.run.ended").await;
}

#[tokio::test]
async fn with_every_mapping_known_events_are_resolved_as_the_generator_resolved_them() {
    for recording in recording::all(&["gen-"]) {
        for order in ["sequence", "received"] {
            let options = format!("emit_definitions = true\norder = \"{order}\"");
            let daemon = daemon_for_recordings(&options).await;
            mappings_first(&daemon, &recording).await;
            let stopped = daemon.stop().await;
            let mut events = sequenced(&stopped.events);
            if order == "received" {
                events.sort_by_key(|event| event["origin"]["sequence"].as_u64());
            }
            let mut problems = Problems::default();
            problems.with(format!("{} in order {order}", recording.name));
            check_resolved(&mut problems, &recording, &events);
            problems.assert_none();
        }
    }
}

/// Compares with `resolved.ndjson`: what the generator knew.
fn check_resolved(problems: &mut Problems, recording: &Recording, events: &[&Value]) {
    let path = recording::directory().join(&recording.name).join("resolved.ndjson");
    let truth: Vec<Value> =
        fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    problems.check(truth.len() == events.len(), || format!("{} events, not {}", events.len(), truth.len()));
    let names = Names::of(recording);
    let messages: Vec<_> = recording.messages().filter(|(_, message)| message.sequence().is_some()).collect();
    for (truth, event) in truth.iter().zip(events) {
        let attributes = &event["attributes"];
        let mut same = |what: &str, want: &Value, got: &Value| {
            problems.check(want == got, || format!("{what} of {truth} is {got}"));
        };
        let name = match truth["kind"].as_str().unwrap() {
            "method_entry" => "bytefrog.method.entry",
            "method_exit" => "bytefrog.method.exit",
            "method_visit" => "bytefrog.method.visit",
            "exception" => "bytefrog.exception.thrown",
            "exception_bubble" => "bytefrog.exception.bubbled",
            _ => "bytefrog.marker",
        };
        same("the name", &name.into(), &event["name"]);
        same("the number", &truth["seq"], &event["origin"]["sequence"]);
        same("the time", &truth["time"], &attributes["bytefrog.time.relative_ms"]);
        same("the thread", &truth["thread"], &attributes["thread.id"]);
        same("the exception", &truth["exception"], &attributes["exception.type"]);
        same("the flag", &truth["threw"], &attributes["bytefrog.exit.threw"]);
        same("the key", &truth["key"], &attributes["bytefrog.marker.key"]);
        same("the value", &truth["value"], &attributes["bytefrog.marker.value"]);
        let line = if name.ends_with("visit") { &truth["start_line"] } else { &truth["line"] };
        same("the line", line, &attributes["code.line.number"]);
        let function = truth["signature"].as_str().map_or(Value::Null, |signature| names::function(signature).into());
        same("the function", &function, &attributes["code.function.name"]);
        let (stream, message) =
            messages.iter().find(|(_, message)| truth["seq"].as_u64() == message.number("seq")).unwrap();
        let possible: Vec<Value> = match truth["thread_name"] {
            Value::Null => vec![Value::Null],
            _ => names.threads(message, *stream, Known::All).iter().map(|text| text.as_str().into()).collect(),
        };
        assert!(possible.contains(&truth["thread_name"]), "the rule gives the generator's own answer");
        problems.check(possible.contains(&attributes["thread.name"]), || {
            format!("the thread's name of {truth} is {}", attributes["thread.name"])
        });
    }
}

/// An agent of version 1 with one data connection that has named a method and a thread.
async fn named(daemon: &Daemon) -> (Agent, Connection) {
    let (agent, mut data) = Agent::trace(&daemon.server, 1).await;
    let mut data = data.remove(0);
    data.send(&[wire::method(1, "demo/A.f;1;()V"), wire::thread_name(0, 0, "main")].concat()).await;
    (agent, data)
}

async fn end(daemon: &Daemon, mut agent: Agent, mut data: Connection) {
    data.end().await;
    data.until_closed().await;
    agent.control.end().await;
    daemon.until_named("bytefrog.run.ended").await;
}

#[tokio::test]
async fn a_missing_number_delays_the_others_for_the_window_only() {
    let daemon = daemon("order = \"sequence\"\nreorder_window = \"100ms\"").await;
    let (agent, mut data) = named(&daemon).await;
    data.send(&[wire::entry(1, 0, 1, 0), wire::exit(1, 2, 1, 1, 0), wire::entry(3, 4, 1, 0)].concat()).await;
    daemon.until("the number behind the gap", |events| numbers(events).contains(&4)).await;
    daemon.until("the gap is reported", |events| events.iter().any(|event| event["loss"]["reason"] == "gap")).await;
    end(&daemon, agent, data).await;
    let stopped = daemon.stop().await;
    assert_eq!(numbers(&stopped.events), [0, 1, 4]);
    let gaps: Vec<_> = stopped.events.iter().filter(|event| event["loss"]["reason"] == "gap").collect();
    assert_eq!(gaps.len(), 1, "{gaps:?}");
    let attributes = &gaps[0]["attributes"];
    assert_eq!((&attributes["bytefrog.sequence.first"], &attributes["bytefrog.sequence.last"]), (&2.into(), &3.into()));
    assert_eq!((&gaps[0]["loss"]["events"], &gaps[0]["loss"]["bytes"]), (&2.into(), &0.into()));
}

#[tokio::test]
async fn a_number_that_arrives_after_its_gap_was_reported_takes_the_gap_back() {
    // Number 2 is missing, too, or is not.
    for (late, outcome) in [(&[1][..], "with_gaps"), (&[1, 2], "complete"), (&[2, 1], "complete")] {
        let daemon = daemon("order = \"sequence\"\nreorder_window = \"100ms\"").await;
        let (mut agent, mut data) = named(&daemon).await;
        data.send(&[wire::entry(1, 0, 1, 0), wire::exit(1, 3, 3, 1, 0)].concat()).await;
        daemon.until("the gap is reported", |events| events.iter().any(|event| event["loss"]["reason"] == "gap")).await;
        for number in late {
            data.send(&wire::marker(2, *number, "late", "")).await;
        }
        daemon.until("the late numbers", |events| markers(events) == late.len()).await;
        agent.control.send(&wire::heartbeat(b'X')).await;
        end(&daemon, agent, data).await;
        let stopped = daemon.stop().await;
        let counters = &stopped.totals.listeners[0];
        let found = late.len() as u64;
        assert_eq!((counters.lost(), counters.warnings.get("number_after_its_gap")), (0, Some(&found)));
        assert_eq!(counters.missing().iter().sum::<u64>(), 2 - found, "{late:?}");
        let closed = stopped.events.iter().filter(|event| event["name"] == "bytefrog.gap.closed");
        let closed: u64 = closed.map(|event| event["attributes"]["bytefrog.gap.events"].as_u64().unwrap()).sum();
        assert_eq!(closed, found, "{late:?}");
        let ended = stopped.events.iter().find(|event| event["name"] == "bytefrog.run.ended").unwrap();
        let attributes = &ended["attributes"];
        assert_eq!(
            (&attributes["bytefrog.run.outcome"], &attributes["bytefrog.run.gaps"]),
            (&outcome.into(), &(2 - found).into())
        );
    }
}

fn markers(events: &[Value]) -> usize {
    events.iter().filter(|event| event["name"] == "bytefrog.marker").count()
}

/// Events that wait for no number need no verdict about it: an agent under load returns a buffer minutes later.
#[tokio::test]
async fn without_an_order_a_number_is_missing_when_the_run_ends() {
    let daemon = daemon("order = \"received\"\nreorder_window = \"10ms\"\nunresolved_wait = \"200ms\"").await;
    let (mut agent, mut data) = named(&daemon).await;
    data.send(&[wire::entry(1, 0, 1, 0), wire::exit(1, 3, 5, 1, 0)].concat()).await;
    daemon.until("the number behind the missing ones", |events| numbers(events).contains(&5)).await;
    // An event that waits for its name is written when `unresolved_wait` is over: the window, which is shorter, is over, too.
    data.send(&wire::entry(6, 6, 77, 0)).await;
    daemon.until("the event without a name", |events| numbers(events).contains(&6)).await;
    data.send(&[wire::marker(2, 1, "late", ""), wire::marker(2, 3, "late", "")].concat()).await;
    daemon.until("the late numbers", |events| markers(events) == 2).await;
    agent.control.send(&wire::heartbeat(b'X')).await;
    end(&daemon, agent, data).await;
    let stopped = daemon.stop().await;
    assert_eq!(stopped.totals.listeners[0].warnings.get("number_after_its_gap"), None);
    let gaps: Vec<_> = stopped.events.iter().filter(|event| event["loss"]["reason"] == "gap").collect();
    let first = |gap: &&Value| gap["attributes"]["bytefrog.sequence.first"].clone();
    assert_eq!(gaps.iter().map(first).collect::<Vec<_>>(), [2, 4], "{gaps:?}");
}

#[tokio::test]
async fn a_gap_that_a_data_break_explains_is_not_reported_again() {
    let daemon = daemon("").await;
    let (mut agent, mut data) = named(&daemon).await;
    data.send(&[wire::entry(1, 0, 1, 0), wire::exit(1, 2, 1, 1, 0)].concat()).await;
    agent.control.send(&wire::data_break(5)).await;
    daemon.until_named("bytefrog.data_break").await;
    data.send(&[wire::entry(3, 5, 1, 0), wire::exit(1, 4, 6, 1, 0)].concat()).await;
    end(&daemon, agent, data).await;
    let stopped = daemon.stop().await;
    assert_eq!(numbers(&stopped.events), [0, 1, 5, 6]);
    let losses: Vec<_> = stopped.events.iter().filter(|event| event["kind"] == "loss").collect();
    assert_eq!(losses.len(), 1, "{losses:?}");
    assert_eq!(losses[0]["attributes"]["bytefrog.sequence"], 5);
}

#[tokio::test]
async fn a_gap_before_a_number_far_ahead_lasts_for_the_window() {
    let daemon = daemon("order = \"sequence\"\nreorder_window = \"100ms\"").await;
    let (agent, mut data) = named(&daemon).await;
    data.send(&[wire::entry(1, 0, 1, 0), wire::exit(1, 9, 1_507_978_615, 1, 0), wire::exit(1, 2, 1, 1, 0)].concat())
        .await;
    daemon.until("every number", |events| numbers(events).len() == 3).await;
    end(&daemon, agent, data).await;
    let stopped = daemon.stop().await;
    let gap = stopped.events.iter().find(|event| event["loss"]["reason"] == "gap").unwrap();
    assert_eq!(gap["loss"]["events"], 1_507_978_613);
}

/// Data breaks shorten the way to the wrap.
#[tokio::test]
async fn numbers_wrap_without_a_gap_or_a_repeat() {
    for order in ["received", "sequence"] {
        let daemon = daemon(&format!("order = \"{order}\"\nreorder_window = \"100ms\"")).await;
        let (mut agent, mut data) = named(&daemon).await;
        let mut sent = 0;
        for (first, count) in [(0, 2), (1 << 30, 2), (1 << 31, 2), (3 << 30, 2), (u32::MAX - 7, 16)] {
            if first > 0 {
                agent.control.send(&wire::data_break(first)).await;
                let is_it = |event: &Value| event["attributes"]["bytefrog.sequence"] == first;
                daemon.until("the data break", |events| events.iter().any(is_it)).await;
            }
            for offset in (0..count).step_by(2) {
                let number = first.wrapping_add(offset);
                let call = [wire::entry(number % 97, number, 1, 0), wire::exit(1, number % 97, number + 1, 1, 0)];
                data.send(&call.concat()).await;
            }
            sent += count as usize;
            daemon.until("this stretch", |events| numbers(events).len() == sent).await;
        }
        end(&daemon, agent, data).await;
        let stopped = daemon.stop().await;
        assert_eq!(
            numbers(&stopped.events)[8..],
            [
                4_294_967_288,
                4_294_967_289,
                4_294_967_290,
                4_294_967_291,
                4_294_967_292,
                4_294_967_293,
                4_294_967_294,
                4_294_967_295,
                0,
                1,
                2,
                3,
                4,
                5,
                6,
                7
            ],
            "in order {order}"
        );
        let losses = stopped.events.iter().filter(|event| event["kind"] == "loss");
        assert_eq!(losses.filter(|loss| loss["name"] != "bytefrog.data_break").count(), 0, "in order {order}");
        let ended = stopped.events.iter().find(|event| event["name"] == "bytefrog.run.ended").unwrap();
        assert_eq!(ended["attributes"]["bytefrog.run.events"], 24);
    }
}

#[tokio::test]
async fn an_event_waits_for_a_missing_name_for_a_limited_time() {
    let daemon = daemon("unresolved_wait = \"100ms\"").await;
    let (agent, mut data) = named(&daemon).await;
    data.send(&[wire::entry(1, 0, 77, 0), wire::entry(2, 1, 1, 0)].concat()).await;
    let events = daemon.until("both", |events| numbers(events).len() == 2).await;
    let nameless = sequenced(&events).into_iter().find(|event| event["origin"]["sequence"] == 0).unwrap();
    assert!(nameless["attributes"].get(contract::UNRESOLVED_METHOD).is_some(), "{nameless}");
    assert!(nameless["attributes"].get("code.function.name").is_none(), "{nameless}");
    end(&daemon, agent, data).await;
    let stopped = daemon.stop().await;
    let loss = stopped.events.iter().find(|event| event["loss"]["reason"] == "unresolved").unwrap();
    assert_eq!(loss["loss"]["events"], 1, "{loss}");
}

#[tokio::test]
async fn an_event_waits_for_a_name_that_another_connection_brings() {
    let daemon = daemon("data_connections = 2\nunresolved_wait = \"5m\"").await;
    let (mut agent, mut data) = Agent::trace(&daemon.server, 1).await;
    data[0].send(&[wire::entry(5, 0, 1, 3), wire::marker(5, 1, "k", "v")].concat()).await;
    daemon.until_named("bytefrog.marker").await;
    assert_eq!(numbers(&daemon.events()), [1], "an event without a name waits, and no other waits for it");
    data[1].send(&wire::method(1, "demo/A.f;1;()V")).await;
    data[1].send(&wire::thread_name(3, 0, "main")).await;
    let entry = daemon.until_named("bytefrog.method.entry").await;
    assert_eq!(entry["attributes"]["code.function.name"], "demo.A.f");
    assert_eq!(entry["attributes"]["thread.name"], "main");
    for connection in &mut data {
        connection.end().await;
    }
    agent.control.end().await;
    daemon.until_named("bytefrog.run.ended").await;
    daemon.stop().await;
}
