//! The bounds of the view: memory, processor time, and names that peers choose.

use std::time::Instant;

use super::*;
use crate::live::{connect, send_all, wire};

/// Spans with a string of this length each, every one of a trace of its own. The strings have nothing in common: packing does not make
/// them smaller, so it does not matter how many are packed.
fn texts(connection: u64, count: u64, length: usize) -> Vec<u8> {
    let mut state = connection;
    let mut one = |id: u64| {
        let letters = (0..length).map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            char::from(b'a' + (state >> 33) as u8 % 26)
        });
        let text: String = letters.collect();
        let mut bytes = wire::named_span(id, &format!("{id}{text}"));
        let trace = bytes.windows(16).position(|part| part == [7; 16]).unwrap();
        bytes[trace..trace + 16].copy_from_slice(&u128::from(connection << 32 | id).to_be_bytes());
        bytes
    };
    wire::process().into_iter().chain((1..=count).flat_map(&mut one)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_view_that_is_full_becomes_sparse_and_stays_within_its_memory() {
    let memory = 4 << 20;
    let settings = format!("{SETTINGS}memory = {memory}\n{}", listener(""));
    let daemon = Daemon::start(&settings).await;
    let mut kept = 0;
    for connection in 1..=60 {
        send_all(connect(&daemon.server).await, &texts(connection, 500, 500)).await;
        settle(&daemon).await;
        let overview = json(&daemon, "overview").await;
        let used = number(&overview["view"]["used"]);
        assert!(used <= memory, "{used} bytes");
        kept = number(&overview["view"]["kept"]);
    }
    let passed = daemon.counters().events();
    let events = until(&daemon, "events", |events| number(&events["coverage"]["passed"]) == passed).await;
    let coverage = &events["coverage"];
    assert!(kept > 0 && kept < passed / 2, "{kept} of {passed}");
    assert_eq!(number(&coverage["one_in"]), (passed + number(&coverage["kept"]) / 2) / number(&coverage["kept"]));
    assert!(coverage["text"].as_str().unwrap().ends_with("the rest was counted, not kept"), "{coverage}");
    // The window reaches back to the beginning and to the present: it is sparse, not short.
    let first = daemon.events()[0]["origin"]["connection"].clone();
    let all = json(&daemon, "events?limit=1000").await;
    let connections: std::collections::BTreeSet<u64> =
        array(&all, "events").iter().map(|event| number(&event["event"]["origin"]["connection"])).collect();
    assert!(connections.len() >= 3, "{connections:?} of 60, the first is {first}");
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_view_has_no_time_for_is_counted_and_no_sink_misses_it() {
    let settings = format!("[admin]\nlisten = \"127.0.0.1:0\"\n[view]\ncpu_percent = 1\n{}", listener(""));
    let daemon = Daemon::start(&settings).await;
    let (bytes, events) = wire::work(20_000);
    let mut sent = 0;
    // Until the budget is spent: a second of it is ten milliseconds of work.
    loop {
        send_all(connect(&daemon.server).await, &bytes).await;
        sent += events;
        let answer = json(&daemon, "overview").await;
        assert_eq!(answer["ready"]["is_ready"], true, "{}", answer["ready"]);
        if number(&answer["view"]["skipped"]) > 0 {
            break;
        }
    }
    settle(&daemon).await;
    let view = until(&daemon, "overview", |overview| {
        number(&overview["view"]["seen"]) + number(&overview["view"]["skipped"]) == sent
    })
    .await;
    assert!(number(&view["view"]["seen"]) < sent);
    let coverage = json(&daemon, "traces").await["coverage"].clone();
    // Of each connection one event is no span.
    assert_eq!(number(&coverage["passed"]), sent - sent / events);
    assert!(number(&coverage["kept"]) < number(&coverage["passed"]), "{coverage}");
    let stopped = daemon.stop().await;
    assert_eq!(stopped.events.len() as u64, sent, "the other sink has everything");
    assert_eq!((stopped.totals.sinks.len(), stopped.totals.failed()), (1, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_window_of_100_000_spans_is_listed_and_opened() {
    let settings = format!("{SETTINGS}memory = \"256MiB\"\nmax_answer = \"64MiB\"\n{}", listener(""));
    let daemon = Daemon::start(&format!("[limits]\nmemory_bytes = \"1GiB\"\n{settings}")).await;
    // The queue of the view takes four mebibytes, so it gets the spans in pieces.
    for piece in 1..=50 {
        let (bytes, events) = wire::work(2_000);
        send_all(connect(&daemon.server).await, &bytes).await;
        until(&daemon, "overview", |overview| number(&overview["view"]["kept"]) == piece * events).await;
    }
    let began = Instant::now();
    let list = json(&daemon, "traces").await;
    let listed = began.elapsed();
    assert_eq!((number(&list["traces"][0]["spans"]), &list["coverage"]["text"]), (100_000, &"all events".into()));
    let one = json(&daemon, &format!("traces/{}?limit=100000", "07".repeat(16))).await;
    assert_eq!((array(&one, "spans").len(), &one["is_cut"]), (100_000, &false.into()));
    println!("100,000 spans: list {listed:?}, list and trace {:?}", began.elapsed());
    let view = &json(&daemon, "overview").await["view"];
    assert!(number(&view["used"]) <= number(&view["memory"]), "{view}");
    daemon.stop().await;
}

/// A string and a span of the service with that name, in a trace of its own.
fn of_service(id: u64, service: &str) -> Vec<u8> {
    let mut span = wire::span(1);
    span[2..10].copy_from_slice(&id.to_be_bytes());
    span[18..34].copy_from_slice(&u128::from(id).to_be_bytes());
    span[74..82].copy_from_slice(&(10 + id).to_be_bytes());
    [wire::string(10 + id, service), span].concat()
}

#[tokio::test]
async fn lists_of_more_than_an_answer_holds_have_the_latest_and_say_that_they_are_cut() {
    // So much that each agent has sums of its own.
    let view = "memory = \"128MiB\"\nmax_answer = \"64KiB\"";
    let limits = "[limits]\nmemory_bytes = \"512MiB\"";
    let daemon = Daemon::start(&format!("{limits}\n{SETTINGS}{view}\n{}", listener(""))).await;
    let spans = (1..=3000).flat_map(|id| of_service(id, &format!("svc{id}")));
    let bytes = wire::process().into_iter().chain(wire::string(1, "work")).chain(spans).collect::<Vec<u8>>();
    send_all(connect(&daemon.server).await, &bytes).await;
    settle(&daemon).await;
    until(&daemon, "overview", |overview| number(&overview["view"]["kept"]) == 3001).await;
    // 64 KiB are for the list and for everything that it is made of.
    let profiles = json(&daemon, "profiles").await;
    let agents: Vec<&str> = array(&profiles, "profiles").iter().map(|one| one["agent"].as_str().unwrap()).collect();
    assert_eq!(profiles["is_cut"], true);
    assert!(agents.len() > 10 && agents.len() < 200, "{}", agents.len());
    assert!(agents.iter().any(|agent| agent.starts_with("svc3000 ")), "{agents:?}");
    let few = json(&daemon, "profiles?limit=3").await;
    assert_eq!((array(&few, "profiles").len(), &few["is_cut"]), (3, &true.into()));
    let traces = json(&daemon, "traces").await;
    assert_eq!((array(&traces, "traces").len(), &traces["is_cut"]), (50, &true.into()));
    assert!(number(&traces["total"]) < 3000, "{}", traces["total"]);
    // All stacks are summed up, in less memory than each would have.
    let flame = json(&daemon, "profiles/flame?type=calls").await;
    assert_eq!(number(&flame["total"]), 3000);
    assert_eq!(get(&daemon, "profiles/chart?agent=svc7").await.status, 200);
    daemon.stop().await;
}

#[tokio::test]
async fn an_answer_that_is_too_large_is_refused_and_a_smaller_one_is_made() {
    let daemon = Daemon::start(&format!("{SETTINGS}max_answer = \"64KiB\"\n{}", listener(""))).await;
    send_all(connect(&daemon.server).await, &wire::work(1000).0).await;
    settle(&daemon).await;
    until(&daemon, "overview", |overview| number(&overview["view"]["kept"]) == 1001).await;
    let large = get(&daemon, "events?limit=1000").await;
    assert_eq!(large.status, 413);
    assert!(large.json()["error"].as_str().unwrap().contains("[view] max_answer"));
    assert_eq!(array(&json(&daemon, "events?limit=10").await, "events").len(), 10);
    daemon.stop().await;
}

#[tokio::test]
async fn names_that_are_markup_or_controls_stay_texts_in_json() {
    let daemon = of_spans().await;
    let names = [
        "<script>alert(1)</script>",
        "\"><img src=x onerror=alert(1)>",
        "</script>\u{202E}gnp.exe",
        "a\u{0}b\u{1b}[2J",
        "data: x\n\nevent: alive\ndata: {}",
        &"long".repeat(5000),
    ];
    let spans = (1..).zip(names).flat_map(|(id, name)| wire::named_span(id, name));
    let bytes: Vec<u8> = wire::process().into_iter().chain(spans).collect();
    send_all(connect(&daemon.server).await, &bytes).await;
    settle(&daemon).await;
    until(&daemon, "overview", |overview| number(&overview["view"]["kept"]) == 7).await;
    let one = json(&daemon, &format!("traces/{}", "07".repeat(16))).await;
    let shown: Vec<&str> = array(&one, "spans").iter().map(|span| span["name"].as_str().unwrap()).collect();
    for name in &names[..5] {
        assert!(shown.contains(name), "{name:?} of {shown:?}");
    }
    assert!(shown.iter().all(|name| name.len() <= 2048));
    let found = json(&daemon, "events?text=longlong").await;
    // The listener cuts names (max_text.name).
    assert_eq!(array(&found, "events")[0]["event"]["name"], names[5][..100]);
    for path in ["traces", "events?kind=span", "profiles", "profiles/flame?type=calls", "agents", "losses"] {
        json(&daemon, path).await;
    }
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_changes_the_bounds_of_the_view_and_keeps_what_fits() {
    let settings = |view: &str| format!("[admin]\nlisten = \"127.0.0.1:0\"\n[view]\n{view}\n{}", listener(""));
    let with =
        |memory: u64, window: &str| settings(&format!("memory = {memory}\nwindow = \"{window}\"\ncpu_percent = 90"));
    let (large, small) = (16 << 20, 1 << 20);
    let mut daemon = Daemon::start(&with(large, "10m")).await;
    for _ in 0..8 {
        send_all(connect(&daemon.server).await, &texts(1, 500, 500)).await;
        settle(&daemon).await;
    }
    let view = async |daemon: &Daemon| json(daemon, "overview").await["view"].clone();
    let before = view(&daemon).await;
    assert!(number(&before["used"]) > small, "{before}");
    let reloaded = daemon.server.reload(&crate::live::config(&with(small, "5m"))).await.unwrap();
    assert_eq!((reloaded.changes.join(" "), reloaded.stale.len()), ("view changed".to_owned(), 0));
    let after = view(&daemon).await;
    assert_eq!((number(&after["memory"]), number(&after["window_ms"])), (small, 300_000));
    assert!(number(&after["used"]) <= small && number(&after["kept"]) > 0, "{after}");
    assert!(number(&after["kept"]) < number(&before["kept"]), "{after}");
    // Only to switch it needs a restart.
    for _ in 0..2 {
        let off = daemon.server.reload(&crate::live::config(&settings("enabled = false"))).await.unwrap();
        assert!(off.stale.iter().all(|line| line == "to switch the view off needs a restart"), "{:?}", off.stale);
    }
    assert_eq!(view(&daemon).await["is_on"], true);
    daemon.stop().await;
}
