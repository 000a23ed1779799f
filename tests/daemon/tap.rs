//! The live view of a running daemon: `tributary tap`, and its endpoint `/tap`.

use std::future::pending;
use std::net::SocketAddr;
use std::time::Duration;

use crate::live::binary::{Binary, run, tributary};
use crate::live::{Daemon, connect, until, until_async, wire, within};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::spawn_blocking;
use tributary::simulate::{AgentKind, Amount, Plan, datadog, endless};

const ADMIN: &str = "[admin]\nlisten = \"127.0.0.1:0\"\n";

async fn daemon(options: &str) -> Daemon {
    Daemon::start(&format!("{ADMIN}{}", crate::live::listener(options))).await
}

/// A process `tributary tap` of this daemon, whose tap is open.
async fn tap(daemon: &Daemon, arguments: &[&str]) -> Binary {
    let admin = daemon.server.admin_address().unwrap().to_string();
    let all = [&["tap", "--admin", &admin], arguments].concat();
    let before = taps(daemon).await;
    let tap = Binary::start(tributary(&all));
    until_taps(daemon, |taps| taps > before).await;
    tap
}

/// Waits until this is true of the number of open taps.
async fn until_taps(daemon: &Daemon, is_reached: impl Fn(u64) -> bool) {
    until_async("the number of taps", async || is_reached(taps(daemon).await).then_some(())).await;
}

/// The number of open taps.
async fn taps(daemon: &Daemon) -> u64 {
    let metrics = ask(daemon.server.admin_address().unwrap(), "/metrics").await;
    let line = metrics.lines().find_map(|line| line.strip_prefix("tributary_taps ")).unwrap();
    line.parse().unwrap()
}

