//! How connections end, and which peers may open them: time limits, half-closes, resets, limits on their number.

use std::sync::Arc;
use std::time::Duration;

use crate::live::custom::Custom;
use crate::live::{Daemon, assert_is_closed, losses, reset, send_all, spans, until, wire, within};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::sleep;
use tributary::decode::Offline;
use tributary::event::{Header, Loss, Origin, Position, Reason, Severity, UnixNanos, semconv};
use tributary::memory::{Amplification, MemoryBudget};
use tributary::pipeline::accounting::ListenerCounters;
use tributary::protocol::datadog::{self, DatadogSession};
use tributary::protocol::{Awaiting, End, Flow, Now, Output, Protocol, ReceiveProgress, Session, Shutdown};
use tributary::transport::options::ListenerOptions;

/// The pause of an agent between two pieces, each of which is sent as soon as there is one.
const PIECE_PAUSE: Duration = Duration::from_millis(20);

/// A connection on which the first span, `name`, was sent and has gone out.
async fn with_span(daemon: &Daemon, name: &str) -> TcpStream {
    let mut stream = daemon.connect().await;
    stream.write_all(&wire::process()).await.unwrap();
    say(daemon, &mut stream, name).await;
    stream
}

/// Sends a span and waits until it has gone out, which shows that the connection lives.
async fn say(daemon: &Daemon, stream: &mut TcpStream, name: &str) {
    stream.write_all(&[wire::named_span(1, name), wire::trace()].concat()).await.unwrap();
    daemon.until_named(name).await;
}

fn assert_lost(events: &[Value], reason: &str, bytes: usize) {
    let [loss] = losses(events)[..] else { panic!("one loss: {events:?}") };
    assert_eq!((&loss["reason"], &loss["bytes"]), (&json!(reason), &json!(bytes)));
}

#[tokio::test]
async fn a_peer_without_a_first_message_is_disconnected_after_handshake_timeout() {
    let daemon = Daemon::with("handshake_timeout = \"300ms\"").await;
    // Only the first message is subject to that limit.
    let mut other = with_span(&daemon, "before").await;
    let mut silent = daemon.connect().await;
    let mut slow = daemon.connect().await;
    slow.write_all(&wire::process()[..9]).await.unwrap();
    assert_is_closed(&mut silent).await;
    assert_is_closed(&mut slow).await;
    say(&daemon, &mut other, "after").await;
    assert_lost(&daemon.stop().await.events, "truncated", 9);
}

#[tokio::test]
async fn a_message_that_arrives_too_slowly_ends_its_connection_after_message_timeout() {
    let daemon = Daemon::with("message_timeout = \"500ms\"\nmin_message_rate = 0").await;
    let mut other = with_span(&daemon, "before").await;
    let mut dripping = with_span(&daemon, "dripping").await;
    let span = wire::span(1);
    dripping.write_all(&span[..10]).await.unwrap();
    // Bytes arrive, but the message does not become complete.
    for byte in &span[10..82] {
        sleep(PIECE_PAUSE).await;
        if dripping.write_all(&[*byte]).await.is_err() {
            break;
        }
    }
    assert_is_closed(&mut dripping).await;
    say(&daemon, &mut other, "after").await;
    let events = daemon.stop().await.events;
    let [loss] = losses(&events)[..] else { panic!("one loss: {events:?}") };
    assert_eq!(loss["reason"], "truncated");
    assert!((10..83).contains(&loss["bytes"].as_u64().unwrap()), "{loss}");
    assert!(loss["detail"].as_str().unwrap().contains("a time limit passed"), "{loss}");
}

