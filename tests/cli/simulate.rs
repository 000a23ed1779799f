//! The simulated datadog agents, checked with a separate reader that knows only the sizes of objects.

use std::collections::HashMap;
use std::future::pending;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::live::until;
use tokio::io::AsyncReadExt;
use tokio::join;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tributary::simulate::datadog::{DatadogDialect, Tracer};
use tributary::simulate::{AgentKind, Amount, Counts, Plan, Sent, run};

/// A fixed time: 2026-11-20, in nanoseconds since 1970.
const BASE: u64 = 1_795_132_800_000_000_000;

/// The objects of a stream, by type.
#[derive(Default, Debug)]
struct Walk {
    counts: Counts,
    processes: u64,
    traces: u64,
    spans: u64,
    failed_spans: u64,
    strings: u64,
    /// Lengths of all lists.
    lists: Vec<usize>,
    entries: u64,
    /// The number of definitions of each id, and its last text.
    texts: HashMap<[u8; 8], (u64, String)>,
    /// Every used id, in order.
    uses: Vec<[u8; 8]>,
    /// The bytes after the last complete object.
    rest: usize,
}

impl Walk {
    fn of(stream: &[u8], dialect: DatadogDialect) -> Walk {
        let mut walk = Walk::default();
        let mut at = 0;
        while let Some(len) = walk.object(&stream[at..], dialect) {
            walk.counts.messages += 1;
            at += len;
        }
        walk.counts.events = walk.processes + walk.traces + walk.spans;
        walk.rest = stream.len() - at;
        walk
    }

    /// Counts the first object and returns its length, or `None` if it is incomplete.
    fn object(&mut self, bytes: &[u8], dialect: DatadogDialect) -> Option<usize> {
        if bytes.is_empty() {
            return None;
        }
        assert_eq!(bytes[0], 0xdd, "every object begins with dd");
        let len = match bytes[1] {
            0 => 14,
            1 => 18,
            2 => 83,
            4 | 5 if dialect == DatadogDialect::Padded32 => 515,
            4 | 5 => 3 + 16 * usize::from(bytes[2]),
            6 => 14 + u32::from_be_bytes(bytes[10..14].try_into().unwrap()) as usize,
            other => panic!("object type dd{other:02x}"),
        };
        let object = bytes.get(..len)?;
        let id = |at: usize| object[at..at + 8].try_into().unwrap();
        match object[1] {
            0 => self.processes += 1,
            1 => self.traces += 1,
            2 => {
                self.spans += 1;
                self.failed_spans += u64::from(object[82]);
                self.uses.extend([50, 58, 66, 74].map(id));
            }
            kind @ (4 | 5) => {
                self.lists.push(len);
                self.entries += u64::from(object[2]);
                for entry in 0..usize::from(object[2]) {
                    self.uses.push(id(3 + 16 * entry));
                    if kind == 5 {
                        self.uses.push(id(3 + 16 * entry + 8));
                    }
                }
            }
            _ => {
                self.strings += 1;
                let text = String::from_utf8(object[14..].to_vec()).unwrap();
                let definition = self.texts.entry(id(2)).or_default();
                *definition = (definition.0 + 1, text);
            }
        }
        Some(len)
    }
}

/// A hello and `events` events of one connection.
fn stream(seed: u64, connection: u64, events: u64, dialect: DatadogDialect) -> (Vec<u8>, Counts) {
    let mut tracer = Tracer::new(seed, connection, BASE, dialect);
    let mut out = Vec::new();
    let mut counts = tracer.hello(&mut out);
    while counts.events < events {
        counts += tracer.trace(events - counts.events, &mut out);
    }
    (out, counts)
}

#[test]
fn only_the_same_seed_and_connection_give_the_same_bytes() {
    let (bytes, _) = stream(7, 0, 5_000, DatadogDialect::Exact);
    assert!(bytes == stream(7, 0, 5_000, DatadogDialect::Exact).0);
    assert!(bytes != stream(8, 0, 5_000, DatadogDialect::Exact).0);
    assert!(bytes != stream(7, 1, 5_000, DatadogDialect::Exact).0);
}

