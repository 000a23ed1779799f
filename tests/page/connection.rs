//! A daemon that goes away and comes back under the open page.

use std::path::Path;

use crate::browser::Browser;
use crate::live::binary::{Binary, field, tributary};

/// Starts the program with one listener of this name. Returns the address of its page.
fn start(directory: &Path, admin: &str, listener: &str) -> (Binary, String) {
    let file = directory.join("tributary.toml");
    let toml = format!(
        "[admin]\nlisten = \"{admin}\"\n[listeners.{listener}]\nprotocol = \"datadog\"\nlisten = \"127.0.0.1:0\"\n\
         [sinks.void]\ntype = \"discard\"\n"
    );
    std::fs::write(&file, toml).unwrap();
    let daemon = Binary::start(tributary(&["run", "--config", file.to_str().unwrap()]));
    let page = field(&daemon.until_stderr("admin endpoint "), "page").to_owned();
    (daemon, page)
}

#[tokio::test]
async fn the_page_says_that_the_daemon_is_away_and_that_it_restarted() {
    let Some(browser) = Browser::open().await else { return };
    let directory = tempfile::tempdir().unwrap();
    let (first, page) = start(directory.path(), "127.0.0.1:0", "early");
    browser.goto(&page).await;
    browser.until_text("[data-listener=early]", "datadog").await;
    first.signal("KILL");
    first.end();
    browser.until_text("#banner", "does not answer").await;
    browser.until_text("#status", "No connection").await;
    let address = page.trim_start_matches("http://").trim_end_matches('/');
    let (second, _) = start(directory.path(), address, "later");
    browser.until_text("#banner", "restarted").await;
    browser.until_text("[data-listener=later]", "datadog").await;
    browser.until_no_text("main", "early").await;
    // The browser logs each connection that was refused.
    let errors = browser.errors().await;
    assert!(errors.iter().all(|error| error.contains("net::ERR_")), "{errors:#?}");
    browser.quit().await;
    second.signal("TERM");
    assert_eq!(second.end().code, Some(0));
}
