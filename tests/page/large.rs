//! Much data: it is shown, and how long that takes is measured and printed. No test asserts a time.

use serde_json::json;

use crate::browser::Browser;
use crate::wire::{Span, hello, now};
use crate::world::{LISTENERS, World};

const TRACES: u64 = 10;
const SPANS: u64 = 10_000;

/// Frames per second while an element is scrolled from its beginning to its end.
async fn scrolled(browser: &Browser, css: &str) -> f64 {
    let script = format!(
        "return (async () => {{ const element = document.querySelector({}); const frame = () => new Promise(requestAnimationFrame); \
         const started = await frame(); let frames = 0; let now = started; \
         while (now - started < 1000) {{ element.scrollTop = (element.scrollHeight - element.clientHeight) * (now - started) / 1000; now = await frame(); frames += 1; }} \
         return frames * 1000 / (now - started) }})()",
        json!(css)
    );
    browser.js(&script).await.as_f64().unwrap()
}

/// Milliseconds from opening a view until the script finds what it looks for, by the page's own clock.
async fn opened(browser: &Browser, hash: &str, script: &str) -> f64 {
    let script = format!(
        "return (async () => {{ const started = performance.now(); location.hash = {}; const look = () => {{ {script} }}; \
         while (!look()) {{ if (performance.now() - started > 60000) return null; await new Promise(requestAnimationFrame); }} \
         return performance.now() - started }})()",
        json!(hash)
    );
    browser.js(&script).await.as_f64().unwrap_or_else(|| panic!("{hash} did not open in time"))
}

#[tokio::test]
async fn a_window_of_a_hundred_thousand_spans_is_listed_opened_and_scrolled() {
    let Some(browser) = Browser::open().await else { return };
    let world = World::start("", LISTENERS).await;
    let start = now();
    for trace in 1..=TRACES {
        let mut bytes = hello(&["web.request", "sql.query", "shop", "db", "GET /cart"]);
        for id in 1..=SPANS {
            // A tree of eight calls each, in time order.
            let parent = if id == 1 { 0 } else { (id - 2) / 8 + 1 };
            let texts = if id % 3 == 0 { [2, 0, 0, 4] } else { [1, 0, 5, 3] };
            let span = Span {
                trace: u128::from(trace),
                id,
                parent,
                start: start + id * 1_000,
                duration: (SPANS - id + 1) * 1_000,
                texts,
                is_error: id % 1_000 == 0,
            };
            span.write(&mut bytes);
        }
        drop(world.send_bytes("spans", &bytes).await);
        world.until_events("spans", trace * SPANS).await;
    }
    world.settle().await;
    browser.goto(&world.page("overview")).await;
    browser.until_text("[data-listener=spans]", "datadog").await;
    let listed = opened(&browser, "#/traces", "return document.querySelectorAll('.line').length").await;
    let rows = browser.js("return document.querySelectorAll('.line').length").await;
    // The largest trace in the window.
    let id = browser.js("return [...document.querySelectorAll('.line')].sort((a, b) => Number(b.children[5].innerText.replaceAll(',', '')) - Number(a.children[5].innerText.replaceAll(',', ''))).map((line) => [line.querySelector('a').hash, Number(line.children[5].innerText.replaceAll(',', ''))])[0]").await;
    let shown =
        opened(&browser, id[0].as_str().unwrap(), "return document.querySelectorAll('.span-line').length > 5").await;
    let speed = scrolled(&browser, ".waterfall .scroll").await;
    let lines = browser.js("return document.querySelectorAll('.span-line').length").await;
    assert!(lines.as_u64().unwrap() < 200, "only lines in sight exist: {lines}");
    println!(
        "traces: {rows} listed in {listed:.0} ms; the trace of {} spans opened in {shown:.0} ms, scrolled at {speed:.0} frames/s",
        id[1]
    );
    let kept = browser.js("return document.querySelector('.scope').innerText").await;
    println!("traces: {kept}");
    browser.close().await;
    world.stop().await;
}

