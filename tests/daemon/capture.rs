//! Captures: what a daemon records of its connections, what decoding and replaying a capture gives, and that faults of the
//! recorder affect no connection.

use std::collections::BTreeSet;
use std::fs;
use std::future::pending;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use crate::live::binary::{Binary, Ended, run, tributary};
use crate::live::{Daemon, Stopped, send_all, until, until_closed, wire, within};
use crate::small_disk::SmallDisk;
use serde_json::Value;
use tributary::capture::{MAGIC, Reader, What};
use tributary::protocol::End;
use tributary::simulate::{AgentKind, Amount, Plan, bytefrog, datadog, endless, rbkit, zico};

/// No timeout passes, however busy the machine is. Heartbeats are rare, so that between the first messages of a connection
/// and its end there are enough bytes for a replay to keep the order.
const PATIENT: [&str; 5] = [
    "unresolved_wait = \"5m\"",
    "reorder_window = \"5m\"",
    "rename_wait = \"5m\"",
    "refusal_wait = \"5m\"",
    "heartbeat_interval = \"3s\"",
];

/// The configuration of a listener called `test` that records into `dir`.
fn recorded(protocol: &str, dir: &Path, options: &str) -> String {
    let capture = format!("capture = {{ dir = {:?}, max_bytes = \"1GiB\" }}", dir.display().to_string());
    plain(protocol, &format!("{capture}\n{options}"))
}

fn plain(protocol: &str, options: &str) -> String {
    format!("[listeners.test]\nprotocol = \"{protocol}\"\nlisten = \"127.0.0.1:0\"\n{options}\n")
}

/// The captures of the listener, oldest first.
fn captures(dir: &Path) -> Vec<PathBuf> {
    let Ok(files) = fs::read_dir(dir.join("test")) else { return Vec::new() };
    let mut paths: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    paths.sort();
    paths
}

/// All records of a capture, and how many bytes of its end are torn.
fn records(path: &Path) -> (Vec<What>, u64) {
    let file = fs::read(path).unwrap();
    let mut reader = Reader::new(file.strip_prefix(MAGIC).unwrap()).unwrap();
    let mut records = Vec::new();
    while let Some(record) = reader.record().unwrap() {
        records.push(record.what);
    }
    (records, reader.torn())
}

/// The received bytes in a capture.
fn received(path: &Path) -> Vec<u8> {
    let bytes = |what| if let What::Bytes(bytes) = what { bytes } else { Vec::new() };
    records(path).0.into_iter().flat_map(bytes).collect()
}

fn command(command: &[&str], files: &[PathBuf], more: &[&str]) -> Ended {
    let files: Vec<_> = files.iter().map(|path| path.to_str().unwrap()).collect();
    run(&[command, &files[..], more].concat())
}

fn decode(protocol: &str, files: &[PathBuf], options: &[&str]) -> Vec<Value> {
    let options: Vec<_> = options.iter().flat_map(|option| ["-o", option]).collect();
    let decoded = command(&["decode", protocol], files, &options);
    assert_eq!(decoded.code, Some(0), "{}", decoded.stderr);
    decoded.events()
}

/// Replays captures.
async fn replay(files: Vec<PathBuf>, to: SocketAddr, speed: &'static str) -> Value {
    let to = to.to_string();
    let replaying = tokio::task::spawn_blocking(move || command(&["replay"], &files, &["--to", &to, "--speed", speed]));
    within("the replay", replaying).await.unwrap().sent()
}

/// The names of the spans.
fn names(events: &[Value]) -> Vec<&str> {
    crate::live::spans(events).into_iter().map(|(name, _)| name).collect()
}

/// An event without its times.
fn timeless(event: &Value) -> Value {
    let mut event = crate::live::timeless(event);
    if let Some(attributes) = event.get_mut("attributes").and_then(Value::as_object_mut) {
        attributes.remove("bytefrog.run.duration_ms");
    }
    event
}

/// The events without their times, sorted. The connection stays.
fn sorted(events: &[Value]) -> Vec<String> {
    let owned = |event: &Value| {
        let mut owned = timeless(event);
        owned["origin"] = event["origin"].clone();
        owned.to_string()
    };
    let mut events: Vec<_> = events.iter().map(owned).collect();
    events.sort();
    events
}

/// Like [`sorted`], without the connection.
fn replayed(events: &[Value]) -> Vec<String> {
    let mut events: Vec<_> = events.iter().map(|event| timeless(event).to_string()).collect();
    events.sort();
    events
}

