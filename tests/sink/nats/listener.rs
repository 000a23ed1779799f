//! The listener `nats`: writers that take the messages of a stream, with real servers.

use std::path::Path;

use serde_json::{Value, json};

use super::STREAM;
use super::daemon::{Site, get, until_not_ready, until_ready, until_stored, upload};
use crate::live::binary::{Binary, Ended, free_port, tributary, until};
use crate::nats_server::NatsServer;
use crate::parquet::recorded::recordings;

/// A directory with a configuration whose listener receives from a server.
pub(super) struct Writer {
    pub(super) directory: tempfile::TempDir,
    pub(super) url: String,
}

/// A sink of files.
pub(super) const FILES: &str = "[sinks.files]\ntype = \"file\"\npath = \"DIR/out.ndjson\"\n";

impl Writer {
    pub(super) fn new(url: &str, listener: &str, rest: &str) -> Writer {
        let directory = tempfile::tempdir().unwrap();
        let writer = Writer { directory, url: url.to_owned() };
        writer.configure(listener, rest);
        writer
    }

    pub(super) fn configure(&self, listener: &str, rest: &str) {
        let toml = format!(
            "[admin]\nlisten = \"127.0.0.1:0\"\n\
             [listeners.stream]\nprotocol = \"nats\"\nservers = [\"{}\"]\nquarantine.dir = \"DIR/quarantine\"\n\
             retry_min = \"5ms\"\nretry_max = \"50ms\"\nconnect_timeout = \"1s\"\nrequest_timeout = \"2s\"\n{listener}\n{rest}\n",
            self.url
        );
        let toml = toml.replace("DIR", &self.directory.path().display().to_string());
        std::fs::write(self.directory.path().join("t.toml"), toml).unwrap();
    }

    pub(super) fn start(&self) -> Binary {
        let config = self.directory.path().join("t.toml").display().to_string();
        Binary::start(tributary(&["run", "--config", &config]))
    }

    /// The lines that it has written.
    pub(super) fn lines(&self) -> Vec<String> {
        lines_of(&self.directory.path().join("out.ndjson"))
    }

    /// The messages in its quarantine, oldest first.
    fn quarantined(&self) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.directory.path().join("quarantine/stream")) else { return Vec::new() };
        let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        paths.iter().map(|path| String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned()).collect()
    }
}

pub(super) fn lines_of(path: &Path) -> Vec<String> {
    std::fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
}

/// Waits until the consumer has delivered everything, and all of it is answered.
pub(super) fn until_consumed(server: &NatsServer, consumer: &str) {
    let mut left = u64::MAX;
    while left > 0 {
        // As long as the writer makes progress, it may take its time.
        left = until("another message is acknowledged", || {
            let info = server.api(&format!("CONSUMER.INFO.{STREAM}.{consumer}"), &json!({}));
            let now = info["num_pending"].as_u64()? + info["num_ack_pending"].as_u64()?;
            (now < left).then_some(now)
        });
    }
}

pub(super) fn end(daemon: Binary) -> Ended {
    daemon.signal("TERM");
    let ended = daemon.end();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    ended
}

/// Every byte that was received is decoded or lost.
fn assert_balanced(ended: &Ended) {
    let of = |number: &str| ended.total("listener", "stream", number);
    assert_eq!(of("bytes_in"), of("bytes_decoded") + of("bytes_lost"), "{}", ended.stderr);
}

/// The line of a log of this name.
fn line(name: &str, listener: &str) -> String {
    format!(
        "{{\"time\":\"2026-01-01T00:00:00Z\",\"observed_time\":\"2026-01-01T00:00:00Z\",\"kind\":\"log\",\"name\":\"{name}\",\
         \"severity\":\"INFO\",\"attributes\":{{}},\"resource\":{{}},\"origin\":{{\"protocol\":\"endless\",\
         \"listener\":\"{listener}\",\"peer\":\"192.0.2.1:7\",\"connection\":3,\"offset\":0,\"length\":9}}}}"
    )
}