#[test]
fn a_stream_has_as_many_objects_and_events_as_the_tracer_counts() {
    for dialect in [DatadogDialect::Exact, DatadogDialect::Padded32] {
        for events in [1, 2, 7, 1_000, 20_000] {
            let (bytes, counts) = stream(1, 0, events, dialect);
            let walk = Walk::of(&bytes, dialect);
            assert_eq!((walk.counts, walk.rest), (counts, 0), "{events} events");
            assert_eq!(counts.events, events);
        }
    }
}

#[test]
fn a_connection_begins_with_the_process_and_its_attributes() {
    let mut hello = Vec::new();
    let counts = Tracer::new(1, 0, BASE, DatadogDialect::Exact).hello(&mut hello);
    assert_eq!(hello[..14], [0xdd, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 4, 0]);
    let walk = Walk::of(&hello, DatadogDialect::Exact);
    assert_eq!((walk.counts, walk.processes, walk.lists.len()), (counts, 1, 2));
    for text in ["env", "version", "runtime-id", "process_id"] {
        assert!(walk.texts.values().any(|(_, known)| known == text), "{text} is defined");
    }
}

#[test]
fn a_trace_stays_within_its_limit_and_an_empty_one_writes_nothing() {
    let mut tracer = Tracer::new(1, 0, BASE, DatadogDialect::Exact);
    let mut out = Vec::new();
    assert_eq!(tracer.trace(0, &mut out), Counts::default());
    assert!(out.is_empty());
    for limit in 1..20 {
        for _ in 0..50 {
            let counts = tracer.trace(limit, &mut out);
            assert!((1..=limit.min(13)).contains(&counts.events), "{} of {limit}", counts.events);
        }
    }
}

#[test]
fn every_list_of_the_padded_dialect_takes_515_bytes_with_zeros_at_its_end() {
    let (bytes, _) = stream(3, 0, 500, DatadogDialect::Padded32);
    let walk = Walk::of(&bytes, DatadogDialect::Padded32);
    assert!(walk.lists.len() > 500 && walk.lists.iter().all(|&len| len == 515));
    let list = &bytes[14..14 + 515];
    assert_eq!((list[..2].to_vec(), usize::from(list[2])), (vec![0xdd, 5], 4));
    assert!(list[3 + 4 * 16..].iter().all(|&byte| byte == 0));
}

#[test]
fn every_used_id_is_defined_and_a_forgotten_id_is_defined_again() {
    let (bytes, _) = stream(5, 0, 50_000, DatadogDialect::Exact);
    let walk = Walk::of(&bytes, DatadogDialect::Exact);
    assert!(walk.uses.iter().all(|id| walk.texts.contains_key(id)));
    let again = walk.texts.values().filter(|(times, _)| *times > 1).count();
    assert!(again > 500, "{again} of {} texts were defined more than once", walk.texts.len());
}

#[test]
fn a_tracer_with_a_small_cache_declares_it_and_repeats_definitions() {
    let strings = |size| {
        let mut tracer = Tracer::new(5, 0, BASE, DatadogDialect::Exact).with_string_cache_size(size);
        let mut out = Vec::new();
        tracer.hello(&mut out);
        assert_eq!(out[6..14], u64::from(size).to_be_bytes());
        for _ in 0..100 {
            tracer.trace(u64::MAX, &mut out);
        }
        let walk = Walk::of(&out, DatadogDialect::Exact);
        (walk.strings, walk.uses.len() as u64)
    };
    let (defined, uses) = strings(0);
    assert_eq!(defined, uses);
    assert!(strings(1024).0 < strings(20).0 && strings(20).0 < defined);
}

#[test]
fn spans_look_like_those_of_a_real_program() {
    let (bytes, _) = stream(9, 0, 50_000, DatadogDialect::Exact);
    let walk = Walk::of(&bytes, DatadogDialect::Exact);
    let per_span = |count: u64| count as f64 / walk.spans as f64;
    assert!((6.0..7.0).contains(&per_span(walk.entries)), "{} tags per span", per_span(walk.entries));
    assert!((0.015..0.025).contains(&per_span(walk.failed_spans)), "{} fail", per_span(walk.failed_spans));
    assert!(walk.traces > 1_000, "{} trace objects", walk.traces);
}

