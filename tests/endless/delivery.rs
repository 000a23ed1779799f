//! Endless OS metrics: agents are answered by the outcome of the sinks, and repeats are not delivered again.

use std::path::Path;

use crate::endless_support::http::{Reply, ask, listener, plain, quarantined, send};
use crate::endless_support::{Case, cases};
use crate::live::puppet::{Mood, Strings};
use crate::live::{Daemon, config, until, within};
use serde_json::Value;
use tributary::event::{Kind, Reason};
use tributary::pipeline::options::{QueueOptions, WhenFull};
use tributary::server::Server;

fn case(name: &str) -> Case {
    cases().into_iter().find(|case| case.name == name).unwrap()
}

/// A daemon with one sink that the test controls.
async fn daemon(quarantine: &Path, options: &str, strings: &Strings) -> Server {
    let strings = strings.clone();
    Server::start_with(&config(&listener(quarantine, options)), move |sinks| {
        sinks.add("puppet", QueueOptions::default(), move || Ok(strings.puppet()));
    })
    .await
    .unwrap()
}

async fn put(server: &Server, request: &[u8]) -> Reply {
    let mut stream = crate::live::connect(server).await;
    within("the answer", ask(&mut stream, request)).await
}

fn events(lines: &[Value]) -> usize {
    lines.iter().filter(|event| event["kind"] != "loss").count()
}

fn duplicates(lines: &[Value]) -> Vec<u64> {
    let is_one = |event: &&Value| event["loss"]["reason"] == "duplicate";
    lines.iter().filter(is_one).map(|event| event["loss"]["events"].as_u64().unwrap()).collect()
}

/// The same bundle as sent by a later attempt: with other clocks, so with another hash.
fn again(bundle: &[u8], version: u64, seconds: i64) -> Vec<u8> {
    let first = if version == 2 { 8 } else { 0 };
    let mut bundle = bundle.to_vec();
    for at in [first, first + 8] {
        let clock = i64::from_le_bytes(bundle[at..at + 8].try_into().unwrap());
        bundle[at..at + 8].copy_from_slice(&(clock + seconds * 1_000_000_000).to_le_bytes());
    }
    bundle
}

#[tokio::test]
async fn an_upload_is_answered_200_only_when_the_sink_has_it() {
    let directory = tempfile::tempdir().unwrap();
    let strings = Strings::new(Mood::Stall);
    let server = daemon(directory.path(), "", &strings).await;
    let mut stream = crate::live::connect(&server).await;
    send(&mut stream, &plain(3, &case("v3-mixed").body)).await;
    until("the sink is asked", || (strings.flushes() > 0).then_some(())).await;
    assert!(strings.written().is_empty());
    strings.set(Mood::Write);
    assert_eq!(within("the answer", ask(&mut stream, b"")).await.status, 200);
    assert_eq!(strings.written().len(), 9);
    server.stop().await;
}

#[tokio::test]
async fn a_sink_that_fails_is_a_503_and_the_resend_is_no_repeat() {
    let directory = tempfile::tempdir().unwrap();
    let strings = Strings::new(Mood::Fail);
    let server = daemon(directory.path(), "", &strings).await;
    let body = case("v3-mixed").body;
    let reply = put(&server, &plain(3, &body)).await;
    assert_eq!((reply.status, reply.headers.contains_key("retry-after")), (503, true));
    strings.set(Mood::Write);
    assert_eq!(put(&server, &plain(3, &again(&body, 3, 2))).await.status, 200);
    let totals = server.stop().await;
    assert!(totals.are_balanced());
    assert_eq!(events(&strings.written()), 9);
    assert!(duplicates(&strings.written()).is_empty());
}

