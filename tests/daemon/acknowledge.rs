//! The level at which requests are acknowledged: metrics, and a reload that changes the sinks.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};

use crate::endless_support::cases;
use crate::endless_support::http::{ask, plain};
use crate::http_server;
use crate::live::{config, connect, until_async, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tributary::server::Server;

fn toml(directory: &Path, listener: &str, sinks: &str) -> String {
    let sinks = sinks.replace("DIR", &directory.display().to_string());
    format!(
        "[admin]\nlisten = \"127.0.0.1:0\"\n[listeners.desktops]\nprotocol = \"endless\"\nlisten = \"127.0.0.1:0\"\n\
         quarantine.dir = \"\"\ndedup = {{ entries = 0 }}\n{listener}\n{sinks}"
    )
}

const ARCHIVE: &str = "[sinks.archive]\ntype = \"file\"\npath = \"DIR/out.ndjson\"\n";
const NOWHERE: &str = "[sinks.nowhere]\ntype = \"discard\"\n";

async fn put(server: &Server) -> u16 {
    let body = cases().into_iter().find(|case| case.name == "v3-mixed").unwrap().body;
    let mut stream = connect(server).await;
    within("the answer", ask(&mut stream, &plain(3, &body))).await.status
}

async fn metrics(server: &Server) -> String {
    let mut stream = TcpStream::connect(server.admin_address().unwrap()).await.unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

/// The numbers of requests that were acknowledged as written and as durable.
async fn acknowledged(server: &Server) -> [f64; 2] {
    let metrics = metrics(server).await;
    ["written", "durable"].map(|level| {
        let series = format!("tributary_acknowledged_requests_total{{listener=\"desktops\",level=\"{level}\"}}");
        value(&metrics, &series)
    })
}

fn value(metrics: &str, series: &str) -> f64 {
    let line = metrics.lines().find_map(|line| line.strip_prefix(series)).unwrap_or_else(|| panic!("{metrics}"));
    line.trim().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_count_acknowledgements_by_level_and_their_times() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::start(&config(&toml(directory.path(), "", ARCHIVE))).await.unwrap();
    for _ in 0..3 {
        assert_eq!(put(&server).await, 200);
    }
    // A request that is refused is not acknowledged.
    let mut stream = connect(&server).await;
    let wrong = b"PUT /3/00 HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\n\r\nabc";
    let refused = within("the answer", ask(&mut stream, wrong)).await.status;
    assert_ne!(refused, 200);
    assert_eq!(acknowledged(&server).await, [0.0, 3.0]);
    let metrics = metrics(&server).await;
    let responses = |status: u16| {
        let labels = format!("listener=\"desktops\",protocol=\"endless\",status=\"{status}\"");
        value(&metrics, &format!("tributary_http_responses_total{{{labels}}}"))
    };
    assert_eq!((responses(200), responses(refused)), (3.0, 1.0));
    let of = |what: &str| value(&metrics, &format!("tributary_acknowledgement_seconds_{what}"));
    assert_eq!(of("count{listener=\"desktops\"}"), 3.0);
    assert_eq!(of("bucket{le=\"+Inf\",listener=\"desktops\"}"), 3.0);
    assert!(of("sum{listener=\"desktops\"}") > 0.0);
    server.stop().await;
    let text = fs::read_to_string(directory.path().join("out.ndjson")).unwrap();
    assert_eq!(text.lines().filter(|line| !line.contains("\"kind\":\"loss\"")).count(), 27);
}

/// The events of the first sink.
fn taken(server: &Server) -> u64 {
    server.accounting().totals().sinks[0].events
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sink_that_is_known_to_be_down_costs_no_request_its_time_and_no_stop_its_grace() {
    let away = http_server::start(|mut connection| {
        while let Some(head) = connection.read_head() {
            connection.read_body(&head)?;
            connection.answer(503, "", "")?;
        }
        Some(())
    });
    // Nothing listens there.
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for sink in [
        format!("type = \"http\"\nendpoint = \"http://{away}/\""),
        format!("type = \"otlp\"\nendpoint = \"http://{away}\"\nprotocol = \"http/protobuf\""),
        format!("type = \"nats\"\nservers = [\"nats://{closed}\"]"),
        format!("type = \"tcp\"\naddress = \"{closed}\""),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let text = toml(directory.path(), "delivery_timeout = \"1h\"", &format!("[sinks.away]\n{sink}\n"));
        let server = Server::start(&config(&format!("limits.shutdown_grace = \"1h\"\n{text}"))).await.unwrap();
        // This one meets the state before it is known.
        assert_eq!(put(&server).await, 503, "{sink}");
        let before = taken(&server);
        assert!(before > 0);
        for _ in 0..5 {
            assert_eq!(put(&server).await, 503, "{sink}");
        }
        assert_eq!(taken(&server), before, "what is refused at once is given to no sink: {sink}");
        let totals = within("the daemon stops", server.stop()).await;
        assert_eq!((totals.sinks[0].failed, totals.sinks[0].in_flight()), (before, 0), "{sink}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sink_that_is_back_gets_requests_again() {
    let status = Arc::new(AtomicU16::new(503));
    let answering = status.clone();
    let receiver = http_server::start(move |mut connection| {
        while let Some(head) = connection.read_head() {
            connection.read_body(&head)?;
            connection.answer(answering.load(Relaxed), "", "")?;
        }
        Some(())
    });
    let directory = tempfile::tempdir().unwrap();
    let options = "retry_min = \"5ms\"\nretry_max = \"50ms\"\n";
    let sink = format!("[sinks.away]\ntype = \"http\"\nendpoint = \"http://{receiver}/\"\n{options}");
    let server = Server::start(&config(&toml(directory.path(), "delivery_timeout = \"1h\"", &sink))).await.unwrap();
    assert_eq!((put(&server).await, put(&server).await), (503, 503));
    status.store(200, Relaxed);
    until_async("a request is taken", async || (put(&server).await == 200).then_some(())).await;
    assert_eq!(server.stop().await.sinks[0].failed, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_of_the_sinks_changes_the_level_of_a_listener_that_keeps_its_connections() {
    let directory = tempfile::tempdir().unwrap();
    let with = |sinks: &str| config(&toml(directory.path(), "", sinks));
    let mut server = Server::start(&with(ARCHIVE)).await.unwrap();
    let mut kept = connect(&server).await;
    assert_eq!(put(&server).await, 200);
    for (sinks, expected) in [([ARCHIVE, NOWHERE].concat(), [1.0, 1.0]), (ARCHIVE.to_owned(), [1.0, 2.0])] {
        let reloaded = server.reload(&with(&sinks)).await.unwrap();
        assert!(!reloaded.to_string().contains("listener"), "{reloaded}");
        assert_eq!(put(&server).await, 200);
        assert_eq!(acknowledged(&server).await, expected);
    }
    let health = within("health", ask(&mut kept, b"GET / HTTP/1.1\r\nHost: t\r\n\r\n")).await;
    assert_eq!(health.status, 200, "its connection is still open");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn written_is_what_the_operator_asks_for() {
    let directory = tempfile::tempdir().unwrap();
    let toml = toml(directory.path(), "acknowledge = \"written\"", ARCHIVE);
    let server = Server::start(&config(&toml)).await.unwrap();
    assert_eq!(put(&server).await, 200);
    assert_eq!(acknowledged(&server).await, [1.0, 0.0]);
    server.stop().await;
}