#[tokio::test]
async fn a_long_message_has_the_time_that_its_bytes_take_at_the_lowest_rate() {
    let daemon = Daemon::with("message_timeout = \"500ms\"\nmin_message_rate = \"100B\"").await;
    // 6,000 bytes at 100 a second are a minute.
    let text = "x".repeat(6_001);
    let string = wire::string(1, &text);
    let (most, last) = string.split_at(string.len() - 1);
    let mut stream = daemon.connect().await;
    let begin = [&wire::process(), most].concat();
    stream.write_all(&begin).await.unwrap();
    daemon.until_totals("most of it is read", |counters| counters.bytes_in == begin.len() as u64).await;
    // A short message that is incomplete ends its connection meanwhile, and nothing else is lost.
    let mut short = daemon.connect().await;
    short.write_all(&[&wire::process(), &wire::span(1)[..10]].concat()).await.unwrap();
    assert_is_closed(&mut short).await;
    stream.write_all(last).await.unwrap();
    stream.write_all(&wire::span(1)).await.unwrap();
    send_all(stream, &[]).await;
    let events = daemon.stop().await.events;
    assert_lost(&events, "truncated", 10);
    assert_eq!(spans(&events), [(&text[..100], true)]);
}

#[tokio::test]
async fn a_long_string_that_arrives_too_slowly_ends_its_connection_although_its_bytes_are_consumed() {
    let daemon = Daemon::with("message_timeout = \"300ms\"\nmin_message_rate = 0").await;
    let mut stream = daemon.connect().await;
    let begin = [wire::string_head(1, 1 << 20), vec![b'x'; 5_000]].concat();
    stream.write_all(&[&wire::process()[..], &begin].concat()).await.unwrap();
    assert_is_closed(&mut stream).await;
    assert_lost(&daemon.stop().await.events, "truncated", begin.len());
}

#[tokio::test]
async fn a_peer_that_is_silent_between_messages_is_disconnected_after_idle_timeout() {
    let daemon = Daemon::with("idle_timeout = \"1500ms\"\nspan_idle = \"10ms\"").await;
    let mut idle = with_span(&daemon, "idle").await;
    let mut busy = with_span(&daemon, "busy").await;
    let mut byte = [0];
    // The other one sends all the time, and stays.
    let closed = async {
        loop {
            tokio::select! {
                read = tokio::io::AsyncReadExt::read(&mut idle, &mut byte) => return read.unwrap(),
                () = sleep(PIECE_PAUSE) => busy.write_all(&wire::trace()).await.unwrap(),
            }
        }
    };
    assert_eq!(within("the idle connection is closed", closed).await, 0);
    say(&daemon, &mut busy, "after").await;
    let events = daemon.stop().await.events;
    assert!(losses(&events).is_empty(), "{events:?}");
    assert!(spans(&events).iter().all(|(_, is_whole)| *is_whole));
}

#[tokio::test]
async fn a_span_goes_out_after_span_idle_though_nothing_follows() {
    let daemon = Daemon::with("span_idle = \"50ms\"").await;
    let mut stream = daemon.connect().await;
    stream.write_all(&[wire::process(), wire::named_span(1, "idle")].concat()).await.unwrap();
    daemon.until_named("idle").await;
    assert_eq!(daemon.counters().connections_open, 1);
    say(&daemon, &mut stream, "next").await;
    assert_eq!(spans(&daemon.stop().await.events), [("idle", true), ("next", true)]);
}

#[tokio::test]
async fn after_much_traffic_the_last_span_goes_out_after_span_idle_though_nothing_follows() {
    let daemon = Daemon::with("span_idle = \"200ms\"").await;
    let mut busy = daemon.connect().await;
    let many = wire::named_span(1, "much").repeat(10_000);
    busy.write_all(&[wire::process(), many, wire::named_span(2, "last")].concat()).await.unwrap();
    let events = daemon.until("all are out", |events| spans(events).len() == 10_001).await;
    assert_eq!(spans(&events)[10_000], ("last", true));
}

