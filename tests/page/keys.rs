//! What holds in every view: times in the address, Back, pause, the keys, and the focus while a view is drawn again.

use serde_json::json;
use tributary::simulate::{AgentKind, datadog};

use crate::browser::Browser;
use crate::world::{LISTENERS, World};

const SPANS: AgentKind = AgentKind::Datadog(datadog::DatadogDialect::Exact);

/// What the overview says of events, and the time since the start in the bar.
const EVENTS: &str = "(document.querySelectorAll('.tile')[1]?.innerText ?? '')";
const UPTIME: &str = "(document.querySelector('#status .more')?.innerText ?? '')";

/// A script that says whether the overview has every event that was received.
fn has_all(world: &World) -> String {
    let totals = world.daemon.server.accounting().totals();
    let events: u64 = totals.listeners.iter().map(tributary::pipeline::accounting::ListenerTotals::events).sum();
    format!("return {EVENTS}.includes('{events} in all')")
}

#[tokio::test]
async fn the_focus_stays_while_the_overview_is_drawn_again_and_a_pause_stops_it() {
    let Some(browser) = Browser::open().await else { return };
    let world = World::start("", LISTENERS).await;
    browser.goto(&world.page("overview")).await;
    browser.until_text("[data-listener=java]", "0/s").await;
    browser
        .js("document.querySelector('[data-listener=java] .name').focus(); window.focused = document.activeElement")
        .await;
    world.send("spans", SPANS, 300).await;
    browser.until("the events are shown", &has_all(&world)).await;
    assert_eq!(
        browser.js("return document.activeElement === window.focused && window.focused.isConnected").await,
        json!(true)
    );

    browser.press("?").await;
    browser.until_text("dialog.help", "pause and continue").await;
    browser.press("\u{e00c}").await;
    browser
        .until(
            "the help is closed, the focus back",
            "return !document.querySelector('dialog') && document.activeElement === window.focused",
        )
        .await;

    browser.press("p").await;
    browser.until_text("[data-pause]", "Continue").await;
    let before = browser.js(&format!("return {EVENTS}")).await;
    world.send("spans", SPANS, 200).await;
    // The bar goes on: two answers later the view has not changed.
    for _ in 0..2 {
        let uptime = browser.js(&format!("return {UPTIME}")).await;
        browser.until("the bar is drawn again", &format!("return {UPTIME} !== {uptime}")).await;
    }
    assert_eq!(browser.js(&format!("return {EVENTS}")).await, before);
    browser.press("p").await;
    browser.until("the events are shown", &has_all(&world)).await;
    browser.close().await;
    world.stop().await;
}

#[tokio::test]
async fn a_time_range_is_in_the_address_and_back_takes_it_back() {
    let Some(browser) = Browser::open().await else { return };
    let world = World::start("", LISTENERS).await;
    world.send("spans", SPANS, 300).await;
    let pressed =
        |text: &str| format!("return document.querySelector('.range [aria-pressed=true]')?.innerText === '{text}'");
    browser.goto(&world.page("services?range=5")).await;
    browser.until("the range of the address", &pressed("5 min")).await;
    browser.until("services", "return document.querySelectorAll('.line').length").await;
    browser.click(".range button", "1 min").await;
    browser.until("it is in the address", "return location.hash === '#/services?range=1'").await;
    browser.click(".range button", "From").await;
    browser.js("const from = document.querySelector('.typed input'); const at = new Date(Date.now() - 600000); from.value = at.toTimeString().slice(0, 8); from.dispatchEvent(new Event('change'))").await;
    browser.until("the moment is in the address", r"return /^#\/services\?from=\d+$/.test(location.hash)").await;
    // The services, and what they lead to, are of the same time.
    browser.until("the link has it", "return document.querySelector('.line a')?.hash.includes('?from=')").await;
    for range in ["1 min", "5 min"] {
        browser.js("history.back()").await;
        browser.until(range, &pressed(range)).await;
    }
    // The order of a table is in the address too.
    browser.click(".titles button", "Service").await;
    browser.until("the order", "return location.hash.includes('sort=Service+up')").await;
    browser.reload().await;
    browser
        .until(
            "the same order",
            "return document.querySelector('[aria-sort=ascending]')?.innerText.startsWith('Service')",
        )
        .await;
    browser.close().await;
    world.stop().await;
}

#[tokio::test]
async fn back_returns_to_the_link_that_was_followed_and_durations_are_dragged_over() {
    let Some(browser) = Browser::open().await else { return };
    let world = World::start("", LISTENERS).await;
    world.send("spans", SPANS, 300).await;
    browser.goto(&world.page("services")).await;
    browser.until("services", "return document.querySelectorAll('.line a').length > 1").await;
    // The second one, by the keyboard.
    let followed =
        "const link = document.querySelectorAll('.line a')[1]; link.focus(); return link.getAttribute('href')";
    let href = browser.js(followed).await;
    browser.js("document.activeElement.click()").await;
    browser
        .until("durations", "return document.querySelector('canvas.heat')?.ariaLabel?.startsWith('Durations of')")
        .await;
    assert_eq!(browser.js("return document.activeElement.id").await, "main");
    browser.js("history.back()").await;
    let focused = format!("return document.activeElement.getAttribute('href') === {href}");
    browser.until("the link has the focus", &focused).await;
    browser.js("document.activeElement.click()").await;
    browser
        .until("durations", "return document.querySelector('canvas.heat')?.ariaLabel?.startsWith('Durations of')")
        .await;
    // From the upper left to the lower right corner: everything.
    browser
        .js("const canvas = document.querySelector('canvas.heat'); const box = canvas.getBoundingClientRect(); \
             canvas.setPointerCapture = () => {}; \
             const at = (type, x, y) => canvas.dispatchEvent(new PointerEvent(type, { bubbles: true, button: 0, pointerId: 1, clientX: x, clientY: y })); \
             at('pointerdown', box.left + 60, box.top + 1); at('pointermove', box.right - 1, box.bottom - 1); at('pointerup', box.right - 1, box.bottom - 1)")
        .await;
    let has_all = r"return /^#\/traces\?service=.*&min_ms=[\d.]+&max_ms=[\d.]+&from=\d+&to=\d+/.test(location.hash)";
    browser.until("their traces", has_all).await;
    browser.close().await;
    world.stop().await;
}