fn without_resource(mut events: Vec<Value>) -> Vec<Value> {
    for event in &mut events {
        event.as_object_mut().unwrap().remove("resource");
    }
    events
}

#[track_caller]
fn assert_same(found: &[String], expected: &[String]) {
    let first = found.iter().zip(expected).find(|(found, expected)| found != expected);
    assert_eq!(first, None, "of {} and {}", found.len(), expected.len());
    assert_eq!(found.len(), expected.len(), "{:?}", found.last());
}

/// Runs agents against a daemon that records them.
async fn simulated(agent: AgentKind, connections: usize, events: u64, config: &str) -> (Stopped, u64) {
    let daemon = Daemon::start(config).await;
    let to = daemon.server.address().unwrap();
    let plan = Plan { to, amount: Amount::Events(events), rate: None, connections, seed: 11 };
    let sent = within("the agents", tributary::simulate::run(agent, plan, pending())).await.unwrap();
    daemon.until_all_closed().await;
    (daemon.stop().await, sent.bytes)
}

/// The events that a second daemon decodes from replayed captures.
async fn decode_replay(files: Vec<PathBuf>, config: &str, speed: &'static str) -> (Stopped, Value) {
    let daemon = Daemon::start(config).await;
    let sent = replay(files, daemon.server.address().unwrap(), speed).await;
    daemon.until_all_closed().await;
    (daemon.stop().await, sent)
}