#[test]
fn the_lines_of_every_recording_are_written_as_they_were_published() {
    let Some(server) = NatsServer::start() else { return };
    server.create(STREAM, &["tributary.>"], json!({}));
    let mut published = Vec::new();
    for (number, recording) in recordings().iter().enumerate() {
        let lines: Vec<_> =
            str::from_utf8(&recording.decoded().0).unwrap().lines().map(|line| format!("{line}\n")).collect();
        for part in lines.chunks(5000) {
            let (plain, headers) = (part.concat().into_bytes(), [("Content-Encoding", "zstd")]);
            match number % 2 == 0 && plain.len() < 500_000 {
                true => server.publish("tributary.x.log", &[], &[plain]),
                false => server.publish("tributary.x.log", &headers, &[zstd::encode_all(&plain[..], 1).unwrap()]),
            }
        }
        published.extend(lines);
    }
    // One message after the other: the order is that of the stream.
    let writer = Writer::new(&server.url(), "max_in_flight = 1", FILES);
    let daemon = writer.start();
    until_consumed(&server, "writers");
    let metrics = get(&daemon, "/metrics").1;
    assert!(
        metrics.contains("tributary_acknowledged_requests_total{listener=\"stream\",level=\"durable\"}"),
        "{metrics}"
    );
    let ended = end(daemon);
    let written = writer.lines();
    assert!(published.len() > 10_000);
    assert_eq!(written.len(), published.len());
    let differs = written.iter().zip(&published).find(|(written, published)| *written != published.trim_end());
    assert_eq!(differs, None);
    assert_balanced(&ended);
}

#[test]
fn events_of_an_edge_are_the_same_at_the_writer_and_keep_their_origin() {
    let Some(server) = NatsServer::start() else { return };
    let file = "[sinks.own]\ntype = \"file\"\npath = \"DIR/out.ndjson\"\nremove = [\"peer\"]";
    let edge = Site::with_spool(&server.url(), &format!("create = true\nremove = [\"peer\"]\n{file}"));
    let daemon = edge.start();
    until_ready(&daemon);
    let events = upload(&daemon, 60, 7);
    until_stored(&server, events);
    end(daemon);
    let writer = Writer::new(&server.url(), "subjects = [\"tributary.*.log\"]", FILES);
    let daemon = writer.start();
    until_consumed(&server, "writers");
    end(daemon);
    let [mut expected, mut written] = [lines_of(&edge.directory.path().join("out.ndjson")), writer.lines()];
    expected.retain(|line| line.contains("\"kind\":\"log\""));
    assert!(!expected.is_empty() && expected.len() as u64 <= events);
    assert!(expected[0].contains("\"listener\":\"desktops\""));
    expected.sort();
    written.sort();
    assert!(written == expected, "{} {}", written.len(), expected.len());
}

