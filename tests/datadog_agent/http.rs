//! Requests of tracers against the whole daemon.

use serde_json::Value;
use tokio::net::TcpStream;
use tributary::pipeline::options::QueueOptions;
use tributary::server::Server;
use tributary_testing::endless::http::{Reply, ask};

use crate::live::puppet::{Mood, Strings};
use crate::live::{Daemon, config, config_with_memory, until, within};
use crate::offline::{Recorded, recorded};

const LISTENER: &str = "[listeners.test]\nprotocol = \"datadog_agent\"\nlisten = \"127.0.0.1:0\"\n";

fn case(name: &str) -> Recorded {
    recorded().into_iter().find(|case| case.name == name).unwrap()
}

async fn send(stream: &mut TcpStream, method: &str, path: &str, headers: &str, body: &[u8]) -> Reply {
    let head = format!("{method} {path} HTTP/1.1\r\nHost: test\r\nContent-Length: {}\r\n{headers}\r\n", body.len());
    within("the answer", ask(stream, &[head.as_bytes(), body].concat())).await
}

#[tokio::test]
async fn a_tracer_finds_what_it_expects_of_an_agent() {
    let daemon = Daemon::start(LISTENER).await;
    let mut stream = daemon.connect().await;
    let info = send(&mut stream, "GET", "/info", "", b"").await;
    let info: Value = serde_json::from_str(&info.body).unwrap();
    assert!(info["endpoints"].as_array().unwrap().contains(&"/v0.5/traces".into()));
    assert_eq!((&info["client_drop_p0s"], &info["span_events"]), (&Value::Bool(false), &Value::Bool(true)));
    assert!(info["config"].get("obfuscation").is_none(), "some tracers ignore the document then");
    let case = case("py4-v05");
    for method in ["PUT", "POST"] {
        let headers = "X-Datadog-Trace-Count: 7\r\nContent-Type: application/msgpack\r\n";
        let reply = send(&mut stream, method, "/v0.5/traces", headers, &case.body).await;
        assert_eq!((reply.status, reply.body.as_str()), (200, r#"{"rate_by_service":{"service:,env:":1.0}}"#));
    }
    assert_eq!(daemon.events().iter().filter(|event| event["kind"] == "span").count(), 12, "the second is a repeat");
    for (path, status, answer) in [
        ("/telemetry/proxy/api/v2/apmtelemetry", 202, "{}"),
        ("/v0.7/config", 200, "{}"),
        ("/v0.1/pipeline_stats", 200, "{}"),
        ("/v0.4/services", 200, "OK"),
        ("/dogstatsd/v2/proxy", 200, "{}"),
        ("/evp_proxy/v4/api/v2/citestcycle", 202, "{}"),
    ] {
        let reply = send(&mut stream, "POST", path, "", b"some bytes").await;
        assert_eq!((reply.status, reply.body.trim_end()), (status, answer), "{path}");
    }
    assert_eq!(send(&mut stream, "GET", "/v0.4/traces", "", b"").await.status, 405);
    let ignored = daemon.counters();
    assert_eq!(ignored.bytes_ignored["telemetry"], 10);
    assert_eq!(ignored.buffered(), 0);
}

#[tokio::test]
async fn what_browsers_send_from_other_sites_and_unknown_paths_are_refused() {
    let daemon = Daemon::start(LISTENER).await;
    let mut stream = daemon.connect().await;
    let reply = send(&mut stream, "POST", "/v0.4/traces", "Sec-Fetch-Site: cross-site\r\n", b"\x90").await;
    assert_eq!(reply.status, 403);
    let mut stream = daemon.connect().await;
    assert_eq!(send(&mut stream, "POST", "/v0.9/traces", "", b"\x90").await.status, 404);
}

#[tokio::test]
async fn tracers_are_told_the_rates_of_the_configuration() {
    let rates = "sample_rates = { default = 0.5, \"service:shop,env:prod\" = 0 }\n";
    let daemon = Daemon::start(&format!("{LISTENER}{rates}")).await;
    let mut stream = daemon.connect().await;
    let reply = send(&mut stream, "PUT", "/v0.4/traces", "Content-Type: application/msgpack\r\n", b"\x90").await;
    let rates: Value = serde_json::from_str(&reply.body).unwrap();
    let expected = serde_json::json!({ "service:,env:": 0.5, "service:shop,env:prod": 0.0 });
    assert_eq!(rates["rate_by_service"], expected);
    let reply = send(&mut stream, "PUT", "/v0.3/traces", "Content-Type: application/msgpack\r\n", b"\x90").await;
    assert_eq!(reply.body, "OK");
}

#[tokio::test]
async fn a_refused_body_ends_no_connection_and_is_in_the_quarantine() {
    let directory = tempfile::tempdir().unwrap();
    let quarantine = format!("quarantine.dir = \"{}\"\n", directory.path().display());
    let daemon = Daemon::start(&format!("{LISTENER}{quarantine}")).await;
    let mut stream = daemon.connect().await;
    let (bad, good) = (case("bad-v05-span-of-11"), case("py4-v05"));
    let reply = send(&mut stream, "PUT", "/v0.5/traces", "X-Datadog-Trace-Count: 3\r\n", &bad.body).await;
    assert_eq!(reply.status, 400, "{}", reply.body);
    assert_eq!(send(&mut stream, "PUT", "/v0.5/traces", "", &good.body).await.status, 200);
    let events = daemon.events();
    let loss = events.iter().find(|event| event["kind"] == "loss").unwrap();
    assert_eq!(loss["attributes"]["datadog.trace_count"], 3);
    assert_eq!(tributary_testing::endless::http::quarantined(directory.path()).len(), 1);
}

#[tokio::test]
async fn simulated_tracers_lose_nothing() {
    use tributary::simulate::datadog_agent::TracerDialect;
    use tributary::simulate::{AgentKind, Amount, Plan, run};
    for version in [TracerDialect::V04, TracerDialect::V05, TracerDialect::V07, TracerDialect::V10] {
        let daemon = Daemon::start(LISTENER).await;
        let to = daemon.server.address().unwrap();
        let plan = Plan { to, amount: Amount::Events(5_000), rate: None, connections: 3, seed: 7 };
        let sent =
            within("the agents", run(AgentKind::DatadogAgent(version), plan, std::future::pending())).await.unwrap();
        assert_eq!(sent.events, 5_000);
        let events = daemon.events();
        assert_eq!(events.iter().filter(|event| event["kind"] == "span").count(), 5_000);
        assert_eq!(events.len(), 5_000, "no loss");
        let totals = daemon.stop().await.totals.listeners[0].clone();
        assert_eq!(totals.bytes_in, totals.bytes_decoded);
    }
}

#[tokio::test]
async fn simulated_statistics_lines_and_profiles_become_metrics_and_samples() {
    use tributary::simulate::datadog_agent::TracerDialect;
    use tributary::simulate::{AgentKind, Amount, Plan, run};
    for (dialect, kind, least, has_losses) in [
        (TracerDialect::Stats, "metric", 500 * 10, false),
        (TracerDialect::DogStatsD, "metric", 20, true),
        (TracerDialect::Profiles, "sample", 1_000, false),
    ] {
        let daemon = Daemon::start(LISTENER).await;
        let to = daemon.server.address().unwrap();
        let plan = Plan { to, amount: Amount::Events(500), rate: None, connections: 2, seed: 3 };
        within("the agents", run(AgentKind::DatadogAgent(dialect), plan, std::future::pending())).await.unwrap();
        let stopped = daemon.stop().await;
        let totals = stopped.totals.listeners[0].clone();
        let events = stopped.events;
        let count = events.iter().filter(|event| event["kind"] == kind).count();
        assert!(count >= least, "{dialect:?}: {count}");
        assert_eq!(events.iter().any(|event| event["kind"] == "loss"), has_losses, "{dialect:?}");
        assert_eq!((totals.buffered(), totals.lost() > 0), (0, has_losses), "{dialect:?}");
    }
}

/// A daemon with one sink that the test controls.
async fn with_sink(options: &str, strings: &Strings) -> Server {
    let strings = strings.clone();
    Server::start_with(&config(&format!("{LISTENER}{options}")), move |sinks| {
        sinks.add("puppet", QueueOptions::default(), move || Ok(strings.puppet()));
    })
    .await
    .unwrap()
}

#[tokio::test]
async fn a_tracer_is_answered_in_time_although_the_sink_is_slow_and_its_repeat_is_not_written() {
    let strings = Strings::new(Mood::Stall);
    let server = with_sink("answer_within = \"50ms\"\n", &strings).await;
    let body = case("py4-v05").body;
    for _ in 0..2 {
        let mut stream = crate::live::connect(&server).await;
        assert_eq!(send(&mut stream, "PUT", "/v0.5/traces", "", &body).await.status, 200);
    }
    let totals = || server.accounting().totals().listeners[0].clone();
    assert_eq!(totals().early_answers, 2);
    strings.set(Mood::Write);
    until("the events are written", || (strings.written().len() >= 12).then_some(())).await;
    until("the repeat is counted", || (totals().repeats[0] == 12).then_some(())).await;
    assert_eq!(strings.written().len(), 12);
    let stopped = server.stop().await;
    assert_eq!(stopped.listeners[0].ignored(), body.len() as u64);
}

#[tokio::test]
async fn without_memory_a_tracer_is_asked_to_wait_and_keeps_its_body() {
    let config = config_with_memory(LISTENER, 200 * 1024);
    let daemon = Daemon::on(&config).await;
    let mut stream = daemon.connect().await;
    let reply = send(&mut stream, "PUT", "/v0.4/traces", "", &vec![0x90; 1_000_000]).await;
    assert_eq!((reply.status, reply.body.as_str()), (429, r#"{"rate_by_service":{"service:,env:":1.0}}"#));
    let totals = daemon.stop().await.totals.listeners[0].clone();
    assert!(totals.ignored() > 0 && totals.lost() == 0, "{totals:?}");
    assert_eq!(totals.buffered(), 0);
}