/// Records simulated agents, and compares the daemon's events with those of decoding and replaying.
async fn assert_round_trip(agent: AgentKind, connections: usize, options: &[&str]) {
    let protocol = agent.protocol().as_str();
    let dir = tempfile::tempdir().unwrap();
    let lines = format!("{}\nquarantine.dir = \"\"", options.join("\n"));
    let lines = if protocol == "endless" { lines } else { options.join("\n") };
    let (live, sent) = simulated(agent, connections, 3_000, &recorded(protocol, dir.path(), &lines)).await;
    let totals = &live.totals.listeners[0];
    let files = captures(dir.path());
    assert_eq!(files.len() as u64, totals.connections);
    let bytes: u64 = files.iter().map(|file| received(file).len() as u64).sum();
    assert_eq!(bytes, sent);
    // For HTTP the counters count bodies.
    assert!(protocol == "endless" || bytes == totals.bytes_in, "{totals:?}");
    for file in &files {
        let (records, torn) = records(file);
        assert_eq!((records.last(), torn), (Some(&What::End(End::Closed)), 0), "{records:?}");
        assert!(!records.iter().any(|record| matches!(record, What::Missing(_) | What::Full)));
    }

    let expected = sorted(&live.events);
    assert!(expected.len() >= 3_000);
    let options: Vec<_> = options.iter().map(|option| option.replace(" = ", "=").replace('"', "")).collect();
    let options: Vec<_> = options.iter().map(String::as_str).collect();
    assert_same(&sorted(&decode(protocol, &files, &options)), &expected);

    // The connections of a traced program depend on one another: at full speed the first may end before the next is accepted.
    let speed = if protocol == "bytefrog" { "1" } else { "max" };
    let (again, sent_again) = decode_replay(files, &plain(protocol, &lines), speed).await;
    assert_eq!((&sent_again["protocol"], sent_again["bytes"].as_u64()), (&Value::from(protocol), Some(bytes)));
    assert_eq!(sent_again["connections"].as_u64(), Some(totals.connections));
    assert_same(&replayed(&again.events), &replayed(&live.events));
    assert_eq!(again.totals.listeners[0].bytes_in, totals.bytes_in);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn captures_of_datadog_are_what_was_received_and_decode_and_replay_to_the_same_events() {
    assert_round_trip(AgentKind::Datadog(datadog::DatadogDialect::Exact), 3, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn captures_of_bytefrog_are_what_was_received_and_decode_and_replay_to_the_same_events() {
    for version in [1, 4] {
        let options = bytefrog::Options { version, ..Default::default() };
        assert_round_trip(AgentKind::Bytefrog(options), 1, &PATIENT).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn captures_of_endless_are_what_was_received_and_decode_and_replay_to_the_same_events() {
    assert_round_trip(AgentKind::Endless(endless::AgentVersion::V3), 3, &[]).await;
}

#[tokio::test]
async fn captures_of_zico_are_decoded_to_the_events_of_the_daemon() {
    for dialect in [zico::ZicoDialect::Gen1, zico::ZicoDialect::Gen2] {
        let dir = tempfile::tempdir().unwrap();
        let config = recorded("zico", dir.path(), "quarantine.dir = \"\"");
        let (live, _) = simulated(AgentKind::Zico(dialect), 2, 2_000, &config).await;
        let decoded = decode("zico", &captures(dir.path()), &[]);
        match dialect {
            zico::ZicoDialect::Gen2 => assert_same(&sorted(&decoded), &sorted(&live.events)),
            // The ids that registrations were answered with are not among the received bytes.
            _ => assert_same(&sorted(&without_resource(decoded)), &sorted(&without_resource(live.events))),
        }
    }
}

#[tokio::test]
async fn captures_of_ruby_processes_that_the_daemon_connects_to_are_decoded_to_the_events_of_the_daemon() {
    let dir = tempfile::tempdir().unwrap();
    let any = "127.0.0.1:0".parse().unwrap();
    let options = rbkit::Options { publish: any, request: any, heap_objects: 100, ..Default::default() };
    let process = rbkit::SimulatedProcess::bind(options).await.unwrap();
    let rbkit::Options { publish, request, .. } = process.options();
    let agents =
        format!("agents = [{{ publish = \"{publish}\", request = \"{request}\", enable = [\"memory_profile\"] }}]");
    let config = recorded("rbkit", dir.path(), &agents).replace("listen = \"127.0.0.1:0\"\n", "");
    let daemon = Daemon::start(&config).await;
    let plan = rbkit::Plan { amount: Amount::Events(3_000), rate: None, seed: 5 };
    let report = within("the process ends", process.run(plan, pending())).await.unwrap();
    daemon.until_all_closed().await;
    let stopped = daemon.stop().await;
    let files = captures(dir.path());
    let bytes: u64 = files.iter().map(|file| received(file).len() as u64).sum();
    assert_eq!((files.len(), bytes), (2, report.sent.bytes));
    // A running daemon reports only what a handshake has changed.
    let published = |mut events: Vec<Value>| {
        events.retain(|event| event["name"] != "rbkit.handshake");
        sorted(&events)
    };
    let decoded = decode("rbkit", &files, &[]);
    assert_same(&published(decoded.clone()), &published(stopped.events.clone()));
    // The times of the captures decide, and not the order of the files.
    let reversed: Vec<_> = files.iter().rev().cloned().collect();
    assert_same(&sorted(&decode("rbkit", &reversed, &[])), &sorted(&decoded));

    // Published bytes can be replayed to a listener that processes connect to.
    let taken = "listen_publish = \"127.0.0.1:0\"";
    let daemon = Daemon::start(&plain("rbkit", taken).replace("listen = \"127.0.0.1:0\"\n", "")).await;
    let published = files.iter().find(|file| received(file).windows(3).any(|name| name == b"PUB")).unwrap().clone();
    replay(vec![published], daemon.server.address().unwrap(), "max").await;
    daemon.until_all_closed().await;
    let again = daemon.stop().await.events;
    let objects = |events: &[Value]| events.iter().filter(|event| event["name"] == "rbkit.object.created").count();
    assert!(objects(&again) > 100);
    assert_eq!(objects(&again), objects(&stopped.events));
}

#[tokio::test]
async fn decoded_events_have_the_times_at_which_they_were_received() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&recorded("datadog", dir.path(), "span_idle = \"5m\"")).await;
    let before = jiff::Timestamp::now();
    send_all(daemon.connect().await, &[wire::process(), wire::named_span(1, "one")].concat()).await;
    daemon.stop().await;
    let after = jiff::Timestamp::now();
    let events = decode("datadog", &captures(dir.path()), &[]);
    assert_eq!(events.len(), 2);
    for event in events {
        let observed: jiff::Timestamp = event["observed_time"].as_str().unwrap().parse().unwrap();
        assert!(before <= observed && observed <= after, "{before} <= {observed} <= {after}");
    }
}

#[tokio::test]
async fn a_loss_is_decoded_as_the_daemon_reported_it_with_the_end_of_the_connection() {
    let dir = tempfile::tempdir().unwrap();
    let limits = "message_timeout = \"50ms\"\nmin_message_rate = 0";
    let daemon = Daemon::start(&recorded("datadog", dir.path(), limits)).await;
    let mut slow = daemon.connect().await;
    let half = [wire::process(), wire::named_span(1, "one"), wire::string_head(2, 10)].concat();
    tokio::io::AsyncWriteExt::write_all(&mut slow, &half).await.unwrap();
    crate::live::assert_is_closed(&mut slow).await;
    let stopped = daemon.stop().await;
    let files = captures(dir.path());
    assert_eq!(records(&files[0]).0.last(), Some(&What::End(End::TimedOut)));
    assert!(crate::live::losses(&stopped.events)[0]["detail"].as_str().unwrap().contains("time limit"));
    assert_same(&sorted(&decode("datadog", &files, &[])), &sorted(&stopped.events));
}

#[tokio::test]
async fn timeouts_of_the_live_connection_apply_when_decoding() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&recorded("datadog", dir.path(), "span_idle = \"10ms\"")).await;
    let mut peer = daemon.connect().await;
    let span = [wire::process(), wire::string(2, "load"), wire::named_span(1, "one")].concat();
    tokio::io::AsyncWriteExt::write_all(&mut peer, &span).await.unwrap();
    daemon.until_named("one").await;
    // The span is already written, so its metric is too late and becomes an event of its own.
    tokio::io::AsyncWriteExt::write_all(&mut peer, &wire::metric(2, 0.5)).await.unwrap();
    drop(peer);
    daemon.until_all_closed().await;
    let stopped = daemon.stop().await;
    assert_eq!(stopped.events.len(), 3);
    let files = captures(dir.path());
    assert_same(&sorted(&decode("datadog", &files, &["span_idle=10ms"])), &sorted(&stopped.events));
    assert_eq!(
        decode("datadog", &files, &["span_idle=1h"]).len(),
        2,
        "without the timeout, the span contains the metric"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_at_the_original_speed_gives_the_same_events() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&recorded("datadog", dir.path(), "")).await;
    let mut peer = daemon.connect().await;
    for bytes in [wire::process(), wire::named_span(1, "one"), wire::named_span(2, "two"), wire::trace()] {
        let before = daemon.counters().bytes_in;
        tokio::io::AsyncWriteExt::write_all(&mut peer, &bytes).await.unwrap();
        daemon.until_totals("it is read", |counters| counters.bytes_in > before).await;
    }
    drop(peer);
    daemon.until_all_closed().await;
    let (before, to) = (daemon.events(), daemon.server.address().unwrap().to_string());
    // The recorder writes on its own thread; the end of the connection is its last record.
    let files = until("the capture is complete", || {
        let files = captures(dir.path());
        let is_complete = |file: &PathBuf| fs::read(file).is_ok_and(|bytes| bytes.ends_with(b"closed"));
        files.first().is_some_and(is_complete).then_some(files)
    })
    .await;
    let replaying = tokio::task::spawn_blocking(move || command(&["replay"], &files, &["--to", &to]));
    let sent = within("the replay", replaying).await.unwrap().sent();
    assert_eq!((sent["connections"].as_u64(), sent["records"].as_u64()), (Some(1), Some(4)));
    daemon.until_all_closed().await;
    let events = daemon.stop().await.events;
    assert_same(&replayed(&events[before.len()..]), &replayed(&before));
}

#[tokio::test]
async fn an_incomplete_capture_is_read_up_to_its_last_complete_record() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&recorded("datadog", dir.path(), "")).await;
    let mut peer = daemon.connect().await;
    for name in ["one", "two"] {
        let bytes = [if name == "one" { wire::process() } else { wire::trace() }, wire::named_span(1, name)].concat();
        tokio::io::AsyncWriteExt::write_all(&mut peer, &bytes).await.unwrap();
        daemon.until_named(name).await;
    }
    drop(peer);
    daemon.until_all_closed().await;
    daemon.stop().await;
    let files = captures(dir.path());
    let whole = fs::read(&files[0]).unwrap();
    assert_eq!(names(&decode("datadog", &files, &[])), ["one", "two"]);
    let torn = files[0].with_extension("torn");
    // The end record has 13 bytes and the word "closed".
    for (cut, what) in [(1, "torn"), (18, "torn"), (19, "has no end"), (30, "torn")] {
        fs::write(&torn, &whole[..whole.len() - cut]).unwrap();
        let decoded = command(&["decode", "datadog"], std::slice::from_ref(&torn), &[]);
        assert_eq!(decoded.code, Some(0));
        assert!(decoded.stderr.contains(what), "{cut}: {}", decoded.stderr);
        let expected = if cut < 20 { &["one", "two"][..] } else { &["one"] };
        assert_eq!(names(&decoded.events()), expected, "{cut}");
    }
    fs::write(&torn, &whole[..MAGIC.len() + 9]).unwrap();
    let decoded = command(&["decode", "datadog"], &[torn], &[]);
    assert_eq!(decoded.code, Some(1));
    assert!(decoded.last_words().contains("the capture is damaged"), "{}", decoded.stderr);
}

