//! A thousand connections, bombs, and bodies over every limit: memory stays bounded, and the answers are right.
//!
//! One test in a process of its own, so that no other test affects the figure.

use std::io::Write;

use crate::endless_support::cases;
use crate::endless_support::http::{ask, listener, plain, put, sha512};
use crate::hostile_support::{is_in_own_process, process_memory};
use crate::live::{Daemon, within};
use flate2::Compression;
use flate2::write::GzEncoder;
use tokio::net::TcpStream;

const CONNECTIONS: usize = 1000;
const MIB: u64 = 1 << 20;

/// The budget of connections and their bodies.
const PEER_BYTES: u64 = CONNECTIONS as u64 * (80 << 10) + 16 * MIB;
/// The budget, and the memory of components and the test itself.
const MOST_BYTES: u64 = PEER_BYTES + 48 * MIB;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_connections_and_their_bodies_fit_into_bounded_memory() {
    if !is_in_own_process(a_thousand_connections_and_their_bodies_fit_into_bounded_memory) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let options = "max_connections = 2000\nmax_inflated_bytes = \"4MiB\"\nmax_body_bytes = \"1MiB\"";
    let daemon = Daemon::on(&crate::live::config_with_memory(&listener(directory.path(), options), PEER_BYTES)).await;
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(&vec![0; 50_000_000]).unwrap();
    let bomb = put(3, &sha512(b""), "X-Endless-Content-Encoding: gzip\r\n", &encoder.finish().unwrap());
    let good = cases().into_iter().find(|case| case.name == "v3-empty").unwrap().request;
    let oversized = plain(3, &vec![7; 1 << 20 | 1]);
    let unreadable = plain(3, &vec![7; 300 << 10]);
    let before = process_memory("VmRSS");

    let mut streams: Vec<TcpStream> = Vec::new();
    for _ in 0..CONNECTIONS {
        streams.push(daemon.connect().await);
    }
    // Each connection sends twice, so that it is kept open; the first requests differ.
    let mut tasks = tokio::task::JoinSet::new();
    for (number, mut stream) in streams.into_iter().enumerate() {
        let (first, allowed): (&[u8], &[u16]) = match number % 10 {
            0 => (&bomb, &[413, 503]),
            1 => (&unreadable, &[200, 503]),
            _ => (&good, &[200]),
        };
        let (first, good) = (first.to_vec(), good.clone());
        tasks.spawn(async move {
            let status = within("an answer", ask(&mut stream, &first)).await.status;
            assert!(allowed.contains(&status), "{number}: {status}");
            // After a refusal in the middle of a body the connection is closed.
            if status != 503 {
                assert_eq!(within("an answer", ask(&mut stream, &good)).await.status, 200);
            }
            (stream, status)
        });
    }
    let streams = within("every answer", tasks.join_all()).await;
    let kept = streams.iter().filter(|(_, status)| *status != 503).count() as u64;
    assert!(kept > 700 && daemon.counters().connections_open >= kept, "{kept} are kept");
    let mut stream = daemon.connect().await;
    assert_eq!(within("the answer", ask(&mut stream, &oversized)).await.status, 413);
    let used = process_memory("VmHWM").saturating_sub(before);
    assert!(used < MOST_BYTES, "{} MiB over {} MiB before", used / MIB, before / MIB);
    drop(streams);
    let stopped = daemon.stop().await;
    let totals = &stopped.totals.listeners[0];
    assert_eq!(totals.buffered(), 0);
    println!("peak: {} MiB more than before; {totals:?}", used / MIB);
}
