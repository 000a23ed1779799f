//! A new configuration for a running daemon: what has changed is replaced, everything else keeps running, nothing is lost.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;

use crate::live::binary::{Binary, free_address, tributary};
use crate::live::{Daemon, assert_is_closed, config, losses, until, until_closed, wire, within};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tributary::server::Server;

fn listener(name: &str, address: SocketAddr, options: &str) -> String {
    format!("[listeners.{name}]\nprotocol = \"datadog\"\nlisten = \"{address}\"\n{options}\n")
}

fn file(name: &str, path: &Path, options: &str) -> String {
    format!("[sinks.{name}]\ntype = \"file\"\npath = {:?}\n{options}\n", path.display().to_string())
}

/// Sends a span; each name has a string id of its own.
async fn send_span(stream: &mut TcpStream, name: &str) {
    let id = 1 + name.bytes().fold(0, |id: u64, byte| (id * 31 + u64::from(byte)) % 60_000);
    stream.write_all(&wire::named_span(id, name)).await.unwrap();
}

/// A connection that has sent its first span.
async fn speaker(address: SocketAddr, name: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(&wire::process()).await.unwrap();
    send_span(&mut stream, name).await;
    stream
}

fn names(events: &[Value]) -> Vec<String> {
    let spans = events.iter().filter(|event| event["kind"] == "span");
    spans.map(|span| span["name"].as_str().unwrap().to_owned()).collect()
}

fn written(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    names(&text.lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<_>>())
}

const QUICK: &str = "span_idle = \"10ms\"";

#[tokio::test]
async fn unchanged_listeners_keep_their_connections_and_changed_ones_restart() {
    let (same, changed, gone, new) = (free_address(), free_address(), free_address(), free_address());
    let before = [("same", same), ("changed", changed), ("gone", gone)];
    let text: String = before.iter().map(|(name, address)| listener(name, *address, QUICK)).collect();
    let mut daemon = Daemon::start(&text).await;
    let mut kept = speaker(same, "same-1").await;
    let mut ended = speaker(changed, "changed-1").await;
    let mut dropped = speaker(gone, "gone-1").await;
    daemon.until("three spans", |events| names(events).len() == 3).await;

    let text = [
        listener("new", new, QUICK),
        listener("same", same, QUICK),
        listener("changed", changed, "span_idle = \"11ms\""),
    ];
    let reloaded = daemon.server.reload(&config(&text.concat())).await.unwrap();
    assert_eq!(reloaded.changes, ["listener changed restarted", "listener gone stopped", "listener new started"]);
    assert!(reloaded.failures.is_empty());
    let bound: Vec<_> = daemon.server.addresses().iter().map(|bound| (&*bound.name, bound.address)).collect();
    assert_eq!(bound, [("new", new), ("same", same), ("changed", changed)]);

    assert_is_closed(&mut ended).await;
    assert_is_closed(&mut dropped).await;
    send_span(&mut kept, "same-2").await;
    let _again = speaker(changed, "changed-2").await;
    let _first = speaker(new, "new-1").await;
    daemon.until("six spans", |events| names(events).len() == 6).await;
    until_closed(gone).await;
    let stopped = daemon.stop().await;
    let mut all = names(&stopped.events);
    all.sort();
    assert_eq!(all, ["changed-1", "changed-2", "gone-1", "new-1", "same-1", "same-2"]);
    // Counters continue, those of removed listeners too.
    let connections: Vec<_> = stopped.totals.listeners.iter().map(|one| (one.name.as_str(), one.connections)).collect();
    assert_eq!(connections, [("same", 1), ("changed", 2), ("gone", 1), ("new", 1)]);
}

#[tokio::test]
async fn a_configuration_that_cannot_be_used_changes_nothing() {
    let (address, other) = (free_address(), free_address());
    let mut daemon = Daemon::start(&listener("a", address, QUICK)).await;
    let mut peer = speaker(address, "before").await;
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let impossible = [
        listener("b", other, QUICK),
        listener("c", taken.local_addr().unwrap(), QUICK),
        listener("d", free_address(), "tls = { cert = \"/nowhere/c.pem\", key = \"/nowhere/k.pem\" }"),
    ];
    let error = daemon.server.reload(&config(&impossible.concat())).await.unwrap_err().to_string();
    assert!(error.contains("cannot start listener c on"), "{error}");
    until_closed(other).await;
    send_span(&mut peer, "after").await;
    daemon.until("both spans", |events| names(events) == ["before", "after"]).await;
    assert!(daemon.server.reload(&config(&listener("a", address, QUICK))).await.unwrap().changes.is_empty());
    daemon.stop().await;
}

#[tokio::test]
async fn a_rejected_configuration_adds_no_counters() {
    let address = free_address();
    let mut daemon = Daemon::start(&listener("a", address, QUICK)).await;
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let impossible = [listener("b", free_address(), QUICK), listener("c", taken.local_addr().unwrap(), QUICK)];
    assert!(daemon.server.reload(&config(&impossible.concat())).await.is_err());
    let names = |server: &Server| {
        server.accounting().totals().listeners.into_iter().map(|totals| totals.name).collect::<Vec<_>>()
    };
    assert_eq!(names(&daemon.server), ["a"]);
    let possible = [listener("a", address, QUICK), listener("b", free_address(), QUICK)];
    daemon.server.reload(&config(&possible.concat())).await.unwrap();
    assert_eq!(names(&daemon.server), ["a", "b"]);
    daemon.stop().await;
}

