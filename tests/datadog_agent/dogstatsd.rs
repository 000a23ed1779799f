//! DogStatsD: what lines become, and every way on which they arrive.

use std::net::UdpSocket;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tributary::event::BatchBuilder;
use tributary::memory::MemoryBudget;
use tributary::protocol::datadog_agent::{DogStatsDOptions, Options};
use tributary::protocol::{DatagramReader as _, Exchange as _, Output};

use crate::live::{Daemon, until};
use crate::offline::Offline;

const PATH: &str = "/dogstatsd/v2/proxy";

/// What lines become: at once, and with the next flush.
fn written(offline: &mut Offline, lines: &str) -> (Vec<Value>, Vec<Value>) {
    let at_once = offline.ask(PATH, &[], lines.as_bytes());
    assert_eq!(at_once.status, 200, "{}", at_once.body);
    offline.elapsed += Duration::from_secs(10);
    let flushed = offline.tick();
    offline.assert_balance();
    (at_once.events, flushed)
}

fn flushed(lines: &str) -> Vec<Value> {
    let (at_once, flushed) = written(&mut Offline::new(), lines);
    assert_eq!(at_once, Vec::<Value>::new());
    flushed
}

/// Name, type, unit and value.
fn metrics(events: &[Value]) -> Vec<(&str, &str, &str, Value)> {
    let metric = |event: &Value| event["metric"].clone();
    let text = |value: &Value, of: &'static [&'static str]| *of.iter().find(|one| value == **one).unwrap_or(&"");
    let of = |event: &'_ Value| {
        let metric = metric(event);
        (text(&metric["type"], &["sum", "gauge"]), text(&metric["unit"], &["ms"]), metric["value"].clone())
    };
    events
        .iter()
        .map(|event| (event["name"].as_str().unwrap(), of(event)))
        .map(|(name, (a, b, c))| (name, a, b, c))
        .collect()
}

#[test]
fn values_of_a_series_are_aggregated_by_their_type() {
    let lines = "hits:1|c|#a:b\nhits:2:3|c|@0.5|#a:b\nload:1.5|g\nload:-2|g\nusers:x|s\nusers:y|s\nusers:x|s\n\
        size:4|h\nsize:1:2:3|h\ntime:10|ms|@0.1\nspread:7|d\n";
    let events = flushed(lines);
    let all = metrics(&events);
    assert_eq!(
        all[..4],
        [
            ("hits", "sum", "", json!(11)),
            ("load", "gauge", "", json!(-2)),
            ("users", "gauge", "", json!(2)),
            ("size.count", "sum", "", json!(4)),
        ]
    );
    assert_eq!(
        all[4..10].iter().map(|(name, .., value)| (*name, value.clone())).collect::<Vec<_>>(),
        [
            ("size.min", json!(1)),
            ("size.max", json!(4)),
            ("size.avg", json!(2.5)),
            ("size.median", json!(2)),
            ("size.95percentile", json!(4)),
            ("size.99percentile", json!(4)),
        ]
    );
    assert_eq!(
        (all[10].clone(), all[11].clone()),
        (("time.count", "sum", "", json!(10)), ("time.min", "gauge", "ms", json!(10)))
    );
    assert_eq!(all.len(), 24);
    assert_eq!(events[0]["metric"]["temporality"], "delta");
    assert_eq!(events[0]["metric"]["monotonic"], false);
    assert!(events[0]["metric"]["start_time"].is_string() && events[1]["metric"].get("start_time").is_none());
}

#[test]
fn tags_are_attributes_or_the_resource_and_their_order_is_no_difference() {
    let events = flushed(
        "a:1|c|#service:shop,env:prod,version:1.2,host:web,team:x,bare,team:y,team:x|c:in-5|e:it-false|card:low\n\
         a:2|c|#bare,team:x,team:y,team:x,host:web,version:1.2,env:prod,service:shop|c:in-5|e:it-false|card:low\n",
    );
    let [event] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!(event["metric"]["value"], 3);
    let attributes = json!({
        "team": ["x", "y"], "bare": true, "datadog.external_env": "it-false", "datadog.cardinality": "low",
    });
    assert_eq!(event["attributes"], attributes);
    let resource = json!({
        "service.name": "shop", "deployment.environment.name": "prod", "service.version": "1.2", "host.name": "web",
        "container.id": "in-5",
    });
    assert_eq!(event["resource"], resource);
}

