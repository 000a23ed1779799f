//! Traces.

use std::collections::BTreeMap;

use tributary::simulate::{datadog, zico};

use super::*;
use crate::live::{connect, send_all, wire};

/// A span of a trace, with times in microseconds.
struct Span {
    trace: u8,
    id: u64,
    parent: u64,
    start: u64,
    duration: u64,
    name: u64,
    is_error: bool,
}

const START: u64 = 1_795_176_900_000_000_000;

impl Span {
    fn bytes(&self) -> Vec<u8> {
        let Span { trace, id, parent, start, duration, name, is_error } = *self;
        let ids = [id.to_be_bytes(), parent.to_be_bytes()].concat();
        let times = [(START + start * 1000).to_be_bytes(), (duration * 1000).to_be_bytes()].concat();
        let texts = [name.to_be_bytes(), [0; 8], [0; 8], [0; 8]].concat();
        [&[0xDD, 2][..], &ids, &[trace; 16], &times, &texts, &[u8::from(is_error)]].concat()
    }
}

/// Sends spans with these names, which are numbered from 1.
async fn send(daemon: &Daemon, names: &[&str], spans: &[Span]) {
    let names = (1..).zip(names).flat_map(|(id, name)| wire::string(id, name));
    let spans = spans.iter().flat_map(Span::bytes);
    send_all(connect(&daemon.server).await, &wire::process().into_iter().chain(names).chain(spans).collect::<Vec<_>>())
        .await;
    settle(daemon).await;
}

#[tokio::test]
async fn a_trace_is_shown_as_a_timeline_with_callers_before_callees() {
    let daemon = of_spans().await;
    let span =
        |id, parent, start, duration| Span { trace: 7, id, parent, start, duration, name: id, is_error: id == 3 };
    // A callee comes before its caller, as from most tracers.
    send(
        &daemon,
        &["request", "query", "render", "fetch"],
        &[span(4, 2, 30, 10), span(3, 1, 60, 20), span(2, 1, 20, 30), span(1, 0, 10, 100)],
    )
    .await;
    let id = "07".repeat(16);
    let one = json(&daemon, &format!("traces/{id}")).await;
    let shown: Vec<_> = array(&one, "spans")
        .iter()
        .map(|span| {
            let text = |name: &str| span[name].as_str().unwrap().to_owned();
            (
                text("name"),
                span["parent"].as_u64(),
                number(&span["depth"]),
                number(&span["start_ns"]),
                number(&span["self_ns"]),
                text("status"),
            )
        })
        .collect();
    let expected = [
        ("request", None, 0, 0, 50_000, "unset"),
        ("query", Some(0), 1, 10_000, 20_000, "unset"),
        ("fetch", Some(1), 2, 20_000, 10_000, "unset"),
        ("render", Some(0), 1, 50_000, 20_000, "error"),
    ];
    assert_eq!(
        shown,
        expected.map(|(name, parent, depth, start, own, status)| {
            (name.to_owned(), parent, depth, start, own, status.to_owned())
        })
    );
    let trace = &one["trace"];
    assert_eq!((&trace["name"], number(&trace["spans"]), number(&trace["errors"])), (&"request".into(), 4, 1));
    assert_eq!((number(&trace["duration_ns"]), number(&trace["start_ms"])), (100_000, START / 1_000_000));
    assert_eq!((&trace["is_complete"], &one["is_cut"]), (&true.into(), &false.into()));
    let event = json(&daemon, &format!("events/{}", one["spans"][1]["id"].as_str().unwrap())).await;
    assert_eq!(event["event"]["name"], "query");
    let file = get(&daemon, &format!("traces/{id}?download=1")).await;
    assert!(file.head.contains(&format!("content-disposition: attachment; filename=\"trace-{id}.json\"")));
    assert_eq!(array(&json(&daemon, &format!("traces/{id}?limit=2")).await, "spans").len(), 2);
    daemon.stop().await;
}

#[tokio::test]
async fn traces_are_listed_by_time_and_duration_and_found_by_their_spans() {
    let daemon = of_spans().await;
    let root = |trace, duration, name| {
        let start = u64::from(trace) * 1000;
        Span { trace, id: 1, parent: 0, start, duration, name, is_error: trace == 3 }
    };
    let orphan = Span { trace: 4, id: 2, parent: 99, start: 1, duration: 1, name: 2, is_error: false };
    send(&daemon, &["Checkout", "search"], &[root(1, 10, 1), root(2, 30, 2), root(3, 20, 1), orphan]).await;
    let ids = async |query: &str| -> Vec<u8> {
        let list = json(&daemon, &format!("traces?{query}")).await;
        assert_eq!(list["coverage"]["text"], if query == "protocol=zico" { "no events" } else { "all events" });
        let id = |trace: &Value| u8::from_str_radix(&trace["trace_id"].as_str().unwrap()[..2], 16).unwrap();
        array(&list, "traces").iter().map(id).collect()
    };
    assert_eq!(ids("").await, [3, 2, 1, 4]);
    assert_eq!(ids("order=slowest").await, [2, 3, 1, 4]);
    assert_eq!(ids("status=error").await, [3]);
    assert_eq!(ids("name=checkout").await, [3, 1]);
    assert_eq!(ids("text=0202").await, [2]);
    assert_eq!(ids("min_ns=20000").await, [3, 2]);
    assert_eq!(ids("service=shop").await, [0; 0]);
    assert_eq!(ids("protocol=zico").await, [0; 0]);
    let first = json(&daemon, "traces?limit=1").await;
    assert_eq!((number(&first["total"]), &first["is_cut"]), (4, &true.into()));
    let incomplete = json(&daemon, &format!("traces/{}", "04".repeat(16))).await;
    assert_eq!(incomplete["trace"]["is_complete"], false);
    daemon.stop().await;
}

#[tokio::test]
async fn every_span_of_simulated_services_is_in_its_trace() {
    let toml = format!("{}[listeners.zorka]\nprotocol = \"zico\"\nlisten = \"127.0.0.1:0\"\n", listener(""));
    let daemon = daemon(&toml).await;
    simulate(&daemon, "test", AgentKind::Datadog(datadog::DatadogDialect::default()), 1000).await;
    simulate(&daemon, "zorka", AgentKind::Zico(zico::ZicoDialect::default()), 1000).await;
    settle(&daemon).await;
    let events = daemon.events();
    let mut spans: BTreeMap<String, u64> = BTreeMap::new();
    for event in events.iter().filter(|event| event["kind"] == "span") {
        *spans.entry(event["span"]["trace_id"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    let list = until(&daemon, "traces?limit=10000", |list| number(&list["total"]) == spans.len() as u64).await;
    for trace in array(&list, "traces") {
        assert_eq!(number(&trace["spans"]), spans[trace["trace_id"].as_str().unwrap()], "{trace}");
    }
    let exception = events.iter().find(|event| event["name"] == "zico.exception").expect("an exception");
    let one = json(&daemon, &format!("traces/{}", exception["trace_id"].as_str().unwrap())).await;
    let log = array(&one, "logs").iter().find(|log| log["name"] == "zico.exception").unwrap();
    let span = &one["spans"][number(&log["span"]) as usize];
    assert_eq!(log["severity"], "ERROR");
    assert!(array(&one, "spans").iter().any(|span| span["span_id"] == exception["span_id"]), "{span}");
    daemon.stop().await;
}
