//! TLS listeners, with generated certificates and a client that shares only rustls with the daemon.

use std::fs;

use crate::live::{Daemon, assert_is_closed, losses, send_all, spans, timeless, wire, within};
use crate::tls_support::{World, send_secretly};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tributary::capture::{MAGIC, Reader, What};
use tributary::protocol::End;
use tributary::protocol::datadog::Options;

fn hello(name: &str) -> Vec<u8> {
    [wire::process(), wire::named_span(1, name)].concat()
}

#[tokio::test]
async fn bytes_through_tls_give_the_same_events() {
    let world = World::new();
    let daemon = Daemon::with(&world.tls("span_idle = \"1h\"")).await;
    // Several hundred records of TLS, and long strings that span many.
    let work = [wire::work(2_000).0, wire::named_span(9, &"x".repeat(70_000))].concat();
    for (bytes, piece) in [(&work, usize::MAX), (&work, 1_000), (&hello("small"), 1)] {
        let stream = world.connect(&daemon, None).await.unwrap();
        let peer = stream.get_ref().0.local_addr().unwrap().to_string();
        send_secretly(stream, bytes, piece).await;
        daemon.until_all_closed().await;
        let expected = crate::common::decode_with(&Options::default(), vec![bytes], End::Closed).events;
        let has_all = |events: &[serde_json::Value]| {
            events.iter().filter(|event| event["origin"]["peer"] == peer.as_str()).count() == expected.len()
        };
        let events = daemon.until("all events are there", has_all).await;
        let of_peer = events.iter().filter(|event| event["origin"]["peer"] == peer.as_str());
        assert!(of_peer.map(timeless).eq(expected.iter().map(timeless)), "in pieces of {piece}");
    }
    let totals = daemon.stop().await.totals;
    assert_eq!(totals.listeners[0].bytes_in, 2 * work.len() as u64 + hello("small").len() as u64);
    assert_eq!(totals.listeners[0].lost(), 0);
}

#[tokio::test]
async fn a_capture_of_tls_contains_the_decrypted_bytes() {
    let world = World::new();
    let dir = world.directory.path().join("captures");
    let daemon = Daemon::with(&world.tls(&format!("capture.dir = {:?}", dir.display().to_string()))).await;
    send_secretly(world.connect(&daemon, None).await.unwrap(), &hello("secret"), 7).await;
    daemon.stop().await;
    let file = fs::read_dir(dir.join("test")).unwrap().next().unwrap().unwrap();
    let file = fs::read(file.path()).unwrap();
    let mut reader = Reader::new(file.strip_prefix(MAGIC).unwrap()).unwrap();
    let mut recorded = Vec::new();
    while let Some(record) = reader.record().unwrap() {
        if let What::Bytes(bytes) = record.what {
            recorded.extend(bytes);
        }
    }
    assert_eq!(recorded, hello("secret"));
}

#[tokio::test]
async fn only_clients_with_a_certificate_of_client_ca_are_accepted() {
    let (world, other_client) = (World::new(), World::new().client);
    let daemon = Daemon::with(&world.tls("tls.client_ca = \"CA\"")).await;
    for identity in [None, Some(&other_client)] {
        // In TLS 1.3 the client has finished before it learns that it is refused.
        if let Ok(mut stream) = world.connect(&daemon, identity).await {
            let _ = stream.write_all(&hello("refused")).await;
            assert!(within("the refusal", stream.read_u8()).await.is_err());
        }
    }
    daemon.until_all_closed().await;
    send_secretly(world.connect(&daemon, Some(&world.client)).await.unwrap(), &hello("accepted"), 100).await;
    let events = daemon.stop().await.events;
    assert_eq!(spans(&events), [("accepted", true)]);
    let losses = losses(&events);
    assert_eq!(losses.len(), 2, "{losses:?}");
    for loss in losses {
        assert_eq!((&loss["reason"], &loss["bytes"]), (&json!("malformed"), &json!(0)));
        assert!(loss["detail"].as_str().unwrap().starts_with("the TLS handshake failed: "), "{loss}");
    }
}