fn zico(name: &str, state_dir: &Path, options: &str) -> String {
    let state_dir = state_dir.display().to_string();
    let quarantine = "quarantine.dir = \"\"";
    format!(
        "[listeners.{name}]\nprotocol = \"zico\"\nlisten = \"127.0.0.1:0\"\nstate_dir = {state_dir:?}\n{quarantine}\n{options}\n"
    )
}

/// A grace period that no test waits for.
const NEVER: &str = "[limits]\nshutdown_grace = \"1h\"\n";

#[tokio::test]
async fn a_new_listener_whose_agents_cannot_be_stored_is_rejected() {
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join("file"), "").unwrap();
    let before = listener("a", free_address(), QUICK);
    let mut daemon = Daemon::start(&format!("{NEVER}{before}")).await;
    let with = |dir: &str| config(&format!("{NEVER}{before}{}", zico("z", &home.path().join(dir), "")));
    let refused = within("the refusal", daemon.server.reload(&with("file"))).await.unwrap_err().to_string();
    assert!(refused.contains("the agents of listener z") && refused.contains("file"), "{refused}");
    assert_eq!(daemon.server.accounting().totals().listeners.len(), 1);
    let reloaded = daemon.server.reload(&with("directory")).await.unwrap();
    assert_eq!(reloaded.changes, ["listener z started"]);
    daemon.stop().await;
}

#[tokio::test]
async fn a_changed_listener_takes_over_its_agents_after_its_connections_have_ended() {
    let home = tempfile::tempdir().unwrap();
    let mut daemon = Daemon::start(&format!("{NEVER}{}", zico("z", home.path(), ""))).await;
    // Its connection uses the store until it has ended.
    let mut peer = daemon.connect().await;
    daemon.until_totals("it is there", |counters| counters.connections_open == 1).await;
    let other = format!("{NEVER}{}", zico("z", home.path(), "session_timeout = \"2h\""));
    let reloaded = within("reloading", daemon.server.reload(&config(&other))).await.unwrap();
    assert_eq!(reloaded.changes, ["listener z restarted"]);
    assert!(reloaded.failures.is_empty(), "{:?}", reloaded.failures);
    assert_is_closed(&mut peer).await;
    daemon.stop().await;
}

#[tokio::test]
async fn sinks_are_added_removed_and_changed_under_traffic_without_loss() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let address = free_address();
    let with = |sinks: &str| config(&format!("{}{sinks}", listener("a", address, QUICK)));
    let steady = file("steady", &path("steady.ndjson"), "");
    let mut server = Server::start(&with(&format!("{steady}{}", file("other", &path("1.ndjson"), "")))).await.unwrap();
    let talking = tokio::spawn(async move {
        let mut peer = speaker(address, "span-0").await;
        for number in 1..400 {
            send_span(&mut peer, &format!("span-{number}")).await;
            tokio::task::yield_now().await;
        }
        peer.shutdown().await.unwrap();
    });
    for number in 2..6 {
        let other = file("other", &path(&format!("{number}.ndjson")), "buffer_batches = 2");
        let reloaded = within("reloading", server.reload(&with(&format!("{steady}{other}")))).await.unwrap();
        assert_eq!(reloaded.changes, ["sink other restarted"]);
    }
    within("all is sent", talking).await.unwrap();
    let is_all_written = || (written(&path("steady.ndjson")).len() == 400).then_some(());
    until("400 spans", is_all_written).await;
    let reloaded = server.reload(&with(&steady)).await.unwrap();
    assert_eq!(reloaded.changes, ["sink other stopped"]);
    let totals = server.stop().await;
    assert!(totals.are_balanced(), "{totals:?}");
    let in_parts: Vec<_> = (1..6).flat_map(|number| written(&path(&format!("{number}.ndjson")))).collect();
    assert_eq!(in_parts, written(&path("steady.ndjson")));
    let events: Vec<_> = totals.sinks.iter().map(|sink| (sink.name.as_str(), sink.events, sink.failed)).collect();
    let all = totals.listeners[0].events();
    assert_eq!(events, [("steady", all, 0), ("other", all, 0)]);
}

#[tokio::test]
async fn the_admin_endpoint_moves_and_shows_new_listeners() {
    let address = free_address();
    let with = |admin: SocketAddr, rest: &str| config(&format!("[admin]\nlisten = \"{admin}\"\n{rest}"));
    let (first, second) = (free_address(), free_address());
    let mut server = Server::start(&with(first, &listener("a", address, QUICK))).await.unwrap();
    let ruby = "[listeners.ruby]\nprotocol = \"rbkit\"\nagents = [{ request = \"127.0.0.1:1\" }]\n";
    let reloaded = server.reload(&with(second, ruby)).await.unwrap();
    assert_eq!(reloaded.changes, ["listener a stopped", "listener ruby started", "admin endpoint restarted"]);
    until_closed(first).await;
    until_closed(address).await;
    assert_eq!(server.admin_address(), Some(second));
    assert_eq!(server.dialled().len(), 1);
    server.stop().await;
}