#[test]
fn span_idle_is_as_long_after_much_traffic_as_after_little() {
    let idle = Duration::from_millis(200);
    let options = datadog::Options { span_idle: idle, ..Default::default() };
    for count in [1, 10_000] {
        let session = DatadogSession::new(options.clone(), 16 << 20, false, &MemoryBudget::unlimited());
        let origin = Arc::new(Origin::new("datadog", "test".into(), "peer".into(), 1));
        let mut offline = Offline::new(session, origin, ListenerCounters::new("test".into(), Protocol::Datadog));
        let read_at = Duration::from_secs(7);
        let bytes = [wire::process(), wire::named_span(1, "span").repeat(count)].concat();
        offline.feed(&bytes, Now { unix: UnixNanos(0), elapsed: read_at }, &mut |_| ());
        assert_eq!(offline.due(), Some(read_at + idle), "{count} spans");
    }
}

#[tokio::test]
async fn a_record_goes_out_with_its_raw_ids_after_waiting_time_though_nothing_follows() {
    let daemon = Daemon::with("span_idle = \"10ms\"\nwaiting.time = \"50ms\"").await;
    let mut stream = daemon.connect().await;
    stream.write_all(&[wire::process(), wire::span(5)].concat()).await.unwrap();
    let span = daemon.until_named("datadog.span").await;
    assert_eq!(span["attributes"]["datadog.unresolved.name"], "0000000000000005");
    send_all(stream, &[]).await;
    let events = daemon.stop().await.events;
    let [loss] = losses(&events)[..] else { panic!("one loss: {events:?}") };
    assert_eq!((&loss["reason"], &loss["events"]), (&json!("unresolved"), &json!(1)));
}

#[tokio::test]
async fn a_half_close_completes_the_last_span() {
    let daemon = Daemon::with("span_idle = \"1h\"").await;
    send_all(daemon.connect().await, &[wire::process(), wire::named_span(1, "last")].concat()).await;
    let events = daemon.stop().await.events;
    assert_eq!(spans(&events), [("last", true)]);
    assert!(losses(&events).is_empty());
}

#[tokio::test]
async fn a_reset_leaves_the_last_span_incomplete_and_is_a_loss_only_inside_an_object() {
    let daemon = Daemon::with("span_idle = \"1h\"").await;
    let between = [wire::process(), wire::named_span(1, "between")].concat();
    let inside = [&wire::process(), &wire::named_span(1, "inside")[..], &wire::metric(1, 2.0)[..7]].concat();
    let mut streams = Vec::new();
    for bytes in [&between, &inside] {
        let mut stream = daemon.connect().await;
        stream.write_all(bytes).await.unwrap();
        streams.push(stream);
    }
    let sent = (between.len() + inside.len()) as u64;
    daemon.until_totals("all is read", |counters| counters.bytes_in == sent).await;
    streams.into_iter().for_each(reset);
    daemon.until_all_closed().await;
    let events = daemon.stop().await.events;
    let mut spans = spans(&events);
    spans.sort_unstable();
    assert_eq!(spans, [("between", false), ("inside", false)]);
    assert_lost(&events, "truncated", 7);
    let loss = events.iter().find(|event| event["kind"] == "loss").unwrap();
    assert!(loss["loss"]["detail"].as_str().unwrap().contains("the connection broke"), "{loss}");
}

#[tokio::test]
async fn a_message_over_the_limit_ends_its_connection_and_no_other() {
    let daemon = Daemon::with("max_message_bytes = \"1KiB\"").await;
    let mut other = with_span(&daemon, "before").await;
    let string = wire::string(1, &"x".repeat(2_000));
    send_all(daemon.connect().await, &[&wire::process()[..], &string].concat()).await;
    daemon.until_totals("the connection is over", |counters| counters.connections_open == 1).await;
    say(&daemon, &mut other, "after").await;
    assert_lost(&daemon.stop().await.events, "too_large", string.len());
}

