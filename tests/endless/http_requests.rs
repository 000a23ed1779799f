//! Requests whose work panics or leaves state: they do not affect the following requests of the connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::endless_support::http::ask;
use crate::live::custom::Custom;
use crate::live::{until, within};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tributary::event::{Header, Position, Severity, semconv};
use tributary::memory::MemoryBudget;
use tributary::protocol::{
    Exchange, Flow, HeadDecision, Now, Output, Request, RequestHead, RequestOutcome, Response, Work,
};
use tributary::transport::options::ListenerOptions;

/// Does what the bodies say: `panic`; `throttle`, which asks for a pause of an hour, though all is done; anything else is
/// decoded in two steps. Each step is an event with the body's name. The first tick panics, each further one is an event.
#[derive(Default)]
struct Obedient {
    ticks: AtomicU64,
}

struct Task {
    request: Request,
    steps: u32,
}

impl Exchange for Obedient {
    type Work = Task;

    fn admit(&self, _head: &RequestHead, _now: Now) -> HeadDecision {
        HeadDecision::Take { max_body_bytes: 100, key: "none" }
    }

    fn work(&self, request: Request, _memory: Option<&Arc<MemoryBudget>>, _now: Now) -> Task {
        Task { request, steps: 0 }
    }

    fn tick(&self, now: Now, out: &mut Output) -> Flow {
        out.batch.event(Header::observed_at(TICK, now.unix, Position::default())).log(Severity::Info, None);
        assert_ne!(self.ticks.fetch_add(1, Relaxed), 0, "on purpose");
        Flow::Continue
    }
}

impl Work for Task {
    fn step(&mut self, now: Now, out: &mut Output) -> Flow {
        let body = str::from_utf8(&self.request.body).unwrap();
        assert_ne!(body, "panic", "on purpose");
        let name = out.batch.push_text(body);
        out.batch.event(Header::observed_at(name, now.unix, Position::default())).log(Severity::Info, None);
        self.steps += 1;
        match (body, self.steps) {
            ("throttle", _) => out.throttle = Some(Duration::from_secs(3600)),
            (_, 1) => return Flow::Again,
            _ => {}
        }
        out.decoded_bytes += body.len() as u64;
        Flow::Continue
    }

    fn quarantine_reason(&self) -> Option<&str> {
        None
    }

    fn request(&self) -> &Request {
        &self.request
    }

    fn respond(self, fate: RequestOutcome, _now: Now) -> Response {
        Response::empty(if fate == RequestOutcome::Delivered { 200 } else { 500 })
    }
}

/// The name of the events of ticks; any name that there is.
const TICK: semconv::Name = semconv::SERVICE_NAME;

/// Stops a listener, and returns every event but those of ticks.
async fn stop(daemon: Custom) -> Vec<Value> {
    let events = daemon.stop().await.into_iter();
    events.filter(|event| event["name"] != TICK.as_str() && !is_of_tick(event)).collect()
}

/// Whether it is the loss that a tick reports which panicked.
fn is_of_tick(event: &Value) -> bool {
    event["loss"]["detail"].as_str().is_some_and(|detail| detail.starts_with("a bug of ours: events that were due"))
}

