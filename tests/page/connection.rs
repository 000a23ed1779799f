//! A daemon that goes away and comes back under the open page.

use crate::browser::Browser;
use crate::live::Daemon;
use crate::world::{LISTENERS, World};

#[tokio::test]
async fn the_page_says_that_the_daemon_is_away_and_that_it_restarted() {
    let Some(browser) = Browser::open().await else { return };
    let world = World::start("", LISTENERS).await;
    let admin = world.admin();
    browser.goto(&world.page("overview")).await;
    browser.until_text("[data-listener=spans]", "datadog").await;
    world.stop().await;
    browser.until_text("#banner", "does not answer").await;
    browser.until_text("#status", "No connection").await;
    // The same address, and other listeners.
    let toml =
        format!("[admin]\nlisten = \"{admin}\"\n[listeners.later]\nprotocol = \"datadog\"\nlisten = \"127.0.0.1:0\"\n");
    let daemon = Daemon::start(&toml).await;
    browser.until_text("#banner", "restarted").await;
    browser.until_text("[data-listener=later]", "datadog").await;
    browser.until_no_text("main", "spans").await;
    // The browser logs each connection that was refused.
    let errors = browser.errors().await;
    assert!(
        errors.iter().all(|error| error.contains("ERR_CONNECTION")
            || error.contains("ERR_INCOMPLETE")
            || error.contains("ERR_EMPTY")),
        "{errors:#?}"
    );
    browser.quit().await;
    daemon.stop().await;
}