#[tokio::test]
async fn a_message_exactly_at_the_limit_is_taken_though_its_head_comes_on_top() {
    let daemon = Daemon::with("max_message_bytes = \"1MiB\"\nkept_string_bytes = \"1MiB\"").await;
    let mut stream = daemon.connect().await;
    let string = wire::string(1, &"x".repeat(1 << 20));
    let (most, last) = string.split_at(string.len() - 1);
    stream.write_all(&[&wire::process(), most].concat()).await.unwrap();
    let received = (wire::process().len() + most.len()) as u64;
    daemon.until_totals("all but a byte is here", |counters| counters.bytes_in == received).await;
    send_all(stream, last).await;
    daemon.until_all_closed().await;
    let events = daemon.stop().await.events;
    assert!(losses(&events).is_empty(), "{events:?}");
}

#[tokio::test]
async fn a_tls_hello_on_a_plain_listener_is_a_loss_that_names_tls() {
    let daemon = Daemon::with("").await;
    let hello = [&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xFC, 3, 3][..], &[0xA5; 40]].concat();
    send_all(daemon.connect().await, &hello).await;
    daemon.until_all_closed().await;
    let events = daemon.stop().await.events;
    assert_lost(&events, "malformed", hello.len());
    assert!(losses(&events)[0]["detail"].as_str().unwrap().contains("looks like TLS"), "{events:?}");
}

#[tokio::test]
async fn beyond_max_connections_the_next_waits_until_one_leaves() {
    let daemon = Daemon::with("max_connections = 2").await;
    let first = with_span(&daemon, "first").await;
    let mut second = with_span(&daemon, "second").await;
    let mut third = daemon.connect().await;
    third.write_all(&[wire::process(), wire::named_span(1, "third"), wire::trace()].concat()).await.unwrap();
    // The system has established it: the daemon could have accepted it before each of these spans.
    for number in 0..20 {
        say(&daemon, &mut second, &format!("second {number}")).await;
        assert_eq!(daemon.counters().connections, 2, "the third one waits");
    }
    send_all(first, &[]).await;
    daemon.until_named("third").await;
    say(&daemon, &mut third, "third again").await;
    let counters = daemon.counters();
    assert_eq!((counters.connections, counters.connections_open, counters.refused), (3, 2, 0));
    daemon.stop().await;
}

#[tokio::test]
async fn beyond_max_connections_per_address_the_next_is_refused() {
    let daemon = Daemon::with("max_connections_per_address = 1").await;
    let mut first = with_span(&daemon, "first").await;
    assert_is_closed(&mut daemon.connect().await).await;
    assert_eq!((daemon.counters().connections, daemon.counters().refused), (1, 1));
    say(&daemon, &mut first, "first again").await;
    send_all(first, &[]).await;
    daemon.until_all_closed().await;
    with_span(&daemon, "next").await;
    let totals = daemon.stop().await.totals;
    assert_eq!(totals.listeners[0].refused, 1);
}

#[tokio::test]
async fn only_allowed_networks_come_in() {
    let daemon = Daemon::with("allow = [\"10.0.0.0/8\"]").await;
    assert_is_closed(&mut daemon.connect().await).await;
    assert_eq!((daemon.counters().connections, daemon.counters().refused), (0, 1));
    daemon.stop().await;
    let daemon = Daemon::with("allow = [\"10.0.0.0/8\", \"127.0.0.0/8\"]").await;
    with_span(&daemon, "allowed").await;
    assert_eq!(daemon.counters().refused, 0);
    daemon.stop().await;
}

#[tokio::test]
async fn many_connections_that_come_and_go_leave_nothing_behind() {
    let daemon = Daemon::with("max_connections = 8").await;
    let address = daemon.server.address().unwrap();
    let mut agents = tokio::task::JoinSet::new();
    for _ in 0..16 {
        agents.spawn(async move {
            for _ in 0..10 {
                let stream = TcpStream::connect(address).await.unwrap();
                send_all(stream, &[wire::process(), wire::named_span(1, "work")].concat()).await;
            }
        });
    }
    within("all is sent", agents.join_all()).await;
    daemon.until_all_closed().await;
    let crate::live::Stopped { events, totals } = daemon.stop().await;
    assert_eq!(totals.listeners[0].connections, 160);
    assert_eq!(spans(&events), vec![("work", true); 160]);
}

