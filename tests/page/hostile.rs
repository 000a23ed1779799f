//! Agents whose every text is an attack on the page.

use serde_json::json;

use crate::browser::Browser;
use crate::rbkit_support::agent::Agent;
use crate::wire::{Span, hello, meta, now};
use crate::world::{LISTENERS, World};

const VIEWS: [&str; 11] =
    ["overview", "services", "map", "agents", "live", "traces", "profiles", "heap", "code", "machines", "losses"];

/// Markup, scripts, quotes, directions, invisible characters, names of JavaScript, and a text of this many bytes.
fn texts(longest: usize) -> Vec<String> {
    let long = "W".repeat(longest);
    [
        "<script>window.hacked = 1</script>",
        "<img src=x onerror=\"window.hacked = 2\">",
        "\"'><svg onload=window.hacked=3>",
        "javascript:window.hacked=4",
        "{{constructor.constructor('window.hacked=5')()}}",
        "\u{202e}txet desrever\u{202c}",
        "a\u{200b}\u{feff}b\u{0}c\u{1b}[31md\r\ne\u{2028}f",
        "__proto__",
        "constructor",
        "</style><style>*{display:none}</style>",
        &long,
        "",
    ]
    .map(str::to_owned)
    .to_vec()
}

#[tokio::test]
async fn texts_of_agents_are_text_and_the_layout_holds() {
    let Some(browser) = Browser::open().await else { return };
    let world = World::start("", LISTENERS).await;
    let texts = texts(1 << 20);
    let names: Vec<&str> = texts.iter().map(String::as_str).collect();
    let count = names.len() as u64;
    let mut bytes = hello(&names);
    for id in 1..=count {
        let other = id % count + 1;
        // Each is a name, a type, a resource and a service.
        let texts = [id, other, (id + 2) % count + 1, (id + 5) % count + 1];
        Span {
            trace: 0xbad,
            id,
            parent: id - 1,
            start: now(),
            duration: 1_000 * (count - id),
            texts,
            is_error: id % 2 == 0,
        }
        .write(&mut bytes);
        bytes.extend(meta(id, other));
    }
    drop(world.send_bytes("spans", &bytes).await);
    drop(world.send_bytes("spans", b"<script>window.hacked = 6</script>").await);
    world.settle().await;

    let views = VIEWS.map(str::to_owned).into_iter().chain([
        format!("traces/{:032x}", 0xbad),
        format!("traces/{:032x}?with={:032x}", 0xbad, 0xbad),
        "services/<script>window.hacked=8<%2Fscript>?range=<b>&from=x&sort=<i> up".into(),
        "live?kind=<script>alert(1)</script>".into(),
        "agents/<img src=x onerror=window.hacked=7>".into(),
    ]);
    for view in views {
        browser.goto("about:blank").await;
        browser.goto(&world.page(&view)).await;
        browser.until("the view is drawn", "return document.querySelector('h1')?.innerText").await;
        browser
            .until(
                &format!("{view} has data or says that there is none"),
                "return document.querySelector('.line, .span-line, .empty, .card, .error, .facts')",
            )
            .await;
        for (width, height) in [(1280, 800), (390, 844)] {
            browser.size(width, height).await;
            let wide = browser.js("return [document.documentElement.scrollWidth, innerWidth]").await;
            assert!(wide[0].as_u64() <= wide[1].as_u64(), "{view} is wider than the window: {wide}");
        }
        browser.size(1280, 800).await;
        let state = browser.js("return [window.hacked ?? null, document.scripts.length, document.querySelectorAll('main img, main style, main svg[onload]').length]").await;
        assert_eq!(state, json!([null, 1, 0]), "{view}");
    }
    browser.goto(&world.page(&format!("traces/{:032x}", 0xbad))).await;
    browser.until_text(".span-line", "<script>window.hacked = 1</script>").await;
    browser.until_text(".span-line", "\\u202etxet desrever").await;
    for line in 0..6 {
        browser.js(&format!("document.querySelectorAll('.span-line')[{line}].click()")).await;
        browser.click("button", "All attributes").await;
        browser.until_text(".trace .event pre", "datadog.resource").await;
    }
    browser.click(".segments button", "Flame chart").await;
    browser.find(".flame canvas").await;
    assert_eq!(browser.js("return window.hacked ?? null").await, json!(null));
    // A filter of the address that is not valid is an error of the daemon, which the page shows.
    let errors: Vec<String> =
        browser.errors().await.into_iter().filter(|error| !error.contains("status of 40")).collect();
    assert!(errors.is_empty(), "{errors:#?}");
    browser.quit().await;
    world.stop().await;
}

