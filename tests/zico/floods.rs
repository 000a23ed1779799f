//! Memory under floods: sessions, registrations, traces that never end, and bombs at the same time.
//!
//! One test in a process of its own, so that no other test affects the figure.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;

use crate::hostile_support::{is_in_own_process, process_memory};
use crate::live::{connect, within};
use crate::zico_support::cbor::{gen1, gen2, reference, text};
use crate::zico_support::client::{ask, form, post, try_ask};
use flate2::Compression;
use flate2::write::ZlibEncoder;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tributary::server::Server;

const MIB: u64 = 1 << 20;
/// The budget of connections, sessions and bodies.
const PEER_BYTES: u64 = 24 * MIB;
/// The budget, and the memory of components, events in flight and the test itself.
const MOST_BYTES: u64 = PEER_BYTES + 64 * MIB;

/// Sends requests one after the other; returns how often each status was answered. 0: the daemon closed the connection.
async fn post_all(server: &Server, requests: impl Iterator<Item = Vec<u8>>) -> BTreeMap<u16, u64> {
    let mut statuses = BTreeMap::new();
    let mut stream = None;
    for request in requests {
        let mut connection = match stream.take() {
            Some(connection) => connection,
            None => connect(server).await,
        };
        let status = try_ask(&mut connection, &request).await.unwrap_or(0);
        // An agent that was refused in the middle of a body tries again on another connection.
        stream = [200, 201, 202].contains(&status).then_some(connection);
        *statuses.entry(status).or_default() += 1;
    }
    statuses
}

fn registration(number: u64) -> Vec<u8> {
    let attrs: serde_json::Map<String, Value> =
        (0..60).map(|key| (format!("k{key}"), json!("v".repeat(200)))).collect();
    let body =
        json!({"rkey": "k", "name": format!("host-{number}"), "app": "a".repeat(1000), "env": "e", "attrs": attrs});
    post("/agent/register", &[("Content-Type", "application/json")], body.to_string().as_bytes())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn floods_of_every_kind_fit_into_bounded_memory_and_honest_agents_are_served() {
    if !is_in_own_process(floods_of_every_kind_fit_into_bounded_memory_and_honest_agents_are_served) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let options = format!("max_sessions = 500\nmax_agents_per_address = 300\nstate_dir = \"{}\"", dir.path().display());
    let listener = crate::zico_support::client::listener(dir.path(), &options);
    let toml = format!("{listener}[sinks.none]\ntype = \"discard\"\n");
    let server = Server::start(&crate::live::config_with_memory(&toml, PEER_BYTES)).await.unwrap();
    let before = process_memory("VmRSS");

    // An honest agent of each kind, before and after.
    let definitions = [gen2::string(1, "a.B"), gen2::string(2, "run"), gen2::method(1, [1, 2, 0])].concat();
    let record = [gen2::open(1, 1), gen2::close(2, 1, None)].concat();
    let own = [("X-Zorka-Session-Id", "60d"), ("X-Zorka-Session-Reset", "true")];
    let honest = || [post("/agent/submit/agd", &own, &definitions), post("/agent/submit/trc", &own[..1], &record)];
    assert_eq!(post_all(&server, honest().into_iter()).await, BTreeMap::from([(202, 2)]));

    // Sessions with many definitions.
    let much: Vec<u8> = (0..2000).flat_map(|id| gen2::string(id, &"x".repeat(50))).collect();
    let flood = (0..1000).map(|number| {
        let session = format!("f100d{number}");
        post("/agent/submit/agd", &[("X-Zorka-Session-Id", &session), ("X-Zorka-Session-Reset", "true")], &much)
    });
    let statuses = post_all(&server, flood).await;
    assert!(statuses.keys().all(|status| [0, 202, 503].contains(status)), "{statuses:?}");

    // Registrations: over the limit of the address they replace agents of the same address that never submitted.
    let statuses = post_all(&server, (0..600).map(registration)).await;
    assert_eq!(statuses, BTreeMap::from([(201, 600)]));
    let mut stream = connect(&server).await;
    let answer = ask(&mut stream, &registration(599)).await;
    assert_eq!(answer.status, 200);
    let agent: Value = serde_json::from_str(&answer.body).unwrap();
    let opened = ask(&mut stream, &post("/agent/session", &[], answer.body.as_bytes())).await;
    let opened: Value = serde_json::from_str(&opened.body).unwrap();

    // Traces in parts that never end, with attributes.
    let session = [
        ("X-Zorka-Agent-UUID", agent["uuid"].as_str().unwrap()),
        ("X-Zorka-Session-UUID", opened["session"].as_str().unwrap()),
    ];
    let symbols = gen1::string(1, &"k".repeat(100), 0);
    assert_eq!(ask(&mut stream, &post("/agent/submit/agd", &session, &symbols)).await.status, 202);
    let part = [gen1::open(1, 1), gen1::attributes(&[(reference(1), text(&"v".repeat(1000)))])].concat().repeat(20);
    let parts = (0..3000).map(|number| {
        let id = format!("{number:08x}-0000-4000-8000-000000000000");
        post("/agent/submit/trc", &[session[0], session[1], ("X-Zorka-Trace-UUID", &id)], &part)
    });
    let statuses = post_all(&server, parts).await;
    assert!(statuses.keys().all(|status| [0, 202, 503].contains(status)) && statuses[&202] > 60, "{statuses:?}");

    // Bombs and large bodies at the same time.
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(&gen1::string(1, "a", 0).repeat(2 << 20)).unwrap();
    let bomb = form("zdata", &encoder.finish().unwrap());
    let deep = post("/agent/submit/trc", &own[..1], &gen2::open(1, 1).repeat(500_000));
    // Shared, so that the test's own memory is not measured.
    let requests = [Arc::new(bomb), Arc::new(deep)];
    let mut tasks = JoinSet::new();
    for number in 0..100 {
        let (mut stream, request) = (connect(&server).await, requests[number % 2].clone());
        tasks.spawn(async move { try_ask(&mut stream, &request).await });
    }
    for status in within("every answer", tasks.join_all()).await {
        assert!(status.is_none_or(|status| [202, 401, 413, 503].contains(&status)), "{status:?}");
    }

    let used = process_memory("VmHWM").saturating_sub(before);
    println!("peak: {} MiB more than before", used / MIB);
    assert!(used < MOST_BYTES, "{} MiB over {} MiB before", used / MIB, before / MIB);
    assert_eq!(post_all(&server, honest().into_iter()).await, BTreeMap::from([(202, 2)]));
    drop(stream);
    let totals = within("stopping", server.stop()).await;
    assert!(totals.are_balanced() && totals.listeners[0].buffered() == 0, "{totals:?}");
}