#[test]
fn values_with_a_time_events_and_checks_are_written_at_once() {
    let mut offline = Offline::new();
    let lines = "old:5:6|c|T1700000000|#a\n_e{5,8}:Title|one\\ntwo|t:error|h:web|d:1700000001|p:low|#service:shop\n\
        _sc|db|2|h:db1|m:no route|#a:b\n";
    let (events, flushed) = written(&mut offline, lines);
    let [old, event, check] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!((&old["time"], &old["metric"]["value"]), (&json!("2023-11-14T22:13:20.000000000Z"), &json!(11)));
    assert_eq!((&event["name"], &event["body"]), (&json!("dogstatsd.event"), &json!("one\ntwo")), "{event}");
    assert_eq!(event["severity"], "ERROR");
    assert_eq!(event["resource"], json!({"host.name": "web", "service.name": "shop"}));
    let attributes = json!({
        "dogstatsd.event.title": "Title", "dogstatsd.event.priority": "low", "dogstatsd.event.alert_type": "error",
    });
    assert_eq!(event["attributes"], attributes);
    assert_eq!((&check["name"], &check["body"]), (&json!("dogstatsd.service_check"), &json!("no route")));
    let attributes =
        json!({"dogstatsd.service_check.name": "db", "dogstatsd.service_check.status": "critical", "a": "b"});
    assert_eq!(check["attributes"], attributes);
    assert_eq!(flushed, Vec::<Value>::new());
}

#[test]
fn a_bad_line_is_a_loss_and_the_others_live() {
    let (events, flushed) = written(&mut Offline::new(), "a:1|c\nbad line\n\nb:x|g\na:2|c");
    let losses: Vec<_> = events.iter().map(|event| (&event["kind"], &event["loss"]["bytes"])).collect();
    assert_eq!(losses, [(&json!("loss"), &json!(8)), (&json!("loss"), &json!(5))]);
    assert!(events[1]["loss"]["detail"].as_str().unwrap().contains("a number"), "{}", events[1]);
    assert_eq!(metrics(&flushed), [("a", "sum", "", json!(3))]);
}

#[test]
fn series_beyond_the_limit_are_written_without_aggregation() {
    let dogstatsd = DogStatsDOptions { max_series: 2, ..DogStatsDOptions::default() };
    let mut offline = Offline::with(Options { dogstatsd, ..Options::default() });
    let (events, flushed) = written(&mut offline, "a:1|c\nb:1|c\nc:1|c\nc:2|h\na:4|c\n");
    assert_eq!(metrics(&events)[..2], [("c", "sum", "", json!(1)), ("c.count", "sum", "", json!(1))]);
    assert_eq!(metrics(&flushed), [("a", "sum", "", json!(5)), ("b", "sum", "", json!(1))]);
    assert_eq!(offline.counters.totals().warnings["dogstatsd_not_aggregated"], 2);
    // The next interval begins without series.
    let (events, flushed) = written(&mut offline, "c:1|c\n");
    assert_eq!((events.len(), flushed.len()), (0, 1));
}

#[test]
fn memory_of_written_series_is_given_back_although_lines_arrive_meanwhile() {
    let memory = MemoryBudget::new(4 << 20);
    let dogstatsd = DogStatsDOptions { max_series: 100_000, ..DogStatsDOptions::default() };
    let mut offline = Offline::within(Options { dogstatsd, ..Options::default() }, &memory);
    let lines = |round: u64| (0..2_000).map(|number| format!("round{round}.{number}:1|c\n")).collect::<String>();
    for round in 0..20 {
        assert_eq!(offline.ask(PATH, &[], lines(round).as_bytes()).events.len(), 0, "round {round}");
        offline.elapsed += Duration::from_secs(10);
        let mut is_first = true;
        // A line arrives between two steps of the flush.
        let events = offline.end(|exchange, now, out| {
            let flow = exchange.tick(now, out);
            if std::mem::take(&mut is_first) {
                let mut other = Output::new(BatchBuilder::new(Offline::origin()));
                exchange.dogstatsd().read(b"late:1|c", 0, now, &mut other);
            }
            flow
        });
        assert!(events.len() >= 2_000, "round {round}");
    }
    assert!(memory.used() < 1 << 20, "{} bytes", memory.used());
    assert!(!offline.counters.totals().warnings.contains_key("dogstatsd_not_aggregated"));
}

