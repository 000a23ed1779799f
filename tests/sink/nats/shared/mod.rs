//! Several daemons that share a stream: what is sent again to another one is in the stream once.

mod audit;
mod endless;
mod registrations;
mod seen;
mod zico;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;

use serde_json::Value;

use super::STREAM;
use super::daemon::get;
use crate::live::PATIENCE;
use crate::live::binary::{Binary, tributary, until};
use crate::nats_server::NatsServer;

/// A daemon of the fleet with a directory of its own.
pub(super) struct Edge {
    directory: tempfile::TempDir,
}

impl Edge {
    /// A daemon that publishes to the server, with these further lines of its listeners and its sink.
    pub(super) fn new(server: &NatsServer, endless: &str, zico: &str, sink: &str) -> Edge {
        let directory = tempfile::tempdir().unwrap();
        let listener = |name: &str, protocol: &str, lines: &str| {
            format!(
                "[listeners.{name}]\nprotocol = \"{protocol}\"\nlisten = \"127.0.0.1:0\"\nquarantine.dir = \"\"\n\
                 delivery_timeout = \"20s\"\n{lines}\n"
            )
        };
        let toml = format!(
            "[admin]\nlisten = \"127.0.0.1:0\"\n{}{}\
             [sinks.stream]\ntype = \"nats\"\nservers = [\"{}\"]\ncreate = true\nretry_min = \"5ms\"\n\
             retry_max = \"50ms\"\n{}\n{sink}\n",
            listener("desktops", "endless", endless),
            listener("zorka", "zico", zico),
            server.url(),
            if sink.contains("request_timeout") { "" } else { "request_timeout = \"2s\"" },
        );
        let toml = toml.replace("URL", &server.url()).replace("DIR", &directory.path().display().to_string());
        std::fs::write(directory.path().join("t.toml"), toml).unwrap();
        Edge { directory }
    }

    pub(super) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Starts it; it may not be ready.
    pub(super) fn spawn(&self) -> Binary {
        let config = self.path().join("t.toml").display().to_string();
        Binary::start(tributary(&["run", "--config", &config]))
    }

    /// Starts it, and waits until it has reached everything that it shares. The server must run.
    pub(super) fn start(&self) -> Binary {
        let daemon = self.spawn();
        until("the daemon is ready", || {
            let (status, body) = get(&daemon, "/readyz");
            (status == 200 && !body.contains("what it shares is away")).then_some(())
        });
        daemon
    }
}

/// An answer to a request.
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) head: String,
    pub(super) body: String,
}

impl Reply {
    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

/// Sends a request on a connection of its own.
pub(super) fn ask(to: SocketAddr, request: &[u8]) -> Reply {
    let mut stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request).unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap().to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).map_or(0, |n| n.parse().unwrap());
    let mut body = vec![0; length];
    stream.read_exact(&mut body).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Reply { status, head, body: String::from_utf8(body).unwrap() }
}

/// A POST.
pub(super) fn post(to: SocketAddr, path: &str, headers: &str, body: &[u8]) -> Reply {
    let head = format!("POST {path} HTTP/1.1\r\nHost: test\r\n{headers}Content-Length: {}\r\n\r\n", body.len());
    ask(to, &[head.as_bytes(), body].concat())
}

/// The ids of the messages in the stream, in their order.
pub(super) fn ids(server: &NatsServer) -> Vec<String> {
    let messages = server.messages(STREAM);
    messages.iter().map(|message| message.header("Nats-Msg-Id").unwrap().to_owned()).collect()
}

/// The events in the stream, without the losses.
pub(super) fn events(server: &NatsServer) -> Vec<Value> {
    server.lines(STREAM).0.iter().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The stream has `count` events, each once. Losses report what was left out.
pub(super) fn assert_each_once(server: &NatsServer, count: u64) {
    let (mut lines, _) = server.lines(STREAM);
    assert_eq!(lines.len() as u64, count);
    lines.sort();
    lines.dedup();
    assert_eq!(lines.len() as u64, count, "each once");
}

/// The value of a metric of the daemon whose labels contain this text.
pub(super) fn metric(daemon: &Binary, name: &str, labels: &str) -> u64 {
    let (_, text) = get(daemon, "/metrics");
    let line = text.lines().find(|line| line.starts_with(&format!("{name}{{")) && line.contains(labels));
    line.map_or(0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
}

/// Waits until the stream has `count` events.
pub(super) fn until_events(server: &NatsServer, count: u64) {
    until("the events are in the stream", || (server.lines(STREAM).0.len() as u64 >= count).then_some(()));
}
