//! Each view shows what the daemon counts and keeps.

use std::future::pending;

use serde_json::{Value, json};
use tributary::simulate::{AgentKind, Amount, bytefrog, datadog, endless, rbkit, zico};

use crate::browser::Browser;
use crate::live::wire as texts;
use crate::live::within;
use crate::wire::{Span, hello, meta, now};
use crate::world::{LISTENERS, World};

const SPANS: AgentKind = AgentKind::Datadog(datadog::DatadogDialect::Exact);
const DESKTOPS: AgentKind = AgentKind::Endless(endless::AgentVersion::V3);
const ZORKA: AgentKind = AgentKind::Zico(zico::ZicoDialect::Gen2);

/// The texts of a column of the first table, by its number.
fn column(number: usize) -> String {
    format!("return [...document.querySelectorAll('.table .line')].map((line) => line.children[{number}].innerText)")
}

/// The first text of a column.
fn first_of(number: usize) -> String {
    format!("return document.querySelector('.table .line')?.children[{number}].innerText")
}

/// The sum of a column of numbers.
fn sum_of(number: usize) -> String {
    format!("{}.reduce((sum, text) => sum + Number(text.replaceAll(',', '')), 0)", column(number))
}

#[tokio::test]
async fn the_overview_shows_every_listener_and_sink_with_its_counters() {
    let Some(browser) = Browser::open().await else { return };
    let world = World::start("", &format!("{LISTENERS}[sinks.void]\ntype = \"discard\"\n")).await;
    browser.goto(&world.page("")).await;
    browser.until_text("[data-listener=spans]", "0/s").await;
    world.send("spans", SPANS, 700).await;
    world.send("desktops", DESKTOPS, 90).await;
    let totals = world.daemon.server.accounting().totals();
    let events: u64 = totals.listeners.iter().map(tributary::pipeline::accounting::ListenerTotals::events).sum();
    assert!((790..1000).contains(&events), "{events}");
    browser.until_text(".tile", &format!("{events} in all")).await;
    for listener in &totals.listeners {
        let css = format!("[data-listener={}]", listener.name);
        browser.until_text(&css, listener.protocol.as_str()).await;
    }
    browser.until_text("[data-sink=void]", "writes").await;
    browser.until_text(".ready", "Ready").await;
    let edges = browser.js("return document.querySelectorAll('.edge').length").await;
    assert_eq!(edges, json!(4), "each listener has an edge to the sink");
    browser.close().await;
    world.stop().await;
}

#[tokio::test]
async fn agents_are_listed_filtered_and_opened() {
    let Some(browser) = Browser::open().await else { return };
    let world = World::start("", LISTENERS).await;
    browser.goto(&world.page("agents")).await;
    browser.until_text(".empty", "No agent has been seen yet").await;
    world.send("desktops", DESKTOPS, 60).await;
    world.send("zorka", ZORKA, 300).await;
    browser
        .until(
            "both protocols are listed",
            "return ['endless', 'zico'].every((name) => document.querySelector('.lines')?.innerText.includes(name))",
        )
        .await;
    let sum = browser.js(&sum_of(6)).await;
    let counted: u64 = world.daemon.server.accounting().totals().listeners.iter().map(|one| one.events()).sum();
    assert_eq!(sum, json!(counted));
    browser.choose("Protocol", "zico").await;
    browser.until_no_text(".lines", "endless").await;
    browser.until_text(".lines", "zico").await;
    browser.click(".line a", "").await;
    browser.until_text("dl.facts", "zorka").await;
    browser.until_text("dl.facts", "zico.session.id").await;
    let name = browser.until("its events", &first_of(2)).await;
    assert!(world.events().iter().any(|event| event["name"] == name), "{name}");
    browser.close().await;
    world.stop().await;
}

