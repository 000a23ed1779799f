//! Simulated Zorka agents and the daemon over real sockets: both count the same events.

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;

use crate::live::{Daemon, losses, within};
use serde_json::Value;
use tributary::event::Kind;
use tributary::simulate::zico::ZicoDialect;
use tributary::simulate::{AgentKind, Amount, Plan, Sent, run};

const LISTENER: &str = "[listeners.test]\nprotocol = \"zico\"\nlisten = \"127.0.0.1:0\"\nquarantine.dir = \"\"\n";

async fn simulate(dialect: ZicoDialect, events: u64, connections: usize) -> (Vec<Value>, Sent) {
    let daemon = Daemon::start(LISTENER).await;
    let to = daemon.server.address().unwrap();
    let plan = Plan { to, amount: Amount::Events(events), rate: None, connections, seed: 3 };
    let sent = within("the agents", run(AgentKind::Zico(dialect), plan, pending())).await.unwrap();
    let stopped = daemon.stop().await;
    let totals = &stopped.totals.listeners[0];
    assert_eq!(totals.count(Kind::Loss), 0, "{:?}", losses(&stopped.events));
    assert_eq!((sent.events, totals.events()), (events, events), "{totals:?}");
    (stopped.events, sent)
}

fn named(events: &[Value], name: &str) -> usize {
    events.iter().filter(|event| event["name"] == name).count()
}

/// Whether a span is the top of an inner trace that was submitted by itself.
fn is_submitted_inner(span: &Value) -> bool {
    // Payments and calls of the gateway begin inside other traces only.
    let is_inner = matches!(span["attributes"]["zico.trace.type"].as_str(), Some("PAYMENT" | "GATEWAY"));
    let is_root = span["span"]["parent_span_id"] == span["attributes"]["zico.parent_span_id"];
    is_inner && is_root && span["origin"]["offset"] == 0
}

/// The number of events of inner traces to which no span links, with those of the traces to which they link.
fn unlinked(events: &[Value]) -> u64 {
    let id = |of: &Value| (of["trace_id"].to_string(), of["span_id"].to_string());
    let (mut below, mut linked, mut exceptions) = (BTreeMap::<_, Vec<_>>::new(), BTreeSet::new(), BTreeMap::new());
    for event in events {
        let (span, own) = (&event["span"], id(&event["span"]));
        if event["name"] == "zico.exception" {
            *exceptions.entry(id(&event["attributes"])).or_insert(0) += 1;
        } else if span.is_object() {
            for link in span["links"].as_array().into_iter().flatten() {
                linked.insert(id(link));
                below.entry(own.clone()).or_default().push(id(link));
            }
            if !is_submitted_inner(event) {
                let parent = (own.0.clone(), span["parent_span_id"].to_string());
                below.entry(parent).or_default().push(own);
            }
        }
    }
    let tops = events.iter().filter(|event| is_submitted_inner(event)).map(|event| id(&event["span"]));
    let mut open: Vec<_> = tops.filter(|top| !linked.contains(top)).collect();
    let mut count = 0;
    while let Some(span) = open.pop() {
        count += 1 + exceptions.get(&span).copied().unwrap_or(0);
        open.extend(below.remove(&span).unwrap_or_default());
    }
    count
}

/// Every inner trace that was submitted by itself is linked to, once, by the span that encloses it. Returns their number.
fn check_links(spans: &[&Value], ids: &BTreeSet<(Option<&str>, &str)>) -> usize {
    let links = spans.iter().flat_map(|span| span["span"]["links"].as_array().into_iter().flatten());
    let links: Vec<_> = links.map(|link| (link["trace_id"].as_str(), link["span_id"].as_str().unwrap())).collect();
    let linked: BTreeSet<_> = links.iter().copied().collect();
    assert_eq!(linked.len(), links.len(), "a trace has one link");
    assert!(linked.is_subset(ids), "links lead to spans");
    for span in spans {
        let id = (span["span"]["trace_id"].as_str(), span["span"]["span_id"].as_str().unwrap());
        assert_eq!(linked.contains(&id), is_submitted_inner(span), "{span}");
    }
    linked.len()
}

/// What holds for every dialect: spans form trees, and everything is named.
fn check_spans(events: &[Value], is_local: bool) {
    let spans: Vec<&Value> = events.iter().filter(|event| event["kind"] == "span").collect();
    let ids: BTreeSet<_> = spans
        .iter()
        .map(|span| (span["span"]["trace_id"].as_str(), span["span"]["span_id"].as_str().unwrap()))
        .collect();
    assert_eq!(ids.len(), spans.len(), "no span is like another");
    // A root may have a parent in another service.
    let is_called = |span: &Value| span["span"]["parent_span_id"] == span["attributes"]["zico.parent_span_id"];
    let roots = spans.iter().filter(|span| is_called(span)).count();
    let linked = check_links(&spans, &ids);
    assert_eq!(linked > 20, is_local, "{linked} links");
    for span in &spans {
        let parent = span["span"]["parent_span_id"].as_str();
        let is_inside = parent.is_some_and(|parent| ids.contains(&(span["span"]["trace_id"].as_str(), parent)));
        assert!(is_inside || is_called(span), "{span}");
        assert!(!span["name"].as_str().unwrap().contains('#'), "{span}");
        assert!(span["attributes"].get("tributary.incomplete").is_none(), "{span}");
        assert!(span["attributes"]["zico.calls"].as_u64().unwrap() >= 1);
    }
    let began = spans.iter().filter(|span| span["attributes"]["zico.trace.type"].is_string()).count();
    assert!(
        roots > 20 && began >= roots && roots * 5 < spans.len(),
        "{roots} roots, {began} begins, {} spans",
        spans.len()
    );
    let mut kinds = BTreeMap::<&str, usize>::new();
    events.iter().for_each(|event| *kinds.entry(event["name"].as_str().unwrap_or("?")).or_default() += 1);
    assert!(kinds["zico.exception"] > 5 && kinds["shop.Cache.get"] > 10, "{kinds:?}");
}