/// Makes an event of every input, and then panics if the input ends with an exclamation mark.
struct Fragile;

impl Session for Fragile {
    fn receive(&mut self, input: &[u8], now: Now, out: &mut Output) -> ReceiveProgress {
        if !input.is_empty() {
            let name = out.batch.push_text(str::from_utf8(input).unwrap()).into();
            let header = Header { name, time: None, observed: now.unix, position: Position::default() };
            out.batch.event(header).log(Severity::Info, None);
            out.decoded_bytes += input.len() as u64;
            assert!(!input.ends_with(b"!"), "on purpose");
        }
        ReceiveProgress { consumed: input.len(), flow: Flow::Continue }
    }

    fn finish(&mut self, _rest: &[u8], _end: End, _now: Now, _out: &mut Output) -> Flow {
        Flow::Close
    }

    fn awaiting(&self) -> Awaiting {
        Awaiting::Message
    }
}

#[tokio::test]
async fn a_session_that_panics_ends_no_other_and_the_bytes_of_its_dropped_events_are_lost() {
    let daemon = Custom::of_sessions(Default::default(), || Fragile);
    let (address, counters) = (daemon.address, daemon.counters.clone());
    let events = || daemon.events();

    let mut unlucky = TcpStream::connect(address).await.unwrap();
    unlucky.write_all(b"good").await.unwrap();
    until("its first event", || (events().len() == 1).then_some(())).await;
    unlucky.write_all(b"bad!").await.unwrap();
    until("the loss", || (events().len() == 2).then_some(())).await;
    let mut other = TcpStream::connect(address).await.unwrap();
    other.write_all(b"other").await.unwrap();
    until("the other's event", || (events().len() == 3).then_some(())).await;
    let events = daemon.stop().await;
    assert_eq!([&events[0]["name"], &events[2]["name"]], ["good", "other"]);
    let (loss, origin) = (&events[1]["loss"], &events[1]["origin"]);
    assert_eq!((&loss["reason"], &loss["bytes"]), (&json!("failed"), &json!(4)));
    assert_eq!((&origin["offset"], &origin["length"]), (&json!(4), &json!(4)));
    let totals = counters.totals();
    assert_eq!((totals.bytes_in, totals.bytes_decoded, totals.lost()), (13, 9, 4));
}

/// Sends a last reply and closes at its timeout, which is due after the first bytes.
#[derive(Default)]
struct Polite {
    is_due: bool,
}

impl Session for Polite {
    fn receive(&mut self, input: &[u8], _now: Now, out: &mut Output) -> ReceiveProgress {
        self.is_due |= !input.is_empty();
        out.decoded_bytes += input.len() as u64;
        ReceiveProgress { consumed: input.len(), flow: Flow::Continue }
    }

    fn finish(&mut self, _rest: &[u8], _end: End, _now: Now, _out: &mut Output) -> Flow {
        Flow::Close
    }

    fn awaiting(&self) -> Awaiting {
        Awaiting::Message
    }

    fn poll_timeout(&self) -> Option<Duration> {
        self.is_due.then_some(Duration::ZERO)
    }

    fn handle_timeout(&mut self, _now: Now, out: &mut Output) -> Flow {
        out.reply.extend_from_slice(b"the end");
        Flow::Close
    }
}

