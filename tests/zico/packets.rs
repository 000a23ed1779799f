//! The binary protocol over real sockets: one port for every agent, first bytes that come one by one, answers of one write,
//! pass phrases, resends.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::pin::pin;
use std::time::{Duration, Instant};

use crate::live::binary::{Binary, tributary};
use crate::live::puppet::{Mood, Strings};
use crate::live::{Daemon, assert_is_closed, config, connect, losses, within};
use crate::zico_support::fressian::{Known, conversation, expected, found};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tributary::pipeline::options::QueueOptions;
use tributary::protocol::zico::fressian::packet::{HEADER_BYTES, answer, code, packet};
use tributary::server::Server;

const LISTENER: &str = "[listeners.test]\nprotocol = \"zico\"\nlisten = \"127.0.0.1:0\"\nquarantine.dir = \"\"\n";

/// The packets of a recorded connection.
fn packets(name: &str) -> Vec<Vec<u8>> {
    let input = conversation(name).connections.remove(0).input;
    let (mut rest, mut packets) = (&input[..], Vec::new());
    while !rest.is_empty() {
        let content = u32::from_be_bytes(rest[6..10].try_into().unwrap()) as usize;
        let (packet, after) = rest.split_at(HEADER_BYTES + content);
        packets.push(packet.to_vec());
        rest = after;
    }
    packets
}

/// Sends a packet; the answer, which is one read.
async fn ask(stream: &mut TcpStream, packet: &[u8]) -> Vec<u8> {
    stream.write_all(packet).await.unwrap();
    let mut buffer = [0; 64];
    let read = within("an answer", stream.read(&mut buffer)).await.unwrap();
    buffer[..read].to_vec()
}

/// An agent does not wait for its answer until a time limit has passed.
async fn at_once<T>(what: &str, future: impl Future<Output = T>) -> T {
    let began = Instant::now();
    let done = within(what, pin!(future)).await;
    assert!(began.elapsed().as_secs() < 5, "{what}: after {:?}", began.elapsed());
    done
}

#[tokio::test]
async fn an_agent_whose_first_byte_comes_by_itself_is_answered_at_once_by_one_write() {
    let daemon = Daemon::start(LISTENER).await;
    let packets = packets("1.0.18-nested-traces");
    let mut stream = daemon.connect().await;
    stream.set_nodelay(true).unwrap();
    for (number, byte) in packets[0].iter().enumerate() {
        stream.write_all(&[*byte]).await.unwrap();
        if number < 24 {
            tokio::task::yield_now().await;
        }
    }
    let mut buffer = [0; 64];
    let read = at_once("the answer to a hello", stream.read(&mut buffer)).await.unwrap();
    assert_eq!(buffer[..read], answer(code::OK));
    for packet in &packets[1..] {
        assert_eq!(ask(&mut stream, packet).await, answer(code::OK));
    }
    // Others speak HTTP to the same port.
    let mut other = daemon.connect().await;
    other.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut text = String::new();
    other.read_to_string(&mut text).await.unwrap();
    assert!(text.starts_with("HTTP/1.1 404"), "{text}");
    drop(stream);
    let stopped = daemon.stop().await;
    let mut all = crate::zico_support::fressian::Expected::default();
    expected(0, &conversation("1.0.18-nested-traces").connections[0], &mut Known::default(), &mut all);
    let events: Vec<Value> = stopped.events.iter().filter_map(found).collect();
    assert_eq!(events, all.events);
    assert_eq!(stopped.totals.listeners[0].buffered(), 0);
}

