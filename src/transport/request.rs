//! One request: from its head to its response.
//!
//! A request is answered when every sink that takes its events has them at the level that the listener acknowledges. The task of
//! its connection works on it. When the peer has gone, or was asked to repeat the request because the sinks took too long, a task
//! of its own completes it.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use hyper::Version;
use hyper::body::{Body, Incoming};
use hyper::header::{CONTENT_LENGTH, EXPECT};
use hyper::http::request::Parts;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tracing::{debug, error};

use tributary_event::{Origin, Reason, UnixNanos};
use tributary_explain::http::without_secrets;
use tributary_pipeline::tap::TapRequest;
use tributary_pipeline::{Delivery, DeliveryOutcome, Unconfirmed};
use tributary_protocol::{
    Exchange, Flow, HeadDecision, LossLimit, Output, Request, RequestHead, RequestOutcome, Response, Work,
};

use super::body::{ReceivedBody, UndecidedBytes, read_body, refuse_body, too_large};
use super::capture::Recording;
use super::context::ConnectionContext;
use super::http_head;
use super::http_state::HttpState;
use super::in_flight::{InFlightRequest, LeveledResponse, STUCK_CHECK};
use super::quarantine::QuarantineRecord;
use super::request_memory::RequestMemory;

/// A request that has been decoded for this long yields to the other tasks. Most are finished before.
const YIELD_AFTER: Duration = Duration::from_micros(500);
/// How long an answer waits until a loss is handed over.
const REPORT_TIME: Duration = Duration::from_millis(500);

/// What all requests of a connection share.
pub(super) struct HttpConnection<E> {
    pub(super) http: Arc<HttpState<E>>,
    origin: Arc<Origin>,
    context: ConnectionContext,
    requests: AtomicU64,
    /// One permit, for the request that uses the memory with which the connection was admitted. Of HTTP/2 only.
    of_connection: Arc<Semaphore>,
    /// None while a request uses it.
    loss_limit: Mutex<Option<Box<LossLimit>>>,
    /// Of HTTP/2, if it is recorded: requests are recorded when they are complete. Streams record what arrives on others.
    recording: Option<Mutex<Recording>>,
}

impl<E: Exchange> HttpConnection<E> {
    pub(super) fn new(
        http: Arc<HttpState<E>>,
        origin: Arc<Origin>,
        context: ConnectionContext,
        recording: Option<Recording>,
    ) -> Arc<Self> {
        let loss_limit = Mutex::new(Some(Box::new(context.loss_limit())));
        let (requests, of_connection) = (AtomicU64::new(0), Arc::new(Semaphore::new(1)));
        let recording = recording.map(Mutex::new);
        Arc::new(HttpConnection { http, origin, context, requests, of_connection, loss_limit, recording })
    }