#[tokio::test]
async fn a_session_that_closes_at_a_timeout_lingers_until_the_peer_closes() {
    let options = ListenerOptions { close_linger: Duration::from_secs(60), ..Default::default() };
    let daemon = Custom::of_sessions(options, Polite::default);
    let mut stream = TcpStream::connect(daemon.address).await.unwrap();
    stream.write_all(b"hello").await.unwrap();
    let mut reply = Vec::new();
    within("the reply and the end", tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut reply)).await.unwrap();
    assert_eq!(reply, b"the end");
    // The daemon still reads: it counts these bytes.
    stream.write_all(b" again").await.unwrap();
    drop(stream);
    until("the connection has ended", || (daemon.counters.totals().connections_open == 0).then_some(())).await;
    assert_eq!(daemon.counters.totals().bytes_in, 11);
    daemon.stop().await;
}

/// Reports each byte as a loss of its own.
struct Lossy;

impl Session for Lossy {
    fn receive(&mut self, input: &[u8], now: Now, out: &mut Output) -> ReceiveProgress {
        for (offset, byte) in input.iter().enumerate() {
            let position = Position { sequence: None, offset: offset as u64, length: 1 };
            let loss = Loss {
                reason: Reason::Malformed,
                bytes: 1,
                events: Some(2),
                detail: "a bad byte",
                excerpt: std::slice::from_ref(byte),
            };
            out.loss(Header::observed_at(semconv::LOSS, now.unix, position), loss);
        }
        ReceiveProgress { consumed: input.len(), flow: Flow::Continue }
    }

    fn finish(&mut self, _rest: &[u8], _end: End, _now: Now, _out: &mut Output) -> Flow {
        Flow::Close
    }

    fn awaiting(&self) -> Awaiting {
        Awaiting::Message
    }
}

#[tokio::test]
async fn losses_beyond_max_losses_per_second_are_reported_together() {
    let options = ListenerOptions { max_losses_per_second: 10, ..Default::default() };
    let daemon = Custom::of_sessions(options, || Lossy);
    let mut stream = TcpStream::connect(daemon.address).await.unwrap();
    stream.write_all(&[7; 5000]).await.unwrap();
    // Those of one second are reported when it is over, though the connection stays open and sends nothing.
    let count = |event: &Value| event["attributes"]["tributary.loss.count"].as_u64().unwrap_or(1);
    until("every loss", || (daemon.events().iter().map(count).sum::<u64>() == 5000).then_some(())).await;
    drop(stream);
    let events = daemon.stop().await;
    let sum = |key: &str| events.iter().map(|event| event["loss"][key].as_u64().unwrap()).sum::<u64>();
    assert_eq!((sum("bytes"), sum("events")), (5000, 10_000));
    let together = events.iter().find(|event| count(event) > 1).unwrap();
    let detail = together["loss"]["detail"].as_str().unwrap();
    assert!(detail.contains("max_losses_per_second") && detail.ends_with("a bad byte"), "{detail}");
    assert_eq!(together["loss"]["excerpt"], "07");
    assert!(events.len() < 500, "{}", events.len());
}

/// Answers each byte with itself. With the first it waits until the test lets it continue.
struct Held {
    is_held: bool,
    began: std::sync::mpsc::Sender<()>,
    may_continue: Arc<std::sync::Mutex<std::sync::mpsc::Receiver<()>>>,
}

impl Session for Held {
    fn receive(&mut self, input: &[u8], _now: Now, out: &mut Output) -> ReceiveProgress {
        if std::mem::take(&mut self.is_held) && !input.is_empty() {
            self.began.send(()).unwrap();
            self.may_continue.lock().unwrap().recv().unwrap();
        }
        out.decoded_bytes += input.len() as u64;
        out.reply.extend_from_slice(input);
        ReceiveProgress { consumed: input.len(), flow: Flow::Continue }
    }

    fn finish(&mut self, _rest: &[u8], _end: End, _now: Now, _out: &mut Output) -> Flow {
        Flow::Close
    }

    fn awaiting(&self) -> Awaiting {
        Awaiting::Message
    }

    fn shutdown(&mut self, _now: Now, out: &mut Output) -> Shutdown {
        out.reply.extend_from_slice(b".");
        Shutdown::Close
    }
}

