//! Endless OS metrics from hostile or faulty peers: limits, answers, and counters that balance.

use std::io::Write;

use crate::endless_support::http::{ask, listener, plain, put, reply, reply_to, send, sha512};
use crate::endless_support::{Case, cases};
use crate::live::{Daemon, losses, within};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;
use tokio::io::AsyncReadExt;

fn case(name: &str) -> Case {
    cases().into_iter().find(|case| case.name == name).unwrap()
}

async fn daemon(options: &str) -> (Daemon, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    (Daemon::start(&listener(directory.path(), options)).await, directory)
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

const GZIP: &str = "X-Endless-Content-Encoding: gzip\r\n";

/// The one loss of a stopped daemon; checks that it accounts for all bytes.
async fn only_loss(daemon: Daemon) -> Value {
    let stopped = daemon.stop().await;
    let totals = &stopped.totals.listeners[0];
    let losses = losses(&stopped.events);
    let [loss] = losses.as_slice() else { panic!("{losses:#?}") };
    assert_eq!(loss["bytes"], totals.lost());
    assert_eq!(totals.bytes_in, totals.lost(), "nothing else came in");
    (*loss).clone()
}

#[tokio::test]
async fn a_body_over_its_limit_is_refused_from_its_head() {
    let (daemon, _directory) = daemon("max_body_bytes = \"1KiB\"").await;
    let mut stream = daemon.connect().await;
    let reply = within("the answer", ask(&mut stream, &plain(3, &[7; 1025]))).await;
    assert_eq!((reply.status, reply.body.contains("max_body_bytes")), (413, true));
    let loss = only_loss(daemon).await;
    assert_eq!((loss["reason"].as_str(), loss["bytes"].as_u64()), (Some("too_large"), Some(1025)));
}

#[tokio::test]
async fn a_chunked_body_is_refused_when_it_exceeds_the_limit() {
    let (daemon, _directory) = daemon("max_body_bytes = \"1KiB\"").await;
    let mut stream = daemon.connect().await;
    let head = format!("PUT /3/{} HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n", sha512(b""));
    send(&mut stream, head.as_bytes()).await;
    // It declares gigabytes. The daemon neither waits for them nor allocates them.
    send(&mut stream, &[b"ffffffff\r\n".as_slice(), &[7; 2000]].concat()).await;
    let reply = within("the answer", reply(&mut stream)).await;
    assert_eq!((reply.status, reply.body.contains("max_body_bytes")), (413, true));
    assert_eq!(only_loss(daemon).await["reason"], "too_large");
}

#[tokio::test]
async fn a_bomb_is_refused_while_decompressing() {
    let (daemon, _directory) = daemon("max_inflated_bytes = \"1MiB\"").await;
    let mut stream = daemon.connect().await;
    let bomb = gzip(&vec![0; 20 << 20]);
    let reply = within("the answer", ask(&mut stream, &put(3, &sha512(b""), GZIP, &bomb))).await;
    assert_eq!((reply.status, reply.body.contains("max_inflated_bytes")), (413, true));
    let loss = only_loss(daemon).await;
    assert_eq!((loss["reason"].as_str(), loss["bytes"].as_u64()), (Some("too_large"), Some(bomb.len() as u64)));
}

#[tokio::test]
async fn a_wrong_hash_is_refused_and_its_bytes_are_a_loss() {
    let (daemon, _directory) = daemon("").await;
    let mut stream = daemon.connect().await;
    let body = case("v3-mixed").body;
    let reply = within("the answer", ask(&mut stream, &put(3, &sha512(b"other"), GZIP, &gzip(&body)))).await;
    assert_eq!((reply.status, reply.body.contains("SHA-512")), (400, true));
    let loss = only_loss(daemon).await;
    assert_eq!((loss["reason"].as_str(), loss["bytes"].as_u64()), (Some("malformed"), Some(body.len() as u64)));
}

#[tokio::test]
async fn a_head_that_is_not_received_in_time_closes_the_connection() {
    let (daemon, _directory) = daemon("handshake_timeout = \"50ms\"\nmessage_timeout = \"50ms\"").await;
    let mut silent = daemon.connect().await;
    crate::live::assert_is_closed(&mut silent).await;
    // The time of the second request starts with its first byte.
    let mut slow = daemon.connect().await;
    assert_eq!(within("health", ask(&mut slow, b"GET / HTTP/1.1\r\nHost: t\r\n\r\n")).await.status, 200);
    send(&mut slow, b"PUT /3/").await;
    crate::live::assert_is_closed(&mut slow).await;
    daemon.stop().await;
}

#[tokio::test]
async fn an_idle_connection_is_closed_after_its_timeout() {
    let (daemon, _directory) = daemon("idle_timeout = \"50ms\"").await;
    let mut idle = daemon.connect().await;
    assert_eq!(within("health", ask(&mut idle, b"GET / HTTP/1.1\r\nHost: t\r\n\r\n")).await.status, 200);
    crate::live::assert_is_closed(&mut idle).await;
    daemon.stop().await;
}

#[tokio::test]
async fn a_body_that_is_not_received_in_time_is_a_408() {
    let (daemon, _directory) = daemon("message_timeout = \"50ms\"\nmin_message_rate = 0").await;
    let mut stream = daemon.connect().await;
    let request = plain(3, &case("v3-mixed").body);
    send(&mut stream, &request[..request.len() - 100]).await;
    let reply = within("the answer", reply(&mut stream)).await;
    assert_eq!((reply.status, reply.body.contains("message_timeout")), (408, true));
    let loss = only_loss(daemon).await;
    assert_eq!((loss["reason"].as_str(), loss["bytes"].as_u64()), (Some("truncated"), Some(485)));
}

#[tokio::test]
async fn a_body_that_ends_too_early_is_a_loss_of_the_received_bytes() {
    let (daemon, _directory) = daemon("").await;
    let mut stream = daemon.connect().await;
    let request = plain(3, &case("v3-mixed").body);
    send(&mut stream, &request[..request.len() - 100]).await;
    drop(stream);
    daemon.until_named("tributary.loss").await;
    let loss = only_loss(daemon).await;
    assert_eq!((loss["reason"].as_str(), loss["bytes"].as_u64()), (Some("truncated"), Some(485)));
}

#[tokio::test]
async fn requests_without_memory_are_a_503() {
    // Little memory; each connection may always send a small body.
    let directory = tempfile::tempdir().unwrap();
    let daemon = Daemon::on(&crate::live::config_with_memory(&listener(directory.path(), ""), 1 << 20)).await;
    let mut stream = daemon.connect().await;
    let large = vec![7; 2 << 20];
    let reply = within("the answer", ask(&mut stream, &plain(3, &large))).await;
    assert_eq!((reply.status, reply.headers.contains_key("retry-after")), (503, true));
    let mut stream = daemon.connect().await;
    let inflating = put(3, &sha512(&large), GZIP, &gzip(&large));
    assert_eq!(within("the answer", ask(&mut stream, &inflating)).await.status, 503);
    assert_eq!(within("the answer", ask(&mut stream, &case("v3-mixed").request)).await.status, 200);
    let stopped = daemon.stop().await;
    assert!(losses(&stopped.events).iter().all(|loss| loss["reason"] == "failed"));
}

#[tokio::test]
async fn requests_over_max_requests_are_a_503() {
    let directory = tempfile::tempdir().unwrap();
    let strings = crate::live::puppet::Strings::new(crate::live::puppet::Mood::Stall);
    let puppets = strings.clone();
    let toml = listener(directory.path(), "max_requests = 1\ndelivery_timeout = \"50ms\"");
    let server = tributary::server::Server::start_with(&crate::live::config(&toml), move |sinks| {
        sinks.add("puppet", Default::default(), move || Ok(puppets.puppet()));
    })
    .await
    .unwrap();
    for name in ["v3-mixed", "v2-mixed"] {
        let mut stream = crate::live::connect(&server).await;
        assert_eq!(within("the answer", ask(&mut stream, &case(name).request)).await.status, 503);
    }
    strings.set(crate::live::puppet::Mood::Write);
    assert!(server.stop().await.are_balanced());
    let written = strings.written();
    assert_eq!(losses(&written)[0]["detail"], "too many requests are being decoded (max_requests)");
}

#[tokio::test]
async fn an_image_or_site_that_every_event_would_repeat_is_bounded() {
    let (daemon, directory) = daemon("max_channel_bytes = \"1KiB\"").await;
    let mut body = vec![0; 16];
    body.extend_from_slice(&[b'i'; 2000]);
    body.extend_from_slice(b"\0\0");
    body.resize(body.len().next_multiple_of(8), 0);
    for end in [body.len() as u16, 2017, 2017] {
        body.extend_from_slice(&end.to_le_bytes());
    }
    let mut stream = daemon.connect().await;
    assert_eq!(within("the answer", ask(&mut stream, &plain(3, &body))).await.status, 200);
    assert_eq!(only_loss(daemon).await["reason"], "too_large");
    assert_eq!(crate::endless_support::http::quarantined(directory.path()).len(), 1);
}

#[tokio::test]
async fn a_payload_over_its_limit_is_left_out_and_its_event_is_not() {
    let (daemon, directory) = daemon("max_payload_bytes = \"1KiB\"").await;
    let mut stream = daemon.connect().await;
    let case = case("attack-array-of-unit-60000");
    assert_eq!(within("the answer", ask(&mut stream, &case.request)).await.status, 200);
    let stopped = daemon.stop().await;
    assert_eq!(stopped.events.len(), 2);
    assert_eq!(stopped.events[0]["loss"]["reason"], "too_large");
    assert_eq!(stopped.events[1]["attributes"]["tributary.incomplete"], serde_json::json!(["payload"]));
    assert_eq!(crate::endless_support::http::quarantined(directory.path()).len(), 1, "the body is kept");
}

#[tokio::test]
async fn a_peer_that_disconnects_before_its_answer_changes_nothing() {
    let (daemon, _directory) = daemon("").await;
    for name in ["v3-mixed", "v2-mixed", "real-v3-bulk-5000"] {
        let mut stream = daemon.connect().await;
        send(&mut stream, &case(name).request).await;
        crate::live::reset(stream);
    }
    daemon.until_all_closed().await;
    assert!(daemon.stop().await.totals.are_balanced());
}

#[tokio::test]
async fn after_a_refusal_the_connection_is_closed_or_continues() {
    let (daemon, _directory) = daemon("").await;
    let mut stream = daemon.connect().await;
    send(&mut stream, &plain(4, b"an unwanted body")).await;
    assert_eq!(within("the answer", reply(&mut stream)).await.status, 404);
    send(&mut stream, &plain(3, &case("v3-mixed").body)).await;
    match within("the end", reply_to(&mut stream, false)).await {
        Ok(reply) => assert_eq!(reply.status, 200),
        Err(_) => assert_eq!(stream.read(&mut [0]).await.unwrap_or(0), 0),
    }
    daemon.stop().await;
}
