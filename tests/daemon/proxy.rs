//! PROXY headers on real sockets: the peer that a header names, the bytes behind it, and bytes that are no header.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};

use crate::live::{Daemon, Stopped, assert_is_closed, losses, send_all, spans, wire, within};
use proxy_header::{ProxiedAddress, ProxyHeader, Tlv};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tributary::capture::{MAGIC, Reader, What};

/// The address from which most tests connect.
const BALANCER: &str = "proxy_protocol = [\"127.0.0.1\"]";

const ONE: &str = "192.0.2.7:4711";
const OTHER: &str = "198.51.100.9:4712";
const SIX: &str = "[2001:db8::7]:4713";

/// A header as another library writes it.
fn header(version: u8, source: &str) -> Vec<u8> {
    let source: SocketAddr = source.parse().unwrap();
    let to = if source.is_ipv4() { "10.0.0.1:8136" } else { "[2001:db8::1]:8136" };
    let address = ProxiedAddress::stream(source, to.parse().unwrap());
    let mut bytes = Vec::new();
    match version {
        1 => ProxyHeader::with_address(address).encode_v1(&mut bytes).unwrap(),
        _ => {
            let extra = [Tlv::Authority("spans.example".into()), Tlv::Custom(0xEA, vec![7; 300].into())];
            ProxyHeader::with_tlvs(Some(address), extra).encode_v2(&mut bytes).unwrap();
        }
    }
    bytes
}

/// A header of version 2 for the balancer's own connection.
fn local() -> Vec<u8> {
    let mut bytes = Vec::new();
    ProxyHeader::with_local().encode_v2(&mut bytes).unwrap();
    bytes
}

fn hello(name: &str) -> Vec<u8> {
    [wire::process(), wire::named_span(1, name)].concat()
}

/// A connection from an address of this machine.
async fn connect_from(daemon: &Daemon, address: [u8; 4]) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((Ipv4Addr::from(address), 0).into()).unwrap();
    let stream = socket.connect(daemon.server.address().unwrap()).await.unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// The peer of the span with this name.
fn peer_of<'a>(events: &'a [Value], name: &str) -> &'a str {
    let span = events.iter().find(|event| event["name"] == name).unwrap();
    span["origin"]["peer"].as_str().unwrap()
}

#[tokio::test]
async fn the_address_in_the_header_is_the_peer_and_the_bytes_behind_it_are_decoded() {
    let daemon = Daemon::with(&format!("{BALANCER}\nspan_idle = \"1h\"")).await;
    let mut bytes = 0;
    for (name, header) in [
        ("v1 over IPv4", header(1, ONE)),
        ("v1 over IPv6", header(1, SIX)),
        ("v2 over IPv4", header(2, ONE)),
        ("v2 over IPv6", header(2, SIX)),
    ] {
        // In one segment, in two, and byte by byte.
        let whole = [&header[..], &hello(name)].concat();
        for piece in [whole.len(), header.len(), 1] {
            let mut stream = daemon.connect().await;
            for piece in whole.chunks(piece) {
                stream.write_all(piece).await.unwrap();
                tokio::task::yield_now().await;
            }
            send_all(stream, &[]).await;
            bytes += (whole.len() - header.len()) as u64;
        }
    }
    let Stopped { events, totals } = daemon.stop().await;
    assert!(losses(&events).is_empty());
    assert_eq!(spans(&events).len(), 12);
    for event in events {
        let name = event["name"].as_str().unwrap();
        if event["kind"] == "span" {
            let peer = if name.ends_with("IPv4") { ONE } else { SIX };
            assert_eq!(event["origin"]["peer"], peer, "{name}");
        }
    }
    // Headers are not counted.
    assert_eq!(totals.listeners[0].bytes_in, bytes);
    assert_eq!((totals.listeners[0].connections, totals.listeners[0].lost()), (12, 0));
}