#[tokio::test]
async fn the_oldest_captures_are_removed_and_a_capture_that_is_too_large_ends() {
    let dir = tempfile::tempdir().unwrap();
    let max_bytes = 1 << 20;
    let config = recorded("datadog", dir.path(), "").replace("1GiB", "1MiB");
    let daemon = Daemon::start(&config).await;
    let (bytes, _) = wire::work(3_000);
    assert!(bytes.len() > max_bytes / 4 && bytes.len() < max_bytes / 3);
    let mut first = None;
    for number in 1..=6 {
        send_all(daemon.connect().await, &bytes).await;
        daemon
            .until_totals("the connection is closed", |counters| {
                counters.connections == number && counters.connections_open == 0
            })
            .await;
        first = first.or_else(|| captures(dir.path()).first().cloned());
    }
    let (long, _) = wire::work(12_000);
    assert!(long.len() > max_bytes);
    send_all(daemon.connect().await, &long).await;
    let stopped = daemon.stop().await;
    assert_eq!(stopped.totals.listeners[0].bytes_in, (6 * bytes.len() + long.len()) as u64);

    let files = captures(dir.path());
    let kept: u64 = files.iter().map(|file| file.metadata().unwrap().len()).sum();
    assert!(kept <= max_bytes as u64, "{kept}");
    assert!(!files.contains(&first.unwrap()), "the oldest is gone");
    let (last, _) = records(files.last().unwrap());
    let [.., What::Full, What::Missing(missing), What::End(End::Closed)] = &last[..] else {
        panic!("{:?}", last.last())
    };
    assert_eq!(received(files.last().unwrap()).len() as u64 + missing, long.len() as u64);
    let decoded = command(&["decode", "datadog"], &files[files.len() - 1..], &[]);
    assert_eq!(decoded.code, Some(0));
    assert!(decoded.stderr.contains("capture.max_bytes"), "{}", decoded.stderr);

    // Captures of an earlier run count, too.
    let daemon = Daemon::start(&config).await;
    send_all(daemon.connect().await, &bytes).await;
    daemon.stop().await;
    let files = captures(dir.path());
    let kept: u64 = files.iter().map(|file| file.metadata().unwrap().len()).sum();
    assert!(kept <= max_bytes as u64, "{kept}");
    assert_eq!(received(files.last().unwrap()), bytes);
}

