//! Hostile bodies over real sockets: they are answered, bounded and reported, and do not affect other agents.

use std::future::pending;
use std::io::Write;
use std::time::Duration;

use crate::live::{Daemon, losses, within};
use crate::zico_support::cbor::gen2;
use crate::zico_support::client::{ask, form, post};
use crate::zico_support::offline::Offline;
use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use serde_json::Value;
use tokio::net::TcpStream;
use tributary::event::Kind;
use tributary::memory::MemoryBudget;
use tributary::protocol::zico::Options;
use tributary::simulate::zico::{Jvm, ZicoDialect};
use tributary::simulate::{AgentKind, Amount, Plan, run};

const LISTENER: &str = "[listeners.test]\nprotocol = \"zico\"\nlisten = \"127.0.0.1:0\"\nquarantine.dir = \"\"\n";
/// A gen2 record of method 1 that starts at 1.
const OPEN: [u8; 4] = [0xC3, 0x9F, 1, 1];
/// The end of the record, at 2.
const CLOSE: [u8; 5] = [0xC4, 0x82, 2, 1, 0xFF];
const START: u64 = 1_795_132_800_000_000_000;

fn symbols(session: &str, is_reset: bool, body: &[u8]) -> Vec<u8> {
    let headers = [("X-Zorka-Session-Id", session), ("X-Zorka-Session-Reset", if is_reset { "true" } else { "false" })];
    post("/agent/submit/agd", &headers, body)
}

fn trace(session: &str, id: u64, body: &[u8]) -> Vec<u8> {
    let id = format!("{id:032x}");
    post("/agent/submit/trc", &[("X-Zorka-Session-Id", session), ("X-Zorka-Trace-Id", &id)], body)
}

/// A daemon, and a connection with a session that defined method 1.
async fn begin(options: &str) -> (Daemon, TcpStream) {
    let daemon = Daemon::start(&format!("{options}{LISTENER}")).await;
    let mut stream = daemon.connect().await;
    // Strings 1 to 3, and a method of them.
    let definitions = b"\xC1\x82\x01\x61C\xC1\x82\x02\x61m\xC1\x82\x03\x63()V\xC2\x84\x01\x01\x02\x03";
    assert_eq!(ask(&mut stream, &symbols("5e55", true, definitions)).await.status, 202);
    (daemon, stream)
}

fn spans(events: &[Value]) -> impl Iterator<Item = &Value> {
    events.iter().filter(|event| event["kind"] == "span")
}

#[tokio::test]
async fn twenty_thousand_nested_calls_are_as_many_spans() {
    const DEPTH: usize = 20_000;
    let (daemon, mut stream) = begin("").await;
    let body = [OPEN.repeat(DEPTH), CLOSE.repeat(DEPTH)].concat();
    assert_eq!(ask(&mut stream, &trace("5e55", 1, &body)).await.status, 202);
    let stopped = daemon.stop().await;
    let mut inner: Option<&str> = None;
    let mut count = 0;
    for span in spans(&stopped.events) {
        let span = &span["span"];
        // The innermost goes first, and each is the parent of the one before.
        assert!(inner.is_none_or(|inner| span["span_id"] == inner));
        inner = span["parent_span_id"].as_str();
        count += 1;
    }
    assert_eq!((count, inner, losses(&stopped.events).len()), (DEPTH, None, 0));
}

#[tokio::test]
async fn each_body_over_a_limit_is_one_loss_with_its_place() {
    let (daemon, mut stream) = begin("").await;
    let attribute = |value: &[u8]| [&OPEN, b"\xC6\x82\x01".as_slice(), value].concat();
    let cases: [(&str, Vec<u8>); 9] = [
        ("malformed", attribute(b"\xBB\x80\0\0\0\0\0\0\0\x01\x01")),
        ("malformed", attribute(b"\x5B\x40\0\0\0\0\0\0\0\x01\x01")),
        ("malformed", attribute(b"\x9B\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01")),
        ("too_large", attribute(&[0x81; 20_000])),
        ("too_large", attribute(&[0xC6; 20_000])),
        ("too_large", attribute(&[0x9F; 20_000])),
        ("too_large", [&OPEN, b"\xC6\x82\x01\x01".repeat(1_000_000).as_slice(), &CLOSE].concat()),
        ("malformed", [OPEN.as_slice(), &CLOSE, &CLOSE.repeat(10_000)].concat()),
        ("malformed", vec![0xFF; 100_000]),
    ];
    for (number, (reason, body)) in cases.iter().enumerate() {
        let before = daemon.events().len();
        assert_eq!(ask(&mut stream, &trace("5e55", number as u64, body)).await.status, 202);
        let events = daemon.events().split_off(before);
        let [loss] = losses(&events)[..] else { panic!("{number}: {:?}", losses(&events)) };
        let is_reported = loss["reason"] == *reason || loss["reason"] == "truncated" && *reason == "malformed";
        assert!(is_reported, "{number}: {loss}");
        assert!(
            loss["bytes"].as_u64().unwrap() > 0 && !loss["detail"].as_str().unwrap().is_empty(),
            "{number}: {loss}"
        );
        // What was read before it stands.
        assert_eq!(spans(&events).count(), usize::from(body.starts_with(&OPEN)), "{number}");
    }
    daemon.stop().await;
}

