//! HTTP/1.1 listeners: hyper reads heads and frames bodies; who comes in, how long everything may take, what the sinks
//! say and what is answered is ours.
//!
//! A request is answered when every sink that takes its events has them. It is worked on by the task of its connection; and
//! by a task of its own once the peer has gone (or was told to come again, because the sinks took too long), so that what
//! was begun is not undone.

use std::convert::Infallible;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Incoming};
use hyper::header::{CONTENT_LENGTH, EXPECT};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{HeaderMap, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, error};

use crate::event::{BatchBuilder, Loss, Origin, Reason, UnixNanos};
use crate::memory::{MemoryBudget, MemoryLease};
use crate::pipeline::accounting::ListenerCounters;
use crate::pipeline::tap::TapRequest;
use crate::pipeline::{DeliveryOutcome, Sender};
use crate::protocol::{Exchange, Flow, Head, HeadDecision, Now, Output, Request, RequestOutcome, Response, Work};

use super::body::{ReceivedBody, UndecidedBytes, drain, gather, too_large};
use super::clock::Clock;
use super::connection::ConnectionContext;
use super::http_timeouts::{HttpTimeouts, TimedStream};
use super::options::HttpOptions;
use super::quarantine::{Quarantine, Record};
use super::read_buffer::CONNECTION_BYTES;
use super::tcp::{Accepted, Listener};

impl Listener {
    /// Accepts connections like [`Listener::serve`], and answers their requests with `exchange`. Bodies on their way
    /// take their memory from `budget`.
    #[expect(clippy::too_many_arguments, reason = "those of `serve`, and two more")]
    pub async fn serve_http<E: Exchange>(
        mut self,
        exchange: E,
        options: HttpOptions,
        budget: Arc<MemoryBudget>,
        sender: Sender,
        clock: Clock,
        tasks: TaskTracker,
        stop: CancellationToken,
        abort: CancellationToken,
    ) {
        self.memory = budget.clone();
        let http = Arc::new(Http {
            exchange,
            places: Arc::new(Semaphore::new(options.max_requests)),
            quarantine: Quarantine::new(&options.quarantine, &self.name),
            options,
            budget,
            decode_buffers: Mutex::default(),
        });
        let ticker = Ticker {
            http: http.clone(),
            out: Output::new(BatchBuilder::new(Arc::new(self.origin()))),
            counters: self.counters.clone(),
            sender: sender.clone(),
            clock,
        };
        let connections = TaskTracker::new();
        tasks.spawn(ticker.keep(connections.clone(), stop.clone(), abort.clone()));
        let bytes = HTTP_CONNECTION_BYTES + 2 * http.options.max_head_bytes as u64;
        let serve = move |arrival| serve_connection(arrival, http.clone());
        self.accept(serve, bytes, sender, clock, connections, stop, abort).await;
    }
}

/// What an exchange has to say without being asked.
struct Ticker<E> {
    http: Arc<Http<E>>,
    out: Output,
    counters: Arc<ListenerCounters>,
    sender: Sender,
    clock: Clock,
}

impl<E: Exchange> Ticker<E> {
    /// Lets the exchange do what time brings; and, when the daemon stops and its last connection_state has ended, the rest.
    async fn keep(mut self, connections: TaskTracker, stop: CancellationToken, abort: CancellationToken) {
        let ticking = async {
            loop {
                sleep(TICK).await;
                self.http.decode_buffers().clear();
                self.told(E::tick).await;
            }
        };
        let _ = stop.run_until_cancelled(ticking).await;
        connections.close();
        connections.wait().await;
        let _ = abort.run_until_cancelled(self.told(E::finish)).await;
    }

    /// Hands over everything that the exchange has to say.
    async fn told(&mut self, say: impl Fn(&E, Now, &mut Output) -> Flow) {
        let mut flow = Flow::Again;
        while flow == Flow::Again {
            flow = say(&self.http.exchange, self.clock.now(), &mut self.out);
            self.counters.settle(&mut self.out);
            if !self.out.batch.is_empty() {
                let batch = self.out.batch.take();
                self.counters.handed_over(&batch);
                self.sender.send(batch).await;
            }
        }
    }
}

/// What every connection may bring of a body, whatever the others do.
const SMALL_BODY_BYTES: u64 = 16 << 10;
/// What is taken of the memory of all for a connection when it is let in, without its head, which is here twice, and TLS.
const HTTP_CONNECTION_BYTES: u64 = CONNECTION_BYTES + SMALL_BODY_BYTES;