#[tokio::test]
async fn a_balancer_that_connects_for_itself_is_the_peer_and_always_admitted() {
    let options = format!("{BALANCER}\nmax_connections_per_address = 1\nallow = [\"192.0.2.0/24\"]");
    let daemon = Daemon::with(&options).await;
    let unix = [b"\r\n\r\n\0\r\nQUIT\n\x21\x31\0\xD8", &[b'/'; 216][..]].concat();
    let headers = [local(), b"PROXY UNKNOWN\r\n".to_vec(), unix];
    let mut streams = Vec::new();
    for (number, header) in headers.iter().enumerate() {
        let mut stream = daemon.connect().await;
        let name = format!("itself {number}");
        stream.write_all(&[header, &hello(&name)[..], &wire::trace()].concat()).await.unwrap();
        let span = daemon.until_named(&name).await;
        assert_eq!(span["origin"]["peer"], stream.local_addr().unwrap().to_string());
        streams.push(stream);
    }
    let stopped = daemon.stop().await;
    assert_eq!(stopped.totals.listeners[0].refused, 0);
}

#[tokio::test]
async fn limits_and_permissions_apply_to_the_addresses_in_headers() {
    let options = format!("{BALANCER}\nmax_connections_per_address = 1\nallow = [\"192.0.2.0/24\", \"2001:db8::/32\"]");
    let daemon = Daemon::with(&options).await;
    let come = async |version: u8, source: &str, name: &str| {
        let mut stream = daemon.connect().await;
        stream.write_all(&header(version, source)).await.unwrap();
        let _ = stream.write_all(&[&hello(name)[..], &wire::trace()].concat()).await;
        stream
    };
    let first = come(1, ONE, "first").await;
    daemon.until_named("first").await;
    // A second of that address, one of an address that is not allowed, and one that is allowed but came directly.
    assert_is_closed(&mut come(2, "192.0.2.7:9", "second").await).await;
    assert_is_closed(&mut come(2, OTHER, "not_allowed").await).await;
    assert_is_closed(&mut connect_from(&daemon, [127, 0, 0, 2]).await).await;
    daemon.until_totals("three are refused", |counters| counters.refused == 3).await;
    let neighbour = come(2, "192.0.2.8:9", "neighbour").await;
    let six = come(1, SIX, "six").await;
    daemon.until_named("six").await;
    daemon.until_named("neighbour").await;
    send_all(first, &[]).await;
    daemon.until_totals("its slot is free", |counters| counters.connections_open == 2).await;
    let again = come(2, ONE, "again").await;
    daemon.until_named("again").await;
    drop((neighbour, six, again));
    let Stopped { events, totals } = daemon.stop().await;
    assert!(losses(&events).is_empty());
    assert_eq!(spans(&events).len(), 4, "{events:?}");
    assert_eq!(totals.listeners[0].refused, 3);
}

#[tokio::test]
async fn a_header_from_an_address_outside_proxy_protocol_is_ignored() {
    let daemon = Daemon::with("proxy_protocol = [\"127.0.0.1\", \"10.0.0.0/8\"]\nclose_linger = \"5s\"").await;
    let liar = connect_from(&daemon, [127, 0, 0, 2]).await;
    let address = liar.local_addr().unwrap().to_string();
    let lie = header(1, ONE);
    send_all(liar, &[&lie[..], &hello("after a lie")].concat()).await;
    let honest = connect_from(&daemon, [127, 0, 0, 2]).await;
    let own = honest.local_addr().unwrap().to_string();
    send_all(honest, &hello("direct")).await;
    let Stopped { events, totals } = daemon.stop().await;
    assert_eq!(peer_of(&events, "direct"), own);
    assert_eq!(spans(&events).len(), 1);
    // For this protocol the header is an invalid first byte, and all bytes after it are lost.
    let lost = (lie.len() + hello("after a lie").len()) as u64;
    let loss = events.iter().find(|event| event["kind"] == "loss").unwrap();
    assert_eq!((&loss["origin"]["peer"], &loss["loss"]["bytes"]), (&address.into(), &lost.into()));
    assert!(!loss["loss"]["detail"].as_str().unwrap().contains("PROXY header"), "{loss}");
    assert_eq!(totals.listeners[0].lost(), lost);
}

#[tokio::test]
async fn without_the_option_a_header_is_ordinary_input() {
    let daemon = Daemon::with("").await;
    send_all(daemon.connect().await, &header(2, ONE)).await;
    let stopped = daemon.stop().await;
    assert_eq!(stopped.totals.listeners[0].lost(), header(2, ONE).len() as u64);
}

