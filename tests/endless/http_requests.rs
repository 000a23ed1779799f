//! Requests whose work panics, or leaves something behind: those that follow on the same connection know nothing of it.

use std::time::Duration;

use crate::endless_support::http::ask;
use crate::live::within;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tributary::event::{Header, Position, Severity};
use tributary::memory::MemoryBudget;
use tributary::pipeline::Sinks;
use tributary::protocol::{
    Exchange, Flow, Head, HeadDecision, Now, Output, Protocol, Request, RequestOutcome, Response, Work,
};
use tributary::sink::memory::Memory;
use tributary::transport::clock::Clock;
use tributary::transport::options::{HttpOptions, QuarantineOptions};
use tributary::transport::tcp::Listener;

/// Does what the bodies say: `panic`; `hold`, which wishes to be held for an hour, though all is done; anything else is worked
/// on in two steps. Each step is an event with the body's name.
struct Obedient;

struct Task {
    request: Request,
    steps: u32,
}

impl Exchange for Obedient {
    type Work = Task;

    fn admit(&self, _head: &Head, _now: Now) -> HeadDecision {
        HeadDecision::Take { max_body_bytes: 100, key: "none" }
    }

    fn work(&self, request: Request, _now: Now) -> Task {
        Task { request, steps: 0 }
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
            ("hold", _) => out.throttle = Some(Duration::from_secs(3600)),
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

#[tokio::test]
async fn a_request_that_panics_or_wishes_to_be_held_is_nothing_to_the_next() {
    let (memory, lines) = Memory::new();
    let mut sinks = Sinks::new(CancellationToken::new());
    crate::live::add(&mut sinks, "memory", memory);
    let (sender, mut workers) = sinks.start();
    let (tasks, stop, abort) = (TaskTracker::new(), CancellationToken::new(), CancellationToken::new());
    let listener = Listener::bind("test", Protocol::Endless, ([127, 0, 0, 1], 0).into(), Default::default()).unwrap();
    let (address, counters) = (listener.address().unwrap(), listener.counters.clone());
    let options = HttpOptions {
        quarantine: QuarantineOptions { dir: "".into(), ..Default::default() },
        ..HttpOptions::default()
    };
    let budget = MemoryBudget::new(64 << 20);
    let serving =
        listener.serve_http(Obedient, options, budget, sender, Clock::start(), tasks.clone(), stop.clone(), abort);
    let serving = tokio::spawn(serving);

    let mut stream = TcpStream::connect(address).await.unwrap();
    for (body, status) in [("hold", 200), ("after", 200), ("panic", 503), ("after", 200)] {
        let request = format!("PUT / HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        let answer = within("the answer", ask(&mut stream, request.as_bytes())).await;
        assert_eq!(answer.status, status, "{body}");
    }
    drop(stream);
    stop.cancel();
    serving.await.unwrap();
    tasks.close();
    within("the connections end", tasks.wait()).await;
    within("the sink ends", workers.drained()).await;

    let events: Vec<Value> = lines.lines().iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<_> = events.iter().map(|event| event["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["hold", "after", "after", "tributary.loss", "after", "after"]);
    assert_eq!((&events[3]["loss"]["reason"], &events[3]["loss"]["bytes"]), (&json!("failed"), &json!(5)));
    let totals = counters.totals();
    assert_eq!((totals.bytes_in, totals.bytes_decoded, totals.lost()), (19, 14, 5));
}