/// How many bytes the system holds for the socket with these ports, its own and its peer's.
fn unread_bytes((local, remote): (u16, u16)) -> usize {
    let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let (local, remote) = (format!(":{local:04X}"), format!(":{remote:04X}"));
    let unread = sockets.lines().find_map(|line| {
        // number, local and remote address, state, tx_queue:rx_queue
        let fields: Vec<_> = line.split_whitespace().collect();
        let is_it = fields[1].ends_with(&local) && fields[2].ends_with(&remote);
        is_it.then(|| usize::from_str_radix(fields[4].split_once(':').unwrap().1, 16).unwrap())
    });
    unread.unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_has_arrived_before_a_listener_stops_is_decoded_and_answered_before_its_sessions_are_shut_down() {
    let (began, has_begun) = std::sync::mpsc::channel();
    let (let_continue, may_continue) = std::sync::mpsc::channel();
    let may_continue = Arc::new(std::sync::Mutex::new(may_continue));
    let daemon = Custom::of_sessions(Default::default(), move || Held {
        is_held: true,
        began: began.clone(),
        may_continue: may_continue.clone(),
    });
    let (mut stream, counters) = (TcpStream::connect(daemon.address).await.unwrap(), daemon.counters.clone());
    stream.write_all(b"a").await.unwrap();
    tokio::task::block_in_place(|| has_begun.recv()).unwrap();
    // The connection is busy with the first byte.
    stream.write_all(b"b").await.unwrap();
    let ports = (daemon.address.port(), stream.local_addr().unwrap().port());
    until("the second byte has arrived", || (unread_bytes(ports) == 1).then_some(())).await;
    daemon.stop.cancel();
    let_continue.send(()).unwrap();
    let mut reply = Vec::new();
    within("the reply and the end", tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut reply)).await.unwrap();
    assert_eq!(String::from_utf8(reply).unwrap(), "ab.");
    drop(stream);
    daemon.stop().await;
    assert_eq!((counters.totals().bytes_in, counters.totals().bytes_decoded), (2, 2));
}

/// An exclamation mark causes more output than an hour earns.
struct Costly;

impl Session for Costly {
    fn receive(&mut self, input: &[u8], now: Now, out: &mut Output) -> ReceiveProgress {
        let limits = Amplification { ratio: 1, burst: 1 << 20, rate: 1 << 10 };
        out.decoded_bytes += input.len() as u64;
        if input.contains(&b'!') {
            out.charge(limits, 1, (1 << 20) + 3600 * (1 << 10), now.elapsed);
        }
        ReceiveProgress { consumed: input.len(), flow: Flow::Continue }
    }

    fn finish(&mut self, _rest: &[u8], _end: End, _now: Now, _out: &mut Output) -> Flow {
        Flow::Close
    }

    fn awaiting(&self) -> Awaiting {
        Awaiting::Message
    }
}

#[tokio::test]
async fn connections_of_one_address_share_its_allowance_of_output_and_others_are_read() {
    let daemon = Custom::of_sessions(Default::default(), || Costly);
    let read = |bytes: u64| move |counters: &Arc<ListenerCounters>| counters.totals().bytes_in == bytes;
    let until_read = async |bytes| until("bytes are read", || read(bytes)(&daemon.counters).then_some(())).await;
    let mut first = TcpStream::connect(daemon.address).await.unwrap();
    first.write_all(b"!").await.unwrap();
    until_read(1).await;
    // The address is throttled, also on a new connection after the first has ended.
    drop(first);
    let mut second = TcpStream::connect(daemon.address).await.unwrap();
    second.write_all(b"second").await.unwrap();
    until("the second is accepted", || (daemon.counters.totals().connections == 2).then_some(())).await;
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, 2], 0).into()).unwrap();
    let mut other = socket.connect(daemon.address).await.unwrap();
    for bytes in 2..20 {
        other.write_all(b"x").await.unwrap();
        until_read(bytes).await;
    }
    daemon.stop().await;
}