#[tokio::test]
async fn bombs_are_refused_and_the_next_request_is_accepted() {
    let (daemon, mut stream) = begin("").await;
    let zeros = vec![0; 17 << 20];
    let mut zlib = ZlibEncoder::new(Vec::new(), Compression::fast());
    zlib.write_all(&zeros).unwrap();
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(&zeros).unwrap();
    let mut frame = lz4_flex::frame::FrameEncoder::new(Vec::new());
    frame.write_all(&zeros).unwrap();
    let block = lz4_flex::block::compress(&zeros);
    let bombs = [
        ("zdata", zlib.finish().unwrap()),
        ("zdata", gzip.finish().unwrap()),
        ("ldata", frame.finish().unwrap()),
        ("ldata", block),
    ];
    for (name, bomb) in bombs {
        let reply = ask(&mut stream, &form(name, &bomb)).await;
        assert_eq!(reply.status, 413, "{name}");
        assert!(reply.body.contains("max_inflated_bytes"), "{}", reply.body);
        let fine = [OPEN.as_slice(), &CLOSE].concat();
        assert_eq!(ask(&mut stream, &trace("5e55", 7, &fine)).await.status, 202);
    }
    let stopped = daemon.stop().await;
    assert!(losses(&stopped.events).iter().all(|loss| loss["reason"] == "too_large"));
    assert_eq!((losses(&stopped.events).len(), spans(&stopped.events).count()), (4, 4));
}

#[tokio::test]
async fn a_trace_cut_at_every_third_byte_is_accepted_and_its_bytes_add_up() {
    let (daemon, mut stream) = begin("").await;
    let mut jvm = Jvm::new(4, 0, START, ZicoDialect::Gen2);
    let sent = jvm.trace(30, START + 1_000_000_000);
    let bodies = jvm.bodies(sent.submissions().last().unwrap());
    assert_eq!(ask(&mut stream, &symbols("5e55", true, &bodies.symbols)).await.status, 202);
    let [whole] = &bodies.parts[..] else { panic!("in parts") };
    assert!(whole.len() > 500);
    for end in (1..=whole.len()).step_by(3) {
        let reply = ask(&mut stream, &trace("5e55", end as u64, &whole[..end])).await;
        assert_eq!(reply.status, 202, "{end}");
    }
    for end in (1..=bodies.symbols.len()).step_by(3) {
        assert_eq!(ask(&mut stream, &symbols("5e55", true, &bodies.symbols[..end])).await.status, 202, "{end}");
    }
    // The stop checks that decoded and lost bytes are all received bytes.
    let stopped = daemon.stop().await;
    let totals = &stopped.totals.listeners[0];
    assert_eq!(totals.buffered(), 0, "{totals:?}");
    assert!(totals.count(Kind::Loss) as usize >= whole.len() / 6);
}

