//! The daemon over real sockets: its events are those of `decode` for the same bytes, however they arrive and
//! whatever other connections do; and a stop loses nothing.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::live::puppet::{Mood, Strings};
use crate::live::{
    Daemon, Stopped, assert_is_closed, connect, losses, send_all, spans, timeless, until, until_async, wire, within,
};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::{JoinSet, yield_now};
use tributary::protocol::End;
use tributary::protocol::datadog::{ListLayout, Options};
use tributary::server::Server;

/// No time limit passes, as offline.
const TIMELESS: &str = "span_idle = \"1h\"\nwaiting.time = \"1h\"\nhandshake_timeout = \"1h\"\nmessage_timeout = \"1h\"\nclose_linger = \"1m\"";

/// The name and the bytes of every recorded connection.
fn captures() -> Vec<(String, Vec<u8>)> {
    let data = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/datadog");
    let directories = fs::read_dir(data).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir());
    let name = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
    let captures: Vec<_> = directories.map(|path| (name(&path), fs::read(path.join("wire.bin")).unwrap())).collect();
    assert!(captures.len() > 50, "the captures are there");
    captures
}

/// The events of `decode` for these bytes.
fn decoded(bytes: &[u8], list_layout: ListLayout) -> Vec<Value> {
    let options = Options { list_layout, ..Options::default() };
    crate::common::decode_with(&options, vec![bytes], End::Closed).events.iter().map(timeless).collect()
}

/// The events of the connection that came from `peer`.
fn of_peer(events: &[Value], peer: &str) -> Vec<Value> {
    events.iter().filter(|event| event["origin"]["peer"] == peer).map(timeless).collect()
}

/// Sends bytes in pieces of random sizes, about 300 of them.
async fn send_in_pieces(mut stream: TcpStream, bytes: &[u8], seed: u64) {
    let mut random = seed;
    let mut rest = bytes;
    while !rest.is_empty() {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let size = 1 + (random >> 33) as usize % (1 + bytes.len() / 150);
        let (piece, left) = rest.split_at(size.min(rest.len()));
        stream.write_all(piece).await.unwrap();
        rest = left;
        yield_now().await;
    }
    send_all(stream, &[]).await;
}