#[tokio::test]
async fn plain_bytes_on_a_tls_listener_are_a_loss_and_affect_no_other_connection() {
    let world = World::new();
    let daemon = Daemon::with(&world.tls("span_idle = \"1h\"")).await;
    let mut other = world.connect(&daemon, None).await.unwrap();
    other.write_all(&hello("secret")).await.unwrap();
    other.flush().await.unwrap();
    let mut plain = daemon.connect().await;
    plain.write_all(&hello("plain")).await.unwrap();
    assert_is_closed(&mut plain).await;
    daemon.until("the loss is reported", |events| !losses(events).is_empty()).await;
    send_secretly(other, &wire::metric(1, 0.5), 100).await;
    let crate::live::Stopped { events, totals } = daemon.stop().await;
    assert_eq!(spans(&events), [("secret", true)]);
    let [loss] = losses(&events)[..] else { panic!("one loss: {events:?}") };
    assert_eq!(loss["reason"], "malformed");
    assert!(loss["detail"].as_str().unwrap().contains("tls.allow_plain"), "{loss}");
    assert_eq!(loss["bytes"].as_u64(), Some(totals.listeners[0].lost()));
    assert!(loss["excerpt"].as_str().unwrap().starts_with("dd0000000001"), "{loss}");
}

#[tokio::test]
async fn with_allow_plain_tls_and_plain_connections_are_recognized_by_their_first_byte() {
    let world = World::new();
    let daemon = Daemon::with(&world.tls("tls.allow_plain = true")).await;
    send_all(daemon.connect().await, &hello("plain")).await;
    send_secretly(world.connect(&daemon, None).await.unwrap(), &hello("secret"), 100).await;
    let events = daemon.stop().await.events;
    assert_eq!(spans(&events), [("plain", true), ("secret", true)]);
    assert!(losses(&events).is_empty());
}