#[tokio::test]
async fn live_events_appear_as_they_pass_are_filtered_paused_and_opened() {
    let Some(browser) = Browser::open().await else { return };
    let world = World::start("", LISTENERS).await;
    browser.goto(&world.page("live?kind=span")).await;
    browser.until_text(".empty", "No event matches yet").await;
    let first = |trace: u128| {
        let mut bytes = hello(&["page.view", "numbers", "9007199254740993"]);
        Span { trace, id: 1, parent: 0, start: now(), duration: 1500, texts: [1, 0, 0, 0], is_error: false }
            .write(&mut bytes);
        bytes.extend(meta(2, 3));
        bytes.extend(texts::metric(2, 1.0));
        bytes
    };
    drop(world.send_bytes("spans", &first(1)).await);
    browser.until_text(".line", "page.view").await;
    assert_eq!(browser.js(&column(1)).await, json!(["span"]), "the log of the process does not match");
    // Opened, it is the event as the sinks write it, to the last digit.
    browser.click(".line", "page.view").await;
    let shown = browser.text(".detail-pane pre").await;
    let shown: Value = serde_json::from_str(&shown).unwrap();
    let written = world.daemon.until_named("page.view").await;
    assert_eq!(shown, written);
    // Paused, the list stays, and what passes is counted.
    browser.click("[data-pause]", "Pause").await;
    drop(world.send_bytes("spans", &first(2)).await);
    browser.until_text(".scope", "1 event since").await;
    assert_eq!(browser.js(&column(1)).await, json!(["span"]));
    browser.click("[data-pause]", "Continue").await;
    // A text that no event has leaves nothing.
    browser.enter("input[placeholder^=anywhere]", "nowhere to be found").await;
    browser.until_text(".empty", "No event matches yet").await;
    browser.close().await;
    world.stop().await;
}

#[tokio::test]
async fn the_wire_view_explains_bytes_as_they_arrive() {
    let Some(browser) = Browser::open().await else { return };
    let world = World::start("", LISTENERS).await;
    browser.goto(&world.page("live?view=wire&listener=spans")).await;
    browser.until_text(".empty", "Waiting for bytes").await;
    let mut found = Value::Null;
    // The subscription begins some time after the view is drawn.
    for _ in 0..100 {
        drop(world.send_bytes("spans", &hello(&["explained.text"])).await);
        found = browser.js("return document.querySelector('.wire')?.innerText ?? ''").await;
        if found.as_str().unwrap().contains("explained.text") {
            break;
        }
    }
    let found = found.as_str().unwrap();
    assert!(found.contains("explained.text") && found.contains("spans (datadog)"), "{found}");
    browser.close().await;
    world.stop().await;
}

#[tokio::test]
async fn traces_are_listed_filtered_and_open_as_a_timeline_and_a_flame_chart() {
    let Some(browser) = Browser::open().await else { return };
    let world = World::start("", LISTENERS).await;
    browser.goto(&world.page("traces")).await;
    browser.until_text(".empty", "No trace yet").await;
    let mut bytes = hello(&["web.request", "sql.query", "shop", "db", "GET /cart", "SELECT 1", "cron.job"]);
    let start = now();
    let ms = 1_000_000;
    let span = |trace, id, parent, from: u64, duration, texts, is_error| Span {
        trace,
        id,
        parent,
        start: start + from,
        duration,
        texts,
        is_error,
    };
    for span in [
        span(0xabc, 1, 0, 0, 40 * ms, [1, 0, 5, 3], false),
        span(0xabc, 2, 1, 5 * ms, 20 * ms, [2, 0, 6, 4], true),
        span(0xabc, 3, 1, 30 * ms, 2 * ms, [2, 0, 6, 4], false),
        span(0xdef, 4, 0, 0, ms, [7, 0, 0, 3], false),
    ] {
        span.write(&mut bytes);
    }
    drop(world.send_bytes("spans", &bytes).await);
    browser.until("two traces", "return document.querySelectorAll('.line').length === 2").await;
    browser.click(".segments button", "Slowest").await;
    browser
        .until("the slowest is first", "return document.querySelector('.line')?.innerText.includes('40.0 ms')")
        .await;
    browser.click("label.check input", "").await;
    browser.until("only the one with an error", "return document.querySelectorAll('.line').length === 1").await;
    browser.click(".line a", "").await;
    browser.until("three lines", "return document.querySelectorAll('.span-line').length === 3").await;
    let hash = browser.js("return location.hash").await;
    assert!(hash.as_str().unwrap().starts_with("#/traces/00000000000000000000000000000abc"), "{hash}");
    browser.until_text(".span-line", "20.0 ms").await;
    // Bars stand where the spans were: half of the trace, from an eighth of it on.
    let bar = browser.js("const bar = document.querySelectorAll('.bar')[1]; return [bar.style.left, bar.style.width, bar.classList.contains('is-error')]").await;
    assert_eq!(bar, json!(["12.5%", "50%", true]));
    browser.click(".span-line", "SELECT 1").await;
    browser.until_text(".trace dl.facts", "web.request").await;
    browser.click("button", "All attributes").await;
    browser.until_text(".trace .event pre", "\"datadog.resource\": \"SELECT 1\"").await;
    browser.click(".segments button", "Flame chart").await;
    browser.find(".flame canvas").await.focus().await.unwrap();
    browser.press("\u{e015}\u{e015}").await;
    browser.until_text(".unseen", "sql.query").await;
    browser.close().await;
    world.stop().await;
}