#[tokio::test]
async fn a_slow_sink_is_a_503_and_its_late_success_makes_the_resend_a_repeat() {
    let directory = tempfile::tempdir().unwrap();
    let strings = Strings::new(Mood::Stall);
    let server = daemon(directory.path(), "delivery_timeout = \"50ms\"", &strings).await;
    let body = case("v3-mixed").body;
    let reply = put(&server, &plain(3, &body)).await;
    assert_eq!((reply.status, reply.headers["retry-after"].as_str()), (503, "10"));
    // While the first is in flight, the second is not delivered.
    let reply = put(&server, &plain(3, &again(&body, 3, 2))).await;
    assert_eq!(reply.status, 503);
    strings.set(Mood::Write);
    until("the first is written", || (events(&strings.written()) == 9).then_some(())).await;
    until("the repeat is known", || {
        let duplicates = duplicates(&strings.written());
        (!duplicates.is_empty()).then_some(())
    })
    .await;
    let reply = put(&server, &plain(3, &again(&body, 3, 4))).await;
    assert_eq!((reply.status, reply.body.as_str()), (200, "a repeat of a stored bundle\n"));
    assert!(server.stop().await.are_balanced());
    assert_eq!(events(&strings.written()), 9, "delivered once");
    assert_eq!(duplicates(&strings.written()), [9, 9]);
}

#[tokio::test]
async fn an_upload_that_a_full_queue_sheds_is_a_503() {
    let directory = tempfile::tempdir().unwrap();
    let strings = Strings::new(Mood::Stall);
    let puppets = strings.clone();
    let options = QueueOptions { buffer_batches: 1, when_full: WhenFull::Shed, ..Default::default() };
    let server = Server::start_with(&config(&listener(directory.path(), "")), move |sinks| {
        sinks.add("puppet", options, move || Ok(puppets.puppet()));
    })
    .await
    .unwrap();
    let names = ["v3-mixed", "v2-mixed", "v3-payload-zoo", "real-v3-basic"];
    let mut streams = Vec::new();
    for name in names {
        let mut stream = crate::live::connect(&server).await;
        send(&mut stream, &case(name).request).await;
        streams.push(stream);
        until("it is handed over", || (server.accounting().totals().sinks[0].events > 0).then_some(())).await;
    }
    until("one is shed", || (server.accounting().totals().sinks[0].shed > 0).then_some(())).await;
    strings.set(Mood::Write);
    let mut statuses = Vec::new();
    for stream in &mut streams {
        statuses.push(within("the answer", ask(stream, b"")).await.status);
    }
    assert!(statuses.contains(&503) && statuses.contains(&200), "{statuses:?}");
    assert!(server.stop().await.are_balanced());
}

#[tokio::test]
async fn retries_of_real_agents_are_recognised() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&listener(directory.path(), "")).await;
    let names = ["real-v3-retry-0", "real-v3-retry-1", "real-v3-retry-2"];
    for name in names {
        assert_eq!(put(&daemon.server, &case(name).request).await.status, 200);
    }
    // Heartbeats are never repeats.
    for name in ["real-v2-empty-retry-0", "real-v2-empty-retry-1", "real-v2-empty-retry-1"] {
        assert_eq!(put(&daemon.server, &case(name).request).await.status, 200);
    }
    let once = case("real-v3-retry-0").outcome["events"]["singular"].as_u64().unwrap();
    let stopped = daemon.stop().await;
    assert_eq!(events(&stopped.events) as u64, once);
    assert_eq!(duplicates(&stopped.events), [once, once]);
    let bytes = case("real-v3-retry-0").body.len() as u64;
    assert_eq!(stopped.totals.listeners[0].bytes_lost[Reason::Duplicate.index()], 2 * bytes);
    assert_eq!(stopped.totals.listeners[0].count(Kind::Loss), 2);
}

#[tokio::test]
async fn of_a_later_upload_with_more_events_only_the_new_ones_are_delivered() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&listener(directory.path(), "")).await;
    // The first upload has the first of three events.
    let few = bundle(&[event(1)], 5);
    let more = bundle(&[event(1), event(2), event(3)], 9);
    assert_eq!(put(&daemon.server, &plain(3, &few)).await.status, 200);
    assert_eq!(put(&daemon.server, &plain(3, &more)).await.status, 200);
    let stopped = daemon.stop().await;
    assert_eq!((events(&stopped.events), duplicates(&stopped.events)), (3, vec![1]));
}

#[tokio::test]
async fn equal_events_of_one_bundle_are_no_repeats_of_one_another() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&listener(directory.path(), "")).await;
    assert_eq!(put(&daemon.server, &plain(3, &bundle(&[event(1), event(1)], 5))).await.status, 200);
    let stopped = daemon.stop().await;
    assert_eq!((events(&stopped.events), duplicates(&stopped.events).len()), (2, 0));
}