#[test]
fn messages_that_cannot_be_read_are_reported_kept_and_never_delivered_again() {
    let Some(server) = NatsServer::start() else { return };
    server.create(STREAM, &["tributary.>"], json!({}));
    let good = |name: &str| [line(name, "web").as_bytes(), b"\n"].concat();
    let zstd = [("Content-Encoding", "zstd")];
    server.publish("tributary.a.log", &[], &[good("first")]);
    server.publish(
        "tributary.a.log",
        &[],
        &[b"no JSON".to_vec(), Vec::new(), [good("half"), b"{}\n".to_vec(), good("rest")].concat()],
    );
    server.publish("tributary.a.log", &zstd, &[b"no frame".to_vec()]);
    server.publish("tributary.a.log", &zstd, &[zstd::encode_all(&vec![b'\n'; 8 << 20][..], 3).unwrap()]);
    server.publish("tributary.a.log", &[("Content-Encoding", "br")], &[good("brotli")]);
    server.publish("tributary.a.log", &[], &[vec![b'x'; 200_000]]);
    server.publish("tributary.a.log", &[], &[[line("up", "../../etc").as_bytes(), b"\n"].concat(), good("last")]);
    let limits = "max_message_bytes = \"100KiB\"\nmax_inflated_bytes = \"1MiB\"\nmax_in_flight = 1";
    let writer = Writer::new(&server.url(), limits, FILES);
    let daemon = writer.start();
    until_consumed(&server, "writers");
    let metrics = get(&daemon, "/metrics").1;
    assert!(metrics.contains("tributary_quarantined_messages_total{listener=\"stream\"} 8"), "{metrics}");
    let ended = end(daemon);
    let events: Vec<Value> = writer.lines().iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (losses, others): (Vec<_>, Vec<_>) = events.iter().partition(|event| event["kind"] == "loss");
    let names: Vec<_> = others.iter().map(|event| event["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["first", "half", "rest", "last"]);
    let of = |loss: &Value| {
        assert_eq!((&loss["origin"]["protocol"], &loss["origin"]["listener"]), (&json!("nats"), &json!("stream")));
        let detail = loss["loss"]["detail"].as_str().unwrap().to_owned();
        (loss["loss"]["reason"].as_str().unwrap().to_owned(), detail)
    };
    let expected = [
        ("malformed", "message 2: line 1 is no event"),
        ("malformed", "message 3: it is empty"),
        ("malformed", "message 4: line 2 is no event"),
        ("malformed", "message 5: its compression cannot be read"),
        ("too_large", "message 6: it has more than 1048576 bytes of lines (max_inflated_bytes)"),
        ("unsupported", "message 7: its Content-Encoding is neither zstd nor identity, but br"),
        ("too_large", "message 8: it has more than 102400 bytes (max_message_bytes)"),
        ("malformed", "message 9: line 1 is no event: `origin.listener` is no name"),
    ];
    assert_eq!(losses.len(), expected.len());
    for (loss, (reason, detail)) in losses.into_iter().zip(expected) {
        let found = of(loss);
        assert!(found.0 == reason && found.1.starts_with(detail), "{found:?}");
    }
    let kept = writer.quarantined();
    assert_eq!(kept.len(), 8);
    assert!(
        kept[0].starts_with("MESSAGE tributary.a.log HTTP/1.1\r\n") && kept[0].ends_with("\r\n\r\nno JSON"),
        "{}",
        kept[0]
    );
    assert!(kept[0].contains("\r\nnats-sequence: 2\r\n"), "{}", kept[0]);
    assert_balanced(&ended);
}

#[test]
fn a_message_that_was_delivered_in_vain_too_often_goes_to_the_quarantine() {
    let Some(server) = NatsServer::start() else { return };
    server.create(STREAM, &["tributary.>"], json!({}));
    server.publish("tributary.a.log", &[], &[[line("event", "web").as_bytes(), b"\n"].concat()]);
    let sinks = "[sinks.broken]\ntype = \"file\"\npath = \"DIR/directory\"\nkinds = [\"log\"]\n\
                 [sinks.files]\ntype = \"file\"\npath = \"DIR/out.ndjson\"\nkinds = [\"loss\"]\n";
    let writer = Writer::new(&server.url(), "max_deliver = 3", sinks);
    std::fs::create_dir(writer.directory.path().join("directory")).unwrap();
    let daemon = writer.start();
    until_consumed(&server, "writers");
    let losses = until("the loss is written", || Some(writer.lines()).filter(|lines| !lines.is_empty()));
    let why = "a sink could not write its events at the last of 3 deliveries (max_deliver)";
    assert!(losses[0].contains(why), "{losses:?}");
    assert!(writer.quarantined()[0].contains(why));
    daemon.signal("KILL");
    drop(daemon.end());
}

#[test]
fn without_a_server_a_stream_or_a_valid_consumer_the_daemon_is_not_ready_and_recovers_by_itself() {
    if NatsServer::start().is_none() {
        return;
    }
    let port = free_port();
    let writer = Writer::new(
        &format!("nats://127.0.0.1:{port}"),
        "consumer = \"other\"\nsubjects = [\"tributary.*.log\"]",
        FILES,
    );
    let daemon = writer.start();
    until_not_ready(&daemon, "listener stream cannot receive: cannot connect to nats://127.0.0.1");
    let mut server = NatsServer::on(Some(port), "jetstream { store_dir: \"DIR/store\" }\n").unwrap();
    until_not_ready(&daemon, "the stream TRIBUTARY does not exist");
    server.create(STREAM, &["other.>"], json!({}));
    until_not_ready(&daemon, "takes the subjects [other.>], and none of tributary.*.log");
    server.update(STREAM, json!({ "subjects": ["tributary.>"] }));
    until_ready(&daemon);
    server.publish("tributary.a.log", &[], &[[line("one", "web").as_bytes(), b"\n"].concat()]);
    until("the event is written", || (writer.lines().len() == 1).then_some(()));
    server.kill();
    until_not_ready(&daemon, "listener stream cannot receive:");
    server.start_again();
    until_ready(&daemon);
    server.publish("tributary.a.log", &[], &[[line("two", "web").as_bytes(), b"\n"].concat()]);
    until("the event is written", || (writer.lines().len() == 2).then_some(()));
    // A new consumer would deliver everything again.
    assert_eq!(server.api(&format!("CONSUMER.DELETE.{STREAM}.other"), &json!({}))["success"], true);
    until_not_ready(&daemon, "the consumer other of the stream TRIBUTARY was deleted");
    let push = json!({ "stream_name": STREAM, "config": { "durable_name": "other", "deliver_subject": "x", "ack_policy": "explicit",
        "filter_subject": "tributary.*.log" } });
    let created = server.api(&format!("CONSUMER.DURABLE.CREATE.{STREAM}.other"), &push);
    assert!(created["error"].is_null(), "{created}");
    until_not_ready(&daemon, "pushes its messages to a subject; it must be a pull consumer");
    end(daemon);
    assert_eq!(writer.lines().len(), 2);
}

#[test]
fn a_reload_restarts_the_listener_only_if_it_has_changed() {
    let Some(server) = NatsServer::start() else { return };
    server.create(STREAM, &["tributary.>"], json!({}));
    let writer = Writer::new(&server.url(), "", FILES);
    let daemon = writer.start();
    until_ready(&daemon);
    writer.configure("", &format!("{FILES}fsync_interval = \"2s\"\n"));
    daemon.signal("HUP");
    daemon.until_stderr("sink files restarted");
    writer.configure("consumer = \"second\"", FILES);
    daemon.signal("HUP");
    daemon.until_stderr("listener stream restarted");
    server.publish("tributary.a.log", &[], &[[line("one", "web").as_bytes(), b"\n"].concat()]);
    until("the event is written", || (writer.lines().len() == 1).then_some(()));
    until_consumed(&server, "second");
    let ended = end(daemon);
    assert_eq!(ended.stderr.matches("listener stream restarted").count(), 1, "{}", ended.stderr);
}

#[test]
fn what_a_stopping_writer_has_not_delivered_comes_again_elsewhere() {
    let Some(server) = NatsServer::start() else { return };
    server.create(STREAM, &["tributary.>"], json!({}));
    let bodies: Vec<_> =
        (0..20).map(|number| [line(&format!("e{number}"), "web").as_bytes(), b"\n"].concat()).collect();
    server.publish("tributary.a.log", &[], &bodies);
    let away = format!(
        "[sinks.away]\ntype = \"http\"\nendpoint = \"http://127.0.0.1:{}/\"\n[limits]\nshutdown_grace = \"1s\"\n",
        free_port()
    );
    let stuck = Writer::new(&server.url(), "ack_wait = \"1s\"", &away);
    let daemon = stuck.start();
    until("messages are in flight", || {
        let info = server.api(&format!("CONSUMER.INFO.{STREAM}.writers"), &json!({}));
        (info["num_ack_pending"].as_u64() >= Some(16)).then_some(())
    });
    daemon.signal("TERM");
    assert_eq!(daemon.end().code, Some(1), "events are not written");
    let writer = Writer::new(&server.url(), "", FILES);
    let daemon = writer.start();
    until_consumed(&server, "writers");
    end(daemon);
    let mut lines = writer.lines();
    lines.sort();
    lines.dedup();
    assert_eq!(lines.len(), 20);
}
