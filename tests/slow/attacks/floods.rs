//! Attacks with much data: work, losses, expansion, connections.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use super::attackers::{Attackers, connect};
use super::{Attack, withstand};
use crate::live::{reset, wire};
use crate::rbkit_law_support::pack;
use crate::zico_support::client::form;
use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A meta list of `datadog` with 255 entries from this key on, or with 255 times the same key.
fn meta(first: u64, is_same: bool) -> Vec<u8> {
    let entries = (0..255).flat_map(|at| [first + if is_same { 0 } else { 2 * at }, first + 1].map(u64::to_be_bytes));
    [vec![0xDD, 5, 255], entries.flatten().collect()].concat()
}

/// Traces of 65 KB, whose meta names strings that are never defined.
fn start_meta_flood(attackers: &mut Attackers) {
    for number in 0..2_u8 {
        let (to, steps) = (attackers.target("spans"), attackers.steps());
        attackers.spawn(async move {
            loop {
                let Ok(mut stream) = connect(2 + number, to).await else { continue };
                let _ = stream.write_all(&wire::process()).await;
                for trace in 0..22_u64 {
                    let id = u128::from(trace).to_be_bytes();
                    let lists = (0..16).map(|list| meta(1 + 100_000 * trace + 1_000 * list, number % 2 == 0));
                    let bytes = [&[0xDD, 1][..], &id, &lists.flatten().collect::<Vec<_>>()].concat();
                    if stream.write_all(&bytes).await.is_err() {
                        break;
                    }
                    steps.add(1);
                }
                // The next one, without waiting until the daemon has read everything: its state takes memory.
                let _ = stream.shutdown().await;
            }
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn traces_with_undefined_ids() {
    // With 4 connections an address costs memory, rather than processor time.
    let options = &[("spans", "max_connections_per_address = 4")];
    withstand(Attack { options, start: start_meta_flood, steps: 44, honest_after: None }).await;
}

const BAD_CONNECTIONS: u64 = 40;
/// The default of `max_losses_per_second`, and one report for each reason.
const REPORTS_PER_SECOND: u64 = 100 + 8;

/// Small frames that are no messages; each is a loss.
fn start_bad_messages(attackers: &mut Attackers) {
    for _ in 0..BAD_CONNECTIONS {
        let (to, steps) = (attackers.target("ruby"), attackers.steps());
        attackers.spawn(async move {
            let frames = pack::frame(0, b"\xC1 bad").repeat(1000);
            let mut stream = connect(2, to).await.unwrap();
            stream.write_all(&pack::hello("PUB")).await.unwrap();
            while stream.write_all(&frames).await.is_ok() {
                steps.add(1000);
            }
            panic!("a bad message ended the connection");
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_messages_on_many_connections() {
    let outcome =
        withstand(Attack { options: &[], start: start_bad_messages, steps: 40_000, honest_after: None }).await;
    // Losses of a connection beyond a rate are reported together, so output does not grow with the attack, until all that
    // the attackers have sent is decoded.
    let seconds = outcome.duration.as_secs() + 1;
    let most = BAD_CONNECTIONS * REPORTS_PER_SECOND * seconds;
    assert!((outcome.losses.len() as u64) < most, "{} losses in {seconds} s, of at most {most}", outcome.losses.len());
    let lost: u64 =
        outcome.losses.iter().map(|loss| loss["attributes"]["tributary.loss.count"].as_u64().unwrap_or(1)).sum();
    // The rest was in buffers of the kernel when the daemon ended.
    assert!(lost >= outcome.attackers / 100, "{lost} messages are reported, {} were sent", outcome.attackers);
}

/// Requests of some KB of one address that expand to more than the limits, and to as much as is allowed. Those of many addresses
/// would fill the memory that all peers share; then sessions forget what they remember.
fn start_bombs(attackers: &mut Attackers) {
    let gzip = |bytes: usize| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(&vec![0; bytes]).unwrap();
        encoder.finish().unwrap()
    };
    let zlib = |bytes: usize| {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(&vec![0; bytes]).unwrap();
        encoder.finish().unwrap()
    };
    let put = |body: &[u8]| {
        let head = format!(
            "PUT /3/{} HTTP/1.1\r\nHost: h\r\nX-Endless-Content-Encoding: gzip\r\nContent-Length: {}\r\n\r\n",
            "0".repeat(128),
            body.len()
        );
        [head.as_bytes(), body].concat()
    };
    let requests = [
        ("desktops", put(&gzip(7 << 20))),
        ("desktops", put(&gzip(9 << 20))),
        ("zorka", form("zdata", &zlib(7 << 20))),
        ("zorka", form("zdata", &zlib(9 << 20))),
    ];
    let requests = Arc::new(requests);
    for number in 0..8 {
        let (requests, steps) = (requests.clone(), attackers.steps());
        let to = attackers.target(requests[number % 4].0);
        attackers.spawn(async move {
            loop {
                let Ok(mut stream) = connect(2, to).await else { continue };
                let _ = stream.write_all(&requests[number % 4].1).await;
                let _ = stream.read(&mut [0; 1]).await;
                steps.add(1);
            }
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compressed_bombs() {
    const MOST: &str = "max_inflated_bytes = \"8MiB\"";
    let options = &[("desktops", MOST), ("zorka", MOST)];
    withstand(Attack { options, start: start_bombs, steps: 16, honest_after: None }).await;
}

/// The pause of an attacker after a reset: meanwhile its own port becomes free again.
const RESET_PAUSE: Duration = Duration::from_millis(5);

/// Connections that are closed with a reset immediately, and more connections than an address may have.
fn start_connections(attackers: &mut Attackers) {
    for to in attackers.targets() {
        for number in 0..3 {
            let steps = attackers.steps();
            attackers.spawn(async move {
                let mut held = Vec::new();
                loop {
                    let Ok(mut stream) = connect(2 + number, to).await else { continue };
                    match held.len() {
                        0..80 => held.push(stream),
                        _ => {
                            let _ = stream.write_all(b"\0").await;
                            reset(stream);
                            tokio::time::sleep(RESET_PAUSE).await;
                        }
                    }
                    steps.add(1);
                }
            });
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_connections_than_an_address_may_have() {
    const PER_ADDRESS: &str = "max_connections = 256\nmax_connections_per_address = 64";
    let options = &[
        ("spans", PER_ADDRESS),
        ("java", PER_ADDRESS),
        ("desktops", PER_ADDRESS),
        ("zorka", PER_ADDRESS),
        ("ruby", PER_ADDRESS),
    ];
    withstand(Attack { options, start: start_connections, steps: 1500, honest_after: None }).await;
}
