//! Harm to a traced program that runs, also after errors, that the collector must never cause.

use crate::bytefrog_support::agent::{Agent, Connection};
use crate::bytefrog_support::configuration::CollectorMessage;
use crate::bytefrog_support::{daemon, listener, wire};
use crate::live::puppet::{Mood, Strings};
use crate::live::{Daemon, until, within};
use serde_json::Value;
use tributary::pipeline::options::{QueueOptions, WhenFull};
use tributary::server::Server;

fn losses(events: &[Value]) -> Vec<(&str, u64)> {
    let losses = events.iter().filter(|event| event["kind"] == "loss");
    losses.map(|event| (event["loss"]["reason"].as_str().unwrap(), event["loss"]["bytes"].as_u64().unwrap())).collect()
}

/// Waits for an event of this name with this value of an attribute.
async fn until_seen(daemon: &Daemon, name: &str, attribute: &str, value: &str) {
    let is_it = |event: &Value| event["name"] == name && event["attributes"][attribute] == value;
    daemon.until(&format!("{name} with {attribute} = {value}"), |events| events.iter().any(is_it)).await;
}

/// A daemon with one sink that the test controls, whose queue is short.
async fn daemon_with(strings: &Strings, when_full: WhenFull) -> Server {
    let strings = strings.clone();
    let queue = QueueOptions { buffer_batches: 1, when_full, ..QueueOptions::default() };
    let add = |sinks: &mut tributary::pipeline::Sinks| sinks.add("puppet", queue, move || Ok(strings.puppet()));
    Server::start_with(&crate::live::config(&format!("limits.shutdown_grace = \"3s\"\n{}", listener(""))), add)
        .await
        .unwrap()
}

async fn bytes_in(server: &Server, count: usize) {
    until("all is read", || (crate::live::counters(server).bytes_in == count as u64).then_some(())).await;
}

/// Traced threads block in their own calls when the collector does not read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stalled_sink_does_not_stop_the_reading_of_an_agent() {
    for when_full in [WhenFull::Shed, WhenFull::Block] {
        check_that_an_agent_can_write(when_full).await;
    }
}

/// By default a sink that blocks delays an agent for a second; later events are shed and reported.
async fn check_that_an_agent_can_write(when_full: WhenFull) {
    let strings = Strings::new(Mood::Stall);
    let server = daemon_with(&strings, when_full).await;
    let (mut agent, mut data) = Agent::trace(&server, 1).await;
    let names = [wire::method(1, "demo/A.f;1;()V"), wire::thread_name(0, 0, "main")].concat();
    data[0].send(&names).await;
    let mut sent = 2 + 3 * 4 + 2 + names.len();
    for round in 0..200_u32 {
        let calls: Vec<_> = (0..500)
            .flat_map(|call| {
                [
                    wire::entry(call, round * 1000 + call * 2, 1, 0),
                    wire::exit(1, call, round * 1000 + call * 2 + 1, 1, 0),
                ]
            })
            .collect();
        let calls = calls.concat();
        let classes = wire::class_ignored("demo/Some$Class").repeat(20);
        within("the agent can write data", data[0].send(&calls)).await;
        within("the agent can write classes", agent.control.send(&classes)).await;
        sent += calls.len() + classes.len();
    }
    bytes_in(&server, sent).await;
    strings.set(Mood::Write);
    data[0].end().await;
    agent.control.end().await;
    until("every connection is over", || (crate::live::counters(&server).connections_open == 0).then_some(())).await;
    let totals = within("stopping", server.stop()).await;
    assert!(totals.are_balanced(), "{totals:?}");
    assert!(totals.sinks[0].shed > 0, "{when_full:?}: {totals:?}");
}

/// A program waits without a limit for its start and for its data connections: a sink that is configured to block must
/// not delay the answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocked_sink_does_not_keep_an_agent_from_starting() {
    let strings = Strings::new(Mood::Stall);
    let server = daemon_with(&strings, WhenFull::Block).await;
    let (_first, mut data) = Agent::trace(&server, 1).await;
    let names = [wire::method(1, "demo/A.f;1;()V"), wire::thread_name(0, 0, "main")].concat();
    let calls: Vec<_> = [names].into_iter().chain((0..200_000).map(|number| wire::entry(1, number, 1, 0))).collect();
    let flood = tokio::spawn(async move {
        data[0].send(&calls.concat()).await;
        data
    });
    until("the queue is full", || {
        (strings.flushes() > 0 && crate::live::counters(&server).bytes_in > 50_000).then_some(())
    })
    .await;
    for version in [1, 4] {
        let agent = within("a configuration", Agent::connect(&server, version)).await;
        agent.until_message(&CollectorMessage::Start).await;
        agent.data(&server).await;
    }
    strings.set(Mood::Write);
    flood.await.unwrap();
    let totals = within("stopping", server.stop()).await;
    assert!(totals.are_balanced(), "{totals:?}");
}