    /// The number of a request that has arrived.
    pub(super) fn number(&self) -> u64 {
        self.requests.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The response to one request.
    pub(super) async fn answer(self: &Arc<Self>, request: hyper::Request<Incoming>, number: u64) -> Response {
        let (parts, incoming) = request.into_parts();
        let head = http_head::head(&parts);
        let form = self.http.exchange.answer_form(&head);
        let response = self.respond(parts, head, incoming, number).await;
        self.context.counters.responded(response.status);
        debug!(status = response.status, "answered");
        match form {
            Some(form) => form(response),
            None => response,
        }
    }

    async fn respond(self: &Arc<Self>, parts: Parts, head: RequestHead, incoming: Incoming, number: u64) -> Response {
        let is_expecting = parts.headers.contains_key(EXPECT);
        let is_secret = self.http.exchange.is_secret(&head);
        let undecided = UndecidedBytes::new(self.context.clone(), self.origin.clone(), is_secret);
        let decision = match http_head::check(&parts) {
            Some(response) => HeadDecision::Answer(response, Reason::Malformed),
            None => self.http.exchange.admit(&head, self.context.clock.now()),
        };
        let limit = match decision {
            HeadDecision::Take { max_body_bytes, key } => (max_body_bytes, key),
            HeadDecision::Answer(response, reason) => {
                self.show(&head, number, Bytes::new, is_secret, false);
                if !incoming.is_end_stream() {
                    let target = without_secrets(&head.target);
                    let why = format!("{} {target:.200}, {}", head.method, response.status);
                    let refusal = (reason, self.http.exchange.ignored_as(&head));
                    Box::pin(refuse_body(incoming, is_expecting, refusal, &why, undecided)).await;
                }
                return response;
            }
        };
        let declared = parts.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
        if declared.is_some_and(|declared| declared > limit.0) {
            let response = too_large(limit.0, limit.1);
            self.show(&head, number, Bytes::new, is_secret, false);
            let why = String::from_utf8_lossy(&response.body).trim_end().to_owned();
            Box::pin(refuse_body(incoming, is_expecting, (Reason::TooLarge, None), &why, undecided)).await;
            return response;
        }
        let show_part = |body: &[u8]| self.show(&head, number, || Bytes::copy_from_slice(body), is_secret, true);
        let memory = self.memory(parts.version, &head);
        let exchange = &self.http.exchange;
        let overloaded = |why| (exchange.overloaded(&head, why), exchange.ignored_as(&head));
        match read_body(incoming, limit, memory, undecided, show_part, overloaded).await {
            Ok(received) => {
                self.record(|recording| {
                    recording.received(&http_head::recorded(&head, received.body.len()));
                    recording.received(&received.body);
                });
                let is_secret = is_secret && !self.http.exchange.is_explained_without_keys(&head);
                self.show(&head, number, || received.body.clone(), is_secret, false);
                let ReceivedBody { body, memory, undecided } = received;
                let request = Request { head, body, number };
                let work = |request| exchange.work(request, Some(&self.context.memory), self.context.clock.now());
                self.deliver(request, memory, undecided, work).await
            }
            Err(response) => response,
        }
    }

    /// Adds to the recording, if there is one.
    pub(super) fn record(&self, add: impl FnOnce(&mut Recording)) {
        if let Some(recording) = &self.recording {
            add(&mut recording.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// The memory for a request, which it has not taken yet.
    fn memory(&self, version: Version, head: &RequestHead) -> RequestMemory {
        let memory = &self.context.memory;
        if version == Version::HTTP_2 {
            let max_head_bytes = self.http.options.max_head_bytes;
            RequestMemory::of_stream(memory, head, max_head_bytes, &self.of_connection)
        } else {
            RequestMemory::of_connection(memory)
        }
    }

    /// Shows a request on the taps.
    pub(super) fn show(
        &self,
        head: &RequestHead,
        number: u64,
        body: impl FnOnce() -> Bytes,
        is_secret: bool,
        is_cut: bool,
    ) {
        let taps = self.context.sender.taps();
        if taps.wire_count() > 0 {
            let (origin, head, body) = (self.origin.clone(), head.clone(), body());
            taps.request(&TapRequest { origin, number, head, body, is_secret, is_cut });
        }
    }

    /// Decodes a complete request with what `work` makes of it, and waits until its events are delivered or `delivery_timeout` has
    /// passed.
    pub(super) async fn deliver(
        self: &Arc<Self>,
        request: Request,
        memory: RequestMemory,
        mut undecided: UndecidedBytes,
        work: impl FnOnce(Request) -> E::Work,
    ) -> Response {
        let complete = Instant::now();
        let until = complete + self.http.options.delivery_timeout;
        let permit = tokio::select! {
            permit = timeout_at(until, self.http.permits.clone().acquire_owned()) => permit.ok().and_then(Result::ok),
            // The others wait for it, too.
            () = self.while_every(|| !self.context.sender.is_down_for(self.origin.protocol)) => None,
        };
        let Some(permit) = permit else {
            let why = "too many requests are being decoded (max_requests)";
            if let Some(endpoint) = self.http.exchange.ignored_as(&request.head) {
                undecided.ignore(endpoint);
            } else {
                // Its report may wait for a sink that cannot write; the answer does not.
                let _ = timeout(REPORT_TIME, Box::pin(undecided.lose(Reason::Failed, why, &request.body))).await;
            }
            return self.http.exchange.overloaded(&request.head, why);
        };
        let early = self.http.exchange.early_answer(&request.head);
        let delivery = self.context.sender.delivery();
        let unconfirmed = delivery.unconfirmed();
        let is_answered = Arc::<AtomicBool>::default();
        let job = Job::new(work(request), undecided, self.clone(), is_answered.clone(), (memory, permit));
        let job = InFlightRequest::new(job.run(delivery), unconfirmed.clone(), &self.context);
        let answered = tokio::select! {
            answered = timeout_at(until, job) => answered,
            response = early_answer(early, complete) => {
                // Its events are in memory, and a task of its own delivers them.
                is_answered.store(true, Ordering::Relaxed);
                self.context.counters.answered_early();
                return response;
            }
            () = self.while_every(|| !self.is_stuck(&unconfirmed)) => {
                return Response::unavailable("a sink cannot write now; send the events again");
            }
        };
        match answered {
            Ok(Some((response, level))) => {
                if (200..300).contains(&response.status) {
                    self.context.counters.acknowledged(level, complete.elapsed());
                }
                response
            }
            // The request panicked, and its loss is reported.
            Ok(None) => Response::unavailable("the collector cannot decode this request now"),
            Err(_) => Response::unavailable("the sinks take longer than delivery_timeout; send the events again"),
        }
    }

    /// Whether a sink for which the delivery waits is known to be unable to write.
    fn is_stuck(&self, unconfirmed: &Unconfirmed) -> bool {
        let sender = &self.context.sender;
        unconfirmed.is_stuck() || (!sender.has_capacity() && sender.is_down_for(self.origin.protocol))
    }

    /// Waits as long as `is_so` is true; it is checked a few times a second.
    async fn while_every(&self, is_so: impl Fn() -> bool) {
        loop {
            sleep(STUCK_CHECK).await;
            if !is_so() {
                return;
            }
        }
    }

    pub(super) fn take_loss_limit(&self) -> Option<Box<LossLimit>> {
        let limit = self.loss_limit.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Another request of this connection may still use it, after its peer was asked to repeat it.
        Some(limit.unwrap_or_else(|| Box::new(self.context.loss_limit())))
    }

    pub(super) fn put_loss_limit_back(&self, limit: Option<Box<LossLimit>>) {
        *self.loss_limit.lock().unwrap_or_else(PoisonError::into_inner) = limit;
    }
}

/// The answer that a peer gets after a time, from `complete` on. Without one this never ends.
async fn early_answer(answer: Option<(Duration, Response)>, complete: Instant) -> Response {
    let Some((within, response)) = answer else { return std::future::pending().await };
    tokio::time::sleep_until(complete + within).await;
    response
}

/// A request that is decoded and delivered.
struct Job<E: Exchange> {
    work: E::Work,
    out: Output,
    undecided: UndecidedBytes,
    connection: Arc<HttpConnection<E>>,
    /// The peer has its answer: it does not send the events again.
    is_answered: Arc<AtomicBool>,
    /// The memory of the body, and one of `max_requests`.
    _held: (RequestMemory, OwnedSemaphorePermit),
}

impl<E: Exchange> Job<E> {
    /// Boxed here: otherwise every future around it would contain its size.
    fn new(
        work: E::Work,
        undecided: UndecidedBytes,
        connection: Arc<HttpConnection<E>>,
        is_answered: Arc<AtomicBool>,
        held: (RequestMemory, OwnedSemaphorePermit),
    ) -> Box<Self> {
        let HttpConnection { http, origin, context, .. } = &*connection;
        let out = http.decode_buffers.take(origin, &context.allowance, connection.take_loss_limit());
        Box::new(Job { work, out, undecided, connection, is_answered, _held: held })
    }

    async fn run(mut self: Box<Self>, delivery: Delivery) -> LeveledResponse {
        let connection = self.connection.clone();
        let context = &connection.context;
        let out = &mut self.out;
        let level = delivery.level();
        let (mut has_sent, mut is_refused) = (false, false);
        let received = context.clock.now();
        let (mut now, mut since_yield) = (received, received.elapsed);
        loop {
            context.sender.wait_for_capacity().await;
            let work = &mut self.work;
            if ready(work).await {
                now = context.clock.now();
            }
            let step = self.undecided.call(out, now, |out| {
                let flow = work.step(now, out);
                if flow != Flow::Again {
                    out.write_combined_losses();
                }
                flow
            });
            if let Some(batch) = step.batch.map(Arc::new) {
                // A sink that is known to be unable to write gets nothing of the request, so that it is not written twice: the
                // peer sends it again. It is decoded to its end, so that its bytes are accounted for.
                let is_answered = self.is_answered.load(Ordering::Relaxed);
                is_refused |= !has_sent && !is_answered && context.sender.refuses(&batch);
                if !is_refused {
                    has_sent = true;
                    delivery.send(batch).await;
                }
            }
            if step.flow != Flow::Again {
                break;
            }
            now = context.clock.now();
            if let Some(wait) = out.throttle.take() {
                let _ = timeout(wait, context.stop.cancelled()).await;
            } else if now.elapsed.saturating_sub(since_yield) < YIELD_AFTER {
                continue;
            } else {
                tokio::task::yield_now().await;
            }
            now = context.clock.now();
            since_yield = now.elapsed;
        }
        let is_kept = is_refused || self.quarantine_if_asked(received.unix).await;
        connection.put_loss_limit_back(self.out.set_loss_limit(None));
        connection.http.decode_buffers.put_back(self.out);
        let is_written = delivery.outcome().await == DeliveryOutcome::Written && !is_refused;
        let outcome = match (is_written, is_kept) {
            (true, true) => RequestOutcome::Delivered,
            (true, false) => RequestOutcome::Unkept,
            (false, _) => RequestOutcome::Failed,
        };
        self.work.conclude(outcome);
        ready(&mut self.work).await;
        (self.work.respond(outcome, context.clock.now()), level)
    }

    /// Writes the request to the quarantine if its work asks for that. `false`: it could not be written.
    async fn quarantine_if_asked(&mut self, received: UnixNanos) -> bool {
        let HttpConnection { http, origin, .. } = &*self.connection;
        let (Some(reason), Some(quarantine)) = (self.work.quarantine_reason(), &http.quarantine) else { return true };
        let record = QuarantineRecord {
            at: received,
            origin: origin.clone(),
            reason: reason.to_owned(),
            request: self.work.request().clone(),
        };
        match quarantine.keep(record).await {
            Ok(()) => true,
            Err(error) => {
                if let Some(suppressed) = quarantine.throttle.permit() {
                    let listener = &*origin.listener;
                    error!(listener, %error, suppressed, "cannot write an unreadable request to the quarantine");
                }
                false
            }
        }
    }
}

/// Waits until the work can continue; returns whether that took any time.
async fn ready(work: &mut impl Work) -> bool {
    let mut has_waited = false;
    poll_fn(|context| {
        let polled = work.poll_ready(context);
        has_waited |= polled.is_pending();
        polled
    })
    .await;
    has_waited
}