#[tokio::test]
async fn every_event_of_gen2_arrives_once() {
    let (events, _) = simulate(ZicoDialect::Gen2, 4001, 3).await;
    assert_eq!(named(&events, "zico.session.opened"), 3);
    assert_eq!(named(&events, "zico.agent.registered"), 0);
    check_spans(&events, true);
}

#[tokio::test]
async fn every_event_of_gen1_arrives_once_from_both_of_its_tracers() {
    let (events, _) = simulate(ZicoDialect::Gen1, 8000, 4).await;
    assert_eq!(named(&events, "zico.session.opened"), 4);
    assert_eq!(named(&events, "zico.agent.registered"), 4);
    check_spans(&events, true);
    let upward = events.iter().filter(|event| !event["attributes"]["cart.items"].is_null()).count();
    assert!(upward > 5, "{upward}");
}

#[tokio::test]
async fn every_event_of_the_documented_dialect_arrives_once() {
    let (events, _) = simulate(ZicoDialect::Doc, 4000, 2).await;
    assert_eq!((named(&events, "zico.session.opened"), named(&events, "zico.agent.registered")), (2, 2));
    check_spans(&events, false);
    assert!(events.iter().any(|event| event["resource"]["zico.agent.shelves"] == 40));
}

#[tokio::test]
async fn every_event_of_the_binary_protocol_arrives_once_whatever_is_sent_again() {
    let (events, _) = simulate(ZicoDialect::Fressian, 8000, 4).await;
    // Every resend is a connection of its own.
    assert!(named(&events, "zico.session.opened") > 5);
    let spans: Vec<&Value> = events.iter().filter(|event| event["kind"] == "span").collect();
    let id = |span: &Value| (span["trace_id"].to_string(), span["span_id"].to_string());
    let ids: BTreeSet<_> = spans.iter().map(|span| id(&span["span"])).collect();
    assert_eq!(ids.len(), spans.len(), "no span is like another");
    let links = spans.iter().flat_map(|span| span["span"]["links"].as_array().into_iter().flatten());
    let links: Vec<_> = links.map(id).collect();
    let linked: BTreeSet<_> = links.iter().cloned().collect();
    assert!(links.len() > 20 && linked.len() == links.len() && linked.is_subset(&ids), "{} links", links.len());
    assert!(named(&events, "zico.exception") > 5 && named(&events, "shop.Cache.get") > 10);
    assert!(spans.iter().all(|span| !span["name"].as_str().unwrap().contains('#')));
}

#[tokio::test]
async fn the_smallest_counts_are_exact_too() {
    for dialect in [ZicoDialect::Doc, ZicoDialect::Gen1, ZicoDialect::Gen2, ZicoDialect::Fressian] {
        for events in 1..=4 {
            simulate(dialect, events, 1).await;
        }
    }
}

/// Restarts the daemon while an agent sends.
async fn survive(dialect: ZicoDialect) {
    let dir = tempfile::tempdir().unwrap();
    let kept = format!("{LISTENER}state_dir = \"{}\"\n", dir.path().display());
    let first = Daemon::start(&kept).await;
    let to = first.server.address().unwrap();
    let plan = Plan { to, amount: Amount::Events(3000), rate: Some(2000), connections: 2, seed: 9 };
    let agents = tokio::spawn(run(AgentKind::Zico(dialect), plan, pending()));
    first.until_totals("there are events", |counters| counters.events() > 300).await;
    let first = first.stop().await;
    let second = Daemon::start(&kept.replace("127.0.0.1:0", &to.to_string())).await;
    let sent = within("the agents", agents).await.unwrap().unwrap();
    let second = second.stop().await;
    let counted = [&first, &second].map(|stopped| {
        let totals = &stopped.totals.listeners[0];
        totals.events() - totals.count(Kind::Loss)
    });
    // The second daemon does not know what the first one delivered: an inner trace whose outer trace was sent after the
    // restart is in that one, too.
    let twice = if dialect == ZicoDialect::Fressian { 0 } else { unlinked(&first.events) };
    assert_eq!(counted[0] + counted[1], sent.events + twice, "{counted:?}");
    assert!(dialect == ZicoDialect::Fressian || unlinked(&second.events) == 0);
    assert!(counted[0] > 300 && counted[1] > 300, "{counted:?}");
    for loss in losses(&[first.events, second.events].concat()) {
        assert_eq!(loss["reason"], "unauthorized", "{loss}");
    }
}

#[tokio::test]
async fn agents_of_the_binary_protocol_continue_after_a_restart_of_the_daemon() {
    survive(ZicoDialect::Fressian).await;
}

#[tokio::test]
async fn gen2_agents_continue_after_a_restart_of_the_daemon() {
    survive(ZicoDialect::Gen2).await;
}

#[tokio::test]
async fn gen1_agents_continue_after_a_restart_of_the_daemon_with_its_store() {
    survive(ZicoDialect::Gen1).await;
}

#[tokio::test]
async fn doc_agents_continue_after_a_restart_of_the_daemon_with_its_store() {
    survive(ZicoDialect::Doc).await;
}