#[tokio::test]
async fn no_listener_waits_for_bytes_that_cannot_become_valid() {
    for protocol in ["zico", "endless", "otlp", "datadog_agent"] {
        let daemon = Daemon::start(&LISTENER.replace("zico", protocol)).await;
        for first in [&b"!\xC0\x00"[..], b"PO\0", b"PRI\x01", b"\x16\x03\x01"] {
            let mut stream = daemon.connect().await;
            stream.set_nodelay(true).unwrap();
            for byte in first {
                stream.write_all(&[*byte]).await.unwrap();
                tokio::task::yield_now().await;
            }
            let mut text = Vec::new();
            let _ = at_once(protocol, stream.read_to_end(&mut text)).await;
            assert!(text.starts_with(b"HTTP/1.1 400"), "{protocol} {first:02x?}: {:?}", String::from_utf8_lossy(&text));
        }
        daemon.stop().await;
    }
}

#[tokio::test]
async fn pass_phrases_are_lines_of_the_key_file_and_a_refused_agent_is_told_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let keys = directory.path().join("keys");
    fs::write(&keys, "# of agents\nsecret-pass\n").unwrap();
    let daemon = Daemon::start(&format!("{LISTENER}keys_file = \"{}\"\n", keys.display())).await;
    let packets = packets("1.90.6-plain-traces");
    let mut stream = daemon.connect().await;
    let answered = at_once("the refusal", ask(&mut stream, &packets[0])).await;
    assert_eq!(answered, answer(code::UNAUTHORIZED));
    stream.write_all(&packets[1]).await.unwrap();
    assert_is_closed(&mut stream).await;
    fs::write(&keys, "another\nchangeme\n").unwrap();
    let mut stream = daemon.connect().await;
    assert_eq!(ask(&mut stream, &packets[0]).await, answer(code::OK));
    assert_eq!(ask(&mut stream, &packets[1]).await, answer(code::OK));
    drop(stream);
    let stopped = daemon.stop().await;
    let losses = losses(&stopped.events);
    assert!(!losses.is_empty() && losses.iter().all(|loss| loss["reason"] == "unauthorized"), "{losses:?}");
    let text = serde_json::to_string(&stopped.events).unwrap();
    assert!(!text.contains("changeme") && !text.contains("6368616e67656d65"), "no pass phrase");
    assert!(stopped.events.iter().any(|event| event["kind"] == "span" && event["resource"]["host.name"] == "jvmhost"));
}

#[tokio::test]
async fn faults_of_framing_are_answered_with_their_status() {
    let daemon = Daemon::start(LISTENER).await;
    let hello = &packets("1.90.6-plain-traces")[0];
    let mut wrong = packet(code::DATA, b"\x01\x02");
    wrong[17] ^= 1;
    let mut long = packet(code::DATA, b"");
    long[6] = 0x7F;
    for (packet, status, is_closed) in [
        (packet(code::PING, b""), code::PONG, false),
        (packet(0x77, b"abc"), code::BAD_REQUEST, false),
        (packet(code::DATA, b""), code::UNAUTHORIZED, false),
        (wrong, code::BAD_CHECKSUM, true),
        (long, code::BAD_REQUEST, true),
    ] {
        let mut stream = daemon.connect().await;
        assert_eq!(at_once("an answer", ask(&mut stream, &packet)).await, answer(status));
        match is_closed {
            true => assert_is_closed(&mut stream).await,
            false => assert_eq!(ask(&mut stream, hello).await, answer(code::OK)),
        }
    }
    let mut stream = daemon.connect().await;
    assert_eq!(ask(&mut stream, hello).await, answer(code::OK));
    assert_eq!(ask(&mut stream, b"\x21\xC1").await, answer(code::BAD_MAGIC));
    assert_is_closed(&mut stream).await;
    let stopped = daemon.stop().await;
    assert_eq!(stopped.totals.listeners[0].buffered(), 0);
}

