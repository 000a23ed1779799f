//! Attacks with little data: requests that never end, connections that send nothing, peers that never read.

use std::time::Duration;

use super::attackers::{Attackers, connect};
use super::{Attack, withstand};
use crate::live::wire;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

const MIB: u64 = 1 << 20;
/// The pause of a slow attacker between two pieces of a body or two bytes of a head.
const DRIP_PAUSE: Duration = Duration::from_millis(100);
/// An attacker that cannot write for this long takes it that the daemon reads no more.
const STOPPED: Duration = Duration::from_millis(200);
/// The pause of an attacker between two writes of requests whose responses it does not read: it leaves processors to the daemon.
const WRITE_PAUSE: Duration = Duration::from_millis(1);
/// How long an attacker keeps a connection on which it neither reads nor sends, before it opens another one.
const SILENCE: Duration = Duration::from_secs(2);
/// The same with a live view, which the daemon keeps open: longer than the test.
const VIEW_SILENCE: Duration = Duration::from_secs(60);

/// Reads until the peer closes the connection.
async fn until_closed(stream: &mut TcpStream) {
    while stream.read(&mut [0; 4096]).await.is_ok_and(|length| length > 0) {}
}

/// Uploads that declare 16 MB, send 4 MB and then 1.6 KB a second; those that are rejected come again. A step is a byte.
fn start_slow_uploads(attackers: &mut Attackers, addresses: u8) {
    for number in 0..64 {
        let (to, steps) = (attackers.target("desktops"), attackers.steps());
        attackers.spawn(async move {
            loop {
                let Ok(mut stream) = connect(2 + number % addresses, to).await else { continue };
                let head =
                    format!("PUT /3/{} HTTP/1.1\r\nHost: h\r\nContent-Length: 16000000\r\n\r\n", "0".repeat(128));
                let _ = stream.write_all(head.as_bytes()).await;
                let mut rest = 4_000_000;
                while rest > 0 && stream.write_all(&[b'x'; 16_000]).await.is_ok() {
                    rest -= 16_000;
                    steps.add(16_000);
                }
                let mut answer = [0; 1];
                // As long as there is no answer.
                while timeout(DRIP_PAUSE, stream.read(&mut answer)).await.is_err() {
                    let _ = stream.write_all(&[b'x'; 160]).await;
                }
            }
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_uploads_of_one_address() {
    let start = |attackers: &mut Attackers| start_slow_uploads(attackers, 1);
    // Half of the memory that peers share, and what sockets buffer.
    withstand(Attack { options: &[], start, steps: 32 * MIB, honest_after: None }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_uploads_of_many_addresses() {
    let start = |attackers: &mut Attackers| start_slow_uploads(attackers, 16);
    withstand(Attack { options: &[], start, steps: 48 * MIB, honest_after: None }).await;
}

/// Heads of requests to the admin endpoint that come byte by byte.
fn start_slow_heads(attackers: &mut Attackers) {
    for number in 0..64 {
        let (to, steps) = (attackers.target("admin"), attackers.steps());
        attackers.spawn(async move {
            loop {
                let Ok(mut stream) = connect(2 + number % 4, to).await else { continue };
                steps.add(1);
                for byte in b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX: 0123456789012345678901234567890123456789" {
                    if stream.write_all(&[*byte]).await.is_err() {
                        break;
                    }
                    sleep(DRIP_PAUSE).await;
                }
            }
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_heads_at_the_admin_endpoint() {
    withstand(Attack { options: &[], start: start_slow_heads, steps: 64, honest_after: None }).await;
}

/// Connections that send nothing. A step is a connection that the daemon has closed.
fn start_silence(attackers: &mut Attackers) {
    for to in attackers.targets() {
        for number in 0..60 {
            let steps = attackers.steps();
            attackers.spawn(async move {
                loop {
                    let Ok(mut stream) = connect(2 + number % 4, to).await else { continue };
                    until_closed(&mut stream).await;
                    steps.add(1);
                }
            });
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_send_nothing() {
    const SHORT: &str = "handshake_timeout = \"1s\"";
    let options = &[
        ("admin", "head_timeout = \"1s\""),
        ("spans", SHORT),
        ("java", SHORT),
        ("desktops", SHORT),
        ("zorka", SHORT),
        ("ruby", SHORT),
    ];
    withstand(Attack { options, start: start_silence, steps: 6 * 60, honest_after: None }).await;
}

/// Peers of every protocol that never read what the daemon sends, while they send what it answers, if it answers.
/// A step is a peer that the daemon reads no more, or has closed.
fn start_deafness(attackers: &mut Attackers) {
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").into_bytes();
    let spans = [wire::process(), wire::string(1, "deaf")].concat();
    for (name, first, repeated, count) in [
        ("desktops", vec![], get("/nothing").repeat(200), 8),
        ("zorka", vec![], get("/nothing").repeat(200), 8),
        ("admin", vec![], get("/metrics").repeat(10), 32),
        ("admin", get("/tap"), vec![], 4),
        ("admin", get("/tap?wire=true"), vec![], 4),
        // Hello, and heartbeats.
        ("java", vec![0, 4], [8, b'T', 0, 0].repeat(1000), 4),
        ("spans", spans, wire::span(1).repeat(100), 2),
        ("ruby", crate::rbkit_law_support::pack::hello("PUB"), [0, 0].repeat(1000), 2),
    ] {
        for number in 0..count {
            let (to, steps) = (attackers.target(name), attackers.steps());
            let (first, repeated) = (first.clone(), repeated.clone());
            attackers.spawn(async move {
                let mut is_counted = false;
                loop {
                    let Ok(mut stream) = connect(2 + number, to).await else { continue };
                    let _ = stream.write_all(&first).await;
                    if repeated.is_empty() {
                        sleep(VIEW_SILENCE).await;
                    }
                    while let Ok(Ok(())) = timeout(STOPPED, stream.write_all(&repeated)).await {
                        sleep(WRITE_PAUSE).await;
                    }
                    if !std::mem::replace(&mut is_counted, true) {
                        steps.add(1);
                    }
                    // It stays open: it neither reads nor sends.
                    sleep(SILENCE).await;
                }
            });
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peers_that_never_read() {
    // The requests over HTTP, and of the endpoint.
    withstand(Attack { options: &[], start: start_deafness, steps: 16, honest_after: None }).await;
}
