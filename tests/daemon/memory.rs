//! Memory bounds: configurations that are refused before the start, and what waits when memory is used up.

use std::fs;

use crate::live::binary::run;
use crate::live::puppet::{Mood, Strings};
use crate::live::{Daemon, config_with_memory, connect, until, wire, within};
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tributary::config::Config;
use tributary::pipeline::options::QueueOptions;
use tributary::server::Server;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// Two threads decode, so that the sum is the same on every machine; the rest is added by hand: 8 MiB for batches being
/// made, 2 MiB for the admin endpoint and for recently seen agents, 10 MiB for the view, 1 MiB for a reserve, 4 MiB for a queue
/// and as much for the lines of a pipe, and small items.
const SMALL: &str = "limits = { memory_bytes = \"MEMORY\", threads = 2 }
[listeners.spans]
protocol = \"datadog\"
max_message_bytes = \"20MiB\"
[sinks.pipe]
type = \"stdout\"
buffer_bytes = \"64KiB\"
";

#[test]
fn a_configuration_that_needs_more_than_memory_bytes_is_refused_with_the_sum() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.toml");
    fs::write(&path, SMALL.replace("MEMORY", "32MiB")).unwrap();
    let path = path.to_str().unwrap();
    let checked = run(&["check", "--config", path]);
    assert_eq!((checked.code, &*checked.stdout), (Some(2), ""));
    let expected = format!(
        "tributary: invalid configuration
{path}:1:27: `memory_bytes` is 32MiB: too little for this configuration
  1 | limits = {{ memory_bytes = \"32MiB\", threads = 2 }}
    |                           ^^^^^^^ set at least 53MiB, or lower a large item of this list, in bytes:
    |      8,388,608  limits           unfinished batches: 2 threads x 4MiB
    |      2,097,152  admin            16 connections, each with a request and a response
    |         57,600  admin            counters of the last 15 minutes
    |      4,194,304  view             its queue
    |      4,194,304  view             events and tables (memory 4MiB)
    |      2,097,152  view             one answer (max_answer 2MiB)
    |      1,048,576  listeners.spans  its reserve for connections (reserved_bytes)
    |        262,144  listeners.spans  addresses that have used their allowance up
    |      2,359,296  listeners.spans  recently seen agents
    |      4,521,984  sinks.pipe       its queue: one batch of 4MiB
    |      4,259,840  sinks.pipe       lines on their way to the stream
    |     33,480,960  sum
    |     21,364,736  peers            minimum: the longest message, and at least 16MiB
"
    );
    assert_eq!(checked.stderr, expected);
    let ran = run(&["run", "--config", path]);
    assert_eq!((ran.code, ran.stderr), (Some(2), expected));
    // The amount that it names is enough.
    fs::write(path, SMALL.replace("MEMORY", "53MiB")).unwrap();
    assert_eq!(run(&["check", "--config", path]).code, Some(0));
    fs::write(path, SMALL.replace("MEMORY", "52MiB")).unwrap();
    assert_eq!(run(&["check", "--config", path]).code, Some(2));
}

#[test]
fn check_prints_parts_that_add_up_to_the_limit() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.toml");
    fs::write(&path, SMALL.replace("MEMORY", "64MiB")).unwrap();
    let printed = run(&["check", "--print", "--config", path.to_str().unwrap()]);
    let table = &printed.stdout[printed.stdout.find("# The most memory").unwrap()..];
    let rows: Vec<(u64, &str)> = table
        .lines()
        .skip(2)
        .map(|line| {
            let mut words = line.trim_start_matches('#').split_whitespace();
            (words.next().unwrap().replace(',', "").parse().unwrap(), words.next().unwrap())
        })
        .collect();
    let [parts @ .., (limit, "sum")] = &rows[..] else { panic!("{table}") };
    assert_eq!(parts.iter().map(|(bytes, _)| bytes).sum::<u64>(), *limit, "{table}");
    assert_eq!(*limit, 64 * MIB);
    let names: Vec<_> = parts.iter().map(|(_, name)| *name).collect();
    assert_eq!(
        names,
        [
            "limits",
            "admin",
            "admin",
            "view",
            "view",
            "view",
            "listeners.spans",
            "listeners.spans",
            "listeners.spans",
            "sinks.pipe",
            "sinks.pipe",
            "peers"
        ]
    );
}

