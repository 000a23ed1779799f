//! Every recorded conversation, served to a daemon over sockets, gives the events of an independent decoder;
//! single messages, replies and ZMTP streams give their events or a loss, and the next valid one is decoded.

use crate::live::{Daemon, Stopped};
use crate::rbkit_support::agent::Agent;
use crate::rbkit_support::compare::{self, Problems, check_message, check_resource, named, of_message};
use crate::rbkit_support::raw::{Raw, Script, Then};
use crate::rbkit_support::recording::{self, Case, Session};
use crate::rbkit_support::serve::{serve, until_received};
use crate::rbkit_support::{daemon_for, listener, wire};
use serde_json::Value;
use tokio::task::JoinSet;

/// A handshake interval so short that no reply of a recording is missed.
const CURIOUS: &str = "handshake_interval = \"100ms\"";

/// Serves one recording to a daemon of its own.
async fn served(session: &Session, piece: usize) -> (Agent, Stopped) {
    let agent = Agent::bind().await;
    agent.set_handshake(&session.handshakes().next().unwrap().body);
    let daemon = daemon_for(&agent, CURIOUS).await;
    // A profile that is on is not started.
    let is_on = session.handshakes().next().unwrap().decoded["payload"]["object_trace_enabled"] == 1;
    agent.until_started(if is_on { &[] } else { &["start_memory_profile"] }).await;
    serve(&daemon, &agent, session, piece).await;
    (agent, daemon.stop().await)
}

fn check_session(problems: &mut Problems, session: &Session, agent: &Agent, stopped: &Stopped) {
    problems.with(&session.name);
    let Stopped { events, totals } = stopped;
    let mut count = 0;
    for message in session.published() {
        problems.with(format!("{} {}", session.name, message.file));
        let mine = of_message(events, message.counter().unwrap());
        check_message(problems, message, &mine);
        let publish = agent.publish.to_string();
        let is_of_agent = |event: &Value| {
            let origin = &event["origin"];
            origin["peer"] == publish && origin["protocol"] == "rbkit" && origin["listener"] == "test"
        };
        problems.check(mine.iter().all(is_of_agent), || "an event is not from the agent".to_owned());
        count += mine.len();
    }
    problems.with(&session.name);
    let handshakes = named(events, "rbkit.handshake");
    let mut answers: Vec<_> = session.handshakes().map(|message| &message.decoded).collect();
    answers.dedup_by(|later, earlier| later["payload"] == earlier["payload"]);
    problems
        .check(handshakes.len() == answers.len(), || format!("{} handshakes of {}", handshakes.len(), answers.len()));
    for (handshake, answer) in handshakes.iter().zip(&answers) {
        let time = compare::time(answer["timestamp"].as_u64().unwrap());
        problems.check(handshake["time"] == time, || format!("{handshake} is not of {time}"));
        let peer = agent.request.to_string();
        problems.check(handshake["origin"]["peer"] == peer, || format!("{handshake} is not from {peer}"));
    }
    check_resource(problems, answers[0], events);
    let others = events.len() - count - handshakes.len();
    problems.check(others == 0, || {
        let is_other = |event: &&Value| event["kind"] == "loss" || event["origin"].get("sequence").is_none();
        format!("{others} events more: {:?}", events.iter().filter(is_other).take(3).collect::<Vec<_>>())
    });
    let counters = &totals.listeners[0];
    problems.check(counters.bytes_in == agent.bytes_written(), || {
        format!("{} were sent: {counters:?}", agent.bytes_written())
    });
    problems.check(counters.bytes_lost.iter().sum::<u64>() == 0, || format!("{counters:?}"));
}

#[tokio::test]
async fn conversations_of_all_dialects_give_their_events() {
    let mut problems = Problems::default();
    for session in recording::sessions() {
        let (agent, stopped) = served(&session, usize::MAX).await;
        check_session(&mut problems, &session, &agent, &stopped);
        agent.assert_no_faults();
    }
    problems.assert_none();
}

/// Each piece is usually a TCP segment of its own.
#[tokio::test]
async fn small_pieces_and_single_bytes_give_the_same_events() {
    let mut problems = Problems::default();
    for (name, piece) in [
        ("master-2.1-raw-memory-then-cpu", 1),
        ("master-2.1-memory-then-cpu", 7),
        ("spec-2.1-snapshots", 61),
        ("v0.1.10-unsplit-dump", 1_021),
    ] {
        let session = recording::session(name);
        let (agent, stopped) = served(&session, piece).await;
        check_session(&mut problems, &session, &agent, &stopped);
    }
    problems.assert_none();
}