#[tokio::test]
async fn exceptions_stand_beside_the_trace_in_which_they_were_thrown() {
    let Some(browser) = Browser::open().await else { return };
    let world = World::start("", LISTENERS).await;
    world.send("zorka", ZORKA, 2_000).await;
    let events = world.events();
    let exception = events.iter().find(|event| event["name"] == "zico.exception").unwrap();
    let trace = exception["trace_id"].as_str().unwrap();
    browser.goto(&world.page("traces?protocol=zico&status=error")).await;
    browser.until("traces with errors", "return document.querySelectorAll('.line').length").await;
    browser.goto(&world.page(&format!("traces/{trace}"))).await;
    let what = exception["attributes"]["exception.type"].as_str().unwrap();
    browser.until_text(".logs summary", what).await;
    browser.click(".logs summary", what).await;
    browser.until("its span is selected", "return document.querySelector('.span-line[aria-selected=true]')").await;
    browser.close().await;
    world.stop().await;
}

/// A simulated Ruby process, and the listener that dials it.
async fn ruby() -> (rbkit::SimulatedProcess, String) {
    let any = ([127, 0, 0, 1], 0).into();
    let process = rbkit::SimulatedProcess::bind(rbkit::Options {
        publish: any,
        request: any,
        heap_objects: 500,
        ..Default::default()
    });
    let process = process.await.unwrap();
    let rbkit::Options { publish, request, .. } = process.options();
    let listener = format!(
        "[listeners.ruby]\nprotocol = \"rbkit\"\nagents = [{{ publish = \"{publish}\", request = \"{request}\", enable = [\"cpu_profile\", \"memory_profile\"] }}]\n"
    );
    (process, listener)
}

#[tokio::test]
async fn profiles_are_flame_graphs_that_are_searched_inverted_and_saved() {
    let Some(browser) = Browser::open().await else { return };
    let (process, listener) = ruby().await;
    // Without objects, which the process would send before the CPU profile is on.
    let world = World::start("", &listener.replace(", \"memory_profile\"", "")).await;
    let plan = rbkit::Plan { amount: Amount::Events(3_000), rate: None, seed: 1 };
    within("the process ends", process.run(plan, pending())).await.unwrap();
    let samples = |events: &[Value]| events.iter().filter(|event| event["name"] == "rbkit.cpu").count() as u64;
    browser.goto(&world.page("profiles")).await;
    browser.until_text("button[aria-pressed=true]", "CPU").await;
    let count = samples(&world.events());
    assert!(count > 0);
    browser.until_text(".panel header", &format!("{} in", thousands(count))).await;
    // The table of functions adds up to the samples.
    let sum = browser.js(&sum_of(1)).await;
    assert!(sum.as_u64().unwrap() <= count, "{sum} of {count}");
    let events = world.events();
    let sample = events.iter().find(|event| event["name"] == "rbkit.cpu").unwrap();
    let frames = sample["sample"]["frames"].as_array().unwrap();
    let innermost = frames[0]["function"].as_str().unwrap();
    browser.enter("input[placeholder='Find functions']", innermost).await;
    browser.until_text(".panel header", "found").await;
    browser.until_no_text(".panel header", " 0 found").await;
    browser.click(".segments button", "Inverted").await;
    browser.find(".flame canvas").await.focus().await.unwrap();
    browser.press("\u{e015}").await;
    browser.until_text(".unseen", "self").await;
    browser.close().await;
    world.stop().await;
}

