//! What a stream costs: events to a file, and the same lines to a stream of NATS JetStream in memory, on the same machine, with
//! and without a spool.
//!
//! `cargo bench --bench nats [-- EVENTS [REPETITIONS]]` prints a table. CPU seconds are user + system time of the daemon's own
//! process, so those of the server do not count. Messages are compressed, as they are by default. The server is `nats-server` in
//! `PATH`, or `TRIBUTARY_NATS_SERVER`. Every event arrives: the last column says so.

#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used)]

#[allow(dead_code, unreachable_pub, reason = "each bench uses a part of it")]
mod daemon;

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use daemon::Cost;
use daemon::loads::{FILE, Load};
use daemon::table;

fn main() {
    let (numbers, _) = table::arguments();
    let events = numbers.first().copied().unwrap_or(500_000);
    let repetitions = numbers.get(1).copied().unwrap_or(3).max(1);
    let store = tempfile::tempdir().unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut server = start(port, store.path().to_str().unwrap());
    let nats = format!("type = \"nats\"\nservers = [\"nats://127.0.0.1:{port}\"]\nstream = \"BENCH\"\n");
    let spooled = format!("{nats}spool = {{ dir = \"spool\", max_bytes = \"10GiB\", min_free_bytes = \"0B\" }}\n");
    let sinks = [("file", FILE), ("JetStream", nats.as_str()), ("JetStream with a spool", spooled.as_str())];
    let mut runs: [Vec<Cost>; 3] = Default::default();
    for _ in 0..repetitions {
        for ((_, sink), runs) in sinks.iter().zip(&mut runs) {
            create_stream(port);
            runs.push(Cost::of_load(Load::named("datadog"), events, "", &[sink], &[]).0);
        }
    }
    table::print_beside_the_first(repetitions, &sinks.map(|(name, _)| name), &runs);
    server.kill().unwrap();
    server.wait().unwrap();
}

/// Starts a server and waits until it answers.
fn start(port: u16, store: &str) -> Child {
    let program = std::env::var("TRIBUTARY_NATS_SERVER").unwrap_or_else(|_| "nats-server".to_owned());
    let mut command = Command::new(program);
    command.args(["--addr", "127.0.0.1", "--port", &port.to_string(), "--jetstream", "--store_dir", store]);
    let server = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let began = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(began.elapsed() < Duration::from_secs(10), "the server does not answer");
        thread::sleep(Duration::from_millis(20));
    }
    server
}

/// An empty stream in memory.
fn create_stream(port: u16) {
    let mut stream = BufReader::new(TcpStream::connect(("127.0.0.1", port)).unwrap());
    let config = r#"{"name":"BENCH","subjects":["tributary.>"],"storage":"memory","duplicate_window":120000000000}"#;
    let calls = [("DELETE", ""), ("CREATE", config)];
    let calls = calls.map(|(call, body)| format!("PUB $JS.API.STREAM.{call}.BENCH reply {}\r\n{body}\r\n", body.len()));
    let text = format!("CONNECT {{\"verbose\":false}}\r\nSUB reply 1\r\n{}", calls.concat());
    stream.get_mut().write_all(text.as_bytes()).unwrap();
    let mut line = String::new();
    while !line.contains("stream_create_response") {
        line.clear();
        assert!(stream.read_line(&mut line).unwrap() > 0, "the server has closed the connection");
    }
    assert!(!line.contains("\"error\""), "{line}");
}