/// The handshake reply of an agent of this dialect.
fn handshake_of(sessions: &[Session], dialect: &str) -> Vec<u8> {
    let session = sessions.iter().find(|session| session.dialect == dialect).unwrap();
    session.handshakes().next().unwrap().body.clone()
}

/// A gc_start in the numbers of this dialect.
fn good(dialect: &str, counter: u64) -> Vec<u8> {
    let mut body = wire::collection(counter, &[wire::gc_start()]);
    if dialect == "spec-2.1" {
        let event = body.len() - wire::gc_start().len();
        (body[2], body[event + 2]) = (6, 1);
    }
    body
}

/// The losses of bytes or of invalid events; gaps are left out, because a dump may lack objects.
fn faults(events: &[Value]) -> Vec<&Value> {
    crate::live::losses(events).into_iter().filter(|loss| loss["reason"] != "gap").collect()
}

fn check_case(problems: &mut Problems, case: &Case, events: &[Value], good: u64) {
    let faults = faults(events);
    problems.check(!of_message(events, good).is_empty(), || "the next good message is not there".to_owned());
    let lost: u64 = faults.iter().map(|loss| loss["bytes"].as_u64().unwrap()).sum();
    if case.outcome == "reject" {
        problems.check(faults.len() == 1, || format!("{} losses: {faults:?}", faults.len()));
        problems.check(lost <= case.message.body.len() as u64 + 9, || format!("{lost} bytes are lost"));
        return;
    }
    let decoded = &case.message.decoded;
    check_message(problems, &case.message, &of_message(events, decoded["message_counter"].as_u64().unwrap()));
    let skipped: u64 = faults.iter().filter_map(|loss| loss["events"].as_u64()).sum();
    let expected = decoded["skipped"].as_u64().unwrap_or(0);
    problems.check(skipped == expected, || format!("{skipped} events are lost, not {expected}: {faults:?}"));
    if case.outcome == "ok" {
        problems.check(faults.is_empty(), || format!("{faults:?}"));
    } else {
        problems.check(lost > 0, || "no byte is lost".to_owned());
    }
    if let Some(trailing) = decoded["trailing_bytes"].as_u64() {
        problems.check(lost == trailing, || format!("{lost} bytes are lost, not {trailing}"));
    }
}

/// Each is sent to a daemon of its own, because their counters are not related.
#[tokio::test]
async fn single_messages_give_their_events_and_the_next_one_too() {
    let mut problems = Problems::default();
    let sessions = recording::sessions();
    let mut served = JoinSet::new();
    for case in recording::messages() {
        let handshake = handshake_of(&sessions, &case.dialect);
        served.spawn(async move {
            let agent = Agent::bind().await;
            agent.set_handshake(&handshake);
            let daemon = daemon_for(&agent, "").await;
            agent.until_subscribed().await;
            let next = case.message.counter().map_or(1_000_000, |counter| counter + 1);
            agent.publish(&case.message.body).await;
            agent.publish(&good(&case.dialect, next)).await;
            until_received(&daemon, &agent).await;
            (case, next, agent, daemon.stop().await)
        });
    }
    for (case, next, agent, stopped) in served.join_all().await {
        problems.with(&case.name);
        check_case(&mut problems, &case, &stopped.events, next);
        problems.check(agent.pub_connections() == 1, || "the connection was not kept".to_owned());
        let restarted = named(&stopped.events, "rbkit.agent.restarted");
        problems.check(restarted.is_empty(), || "it was taken for restarted".to_owned());
    }
    problems.assert_none();
}

#[tokio::test]
async fn handshake_replies_give_the_resource_or_are_rejected_and_requested_again() {
    let mut problems = Problems::default();
    for case in recording::replies() {
        problems.with(&case.name);
        let agent = Agent::bind().await;
        agent.set_handshake(&case.message.body);
        let daemon = daemon_for(&agent, "").await;
        if case.outcome == "reject" {
            daemon.until("a loss", |events| !faults(events).is_empty()).await;
            agent.set_handshake(&wire::handshake(99, false, false));
        }
        let handshake = daemon.until_named("rbkit.handshake").await;
        if case.outcome == "reject" {
            problems.check(handshake["resource"]["process.pid"] == 99, || format!("{handshake}"));
        } else {
            check_resource(&mut problems, &case.message.decoded, [&handshake]);
        }
        agent.until_subscribed().await;
        let stopped = daemon.stop().await;
        problems.check(faults(&stopped.events).is_empty() == (case.outcome != "reject"), || {
            format!("{:?}", faults(&stopped.events))
        });
    }
    problems.assert_none();
}