/// How often an exchange is told that time passes.
const TICK: Duration = Duration::from_secs(1);

/// What all connections of a listener share.
struct Http<E> {
    exchange: E,
    options: HttpOptions,
    /// For requests that are decoded and delivered.
    places: Arc<Semaphore>,
    budget: Arc<MemoryBudget>,
    quarantine: Option<Quarantine>,
    /// Left by requests that are done, for a second at most.
    decode_buffers: Mutex<Vec<DecodeBuffer>>,
}

/// Where a request writes its events: most are too short to make memory of their own for that.
struct DecodeBuffer {
    out: Output,
    /// What is kept for the next batch.
    kept: MemoryLease,
}

/// So many decode_buffers are kept …
const MAX_DECODE_BUFFERS: usize = 16;
/// … and none that takes more than this.
const MAX_DECODE_BUFFER_BYTES: usize = 128 << 10;

impl<E> Http<E> {
    /// A room for events of `origin`.
    fn room(&self, origin: &Arc<Origin>) -> DecodeBuffer {
        let Some(mut room) = self.decode_buffers().pop() else {
            let out = Output::new(BatchBuilder::new(origin.clone()));
            return DecodeBuffer { out, kept: self.budget.passing(0) };
        };
        room.out.batch.set_origin(origin.clone());
        room.out.batch.set_resource(Arc::default());
        // How long the last request would have waited is not for this one.
        room.out.hold = None;
        room
    }

    /// Nothing of a request is in the room any more.
    fn leave(&self, room: DecodeBuffer) {
        let mut decode_buffers = self.decode_buffers();
        if decode_buffers.len() < MAX_DECODE_BUFFERS
            && room.out.batch.is_empty()
            && room.out.batch.memory_bytes() <= MAX_DECODE_BUFFER_BYTES
        {
            decode_buffers.push(room);
        }
    }

    fn decode_buffers(&self) -> MutexGuard<'_, Vec<DecodeBuffer>> {
        self.decode_buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What all requests of a connection share.
struct HttpConnection<E> {
    http: Arc<Http<E>>,
    origin: Arc<Origin>,
    context: ConnectionContext,
    watch: Arc<HttpTimeouts>,
    requests: AtomicU64,
}

/// Serves one connection to its end.
async fn serve_connection<E: Exchange>(arrival: Accepted, http: Arc<Http<E>>) {
    let Accepted { stream, origin, context, opened, .. } = arrival;
    let watch = HttpTimeouts::new(context.clock, opened);
    let io = TokioIo::new(TimedStream { stream, watch: watch.clone() });
    let mut builder = http1::Builder::new();
    // A peer that has sent its last request may close its side before it reads the answer.
    builder.half_close(true).max_buf_size(http.options.max_head_bytes);
    let (ending, watching) = ((origin.clone(), context.clone()), watch.clone());
    let connection_state = Arc::new(HttpConnection { http, origin, context, watch, requests: AtomicU64::new(0) });
    let service = service_fn(move |request| {
        let connection_state = connection_state.clone();
        async move { Ok::<_, Infallible>(connection_state.answer(request).await) }
    });
    let mut connection = pin!(builder.serve_connection(io, service));
    let (origin, context) = ending;
    let mut stopped = pin!(context.stop.cancelled());
    let mut drain_deadline = None;
    let mut alarm = pin!(sleep_until(Instant::now()));
    // hyper polls our stream and our requests, which move the deadline; so it is looked at after every poll.
    let ended = poll_fn(|cx| {
        loop {
            if let Poll::Ready(result) = connection.as_mut().poll(cx) {
                return Poll::Ready(Some(result));
            }
            if drain_deadline.is_none() && stopped.as_mut().poll(cx).is_ready() {
                drain_deadline = Some(Instant::now() + context.options.close_linger);
                connection.as_mut().graceful_shutdown();
                continue;
            }
            let Some(deadline) = watching.deadline(&context.options, drain_deadline) else { return Poll::Pending };
            if alarm.deadline() != deadline {
                alarm.as_mut().reset(deadline);
            }
            return alarm.as_mut().poll(cx).map(|()| None);
        }
    })
    .await;
    match ended {
        None => debug!("a time limit passed"),
        Some(Ok(())) => debug!("connection ended"),
        Some(Err(error)) if error.is_parse() => {
            // Heads are no part of the counters, so no byte is missing in them.
            let detail = format!("the peer does not speak HTTP as we know it: {error}");
            let loss = Loss { reason: Reason::Malformed, bytes: 0, events: None, detail: &detail, excerpt: &[] };
            context.sender.send(context.loss(&origin, 0, loss)).await;
        }
        Some(Err(error)) => debug!(%error, "connection broke"),
    }
}

impl<E: Exchange> HttpConnection<E> {
    async fn answer(self: &Arc<Self>, request: hyper::Request<Incoming>) -> hyper::Response<Full<Bytes>> {
        self.watch.request();
        let response = self.respond(request).await;
        self.watch.answer();
        debug!(status = response.status, "answered");
        to_hyper(response)
    }

