//! Traces as points over time, their critical path, and two of them compared.

use serde_json::json;

use crate::browser::Browser;
use crate::wire::{Span, hello, now};
use crate::world::{LISTENERS, World};

const MS: u64 = 1_000_000;

/// Names, resources and services of the spans, by their ids.
const TEXTS: [&str; 6] = ["web.request", "sql.query", "shop", "db", "GET /cart", "cache.get"];

/// A trace: for each span its id, parent, start and duration in milliseconds, and its name.
fn trace(id: u128, spans: &[(u64, u64, u64, u64, u64)]) -> Vec<u8> {
    let (mut bytes, start) = (hello(&TEXTS), now());
    for &(span, parent, from, duration, name) in spans {
        let texts = [name, 0, if name == 1 { 5 } else { 0 }, if name == 2 { 4 } else { 3 }];
        let (start, duration) = (start + from * MS, duration * MS);
        Span { trace: id, id: span, parent, start, duration, texts, is_error: false }.write(&mut bytes);
    }
    bytes
}

/// A daemon that has received these traces.
async fn world(traces: &[Vec<u8>]) -> World {
    let world = World::start("", LISTENERS).await;
    for bytes in traces {
        drop(world.send_bytes("spans", bytes).await);
    }
    world.settle().await;
    world
}

#[tokio::test]
async fn a_range_that_is_dragged_over_the_points_goes_into_the_filters_and_back_takes_it_back() {
    let Some(browser) = Browser::open().await else { return };
    let world = world(&[trace(0xa, &[(1, 0, 0, 40, 1)]), trace(0xb, &[(2, 0, 0, 1, 2)])]).await;
    let lines = |count: usize| format!("return document.querySelectorAll('.line').length === {count}");
    browser.goto(&world.page("traces")).await;
    browser.until("both traces", &lines(2)).await;
    browser.until_text("p.small", "drag selects").await;
    // The upper half of the picture: what took longer than 6 ms.
    let place = browser.js("const { left, top, right } = document.querySelector('canvas.scatter').getBoundingClientRect(); return [left + 70, right - 4, top + 10, top + 90]").await;
    for (kind, x, y) in [("mousePressed", 0, 2), ("mouseMoved", 1, 3), ("mouseReleased", 1, 3)] {
        let event =
            json!({ "type": kind, "x": place[x], "y": place[y], "button": "left", "buttons": 1, "clickCount": 1 });
        browser.devtools("Input.dispatchMouseEvent", event).await;
    }
    browser.until("only the slow trace", &lines(1)).await;
    let hash = browser.js("return location.hash").await;
    let hash = hash.as_str().unwrap();
    assert!(["min_ms=", "max_ms=", "from=", "to="].iter().all(|name| hash.contains(name)), "{hash}");
    let filter = browser.js("return document.querySelector('input[type=number]').value").await;
    let least: f64 = filter.as_str().unwrap().parse().unwrap();
    assert!((2.0..20.0).contains(&least), "{least}");
    browser.js("history.back()").await;
    browser.until("both again", &lines(2)).await;
    // By the keyboard: the first point is selected, said and opened.
    browser.find("canvas.scatter").await.focus().await.unwrap();
    browser.press("\u{e014}").await;
    browser.until_text(".scatter-frame .unseen", "1 span").await;
    browser.press("\u{e007}").await;
    browser.until("a trace is open", "return document.querySelector('.span-line')").await;
    browser.close().await;
    world.stop().await;
}

#[tokio::test]
async fn the_critical_path_is_marked_and_a_span_leads_to_its_profile_and_to_similar_traces() {
    let Some(browser) = Browser::open().await else { return };
    // The request waits for both queries, not for the cache, which overlaps with the first.
    let spans = [(1, 0, 0, 40, 1), (2, 1, 5, 20, 2), (3, 1, 6, 4, 6), (4, 1, 30, 2, 2)];
    let world = world(&[trace(0xa, &spans)]).await;
    browser.goto(&world.page(&format!("traces/{:032x}", 0xa))).await;
    browser.until("four lines", "return document.querySelectorAll('.span-line').length === 4").await;
    let marks = "return [...document.querySelectorAll('.span-line')].map((line) => [...line.querySelectorAll('.critical')].map((mark) => `${mark.style.left} ${mark.style.width}`).sort())";
    let expected = json!([["0% 12.5%", "62.5% 12.5%", "80% 20%"], ["12.5% 50%"], [], ["75% 5%"]]);
    assert_eq!(browser.js(marks).await, expected);
    browser.until_text(".row.small", "web.request 45.0 %").await;
    browser.click(".span-line", "cache.get").await;
    browser.until_text("dl.facts", "not on it").await;
    browser.click(".span-line:nth-child(2)", "").await;
    browser.until_text("dl.facts", "20.0 ms of it").await;
    let links = browser.js("return [...document.querySelectorAll('a.button')].map((link) => link.hash)").await;
    let links: Vec<&str> = links.as_array().unwrap().iter().map(|link| link.as_str().unwrap()).collect();
    assert!(links.contains(&"#/traces?service=shop&name=web.request"), "{links:?}");
    assert!(links.iter().any(|link| link.starts_with("#/profiles?agent=") && link.contains("&from=")), "{links:?}");
    // The span is in the address.
    browser.reload().await;
    browser.until_text(".trace dl.facts", "20.0 ms of it").await;
    browser.close().await;
    world.stop().await;
}

#[tokio::test]
async fn two_traces_are_compared_span_by_span() {
    let Some(browser) = Browser::open().await else { return };
    let first = trace(0xa, &[(1, 0, 0, 40, 1), (2, 1, 5, 20, 2), (3, 1, 30, 2, 2)]);
    let second = trace(0xb, &[(1, 0, 0, 80, 1), (2, 1, 5, 10, 2), (3, 1, 30, 4, 6)]);
    let world = world(&[first, second]).await;
    browser.goto(&world.page(&format!("traces/{:032x}", 0xa))).await;
    browser.click("button", "Compare…").await;
    browser.until_text("dialog .stack button", "80.0 ms").await;
    browser.click("dialog .stack button", "").await;
    browser.until_text("[role=status].small", "2 spans in both, 1 missing in the second, 1 additional in it").await;
    let rows = "return [...document.querySelectorAll('.line')].map((line) => [0, 2, 3, 4, 6].map((at) => line.children[at].innerText.split('\\n')[0]))";
    let expected = json!([
        ["web.request", "40.0 ms", "80.0 ms", "+40.0 ms (+100 %)", ""],
        ["sql.query", "20.0 ms", "10.0 ms", "−10.0 ms (−50.0 %)", ""],
        ["cache.get", "–", "4.00 ms", "", "additional"],
        ["sql.query", "2.00 ms", "–", "", "missing"],
    ]);
    let found = browser.js(rows).await;
    let sorted = |rows: &serde_json::Value| {
        let mut rows: Vec<String> = rows.as_array().unwrap().iter().map(ToString::to_string).collect();
        rows.sort();
        rows
    };
    assert_eq!(sorted(&found), sorted(&expected));
    browser.click(".segments button", "Missing").await;
    browser.until("one row", "return document.querySelectorAll('.line').length === 1").await;
    browser.close().await;
    world.stop().await;
}
