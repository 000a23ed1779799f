//! The daemon with a spool while its destination is away: it stops, restarts, finds damage, and says what waits. Each test has
//! the name of a failure that users of other collectors have reported.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use serde_json::Value;

use crate::http_server::{self, Connection};
use crate::live::binary::{Binary, Ended, run, tributary, until};

/// An HTTP server on a thread of its own, which answers with a status that the test sets.
#[derive(Clone)]
pub(crate) struct Receiver {
    pub(crate) address: SocketAddr,
    /// The status, and the lines that were answered with 200.
    pub(crate) state: Arc<Mutex<(u16, Vec<String>)>>,
}

impl Receiver {
    pub(crate) fn start(status: u16) -> Receiver {
        let state = Arc::new(Mutex::new((status, Vec::new())));
        let serving = state.clone();
        Receiver { address: http_server::start(move |connection| serve(&serving, connection)), state }
    }
}

fn serve(state: &Mutex<(u16, Vec<String>)>, mut connection: Connection) -> Option<()> {
    loop {
        let head = connection.read_head()?;
        let body = connection.read_body(&head)?;
        let mut state = state.lock().unwrap();
        let status = state.0;
        // A daemon that was killed has a request under way; read late, it would count as received.
        if connection.is_closed_by_client() {
            return None;
        }
        if status == 100 {
            // For ever.
            drop(state);
            while connection.write(&b"HTTP/1.1 100 Continue\r\n\r\n".repeat(200)).is_some() {}
            return None;
        }
        if status == 200 {
            state.1.extend(String::from_utf8(body).unwrap().lines().map(str::to_owned));
        }
        drop(state);
        let headers = if status == 429 { "Retry-After: 315360000\r\n" } else { "" };
        connection.answer(status, headers, "in the move\r\n")?;
    }
}

/// A directory with a configuration whose sink sends to a receiver.
pub(crate) struct Site {
    pub(crate) directory: tempfile::TempDir,
    /// Where its spools are.
    spools: PathBuf,
    receiver: Receiver,
}

impl Site {
    pub(crate) fn new(spool_options: &str) -> Site {
        let directory = tempfile::tempdir().unwrap();
        let spools = directory.path().join("spool");
        Site::with_spools(directory, spools, spool_options)
    }

    pub(crate) fn with_spools(directory: tempfile::TempDir, spools: PathBuf, spool_options: &str) -> Site {
        let (receiver, dir) = (Receiver::start(503), spools.display());
        let toml = format!(
            "[admin]\nlisten = \"127.0.0.1:0\"\n\
             [listeners.desktops]\nprotocol = \"endless\"\nlisten = \"127.0.0.1:0\"\nquarantine.dir = \"\"\ndelivery_timeout = \"1s\"\n\
             [sinks.backend]\ntype = \"http\"\nendpoint = \"http://{}/\"\nretry_min = \"5ms\"\nretry_max = \"50ms\"\n\
             spool = {{ dir = \"{dir}\", {spool_options} }}\n",
            receiver.address
        );
        std::fs::write(directory.path().join("t.toml"), toml).unwrap();
        Site { directory, spools, receiver }
    }

    pub(crate) fn config(&self) -> String {
        self.directory.path().join("t.toml").display().to_string()
    }

    pub(crate) fn spool(&self) -> PathBuf {
        self.spools.join("backend")
    }

    pub(crate) fn start(&self) -> Binary {
        Binary::start(tributary(&["run", "--config", &self.config()]))
    }

    pub(crate) fn set(&self, status: u16) {
        self.receiver.state.lock().unwrap().0 = status;
    }

    /// The received lines: those of events, and what those of losses say.
    pub(crate) fn received(&self) -> (Vec<String>, Vec<Value>) {
        let lines = self.receiver.state.lock().unwrap().1.clone();
        let (losses, events): (Vec<String>, Vec<String>) =
            lines.into_iter().partition(|line| line.contains("\"tributary.loss\""));
        (events, losses.iter().map(|line| serde_json::from_str(line).unwrap()).collect())
    }