#[tokio::test]
async fn bytes_that_are_no_header_are_a_loss_and_end_that_connection_only() {
    let daemon = Daemon::with(&format!("{BALANCER}\nspan_idle = \"1h\"")).await;
    let mut other = daemon.connect().await;
    other.write_all(&[header(2, ONE), hello("undisturbed")].concat()).await.unwrap();
    let signature = b"\r\n\r\n\0\r\nQUIT\n";
    let endless = [&b"PROXY TCP4 "[..], &[b'1'; 96]].concat();
    // The bytes, and the offset of the error.
    let cases: [(Vec<u8>, usize); 8] = [
        (hello("no header"), 0),
        (b"PROXY TCP4 192.0.2.7 10.0.0.1 4711 x\r\n".to_vec(), 35),
        (b"PROXY HTTP 192.0.2.7 10.0.0.1 4711 1\r\n".to_vec(), 6),
        (endless, 107),
        ([signature, &b"\x11\x11\0\x0C"[..], &[1; 12]].concat(), 12),
        ([signature, &b"\x21\x71\0\x0C"[..], &[1; 12]].concat(), 13),
        ([signature, &b"\x21\x11\0\x0B"[..], &[1; 11]].concat(), 14),
        // A length over the limit: nothing is awaited or allocated.
        ([signature, &b"\x21\x11\xFF\xFF"[..]].concat(), 14),
    ];
    let lost: u64 = cases.iter().map(|(bytes, _)| bytes.len() as u64).sum();
    for (number, (bytes, offset)) in cases.into_iter().enumerate() {
        let mut stream = daemon.connect().await;
        stream.write_all(&bytes).await.unwrap();
        assert_is_closed(&mut stream).await;
        let has_it = |events: &[Value]| losses(events).len() > number;
        let events = daemon.until("the loss is reported", has_it).await;
        let event = events.iter().rfind(|event| event["kind"] == "loss").unwrap();
        let loss = &event["loss"];
        assert_eq!(event["origin"]["peer"], stream.local_addr().unwrap().to_string());
        assert_eq!((&loss["reason"], &loss["bytes"]), (&"malformed".into(), &bytes.len().into()), "{loss}");
        let detail = loss["detail"].as_str().unwrap();
        assert!(
            detail.contains(&format!("PROXY header, at {offset}: ")) && detail.contains("proxy_protocol"),
            "{detail}"
        );
    }
    send_all(other, &wire::metric(1, 0.5)).await;
    let Stopped { events, totals } = daemon.stop().await;
    assert_eq!(spans(&events), [("undisturbed", true)]);
    assert_eq!(totals.listeners[0].lost(), lost);
}

#[tokio::test]
async fn a_header_that_is_cut_or_slow_is_a_loss_and_silence_is_none() {
    let daemon = Daemon::with(&format!("{BALANCER}\nhandshake_timeout = \"300ms\"")).await;
    let whole = header(2, ONE);
    // A balancer's health check connects and closes.
    send_all(daemon.connect().await, &[]).await;
    let mut silent = daemon.connect().await;
    let cut = [&whole[..1], &whole[..16], &whole[..whole.len() - 1], b"PROXY TCP4 192.0.2.7"];
    for part in cut {
        send_all(daemon.connect().await, part).await;
    }
    let mut slow = daemon.connect().await;
    slow.write_all(&whole[..20]).await.unwrap();
    assert_is_closed(&mut slow).await;
    assert_is_closed(&mut silent).await;
    let Stopped { events, totals } = daemon.stop().await;
    let mut found: Vec<_> = losses(&events).iter().map(|loss| loss["bytes"].as_u64().unwrap()).collect();
    let mut expected: Vec<_> = cut.iter().map(|part| part.len() as u64).chain([20]).collect();
    found.sort_unstable();
    expected.sort_unstable();
    assert_eq!(found, expected);
    assert!(losses(&events).iter().all(|loss| loss["reason"] == "truncated"), "{events:?}");
    let timed_out = |loss: &&Value| loss["detail"].as_str().unwrap().contains("handshake_timeout");
    assert_eq!(losses(&events).into_iter().filter(timed_out).count(), 1);
    assert_eq!(totals.listeners[0].lost(), expected.iter().sum::<u64>());
}