#[tokio::test]
async fn equal_counts_of_different_machines_are_distinguished_by_their_clocks() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&listener(directory.path(), "")).await;
    let body = case("real-v3-aggregates").body;
    let mut other = body.clone();
    // Another machine: its monotonic clock was 0 an hour later.
    let relative = i64::from_le_bytes(body[..8].try_into().unwrap());
    other[..8].copy_from_slice(&(relative - 3_600_000_000_000).to_le_bytes());
    for bundle in [&body, &other, &again(&body, 3, 300), &again(&other, 3, 300)] {
        assert_eq!(put(&daemon.server, &plain(3, bundle)).await.status, 200);
    }
    let stopped = daemon.stop().await;
    assert_eq!((events(&stopped.events), duplicates(&stopped.events)), (8, vec![4, 4]));
}

#[tokio::test]
async fn without_dedup_every_upload_is_new() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&listener(directory.path(), "dedup = { entries = 0 }")).await;
    let body = case("v3-mixed").body;
    for _ in 0..2 {
        assert_eq!(put(&daemon.server, &plain(3, &body)).await.status, 200);
    }
    assert_eq!(events(&daemon.stop().await.events), 18);
}

#[tokio::test]
async fn a_quarantine_that_cannot_store_is_a_503() {
    let directory = tempfile::tempdir().unwrap();
    // A file has the directory's name.
    std::fs::write(directory.path().join("test"), "").unwrap();
    let daemon = Daemon::start(&listener(directory.path(), "")).await;
    let reply = put(&daemon.server, &case("bad-random").request).await;
    assert_eq!((reply.status, reply.headers.contains_key("retry-after")), (503, true));
    assert_eq!(daemon.stop().await.events.len(), 1, "the loss is told all the same");
}

#[tokio::test]
async fn events_of_a_bundle_that_could_not_be_quarantined_are_not_written_again() {
    let directory = tempfile::tempdir().unwrap();
    let taken = directory.path().join("test");
    std::fs::write(&taken, "").unwrap();
    let daemon = Daemon::start(&listener(directory.path(), "")).await;
    assert_eq!(put(&daemon.server, &case("bad-bool-2").request).await.status, 503);
    std::fs::remove_file(&taken).unwrap();
    assert_eq!(put(&daemon.server, &case("bad-string-interior-nul").request).await.status, 200);
    assert_eq!(put(&daemon.server, &case("bad-bool-2").request).await.status, 200);
    assert_eq!(quarantined(directory.path()).len(), 2, "both are kept in the end");
    let stopped = daemon.stop().await;
    // The two bundles have three of four valid events in common.
    let ids = |event: &&Value| event["kind"] != "loss";
    assert!(stopped.events.iter().filter(ids).count() < 8, "{:#?}", stopped.events);
    assert!(!duplicates(&stopped.events).is_empty());
}

#[tokio::test]
async fn without_a_quarantine_an_unreadable_bundle_is_a_loss_and_answered_200() {
    let directory = tempfile::tempdir().unwrap();
    let toml = listener(Path::new(""), "");
    let daemon = Daemon::start(&toml).await;
    assert_eq!(put(&daemon.server, &case("bad-random").request).await.status, 200);
    assert_eq!(daemon.stop().await.events[0]["loss"]["bytes"], 300);
    assert!(quarantined(directory.path()).is_empty());
}

#[tokio::test]
async fn a_quarantined_request_can_be_sent_again() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&listener(directory.path(), "")).await;
    assert_eq!(put(&daemon.server, &case("bad-bool-2").request).await.status, 200);
    let kept = quarantined(directory.path()).remove(0);
    assert_eq!(put(&daemon.server, &kept).await.status, 200);
    let stopped = daemon.stop().await;
    assert_eq!(duplicates(&stopped.events), [4], "it is the same bundle");
}