/// Sends every capture to one daemon, all at the same time, and compares.
async fn compare_all(layout: ListLayout, in_pieces: bool) {
    let key = if layout == ListLayout::Exact { "exact" } else { "padded32" };
    let daemon = Daemon::with(&format!("{TIMELESS}\nlist_layout = \"{key}\"")).await;
    let mut peers = Vec::new();
    let mut sending = JoinSet::new();
    for (number, (name, bytes)) in captures().into_iter().enumerate() {
        let stream = daemon.connect().await;
        peers.push((name, stream.local_addr().unwrap().to_string(), decoded(&bytes, layout)));
        sending.spawn(async move {
            match in_pieces {
                true => send_in_pieces(stream, &bytes, number as u64).await,
                false => send_all(stream, &bytes).await,
            }
        });
    }
    within("all is sent", sending.join_all()).await;
    daemon.until_all_closed().await;
    let Stopped { events, totals } = daemon.stop().await;
    for (name, peer, expected) in &peers {
        assert_eq!(&of_peer(&events, peer), expected, "{name}, list_layout {key}");
    }
    assert_eq!(events.len(), peers.iter().map(|(.., expected)| expected.len()).sum::<usize>());
    assert_eq!(totals.sinks[0].written, events.len() as u64);
    assert_eq!(totals.listeners[0].connections, peers.len() as u64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_side_by_side_give_the_events_that_decode_gives() {
    compare_all(ListLayout::Exact, false).await;
    compare_all(ListLayout::Padded32, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_that_arrive_in_small_pieces_give_the_same_events() {
    compare_all(ListLayout::Exact, true).await;
    compare_all(ListLayout::Padded32, true).await;
}

#[tokio::test]
async fn a_file_sink_holds_the_events_that_decode_gives() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("{listener}.ndjson");
    let toml =
        format!("{}[sinks.archive]\ntype = \"file\"\npath = \"{}\"", crate::live::listener(TIMELESS), path.display());
    let server = Server::start(&crate::live::config(&toml)).await.unwrap();
    let mut peers = Vec::new();
    for (name, bytes) in captures() {
        let stream = connect(&server).await;
        peers.push((name, stream.local_addr().unwrap().to_string(), decoded(&bytes, ListLayout::Exact)));
        send_all(stream, &bytes).await;
    }
    until("every connection has ended", || (crate::live::counters(&server).connections_open == 0).then_some(())).await;
    let totals = within("stopping", server.stop()).await;
    assert!(totals.are_balanced(), "{totals:?}");
    let text = fs::read_to_string(directory.path().join("test.ndjson")).unwrap();
    let events: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for (name, peer, expected) in peers {
        assert_eq!(of_peer(&events, &peer), expected, "{name}");
    }
    assert_eq!(totals.sinks[0].written, events.len() as u64);
}

#[tokio::test]
async fn after_a_fault_exactly_the_received_bytes_are_counted() {
    let daemon = Daemon::with("").await;
    let mut stream = daemon.connect().await;
    let garbage = vec![0xEE; 1 << 20];
    let mut sent = 0;
    // The daemon soon stops reading; then a write fails.
    within("the daemon closes the connection", async {
        stream.write_all(&wire::process()).await.unwrap();
        while let Ok(bytes) = stream.write(&garbage).await {
            sent += bytes as u64;
        }
    })
    .await;
    daemon.until_all_closed().await;
    let Stopped { events, totals } = daemon.stop().await;
    let [loss] = losses(&events)[..] else { panic!("one loss: {events:?}") };
    assert_eq!(loss["reason"], "malformed");
    let totals = &totals.listeners[0];
    assert_eq!(loss["bytes"].as_u64(), Some(totals.lost()));
    assert_eq!(totals.lost() + wire::process().len() as u64, totals.bytes_in);
    assert!(totals.lost() <= sent && totals.lost() < 8 << 20, "{} of {sent}", totals.lost());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_on_one_connection_does_not_delay_another() {
    let strings = Strings::new(Mood::Write);
    let sink = strings.clone();
    // The sink takes logs only: the process and the traces.
    let queue = tributary::pipeline::options::QueueOptions {
        kinds: [tributary::event::Kind::Log].into_iter().collect(),
        ..Default::default()
    };
    let config = crate::live::config(&crate::live::listener("span_idle = \"1h\""));
    let server = Server::start_with(&config, |sinks| {
        sinks.add("puppet", queue, move || Ok(sink.puppet()));
    })
    .await
    .unwrap();
    let mut flood = connect(&server).await;
    let is_over = Arc::new(AtomicBool::new(false));
    let flooding = tokio::spawn({
        let is_over = is_over.clone();
        async move {
            let (hello, _) = wire::work(0);
            flood.write_all(&hello).await.unwrap();
            let spans = wire::span(1).repeat(4_000);
            let mut sent = hello.len() as u64;
            while !is_over.load(Ordering::Relaxed) {
                flood.write_all(&spans).await.unwrap();
                sent += spans.len() as u64;
            }
            send_all(flood, &[]).await;
            sent
        }
    });
    let mut quiet = connect(&server).await;
    let peer = quiet.local_addr().unwrap().to_string();
    quiet.write_all(&wire::process()).await.unwrap();
    let mut flooded_before = 0;
    for count in 1..=30 {
        quiet.write_all(&wire::trace()).await.unwrap();
        let count_written = || strings.written().iter().filter(|event| event["origin"]["peer"] == peer).count();
        // The process and all traces but the last, which is still open.
        until("the quiet connection's events are written", || (count_written() == count).then_some(())).await;
        let flooded = crate::live::counters(&server).bytes_in;
        assert!(flooded > flooded_before, "the flood continues");
        flooded_before = flooded;
    }
    is_over.store(true, Ordering::Relaxed);
    let sent = within("the flood is over", flooding).await.unwrap();
    send_all(quiet, &[]).await;
    let totals = within("stopping", server.stop()).await;
    assert!(totals.are_balanced(), "{totals:?}");
    assert_eq!(totals.listeners[0].bytes_in, sent + 14 + 30 * 18);
    assert_eq!(totals.listeners[0].lost(), 0);
}

#[tokio::test]
async fn a_stop_reports_open_records_as_incomplete_and_loses_nothing() {
    let daemon = Daemon::with("span_idle = \"1h\"").await;
    let mut open = daemon.connect().await;
    open.write_all(&[wire::process(), wire::named_span(1, "open")].concat()).await.unwrap();
    // A record that waits for its name is reported, too.
    let mut waiting = daemon.connect().await;
    waiting.write_all(&[wire::process(), wire::span(2), wire::trace()].concat()).await.unwrap();
    let expected = 14 + 14 + 4 + 83 + 14 + 83 + 18;
    daemon.until_totals("all is read", |counters| counters.bytes_in == expected).await;
    let Stopped { events, totals } = daemon.stop().await;
    let mut spans = spans(&events);
    spans.sort_unstable();
    assert_eq!(spans, [("datadog.span", true), ("open", false)]);
    assert_eq!(totals.listeners[0].lost(), 0);
    assert_eq!(totals.failed(), 0);
    assert_is_closed(&mut open).await;
    assert_is_closed(&mut waiting).await;
}

#[tokio::test]
async fn a_stop_inside_an_object_loses_that_object_only() {
    let daemon = Daemon::with("span_idle = \"1h\"").await;
    let mut stream = daemon.connect().await;
    stream.write_all(&[wire::process(), wire::named_span(1, "open"), vec![0xDD, 4, 1]].concat()).await.unwrap();
    daemon.until_totals("all is read", |counters| counters.bytes_in == 118).await;
    let Stopped { events, .. } = daemon.stop().await;
    assert_eq!(spans(&events), [("open", false)]);
    let [loss] = losses(&events)[..] else { panic!("one loss: {events:?}") };
    assert_eq!((&loss["reason"], &loss["bytes"]), (&"truncated".into(), &3.into()));
}

#[tokio::test]
async fn a_stop_reads_what_has_arrived_before_it() {
    let daemon = Daemon::with("span_idle = \"1h\"").await;
    let mut stream = daemon.connect().await;
    stream.write_all(&wire::process()).await.unwrap();
    daemon.until_totals("the connection is served", |counters| counters.bytes_in == 14).await;
    // The kernel has it when the write returns; the daemon, on this same thread, cannot have read it yet.
    let last = wire::named_span(1, "last");
    assert_eq!(stream.try_write(&last).unwrap(), last.len());
    let Stopped { events, totals } = daemon.stop().await;
    assert_eq!(totals.listeners[0].bytes_in, 14 + last.len() as u64);
    assert_eq!(spans(&events), [("last", false)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_the_grace_period_ends_what_was_not_written_counts_as_failed() {
    // Several times, because connections can be in several states then. In most of them some have bytes that are not decoded.
    let mut lost = 0;
    for _ in 0..10 {
        let strings = Strings::new(Mood::StallWriting);
        let sink = strings.clone();
        let queue = tributary::pipeline::options::QueueOptions { buffer_batches: 1, ..Default::default() };
        let mut config = crate::live::config(&crate::live::listener(""));
        config.limits.shutdown_grace = Duration::from_millis(50);
        let server = Server::start_with(&config, |sinks| {
            sinks.add("puppet", queue, move || Ok(sink.puppet()));
        })
        .await
        .unwrap();
        // More than the system and the daemon can hold.
        let (bytes, _) = wire::work(20_000);
        let mut senders = JoinSet::new();
        for _ in 0..3 {
            let (mut stream, bytes) = (connect(&server).await, bytes.clone());
            senders.spawn(async move {
                // It fails, or the kernel takes all of it.
                let _ = stream.write_all(&bytes).await;
            });
        }
        until("the sink stalls", || (strings.writes() > 0).then_some(())).await;
        // From here on every further batch waits.
        // One batch is in its queue, one is being written.
        let is_full = || server.accounting().totals().sinks[0].queue_batches == 2;
        until("its queue is full", || is_full().then_some(())).await;
        until("there is more to decode", || (crate::live::counters(&server).buffered() > 0).then_some(())).await;
        let totals = within("stopping", server.stop()).await;
        assert!(totals.are_balanced(), "{totals:?}");
        let sink = &totals.sinks[0];
        assert_eq!((sink.written, sink.failed), (0, totals.listeners[0].events()), "{totals:?}");
        assert!(totals.failed() > 1, "{totals:?}");
        lost += totals.listeners[0].lost();
        within("the peers notice", senders.join_all()).await;
    }
    assert!(lost > 0, "bytes that were not decoded are lost");
}

#[tokio::test]
async fn a_listener_that_cannot_be_bound_is_named_and_nothing_runs() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let toml =
        format!("{}[listeners.second]\nprotocol = \"datadog\"\nlisten = \"{address}\"\n", crate::live::listener(""));
    let error = Server::start(&crate::live::config(&toml)).await.err().unwrap().to_string();
    assert!(error.starts_with(&format!("cannot start listener second on {address}: ")), "{error}");
}

/// The body of the answer to a GET of the admin endpoint.
async fn get(server: &Server, path: &str) -> String {
    let mut stream = TcpStream::connect(server.admin_address().unwrap()).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    within("an answer", stream.read_to_string(&mut answer)).await.unwrap();
    answer.split_once("\r\n\r\n").unwrap().1.to_owned()
}

#[tokio::test]
async fn a_session_that_decodes_without_end_delays_neither_the_admin_endpoint_nor_a_stop() {
    let decoding = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let mut config = crate::live::config(&format!("[admin]\nlisten = \"127.0.0.1:0\"\n{}", crate::live::listener("")));
    config.limits.shutdown_grace = Duration::from_millis(50);
    let server = Server::start_on(&config, Vec::new(), decoding.handle(), |_| {}).await.unwrap();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let (started, has_started) = tokio::sync::oneshot::channel();
    decoding.spawn(async move {
        started.send(()).unwrap();
        // As a session does that decodes for very long: it blocks the only thread that decodes.
        let _ = released.recv();
    });
    has_started.await.unwrap();
    assert_eq!(get(&server, "/livez").await, "alive\n");
    // A connection that is not even accepted.
    let _peer = connect(&server).await;
    within("stopping", server.stop()).await;
    drop(release);
    decoding.shutdown_background();
}

#[tokio::test]
async fn losses_and_the_events_that_they_cost_are_counted_by_reason() {
    let config = crate::live::config(&format!(
        "[admin]\nlisten = \"127.0.0.1:0\"\n{}[sinks.none]\ntype = \"discard\"\n",
        crate::live::listener("waiting.time = \"1h\"")
    ));
    let server = Server::start(&config).await.unwrap();
    // Two spans whose names never come, and half a message.
    let mut stream = connect(&server).await;
    let bytes = [wire::process(), wire::span(1), wire::span(2), wire::trace(), vec![0xDD, 4]].concat();
    stream.write_all(&bytes).await.unwrap();
    stream.shutdown().await.unwrap();
    assert_is_closed(&mut stream).await;
    let metrics = get(&server, "/metrics").await;
    for (name, reason, value) in [
        ("losses", "unresolved", 1),
        ("losses", "truncated", 1),
        ("losses", "gap", 0),
        ("lost_events", "unresolved", 2),
        ("lost_events", "gap", 0),
    ] {
        let labels = format!("listener=\"test\",protocol=\"datadog\",reason=\"{reason}\"");
        let line = format!("tributary_{name}_total{{{labels}}} {value}\n");
        assert!(metrics.contains(&line), "no {line} in\n{metrics}");
    }
    let totals = within("stopping", server.stop()).await;
    assert!(totals.are_balanced(), "{totals:?}");
}

#[tokio::test]
async fn bytes_written_to_files_and_files_finished_and_removed_are_counted() {
    let directory = tempfile::tempdir().unwrap();
    let sink = format!(
        "[admin]\nlisten = \"127.0.0.1:0\"\n[sinks.archive]\ntype = \"file\"\npath = \"{}/app.log\"\nrotate_bytes = 1\n\
         keep_files = 1\n",
        directory.path().display()
    );
    let config = crate::live::config(&format!("{sink}{}", crate::live::listener(TIMELESS)));
    let server = Server::start(&config).await.unwrap();
    let mut stream = connect(&server).await;
    stream.write_all(&[wire::process(), wire::named_span(1, "work"), wire::trace()].concat()).await.unwrap();
    stream.write_all(&[wire::named_span(2, "work"), wire::trace()].concat()).await.unwrap();
    stream.write_all(&[wire::named_span(3, "work"), wire::trace()].concat()).await.unwrap();
    stream.shutdown().await.unwrap();
    assert_is_closed(&mut stream).await;
    let removed = async || {
        let metrics = get(&server, "/metrics").await;
        let value =
            metrics.lines().find_map(|line| line.strip_prefix("tributary_files_removed_total{sink=\"archive\"} "));
        value.unwrap_or_else(|| panic!("not in\n{metrics}")).parse::<u64>().unwrap()
    };
    until_async("a file is removed", async || (removed().await > 0).then_some(())).await;
    let accounting = server.accounting().clone();
    within("stopping", server.stop()).await;
    let lengths: Vec<_> =
        fs::read_dir(directory.path()).unwrap().map(|file| file.unwrap().metadata().unwrap().len()).collect();
    let files = accounting.files();
    let (name, totals) = &files[0];
    assert_eq!((name.as_str(), files.len(), lengths.len()), ("archive", 1, 2), "one finished file and the live one");
    assert_eq!(totals.bytes, totals.removed_bytes + lengths.iter().sum::<u64>());
    assert_eq!(totals.finished, totals.removed + 1);
}