/// A daemon that only subscribes, to this address.
async fn subscriber(publish: &Raw) -> Daemon {
    Daemon::start(&listener(&[format!("{{ publish = \"{}\" }}", publish.address)], "")).await
}

/// Bytes that libzmq sent on a PUB socket.
#[tokio::test]
async fn recorded_streams_are_decoded() {
    for name in ["libzmq-client-3.1", "minimal-client-3.0"] {
        let (bytes, frames) = recording::stream(name, "pub-agent-to-client");
        let messages = frames.iter().filter(|frame| frame["kind"] == "message").count();
        let sent = bytes.len() as u64;
        let raw = Raw::bind(move |_| Script::send(bytes.clone(), Then::Listen)).await;
        let daemon = subscriber(&raw).await;
        daemon.until_totals("all is received", |counters| counters.bytes_in == sent && counters.buffered() == 0).await;
        let stopped = daemon.stop().await;
        let mut counters: Vec<_> = stopped.events.iter().map(|event| event["origin"]["sequence"].as_u64()).collect();
        counters.dedup();
        assert_eq!(counters.len(), messages, "{name}");
        assert!(crate::live::losses(&stopped.events).is_empty(), "{name}");
        assert_eq!(raw.opened(), 1);
    }
}

/// The first connection has the invalid stream, the following ones a valid stream.
#[tokio::test]
async fn invalid_streams_are_closed_with_a_loss_and_unusual_ones_are_decoded() {
    let good = [wire::greeting(0), wire::ready("PUB"), wire::frame(0, &good("", 7))].concat();
    for (name, outcome, bytes) in recording::hostile() {
        let (first, then) = (bytes.clone(), good.clone());
        let closes = outcome == "close";
        let is_short = name.contains("mid-greeting");
        let raw = Raw::bind(move |number| match number {
            0 if is_short => Script::send(first.clone(), Then::Close),
            0 if closes => Script::send(first.clone(), Then::Listen),
            // A connection that stays open sends one more message.
            0 => Script::send([&first[..], &wire::frame(0, &self::good("", 7))].concat(), Then::Listen),
            _ => Script::send(then.clone(), Then::Listen),
        })
        .await;
        let daemon = subscriber(&raw).await;
        let is_there = |events: &[Value]| !of_message(events, 7).is_empty();
        daemon.until(&format!("{name}: the good message is there"), is_there).await;
        let stopped = daemon.stop().await;
        let faults = faults(&stopped.events);
        let messages = of_message(&stopped.events, 0).len();
        match outcome.as_str() {
            "close" => {
                assert_eq!(faults.len(), 1, "{name}: {faults:?}");
                let loss = stopped.events.iter().find(|event| event["kind"] == "loss").unwrap();
                assert_eq!(loss["origin"]["peer"], raw.address.to_string(), "{name}");
                let lost = loss["loss"]["bytes"].as_u64().unwrap();
                assert!(lost > 0 && lost <= bytes.len() as u64, "{name}: {loss}");
                let reason = loss["loss"]["reason"].as_str().unwrap();
                assert!(["malformed", "unsupported", "too_large", "truncated"].contains(&reason), "{name}: {loss}");
                assert!(raw.opened() > 1, "{name}");
            }
            "1 message" => assert_eq!((messages, faults.len(), raw.opened()), (1, 0, 1), "{name}: {faults:?}"),
            _ => assert_eq!((messages, faults.len(), raw.opened()), (0, 1, 1), "{name}: {faults:?}"),
        }
    }
}

/// Publishers, or relays in front of them, connect to the daemon.
#[tokio::test]
async fn publishers_may_connect_to_the_daemon() {
    use tokio::io::AsyncWriteExt;
    let daemon = Daemon::start("[listeners.test]\nprotocol = \"rbkit\"\nlisten_publish = \"127.0.0.1:0\"\n").await;
    let address = daemon.server.addresses()[0].address;
    let session = recording::session("master-2.1-raw-dump");
    let mut problems = Problems::default();
    let bodies: Vec<u8> = session.published().flat_map(|message| wire::frame(0, &message.body)).collect();
    let all = [wire::greeting(1), wire::ready("PUB"), bodies].concat();
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    stream.write_all(&all).await.unwrap();
    daemon
        .until_totals("all is received", |counters| counters.bytes_in == all.len() as u64 && counters.buffered() == 0)
        .await;
    let stopped = daemon.stop().await;
    for message in session.published() {
        problems.with(&message.file);
        check_message(&mut problems, message, &of_message(&stopped.events, message.counter().unwrap()));
    }
    problems.assert_none();
    assert!(crate::live::losses(&stopped.events).is_empty());
}
