//! The daemon with a sink `nats`: killed while messages are in flight, and with NATS away.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use serde_json::json;

use super::STREAM;
use crate::live::binary::{Binary, free_port, run, tributary, until};
use crate::nats_server::NatsServer;

/// A directory with a configuration whose sink publishes to a server.
pub(super) struct Site {
    pub(super) directory: tempfile::TempDir,
}

impl Site {
    pub(super) fn new(url: &str, sink: &str) -> Site {
        let directory = tempfile::tempdir().unwrap();
        let toml = format!(
            "[admin]\nlisten = \"127.0.0.1:0\"\n\
             [listeners.desktops]\nprotocol = \"endless\"\nlisten = \"127.0.0.1:0\"\nquarantine.dir = \"\"\n\
             delivery_timeout = \"1s\"\nacknowledge = \"durable\"\n\
             [sinks.stream]\ntype = \"nats\"\nservers = [\"{url}\"]\nretry_min = \"5ms\"\nretry_max = \"50ms\"\nmax_retry_delay = \"50ms\"\n\
             {}\n{}\n",
            if sink.contains("request_timeout") { "" } else { "request_timeout = \"2s\"" },
            sink.replace("DIR", &directory.path().display().to_string())
        );
        std::fs::write(directory.path().join("t.toml"), toml).unwrap();
        Site { directory }
    }

    pub(super) fn with_spool(url: &str, sink: &str) -> Site {
        Site::new(url, &format!("spool = {{ dir = \"DIR/spool\", min_free_bytes = \"0B\" }}\n{sink}"))
    }

    pub(super) fn start(&self) -> Binary {
        let config = self.directory.path().join("t.toml").display().to_string();
        Binary::start(tributary(&["run", "--config", &config]))
    }
}

/// A machine uploads events; each upload is answered 200. Returns the number of events.
pub(super) fn upload(daemon: &Binary, count: u64, seed: u64) -> u64 {
    let (address, count, seed) = (daemon.address("desktops").to_string(), count.to_string(), seed.to_string());
    let sent = run(&["simulate", "endless", "--to", &address, "--count", &count, "--seed", &seed]).sent();
    sent["events"].as_u64().unwrap()
}

/// The status and the body of a page of the admin endpoint.
pub(super) fn get(daemon: &Binary, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(daemon.admin_address()).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// Waits until the daemon is not ready, and says this.
pub(super) fn until_not_ready(daemon: &Binary, why: &str) {
    until(why, || Some(get(daemon, "/readyz")).filter(|(status, body)| *status == 503 && body.contains(why)));
}

/// Waits until the daemon, which is ready because its spool has space, says this.
pub(super) fn until_noted(daemon: &Binary, why: &str) {
    until(why, || Some(get(daemon, "/readyz")).filter(|(status, body)| *status == 200 && body.contains(why)));
}

/// Waits until the daemon is ready and has nothing to note.
pub(super) fn until_ready(daemon: &Binary) {
    until("the daemon is ready", || Some(get(daemon, "/readyz")).filter(|of| *of == (200, "ready\n".to_owned())));
}

/// The stream has `events` events, and each is there once.
pub(super) fn assert_once(server: &NatsServer, events: u64) {
    let (mut lines, mut losses) = server.lines(STREAM);
    // A machine that was answered 503, while the destination was known to be away, repeats its upload, which is recognised.
    losses.retain(|loss| !loss.contains(r#""reason":"duplicate""#));
    assert_eq!((lines.len() as u64, losses.len()), (events, 0), "{losses:?}");
    lines.sort();
    lines.dedup();
    assert_eq!(lines.len() as u64, events, "each once");
}

pub(super) fn until_stored(server: &NatsServer, events: u64) {
    until("every event is in the stream", || (server.lines(STREAM).0.len() as u64 >= events).then_some(()));
}

#[test]
fn a_daemon_that_is_killed_with_messages_in_flight_sends_them_again_and_the_stream_has_each_event_once() {
    let Some(server) = NatsServer::start() else { return };
    let site = Site::with_spool(&server.url(), "create = true");
    let mut events = 0;
    for round in 0..5 {
        let daemon = site.start();
        until_ready(&daemon);
        // What is sent now is stored only when the server runs again, and its acknowledgements find no daemon.
        server.signal("STOP");
        events += upload(&daemon, 40, round);
        until("messages wait", || get(&daemon, "/metrics").1.contains("sink=\"stream\"").then_some(()));
        daemon.signal("KILL");
        drop(daemon.end());
        server.signal("CONT");
    }
    let daemon = site.start();
    until_ready(&daemon);
    until_stored(&server, events);
    daemon.signal("TERM");
    let ended = daemon.end();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_once(&server, events);
}

#[test]
fn with_a_spool_uploads_are_answered_while_nats_is_away_and_without_one_they_are_not() {
    let Some(mut server) = NatsServer::start() else { return };
    let site = Site::with_spool(&server.url(), "create = true");
    server.kill();
    let daemon = site.start();
    let events = upload(&daemon, 50, 1);
    let (status, note) = until("there is a note", || {
        Some(get(&daemon, "/readyz")).filter(|(_, body)| body.contains("its destination is away"))
    });
    assert!(status == 200 && note.contains("cannot connect to nats://127.0.0.1"), "{note}");
    server.start_again();
    until_stored(&server, events);
    assert_once(&server, events);
    daemon.signal("TERM");
    assert_eq!(daemon.end().code, Some(0));

    let port = free_port();
    let site = Site::new(&format!("nats://127.0.0.1:{port}"), "create = true");
    let daemon = site.start();
    until_not_ready(
        &daemon,
        "sink stream cannot send: 0 events in 0 requests wait in memory; last error: cannot connect to",
    );
    let case = crate::endless_support::cases().into_iter().find(|case| case.is_normal()).unwrap();
    let mut stream = TcpStream::connect(daemon.address("desktops")).unwrap();
    stream.write_all(&case.request).unwrap();
    let mut reply = [0; 12];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"HTTP/1.1 503");
    let server = NatsServer::on(Some(port), "jetstream { store_dir: \"DIR/store\" }\n").unwrap();
    until_ready(&daemon);
    let events = upload(&daemon, 50, 2);
    assert!(server.lines(STREAM).0.len() as u64 >= events, "what was answered is in the stream");
}

#[test]
fn the_spool_shows_the_lines_of_messages() {
    let Some(server) = NatsServer::start() else { return };
    let site = Site::with_spool(&server.url(), "");
    let daemon = site.start();
    until_noted(&daemon, "the stream TRIBUTARY does not exist; create it, or set create = true");
    let events = upload(&daemon, 20, 1);
    let config = site.directory.path().join("t.toml").display().to_string();
    let shown = run(&["spool", "show", "--events", "--config", &config]);
    assert_eq!((shown.code, shown.stdout.lines().count() as u64), (Some(0), events), "{}", shown.stderr);
    server.create(STREAM, &["tributary.>"], json!({}));
    until_ready(&daemon);
    until_stored(&server, events);
    assert_once(&server, events);
}