#[tokio::test]
async fn data_that_cannot_be_read_ends_its_own_connection_only() {
    let daemon = daemon("data_connections = 2").await;
    let (mut agent, mut data) = Agent::trace(&daemon.server, 1).await;
    data[0].send(&[wire::marker(1, 0, "before", ""), vec![51; 5]].concat()).await;
    data[0].until_closed().await;
    data[1].send(&wire::marker(2, 1, "other", "")).await;
    agent.control.send(&wire::class_ignored("demo/After")).await;
    until_seen(&daemon, "bytefrog.marker", "bytefrog.marker.key", "before").await;
    until_seen(&daemon, "bytefrog.marker", "bytefrog.marker.key", "other").await;
    until_seen(&daemon, "bytefrog.class.ignored", "bytefrog.class.name", "demo/After").await;
    assert!(!agent.control.received().is_closed && !data[1].received().is_closed);
    let events = daemon.until("the loss", |events| !losses(events).is_empty()).await;
    assert_eq!(losses(&events), [("unsupported", 5)]);
}

#[tokio::test]
async fn control_that_cannot_be_read_leaves_the_data_connections_alone() {
    let daemon = daemon("").await;
    let (mut agent, mut data) = Agent::trace(&daemon.server, 3).await;
    agent.control.send(&[24; 3]).await;
    agent.control.until_closed().await;
    data[0].send(&wire::marker(2, 0, "after", "")).await;
    until_seen(&daemon, "bytefrog.marker", "bytefrog.marker.key", "after").await;
    assert!(!data[0].received().is_closed);
    let has_ended = daemon.events().iter().any(|event| event["name"] == "bytefrog.run.ended");
    assert!(!has_ended, "a run ends with its last connection");
    data[0].end().await;
    daemon.until_named("bytefrog.run.ended").await;
}

#[tokio::test]
async fn a_second_hello_is_an_error_on_any_connection() {
    for bytes in [wire::hello(1), wire::project_hello(3), wire::data_hello(0)] {
        let daemon = daemon("").await;
        let (mut agent, mut data) = Agent::trace(&daemon.server, 1).await;
        data[0].send(&bytes).await;
        data[0].until_closed().await;
        agent.control.send(&bytes).await;
        agent.control.until_closed().await;
        daemon.until_named("bytefrog.run.ended").await;
        let stopped = daemon.stop().await;
        let length = bytes.len() as u64;
        for (reason, lost) in losses(&stopped.events) {
            assert!(["malformed", "unsupported"].contains(&reason) && lost == length, "{reason}, {lost} bytes");
        }
        assert_eq!(losses(&stopped.events).len(), 2);
    }
}

#[tokio::test]
async fn a_hello_that_is_cut_short_makes_no_run() {
    for hello in [&wire::project_hello(3)[..4], &wire::hello(1)[..1], &wire::data_hello(1)[..1]] {
        let daemon = daemon("").await;
        let mut control = Connection::open(&daemon.server).await;
        control.send(hello).await;
        control.end().await;
        control.until_closed().await;
        daemon.until_all_closed().await;
        let stopped = daemon.stop().await;
        assert_eq!(losses(&stopped.events), [("truncated", hello.len() as u64)]);
        assert_eq!(stopped.events.len(), 1, "{:?}", stopped.events);
    }
}

#[tokio::test]
async fn an_error_of_an_agent_is_an_event_and_later_messages_are_read() {
    let daemon = daemon("").await;
    let (mut agent, _data) = Agent::trace(&daemon.server, 2).await;
    agent.control.send(&[wire::error("it broke"), wire::class_ignored("demo/After")].concat()).await;
    let error = daemon.until_named("bytefrog.agent.error").await;
    assert_eq!((&error["body"], &error["severity"]), (&"it broke".into(), &"ERROR".into()));
    until_seen(&daemon, "bytefrog.class.ignored", "bytefrog.class.name", "demo/After").await;
    assert!(!agent.control.received().is_closed);
}

