//! Rules of the protocol notes of which no recording shows that they are kept, and forms that only the protocol's document
//! has: by what comes out of a daemon on real sockets.

use crate::live::{Daemon, Stopped};
use crate::rbkit_support::agent::Agent;
use crate::rbkit_support::compare::{named, of_message};
use crate::rbkit_support::raw::{Raw, Script, Then};
use crate::rbkit_support::wire::{self, MILLIS, map, text, time};
use crate::rbkit_support::{daemon_for, dialled, listener, recording};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// A collection with the numbers of the document.
fn spec_collection(counter: u64, events: &[Vec<u8>]) -> Vec<u8> {
    let mut body = wire::collection(counter, events);
    body[2] = 6;
    body
}

fn now() -> Vec<u8> {
    time(MILLIS as f64)
}

/// What a daemon makes of these messages, after this answer to its handshakes, and a good one behind them.
async fn events_of(handshake: &[u8], bodies: &[Vec<u8>]) -> (Agent, Stopped) {
    let agent = Agent::bind().await;
    agent.set_handshake(handshake);
    let daemon = daemon_for(&agent, "").await;
    agent.until_subscribed().await;
    for body in bodies {
        agent.publish(body).await;
    }
    agent.publish(&wire::collection(1_000, &[wire::created(99)])).await;
    daemon.until("the last message", |events| !of_message(events, 1_000).is_empty()).await;
    (agent, daemon.stop().await)
}

fn spec_handshake() -> Vec<u8> {
    let mut body = wire::handshake(4_711, false, false);
    body[2] = 7;
    body
}

/// Rule 2.
#[tokio::test]
async fn a_message_that_contradicts_the_handshake_is_believed_and_the_process_is_asked_again() {
    let agent = Agent::bind().await;
    let daemon = daemon_for(&agent, "").await;
    agent.until_started(&["start_memory_profile"]).await;
    agent.until_asked("handshake", 1).await;
    let before = agent.asked("handshake");
    // The number of a collection garbage that begins, where master has an object that is destroyed.
    agent.publish(&spec_collection(0, &[[&[map(2), 0, 1, 1][..], &now()].concat()])).await;
    daemon.until_named("rbkit.gc.start").await;
    agent.until_asked("handshake", before + 1).await;
    let stopped = daemon.stop().await;
    agent.assert_no_faults();
    assert!(crate::live::losses(&stopped.events).is_empty());
    assert_eq!(stopped.totals.listeners[0].warnings["rbkit.dialect_changed"], 1);
}

/// Rule 20.
#[tokio::test]
async fn times_that_are_none_are_replaced_by_ours() {
    for none in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let event = [&[map(2), 0, 2, 1][..], &time(none)].concat();
        let (_, stopped) = events_of(&wire::handshake(1, false, false), &[wire::collection(999, &[event])]).await;
        let event = named(&stopped.events, "rbkit.gc.start")[0];
        assert_eq!(event["time"], event["observed_time"], "{none}");
        assert_eq!(event["attributes"]["tributary.time.basis"], "received", "{none}");
        assert!(crate::live::losses(&stopped.events).is_empty());
    }
}

/// Rules 10 and 16.
#[tokio::test]
async fn ids_have_64_bits_and_a_missing_field_takes_no_other_with_it() {
    let most = u64::MAX.to_be_bytes();
    let object = [&[map(6), 3, 0xcf][..], &most, &[4, 0xc0, 5, 0x91, 0xcf], &most, &[6, 0xc0, 7, 12, 8, 34]].concat();
    let dump = [&[map(5), 0, 5, 1][..], &now(), &[10, 1, 11, 1, 2, 0x91], &object].concat();
    let (_, stopped) = events_of(&wire::handshake(1, false, false), &[wire::collection(999, &[dump])]).await;
    let attributes = &named(&stopped.events, "rbkit.heap.object")[0]["attributes"];
    let wanted = json!({
        "rbkit.object.id": u64::MAX, "rbkit.object.references": [u64::MAX], "code.line.number": 12,
        "rbkit.object.size": 34, "rbkit.dump.id": 1, "rbkit.dump.object_count": 1,
    });
    assert_eq!(*attributes, wanted);
}