#[tokio::test]
async fn without_a_writable_directory_everything_else_works_and_captures_count_what_is_missing() {
    let directory = tempfile::tempdir().unwrap();
    // A file blocks the name of the directory.
    let dir = directory.path().join("captures");
    fs::write(&dir, "in the way").unwrap();
    let daemon = Daemon::start(&recorded("datadog", &dir, "")).await;
    let (bytes, events) = wire::work(1_000);
    send_all(daemon.connect().await, &bytes).await;
    // The file is removed while a connection is open.
    let mut peer = daemon.connect().await;
    tokio::io::AsyncWriteExt::write_all(&mut peer, &wire::process()).await.unwrap();
    let before = bytes.len() as u64;
    daemon.until_totals("the greeting is read", |counters| counters.bytes_in > before).await;
    fs::remove_file(&dir).unwrap();
    let rest = wire::named_span(1, "late");
    tokio::io::AsyncWriteExt::write_all(&mut peer, &rest).await.unwrap();
    drop(peer);
    daemon.until_named("late").await;
    daemon.until_all_closed().await;
    let stopped = daemon.stop().await;
    assert_eq!(stopped.events.len() as u64, events + 2);
    let files = captures(&dir);
    let all_records: Vec<_> = files.iter().map(|file| records(file).0).collect();
    let missing = |records: &Vec<What>| match records[..] {
        [What::Missing(missing), ..] => missing,
        _ => 0,
    };
    let found: u64 = files.iter().map(|file| received(file).len() as u64).sum();
    let all: u64 = all_records.iter().map(missing).sum::<u64>() + found;
    let peer = (wire::process().len() + rest.len()) as u64;
    assert!(all >= peer && found >= rest.len() as u64, "{all_records:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_leaves_gaps_in_captures_only() {
    let Some(disk) = SmallDisk::mount(4 << 20) else { return };
    disk.occupy((4 << 20) - (64 << 10));
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("t.toml");
    fs::write(&config, recorded("datadog", disk.path(), "")).unwrap();
    let daemon = Binary::start(tributary(&["run", "--config", config.to_str().unwrap()]));
    let (bytes, events) = wire::work(3_000);
    let mut peer = std::net::TcpStream::connect(daemon.address("test")).unwrap();
    peer.write_all(&bytes).unwrap();
    let all = bytes.len() as u64;
    // The recorder writes on its own thread, some time after the bytes were read. Its warning shows that a write failed.
    daemon.until_stderr("captures are incomplete");
    disk.release();
    drop(peer);
    // All events are written when the connection has been read to its end.
    daemon.until_stdout_lines(events as usize);
    daemon.signal("TERM");
    let stopped = daemon.end();
    assert_eq!(stopped.code, Some(0), "{}", stopped.stderr);
    assert_eq!(stopped.events().len() as u64, events);
    let files = captures(disk.path());
    let (records, torn) = records(&files[0]);
    let missing: u64 = records.iter().map(|what| if let What::Missing(bytes) = what { *bytes } else { 0 }).sum();
    assert_eq!(torn, 0, "{records:?}");
    assert!(missing > 0);
    assert_eq!(received(&files[0]).len() as u64 + missing, all);
}

#[test]
fn the_capture_of_a_killed_daemon_is_decoded() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("t.toml");
    fs::write(&config, recorded("datadog", dir.path(), "")).unwrap();
    let daemon = Binary::start(tributary(&["run", "--config", config.to_str().unwrap()]));
    let mut peer = std::net::TcpStream::connect(daemon.address("test")).unwrap();
    // The message after a span completes it.
    let bytes = [wire::process(), wire::named_span(1, "one"), wire::named_span(2, "two"), wire::trace()].concat();
    peer.write_all(&bytes).unwrap();
    daemon.until_stdout("\"two\"");
    // Before its head is written a capture is no capture.
    let has_head = |file: &&PathBuf| file.metadata().is_ok_and(|file| file.len() > bytes.len() as u64);
    crate::live::binary::until("it is recorded", || {
        captures(dir.path()).first().filter(has_head).filter(|file| received(file) == bytes).map(drop)
    });
    daemon.signal("KILL");
    let killed = daemon.end();
    let files = captures(dir.path());
    assert!(!records(&files[0]).0.iter().any(|record| matches!(record, What::End(_))));
    let events = decode("datadog", &files, &[]);
    assert_eq!(crate::live::spans(&events), [("one", true), ("two", true)]);
    assert_eq!(crate::live::spans(&events), crate::live::spans(&killed.events()));
}