/// A plan for `to` without a rate limit.
fn plan(to: SocketAddr, amount: Amount, connections: usize) -> Plan {
    Plan { to, amount, rate: None, connections, seed: 11 }
}

/// Accepts this number of connections and reads each to its end.
async fn read_all(listener: TcpListener, connections: usize) -> Vec<Vec<u8>> {
    read_and_count(listener, connections, Arc::default()).await
}

/// The same with the sum of the bytes that were read so far.
async fn read_and_count(listener: TcpListener, connections: usize, sum: Arc<AtomicU64>) -> Vec<Vec<u8>> {
    let mut readers = JoinSet::new();
    for _ in 0..connections {
        let (mut socket, _) = listener.accept().await.unwrap();
        let sum = sum.clone();
        readers.spawn(async move {
            let mut bytes = Vec::new();
            while let count @ 1.. = socket.read_buf(&mut bytes).await.unwrap() {
                sum.fetch_add(count as u64, Relaxed);
            }
            bytes
        });
    }
    readers.join_all().await
}

/// The objects of all streams together.
fn counted(streams: &[Vec<u8>], dialect: DatadogDialect) -> (Counts, u64) {
    let mut counts = Counts::default();
    for stream in streams {
        let walk = Walk::of(stream, dialect);
        assert_eq!((walk.processes, walk.rest), (1, 0), "one process, and nothing cut short");
        counts += walk.counts;
    }
    (counts, streams.iter().map(|stream| stream.len() as u64).sum())
}

fn assert_received(sent: &Sent, streams: &[Vec<u8>], dialect: DatadogDialect) {
    let (counts, bytes) = counted(streams, dialect);
    assert_eq!((sent.messages, sent.events, sent.bytes), (counts.messages, counts.events, bytes));
}

#[tokio::test]
async fn a_count_is_sent_exactly_over_all_connections() {
    for dialect in [DatadogDialect::Exact, DatadogDialect::Padded32] {
        for (events, connections, opened) in
            [(1, 1, 1), (2, 1, 1), (7, 1, 1), (1_000, 1, 1), (1, 3, 1), (2, 3, 2), (7, 3, 3), (1_000, 3, 3)]
        {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let plan = plan(listener.local_addr().unwrap(), Amount::Events(events), connections);
            let (sent, streams) = join!(run(AgentKind::Datadog(dialect), plan, pending()), read_all(listener, opened));
            let sent = sent.unwrap();
            assert_eq!(sent.events, events, "{events} over {connections}");
            assert_received(&sent, &streams, dialect);
        }
    }
}

#[tokio::test]
async fn nothing_to_send_opens_no_connection() {
    let unused = "127.0.0.1:1".parse().unwrap();
    let sent =
        run(AgentKind::Datadog(DatadogDialect::Exact), plan(unused, Amount::Events(0), 3), pending()).await.unwrap();
    assert_eq!((sent.messages, sent.events, sent.bytes), (0, 0, 0));
}

#[tokio::test]
async fn a_stop_and_the_end_of_the_time_leave_no_incomplete_object() {
    for is_stopped in [false, true] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let amount = if is_stopped { Amount::Events(u64::MAX) } else { Amount::For(Duration::from_millis(200)) };
        let plan = plan(listener.local_addr().unwrap(), amount, 2);
        let received = Arc::<AtomicU64>::default();
        let stop = async {
            match is_stopped {
                true => until("some traces are received", || (received.load(Relaxed) > 1 << 20).then_some(())).await,
                false => pending().await,
            }
        };
        let reading = read_and_count(listener, 2, received.clone());
        let (sent, streams) = join!(run(AgentKind::Datadog(DatadogDialect::Exact), plan, stop), reading);
        let sent = sent.unwrap();
        assert!(sent.events > 2, "{sent}");
        assert_received(&sent, &streams, DatadogDialect::Exact);
    }
}

