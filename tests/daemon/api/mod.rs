//! The page and its API, over real sockets, with simulated agents.

mod access;
mod bounds;
mod java;
mod live;
mod overview;
mod ruby;
mod services;
mod traces;

use std::future::pending;
use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tributary::simulate::{AgentKind, Amount, Plan};

use crate::live::{Daemon, PATIENCE, listener, within};

/// A view that has time for everything, and memory for small tests.
const SETTINGS: &str = "[admin]\nlisten = \"127.0.0.1:0\"\n[view]\ncpu_percent = 100\n";

/// A response.
struct Response {
    status: u16,
    /// In lower case.
    head: String,
    body: Vec<u8>,
}

impl Response {
    fn text(&self) -> &str {
        str::from_utf8(&self.body).unwrap()
    }

    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }
}

async fn request(address: SocketAddr, method: &str, path: &str, headers: &str) -> Response {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    within("a response", stream.read_to_end(&mut bytes)).await.unwrap();
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap().to_lowercase();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Response { status, head, body: bytes[end + 4..].to_vec() }
}

fn address(daemon: &Daemon) -> SocketAddr {
    daemon.server.admin_address().unwrap()
}

async fn get(daemon: &Daemon, path: &str) -> Response {
    request(address(daemon), "GET", &format!("/api/v1/{path}"), "").await
}

/// A JSON answer, which must be a success.
async fn json(daemon: &Daemon, path: &str) -> Value {
    let response = get(daemon, path).await;
    assert_eq!(response.status, 200, "{path}: {}", response.text());
    assert!(response.head.contains("content-type: application/json") && response.head.contains("nosniff"));
    response.json()
}

async fn post(daemon: &Daemon, path: &str) -> Response {
    request(address(daemon), "POST", &format!("/api/v1/{path}"), "x-tributary: 1\r\n").await
}

/// Asks until the answer is as it should be.
async fn until(daemon: &Daemon, path: &str, is_it: impl Fn(&Value) -> bool) -> Value {
    let mut answer = Value::Null;
    let found = tributary_testing::wait::poll_async(PATIENCE, async || {
        answer = json(daemon, path).await;
        is_it(&answer).then(|| answer.clone())
    });
    found.await.unwrap_or_else(|| panic!("{path} stays {answer}"))
}

/// Waits until everything is written, and the view has everything that it gets.
async fn settle(daemon: &Daemon) {
    daemon.until_all_closed().await;
    let is_settled = || {
        let totals = daemon.server.accounting().totals();
        totals.listeners.iter().all(|listener| listener.connections_open == 0).then_some(())
    };
    crate::live::until("all connections are closed", is_settled).await;
    let events: u64 = daemon.server.accounting().totals().listeners.iter().map(|listener| listener.events()).sum();
    until(daemon, "overview", |overview| {
        number(&overview["view"]["seen"]) + number(&overview["view"]["skipped"]) == events
    })
    .await;
}

/// A text in a query.
fn encoded(text: &str) -> String {
    form_urlencoded::byte_serialize(text.as_bytes()).collect()
}

async fn daemon(listeners: &str) -> Daemon {
    Daemon::start(&format!("{SETTINGS}{listeners}")).await
}

/// A daemon with a listener for spans.
async fn of_spans() -> Daemon {
    daemon(&listener("")).await
}

/// Lets an agent send `events` events to the listener with this name, to the end.
async fn simulate(daemon: &Daemon, listener: &str, agent: AgentKind, events: u64) {
    let bound = daemon.server.addresses().iter().find(|bound| bound.name == listener).unwrap();
    let plan = Plan { to: bound.address, amount: Amount::Events(events), rate: None, connections: 2, seed: 7 };
    within(listener, tributary::simulate::run(agent, plan, pending())).await.unwrap();
}

fn array<'a>(value: &'a Value, name: &str) -> &'a Vec<Value> {
    value[name].as_array().unwrap_or_else(|| panic!("no {name} in {value}"))
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}