#[tokio::test]
async fn a_packet_that_comes_again_on_another_connection_is_counted_and_not_written() {
    let daemon = Daemon::start(LISTENER).await;
    let packets = packets("1.90.6-plain-traces");
    for attempt in 0..3 {
        let mut stream = daemon.connect().await;
        assert_eq!(ask(&mut stream, &packets[0]).await, answer(code::OK));
        // Twice its answer is not read.
        stream.write_all(&packets[1]).await.unwrap();
        if attempt == 2 {
            let mut buffer = [0; 64];
            let read = within("an answer", stream.read(&mut buffer)).await.unwrap();
            assert_eq!(buffer[..read], answer(code::OK));
        }
    }
    let stopped = daemon.stop().await;
    let spans: Vec<_> = stopped.events.iter().filter(|event| event["kind"] == "span").collect();
    let ids: BTreeSet<_> = spans.iter().map(|span| span["span"].to_string()).collect();
    assert_eq!((ids.len(), spans.len() > 5), (spans.len(), true), "each once");
    let repeats: u64 = stopped.totals.listeners[0].repeats.iter().sum();
    assert_eq!(repeats, 2 * spans.len() as u64);
    assert!(losses(&stopped.events).is_empty());
}

/// A packet that was delayed on its way arrives after the agent has sent it again on another connection.
#[tokio::test]
async fn a_later_packet_of_a_connection_is_recognised_too() {
    let daemon = Daemon::start(LISTENER).await;
    let packets = packets("1.90.6-plain-traces");
    let (mut first, mut second) = (daemon.connect().await, daemon.connect().await);
    for stream in [&mut first, &mut second] {
        assert_eq!(ask(stream, &packets[0]).await, answer(code::OK));
        assert_eq!(ask(stream, &packets[1]).await, answer(code::OK));
    }
    assert_eq!(ask(&mut first, &packets[1]).await, answer(code::OK));
    let stopped = daemon.stop().await;
    let spans = stopped.events.iter().filter(|event| event["kind"] == "span").count() as u64;
    let repeats: u64 = stopped.totals.listeners[0].repeats.iter().sum();
    assert_eq!((repeats, spans > 5), (2 * spans, true));
}

/// The listener of a daemon whose events go to stdout, in a process of its own.
fn process(directory: &Path) -> Binary {
    let file = directory.join("tributary.toml");
    let state = directory.join("state");
    fs::write(&file, format!("{LISTENER}state_dir = \"{}\"\n[sinks.out]\ntype = \"stdout\"\n", state.display()))
        .unwrap();
    Binary::start(tributary(&["run", "--config", file.to_str().unwrap()]))
}

/// Stops a daemon; the ids of the spans that it has written.
fn spans(daemon: Binary) -> Vec<String> {
    daemon.signal("TERM");
    let events = daemon.end().events();
    events.iter().filter(|event| event["kind"] == "span").map(|event| event["span"]["span_id"].to_string()).collect()
}

#[tokio::test]
async fn what_was_sent_before_a_stop_and_is_sent_again_after_it_is_written_once() {
    let directory = tempfile::tempdir().unwrap();
    let packets = packets("1.90.6-plain-traces");
    let mut found = Vec::new();
    for _ in 0..3 {
        let daemon = process(directory.path());
        let mut stream = TcpStream::connect(daemon.address("test")).await.unwrap();
        assert_eq!(ask(&mut stream, &packets[0]).await, answer(code::OK));
        assert_eq!(ask(&mut stream, &packets[1]).await, answer(code::OK));
        // The agent may have given up before this answer: the next process gets the packet again.
        found.push(spans(daemon).len());
    }
    assert!(found[0] > 5 && found[1..] == [0, 0], "{found:?}");
}