#[tokio::test]
async fn heap_dumps_are_taken_shown_and_compared() {
    let Some(browser) = Browser::open().await else { return };
    let (process, listener) = ruby().await;
    let world = World::start("", &listener).await;
    let plan = rbkit::Plan { amount: Amount::For(crate::live::PATIENCE * 2), rate: Some(50), seed: 1 };
    let running = tokio::spawn(process.run(plan, pending()));
    browser.goto(&world.page("heap")).await;
    browser.until_text(".empty", "No heap dump yet").await;
    for dumps in 1..=2 {
        browser.click("[data-command=objectspace_snapshot]", "").await;
        browser.click("[data-confirm=objectspace_snapshot]", "Send the command").await;
        browser.until_text(".outcome", "received").await;
        let script = format!(
            "return [...document.querySelectorAll('label')].find((one) => one.innerText.startsWith('Dump'))?.querySelectorAll('option').length === {dumps}"
        );
        browser.until("the dump is listed", &script).await;
    }
    let dump = world.daemon.until_named("rbkit.heap.dump").await;
    let objects = dump["attributes"]["rbkit.dump.object_count"].as_u64().unwrap();
    browser.until_text(".row.small", "objects").await;
    let count = browser.js(&sum_of(4)).await;
    assert!(count.as_u64().unwrap() > 0 && objects > 0, "{count}");
    browser.click(".line", "String").await;
    browser.until_text("h2", "References of").await;
    let other = "const list = [...document.querySelectorAll('label')].find((one) => one.innerText.startsWith('Compared'))?.querySelector('select'); return list?.options[1]?.value";
    let other = browser.until("another dump", other).await;
    browser.choose("Compared with", other.as_str().unwrap()).await;
    browser.until_text(".titles", "Before").await;
    browser.close().await;
    running.abort();
    world.stop().await;
}

#[tokio::test]
async fn the_code_view_shows_what_ran_and_what_ran_since_a_mark() {
    let Some(browser) = Browser::open().await else { return };
    let world = World::start("", LISTENERS).await;
    browser.goto(&world.page("code")).await;
    browser.until_text(".empty", "No Java program yet").await;
    world.send("java", AgentKind::Bytefrog(bytefrog::Options::default()), 5_000).await;
    browser.until_text(".row.small", "methods ran").await;
    let events = world.events();
    let entered: std::collections::BTreeSet<&str> = events
        .iter()
        .filter(|event| event["name"] == "bytefrog.method.entry")
        .filter_map(|event| event["attributes"]["code.function.name"].as_str())
        .collect();
    browser.click(".segments button", "Ran").await;
    let shown = browser.js(&column(0)).await;
    assert!(!shown.as_array().unwrap().is_empty());
    for name in shown.as_array().unwrap() {
        let name = name.as_str().unwrap().replace('\n', "");
        assert!(entered.contains(name.as_str()), "{name} ran");
    }
    browser.enter("input[aria-label='Name of the mark']", "after <b>all</b>").await;
    browser.click("button", "Mark this moment").await;
    browser.until_text("[role=status]", "after <b>all</b>").await;
    browser.until_text(".row.small", "0 of").await;
    browser.close().await;
    world.stop().await;
}

#[tokio::test]
async fn machines_are_shown_by_event_image_and_one_by_one() {
    let Some(browser) = Browser::open().await else { return };
    let world = World::start("", LISTENERS).await;
    browser.goto(&world.page("machines")).await;
    browser.until_text(".empty", "No machine yet").await;
    world.send("desktops", DESKTOPS, 400).await;
    browser.until_text("h2", "Events by name").await;
    let events = world.events();
    let image = events.iter().find_map(|event| event["resource"]["endless.image"].as_str()).unwrap();
    browser.until_text("table.plain td", image).await;
    browser.click(".line a", "").await;
    browser.until_text("h2", "Its events").await;
    let name = browser.until("an event", &first_of(2)).await;
    assert!(events.iter().any(|event| event["name"] == name), "{name}");
    browser.close().await;
    world.stop().await;
}

#[tokio::test]
async fn losses_are_grouped_explained_and_name_the_key_that_governs_them() {
    let Some(browser) = Browser::open().await else { return };
    let world = World::start("", LISTENERS).await;
    browser.goto(&world.page("losses")).await;
    browser.until_text(".empty", "Nothing was lost").await;
    for _ in 0..3 {
        drop(world.send_bytes("spans", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await);
    }
    browser.until_text("table.plain td", "malformed").await;
    browser
        .until("three losses in one group", "return document.querySelector('.line')?.children[3].innerText === '3'")
        .await;
    browser.click(".line", "malformed").await;
    browser.until_text(".detail-pane", "released Datadog tracers").await;
    browser.until_text(".detail-pane pre", "47 45 54").await;
    browser.close().await;
    world.stop().await;
}

/// A number with groups of three digits.
fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).unwrap()).collect();
    groups.join(",")
}
