//! A listener whose exchange does what targets say; its events stay in memory.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Sleep, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tributary_event::{Header, Position, Reason, Severity};
use tributary_memory::MemoryBudget;
use tributary_pipeline::accounting::{ListenerCounters, ListenerTotals};
use tributary_pipeline::{Sinks, Workers};
use tributary_protocol::{
    AnswerForm, Exchange, Flow, HeadDecision, Now, Output, Protocol, Request, RequestHead, RequestOutcome, Response,
    Work,
};
use tributary_sink::memory::{Memory, MemoryLines};
use tributary_transport::capture::Capture;
use tributary_transport::clock::Clock;
use tributary_transport::context::ListenerContext;
use tributary_transport::http::serve_http;
use tributary_transport::options::{HttpOptions, ListenerOptions, QuarantineOptions};
use tributary_transport::tcp::{Listener, bind};

use crate::within;

/// The largest body that the exchange takes.
pub(crate) const MAX_BODY: u64 = 300_000;

/// Answers with the number of the request, the host and the length of the body. `/wait/N`: after N milliseconds. `/trailers`,
/// `/headers`: with trailers; with headers only. `/none`: 404. With the header `form`, answers have the form of gRPC.
struct Echo;

struct Echoed {
    request: Request,
    wait: Pin<Box<Sleep>>,
    is_decoded: bool,
}

impl Exchange for Echo {
    type Work = Echoed;

    fn speaks_http2(&self) -> bool {
        true
    }

    fn answer_form(&self, head: &RequestHead) -> Option<AnswerForm> {
        head.header("form").map(|_| grpc as AnswerForm)
    }

    fn admit(&self, head: &RequestHead, _now: Now) -> HeadDecision {
        match head.path() {
            "/none" => HeadDecision::Answer(Response::text(404, "no such path"), Reason::Unsupported),
            _ => HeadDecision::Take { max_body_bytes: MAX_BODY, key: "max_body_bytes" },
        }
    }

    fn work(&self, request: Request, _memory: Option<&Arc<MemoryBudget>>, _now: Now) -> Echoed {
        let wait = request.head.path().strip_prefix("/wait/").map_or(0, |wait| wait.parse().unwrap());
        Echoed { request, wait: Box::pin(sleep(Duration::from_millis(wait))), is_decoded: false }
    }
}

/// The answer of gRPC: a status behind 200.
fn grpc(response: Response) -> Response {
    Response::empty(200).with("grpc-status", if response.status == 200 { "0" } else { "13" }.into())
}

impl Work for Echoed {
    fn step(&mut self, now: Now, out: &mut Output) -> Flow {
        let name = out.batch.push_text("echoed");
        out.batch.event(Header::observed_at(name, now.unix, Position::default())).log(Severity::Info, None);
        out.decoded_bytes += self.request.body.len() as u64;
        self.is_decoded = true;
        Flow::Continue
    }

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.is_decoded { Poll::Ready(()) } else { self.wait.as_mut().poll(context) }
    }

    fn quarantine_reason(&self) -> Option<&str> {
        None
    }

    fn request(&self) -> &Request {
        &self.request
    }

    fn respond(self, outcome: RequestOutcome, _now: Now) -> Response {
        assert_eq!(outcome, RequestOutcome::Delivered);
        let Request { head, body, number } = self.request;
        let text = format!("{number} {} {}", head.header("host").unwrap_or("none"), body.len());
        match head.path() {
            "/trailers" => Response::text(200, text).with_trailer("grpc-status", "0".into()),
            "/headers" => Response::empty(200).with("grpc-status", "0".into()),
            _ => Response::text(200, text),
        }
    }
}

/// A listener that serves.
pub(crate) struct Served {
    pub(crate) address: SocketAddr,
    pub(crate) counters: Arc<ListenerCounters>,
    pub(crate) memory: Arc<MemoryBudget>,
    /// Cancelled when it is to stop.
    pub(crate) stop: CancellationToken,
    /// Its connections and what they have left to do.
    tasks: TaskTracker,
    lines: Arc<MemoryLines>,
    workers: Mutex<Option<Workers>>,
    serving: JoinHandle<()>,
}

impl Served {
    pub(crate) fn with(options: ListenerOptions, http: HttpOptions) -> Served {
        Served::within(64 << 20, options, http)
    }

    /// With this much memory for peers to share.
    pub(crate) fn within(memory: u64, options: ListenerOptions, http: HttpOptions) -> Served {
        let (sink, lines) = Memory::new();
        let sink = Mutex::new(Some(sink));
        let mut sinks = Sinks::new(CancellationToken::new());
        sinks.add("memory", Default::default(), move || Ok(sink.lock().unwrap().take().expect("it never fails")));
        let (sender, workers) = sinks.start();
        let listener = Listener::on(bind(([127, 0, 0, 1], 0).into()).unwrap(), &options).unwrap();
        let address = listener.address().unwrap();
        let counters = ListenerCounters::new("test".into(), Protocol::Endless);
        let memory = MemoryBudget::new(memory);
        let (tasks, stop, abort) = (TaskTracker::new(), CancellationToken::new(), CancellationToken::new());
        let capture = options.capture.as_ref();
        let capture = capture.and_then(|options| Capture::start(options, "test", Protocol::Endless, &tasks, &abort));
        let context = ListenerContext {
            options: options.into(),
            counters: counters.clone(),
            memory: memory.clone(),
            capture,
            sender,
            clock: Clock::start(),
            tasks: tasks.clone(),
            stop: stop.clone(),
            abort,
        };
        let quarantine = QuarantineOptions { dir: "".into(), ..Default::default() };
        let serving = serve_http(vec![listener], Vec::new(), Echo, HttpOptions { quarantine, ..http }, context);
        let (serving, workers) = (tokio::spawn(serving), Mutex::new(Some(workers)));
        Served { address, counters, memory, stop, tasks, lines, workers, serving }
    }

    pub(crate) fn new() -> Served {
        Served::with(ListenerOptions::default(), HttpOptions::default())
    }

    pub(crate) fn totals(&self) -> ListenerTotals {
        self.counters.totals()
    }

    /// Stops it; returns its counters and every event. Every byte is accounted for, and no memory is in use.
    pub(crate) async fn stop(self) -> (ListenerTotals, Vec<String>) {
        self.stop.cancel();
        within("the listener ends", self.serving).await.unwrap();
        self.tasks.close();
        within("the connections end", self.tasks.wait()).await;
        let mut workers = self.workers.lock().unwrap().take().unwrap();
        within("the sink ends", workers.drained()).await;
        let totals = self.counters.totals();
        assert_eq!(totals.buffered(), 0, "{totals:?}");
        assert_eq!(self.memory.used(), 0, "all memory is given back");
        (totals, self.lines.lines())
    }
}