/// Rule 28, and what the release does not have.
#[tokio::test]
async fn the_released_gem_is_warned_of_and_is_not_asked_for_stacks() {
    let session = recording::session("v0.1.10-memory");
    let agent = Agent::bind().await;
    agent.set_handshake(&session.handshakes().next().unwrap().body);
    let keys = ", enable = [\"cpu_profile\", \"memory_profile\"], clock = \"wall\"";
    let daemon = Daemon::start(&listener(&[dialled(&agent, keys)], "")).await;
    agent.until_started(&["start_memory_profile"]).await;
    let stopped = daemon.stop().await;
    assert_eq!(agent.commands(), ["start_memory_profile", "stop_memory_profile"]);
    let warnings = &stopped.totals.listeners[0].warnings;
    assert_eq!((warnings["rbkit.listens_everywhere"], warnings["rbkit.no_cpu_profile"]), (1, 1), "{warnings:?}");
}

/// The answer to a command may be anything (rule 4).
#[tokio::test]
async fn an_answer_to_a_command_proves_nothing_and_harms_nothing() {
    let agent = Agent::bind().await;
    agent.set_other(&[0xc1; 300]);
    let daemon = daemon_for(&agent, "").await;
    agent.until_started(&["start_memory_profile"]).await;
    agent.publish(&wire::collection(0, &[wire::gc_start()])).await;
    daemon.until_named("rbkit.gc.start").await;
    let stopped = daemon.stop().await;
    assert!(crate::live::losses(&stopped.events).is_empty());
    assert_eq!((agent.rep_connections(), agent.commands().len()), (1, 2));
}

/// `{"stacktrace" => {7 => [frame]}, "allocations" => {file => {"12 Foo Bar 40" => {"count" => 3, "stacktrace" => 7}}}}`,
/// with these keys.
fn snapshot(stacks: Vec<u8>, allocations: Vec<u8>, count: Vec<u8>, stack: Vec<u8>, id: &[u8]) -> Vec<u8> {
    let frame = [&[map(4), 12][..], &text("add"), &[6], &text("cart.rb"), &[7, 3, 14, 0]].concat();
    let stacks = [stacks, vec![map(1), 7, 0x91], frame].concat();
    let site = [&[map(2)][..], &count, &[3], &stack, id].concat();
    let allocations = [allocations, vec![map(1)], text("app.rb"), vec![map(1)], text("12 Foo Bar 40"), site].concat();
    [&[map(3), 0, 0, 1][..], &now(), &[2, map(2)], &stacks, &allocations].concat()
}

/// The document's own form, which no agent sends: keys that are words, one id instead of a map, outside of a collection.
#[tokio::test]
async fn snapshots_in_the_forms_of_the_document_are_read() {
    let words = || snapshot(text("stacktrace"), text("allocations"), text("count"), text("stacktrace"), &[7]);
    let numbers = || snapshot(vec![16], vec![18], vec![17], vec![16], &[map(1), 7, 3]);
    for (what, body) in [
        ("numbers in a collection", spec_collection(999, &[numbers()])),
        ("words in a collection", spec_collection(999, &[words()])),
        ("words alone", words()),
        ("numbers alone", numbers()),
    ] {
        let (_, stopped) = events_of(&spec_handshake(), &[body]).await;
        assert!(crate::live::losses(&stopped.events).is_empty(), "{what}: {:?}", crate::live::losses(&stopped.events));
        let sites = named(&stopped.events, "rbkit.allocations");
        assert_eq!(sites.len(), 1, "{what}");
        let attributes = json!({
            "code.file.path": "app.rb", "code.line.number": 12, "rbkit.class.name": "Foo Bar", "rbkit.object.size": 40,
        });
        assert_eq!(sites[0]["attributes"], attributes, "{what}");
        let sample = &sites[0]["sample"];
        assert_eq!((&sample["value"], &sample["unit"]), (&3.into(), &"count".into()), "{what}");
        assert_eq!(sample["frames"][0]["function"], "add", "{what}");
    }
}

/// The document has objects that are destroyed, and no number for them: its garbage collections begin without a payload.
#[tokio::test]
async fn destroyed_objects_in_the_document_s_numbers_are_read() {
    let destroyed = [&[map(3), 0, 1, 1][..], &now(), &[2, map(1), 3, 42]].concat();
    let started = [&[map(2), 0, 1, 1][..], &now()].concat();
    let (_, stopped) = events_of(&spec_handshake(), &[spec_collection(999, &[destroyed, started])]).await;
    let destroyed = named(&stopped.events, "rbkit.object.destroyed");
    assert_eq!((destroyed.len(), &destroyed[0]["attributes"]["rbkit.object.id"]), (1, &42.into()));
    assert_eq!(named(&stopped.events, "rbkit.gc.start").len(), 1);
}