    pub(crate) fn segments(&self) -> Vec<PathBuf> {
        let files = std::fs::read_dir(self.spool()).unwrap().map(|file| file.unwrap().path());
        let mut segments: Vec<_> = files.filter(|path| path.extension().is_some_and(|end| end == "spool")).collect();
        segments.sort();
        segments
    }
}

/// A machine uploads events; each upload is answered 200. Returns the number of events.
pub(crate) fn upload(daemon: &Binary, count: u64, seed: u64) -> u64 {
    let (address, count, seed) = (daemon.address("desktops").to_string(), count.to_string(), seed.to_string());
    let sent = run(&["simulate", "endless", "--to", &address, "--count", &count, "--seed", &seed]).sent();
    sent["events"].as_u64().unwrap()
}

pub(crate) fn get(daemon: &Binary, path: &str) -> (u16, String) {
    let address: SocketAddr = daemon.admin_address();
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

pub(crate) fn stop(daemon: Binary) -> Ended {
    daemon.signal("TERM");
    daemon.end()
}

fn unique(lines: &[String]) -> usize {
    lines.iter().collect::<std::collections::BTreeSet<_>>().len()
}

/// collector-contrib 50102: the backlog is lost when the collector restarts.
#[test]
fn a_restart_with_a_backlog_loses_nothing() {
    let site = Site::new("min_free_bytes = \"0B\"");
    let daemon = site.start();
    let first = upload(&daemon, 300, 1);
    let ended = stop(daemon);
    assert_eq!(ended.code, Some(0), "waiting is no failure: {}", ended.stderr);
    ended.line(&format!("sink=\"backend\" events={first} written=0 shed=0 failed=0 waiting={first}"));
    // The second one is killed. All of its requests were answered 200.
    let daemon = site.start();
    let second = upload(&daemon, 300, 2);
    daemon.signal("KILL");
    drop(daemon.end());
    let all = first + second;
    site.set(200);
    let daemon = site.start();
    until("everything is received", || (site.received().0.len() as u64 >= all).then_some(()));
    let ended = stop(daemon);
    ended.line(&format!("sink=\"backend\" events=0 resumed={all} written={all} shed=0 failed=0"));
    let lines = site.received().0;
    assert_eq!((lines.len() as u64, unique(&lines) as u64), (all, all), "each once");
}

/// collector 15677: items are deleted when the collector shuts down while the destination is away.
#[test]
fn a_shutdown_while_the_destination_is_away_deletes_nothing() {
    let site = Site::new("min_free_bytes = \"0B\"");
    let daemon = site.start();
    let sent = upload(&daemon, 200, 3);
    until("the destination refuses", || get(&daemon, "/readyz").1.contains("503").then_some(()));
    stop(daemon);
    let waiting = |site: &Site| {
        let listed = run(&["spool", "list", "--format", "json", "--config", &site.config()]);
        let line: Value = serde_json::from_str(listed.stdout.trim()).unwrap();
        (line["events"].as_u64().unwrap(), line["used_by"].clone(), line["refused"].as_u64().unwrap())
    };
    assert_eq!(waiting(&site), (sent, Value::Null, 0));
    for signals in [&["TERM"][..], &["TERM", "TERM"], &["KILL"]] {
        let daemon = site.start();
        until("an attempt has failed", || get(&daemon, "/readyz").1.contains("503").then_some(()));
        assert_eq!(waiting(&site), (sent, daemon.pid().into(), 0), "the list does not disturb the daemon");
        signals.iter().for_each(|signal| daemon.signal(signal));
        drop(daemon.end());
        assert_eq!(waiting(&site), (sent, Value::Null, 0), "{signals:?}");
    }
}

/// Vector 25639, rsyslog 5771: a damaged file keeps the queue from starting, or is lost in silence.
#[test]
fn a_damaged_queue_does_not_stop_the_start_and_the_loss_is_counted_exactly() {
    let site = Site::new("min_free_bytes = \"0B\"");
    // Several requests, so that some are whole.
    let mut sent = 0;
    for seed in 0..4 {
        let daemon = site.start();
        sent += upload(&daemon, 60, seed);
        stop(daemon);
    }
    let segments = site.segments();
    let damage = |path: &Path| {
        let mut bytes = std::fs::read(path).unwrap();
        // In the payload of the first record.
        bytes[100] ^= 1;
        std::fs::write(path, bytes).unwrap();
    };
    damage(&segments[1]);
    std::fs::write(site.spool().join("cursor"), [7; 100]).unwrap();
    let verified = run(&["spool", "verify", "--config", &site.config()]);
    assert_eq!(verified.code, Some(1), "{}", verified.stderr);
    let verdict = verified.stdout.lines().last().unwrap();
    let lost: u64 = verdict.rsplit_once(" with ").unwrap().1.split(' ').next().unwrap().parse().unwrap();
    assert!(lost > 0 && lost < sent, "{verdict}");
    assert!(verified.stdout.contains(&format!("{} at 16: ", segments[1].display())), "{}", verified.stdout);
    site.set(200);
    let daemon = site.start();
    until("the rest is received", || (site.received().0.len() as u64 >= sent - lost).then_some(()));
    until("nothing waits", || {
        get(&daemon, "/metrics").1.contains("tributary_spool_events{sink=\"backend\"} 0\n").then_some(())
    });
    assert_eq!(get(&daemon, "/readyz"), (200, "ready\n".to_owned()));
    let ended = stop(daemon);
    let written = sent - lost;
    ended.line(&format!("sink=\"backend\" events=0 resumed={sent} written={written} shed=0 failed={lost}"));
    ended.line("cursor is damaged or of a newer tributary");
    assert!(site.spool().join("aside/cursor").exists());
    let (events, losses) = site.received();
    assert_eq!(events.len() as u64, written);
    let [loss] = losses.as_slice() else { panic!("{losses:?}") };
    assert_eq!((&loss["loss"]["reason"], loss["loss"]["events"].as_u64()), (&"failed".into(), Some(lost)));
    // The process that knew its connection is gone.
    assert_eq!((&loss["origin"]["protocol"], &loss["origin"]["listener"]), (&"tributary".into(), &"backend".into()));
}

#[test]
fn a_spool_that_drops_its_oldest_requests_tells_the_destination_how_many_events_are_missing() {
    let site = Site::new("min_free_bytes = \"0B\", max_bytes = \"1MiB\", when_full = \"drop_oldest\"");
    let daemon = site.start();
    let sent = upload(&daemon, 4000, 7);
    until("it has shed", || get(&daemon, "/metrics").1.lines().find_map(shed).filter(|shed| *shed > 0));
    site.set(200);
    until("nothing waits", || {
        get(&daemon, "/metrics").1.contains("tributary_spool_events{sink=\"backend\"} 0\n").then_some(())
    });
    let ended = stop(daemon);
    let (events, losses) = site.received();
    let missing = sent - events.len() as u64;
    ended.line(&format!("sink=\"backend\" events={sent} written={} shed={missing} failed=0", events.len()));
    let reported = losses.iter().map(|loss| loss["loss"]["events"].as_u64().unwrap()).sum::<u64>();
    assert!(losses.iter().all(|loss| loss["loss"]["reason"] == "shed" && loss["origin"]["listener"] == "desktops"));
    assert_eq!(reported, missing, "{losses:?}");
}

fn shed(line: &str) -> Option<u64> {
    line.strip_prefix("tributary_sink_events_total{sink=\"backend\",outcome=\"shed\"} ")?.parse().ok()
}

#[test]
fn a_daemon_whose_destination_is_away_is_ready_and_says_what_waits() {
    let site = Site::new("min_free_bytes = \"0B\"");
    let daemon = site.start();
    assert_eq!(get(&daemon, "/readyz"), (200, "ready\n".to_owned()));
    let sent = upload(&daemon, 50, 5);
    let (status, text) =
        until("an attempt has failed", || Some(get(&daemon, "/readyz")).filter(|(_, text)| text.contains("503")));
    assert_eq!(status, 200);
    let line = text.lines().nth(1).unwrap();
    let start = format!("sink backend: its destination is away: {sent} events in ");
    assert!(line.starts_with(&start) && line.ends_with("; last error: 503 in the move"), "{text}");
    let metrics = get(&daemon, "/metrics").1;
    let value = |series: &str| {
        let line = metrics.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix("{sink=\"backend\"} "));
        line.unwrap_or_else(|| panic!("no {series} in\n{metrics}")).parse::<f64>().unwrap()
    };
    assert_eq!(value("tributary_spool_events"), sent as f64);
    assert!(value("tributary_spool_requests") > 0.0 && value("tributary_spool_bytes") > 100.0);
    assert!(value("tributary_retries_total") > 0.0 && value("tributary_spool_oldest_seconds") < 3600.0);
    assert_eq!(value("tributary_refused_requests_total"), 0.0);
    assert!(value("tributary_request_seconds_count") >= value("tributary_retries_total"));
    assert!(metrics.contains("tributary_request_seconds_bucket{le=\"+Inf\",sink=\"backend\"}"), "{metrics}");
    site.set(400);
    until("all are refused", || {
        get(&daemon, "/metrics").1.contains("tributary_spool_events{sink=\"backend\"} 0\n").then_some(())
    });
    assert!(!get(&daemon, "/metrics").1.contains("tributary_refused_requests_total{sink=\"backend\"} 0\n"));
    stop(daemon);
    let shown = run(&["spool", "show", "--refused", "--config", &site.config()]);
    assert!(shown.stdout.contains(": 400 in the move"), "{}", shown.stdout);
}