#[tokio::test]
async fn a_request_that_panics_or_asks_for_a_pause_does_not_affect_the_next() {
    let daemon = Custom::of_exchange(ListenerOptions::default(), Obedient::default());
    let (address, counters) = (daemon.address, daemon.counters.clone());
    let mut stream = TcpStream::connect(address).await.unwrap();
    for (body, status) in [("throttle", 200), ("after", 200), ("panic", 503), ("after", 200)] {
        let request = format!("PUT / HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        let answer = within("the answer", ask(&mut stream, request.as_bytes())).await;
        assert_eq!(answer.status, status, "{body}");
    }
    drop(stream);
    let events = stop(daemon).await;
    let names: Vec<_> = events.iter().map(|event| event["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["throttle", "after", "after", "tributary.loss", "after", "after"]);
    assert_eq!((&events[3]["loss"]["reason"], &events[3]["loss"]["bytes"]), (&json!("failed"), &json!(5)));
    let totals = counters.totals();
    assert_eq!((totals.bytes_in, totals.bytes_decoded, totals.lost()), (23, 18, 5));
}

#[tokio::test]
async fn a_tick_that_panics_is_reported_and_the_next_is_called() {
    let daemon = Custom::of_exchange(ListenerOptions::default(), Obedient::default());
    let has = |wanted: &dyn Fn(&Value) -> bool| daemon.events().iter().any(wanted).then_some(());
    until("the next tick's event", || has(&|event| event["name"] == TICK.as_str())).await;
    let events = daemon.events();
    assert!(is_of_tick(&events[0]), "{events:?}");
    assert_eq!((&events[0]["loss"]["reason"], &events[0]["loss"]["bytes"]), (&json!("failed"), &json!(0)));
    assert_eq!(events.iter().filter(|event| is_of_tick(event)).count(), 1);
    daemon.stop().await;
}

/// What it answers to `bytes`, written in pieces of `size`, until it closes; then the totals' bytes in, decoded and lost, and
/// the losses.
async fn answer_to(bytes: &[u8], size: usize) -> (String, [u64; 3], Vec<Value>) {
    let options = ListenerOptions { close_linger: Duration::from_secs(60), ..Default::default() };
    let daemon = Custom::of_exchange(options, Obedient::default());
    let mut stream = TcpStream::connect(daemon.address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    for piece in bytes.chunks(size) {
        stream.write_all(piece).await.unwrap();
        tokio::task::yield_now().await;
    }
    stream.shutdown().await.unwrap();
    let mut answer = Vec::new();
    within("the answer and the end", stream.read_to_end(&mut answer)).await.unwrap();
    drop(stream);
    until("the connection has ended", || (daemon.counters.totals().connections_open == 0).then_some(())).await;
    let counters = daemon.counters.clone();
    let events = stop(daemon).await;
    let totals = counters.totals();
    let answer = String::from_utf8(answer).unwrap();
    let status = answer.lines().next().unwrap_or_default().to_owned();
    (status, [totals.bytes_in, totals.bytes_decoded, totals.lost()], events)
}

#[tokio::test]
async fn a_head_that_cannot_be_read_is_answered_and_counted_the_same_whole_or_byte_by_byte() {
    let long = format!("PUT / HTTP/1.1\r\nhost: h\r\nx: {}\r\n\r\n", "x".repeat(20_000));
    for (head, status) in [
        ("nonsense\r\n\r\n and what is behind it", "HTTP/1.1 400 Bad Request"),
        ("PUT / HTTP/9.9\r\nhost: h\r\n\r\nbody", "HTTP/1.1 400 Bad Request"),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\u{4}\0\0\0\0\0", "HTTP/1.1 400 Bad Request"),
        ("PUT / HTTP/1.1\r\nhost : h\r\n\r\nbody", "HTTP/1.1 400 Bad Request"),
        (&*long, "HTTP/1.1 431 Request Header Fields Too Large"),
    ] {
        let shown = &head[..head.len().min(20)];
        for size in [head.len(), 1] {
            let (answer, [bytes_in, decoded, lost], losses) = answer_to(head.as_bytes(), size).await;
            assert_eq!(answer, status, "{shown} in pieces of {size}");
            assert_eq!((bytes_in, decoded, lost), (head.len() as u64, 0, head.len() as u64), "{shown} {size}");
            let [loss] = &losses[..] else { panic!("one loss: {losses:?}") };
            assert_eq!((&loss["loss"]["reason"], &loss["loss"]["bytes"]), (&json!("malformed"), &json!(lost)));
        }
    }
}

#[tokio::test]
async fn a_head_that_breaks_off_is_a_loss_also_behind_a_request_and_shows_no_secret() {
    let request = "PUT / HTTP/1.1\r\nhost: h\r\ncontent-length: 5\r\n\r\nafter";
    let half = "PUT /x?key=s3cret HTTP/1.1\r\nauthorization: s3cret";
    for size in [1000, 1] {
        let (answer, totals, losses) = answer_to(half.as_bytes(), size).await;
        assert_eq!((answer.as_str(), totals), ("", [half.len() as u64, 0, half.len() as u64]), "in pieces of {size}");
        let [loss] = &losses[..] else { panic!("one loss: {losses:?}") };
        assert_eq!(loss["loss"]["reason"], "truncated");
        assert_eq!(loss["loss"]["excerpt"], "505554202f78", "PUT /x");
        let (answer, totals, _) = answer_to([request, half].concat().as_bytes(), size).await;
        assert_eq!(answer, "HTTP/1.1 200 OK", "in pieces of {size}");
        assert_eq!(totals, [half.len() as u64 + 5, 5, half.len() as u64]);
    }
    let (answer, totals, losses) = answer_to(b"", 1).await;
    assert_eq!((answer.as_str(), totals, losses), ("", [0; 3], vec![]));
}

#[tokio::test]
async fn host_and_transfer_encoding_are_checked_as_rfc_9112_says() {
    let chunked = "5\r\nafter\r\n0\r\n\r\n";
    for (headers, body, status) in [
        ("HTTP/1.1\r\nhost: h\r\ncontent-length: 5", "after", 200),
        ("HTTP/1.0\r\ncontent-length: 5", "after", 200),
        ("HTTP/1.1\r\nhost: h\r\ntransfer-encoding: Chunked", chunked, 200),
        ("HTTP/1.1\r\ncontent-length: 5", "after", 400),
        ("HTTP/1.1\r\nhost: h\r\nhost: h\r\ncontent-length: 5", "after", 400),
        ("HTTP/1.0\r\nhost: h\r\nhost: i\r\ncontent-length: 5", "after", 400),
        ("HTTP/1.1\r\nhost: h\r\ntransfer-encoding: gzip, chunked", chunked, 400),
        ("HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked, chunked", chunked, 400),
        ("HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked", chunked, 400),
    ] {
        let request = format!("PUT / {headers}\r\n\r\n{body}");
        let (answer, totals, losses) = answer_to(request.as_bytes(), request.len()).await;
        assert!(
            answer.starts_with(&format!("HTTP/1.{} {status}", if headers.starts_with("HTTP/1.0") { 0 } else { 1 })),
            "{headers}: {answer}"
        );
        let expected = if status == 200 { [5, 5, 0] } else { [5, 0, 5] };
        assert_eq!(totals, expected, "{headers}");
        assert_eq!(losses.iter().filter(|event| event["kind"] == "loss").count(), usize::from(status != 200));
    }
}

#[tokio::test]
async fn bytes_behind_a_head_that_cannot_be_read_are_counted_as_they_arrive_and_lost_when_no_time_is_left() {
    let options = ListenerOptions { close_linger: Duration::from_secs(3600), ..Default::default() };
    let daemon = Custom::of_exchange(options, Obedient::default());
    let mut stream = TcpStream::connect(daemon.address).await.unwrap();
    let head = b"nonsense\r\n\r\n";
    stream.write_all(head).await.unwrap();
    let mut answer = Vec::new();
    within("the answer", stream.read_to_end(&mut answer)).await.unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 400"), "{answer:?}");
    stream.write_all(&[b'x'; 1000]).await.unwrap();
    let received = head.len() as u64 + 1000;
    until("the bytes are counted", || (daemon.counters.totals().bytes_in == received).then_some(())).await;
    assert_eq!(daemon.counters.totals().buffered(), i128::from(received));
    let counters = daemon.counters.clone();
    let events = daemon.abort().await;
    let [loss] = &events.iter().filter(|event| event["loss"]["bytes"] != 0).collect::<Vec<_>>()[..] else {
        panic!("one loss: {events:?}")
    };
    // The stop may end the reading before the task is aborted.
    assert!(["failed", "malformed"].contains(&loss["loss"]["reason"].as_str().unwrap()), "{loss}");
    assert_eq!(loss["loss"]["bytes"], received);
    assert_eq!((counters.totals().buffered(), counters.totals().lost()), (0, received));
}