async fn ask(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream
        .write_all(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").as_bytes())
        .await
        .unwrap();
    let mut text = String::new();
    within("a response", stream.read_to_string(&mut text)).await.unwrap();
    text
}

async fn end(tap: Binary) -> crate::live::binary::Ended {
    let ended = spawn_blocking(move || tap.end()).await.unwrap();
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    ended
}

/// The lines of the annotated bytes, with single spaces.
fn lines_of(sheet: &str) -> Vec<String> {
    sheet.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tap_shows_all_events_that_the_sinks_get() {
    let daemon = daemon("").await;
    let all = tap(&daemon, &[]).await;
    let losses = tap(&daemon, &["--kind", "loss", "--listener", "test", "--format", "text"]).await;
    let (work, spans) = wire::work(50);
    let bytes = [work, b"no such thing".to_vec()].concat();
    crate::live::send_all(daemon.connect().await, &bytes).await;
    daemon.until_all_closed().await;
    let stopped = daemon.stop().await;
    let (all, losses) = (end(all).await, end(losses).await);
    assert!(stopped.events.len() as u64 > spans);
    assert_eq!(all.events(), stopped.events);
    assert_eq!(losses.stdout.lines().count(), 1);
    assert!(losses.stdout.contains("malformed"), "{}", losses.stdout);
}

#[tokio::test(flavor = "multi_thread")]
async fn annotated_bytes_begin_at_the_next_message_and_contain_losses() {
    let daemon = daemon("").await;
    let mut stream = daemon.connect().await;
    stream.write_all(&[wire::process(), wire::named_span(7, "before")].concat()).await.unwrap();
    daemon.until_totals("it is read", |counters| counters.bytes_in > 100 && counters.buffered() == 0).await;
    let tap = tap(&daemon, &["--wire"]).await;
    let at = daemon.counters().bytes_in;
    // In two pieces; the first is an incomplete message.
    let message = wire::named_span(8, "after");
    stream.write_all(&message[..5]).await.unwrap();
    daemon.until_totals("the first piece is received", |counters| counters.bytes_in == at + 5).await;
    stream.write_all(&message[5..]).await.unwrap();
    stream.write_all(&[0xDD, 0x77, 1, 2, 3]).await.unwrap();
    daemon.until_all_closed().await;
    daemon.stop().await;
    let sheet = end(tap).await.stdout;
    let lines = lines_of(&sheet);
    assert!(lines[0].starts_with("== test (datadog) 127.0.0.1:"), "{sheet}");
    assert!(sheet.contains("\"after\"") && !sheet.contains("\"before\""), "{sheet}");
    let first = lines.iter().find(|line| line.contains(" dd 06 ")).unwrap();
    assert!(first.starts_with(&format!("{at:08x} ")), "{sheet}");
    let fault = at + message.len() as u64;
    // The bytes come before the line of their loss.
    assert!(lines.iter().any(|line| line.starts_with(&format!("{fault:08x} dd 77 01 02 03 "))), "{sheet}");
    let fault = lines.iter().find(|line| line.starts_with(&format!("{fault:08x} !!"))).unwrap();
    assert!(fault.contains("object_type"), "{sheet}");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_control_character_of_a_peer_reaches_the_terminal() {
    let daemon = daemon("max_text.name = 1000").await;
    let text = tap(&daemon, &["--format", "text"]).await;
    let sheet = tap(&daemon, &["--wire"]).await;
    let hostile: String = (0..0x20)
        .chain(0x7F..0xA0)
        .chain([0x061C, 0x200E, 0x200F, 0x2028, 0x2029])
        .chain(0x202A..=0x202E)
        .chain(0x2066..=0x2069)
        .filter_map(char::from_u32)
        .collect();
    let bytes =
        [wire::process(), wire::named_span(7, &hostile), b"no such\x7f\x9b\xe2\x80\xae thing".to_vec()].concat();
    crate::live::send_all(daemon.connect().await, &bytes).await;
    daemon.until_all_closed().await;
    daemon.stop().await;
    for shown in [end(text).await.stdout, end(sheet).await.stdout] {
        assert!(shown.contains("\\u{7f}") && shown.contains("\\u{9b}") && shown.contains("\\u{202e}"), "{shown:?}");
        assert_eq!(shown.chars().find(|c| *c != '\n' && hostile.contains(*c)), None, "{shown:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_shown_with_explained_bodies_and_without_keys() {
    let listen = "listen = \"127.0.0.1:0\"";
    let toml = format!(
        "{ADMIN}[listeners.desktops]\nprotocol = \"endless\"\n{listen}\n[listeners.zorka]\nprotocol = \"zico\"\n{listen}\nquarantine.dir = \"\"\n"
    );
    let daemon = Daemon::start(&toml).await;
    let tap = tap(&daemon, &["--wire"]).await;
    let plan =
        Plan { to: daemon.server.address().unwrap(), amount: Amount::Events(3), rate: None, connections: 1, seed: 1 };
    within("sent", tributary::simulate::run(AgentKind::Endless(endless::AgentVersion::default()), plan, pending()))
        .await
        .unwrap();
    let zorka = daemon.server.addresses().iter().find(|bound| bound.name == "zorka").unwrap().address;
    let body = "{\"rkey\":\"hush-hush\",\"name\":\"h\",\"app\":\"a\",\"env\":\"e\"}";
    let request = format!(
        "POST /agent/register?name=shop&rkey=hush-query HTTP/1.1\r\nhost: localhost\r\nx-zorka-auth-key: hush-too\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(zorka).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    within("a response", stream.read_to_end(&mut answer)).await.unwrap();
    // Forms whose keys come first: one that can be decoded, one that cannot, and one that is not received completely.
    for (body, length) in [
        ("%6bey=hush-form&host=a&data=woQBAAAA", 36),
        ("key=hush-form&host=a&data=%zz", 29),
        ("key=hush-form&host=a", 1000),
    ] {
        let head = format!("POST /submit/agent HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n");
        let mut stream = TcpStream::connect(zorka).await.unwrap();
        stream.write_all(&[head.as_bytes(), body.as_bytes()].concat()).await.unwrap();
        stream.shutdown().await.unwrap();
        within("a response", stream.read_to_end(&mut answer)).await.unwrap();
    }
    let losses: Vec<Value> = daemon.stop().await.events.into_iter().filter(|event| event["kind"] == "loss").collect();
    assert!(losses.len() >= 2, "{losses:?}");
    assert!(losses.iter().all(|loss| !loss.to_string().contains("68757368")), "{losses:?}");
    let sheet = end(tap).await.stdout;
    assert!(sheet.contains("request 1: PUT /3/"), "{sheet}");
    assert!(sheet.contains("request 1: POST /agent/register?name=shop&rkey=hidden"), "{sheet}");
    assert!(sheet.matches("event_id").count() >= 3 || sheet.matches("event id").count() >= 3, "{sheet}");
    assert!(!sheet.contains("hush"), "{sheet}");
    // The bytes are hidden too.
    assert!(!sheet.contains("68 75 73 68"), "{sheet}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_not_received_completely_is_shown_as_far_as_it_came() {
    let listener = "[listeners.desktops]\nprotocol = \"endless\"\nlisten = \"127.0.0.1:0\"\n";
    let daemon = Daemon::start(&format!("{ADMIN}{listener}")).await;
    let tap = tap(&daemon, &["--wire"]).await;
    let mut stream = daemon.connect().await;
    let path = format!("/3/{}", "0".repeat(128));
    let head = format!("PUT {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(b"half of it").await.unwrap();
    stream.shutdown().await.unwrap();
    let mut answer = Vec::new();
    within("the end", stream.read_to_end(&mut answer)).await.unwrap();
    daemon.until_all_closed().await;
    daemon.stop().await;
    let sheet = end(tap).await.stdout;
    assert!(sheet.contains(&format!("request 1: PUT {path}, of whose body 10 bytes were received")), "{sheet}");
    assert!(sheet.contains("68 61 6c 66 20 6f 66 20 69 74"), "{sheet}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tap_that_is_not_read_delays_no_connection_and_reports_what_it_dropped() {
    const EVENTS: u64 = 40_000;
    // However slow the machine is, the tap is not closed meanwhile.
    let daemon = Daemon::start(&format!("{ADMIN}tap_timeout = \"10m\"\n{}", crate::live::listener(""))).await;
    let mut idle = TcpStream::connect(daemon.server.admin_address().unwrap()).await.unwrap();
    idle.write_all(b"GET /tap HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    until_taps(&daemon, |taps| taps == 1).await;
    let plan = Plan {
        to: daemon.server.address().unwrap(),
        amount: Amount::Events(EVENTS),
        rate: None,
        connections: 2,
        seed: 3,
    };
    let agent = AgentKind::Datadog(datadog::DatadogDialect::default());
    within("everything is sent", tributary::simulate::run(agent, plan, pending())).await.unwrap();
    daemon.until_all_closed().await;
    let written = || daemon.server.accounting().totals().sinks[0].written;
    until("it is written", || (written() >= EVENTS).then_some(())).await;
    // Now the tap is read, and more events follow.
    let reading = tokio::spawn(async move {
        let mut all = Vec::new();
        idle.read_to_end(&mut all).await.unwrap();
        all
    });
    crate::live::send_all(daemon.connect().await, &wire::process()).await;
    daemon.until_all_closed().await;
    let stopped = daemon.stop().await;
    let shown = String::from_utf8(within("it is read to its end", reading).await.unwrap()).unwrap();
    // Each chunk contains complete lines.
    let lines: Vec<Value> =
        shown.lines().filter(|line| line.starts_with("{\"")).map(|line| serde_json::from_str(line).unwrap()).collect();
    let is_reported = |line: &&Value| line["loss"]["reason"] == "shed";
    let left_out: u64 = lines.iter().filter(is_reported).map(|line| line["loss"]["events"].as_u64().unwrap()).sum();
    let seen = lines.iter().filter(|line| !is_reported(line)).count() as u64;
    assert!(left_out > 0, "{seen} events were shown");
    assert_eq!(seen + left_out, stopped.events.len() as u64);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_number_of_taps_is_limited_and_a_closed_tap_admits_another() {
    let daemon = daemon("").await;
    let address = daemon.server.admin_address().unwrap();
    let mut open = Vec::new();
    for number in 1..=4 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET /tap?wire HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        open.push(stream);
        until_taps(&daemon, |taps| taps == number).await;
    }
    assert!(ask(address, "/tap").await.starts_with("HTTP/1.1 503 "));
    drop(open.pop());
    until_async("a tap can be opened again", async || {
        // The daemon detects a closed tap only when it writes to it.
        crate::live::send_all(connect(&daemon.server).await, &wire::process()).await;
        (taps(&daemon).await == 3).then_some(())
    })
    .await;
    daemon.stop().await;
}

/// A daemon whose live views must be read, and are written to after each quarter of that time without an event.
async fn impatient() -> Daemon {
    Daemon::start(&format!("{ADMIN}tap_timeout = \"400ms\"\n{}", crate::live::listener(""))).await
}

/// Live views of every kind, which together take every place, and read little at a time.
async fn every_view(daemon: &Daemon) -> Vec<TcpStream> {
    let address = daemon.server.admin_address().unwrap();
    let mut open = Vec::new();
    for path in ["/tap", "/tap?wire", "/api/v1/events/live?rate=1000", "/api/v1/wire"] {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(2048).unwrap();
        let mut stream = socket.connect(address).await.unwrap();
        stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").as_bytes()).await.unwrap();
        open.push(stream);
        until_taps(daemon, |taps| taps == open.len() as u64).await;
    }
    assert!(ask(address, "/tap").await.starts_with("HTTP/1.1 503 "));
    open
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_that_have_left_are_noticed_without_an_event() {
    let daemon = impatient().await;
    drop(every_view(&daemon).await);
    until_taps(&daemon, |taps| taps == 0).await;
    assert_eq!(daemon.counters().events(), 0);
    // `tributary tap` does not print what keeps a connection open.
    let tap = tap(&daemon, &["--format", "text"]).await;
    // A tap that was opened later gets two of those.
    let mut later = TcpStream::connect(daemon.server.admin_address().unwrap()).await.unwrap();
    later.write_all(b"GET /tap HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut shown = Vec::new();
    within("two empty lines", async {
        while String::from_utf8_lossy(&shown).matches("\r\n1\r\n\n").count() < 2 {
            assert!(later.read_buf(&mut shown).await.unwrap() > 0, "{shown:?}");
        }
    })
    .await;
    daemon.stop().await;
    assert_eq!(end(tap).await.stdout, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_that_read_nothing_do_not_keep_their_places() {
    let daemon = impatient().await;
    let stalled = every_view(&daemon).await;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let to = daemon.server.address().unwrap();
    let plan = Plan { to, amount: Amount::For(Duration::from_secs(600)), rate: None, connections: 2, seed: 3 };
    let agent = AgentKind::Datadog(datadog::DatadogDialect::default());
    let sending = tokio::spawn(tributary::simulate::run(agent, plan, async move { drop(stopped.await) }));
    until_taps(&daemon, |taps| taps == 0).await;
    drop((stop, stalled));
    within("the agent ends", sending).await.unwrap().unwrap();
    daemon.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_filters_are_rejected_with_the_reason() {
    let daemon = daemon("").await;
    let address = daemon.server.admin_address().unwrap();
    for (query, status, words) in [
        ("kind=spam", 400, "there is no kind spam"),
        ("listener=unknown", 404, "there is no listener unknown"),
        ("colour=red", 400, "unknown parameter colour=red"),
    ] {
        let answer = ask(address, &format!("/tap?{query}")).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")) && answer.contains(words), "{answer}");
    }
    let admin = address.to_string();
    let (ended, unreachable) = spawn_blocking(move || {
        (run(&["tap", "--admin", &admin, "--listener", "unknown"]), run(&["tap", "--admin", "127.0.0.1:1"]))
    })
    .await
    .unwrap();
    assert_eq!(ended.code, Some(1));
    assert!(ended.last_words().contains("404 Not Found: there is no listener unknown"), "{}", ended.stderr);
    assert_eq!(unreachable.code, Some(1));
    assert!(unreachable.last_words().contains("the admin endpoint on 127.0.0.1:1"), "{}", unreachable.stderr);
    daemon.stop().await;
}
