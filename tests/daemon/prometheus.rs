//! The metrics, alerts and dashboard as Prometheus and Grafana see them.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::live::{until, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tributary::config::Config;
use tributary::server::Server;

/// The metrics of a daemon with every kind of listener and sink that has metrics of its own.
async fn metrics() -> String {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().display();
    let toml = format!(
        "[admin]\nlisten = \"127.0.0.1:0\"\n[listeners.spans]\nprotocol = \"datadog\"\nlisten = \"127.0.0.1:0\"\n\
         [listeners.desktops]\nprotocol = \"endless\"\nlisten = \"127.0.0.1:0\"\nquarantine.dir = \"{place}/quarantine\"\n\
         [sinks.archive]\ntype = \"file\"\npath = \"{place}/events.ndjson\"\n\
         [sinks.backend]\ntype = \"http\"\nendpoint = \"http://127.0.0.1:9/\"\nspool = {{ dir = \"{place}/spool\" }}\n"
    );
    let config = Config::parse("t.toml", &toml).unwrap().config;
    let server = Server::start(&config).await.unwrap();
    let address = server.admin_address().unwrap();
    // The sink has opened its spool.
    until("there are metrics of the spool", || (!server.accounting().remotes().is_empty()).then_some(())).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream
        .write_all(format!("GET /metrics HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n").as_bytes())
        .await
        .unwrap();
    let mut answer = String::new();
    within("an answer", stream.read_to_string(&mut answer)).await.unwrap();
    within("stopping", server.stop()).await;
    answer.split_once("\r\n\r\n").unwrap().1.to_owned()
}

fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("config").join(path)
}

/// The names of this daemon's metrics in a text.
fn names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| word.starts_with("tributary_") || word.starts_with("process_")).collect()
}

#[tokio::test]
async fn alerts_and_dashboard_use_only_metrics_that_exist() {
    let metrics = metrics().await;
    let mut known = BTreeSet::new();
    for line in metrics.lines() {
        match line.strip_prefix("# TYPE ").and_then(|line| line.split_once(' ')) {
            Some((name, "histogram")) => known.extend(["_bucket", "_sum", "_count"].map(|end| format!("{name}{end}"))),
            Some((name, _)) => drop(known.insert(name.to_owned())),
            None => {}
        }
    }
    for path in ["prometheus/tributary.rules.yml", "prometheus/tests.yml", "grafana/tributary.json"] {
        let text = std::fs::read_to_string(file(path)).unwrap();
        let used = names(&text);
        assert!(used.len() >= 5, "{path}: {used:?}");
        let unknown: Vec<_> = used.into_iter().filter(|name| !known.contains(*name)).collect();
        assert!(unknown.is_empty(), "{path} uses {unknown:?}");
    }
}

#[tokio::test]
async fn promtool_has_no_objection() {
    if Command::new("promtool").arg("--version").output().is_err() {
        println!("skipped: there is no promtool (Debian: prometheus)");
        return;
    }
    let metrics = metrics().await;
    let mut check = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    check.stdin.take().unwrap().write_all(metrics.as_bytes()).unwrap();
    let checked = check.wait_with_output().unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    for arguments in [["check", "rules", "tributary.rules.yml"], ["test", "rules", "tests.yml"]] {
        let run = Command::new("promtool").args(arguments).current_dir(file("prometheus")).output().unwrap();
        assert!(run.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&[run.stdout, run.stderr].concat()));
    }
}

#[test]
fn every_alert_has_a_test() {
    let [rules, tests] = ["tributary.rules.yml", "tests.yml"]
        .map(|name| std::fs::read_to_string(file("prometheus").join(name)).unwrap());
    let alerts: Vec<_> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() >= 14, "{alerts:?}");
    let fires = |alert: &str| tests.contains(&format!("alertname: {alert}\n        exp_alerts:\n"));
    let untested: Vec<_> = alerts.into_iter().filter(|alert| !fires(alert)).collect();
    assert!(untested.is_empty(), "{untested:?}");
}