#[tokio::test]
async fn an_agent_without_heartbeats_is_unhealthy_and_keeps_its_connections() {
    let daemon = daemon("heartbeat_interval = \"100ms\"").await;
    let (mut agent, mut data) = Agent::trace(&daemon.server, 1).await;
    let unhealthy = daemon.until_named("bytefrog.agent.unhealthy").await;
    assert_eq!(
        unhealthy["resource"]["bytefrog.run.id"].to_string().trim_matches('"'),
        agent.configuration.run.to_string()
    );
    assert!(!agent.control.received().is_closed && !data[0].received().is_closed);
    data[0].send(&wire::marker(2, 0, "still", "")).await;
    until_seen(&daemon, "bytefrog.marker", "bytefrog.marker.key", "still").await;
    agent.control.send(&wire::heartbeat(b'T')).await;
    daemon.until_named("bytefrog.agent.recovered").await;
}

#[tokio::test]
async fn an_unknown_mode_is_a_sign_of_life() {
    let daemon = daemon("").await;
    let (mut agent, _data) = Agent::trace(&daemon.server, 1).await;
    agent.control.send(&wire::heartbeat(200)).await;
    until_seen(&daemon, "bytefrog.heartbeat", "bytefrog.mode", "unknown").await;
    agent.control.send(&wire::class_ignored("demo/After")).await;
    until_seen(&daemon, "bytefrog.class.ignored", "bytefrog.class.name", "demo/After").await;
}

/// Data continues to the end of the program when the control connection is lost.
#[tokio::test]
async fn a_run_lives_as_long_as_any_of_its_connections() {
    let daemon = daemon("data_connections = 2").await;
    let (mut agent, mut data) = Agent::trace(&daemon.server, 1).await;
    agent.control.end().await;
    agent.control.until_closed().await;
    data[0].end().await;
    data[0].until_closed().await;
    data[1].send(&wire::marker(2, 0, "last", "")).await;
    until_seen(&daemon, "bytefrog.marker", "bytefrog.marker.key", "last").await;
    assert!(daemon.events().iter().all(|event| event["name"] != "bytefrog.run.ended"));
    data[1].end().await;
    let ended = daemon.until_named("bytefrog.run.ended").await;
    assert_eq!(ended["attributes"]["bytefrog.run.events"], 1);
}

/// A stopping daemon decodes what has arrived; the programs of its agents continue untraced.
#[tokio::test]
async fn a_stopping_daemon_keeps_what_has_arrived_and_ends_the_run() {
    let daemon = daemon("").await;
    let (mut agent, mut data) = Agent::trace(&daemon.server, 1).await;
    data[0].send(&[wire::marker(2, 0, "last", ""), wire::entry(1, 1, 5, 0)].concat()).await;
    until_seen(&daemon, "bytefrog.marker", "bytefrog.marker.key", "last").await;
    let stopping = tokio::spawn(daemon.stop());
    agent.until_message(&CollectorMessage::Suspend).await;
    agent.control.send(&wire::heartbeat(b'S').repeat(3)).await;
    agent.until_message(&CollectorMessage::Stop).await;
    agent.control.send(&wire::heartbeat(b'X')).await;
    data[0].send(&wire::marker(3, 2, "after the stop", "")).await;
    data[0].end().await;
    agent.control.end().await;
    let stopped = stopping.await.unwrap();
    let count = |name: &str| stopped.events.iter().filter(|event| event["name"] == name).count();
    assert_eq!(
        (count("bytefrog.method.entry"), count("bytefrog.marker"), count("bytefrog.run.ended")),
        (1, 2, 1),
        "what an agent sends after the stop, and an event that waited for a name, are written"
    );
    agent.control.until_closed().await;
    assert!(
        matches!(
            agent.messages_received()[..],
            [
                CollectorMessage::Configuration(_),
                CollectorMessage::Start,
                CollectorMessage::Suspend,
                CollectorMessage::Stop
            ]
        ),
        "{:?}",
        agent.messages_received()
    );
}

/// It would wait for ever, or abort at the end of its control connection.
#[tokio::test]
async fn a_program_that_waits_for_its_start_is_started_when_it_can_no_longer_be_commanded() {
    let daemon = daemon("start = \"on_command\"").await;
    let mut broken = Agent::connect(&daemon.server, 1).await;
    broken.control.send(&[wire::heartbeat(b'I'), vec![24]].concat()).await;
    broken.control.until_closed().await;
    assert!(
        matches!(broken.messages_received()[..], [.., CollectorMessage::Configuration(_), CollectorMessage::Start]),
        "{:?}",
        broken.messages_received()
    );
    let mut waiting = Agent::connect(&daemon.server, 4).await;
    waiting.control.send(&wire::heartbeat(b'I')).await;
    let stopping = tokio::spawn(daemon.stop());
    waiting.until_message(&CollectorMessage::Start).await;
    waiting.control.end().await;
    stopping.await.unwrap();
}