#[tokio::test]
async fn a_proxy_header_comes_before_tls_and_before_plain_bytes_too() {
    let world = World::new();
    let options = "tls.client_ca = \"CA\"\nproxy_protocol = [\"127.0.0.0/8\"]";
    let daemon = Daemon::with(&world.tls(options)).await;
    let version_2 = [&b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0C"[..], &[192, 0, 2, 7, 10, 0, 0, 1, 0, 80, 1, 187]].concat();
    let version_1 = b"PROXY TCP4 192.0.2.8 10.0.0.1 81 443\r\n".to_vec();
    for (name, header) in [("two", &version_2), ("one", &version_1)] {
        let mut stream = daemon.connect().await;
        stream.write_all(header).await.unwrap();
        let stream = world.shake_hands(stream, Some(&world.client)).await.unwrap();
        send_secretly(stream, &hello(name), 100).await;
        daemon.until_all_closed().await;
    }
    // After the header only TLS is accepted.
    let mut plain = daemon.connect().await;
    plain.write_all(&[version_1, hello("plain")].concat()).await.unwrap();
    assert_is_closed(&mut plain).await;
    let crate::live::Stopped { events, totals } = daemon.stop().await;
    let peers: Vec<_> = events.iter().map(|event| (event["kind"].as_str(), event["origin"]["peer"].as_str())).collect();
    let [two, one] = [Some("192.0.2.7:80"), Some("192.0.2.8:81")];
    let [log, span] = [Some("log"), Some("span")];
    assert_eq!(peers, [(log, two), (span, two), (log, one), (span, one), (Some("loss"), one)]);
    let lost = hello("plain").len().min(64) as u64;
    assert_eq!(totals.listeners[0].lost(), lost);
    assert_eq!(totals.listeners[0].bytes_in, 2 * hello("two").len() as u64 + lost);
}

#[tokio::test]
async fn a_tls_connection_that_ends_without_close_notify_leaves_its_last_span_incomplete() {
    let world = World::new();
    let daemon = Daemon::with(&world.tls("span_idle = \"1h\"")).await;
    let mut stream = world.connect(&daemon, None).await.unwrap();
    stream.write_all(&hello("cut off")).await.unwrap();
    stream.flush().await.unwrap();
    // Any host on the path can end a TCP connection; only the peer can send close_notify.
    stream.get_mut().0.shutdown().await.unwrap();
    daemon.until_named("cut off").await;
    let events = daemon.stop().await.events;
    assert_eq!(spans(&events), [("cut off", false)]);
    assert!(losses(&events).is_empty());
}

#[tokio::test]
async fn an_incomplete_handshake_ends_after_handshake_timeout() {
    let world = World::new();
    let daemon = Daemon::with(&world.tls("handshake_timeout = \"300ms\"")).await;
    let mut silent = daemon.connect().await;
    let mut halting = daemon.connect().await;
    halting.write_all(&[0x16, 3, 1, 2, 0, 1]).await.unwrap();
    assert_is_closed(&mut silent).await;
    assert_is_closed(&mut halting).await;
    let events = daemon.stop().await.events;
    let [loss] = losses(&events)[..] else { panic!("one loss: {events:?}") };
    assert_eq!(loss["reason"], "truncated");
    assert!(loss["detail"].as_str().unwrap().contains("handshake_timeout"), "{loss}");
}

#[tokio::test]
async fn a_stop_during_a_handshake_does_not_wait_for_it() {
    let world = World::new();
    let daemon = Daemon::with(&world.tls("handshake_timeout = \"1h\"")).await;
    let mut silent = daemon.connect().await;
    let mut halting = daemon.connect().await;
    halting.write_all(&[0x16, 3, 1, 2, 0, 1]).await.unwrap();
    daemon.until_totals("both connections are open", |counters| counters.connections_open == 2).await;
    assert!(daemon.stop().await.events.is_empty());
    assert_is_closed(&mut silent).await;
    assert_is_closed(&mut halting).await;
}

#[tokio::test]
async fn a_missing_certificate_is_named_at_the_start() {
    let toml = crate::live::listener("tls.cert = \"/nowhere/cert.pem\"\ntls.key = \"/nowhere/key.pem\"");
    let error = tributary::server::Server::start(&crate::live::config(&toml)).await.err().unwrap().to_string();
    assert!(error.starts_with("cannot start listener test on ") && error.contains("/nowhere/cert.pem"), "{error}");
}

#[tokio::test]
async fn an_http_listener_supports_tls() {
    let world = World::new();
    let toml = "[listeners.test]\nprotocol = \"endless\"\nlisten = \"127.0.0.1:0\"\nquarantine.dir = \"\"\n";
    let daemon = Daemon::start(&format!("{toml}{}", world.tls("tls.client_ca = \"CA\""))).await;
    let request = fs::read("tests/data/endless/v3-mixed/request.http").unwrap();
    let mut stream = world.connect(&daemon, Some(&world.client)).await.unwrap();
    for _ in 0..2 {
        stream.write_all(&request).await.unwrap();
        let mut status = [0; 15];
        within("the response", stream.read_exact(&mut status)).await.unwrap();
        assert_eq!(&status, b"HTTP/1.1 200 OK");
        let mut rest = Vec::new();
        while !rest.ends_with(b"\r\n\r\n") {
            rest.push(stream.read_u8().await.unwrap());
        }
        let length = std::str::from_utf8(&rest).unwrap().to_lowercase();
        let length: usize = length.split("content-length: ").nth(1).unwrap().lines().next().unwrap().parse().unwrap();
        stream.read_exact(&mut vec![0; length]).await.unwrap();
    }
    // Plain bytes never reach HTTP.
    send_all(daemon.connect().await, b"GET / HTTP/1.1\r\n\r\n").await;
    let stopped = daemon.stop().await;
    let reasons: Vec<_> = losses(&stopped.events).iter().map(|loss| loss["reason"].clone()).collect();
    assert_eq!(reasons, [json!("duplicate"), json!("malformed")]);
}