#[test]
fn the_defaults_leave_memory_for_five_thousand_connections() {
    let mut config = Config::builtin();
    config.limits.threads = Some(4);
    let memory = config.bounds().left_of(config.memory_limit());
    assert!(memory / 16 * 15 >= 5_000 * 24 * KIB, "{memory} bytes are left");
}

/// A connection that sends a span of this name.
async fn with_span(server: &Server, name: &str) -> TcpStream {
    let mut stream = connect(server).await;
    stream.write_all(&[wire::process(), wire::named_span(1, name), wire::trace()].concat()).await.unwrap();
    stream
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_without_memory_waits_and_is_served_when_another_has_ended() {
    // Fifteen sixteenths of it are enough for three connections, and not for four.
    let config = config_with_memory(&crate::live::listener(""), 3 * 24 * KIB * 16 / 15 + 16);
    let daemon = Daemon::on(&config).await;
    let mut inside = Vec::new();
    for number in 0..3 {
        inside.push(with_span(&daemon.server, &format!("in-{number}")).await);
        daemon.until_named(&format!("in-{number}")).await;
    }
    let _outside = with_span(&daemon.server, "outside").await;
    for (number, stream) in inside.iter_mut().enumerate() {
        let name = format!("again-{number}");
        stream.write_all(&[wire::named_span(2, &name), wire::trace()].concat()).await.unwrap();
        daemon.until_named(&name).await;
    }
    assert_eq!(daemon.counters().connections_open, 3);
    assert!(daemon.server.health().not_ready().unwrap().contains("limits.memory_bytes"));
    inside.pop();
    daemon.until_named("outside").await;
    drop((inside, _outside));
    daemon.stop().await;
}

const RUBY: &str =
    "[listeners.test]\nprotocol = \"rbkit\"\nlisten_publish = \"127.0.0.1:0\"\nmessage_timeout = \"500ms\"\n";

/// The first `bytes` bytes of a message that is one text of 4 MB, after the hello.
fn half_message(bytes: usize) -> Vec<u8> {
    let mut event = vec![0x83, 0, 6, 9, 0, 2, 0x91, 0x82, 0, 9, 2, 0x91, 0x81, 12, 0xDB];
    event.extend_from_slice(&4_000_000_u32.to_be_bytes());
    event.resize(event.len() + 4_000_000, b'x');
    [&crate::rbkit_law_support::pack::hello("PUB")[..], &crate::rbkit_law_support::pack::frame(0, &event)[..bytes]]
        .concat()
}

fn wants_memory(event: &Value) -> bool {
    let loss = &event["loss"];
    loss["reason"] == "failed" && loss["detail"].as_str().unwrap().contains("limits.memory_bytes")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_without_memory_is_not_read_further_and_ends_with_a_loss_that_names_the_limit() {
    let daemon = Daemon::on(&config_with_memory(RUBY, MIB)).await;
    let mut stream = connect(&daemon.server).await;
    // It is not read further, so not all of it can be sent.
    let _ = within("the daemon hangs up", stream.write_all(&half_message(3_900_000))).await;
    let events = daemon.until("a loss", |events| events.iter().any(wants_memory)).await;
    let loss = events.iter().find(|event| wants_memory(event)).unwrap();
    // Behind the greeting, the READY command, the head of the frame and that of the message.
    assert_eq!(loss["origin"]["offset"], 64 + 27 + 9);
    assert!(loss["loss"]["bytes"].as_u64().unwrap() <= MIB, "{loss}");
    daemon.until_all_closed().await;
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_memory_is_short_a_large_half_message_ends_after_message_timeout() {
    // At a byte per second the first could stay for a week.
    let config = config_with_memory(&format!("{RUBY}min_message_rate = 1\n"), 2 * MIB);
    let daemon = Daemon::on(&config).await;
    let mut first = connect(&daemon.server).await;
    first.write_all(&half_message(600_000)).await.unwrap();
    daemon.until_totals("it is all there", |counters| counters.bytes_in >= 600_000).await;
    let mut second = connect(&daemon.server).await;
    let _ = within("the daemon hangs up", second.write_all(&half_message(3_900_000))).await;
    let is_reported = |events: &[Value]| events.iter().filter(|event| wants_memory(event)).count() == 2;
    daemon.until("both have gone", is_reported).await;
    daemon.until_all_closed().await;
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_many_batches_wait_for_a_full_queue_no_more_are_made() {
    const PEERS: u64 = 150;
    let strings = Strings::new(Mood::Stall);
    let puppets = strings.clone();
    let queue = QueueOptions { buffer_batches: 1, ..QueueOptions::default() };
    let add = |sinks: &mut tributary::pipeline::Sinks| sinks.add("puppet", queue, move || Ok(puppets.puppet()));
    let server = Server::start_with(&crate::live::config(&crate::live::listener("")), add).await.unwrap();
    let (work, events) = wire::work(120);
    let mut streams = Vec::new();
    for _ in 0..PEERS {
        let mut stream = connect(&server).await;
        stream.write_all(&work).await.unwrap();
        streams.push(stream);
    }
    // Every connection has read something, and would make a batch of it.
    until("all are read", || (crate::live::counters(&server).bytes_in >= PEERS * 8 * KIB).then_some(())).await;
    let claimed = server.accounting().totals().sinks[0].events;
    assert!(claimed < PEERS * 80 / 2, "{claimed} events wait");
    strings.set(Mood::Write);
    for stream in streams {
        crate::live::send_all(stream, &[]).await;
    }
    let totals = within("stopping", server.stop()).await;
    assert!(totals.are_balanced(), "{totals:?}");
    assert_eq!(totals.sinks[0].written, PEERS * events);
}

/// An upload whose small body inflates to `bytes` bytes that are no bundle.
fn inflating(bytes: usize) -> Vec<u8> {
    let bundle = vec![0; bytes];
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    std::io::Write::write_all(&mut encoder, &bundle).unwrap();
    let hash = crate::endless_support::http::sha512(&bundle);
    crate::endless_support::http::put(3, &hash, "X-Endless-Content-Encoding: gzip\r\n", &encoder.finish().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_of_one_address_that_inflate_leave_memory_for_those_of_another() {
    let strings = Strings::new(Mood::Stall);
    let of_sink = strings.clone();
    let toml = "[listeners.test]\nprotocol = \"endless\"\nlisten = \"127.0.0.1:0\"\nquarantine.dir = \"\"\n";
    let mut config = config_with_memory(toml, 64 * MIB);
    config.limits.memory_per_address = Some(32 * MIB);
    let server = Server::start_with(&config, move |sinks| {
        sinks.add("puppet", QueueOptions::default(), move || Ok(of_sink.puppet()));
    })
    .await
    .unwrap();
    // The sink is stuck, so every request that is decoded waits with its inflated body.
    let claimed = || server.accounting().totals().sinks[0].events;
    let attack = inflating(7 * MIB as usize);
    let mut attackers = Vec::new();
    for number in 1..=20 {
        let mut stream = connect(&server).await;
        stream.write_all(&attack).await.unwrap();
        attackers.push(stream);
        // Each request makes a loss: of a body that is no bundle, or for which there is no memory.
        until(&format!("request {number} is decoded"), || (claimed() == number).then_some(())).await;
    }
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, 2], 0).into()).unwrap();
    let mut honest = socket.connect(server.address().unwrap()).await.unwrap();
    honest.write_all(&inflating(7 * MIB as usize)).await.unwrap();
    until("the request is decoded", || (claimed() == 21).then_some(())).await;
    strings.set(Mood::Write);
    until("every loss is written", || (strings.written().len() == 21).then_some(())).await;
    let written = strings.written();
    let of = |peer: &str, reason: &str| {
        let is_it = |event: &&Value| {
            event["origin"]["peer"].as_str().unwrap().starts_with(peer) && event["loss"]["reason"] == reason
        };
        written.iter().filter(is_it).count()
    };
    assert_eq!((of("127.0.0.2", "malformed"), of("127.0.0.2", "failed")), (1, 0), "the honest one has memory");
    assert!((1..=4).contains(&of("127.0.0.1", "malformed")), "{}", of("127.0.0.1", "malformed"));
    drop((attackers, honest));
    within("stopping", server.stop()).await;
}
