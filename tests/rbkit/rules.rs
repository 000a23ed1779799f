//! Rules of the protocol notes that no recording exercises, and forms that only the specification
//! has, shown by the events of a daemon on real sockets.

use crate::live::{Daemon, Stopped};
use crate::rbkit_support::agent::Agent;
use crate::rbkit_support::compare::{named, of_message};
use crate::rbkit_support::raw::{Raw, Script, Then};
use crate::rbkit_support::wire::{self, MILLIS, map, text, time};
use crate::rbkit_support::{daemon_for, dialled, listener, recording};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// A collection with the numbers of the specification.
fn spec_collection(counter: u64, events: &[Vec<u8>]) -> Vec<u8> {
    let mut body = wire::collection(counter, events);
    body[2] = 6;
    body
}

fn now() -> Vec<u8> {
    time(MILLIS as f64)
}

/// The events of a daemon that receives these messages after this handshake reply, and a valid message after them.
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
async fn a_message_takes_precedence_over_the_handshake_which_is_requested_again() {
    let agent = Agent::bind().await;
    let daemon = daemon_for(&agent, "").await;
    agent.until_started(&["start_memory_profile"]).await;
    agent.until_asked("handshake", 1).await;
    let before = agent.asked("handshake");
    // The number of gc_start in the specification, and of obj_destroyed on master.
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
async fn invalid_times_are_replaced_by_the_receive_time() {
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

/// Rule 28, and the commands that the released gem does not have.
#[tokio::test]
async fn the_released_gem_causes_a_warning_and_gets_no_cpu_commands() {
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

/// The reply to a command may be anything (rule 4).
#[tokio::test]
async fn the_reply_to_a_command_may_be_anything() {
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

/// Agents up to 0.1.5 do not know the command, and answer it as any other unknown request.
#[tokio::test]
async fn an_agent_that_answers_ok_to_a_handshake_is_reported_as_an_unsupported_version() {
    let agent = Agent::bind().await;
    agent.set_handshake(b"ok");
    let daemon = daemon_for(&agent, "").await;
    let loss = daemon.until_named("tributary.loss").await;
    daemon.stop().await;
    assert_eq!((&loss["loss"]["reason"], &loss["loss"]["bytes"]), (&"unsupported".into(), &2.into()), "{loss}");
    let detail = loss["loss"]["detail"].as_str().unwrap();
    assert!(detail.contains("0.1.5") && detail.contains("0x6f"), "{detail}");
}

/// The fault of a reply names the byte that is there.
#[tokio::test]
async fn a_wrong_reply_is_reported_with_the_byte_that_was_found() {
    let agent = Agent::bind().await;
    agent.set_handshake(&[0xa1, b'x']);
    let daemon = daemon_for(&agent, "").await;
    let loss = daemon.until_named("tributary.loss").await;
    daemon.stop().await;
    let detail = loss["loss"]["detail"].as_str().unwrap();
    assert!(detail.contains("found 0xa1, expected a map"), "{detail}");
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

/// The form of the specification, which no agent sends: names as keys, one id instead of a map, outside of a collection.
#[tokio::test]
async fn snapshots_in_the_forms_of_the_specification_are_read() {
    let words = || snapshot(text("stacktrace"), text("allocations"), text("count"), text("stacktrace"), &[7]);
    let numbers = || snapshot(vec![16], vec![18], vec![17], vec![16], &[map(1), 7, 3]);
    for (what, body) in [
        ("numbers in a collection", spec_collection(999, &[numbers()])),
        ("names in a collection", spec_collection(999, &[words()])),
        ("names alone", words()),
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

/// Rule 7: the number of an event decides its type, and the payload must fit. An event that could be one of two things is
/// skipped and counted: nothing is guessed.
#[tokio::test]
async fn an_event_whose_payload_does_not_fit_its_number_is_a_loss_and_not_another_event() {
    let event = |number: u8, payload: &[u8]| [&[map(3), 0, number, 1][..], &now(), &[2], payload].concat();
    let id_and_class = [&[map(2), 3, 42, 4][..], &text("Shop")].concat();
    let spec = [
        // Number 0 is allocation_snapshot in the specification and obj_created on master.
        event(0, &id_and_class),
        // Number 1 is gc_start in the specification and obj_destroyed on master.
        event(1, &[map(1), 3, 42]),
        event(1, &[7]),
        event(2, &[map(1), 3, 42]),
        event(3, &[map(0)]),
        [&[map(2), 0, 1, 1][..], &now()].concat(),
    ];
    let master = [event(2, &[map(1), 3, 42]), event(3, &[map(0)]), event(4, &[0x90]), wire::gc_start()];
    for (handshake, body, lost) in [
        (spec_handshake(), spec_collection(999, &spec), 5),
        (wire::handshake(4_711, false, false), wire::collection(999, &master), 3),
    ] {
        let (_, stopped) = events_of(&handshake, &[body]).await;
        let of_body = of_message(&stopped.events, 999);
        let names: Vec<_> = of_body.iter().map(|event| event["name"].as_str().unwrap()).collect();
        let losses = crate::live::losses(&of_body);
        assert_eq!(losses.len(), lost, "{names:?}");
        assert!(losses.iter().all(|loss| loss["reason"] == "malformed" && loss["events"] == 1), "{losses:?}");
        assert_eq!((names.len(), names.last()), (lost + 1, Some(&"rbkit.gc.start")), "{names:?}");
    }
}

/// A nil payload is the same as none.
#[tokio::test]
async fn a_garbage_collection_event_with_a_nil_payload_is_read() {
    let event = [&[map(3), 0, 2, 1][..], &now(), &[2, 0xc0]].concat();
    let (_, stopped) = events_of(&wire::handshake(1, false, false), &[wire::collection(999, &[event])]).await;
    assert_eq!(named(&stopped.events, "rbkit.gc.start").len(), 1);
    assert!(crate::live::losses(&stopped.events).is_empty());
}

/// Rules 25 and 26: our bytes on the SUB socket, to an agent that sends PING and unknown commands.
#[tokio::test]
async fn our_bytes_are_a_greeting_ready_a_subscription_and_pongs() {
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let agent = format!("{{ publish = \"{}\" }}", socket.local_addr().unwrap());
    let daemon = Daemon::start(&listener(&[agent], "")).await;
    let (mut stream, _) = crate::live::within("it connects", socket.accept()).await.unwrap();
    let mut received = vec![0; 64];
    // Without any byte of ours before.
    crate::live::within("its greeting", stream.read_exact(&mut received)).await.unwrap();
    assert_eq!(
        (received[0], &received[9..12], &received[12..32]),
        (0xff, &[0x7f, 3, 0][..], &wire::greeting(0)[12..32])
    );
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

/// A publisher that connects to us may have sent its greeting and READY before we read for the first time.
#[tokio::test]
async fn our_greeting_is_sent_first_even_if_the_peer_has_sent_greeting_and_ready() {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let daemon = Daemon::start(&listener(&[], &format!("listen_publish = \"{port}\""))).await;
    // Without an await: the daemon, which runs on this thread, accepts only when both have arrived.
    let mut stream = TcpStream::connect(port).unwrap();
    let message = wire::frame(0, &wire::collection(0, &[wire::gc_start()]));
    stream.write_all(&[wire::greeting(0), wire::ready("PUB"), message].concat()).unwrap();
    daemon.until_named("rbkit.gc.start").await;
    stream.set_nonblocking(true).unwrap();
    let mut stream = tokio::net::TcpStream::from_std(stream).unwrap();
    let wanted = [&wire::greeting(0)[..], &wire::ready("SUB"), &[0, 1, 1]].concat();
    let mut received = vec![0; wanted.len()];
    crate::live::within("what we send", stream.read_exact(&mut received)).await.unwrap();
    assert_eq!(received, wanted);
    drop(stream);
    assert!(crate::live::losses(&daemon.stop().await.events).is_empty());
}

/// Several processes of one listener are independent.
#[tokio::test]
async fn processes_of_one_listener_have_their_own_resources_dumps_and_counters() {
    let agents = [Agent::bind().await, Agent::bind().await, Agent::bind().await];
    for (pid, agent) in (100..).zip(&agents) {
        agent.set_handshake(&wire::handshake(pid, false, false));
    }
    let dead = Raw::bind(|_| Script::send(Vec::new(), Then::Close)).await;
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
