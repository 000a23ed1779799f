//! The end of the grace period: what has not ended by then is given up within a bound, and what that costs is reported.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::live::custom::Custom;
use crate::live::{losses, until, within};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tributary::event::{Header, Position, Severity, semconv};
use tributary::memory::MemoryBudget;
use tributary::protocol::{
    Awaiting, End, Exchange, Flow, HeadDecision, Now, Output, ReceiveProgress, Request, RequestHead, RequestOutcome,
    Response, Session, Work,
};
use tributary::transport::options::ListenerOptions;

/// The name of all events; any name that there is.
const EVENT: semconv::Name = semconv::SERVICE_NAME;
/// How long a session takes to decode and write an event that it holds.
const EVENT_TIME: Duration = Duration::from_millis(1);
/// How long writing the rest takes: much longer than any stop.
const ENDLESS: Duration = Duration::from_secs(20);

fn event(now: Now, out: &mut Output) {
    out.batch.event(Header::observed_at(EVENT, now.unix, Position::default())).log(Severity::Info, None);
}

/// The number of events that are no losses.
fn plain(events: &[Value]) -> usize {
    events.iter().filter(|event| event["name"] == EVENT.as_str()).count()
}

/// Holds more events than can be written at the end within the grace period.
struct Full {
    ends: Option<Instant>,
    is_written: Arc<AtomicBool>,
}

impl Full {
    fn new(is_written: &Arc<AtomicBool>) -> Full {
        Full { ends: None, is_written: is_written.clone() }
    }

    /// One event of those that it holds.
    fn write(&mut self, now: Now, out: &mut Output) -> Flow {
        event(now, out);
        std::thread::sleep(EVENT_TIME);
        if Instant::now() < *self.ends.get_or_insert_with(|| Instant::now() + ENDLESS) {
            return Flow::Again;
        }
        self.is_written.store(true, Relaxed);
        Flow::Close
    }
}

impl Session for Full {
    fn receive(&mut self, input: &[u8], _now: Now, out: &mut Output) -> ReceiveProgress {
        // The last byte is that of an incomplete message.
        let consumed = input.len().saturating_sub(1);
        out.decoded_bytes += consumed as u64;
        ReceiveProgress { consumed, flow: Flow::Continue }
    }

    fn finish(&mut self, _rest: &[u8], _end: End, now: Now, out: &mut Output) -> Flow {
        self.write(now, out)
    }

    fn awaiting(&self) -> Awaiting {
        Awaiting::Message
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_holds_very_much_is_cut_off_when_the_grace_period_is_over_and_a_loss_says_so() {
    let is_written = Arc::<AtomicBool>::default();
    let of_sessions = is_written.clone();
    let daemon = Custom::of_sessions(ListenerOptions::default(), move || Full::new(&of_sessions));
    let mut stream = TcpStream::connect(daemon.address).await.unwrap();
    stream.write_all(b"0123456789").await.unwrap();
    until("it is read", || (daemon.counters.totals().bytes_in == 10).then_some(())).await;
    let counters = daemon.counters.clone();
    let events = daemon.abort().await;
    assert!(!is_written.load(Relaxed), "the rest of the session is not waited for");
    assert!(plain(&events) > 0, "what there is time for is written");
    let [loss] = losses(&events)[..] else { panic!("one loss: {events:?}") };
    assert_eq!((&loss["reason"], &loss["bytes"]), (&json!("failed"), &json!(1)));
    assert!(loss["detail"].as_str().unwrap().contains("events that it held are missing"), "{loss}");
    let totals = counters.totals();
    assert_eq!((totals.buffered(), totals.events() as usize), (0, events.len()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_sessions_that_hold_very_much_are_cut_off_together() {
    let is_written = Arc::<AtomicBool>::default();
    let of_sessions = is_written.clone();
    let daemon = Custom::of_sessions(ListenerOptions::default(), move || Full::new(&of_sessions));
    let mut streams = Vec::new();
    for number in 1..=100 {
        let mut stream = TcpStream::connect(daemon.address).await.unwrap();
        stream.write_all(b"0123456789").await.unwrap();
        until("it is read", || (daemon.counters.totals().bytes_in == 10 * number).then_some(())).await;
        streams.push(stream);
    }
    let events = daemon.abort().await;
    assert!(!is_written.load(Relaxed));
    assert_eq!(losses(&events).len(), 100, "each connection reports its own");
    // Each event takes `EVENT_TIME`: the time is that of all together.
    assert!(plain(&events) < 3_000, "{}", plain(&events));
}

/// An exchange that has accepted requests whose events are not written yet.
struct Late {
    /// How many calls of `finish` are left. None: they go on for very long.
    finishes: std::sync::Mutex<Result<u32, Full>>,
}

impl Exchange for Late {
    type Work = Nothing;

    fn admit(&self, _head: &RequestHead, _now: Now) -> HeadDecision {
        HeadDecision::Take { max_body_bytes: 100, key: "none" }
    }

    fn work(&self, request: Request, _memory: Option<&Arc<MemoryBudget>>, _now: Now) -> Nothing {
        Nothing(request)
    }

    fn finish(&self, now: Now, out: &mut Output) -> Flow {
        match &mut *self.finishes.lock().unwrap() {
            Ok(left) => {
                event(now, out);
                *left -= 1;
                if *left > 0 { Flow::Again } else { Flow::Continue }
            }
            Err(full) => full.write(now, out),
        }
    }
}

struct Nothing(Request);

impl Work for Nothing {
    fn step(&mut self, _now: Now, out: &mut Output) -> Flow {
        out.decoded_bytes += self.0.body.len() as u64;
        Flow::Continue
    }

    fn quarantine_reason(&self) -> Option<&str> {
        None
    }

    fn request(&self) -> &Request {
        &self.0
    }

    fn respond(self, _outcome: RequestOutcome, _now: Now) -> Response {
        Response::empty(200)
    }
}

#[tokio::test]
async fn events_that_an_exchange_holds_are_written_when_the_grace_period_is_over() {
    let daemon = Custom::of_exchange(ListenerOptions::default(), Late { finishes: Ok(3).into() });
    // A connection that has not ended by itself.
    let mut stream = TcpStream::connect(daemon.address).await.unwrap();
    stream.write_all(b"PUT / HTTP/1.1\r\nhost: h\r\ncontent-length: 9\r\n\r\n").await.unwrap();
    until("it is open", || (daemon.counters.totals().connections_open == 1).then_some(())).await;
    let events = daemon.abort().await;
    assert_eq!((plain(&events), events.len()), (3, 3), "{events:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exchange_that_holds_very_much_is_cut_off_and_a_loss_says_so() {
    let is_written = Arc::<AtomicBool>::default();
    let exchange = Late { finishes: Err(Full::new(&is_written)).into() };
    let daemon = Custom::of_exchange(ListenerOptions::default(), exchange);
    let counters = daemon.counters.clone();
    let events = within("stopping", daemon.abort()).await;
    assert!(!is_written.load(Relaxed), "the rest is not waited for");
    assert!(plain(&events) > 0);
    let [loss] = losses(&events)[..] else { panic!("one loss: {events:?}") };
    assert_eq!((&loss["reason"], &loss["bytes"]), (&json!("failed"), &json!(0)));
    assert_eq!(counters.totals().events() as usize, events.len());
}
