//! How the views look: nothing is wider than the window, everything is reached by the keyboard, texts stand out from what is
//! behind them. Leaves a picture of each view below `target/tmp/page/`.

use std::future::pending;

use serde_json::{Value, json};
use tributary::simulate::{AgentKind, Amount, bytefrog, datadog, endless, rbkit, zico};

use crate::browser::Browser;
use crate::live::PATIENCE;
use crate::world::{LISTENERS, World};

/// Each view, and a script that returns something when it shows its data.
const VIEWS: [(&str, &str); 11] = [
    ("overview", "return document.querySelectorAll('.card').length > 5"),
    ("services", "return document.querySelectorAll('.line').length > 1"),
    ("map", "return document.querySelectorAll('svg.map .node').length > 1"),
    ("agents", "return document.querySelectorAll('.line').length > 3"),
    ("live", "return document.querySelector('.empty, .line')"),
    ("traces", "return document.querySelectorAll('.line').length > 3"),
    ("profiles", "return document.querySelector('.flame canvas')?.height > 50"),
    ("heap", "return document.querySelectorAll('.line').length > 3"),
    ("code", "return document.querySelectorAll('.line').length > 3"),
    ("machines", "return document.querySelectorAll('.line').length > 0"),
    ("losses", "return document.querySelectorAll('.line').length > 0"),
];

/// A daemon that has received events of an agent of each protocol, and had losses.
async fn busy_world() -> World {
    let any = ([127, 0, 0, 1], 0).into();
    let options = rbkit::Options { publish: any, request: any, heap_objects: 3_000, ..Default::default() };
    let process = rbkit::SimulatedProcess::bind(options).await.unwrap();
    let rbkit::Options { publish, request, .. } = process.options();
    let listeners = format!(
        "{LISTENERS}[listeners.ruby]\nprotocol = \"rbkit\"\nagents = [{{ publish = \"{publish}\", request = \"{request}\", \
         enable = [\"cpu_profile\", \"memory_profile\"] }}]\n"
    );
    let world = World::start("", &listeners).await;
    // It runs until the test ends.
    let plan = rbkit::Plan { amount: Amount::For(PATIENCE * 10), rate: Some(500), seed: 1 };
    tokio::spawn(process.run(plan, pending()));
    world.daemon.until_named("rbkit.handshake").await;
    let dump = "POST /api/v1/agents/ruby%3A0/commands/objectspace_snapshot";
    let request = format!("{dump} HTTP/1.1\r\nhost: {}\r\nx-tributary: 1\r\nconnection: close\r\n\r\n", world.admin());
    let mut stream = tokio::net::TcpStream::connect(world.admin()).await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut stream, request.as_bytes()).await.unwrap();
    world.daemon.until_named("rbkit.heap.dump").await;
    let java = bytefrog::Options { gaps: 9, ..Default::default() };
    for (listener, agent, events) in [
        ("spans", AgentKind::Datadog(datadog::DatadogDialect::Exact), 4_000),
        ("java", AgentKind::Bytefrog(java), 3_000),
        ("desktops", AgentKind::Endless(endless::AgentVersion::V3), 500),
        ("zorka", AgentKind::Zico(zico::ZicoDialect::Gen2), 1_500),
    ] {
        world.send(listener, agent, events).await;
    }
    drop(world.send_bytes("spans", b"GET / HTTP/1.1\r\nHost: shop.example\r\n\r\n").await);
    world
}

/// Texts that are drawn with less contrast than 4.5 to 1, or 3 to 1 where they are large.
const CONTRAST: &str = "\
    const parse = (color) => { const [r, g, b, a = 1] = color.match(/[\\d.]+/g).map(Number); return { r, g, b, a } };
    const light = ({ r, g, b }) => [r, g, b].map((v) => v / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4).reduce((sum, v, at) => sum + v * [0.2126, 0.7152, 0.0722][at], 0);
    const behind = (element) => { for (let one = element; one; one = one.parentElement) { const color = parse(getComputedStyle(one).backgroundColor); if (color.a > 0.99) return color } return { r: 255, g: 255, b: 255 } };
    const bad = [];
    for (const element of document.querySelectorAll('body *')) {
      const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
      const box = element.getBoundingClientRect();
      if (!own || !box.width || element.closest(':disabled, .time, .faded, noscript, .skip, .unseen') || element.closest('svg')) continue;
      const style = getComputedStyle(element);
      const [one, two] = [light(parse(style.color)), light(behind(element))].sort((a, b) => b - a);
      const ratio = (one + 0.05) / (two + 0.05);
      if (ratio < (parseFloat(style.fontSize) >= 18.66 ? 3 : 4.5)) bad.push([element.className || element.tagName, element.textContent.slice(0, 30), ratio.toFixed(2)]);
    }
    return bad.slice(0, 10)";

