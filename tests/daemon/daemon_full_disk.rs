//! A live daemon whose disk is full, and then has space again.

use std::fs;
use std::future::pending;

use crate::live::{losses, until, until_handshake_timeout, within};
use crate::small_disk::SmallDisk;
use serde_json::Value;
use tributary::event::Kind;
use tributary::server::Server;
use tributary::simulate::datadog::DatadogDialect;
use tributary::simulate::{AgentKind, Amount, Plan};

const DISK_BYTES: usize = 32 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_slows_agents_down_and_nothing_is_lost_once_there_is_space() {
    let Some(disk) = SmallDisk::mount(DISK_BYTES) else { return };
    // Space for a few hundred events.
    disk.occupy(DISK_BYTES - (256 << 10));
    let (events, path) = (disk.path().join("events.ndjson"), disk.path().display());
    let limits = "span_idle = \"1s\"\nmessage_timeout = \"1s\"\nidle_timeout = \"1500ms\"\nmin_message_rate = 0\n\
                  handshake_timeout = \"2s\"";
    let sink = format!("[sinks.archive]\ntype = \"file\"\npath = \"{path}/events.ndjson\"\nbuffer_batches = 1");
    let server =
        Server::start(&crate::live::config(&format!("{}{sink}", crate::live::listener(limits)))).await.unwrap();
    let plan =
        Plan { to: server.address().unwrap(), amount: Amount::Events(20_000), rate: None, connections: 3, seed: 7 };
    let agents = tokio::spawn(tributary::simulate::run(AgentKind::Datadog(DatadogDialect::Exact), plan, pending()));
    let archive = || server.accounting().totals().sinks.remove(0);
    until("the sink reports that it cannot write", || archive().is_retrying.then_some(())).await;
    // Every other limit is shorter, so that every connection would have reached one.
    until_handshake_timeout(&server).await;
    let stuck = crate::live::counters(&server).bytes_in;
    let before = fs::read(&events).unwrap();
    assert!(before.ends_with(b"\n"), "the last record is whole");
    disk.release();
    let sent = within("the agents are done", agents).await.unwrap().unwrap();
    assert!(stuck < sent.bytes, "the daemon had stopped reading");
    // An agent does not wait for the daemon to close; its last bytes may still be in the kernel.
    let is_over = || crate::live::counters(&server).connections_open == 0;
    until("every connection is over", || is_over().then_some(())).await;
    let totals = within("stopping", server.stop()).await;
    assert!(totals.are_balanced(), "{totals:?}");
    assert_eq!((totals.listeners[0].bytes_in, totals.listeners[0].lost()), (sent.bytes, 0), "{totals:?}");
    assert_eq!(totals.listeners[0].count(Kind::Loss), 0);
    assert_eq!((totals.sinks[0].written, totals.failed()), (sent.events, 0), "{totals:?}");
    let after = fs::read_to_string(&events).unwrap();
    assert!(after.as_bytes().starts_with(&before));
    let written: Vec<Value> = after.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(written.len() as u64, sent.events);
    assert!(losses(&written).is_empty());
}