/// Refused requests, as `spool list` counts them.
fn refused(site: &Site) -> u64 {
    let listed = run(&["spool", "list", "--format", "json", "--config", &site.config()]);
    let line: Value = serde_json::from_str(listed.stdout.trim()).unwrap();
    assert_eq!(line["notes"], serde_json::json!([]), "no directory is foreign");
    line["refused"].as_u64().unwrap()
}

fn retry(site: &Site, options: &[&str]) -> String {
    let config = site.config();
    let arguments = [&["spool", "retry", "--config", &config, "backend"], options].concat();
    let ended = run(&arguments);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    ended.stderr
}

#[test]
fn refused_requests_are_sent_again_beside_a_daemon_or_by_the_next_one_and_are_counted_once() {
    let site = Site::new("min_free_bytes = \"0B\"");
    site.set(400);
    let failed = |daemon: &Binary, events: u64| {
        let series = format!("tributary_sink_events_total{{sink=\"backend\",outcome=\"failed\"}} {events}\n");
        until("all are refused", || get(daemon, "/metrics").1.contains(&series).then_some(()));
    };
    let daemon = site.start();
    let first = upload(&daemon, 60, 1);
    failed(&daemon, first);
    site.set(200);
    let reported = retry(&site, &[]);
    assert!(reported.contains(&format!(" with {first} events: the daemon sends them again")), "{reported}");
    until("everything is received", || (site.received().0.len() as u64 == first).then_some(()));
    until("nothing waits", || {
        get(&daemon, "/metrics").1.contains("tributary_spool_events{sink=\"backend\"} 0\n").then_some(())
    });
    let ended = stop(daemon);
    ended.line(&format!("events={first} resumed={first} written={first} shed=0 failed={first}"));
    ended.line("refused requests are sent again sink=\"backend\"");

    site.set(400);
    let daemon = site.start();
    let second = upload(&daemon, 60, 2);
    failed(&daemon, second);
    stop(daemon);
    let all = refused(&site);
    assert!(retry(&site, &["--older-than", "1h"]).contains("no such request"));
    assert!(retry(&site, &["--request", "123456"]).contains("no such request"));
    assert_eq!(refused(&site), all);
    let shown = run(&["spool", "show", "--refused", "--format", "json", "--config", &site.config()]).stdout;
    let one: Value = serde_json::from_str(shown.lines().next().unwrap()).unwrap();
    let id = one["id"].as_str().unwrap();
    let reported = retry(&site, &["--request", id.rsplit_once('-').unwrap().1]);
    assert!(reported.contains("1 request with ") && reported.contains("the next start sends them again"), "{reported}");
    assert_eq!(refused(&site), all - 1);
    if all > 1 {
        retry(&site, &["--older-than", "0s"]);
    }
    assert_eq!(refused(&site), 0);
    site.set(200);
    let daemon = site.start();
    until("everything is received", || (site.received().0.len() as u64 == first + second).then_some(()));
    let ended = stop(daemon);
    ended.line(&format!("events=0 resumed={second} written={second} shed=0 failed=0"));
    assert_eq!(unique(&site.received().0) as u64, first + second, "each once");
}