#[tokio::test]
async fn a_hello_that_waited_for_a_stopped_process_is_not_answered() {
    let directory = tempfile::tempdir().unwrap();
    let packets = packets("1.90.6-plain-traces");
    let daemon = process(directory.path());
    let address = daemon.address("test");
    let mut earlier = TcpStream::connect(address).await.unwrap();
    assert_eq!(ask(&mut earlier, &packets[0]).await, answer(code::OK));
    daemon.signal("STOP");
    let mut late = TcpStream::connect(address).await.unwrap();
    late.write_all(&packets[0]).await.unwrap();
    // The time limit of this agent.
    tokio::time::sleep(Duration::from_millis(3500)).await;
    late.write_all(&packets[1]).await.unwrap();
    daemon.signal("CONT");
    assert_is_closed(&mut late).await;
    let mut again = TcpStream::connect(address).await.unwrap();
    while ask(&mut again, &packets[0]).await.is_empty() {
        again = TcpStream::connect(address).await.unwrap();
    }
    assert_eq!(ask(&mut again, &packets[1]).await, answer(code::OK));
    // A client that waits for no answer gets all of them.
    let mut eager = TcpStream::connect(address).await.unwrap();
    eager.write_all(&[&packets[0][..], &packets[1]].concat()).await.unwrap();
    let mut answers = [0; 2 * HEADER_BYTES];
    within("two answers", eager.read_exact(&mut answers)).await.unwrap();
    assert_eq!(answers, *[answer(code::OK), answer(code::OK)].concat());
    let spans = spans(daemon);
    let ids: BTreeSet<_> = spans.iter().collect();
    assert!(spans.len() > 5 && ids.len() == spans.len(), "each once: {spans:?}");
}

#[tokio::test]
async fn a_full_queue_keeps_no_answer_from_an_agent() {
    let strings = Strings::new(Mood::Stall);
    let puppets = strings.clone();
    let options = QueueOptions { buffer_batches: 1, ..QueueOptions::default() };
    let toml = format!("{LISTENER}delivery_timeout = \"50ms\"\n");
    let server = Server::start_with(&config(&toml), move |sinks| {
        sinks.add("puppet", options, move || Ok(puppets.puppet()));
    })
    .await
    .unwrap();
    let packets = packets("1.90.6-plain-traces");
    for _ in 0..4 {
        let mut stream = connect(&server).await;
        assert_eq!(at_once("a hello", ask(&mut stream, &packets[0])).await, answer(code::OK));
        assert_eq!(at_once("data", ask(&mut stream, &packets[1])).await, answer(code::INTERNAL));
    }
    strings.set(Mood::Write);
    let totals = server.stop().await;
    assert!(totals.are_balanced());
    let opened = strings.written().iter().filter(|event| event["name"] == "zico.session.opened").count();
    assert_eq!(opened, 4);
}

#[tokio::test]
async fn what_cannot_be_read_is_answered_ok_and_kept_without_secrets() {
    let directory = tempfile::tempdir().unwrap();
    let toml =
        LISTENER.replace("quarantine.dir = \"\"", &format!("quarantine.dir = \"{}\"", directory.path().display()));
    let daemon = Daemon::start(&toml).await;
    let packets = packets("content-wrong-type");
    let mut stream = daemon.connect().await;
    for packet in &packets {
        assert_eq!(ask(&mut stream, packet).await, answer(code::OK));
    }
    drop(stream);
    daemon.stop().await;
    let files: Vec<_> = fs::read_dir(directory.path().join("test")).unwrap().map(|file| file.unwrap().path()).collect();
    let [file] = files.as_slice() else { panic!("{files:?}") };
    let kept = fs::read(file).unwrap();
    let head = String::from_utf8_lossy(&kept[..kept.len().min(100)]).into_owned();
    assert!(head.starts_with("POST /tcp/packet HTTP/1.1\r\nx-zorka-host: jvmhost\r\n"), "{head}");
    assert!(kept.ends_with(&packets[1]));
    // Its names are ids, because other packets define them, or this one does.
    let decoded =
        std::process::Command::new(env!("CARGO_BIN_EXE_tributary")).args(["decode", "zico"]).arg(file).output();
    let decoded = decoded.unwrap();
    let said = String::from_utf8_lossy(&decoded.stderr).into_owned();
    assert!(decoded.status.success() && said.contains("POST /tcp/packet: 202"), "{said}");
    assert!(String::from_utf8_lossy(&decoded.stdout).contains("\"malformed\""));
}
