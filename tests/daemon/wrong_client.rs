//! A client of another protocol leaves a line in the log for each listener and reason, and one of HTTP gets an answer.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};

use crate::live::binary::{Binary, tributary};

/// What a client receives that sends these bytes and ends.
fn exchange(to: SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(to).unwrap();
    stream.write_all(request).unwrap();
    let _ = stream.shutdown(Shutdown::Write);
    let mut answer = Vec::new();
    // The other side may reset the connection after its answer.
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

fn start() -> (tempfile::TempDir, Binary) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.toml");
    let listener =
        |protocol: &str| format!("[listeners.{protocol}]\nprotocol = \"{protocol}\"\nlisten = \"127.0.0.1:0\"\n");
    let listeners: String = ["datadog", "bytefrog", "endless", "zico"].map(listener).concat();
    std::fs::write(&path, format!("{listeners}[sinks.none]\ntype = \"discard\"\n")).unwrap();
    let daemon = Binary::start(tributary(&["run", "--config", path.to_str().unwrap()]));
    (directory, daemon)
}

#[test]
fn a_client_of_another_protocol_is_one_line_in_the_log_for_each_listener_and_reason() {
    let (_directory, daemon) = start();
    for _ in 0..20 {
        for listener in ["datadog", "bytefrog"] {
            exchange(daemon.address(listener), b"POST /v1/traces HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\nabc");
        }
        for listener in ["endless", "zico"] {
            exchange(daemon.address(listener), b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03");
        }
    }
    daemon.signal("TERM");
    let ended = daemon.end();
    for (listener, detail) in [
        ("datadog", "looks like HTTP, which released Datadog tracers speak: their protocol is datadog_agent"),
        ("bytefrog", "looks like HTTP"),
        ("endless", "HTTP"),
        ("zico", "HTTP"),
    ] {
        let of_listener = format!("listener=\"{listener}\" protocol=");
        let lines: Vec<_> =
            ended.stderr.lines().filter(|line| line.contains("WARN") && line.contains(&of_listener)).collect();
        assert_eq!(lines.len(), 1, "{listener}: {}", ended.stderr);
        for part in ["what a peer has sent is lost", "peer=\"127.0.0.1:", "hint=", "bytes=", detail] {
            assert!(lines[0].contains(part), "{part}: {}", lines[0]);
        }
    }
}

#[test]
fn a_client_of_http_on_a_tcp_listener_is_answered_with_a_sentence() {
    let (_directory, daemon) = start();
    for listener in ["datadog", "bytefrog"] {
        for request in ["GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n", "PUT /v0.4/traces HTTP/1.1\r\nhost: a\r\n\r\n"] {
            let answer = exchange(daemon.address(listener), request.as_bytes());
            let why = format!("this port of tributary speaks the protocol {listener} over TCP, not HTTP");
            let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer:?}"));
            assert_eq!(head.lines().next(), Some(format!("HTTP/1.1 501 {why}").as_str()), "{answer:?}");
            assert_eq!(body, format!("{why}\n"));
            assert!(head.contains(&format!("content-length: {}", body.len())), "{head}");
        }
    }
}
