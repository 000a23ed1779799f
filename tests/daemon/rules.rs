//! The rules of sinks in a daemon: its books across a reload, its metrics, its answers, and keys that change.

use std::fs;
use std::path::Path;

use crate::endless_support::cases;
use crate::endless_support::http::{ask, plain};
use crate::live::binary::{Binary, run, tributary, until};
use crate::live::{config, connect, send_all, wire, within};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tributary::server::Server;

const LISTENER: &str =
    "[admin]\nlisten = \"127.0.0.1:0\"\n[listeners.test]\nprotocol = \"datadog\"\nlisten = \"127.0.0.1:0\"\n";

fn file_sink(name: &str, directory: &Path, rules: &str) -> String {
    format!("[sinks.{name}]\ntype = \"file\"\npath = \"{}/{name}.ndjson\"\n{rules}\n", directory.display())
}

fn events(directory: &Path, sink: &str) -> Vec<Value> {
    let text = fs::read_to_string(directory.join(format!("{sink}.ndjson"))).unwrap_or_default();
    let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    whole.map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The numbers in a line of the books.
fn numbers(line: &str) -> Vec<u64> {
    line.split(' ').filter_map(|word| word.split_once('=')?.1.parse().ok()).collect()
}

#[test]
fn the_books_of_a_daemon_with_rules_add_up_across_a_reload() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.toml");
    let write = |rules: &str| {
        let sinks = file_sink("all", directory.path(), "") + &file_sink("some", directory.path(), rules);
        fs::write(&path, format!("{LISTENER}{sinks}")).unwrap();
    };
    write("where = [{ kind = \"span\", min_duration = \"20ms\" }]\nunless = [{ status = \"error\" }]");
    let daemon = Binary::start(tributary(&["run", "--config", path.to_str().unwrap()]));
    let address = daemon.address("test").to_string();
    let send = |before: usize, seed: &str| {
        let sent = run(&["simulate", "datadog", "--to", &address, "--count", "2000", "--seed", seed]).sent();
        let count = sent["events"].as_u64().unwrap() as usize;
        until("all events are written", || (events(directory.path(), "all").len() == before + count).then_some(()));
        before + count
    };
    let first = send(0, "1");
    write(
        "where = [{ kind = \"span\" }]\nunless = [{ name = \"none\" }, { status = \"error\" }]\nsample = { keep = 0.5 }",
    );
    daemon.signal("HUP");
    daemon.until_stderr("sink some restarted");
    send(first, "2");
    daemon.signal("TERM");
    let ended = daemon.end();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);

    let (all, some) = (events(directory.path(), "all"), events(directory.path(), "some"));
    let is_good = |event: &Value| event["kind"] == "span" && event["span"]["status"] != "error";
    let is_slow = |event: &Value| is_good(event) && event["span"]["duration_ns"].as_u64().unwrap() >= 20_000_000;
    let (before, after) = all.split_at(first);
    let (slow, good) = (before.iter().filter(|event| is_slow(event)), after.iter().filter(|event| is_good(event)));
    let (slow, good): (Vec<_>, Vec<_>) = (slow.collect(), good.collect());
    assert!(!slow.is_empty() && slow.len() < first / 2, "{} of {first} are slow", slow.len());
    assert!(some.iter().take(slow.len()).eq(slow.iter().copied()));
    // After the reload: whole traces.
    let traces = |events: &[&Value]| -> std::collections::BTreeSet<String> {
        events.iter().map(|event| event["span"]["trace_id"].as_str().unwrap().to_owned()).collect()
    };
    let sampled: Vec<_> = some.iter().skip(slow.len()).collect();
    let kept = traces(&sampled);
    let expected: Vec<_> =
        good.iter().copied().filter(|event| kept.contains(event["span"]["trace_id"].as_str().unwrap())).collect();
    assert!(sampled.iter().eq(expected.iter()), "a trace is kept or left out as a whole");
    let share = kept.len() as f64 / traces(&good).len() as f64;
    assert!((0.25..0.75).contains(&share), "{share}");

    let last = |of: &str| ended.stderr.lines().rfind(|line| line.contains(of)).unwrap_or_default();
    let line = last("sink totals sink=\"some\"");
    let [events, written, shed, failed, filtered] = numbers(line)[..] else { panic!("{line}") };
    assert_eq!((events, shed, failed), (all.len() as u64, 0, 0), "{line}");
    assert_eq!((written, events), (some.len() as u64, written + filtered), "{line}");
    assert!(line.contains(" filtered="), "{line}");
    assert!(last("sink totals sink=\"all\"").ends_with(" failed=0"), "a sink without rules has no such column");
}

