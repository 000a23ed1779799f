//! Hostile peers on real sockets: other agents are served whatever they do.

use crate::bytefrog_support::agent::{Agent, Connection};
use crate::bytefrog_support::configuration::CollectorMessage;
use crate::bytefrog_support::{daemon, wire};
use crate::live::{Daemon, until};
use serde_json::Value;

/// A short run beside the attack: all of its events are written.
async fn serves_an_agent(daemon: &Daemon) {
    let (mut agent, mut data) = Agent::trace(&daemon.server, 1).await;
    let project = agent.configuration.run;
    let named = [wire::method(0, "honest/A.b;1;()V"), wire::thread_name(0, 0, "main")].concat();
    data[0].send(&[named, wire::entry(0, 0, 0, 0), wire::exit(1, 1, 1, 0, 0)].concat()).await;
    agent.control.send(&wire::heartbeat(b'X')).await;
    data[0].end().await;
    agent.control.end().await;
    let is_its = |event: &&Value| event["resource"]["bytefrog.run.id"] == project;
    let is_call = |event: &Value| event["kind"] == "log" && event["attributes"]["code.function.name"] == "honest.A.b";
    let ended = |events: &[Value]| {
        let of_run: Vec<_> = events.iter().filter(is_its).collect();
        of_run.iter().any(|event| event["attributes"]["bytefrog.run.outcome"] == "complete")
            && of_run.iter().filter(|event| is_call(event)).count() == 2
    };
    daemon.until("all events of the honest run are written", ended).await;
}

#[tokio::test]
async fn half_a_hello_times_out_and_delays_no_other_connection() {
    let daemon = daemon("handshake_timeout = \"200ms\"").await;
    let mut halves = Vec::new();
    for number in 0..300 {
        let mut half = Connection::open(&daemon.server).await;
        half.send([&[][..], &[0], &[16], &[16, 4, 0], &[30]][number % 5]).await;
        halves.push(half);
    }
    serves_an_agent(&daemon).await;
    for half in &halves {
        half.until_closed().await;
    }
    daemon.until_all_closed().await;
    daemon.stop().await;
}

#[tokio::test]
async fn two_hundred_runs_at_the_same_time_are_all_started_and_end() {
    let daemon = daemon("").await;
    let mut agents = Vec::new();
    for number in 0..200_u8 {
        let agent = Agent::connect(&daemon.server, 1 + number % 4).await;
        agent.until_message(&CollectorMessage::Start).await;
        agents.push(agent);
    }
    for agent in &mut agents {
        agent.control.end().await;
        agent.control.until_closed().await;
    }
    daemon.until_all_closed().await;
    serves_an_agent(&daemon).await;
    let ended = daemon.stop().await.events;
    assert_eq!(ended.iter().filter(|event| event["name"] == "bytefrog.run.ended").count(), 201);
}

/// Run ids can be guessed, addresses cannot.
#[tokio::test]
async fn no_connection_of_another_address_joins_a_run_with_any_id() {
    let daemon = daemon("refusal_wait = \"50ms\"").await;
    let agent = Agent::connect(&daemon.server, 4).await;
    let mut others = Vec::new();
    for run in 0..=255 {
        let mut unregistered = Connection::open_from([127, 0, 0, 3], &daemon.server).await;
        unregistered.send(&wire::data_hello(run)).await;
        others.push(unregistered);
    }
    for unregistered in &others {
        unregistered.until_refused().await;
    }
    agent.data(&daemon.server).await;
    daemon.stop().await;
}

#[tokio::test]
async fn connections_that_break_anywhere_end_their_runs_and_every_event_is_written() {
    let daemon = daemon("calls = \"both\"\nunresolved_wait = \"5m\"\nreorder_window = \"5m\"").await;
    for version in 1..=4 {
        let (mut agent, mut data) = Agent::trace(&daemon.server, version).await;
        data[0].send(&[wire::entry(0, 5, 9, 0), wire::exit(version, 0, 9, 9, 0), vec![20, 0]].concat()).await;
        agent.control.send(&[0xff]).await;
        drop(data);
        agent.control.until_closed().await;
    }
    daemon.until_all_closed().await;
    daemon
        .until("every run ends", |events| {
            events.iter().filter(|event| event["name"] == "bytefrog.run.ended").count() == 4
        })
        .await;
    serves_an_agent(&daemon).await;
    let events = daemon.stop().await.events;
    let of = |name: &str| events.iter().filter(|event| event["name"] == name).count();
    assert_eq!((of("bytefrog.method.entry"), of("bytefrog.method.exit")), (5, 5));
}

#[tokio::test]
async fn a_flood_of_waiting_events_does_not_delay_another_agent() {
    let daemon = daemon("order = \"sequence\"\nmax_waiting = 1024").await;
    let (_agent, mut data) = Agent::trace(&daemon.server, 4).await;
    let mut flood = data.remove(0);
    let flooding = tokio::spawn(async move {
        // Never the expected number, and never a known method.
        for part in 0..4_u32 {
            let entries = (0..2000).map(|at| wire::entry(0, 1 + 2 * (part * 2000 + at), at, at as u16));
            flood.send(&entries.flatten().collect::<Vec<u8>>()).await;
        }
        flood
    });
    for _ in 0..2 {
        serves_an_agent(&daemon).await;
    }
    let flood = flooding.await.unwrap();
    drop(flood);
    let all = 4 * 2000 * 15;
    until("the flood is read", || (daemon.counters().bytes_in >= all).then_some(())).await;
    daemon.stop().await;
}
