//! Who may look: the token, names that resolve to this machine, and requests of other sites.

use std::net::SocketAddr;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::browser::Browser;
use crate::world::{LISTENERS, World};

/// Every name below `example` is this machine, as DNS rebinding makes it.
const EVIL: &str = "--host-resolver-rules=MAP *.example 127.0.0.1";

#[tokio::test]
async fn the_page_asks_for_the_token_once_and_keeps_it_in_the_tab() {
    let Some(browser) = Browser::open().await else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    std::fs::write(&file, "s3cret\n").unwrap();
    let world = World::start(&format!("token_file = {:?}", file.display().to_string()), LISTENERS).await;
    browser.goto(&world.page("agents")).await;
    browser.until_text(".empty", "wants its token").await;
    browser.enter("#token", "guess\n").await;
    browser.until_text(".empty", "This token is wrong").await;
    browser.enter("#token", "s3cret\n").await;
    browser.until_text("h1", "Agents").await;
    browser.until_text(".empty", "No agent has been seen yet").await;
    browser.reload().await;
    browser.until_text(".empty", "No agent has been seen yet").await;
    let kept = "return [Object.values(sessionStorage), localStorage.length, document.cookie, location.href.includes('s3cret')]";
    assert_eq!(browser.js(kept).await, json!([["s3cret"], 0, "", false]));
    browser.click("#status button", "Forget").await;
    browser.until_text(".empty", "wants its token").await;
    // The browser logs each 401.
    let errors = browser.errors().await;
    assert!(errors.iter().all(|error| error.contains("401")), "{errors:#?}");
    browser.quit().await;
    world.stop().await;
}

#[tokio::test]
async fn a_name_that_resolves_to_this_machine_gets_neither_page_nor_data() {
    let Some(browser) = Browser::open_with(&[EVIL]).await else { return };
    let world = World::start("hosts = [\"collector.example\"]", LISTENERS).await;
    let port = world.admin().port();
    for path in ["", "style.css", "api/v1/overview", "agents"] {
        browser.goto(&format!("http://evil.example:{port}/{path}")).await;
        browser.until_text("body", "[admin] hosts").await;
    }
    browser.goto(&format!("http://collector.example:{port}/")).await;
    browser.until_text("[data-listener=spans]", "datadog").await;
    browser.quit().await;
    world.stop().await;
}

/// Serves one page to every request.
async fn site(html: String) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let answer = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{html}",
                html.len()
            );
            let mut head = [0; 4096];
            // A browser that asks for nothing gets the page too.
            let _ = stream.read(&mut head).await;
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    address
}

#[tokio::test]
async fn another_site_can_neither_read_nor_command_nor_frame_the_page() {
    let Some(browser) = Browser::open_with(&[EVIL]).await else { return };
    let world = World::start("", LISTENERS).await;
    let admin = world.admin();
    let html = format!(
        "<form method=post action='http://{admin}/api/v1/agents/java%3A1/commands/stop'><button>x</button></form>\
         <iframe src='http://{admin}/'></iframe><script src='http://{admin}/api/v1/overview'></script>"
    );
    let evil = site(html).await;
    browser.goto(&format!("http://evil.example:{}/", evil.port())).await;
    let read = format!(
        "const asked = await Promise.allSettled([fetch('http://{admin}/api/v1/overview'), \
         fetch('http://{admin}/api/v1/agents/java%3A1/commands/stop', {{ method: 'POST', headers: {{ 'x-tributary': '1' }} }})]); \
         return asked.map((one) => one.status)"
    );
    assert_eq!(browser.js(&format!("return (async () => {{ {read} }})()")).await, json!(["rejected", "rejected"]));
    let framed = "try { return Boolean(document.querySelector('iframe').contentDocument?.querySelector('#nav')) } catch { return false }";
    assert_eq!(browser.js(framed).await, json!(false));
    browser.js("document.querySelector('form').submit()").await;
    browser.until_text("body", "other sites are refused").await;
    browser.quit().await;
    world.stop().await;
}