/// A MessagePack map with integer keys.
fn map(pairs: Vec<(u64, rmpv::Value)>) -> rmpv::Value {
    rmpv::Value::Map(pairs.into_iter().map(|(key, value)| (key.into(), value)).collect())
}

#[tokio::test]
async fn names_of_classes_files_and_functions_are_text_too() {
    let Some(browser) = Browser::open().await else { return };
    let agent = Agent::bind().await;
    let (publish, request) = (agent.publish, agent.request);
    let enable = "enable = [\"cpu_profile\", \"memory_profile\"]";
    let ruby = format!(
        "[listeners.ruby]\nprotocol = \"rbkit\"\nagents = [{{ publish = \"{publish}\", request = \"{request}\", {enable} }}]\n"
    );
    let world = World::start("", &ruby).await;
    agent.until_subscribed().await;
    let texts = texts(60_000);
    let millis = rmpv::Value::F64(now() as f64 / 1e6);
    let text = |at: usize| rmpv::Value::from(texts[at % texts.len()].as_str());
    let object = |at: usize| {
        let references = rmpv::Value::Array(vec![((at as u64 + 1) % 12 + 1).into()]);
        map(vec![
            (3, (at as u64 + 1).into()),
            (4, text(at)),
            (5, references),
            (6, text(at + 1)),
            (7, 3.into()),
            (8, 40.into()),
        ])
    };
    let objects = rmpv::Value::Array((0..texts.len()).map(object).collect());
    let dump = map(vec![(0, 5.into()), (1, millis.clone()), (2, objects), (10, 1.into()), (11, texts.len().into())]);
    let frame = |at: usize| {
        map(vec![(12, text(at)), (13, text(at)), (6, text(at + 2)), (7, 1.into()), (14, 0.into()), (15, text(at))])
    };
    let frames = rmpv::Value::Array((0..texts.len()).map(frame).collect());
    let sample = map(vec![(0, 9.into()), (1, millis.clone()), (2, frames)]);
    for (counter, event) in (1_u64..).zip([dump, sample]) {
        let message =
            map(vec![(0, 7.into()), (1, millis.clone()), (9, counter.into()), (2, rmpv::Value::Array(vec![event]))]);
        let mut body = Vec::new();
        rmpv::encode::write_value(&mut body, &message).unwrap();
        agent.publish(&body).await;
    }
    world.daemon.until_named("rbkit.heap.dump").await;
    world.daemon.until_named("rbkit.cpu").await;

    browser.goto(&world.page("heap?by=class_site")).await;
    browser.until_text(".line", "<img src=x onerror").await;
    browser.click(".line", "<script>").await;
    browser.until_text("h2", "References of").await;
    browser.goto(&world.page("profiles?threads=1")).await;
    browser.until("the flame graph", "return (document.querySelector('.flame canvas')?.height ?? 0) > 100").await;
    browser.find(".flame canvas").await.focus().await.unwrap();
    for _ in 0..6 {
        browser.press("\u{e015}").await;
    }
    browser.until_text("#functions .line", "<script>").await;
    browser.click("#functions .line", "<script>").await;
    browser.until_text(".chosen", "<script>").await;
    browser.click(".segments button", "Inverted").await;
    let state = browser.js("return [window.hacked ?? null, document.scripts.length, document.querySelectorAll('main img, main style').length, document.documentElement.scrollWidth <= innerWidth]").await;
    assert_eq!(state, json!([null, 1, 0, true]));
    browser.close().await;
    world.stop().await;
}