#[tokio::test]
async fn a_changed_listener_reads_what_its_connections_send_until_they_close() {
    let address = free_address();
    let with = |options: &str| listener("a", address, &format!("{QUICK}\nclose_linger = \"1m\"\n{options}"));
    let mut daemon = Daemon::start(&with("")).await;
    let mut peer = speaker(address, "before").await;
    daemon.until("the span", |events| names(events) == ["before"]).await;
    let changed = config(&with("max_connections = 7"));
    let reloaded = within("reloading", daemon.server.reload(&changed)).await.unwrap();
    assert_eq!(reloaded.changes, ["listener a restarted"]);
    // The peer notices the end only now, and has one more span to send.
    assert_eq!(within("the daemon ends its side", peer.read(&mut [0; 1])).await.unwrap(), 0);
    send_span(&mut peer, "after").await;
    peer.shutdown().await.unwrap();
    daemon.until("both spans", |events| names(events) == ["before", "after"]).await;
    let stopped = daemon.stop().await;
    assert!(losses(&stopped.events).is_empty(), "{:?}", stopped.events);
}

#[tokio::test]
async fn a_connection_that_a_changed_listener_cuts_off_is_a_loss() {
    let address = free_address();
    let with = |options: &str| listener("a", address, &format!("{QUICK}\nclose_linger = \"50ms\"\n{options}"));
    let mut daemon = Daemon::start(&with("")).await;
    let mut peer = speaker(address, "before").await;
    daemon.until("the span", |events| names(events) == ["before"]).await;
    daemon.server.reload(&config(&with("max_connections = 7"))).await.unwrap();
    // It keeps its side open.
    assert_is_closed(&mut peer).await;
    let events = daemon.until("the loss", |events| !losses(events).is_empty()).await;
    let loss = losses(&events)[0];
    assert_eq!((&loss["reason"], &loss["bytes"]), (&"failed".into(), &0.into()));
    assert!(loss["detail"].as_str().unwrap().starts_with("we closed the connection while the peer kept it open"));
    daemon.stop().await;
}

#[tokio::test]
async fn connections_that_wait_to_be_accepted_by_a_removed_listener_are_counted_as_refused() {
    let (address, other) = (free_address(), free_address());
    let kept = listener("b", other, QUICK);
    let with = format!("{kept}{}", listener("a", address, "max_connections = 1"));
    let mut daemon = Daemon::start(&with).await;
    let _first = speaker(address, "first").await;
    daemon.until("the span", |events| names(events) == ["first"]).await;
    let mut waiting = speaker(address, "never read").await;
    daemon.server.reload(&config(&kept)).await.unwrap();
    assert_is_closed(&mut waiting).await;
    let stopped = daemon.stop().await;
    let refused: Vec<_> = stopped.totals.listeners.iter().map(|one| (one.name.as_str(), one.refused)).collect();
    assert_eq!(refused, [("b", 0), ("a", 1)]);
}

#[tokio::test]
async fn a_changed_number_of_threads_is_reported_to_need_a_restart() {
    let text = listener("a", free_address(), QUICK);
    let mut daemon = Daemon::start(&format!("limits.threads = 2\n{text}")).await;
    for _ in 0..2 {
        let reloaded = daemon.server.reload(&config(&format!("limits.threads = 3\n{text}"))).await.unwrap();
        assert!(reloaded.changes.is_empty(), "{reloaded}");
        assert_eq!(reloaded.stale, ["limits.threads = 3 needs a restart: 2 threads run until then"]);
    }
    let reloaded = daemon.server.reload(&config(&format!("limits.shutdown_grace = \"9s\"\n{text}"))).await.unwrap();
    assert_eq!(reloaded.changes, ["limits changed"]);
    daemon.stop().await;
}

// ---- Several files ----

#[test]
fn with_watch_a_new_file_of_an_included_directory_is_loaded_and_a_removed_one_is_unloaded() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    fs::create_dir(path("conf.d")).unwrap();
    let main = "include = [\"conf.d/*.toml\"]\n[reload]\nwatch = true\n[admin]\nlisten = \"\"\n[sinks.s]\ntype = \"discard\"\n";
    fs::write(path("main.toml"), format!("{main}{}", listener("a", free_address(), ""))).unwrap();
    let daemon = Binary::start(tributary(&["run", "--config", path("main.toml").to_str().unwrap()]));
    daemon.address("a");
    fs::write(path("b.new"), listener("b", free_address(), "")).unwrap();
    fs::rename(path("b.new"), path("conf.d/b.toml")).unwrap();
    daemon.until_stderr("listening listener=\"b\"");
    fs::remove_file(path("conf.d/b.toml")).unwrap();
    daemon.until_stderr("listener b stopped");
    daemon.signal("TERM");
    assert_eq!(daemon.end().code, Some(0));
}
