//! A changed listener under load: what senders had sent is written, or a loss of their connection says that some is missing.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::endless_support::http::reply_to;
use crate::live::{Daemon, Stopped, config, listener, wire, within};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;
use tributary::simulate::endless::{AgentVersion, Machine};

const SENDERS: usize = 6;
/// The events of each sender, on average, that have arrived when the listener changes.
const BEFORE: u64 = 200;

/// The pause of a sender after ten spans: short enough for a socket that is never empty, and long enough for few events to parse
/// afterwards.
const SENDER_PAUSE: Duration = Duration::from_micros(300);

/// What a sender that never reconnects does when the listener ends its side of the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum AtEnd {
    /// It never reads: it sends until the system refuses.
    SendsOn,
    /// It reads: it completes what it is sending, and closes.
    Closes,
}

/// Sends spans over one connection until that has ended. Returns its address, and the number of events that it has sent.
fn sender(address: SocketAddr, at_end: AtEnd) -> JoinHandle<(String, u64)> {
    tokio::spawn(async move {
        let stream = TcpStream::connect(address).await.unwrap();
        let own = stream.local_addr().unwrap().to_string();
        let (mut reader, mut writer) = stream.into_split();
        let has_ended = Arc::<AtomicBool>::default();
        let noticed = has_ended.clone();
        let reading = tokio::spawn(async move {
            // The collector sends nothing, so this is the end, in any form.
            let _ = reader.read(&mut [0; 1]).await;
            noticed.store(true, Relaxed);
            reader
        });
        writer.write_all(&[wire::process(), wire::string(1, "work")].concat()).await.unwrap();
        // The event of the process.
        let mut sent = 1;
        while at_end == AtEnd::SendsOn || !has_ended.load(Relaxed) {
            if writer.write_all(&wire::span(1).repeat(10)).await.is_err() {
                break;
            }
            sent += 10;
            sleep(SENDER_PAUSE).await;
        }
        drop(writer);
        drop(reading.await);
        (own, sent)
    })
}

/// The events of each peer that are no losses, and whether a loss of it is among them.
fn by_peer(events: &[Value]) -> BTreeMap<&str, (u64, bool)> {
    let mut peers = BTreeMap::<_, (u64, bool)>::new();
    for event in events {
        let of_peer = peers.entry(event["origin"]["peer"].as_str().unwrap()).or_default();
        match event["kind"] == "loss" {
            true => of_peer.1 = true,
            false => of_peer.0 += 1,
        }
    }
    peers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sender_that_never_reconnects_has_all_its_events_written_or_a_loss_of_its_own() {
    let mut cut = 0;
    for (round, linger) in ["0s", "5ms", "500ms"].into_iter().cycle().take(6).enumerate() {
        let at_end = if round % 2 == 0 { AtEnd::SendsOn } else { AtEnd::Closes };
        // The port stays the same: that is what senders know.
        let mut daemon = Daemon::with(&format!("close_linger = \"{linger}\"\nspan_idle = \"1h\"")).await;
        let address = daemon.server.address().unwrap();
        let senders: Vec<_> = (0..SENDERS).map(|_| sender(address, at_end)).collect();
        let all = SENDERS as u64 * BEFORE;
        daemon.until_totals("all send", |counters| counters.events() > all && counters.connections == 6).await;
        let changed = listener(&format!("close_linger = \"{linger}\"\nspan_idle = \"1h\"\nmax_connections = 77"));
        let reloaded = within("reloading", daemon.server.reload(&config(&changed))).await.unwrap();
        assert_eq!(reloaded.changes, ["listener test restarted"]);
        let mut sent = Vec::new();
        for sender in senders {
            sent.push(within("the sender notices", sender).await.unwrap());
        }
        daemon.until_all_closed().await;
        let Stopped { events, totals } = daemon.stop().await;
        let peers = by_peer(&events);
        for (peer, sent) in &sent {
            let (written, has_loss) = peers.get(peer.as_str()).copied().unwrap_or_default();
            assert!(written <= *sent);
            assert!(
                written == *sent || has_loss,
                "round {round}, linger {linger}, {at_end:?}: {peer} has sent {sent}, {written} are written, and no loss says so"
            );
            cut += u64::from(has_loss);
        }
        assert!(totals.are_balanced(), "{totals:?}");
    }
    assert!(cut > 0, "some rounds cut senders off");
}

/// Uploads bundles one after the other, as the agent does: it keeps a bundle until the answer is 200, and connects again
/// when the connection ends without one. Returns the number of events.
async fn uploader(address: SocketAddr, number: u64, is_over: Arc<AtomicBool>) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let mut machine = Machine::new(7, number, now, AgentVersion::V3);
    let mut connection: Option<TcpStream> = None;
    let mut events = 0;
    while !is_over.load(Relaxed) {
        let upload = machine.upload(5).unwrap();
        let request = machine.request(&upload, "test").unwrap();
        loop {
            let stream = match &mut connection {
                Some(stream) => stream,
                None => connection.insert(TcpStream::connect(address).await.unwrap()),
            };
            let answer = match stream.write_all(&request).await {
                Ok(()) => reply_to(stream, false).await,
                Err(error) => Err(error),
            };
            match answer {
                Ok(reply) if reply.status == 200 => {
                    if reply.headers.get("connection").is_some_and(|value| value == "close") {
                        connection = None;
                    }
                    break;
                }
                Ok(reply) => assert_eq!(reply.status, 503),
                Err(_) => {}
            }
            connection = None;
        }
        events += upload.counts.events;
    }
    events
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_bundle_that_was_answered_200_around_a_reload_is_written_once() {
    let with = |options: &str| {
        format!(
            "[listeners.test]\nprotocol = \"endless\"\nlisten = \"127.0.0.1:0\"\nquarantine.dir = \"\"\n{options}\n"
        )
    };
    let mut daemon = Daemon::start(&with("")).await;
    let address = daemon.server.address().unwrap();
    let is_over = Arc::<AtomicBool>::default();
    let mut uploaders = JoinSet::new();
    for number in 0..4 {
        uploaders.spawn(uploader(address, number, is_over.clone()));
    }
    for round in 1..=10 {
        let before = daemon.counters().events();
        daemon.until_totals("uploads go on", |counters| counters.events() > before + 50).await;
        // What was delivered before is remembered by the exchange, which a changed listener begins without.
        let changed = config(&with(&format!("max_connections = {}", 100 + round)));
        let reloaded = within("reloading", daemon.server.reload(&changed)).await.unwrap();
        assert_eq!(reloaded.changes, ["listener test restarted"]);
    }
    is_over.store(true, Relaxed);
    let sent: u64 = within("the last answers", uploaders.join_all()).await.iter().sum();
    daemon.until_all_closed().await;
    let Stopped { events, .. } = daemon.stop().await;
    let mut ids = BTreeMap::<String, u32>::new();
    for event in events.iter().filter(|event| event["kind"] != "loss") {
        let key = [&event["origin"]["peer"], &event["name"], &event["time"], &event["attributes"]];
        *ids.entry(serde_json::to_string(&key).unwrap()).or_default() += 1;
    }
    let written: u64 = ids.values().map(|count| u64::from(*count)).sum();
    assert!(written >= sent, "{sent} events were answered 200, {written} are written");
    println!("{sent} sent, {written} written");
}