    async fn respond(self: &Arc<Self>, request: hyper::Request<Incoming>) -> Response {
        let number = self.requests.fetch_add(1, Ordering::Relaxed) + 1;
        let (parts, incoming) = request.into_parts();
        let head = Head {
            method: parts.method.as_str().to_owned(),
            // Proxies name the host as well.
            target: parts.uri.path_and_query().map_or_else(String::new, ToString::to_string),
            headers: headers(&parts.headers),
        };
        let is_expecting = parts.headers.contains_key(EXPECT);
        let is_secret = self.http.exchange.is_secret(&head);
        let undecided = UndecidedBytes::new(self.context.clone(), self.origin.clone(), is_secret);
        let limit = match self.http.exchange.admit(&head, self.context.clock.now()) {
            HeadDecision::Take { max_body_bytes, key } => (max_body_bytes, key),
            HeadDecision::Answer(response, reason) => {
                self.show(&head, number, Bytes::new(), is_secret);
                if !incoming.is_end_stream() {
                    let why = format!("{} {:.200}, {}", head.method, head.target, response.status);
                    Box::pin(drain(incoming, is_expecting, reason, &why, undecided)).await;
                }
                return response;
            }
        };
        let declared = parts.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
        if declared.is_some_and(|declared| declared > limit.0) {
            let response = too_large(limit.0, limit.1);
            let why = String::from_utf8_lossy(&response.body).trim_end().to_owned();
            Box::pin(drain(incoming, is_expecting, Reason::TooLarge, &why, undecided)).await;
            return response;
        }
        match gather(incoming, limit, self.http.budget.passing(SMALL_BODY_BYTES), undecided).await {
            Ok(gathered) => {
                self.show(&head, number, gathered.body.clone(), is_secret);
                self.deliver(head, number, gathered).await
            }
            Err(response) => response,
        }
    }

    /// Shows a request to whoever looks on.
    fn show(&self, head: &Head, number: u64, body: Bytes, is_secret: bool) {
        let taps = self.context.sender.taps();
        if taps.wired() > 0 {
            taps.request(&TapRequest { origin: self.origin.clone(), number, head: head.clone(), body, is_secret });
        }
    }

    /// Works on a whole request, and waits for its fate for as long as it may take.
    async fn deliver(self: &Arc<Self>, head: Head, number: u64, gathered: ReceivedBody) -> Response {
        let ReceivedBody { body, lease, mut undecided } = gathered;
        let until = Instant::now() + self.http.options.delivery_timeout;
        let Ok(Ok(place)) = timeout_at(until, self.http.places.clone().acquire_owned()).await else {
            let why = "too many requests are on their way (max_requests)";
            Box::pin(undecided.lose(Reason::Failed, why, &body)).await;
            return Response::unavailable(why);
        };
        let request = Request { head, body, number };
        let job = Job::new(request, undecided, self.clone(), (lease, place));
        let underway = InFlightRequest { job: Some(Box::pin(job.run())), context: &self.context };
        match timeout_at(until, underway).await {
            Ok(Some(response)) => response,
            // A panic has told its loss.
            Ok(None) => Response::unavailable("the collector cannot take this just now"),
            Err(_) => Response::unavailable("storing the events takes longer than usual; send them again"),
        }
    }
}

/// A job that whoever waits for its answer works on; and when nobody does any more, a task of its own.
struct InFlightRequest<'a> {
    /// `None`: it is done.
    job: Option<Pin<Box<dyn Future<Output = Response> + Send>>>,
    context: &'a ConnectionContext,
}