#[tokio::test]
async fn a_rate_is_exceeded_by_one_trace_at_most() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let amount = Amount::For(Duration::from_millis(300));
    let plan = Plan { rate: Some(2_000), ..plan(listener.local_addr().unwrap(), amount, 2) };
    let (sent, streams) = join!(run(AgentKind::Datadog(DatadogDialect::Exact), plan, pending()), read_all(listener, 2));
    let sent = sent.unwrap();
    assert_received(&sent, &streams, DatadogDialect::Exact);
    // The machine can be slower than the rate, never faster.
    let allowed = 2_000.0 * sent.seconds + 2.0 * 13.0;
    assert!(sent.events > 2 && sent.events as f64 <= allowed, "{sent}");
}

#[tokio::test]
async fn a_failed_connection_is_an_error_with_the_number_of_sent_events() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let plan = plan(listener.local_addr().unwrap(), Amount::Events(u64::MAX), 1);
    let collector = async {
        let (mut socket, _) = listener.accept().await.unwrap();
        socket.read_exact(&mut vec![0; 1_000_000]).await.unwrap();
    };
    let (sent, ()) = join!(run(AgentKind::Datadog(DatadogDialect::Exact), plan, pending()), collector);
    let error = sent.unwrap_err();
    let text = error.to_string();
    assert!(matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{error:?}");
    assert!(text.starts_with(&format!("connection 0 to {}: ", plan.to)), "{text}");
    assert!(text.contains("sent until then, at least: datadog: ") && text.contains(" events in "), "{text}");
}

#[tokio::test]
async fn a_reset_after_the_last_byte_is_an_error() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let plan = plan(listener.local_addr().unwrap(), Amount::Events(100), 1);
    let collector = async {
        let (socket, _) = listener.accept().await.unwrap();
        socket.readable().await.unwrap();
        // Closing with bytes unread resets the connection.
        drop(socket);
    };
    let (sent, ()) = join!(run(AgentKind::Datadog(DatadogDialect::Exact), plan, pending()), collector);
    assert!(sent.is_err(), "{sent:?}");
}

#[tokio::test]
async fn a_plan_without_connections_or_rate_is_refused() {
    let unused = "127.0.0.1:1".parse().unwrap();
    let plan = plan(unused, Amount::Events(1), 1);
    for plan in [Plan { connections: 0, ..plan }, Plan { rate: Some(0), ..plan }] {
        let error = run(AgentKind::Datadog(DatadogDialect::Exact), plan, pending()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
}

#[test]
fn the_result_is_one_line_of_json() {
    let sent = Sent { protocol: "datadog", messages: 3, events: 1, bytes: 99, seconds: 1.5 };
    let line = sent.to_json();
    let json: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(
        json.as_object().unwrap().keys().collect::<Vec<_>>(),
        ["protocol", "messages", "events", "bytes", "seconds"]
    );
    assert_eq!(line, r#"{"protocol":"datadog","messages":3,"events":1,"bytes":99,"seconds":1.500000}"#);
}

/// Retries with growing pauses would take longer than the limit here.
#[tokio::test]
async fn every_agent_fails_immediately_where_nothing_listens() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let closed = listener.local_addr().unwrap();
    drop(listener);
    let agents = [
        AgentKind::Datadog(DatadogDialect::Exact),
        AgentKind::Bytefrog(tributary::simulate::bytefrog::Options::default()),
        AgentKind::Endless(tributary::simulate::endless::AgentVersion::default()),
        AgentKind::Zico(tributary::simulate::zico::ZicoDialect::Gen2),
        AgentKind::Zico(tributary::simulate::zico::ZicoDialect::Gen1),
        AgentKind::Zico(tributary::simulate::zico::ZicoDialect::Doc),
    ];
    for agent in agents {
        let ended =
            tokio::time::timeout(Duration::from_secs(30), run(agent, plan(closed, Amount::Events(9), 1), pending()));
        let error = ended.await.unwrap_or_else(|_| panic!("{agent:?} tries again")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{agent:?}: {error}");
    }
}
