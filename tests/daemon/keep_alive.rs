//! Connections of the admin endpoint that are kept open for further requests, and what bounds them.

use std::net::SocketAddr;

use crate::live::{Daemon, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Neither limit ends a connection within a test.
const PATIENT: &str = "head_timeout = \"1h\"\nresponse_timeout = \"1h\"\nidle_timeout = \"1h\"";

async fn daemon(admin: &str) -> (Daemon, SocketAddr) {
    let admin = format!("[admin]\nlisten = \"127.0.0.1:0\"\n{admin}\n");
    let daemon = Daemon::start(&format!("{admin}{}", crate::live::listener(""))).await;
    let address = daemon.server.admin_address().unwrap();
    (daemon, address)
}

fn request(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n")
}

/// Reads one response: its head in lower case, and its body. `None`: the connection was closed instead.
async fn response(stream: &mut TcpStream) -> Option<(String, String)> {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let head = head.to_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
            if body.len() == length.parse::<usize>().unwrap() {
                return Some((head, body.to_owned()));
            }
        }
        // One byte at a time, so that the next response stays in the stream.
        let mut byte = [0];
        if !matches!(within("a response", stream.read(&mut byte)).await, Ok(1)) {
            assert!(bytes.is_empty(), "{}", String::from_utf8_lossy(&bytes));
            return None;
        }
        bytes.extend(byte);
    }
}

/// A connection that has had one request.
async fn kept(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request("/livez").as_bytes()).await.unwrap();
    assert!(response(&mut stream).await.is_some());
    stream
}

/// Whether a further request on the connection has a response.
async fn is_open(stream: &mut TcpStream) -> bool {
    stream.write_all(request("/livez").as_bytes()).await.is_ok() && response(stream).await.is_some()
}

#[tokio::test]
async fn a_connection_has_several_requests_until_its_last_one() {
    let (daemon, address) = daemon("max_requests_per_connection = 5").await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    for (path, status) in [("/livez", "200"), ("/nowhere", "404"), ("/metrics", "200")] {
        stream.write_all(request(path).as_bytes()).await.unwrap();
        let (head, _) = response(&mut stream).await.unwrap();
        assert!(head.starts_with(&format!("http/1.1 {status} ")) && !head.contains("connection: close"), "{head}");
    }
    // Two in one write; what follows the last one is not answered.
    stream.write_all([request("/livez"), request("/readyz"), request("/livez")].concat().as_bytes()).await.unwrap();
    assert_eq!(response(&mut stream).await.unwrap().1, "alive\n");
    let (head, body) = response(&mut stream).await.unwrap();
    assert!(head.contains("connection: close") && body == "ready\n", "{head}");
    assert_eq!(response(&mut stream).await, None);
    // A client may ask for the end itself.
    let mut stream = kept(address).await;
    let last = request("/livez").replace("\r\n\r\n", "\r\nconnection: close\r\n\r\n");
    stream.write_all(last.as_bytes()).await.unwrap();
    assert!(response(&mut stream).await.is_some());
    assert_eq!(response(&mut stream).await, None);
    daemon.stop().await;
}

#[tokio::test]
async fn an_idle_connection_ends_after_idle_timeout_and_one_with_a_part_of_a_head_after_head_timeout() {
    let (idle, address) = daemon("head_timeout = \"1h\"\nidle_timeout = \"50ms\"").await;
    assert_eq!(response(&mut kept(address).await).await, None);
    idle.stop().await;
    let (slow, address) = daemon("head_timeout = \"50ms\"\nidle_timeout = \"1h\"").await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    for _ in 0..3 {
        stream.write_all(request("/livez").as_bytes()).await.unwrap();
        assert!(response(&mut stream).await.is_some());
    }
    stream.write_all(b"GET /livez").await.unwrap();
    assert_eq!(response(&mut stream).await, None);
    slow.stop().await;
}

#[tokio::test]
async fn kept_connections_do_not_keep_others_out_and_are_closed_before_slow_ones() {
    let (daemon, address) = daemon(&format!("max_connections = 8\n{PATIENT}")).await;
    let mut slow = TcpStream::connect(address).await.unwrap();
    slow.write_all(b"GET /livez HTTP/1.1\r\nhost: local").await.unwrap();
    let mut idle = Vec::new();
    for _ in 0..7 {
        idle.push(kept(address).await);
    }
    let mut last = kept(address).await;
    let mut open = 0;
    for stream in &mut idle {
        open += u32::from(is_open(stream).await);
    }
    assert_eq!(open, 6, "one was closed for the last");
    for _ in 0..64 {
        idle.push(kept(address).await);
    }
    // Each of these was closed for another one, but not what waits for the rest of a head.
    slow.write_all(b"host\r\n\r\n").await.unwrap();
    assert!(response(&mut slow).await.is_some());
    assert!(!is_open(&mut last).await);
    assert!(is_open(idle.last_mut().unwrap()).await);
    daemon.stop().await;
}

#[tokio::test]
async fn kept_connections_with_parts_of_heads_do_not_keep_others_out() {
    let (daemon, address) = daemon(PATIENT).await;
    let mut slow = Vec::new();
    for _ in 0..64 {
        let mut stream = kept(address).await;
        stream.write_all(b"GET /livez HTTP/1.1\r\nhost: local").await.unwrap();
        slow.push(stream);
    }
    assert!(is_open(&mut kept(address).await).await);
    daemon.stop().await;
}

#[tokio::test]
async fn a_stop_closes_kept_connections() {
    let (daemon, address) = daemon(PATIENT).await;
    let mut stream = kept(address).await;
    daemon.stop().await;
    assert_eq!(response(&mut stream).await, None);
}