#[tokio::test]
async fn a_flood_of_sessions_removes_quiet_ones_whose_agents_send_their_definitions_again() {
    let daemon = Daemon::start(&format!("{LISTENER}max_sessions = 50\n")).await;
    let mut stream = daemon.connect().await;
    let definitions = b"\xC1\x82\x01\x61C\xC1\x82\x02\x61m\xC1\x82\x03\x63()V\xC2\x84\x01\x01\x02\x03";
    let fine = [OPEN.as_slice(), &CLOSE].concat();
    for session in ["60d", "9e7"] {
        assert_eq!(ask(&mut stream, &symbols(session, true, definitions)).await.status, 202);
    }
    for number in 0..1000 {
        let flood = symbols(&format!("f100d{number}"), true, definitions);
        assert_eq!(ask(&mut stream, &flood).await.status, 202);
        if number % 20 == 0 {
            assert_eq!(ask(&mut stream, &trace("60d", number, &fine)).await.status, 202, "{number}");
        }
    }
    let refused = ask(&mut stream, &trace("9e7", 1, &fine)).await;
    assert_eq!(refused.status, 401);
    assert_eq!(ask(&mut stream, &symbols("9e7", true, definitions)).await.status, 202);
    assert_eq!(ask(&mut stream, &trace("9e7", 1, &fine)).await.status, 202);
    let stopped = daemon.stop().await;
    assert!(spans(&stopped.events).all(|span| span["name"] == "C.m"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_do_not_notice_what_others_send() {
    let daemon = Daemon::start(LISTENER).await;
    let to = daemon.server.address().unwrap();
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let mut tasks = Vec::new();
    for number in 0..4u64 {
        let mut stream = daemon.connect().await;
        let stopped = stopped.clone();
        tasks.push(tokio::spawn(async move {
            let session = format!("dead{number}");
            ask(&mut stream, &symbols(&session, true, b"\xC1\x82\x01\x61x")).await;
            let mut state = number + 1;
            let mut next = move || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) as usize
            };
            const LIKELY: &[u8] =
                b"\xC1\xC2\xC3\xC4\xC5\xC6\xC7\xC8\xC9\x9F\xFF\xD8\x82\x83\x84\x85\x1B\x48\x50\x00\x01\x61\xA1\x7F";
            let mut sent = 0;
            while !*stopped.borrow() {
                let body: Vec<u8> = (0..1 + next() % 300)
                    .map(|_| if next() % 5 == 0 { next() as u8 } else { LIKELY[next() % LIKELY.len()] })
                    .collect();
                // Bytes below 0x80 first would be base64.
                let body = [OPEN.as_slice(), &body].concat();
                let request =
                    if sent % 3 == 0 { symbols(&session, false, &body[2..]) } else { trace(&session, sent, &body) };
                assert!([202, 401].contains(&ask(&mut stream, &request).await.status));
                sent += 1;
            }
            sent
        }));
    }
    let plan = Plan { to, amount: Amount::Events(3000), rate: None, connections: 2, seed: 5 };
    for dialect in [ZicoDialect::Gen2, ZicoDialect::Gen1, ZicoDialect::Doc] {
        assert_eq!(within("the agents", run(AgentKind::Zico(dialect), plan, pending())).await.unwrap().events, 3000);
    }
    stop.send(true).unwrap();
    for attacker in tasks {
        assert!(within("the others", attacker).await.unwrap() > 20);
    }
    let stopped = daemon.stop().await;
    let attackers: Vec<String> = (0..4).map(|number| crate::zico_support::sha256(&format!("dead{number}"))).collect();
    let is_of_attacker = |event: &&Value| {
        let session = event["resource"]["zico.session.id"].as_str();
        session.is_some_and(|session| attackers.iter().any(|id| id[..16] == *session)) || event["kind"] == "loss"
    };
    assert_eq!(stopped.events.iter().filter(|event| !is_of_attacker(event)).count(), 9000);
}

#[test]
fn memory_of_abandoned_sessions_is_freed() {
    let budget = MemoryBudget::new(1 << 20);
    // Six eighths are for state that lasts.
    let much = budget.limit() / 8 * 6 / 10 * 9;
    let mut offline = Offline::with(Options::default(), budget.clone(), false);
    let define = |offline: &mut Offline, session: u32, strings: i64| {
        let body: Vec<u8> = (0..strings).flat_map(|id| gen2::string(id, &"x".repeat(100))).collect();
        let name = format!("{session:016x}");
        offline.ask("/agent/submit/agd", &[("X-Zorka-Session-Id", &name), ("X-Zorka-Session-Reset", "true")], &body)
    };
    offline.elapsed = Duration::from_secs(60);
    for hoarder in 0..20 {
        offline.elapsed += Duration::from_millis(1);
        define(&mut offline, hoarder, 1000);
    }
    assert!(budget.used() > much, "{}", budget.used());
    assert!(!define(&mut offline, 1000, 1000).losses().is_empty(), "the budget is exhausted");
    // They are kept while they may be in use, and no longer.
    for _ in 0..9 {
        offline.pass(Duration::from_secs(1));
    }
    assert!(budget.used() > much, "{}", budget.used());
    for _ in 0..20 {
        offline.pass(Duration::from_secs(1));
    }
    // Enough are removed, and the others are kept.
    assert!((1..=much).contains(&budget.used()), "{}", budget.used());
    assert!(define(&mut offline, 1000, 200).losses().is_empty());
}