#[test]
fn nothing_waits_when_the_listener_stops() {
    let mut offline = Offline::new();
    assert_eq!(offline.ask(PATH, &[], b"a:1|c\nb:2|g\n").events.len(), 0);
    let events = offline.end(|exchange, now, out| exchange.finish(now, out));
    assert_eq!(events.len(), 2);
}

#[tokio::test]
async fn lines_arrive_over_udp_unix_datagrams_and_http_over_a_unix_socket() {
    let dir = tempfile::tempdir().unwrap();
    let port = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (datagrams, apm) = (dir.path().join("dsd.socket"), dir.path().join("apm.socket"));
    let config = format!(
        "[listeners.test]\nprotocol = \"datadog_agent\"\nlisten = \"127.0.0.1:0\"\nunix = \"{}\"\n\
         dogstatsd = {{ listen = \"127.0.0.1:{port}\", unix = \"{}\", flush_interval = \"1s\" }}\n",
        apm.display(),
        datagrams.display()
    );
    let daemon = Daemon::start(&config).await;
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    udp.send_to(b"udp:1|c\nudp:2|c", ("127.0.0.1", port)).unwrap();
    udp.send_to(b"nonsense", ("127.0.0.1", port)).unwrap();
    let unix = UnixDatagram::unbound().unwrap();
    unix.send_to(b"unix:5|g\n", &datagrams).unwrap();
    let mut stream = UnixStream::connect(&apm).await.unwrap();
    let body = b"http:7|c\n";
    let head =
        format!("POST {PATH} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
    stream.write_all(&[head.as_bytes(), body].concat()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let find = |name: &str| daemon.events().into_iter().find(|event| event["name"] == name);
    until("all are flushed", || ["udp", "unix", "http"].iter().all(|name| find(name).is_some()).then_some(())).await;
    for (name, value) in [("udp", 3), ("unix", 5), ("http", 7)] {
        assert_eq!(find(name).unwrap()["metric"]["value"], value, "{name}");
    }
    let loss = daemon.events().into_iter().find(|event| event["kind"] == "loss").unwrap();
    assert_eq!(loss["loss"]["bytes"], 8);
    let peer = loss["origin"]["peer"].as_str().unwrap();
    assert_eq!(peer, udp.local_addr().unwrap().to_string());
    let counters = daemon.counters();
    assert_eq!((counters.bytes_in, counters.buffered()), (15 + 8 + 9 + 9, 0));
}

#[tokio::test]
async fn a_changed_listener_keeps_its_sockets() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("dsd.socket");
    let config = |interval: &str| {
        format!(
            "[listeners.test]\nprotocol = \"datadog_agent\"\nlisten = \"\"\n\
             dogstatsd = {{ unix = \"{}\", flush_interval = \"{interval}\" }}\n",
            path.display()
        )
    };
    let mut daemon = Daemon::start(&config("60s")).await;
    let unix = UnixDatagram::unbound().unwrap();
    unix.send_to(b"a:1|c", &path).unwrap();
    until("it is read", || (daemon.counters().bytes_decoded == 5).then_some(())).await;
    let changed = crate::live::config(&config("1s"));
    daemon.server.reload(&changed).await.unwrap();
    unix.send_to(b"b:1|c", &path).unwrap();
    let has = |name: &str| daemon.events().iter().any(|event| event["name"] == name);
    until("what waited and what came later is written", || (has("a") && has("b")).then_some(())).await;
}