/// Rules 25 and 26: what we say on the subscribing socket, byte by byte, to an agent that sends PING and strange commands.
#[tokio::test]
async fn what_we_say_is_a_greeting_ready_a_subscription_and_pongs() {
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let agent = format!("{{ publish = \"{}\" }}", socket.local_addr().unwrap());
    let daemon = Daemon::start(&listener(&[agent], "")).await;
    let (mut stream, _) = crate::live::within("it connects", socket.accept()).await.unwrap();
    let mut heard = vec![0; 64];
    // Without a word from us.
    crate::live::within("its greeting", stream.read_exact(&mut heard)).await.unwrap();
    assert_eq!((heard[0], &heard[9..12], &heard[12..32]), (0xff, &[0x7f, 3, 0][..], &wire::greeting(0)[12..32]));
    stream.write_all(&wire::greeting(1)).await.unwrap();
    let mut ready = vec![0; wire::ready("SUB").len()];
    crate::live::within("READY", stream.read_exact(&mut ready)).await.unwrap();
    assert_eq!(ready, wire::ready("SUB"));
    stream.write_all(&wire::ready("XPUB")).await.unwrap();
    let mut subscription = [0; 3];
    crate::live::within("the subscription", stream.read_exact(&mut subscription)).await.unwrap();
    assert_eq!(subscription, [0, 1, 1]);
    let strange = wire::command("STRANGE", b"anything");
    let ping = wire::command("PING", b"\0\x64context");
    stream
        .write_all(&[strange, ping, wire::frame(0, &wire::collection(0, &[wire::gc_start()]))].concat())
        .await
        .unwrap();
    let wanted = wire::command("PONG", b"context");
    let mut pong = vec![0; wanted.len()];
    crate::live::within("PONG", stream.read_exact(&mut pong)).await.unwrap();
    assert_eq!(pong, wanted);
    daemon.until_named("rbkit.gc.start").await;
    let stopped = daemon.stop().await;
    let mut rest = Vec::new();
    crate::live::within("the end", stream.read_to_end(&mut rest)).await.unwrap();
    assert_eq!(rest, [0; 0]);
    assert!(crate::live::losses(&stopped.events).is_empty());
}

/// Several processes of one listener, each its own.
#[tokio::test]
async fn processes_of_one_listener_have_their_own_names_dumps_and_counters() {
    let agents = [Agent::bind().await, Agent::bind().await, Agent::bind().await];
    for (pid, agent) in (100..).zip(&agents) {
        agent.set_handshake(&wire::handshake(pid, false, false));
    }
    let dead = Raw::bind(|_| Script::say(Vec::new(), Then::Close)).await;
    let mut dialled: Vec<String> = agents.iter().map(|agent| dialled(agent, "")).collect();
    dialled.push(format!("{{ publish = \"{0}\", request = \"{0}\" }}", dead.address));
    let daemon = Daemon::start(&listener(&dialled, "")).await;
    for agent in &agents {
        agent.until_subscribed().await;
    }
    for counter in [5, 4_000_000_000, 0] {
        let agent = &agents[counter as usize % 3];
        agent.publish(&wire::collection(counter, &[wire::dump(1, 4, 10, 2)])).await;
        agent.publish(&wire::collection(counter + 1, &[wire::dump(1, 4, 20, 2)])).await;
    }
    daemon.until("all dumps", |events| named(events, "rbkit.heap.dump").len() == 3).await;
    let Stopped { events, .. } = daemon.stop().await;
    assert!(crate::live::losses(&events).is_empty(), "{:?}", crate::live::losses(&events));
    for (pid, agent) in (100..).zip(&agents) {
        let publish = Value::from(agent.publish.to_string());
        let mine: Vec<_> = events.iter().filter(|event| event["origin"]["peer"] == publish).collect();
        assert_eq!(mine.len(), 5);
        assert!(mine.iter().all(|event| event["resource"]["process.pid"] == pid), "{pid}");
        agent.assert_no_faults();
    }
}