impl Future for InFlightRequest<'_> {
    /// `None`: it has panicked.
    type Output = Option<Response>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Response>> {
        let Some(job) = &mut self.job else { return Poll::Ready(None) };
        // What has panicked is not looked at again.
        let answer = match catch_unwind(AssertUnwindSafe(|| job.as_mut().poll(cx))) {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(response)) => Some(response),
            Err(_) => None,
        };
        self.job = None;
        Poll::Ready(answer)
    }
}

impl Drop for InFlightRequest<'_> {
    fn drop(&mut self) {
        let Some(job) = self.job.take() else { return };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let abort = self.context.abort.clone();
            self.context.tasks.spawn_on(async move { abort.run_until_cancelled_owned(job).await }, &runtime);
        }
    }
}

/// So long a request is worked on, and then others have their turn. Most are done by then.
const TURN: Duration = Duration::from_micros(500);

/// A request being worked on.
struct Job<E: Exchange> {
    work: E::Work,
    room: DecodeBuffer,
    undecided: UndecidedBytes,
    connection_state: Arc<HttpConnection<E>>,
    /// The memory of the body, and a place.
    _held: (MemoryLease, OwnedSemaphorePermit),
}

impl<E: Exchange> Job<E> {
    /// Boxed here, or every future context it would keep room for it, too.
    fn new(
        request: Request,
        undecided: UndecidedBytes,
        connection_state: Arc<HttpConnection<E>>,
        held: (MemoryLease, OwnedSemaphorePermit),
    ) -> Box<Self> {
        let work = connection_state.http.exchange.work(request, connection_state.context.clock.now());
        let room = connection_state.http.room(&connection_state.origin);
        Box::new(Job { work, room, undecided, connection_state, _held: held })
    }

    async fn run(mut self: Box<Self>) -> Response {
        let connection_state = self.connection_state.clone();
        let context = &connection_state.context;
        let DecodeBuffer { out, kept } = &mut self.room;
        let delivery = context.sender.delivery();
        let received = context.clock.now();
        let (mut now, mut turn) = (received, received.elapsed);
        loop {
            context.sender.wait_for_capacity().await;
            let flow = self.work.step(now, out);
            self.undecided.settle(out);
            if !out.batch.is_empty() {
                let batch = out.batch.take();
                if !kept.try_hold(out.batch.memory_bytes() as u64) {
                    out.batch.shrink();
                }
                context.counters.handed_over(&batch);
                delivery.send(batch).await;
            }
            if flow != Flow::Again {
                break;
            }
            now = context.clock.now();
            if let Some(hold) = out.hold.take() {
                let _ = timeout(hold, context.stop.cancelled()).await;
            } else if now.elapsed.saturating_sub(turn) < TURN {
                continue;
            } else {
                tokio::task::yield_now().await;
            }
            now = context.clock.now();
            turn = now.elapsed;
        }
        let is_kept = self.quarantine_if_asked(received.unix).await;
        connection_state.http.leave(self.room);
        let is_written = delivery.outcome().await == DeliveryOutcome::Written;
        let fate = match (is_written, is_kept) {
            (true, true) => RequestOutcome::Delivered,
            (true, false) => RequestOutcome::Unkept,
            (false, _) => RequestOutcome::Failed,
        };
        self.work.respond(fate, context.clock.now())
    }

    /// Keeps the request if it must be. `false`: it could not.
    async fn quarantine_if_asked(&mut self, received: UnixNanos) -> bool {
        let HttpConnection { http, origin, .. } = &*self.connection_state;
        let (Some(reason), Some(quarantine)) = (self.work.quarantine_reason(), &http.quarantine) else { return true };
        let record = Record {
            at: received,
            origin: origin.clone(),
            reason: reason.to_owned(),
            request: self.work.request().clone(),
        };
        match quarantine.keep(record).await {
            Ok(()) => true,
            Err(error) => {
                if let Some(suppressed) = quarantine.trouble.permit() {
                    let listener = &*origin.listener;
                    error!(listener, %error, suppressed, "cannot keep a request that cannot be read");
                }
                false
            }
        }
    }
}

fn headers(map: &HeaderMap) -> Vec<(String, Vec<u8>)> {
    map.iter().map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec())).collect()
}

fn to_hyper(response: Response) -> hyper::Response<Full<Bytes>> {
    let mut answer = hyper::Response::new(Full::new(Bytes::from(response.body.into_owned())));
    *answer.status_mut() = StatusCode::from_u16(response.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    for (name, value) in response.headers {
        if let Ok(value) = value.parse() {
            answer.headers_mut().insert(name, value);
        }
    }
    answer
}