#[tokio::test]
async fn peers_cannot_influence_names_and_permissions_of_captures() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&recorded("datadog", dir.path(), "")).await;
    for _ in 0..3 {
        send_all(daemon.connect().await, b"../../etc/passwd").await;
    }
    daemon.stop().await;
    let files = captures(dir.path());
    assert_eq!(files.len(), 3);
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(files[0].parent().unwrap()), 0o700);
    assert_eq!(files.iter().map(|file| mode(file)).collect::<BTreeSet<_>>(), BTreeSet::from([0o600]));
    for file in files {
        let name = file.file_name().unwrap().to_str().unwrap();
        let (time, rest) = name.split_once('-').unwrap();
        assert!(time.len() == 20 && time.bytes().all(|byte| byte.is_ascii_digit()), "{name}");
        assert!(rest.strip_suffix(".capture").unwrap().parse::<u64>().is_ok(), "{name}");
    }
}

#[tokio::test]
async fn captures_of_another_protocol_and_other_files_are_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(&recorded("datadog", dir.path(), "")).await;
    send_all(daemon.connect().await, &wire::process()).await;
    let to = daemon.server.address().unwrap().to_string();
    daemon.stop().await;
    let files = captures(dir.path());
    let other = command(&["decode", "bytefrog"], &files, &[]);
    assert_eq!(other.code, Some(2));
    assert!(other.last_words().contains("is a capture of datadog"), "{}", other.stderr);
    let raw = dir.path().join("raw");
    fs::write(&raw, wire::process()).unwrap();
    let refused = command(&["replay"], &[raw], &["--to", &to]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.last_words().contains("is not a capture"), "{}", refused.stderr);
    let refused = command(&["replay"], &files, &["--to", &to, "--speed", "2.5"]);
    assert_eq!(refused.code, Some(1));
    assert!(refused.last_words().contains("1 connection could not be replayed completely"), "{}", refused.stderr);
    until_closed(to).await;
}