async fn metrics(server: &Server) -> String {
    let mut stream = TcpStream::connect(server.admin_address().unwrap()).await.unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    within("the answer", stream.read_to_string(&mut answer)).await.unwrap();
    answer
}

#[tokio::test]
async fn metrics_tell_how_many_events_each_rule_has_left_out() {
    let rules = "where = [{ name = 'a' }, { name = 'b' }]\nunless = [{ name = 'none' }, { name = 'b' }]\n\
                 sample = { keep = 1.0 }";
    let toml = format!("{LISTENER}span_idle = \"10ms\"\n[sinks.some]\ntype = \"discard\"\n{rules}\n");
    let server = Server::start(&config(&toml)).await.unwrap();
    let spans = ["a", "b", "c", "c"].iter().zip(1..).map(|(name, id)| wire::named_span(id, name));
    let bytes = [vec![wire::process()], spans.collect()].concat().concat();
    send_all(connect(&server).await, &bytes).await;
    let metrics = metrics(&server).await;
    // The process is an event too, a log that no condition of `where` matches.
    for (series, value) in [
        ("tributary_filtered_events_total{sink=\"some\",rule=\"where\"}", 3),
        ("tributary_filtered_events_total{sink=\"some\",rule=\"unless.1\"}", 0),
        ("tributary_filtered_events_total{sink=\"some\",rule=\"unless.2\"}", 1),
        ("tributary_filtered_events_total{sink=\"some\",rule=\"sample\"}", 0),
        ("tributary_sink_events_total{sink=\"some\",outcome=\"filtered\"}", 4),
    ] {
        assert!(metrics.contains(&format!("\n{series} {value}\n")), "{series} in\n{metrics}");
    }
    let totals = server.stop().await;
    assert!(totals.are_balanced(), "{totals:?}");
    assert_eq!(totals.sinks[0].to_string(), "sink some: 5 events = 1 written + 0 shed + 0 failed + 4 filtered");
}

#[tokio::test]
async fn a_request_whose_events_are_all_left_out_is_acknowledged() {
    let directory = tempfile::tempdir().unwrap();
    let sink = file_sink("archive", directory.path(), "where = [{ kind = \"sample\" }]");
    let listener = "[listeners.desktops]\nprotocol = \"endless\"\nlisten = \"127.0.0.1:0\"\nquarantine.dir = \"\"\n";
    let server = Server::start(&config(&format!("{listener}{sink}"))).await.unwrap();
    let body = cases().into_iter().find(|case| case.name == "v3-mixed").unwrap().body;
    let mut stream = connect(&server).await;
    assert_eq!(within("the answer", ask(&mut stream, &plain(3, &body))).await.status, 200);
    drop(stream);
    let totals = server.stop().await;
    assert!(totals.are_balanced() && totals.sinks[0].written == 0, "{totals:?}");
    assert_eq!(totals.sinks[0].filtered(), totals.sinks[0].events);
    assert!(totals.sinks[0].events > 0 && events(directory.path(), "archive").is_empty());
}

#[tokio::test]
async fn a_reload_reads_the_keys_of_hashes_again_and_keeps_the_old_ones_if_it_cannot() {
    let directory = tempfile::tempdir().unwrap();
    let key = directory.path().join("key");
    let hash = format!("hash = {{ attributes = [\"service.name\"], key_file = \"{}\" }}", key.display());
    let toml = format!("{LISTENER}span_idle = \"10ms\"\n{}", file_sink("out", directory.path(), &hash));
    let error = Server::start(&config(&toml)).await.unwrap_err().to_string();
    assert!(error.starts_with(&format!("cannot start sink out: key_file {}: ", key.display())), "{error}");

    fs::write(&key, "one\n").unwrap();
    let mut server = Server::start(&config(&toml)).await.unwrap();
    assert!(server.reload(&config(&toml)).await.unwrap().changes.is_empty());
    fs::write(&key, "two\n").unwrap();
    assert_eq!(server.reload(&config(&toml)).await.unwrap().changes, ["sink out restarted"]);
    assert!(server.reload(&config(&toml)).await.unwrap().changes.is_empty());
    fs::remove_file(&key).unwrap();
    let error = server.reload(&config(&toml)).await.unwrap_err().to_string();
    assert!(error.starts_with("cannot start sink out: key_file "), "{error}");
    send_all(connect(&server).await, &[wire::process(), wire::named_span(1, "a")].concat()).await;
    assert!(server.stop().await.are_balanced());
    assert_eq!(events(directory.path(), "out").len(), 2, "the sink of before still runs");
}