#[tokio::test]
async fn a_flame_graph_of_a_hundred_thousand_stacks_is_drawn() {
    let Some(browser) = Browser::open().await else { return };
    let world = World::start("", LISTENERS).await;
    browser.goto(&world.page("overview")).await;
    browser.until_text("[data-listener=spans]", "datadog").await;
    // The answers of the daemon for such a profile, as docs/api.md has them.
    let profile = "\
        const count = 100000; const names = Array.from({ length: 2000 }, (_, at) => `Shop::Module${at % 97}#method_${at} (app/file_${at % 211}.rb:${at % 400})`);
        const nodes = { name: [], parent: [], value: [], self: [] };
        let seed = 7; const random = () => (seed = (seed * 1103515245 + 12345) % 2147483648) / 2147483648;
        for (let id = 0; id < count; id += 1) {
          nodes.name.push(Math.floor(random() * names.length));
          nodes.parent.push(id === 0 ? -1 : Math.max(0, id - 1 - Math.floor(random() * 200)));
          nodes.self.push(1 + Math.floor(random() * 9)); nodes.value.push(nodes.self[id]);
        }
        for (let id = count - 1; id > 0; id -= 1) nodes.value[nodes.parent[id]] += nodes.value[id];
        const common = { window: { from_ms: 0, to_ms: 900000, limit_ms: 900000 }, coverage: { passed: 1, kept: 1, one_in: 1, text: 'all events' } };
        const flame = { ...common, agent: 'shop', type: 'cpu', unit: 'count', total: nodes.value[0], cut: 0, names, nodes };
        const list = { ...common, profiles: [{ agent: 'shop', protocol: 'rbkit', types: [{ type: 'cpu', unit: 'count', text: 'CPU samples', total: 1, stacks: count }], from_ms: 0, to_ms: 900000, history: { step_ms: 15000, from_ms: 0, values: [1] } }] };
        const text = { flame: JSON.stringify(flame), list: JSON.stringify(list) };
        const ask = window.fetch;
        window.fetch = (path, options) => path.startsWith('api/v1/profiles/flame') ? Promise.resolve(new Response(text.flame)) : path.startsWith('api/v1/profiles') ? Promise.resolve(new Response(text.list)) : ask(path, options);";
    browser.js(profile).await;
    let drawn =
        opened(&browser, "#/profiles", "return (document.querySelector('.flame canvas')?.height ?? 0) > 200").await;
    let speed = scrolled(&browser, ".flame").await;
    let inverted = browser.js("return (async () => { const started = performance.now(); [...document.querySelectorAll('button')].find((one) => one.innerText === 'Inverted').click(); await new Promise(requestAnimationFrame); await new Promise(requestAnimationFrame); return performance.now() - started })()").await;
    // A complete inverted tree of them has millions of nodes.
    browser.until_text("body", "small ones are shown without their callers").await;
    let found = browser.js("return (async () => { const field = document.querySelector(\"input[placeholder='Find functions']\"); field.value = 'method_77'; field.dispatchEvent(new Event('input')); const started = performance.now(); while (!document.body.innerText.includes(' found')) await new Promise(requestAnimationFrame); return performance.now() - started - 250 })()").await;
    println!(
        "flame graph of 100,000 stacks: opened in {drawn:.0} ms, scrolled at {speed:.0} frames/s, inverted in {inverted} ms, searched in {found} ms"
    );
    browser.close().await;
    world.stop().await;
}

#[tokio::test]
async fn the_page_is_small_and_names_a_listener_soon() {
    let Some(browser) = Browser::open().await else { return };
    let world = World::start("", LISTENERS).await;
    browser.goto(&world.page("")).await;
    browser.until_text("[data-listener=spans]", "datadog").await;
    let times = "const [page] = performance.getEntriesByType('navigation'); \
        return { files: performance.getEntriesByType('resource').filter((one) => !one.name.includes('/api/')).length, interactive: page.domInteractive, paint: performance.getEntriesByName('first-contentful-paint')[0]?.startTime }";
    println!("first view: {}", browser.js(times).await);
    let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/admin/page"))
        .unwrap()
        .map(|file| file.unwrap().path());
    let page = files.filter(|path| {
        path.extension().is_some_and(|ending| ["html", "css", "js", "svg"].iter().any(|one| ending == *one))
    });
    let bytes: u64 = page.map(|path| path.metadata().unwrap().len()).sum();
    println!("the files of the page have {bytes} bytes");
    assert!(bytes <= 260_000, "{bytes} bytes");
    browser.close().await;
    world.stop().await;
}