#[test]
fn a_destination_that_refuses_or_asks_for_ten_years_is_shown_and_tried_again_by_a_reload() {
    let cases = [
        (403, "refusing", "its destination refuses what is sent: ", "the destination refuses what is sent; "),
        (429, "away", "its destination is away: ", "the destination is away; "),
    ];
    for (status, state, note, line) in cases {
        let site = Site::new("min_free_bytes = \"0B\"");
        site.set(status);
        let daemon = site.start();
        let sent = upload(&daemon, 40, 1);
        let is_shown = |text: &String| text.contains(note) && text.contains("; the next attempt is in ");
        let (code, text) = until("it is shown", || Some(get(&daemon, "/readyz")).filter(|(_, text)| is_shown(text)));
        assert_eq!(code, 200, "{text}");
        assert!(text.contains(&format!("last error: {status} in the move")), "{text}");
        let series = |state: &str| format!("tributary_destination_state{{sink=\"backend\",state=\"{state}\"}} 1\n");
        assert!(get(&daemon, "/metrics").1.contains(&series(state)));
        let logged = daemon.until_stderr(line);
        let fields = ["sink=\"backend\" endpoint=\"http://127.0.0.1:", "error=\"", "waiting=", "since=\"20"];
        assert!(logged.contains("WARN") && fields.iter().all(|field| logged.contains(field)), "{logged}");
        site.set(200);
        daemon.signal("HUP");
        until("everything is sent", || (site.received().0.len() as u64 == sent).then_some(()));
        until("it is ready", || get(&daemon, "/metrics").1.contains(&series("ready")).then_some(()));
        daemon.until_stderr("the destination takes what is sent again sink=\"backend\"");
        let ended = stop(daemon);
        assert_eq!(ended.stderr.matches(line).count(), 1, "once a minute: {}", ended.stderr);
        ended.line(&format!("sink=\"backend\" events={sent} written={sent} shed=0 failed=0"));
    }
}

#[test]
fn a_daemon_whose_spool_is_full_is_not_ready_and_says_why() {
    let site = Site::new("min_free_bytes = \"1048576GiB\"");
    let daemon = site.start();
    // A machine sends again after each 503; it gives up when it is killed.
    let address = daemon.address("desktops").to_string();
    let machine = Binary::start(tributary(&["simulate", "endless", "--to", &address, "--count", "5"]));
    let (_, text) = until("the spool is full", || Some(get(&daemon, "/readyz")).filter(|(status, _)| *status == 503));
    let start = "sink backend cannot write, and its listeners wait: the spool is full: its file system has ";
    assert!(text.starts_with(start) && text.contains("min_free_bytes = "), "{text}");
    drop(machine);
}