#[tokio::test]
async fn a_stopping_daemon_finishes_its_requests_and_accepts_no_more() {
    let directory = tempfile::tempdir().unwrap();
    let strings = Strings::new(Mood::Stall);
    let server = daemon(directory.path(), "", &strings).await;
    let (mut busy, mut idle) = (crate::live::connect(&server).await, crate::live::connect(&server).await);
    assert_eq!(within("health", ask(&mut idle, b"GET / HTTP/1.1\r\nHost: t\r\n\r\n")).await.status, 200);
    send(&mut busy, &plain(3, &case("v3-mixed").body)).await;
    until("the sink is asked", || (strings.flushes() > 0).then_some(())).await;
    let stopping = tokio::spawn(server.stop());
    crate::live::assert_is_closed(&mut idle).await;
    strings.set(Mood::Write);
    assert_eq!(within("the answer", ask(&mut busy, b"")).await.status, 200);
    assert!(within("the end", stopping).await.unwrap().are_balanced());
}

#[tokio::test]
async fn a_request_that_exceeds_the_grace_period_is_accounted_for() {
    let directory = tempfile::tempdir().unwrap();
    let strings = Strings::new(Mood::Stall);
    let toml = format!("limits.shutdown_grace = \"100ms\"\n{}", listener(directory.path(), ""));
    let puppets = strings.clone();
    let server = Server::start_with(&config(&toml), move |sinks| {
        sinks.add("puppet", QueueOptions::default(), move || Ok(puppets.puppet()));
    })
    .await
    .unwrap();
    let mut stream = crate::live::connect(&server).await;
    send(&mut stream, &plain(3, &case("v3-mixed").body)).await;
    until("the sink is asked", || (strings.flushes() > 0).then_some(())).await;
    let mut half = crate::live::connect(&server).await;
    let request = plain(2, &case("v2-mixed").body);
    send(&mut half, &request[..request.len() - 10]).await;
    let received = || server.accounting().totals().listeners[0].bytes_in;
    until("both are here", || (received() == 585 + 547).then_some(())).await;
    let totals = within("the end", server.stop()).await;
    assert!(totals.are_balanced(), "{totals:?}");
    assert_eq!(totals.sinks[0].written, 0);
}

/// A version 3 singular event at this time.
fn event(relative: u64) -> Vec<u8> {
    let mut event = vec![0xCD; 16];
    event.extend_from_slice(b"4.0.9\0\0\0");
    event.extend_from_slice(&relative.to_le_bytes());
    event.extend_from_slice(&[22, 16]);
    event
}

/// A version 3 bundle of these events, sent this many seconds after the agent's clock was 0.
fn bundle(events: &[Vec<u8>], seconds: i64) -> Vec<u8> {
    let mut array = Vec::new();
    let mut ends = Vec::new();
    for event in events {
        array.resize(array.len().next_multiple_of(8), 0);
        array.extend_from_slice(event);
        ends.push(array.len() as u8);
    }
    array.extend_from_slice(&ends);
    let mut body = Vec::new();
    for clock in [seconds * 1_000_000_000, 1_795_176_900_000_000_000 + seconds * 1_000_000_000] {
        body.extend_from_slice(&clock.to_le_bytes());
    }
    body.extend_from_slice(b"unknown\0\0");
    body.resize(body.len().next_multiple_of(8), 0);
    body.extend_from_slice(&array);
    let end = body.len() as u8;
    body.resize(body.len().next_multiple_of(8), 0);
    body.extend_from_slice(&[end, 24, 24]);
    body
}

#[tokio::test]
async fn a_quarantined_request_decodes_offline_with_its_receive_time() {
    let directory = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&listener(directory.path(), "")).await;
    assert_eq!(put(&daemon.server, &case("bad-bool-2").request).await.status, 200);
    let live = daemon.stop().await.events;
    let file = std::fs::read_dir(directory.path().join("test")).unwrap().next().unwrap().unwrap().path();
    let ended =
        tokio::task::spawn_blocking(move || crate::live::binary::run(&["decode", "endless", file.to_str().unwrap()]));
    let ended = ended.await.unwrap();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let shown = |events: &[Value]| -> Vec<(Value, Value)> {
        events.iter().map(|event| (event["attributes"].clone(), event["body"].clone())).collect()
    };
    assert_eq!(shown(&ended.events()), shown(&live));
    assert_eq!(ended.events()[0]["time"], live[0]["time"], "the clock is judged by the time of then");
}