/// How often all elements are gone through at most.
const ROUNDS: usize = 6;

/// Elements that a pointer can use, and their order by the Tab key: what is not reached is returned.
async fn unreached(browser: &Browser) -> Value {
    browser.js("document.activeElement?.blur(); document.body.focus(); window.reached = new Set(); document.addEventListener('focusin', (event) => reached.add(event.target)); getSelection().removeAllRanges(); return 0").await;
    let count = browser
        .js("return document.querySelectorAll('a[href], button, input, select, summary, [tabindex=\"0\"]').length")
        .await
        .as_u64()
        .unwrap();
    const UNREACHED: &str = "return [...document.querySelectorAll('a[href], button, input, select, summary, [tabindex=\"0\"]')].filter((one) => !reached.has(one) && !one.disabled && one.checkVisibility() && one.tabIndex >= 0 && !one.closest('.lines')).map((one) => [one.tagName, one.className, one.innerText?.slice(0, 40)]).slice(0, 10)";
    let mut unreached = json!([]);
    // What is drawn again loses the focus, and is another element then: it is reached by a later round.
    for _ in 0..ROUNDS {
        for _ in 0..count.div_ceil(20) + 1 {
            browser.press(&"\u{e004}".repeat(20)).await;
        }
        unreached = browser.js(UNREACHED).await;
        if unreached == json!([]) {
            break;
        }
    }
    unreached
}

#[tokio::test]
async fn every_view_fits_its_window_in_light_and_dark_and_is_reached_by_the_keyboard() {
    let Some(browser) = Browser::open().await else { return };
    let world = busy_world().await;
    for (view, is_drawn) in VIEWS {
        browser.goto("about:blank").await;
        browser.goto(&world.page(view)).await;
        browser.until(&format!("{view} shows its data"), is_drawn).await;
        for scheme in ["light", "dark"] {
            browser.scheme(scheme).await;
            let bad = browser.js(CONTRAST).await;
            assert_eq!(bad, json!([]), "{view}, {scheme}: too little contrast");
            browser.screenshot(&format!("{view}-{scheme}")).await;
        }
        browser.scheme("light").await;
        assert_eq!(unreached(&browser).await, json!([]), "{view}: not reached by the keyboard");
        for (width, height) in [(390, 844), (1280, 800)] {
            browser.size(width, height).await;
            let wide = browser.js("return [document.documentElement.scrollWidth, innerWidth]").await;
            assert!(wide[0].as_u64() <= wide[1].as_u64(), "{view} is wider than the window: {wide}");
            let hidden = "return [...document.querySelectorAll('.table .scroll')].filter((one) => one.scrollWidth > one.clientWidth + 1).map((one) => one.ariaLabel)";
            if width == 390 {
                assert_eq!(browser.js(hidden).await, json!([]), "{view}: a table is wider than a telephone");
                browser.screenshot(&format!("{view}-phone")).await;
            }
        }
    }
    // One service, one agent, one trace.
    browser.goto(&world.page("services")).await;
    browser.click(".line a", "").await;
    browser
        .until("its operations", "return document.querySelectorAll('[aria-label=Operations] .line').length > 0")
        .await;
    assert_eq!(browser.js(CONTRAST).await, json!([]), "a service: too little contrast");
    assert_eq!(unreached(&browser).await, json!([]), "a service: not reached by the keyboard");
    browser.screenshot("service-light").await;
    browser.goto(&world.page("agents/ruby%3A0")).await;
    browser.until("its commands", "return document.querySelectorAll('[data-command]').length > 5").await;
    browser.screenshot("agent-light").await;
    browser.goto(&world.page("traces?protocol=datadog&order=slowest")).await;
    browser.click(".line a", "").await;
    browser.until("the timeline", "return document.querySelectorAll('.span-line').length").await;
    browser.click(".span-line:nth-child(2)", "").await;
    for scheme in ["light", "dark"] {
        browser.scheme(scheme).await;
        browser.screenshot(&format!("trace-{scheme}")).await;
    }
    browser.close().await;
    world.stop().await;
}