#[tokio::test]
async fn a_stop_does_not_wait_for_a_header() {
    let daemon = Daemon::with(&format!("{BALANCER}\nhandshake_timeout = \"1h\"")).await;
    let mut silent = daemon.connect().await;
    let mut halting = daemon.connect().await;
    halting.write_all(b"PROXY TCP4").await.unwrap();
    daemon.until_totals("both connections are open", |counters| counters.connections_open == 2).await;
    let stopped = daemon.stop().await;
    assert_is_closed(&mut silent).await;
    assert_is_closed(&mut halting).await;
    // The header, if it was read.
    assert!([0, 10].contains(&stopped.totals.listeners[0].lost()));
}

#[tokio::test]
async fn requests_over_http_come_from_the_address_in_the_header() {
    let http = "[listeners.test]\nprotocol = \"endless\"\nlisten = \"127.0.0.1:0\"\nquarantine.dir = \"\"\n";
    let daemon = Daemon::start(&format!("{http}{BALANCER}\n")).await;
    let request = fs::read("tests/data/endless/v3-mixed/request.http").unwrap();
    let mut stream = daemon.connect().await;
    stream.write_all(&[header(2, SIX), request].concat()).await.unwrap();
    let mut status = [0; 15];
    within("the response", stream.read_exact(&mut status)).await.unwrap();
    assert_eq!(&status, b"HTTP/1.1 200 OK");
    // Without a header no request is read.
    let mut bare = daemon.connect().await;
    bare.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    assert_is_closed(&mut bare).await;
    drop(stream);
    let events = daemon.stop().await.events;
    let (lost, made): (Vec<_>, Vec<_>) = events.iter().partition(|event| event["kind"] == "loss");
    assert!(!made.is_empty() && made.iter().all(|event| event["origin"]["peer"] == SIX));
    assert_eq!((lost.len(), &lost[0]["loss"]["bytes"]), (1, &18.into()));
}

#[tokio::test]
async fn a_capture_contains_the_bytes_behind_the_header() {
    let home = tempfile::tempdir().unwrap();
    let capture = format!("capture.dir = {:?}", home.path().display().to_string());
    let daemon = Daemon::with(&format!("{BALANCER}\n{capture}")).await;
    send_all(daemon.connect().await, &[header(1, ONE), hello("recorded")].concat()).await;
    daemon.stop().await;
    let file = fs::read_dir(home.path().join("test")).unwrap().next().unwrap().unwrap();
    let file = fs::read(file.path()).unwrap();
    let mut reader = Reader::new(file.strip_prefix(MAGIC).unwrap()).unwrap();
    assert_eq!(reader.head().peer, ONE);
    let mut recorded = Vec::new();
    while let Some(record) = reader.record().unwrap() {
        if let What::Bytes(bytes) = record.what {
            recorded.extend(bytes);
        }
    }
    assert_eq!(recorded, hello("recorded"));
}

#[tokio::test]
async fn an_ipv4_peer_of_a_listener_on_ipv6_is_an_ipv4_address() {
    // A host may have no IPv6 at all.
    if std::net::TcpListener::bind("[::]:0").is_err() {
        return;
    }
    let options = "protocol = \"datadog\"\nlisten = \"[::]:0\"\nallow = [\"::ffff:127.0.0.0/104\", \"192.0.2.0/24\"]\n\
                   proxy_protocol = [\"::ffff:127.0.0.2\"]";
    let daemon = Daemon::start(&format!("[listeners.test]\n{options}\n")).await;
    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, daemon.server.address().unwrap().port()));
    let mut own = Vec::new();
    for (last, first, name) in [(1, Vec::new(), "direct"), (2, header(1, "[::ffff:192.0.2.7]:9"), "proxied")] {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((Ipv4Addr::new(127, 0, 0, last), 0).into()).unwrap();
        let mut stream = socket.connect(to).await.unwrap();
        own.push(stream.local_addr().unwrap().to_string());
        stream.write_all(&[&first[..], &hello(name), &wire::trace()].concat()).await.unwrap();
        daemon.until_named(name).await;
    }
    let Stopped { events, totals } = daemon.stop().await;
    assert_eq!((peer_of(&events, "direct"), peer_of(&events, "proxied")), (&*own[0], "192.0.2.7:9"));
    assert_eq!(totals.listeners[0].refused, 0);
}
