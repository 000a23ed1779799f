//! The body of one request: read within its limits, and every byte of it counted.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::{timeout, timeout_at};
use tracing::{debug, error};

use tributary_driver::{Account, DriverStep, call, loss_batch};
use tributary_event::{Batch, Loss, Origin, Reason};
use tributary_memory::log_throttle::LogThrottle;
use tributary_protocol::{Flow, Now, Output, Response};

use super::context::ConnectionContext;
use super::request_memory::RequestMemory;

/// Throttles the log line about requests that a bug of ours has aborted.
static ABORTED: LogThrottle = LogThrottle::new();
/// The most that is read of a body that is refused because of its head, or behind a head that cannot be read.
pub(super) const MAX_DRAINED_BYTES: u64 = 4 << 20;
/// What a loss event takes in the output beside its detail and excerpt.
const LOSS_EVENT_BYTES: u64 = 400;

/// The bytes of a body that are neither decoded nor lost. Dropped with some left, it counts and reports them as lost: after
/// a panic, or when a task was aborted.
#[derive(Debug)]
pub(super) struct UndecidedBytes {
    context: ConnectionContext,
    origin: Arc<Origin>,
    account: Account,
    /// No loss may show the bytes.
    is_secret: bool,
}

impl UndecidedBytes {
    /// `is_secret`: no loss may show how the body begins.
    pub(super) fn new(context: ConnectionContext, origin: Arc<Origin>, is_secret: bool) -> Self {
        UndecidedBytes { context, origin, account: Account::default(), is_secret }
    }

    pub(super) fn received(&mut self, bytes: usize) {
        self.account.received(&self.context.counters, bytes as u64);
    }

    /// Makes one call of the work on this body.
    pub(super) fn call(&mut self, out: &mut Output, now: Now, work: impl FnOnce(&mut Output) -> Flow) -> DriverStep {
        call(out, &mut self.account, &self.context.counters, now, work)
    }

    /// Counts every undecided byte as ignored, of a request to this endpoint.
    pub(super) fn ignore(&mut self, endpoint: &'static str) {
        self.account.ignore_buffered(&self.context.counters, endpoint);
    }

    /// Reports undecided bytes as lost, if there are any.
    pub(super) async fn lose_rest(&mut self, reason: Reason, detail: &str) {
        if self.account.buffered() > 0 {
            self.lose(reason, detail, &[]).await;
        }
    }

    /// Reports every undecided byte as lost, and charges the peer for the event.
    pub(super) async fn lose(&mut self, reason: Reason, detail: &str, excerpt: &[u8]) {
        let excerpt = if self.is_secret { &[] } else { excerpt };
        let expanded = LOSS_EVENT_BYTES + (detail.len() + 2 * excerpt.len()) as u64;
        let batch = self.take_loss(reason, detail, excerpt);
        let context = &self.context;
        context.sender.send(batch).await;
        if let Some(wait) = context.allowance.spend_more(expanded, context.clock.now().elapsed) {
            let _ = timeout(wait, context.stop.cancelled()).await;
        }
    }

    fn take_loss(&mut self, reason: Reason, detail: &str, excerpt: &[u8]) -> Batch {
        let ConnectionContext { counters, clock, .. } = &self.context;
        let (offset, bytes) = self.account.lose_buffered(counters, reason);
        let loss = Loss { reason, bytes, events: None, detail, excerpt };
        loss_batch(counters, &self.origin, clock.now().unix, offset, loss)
    }
}

impl Drop for UndecidedBytes {
    fn drop(&mut self) {
        let bytes = self.account.buffered();
        if bytes == 0 {
            return;
        }
        let cause = if std::thread::panicking() {
            if let Some(suppressed) = ABORTED.permit() {
                error!(bytes, suppressed, "a request was aborted by a bug of ours; its bytes are lost");
            }
            "a bug of ours"
        } else {
            debug!(bytes, "a request was aborted");
            "no time was left, or the peer has gone"
        };
        let batch = self.take_loss(Reason::Failed, &format!("the request was aborted: {cause}"), &[]);
        let sender = self.context.sender.clone();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            self.context.tasks.spawn_on(async move { sender.send(batch).await }, &runtime);
        }
    }
}

/// A body that was received completely.
#[derive(Debug)]
pub(super) struct ReceivedBody {
    pub(super) body: Bytes,
    /// The memory that it takes.
    pub(super) memory: RequestMemory,
    pub(super) undecided: UndecidedBytes,
}

/// Why a body was not received completely.
enum Cut {
    TooLarge,
    OutOfMemory,
    TimedOut,
    Stopped,
    Broken(hyper::Error),
}

/// Reads a body of at most `limit` bytes, whose configuration key is `key`.
///
/// # Errors
/// The body was not received completely; the response and a loss say why, and `show` gets what was received. Without memory the
/// response is that of `overloaded`, and the bytes are ignored if it names an endpoint.
pub(super) async fn read_body(
    mut incoming: Incoming,
    (limit, key): (u64, &'static str),
    mut memory: RequestMemory,
    mut undecided: UndecidedBytes,
    show: impl FnOnce(&[u8]),
    overloaded: impl FnOnce(&'static str) -> (Response, Option<&'static str>),
) -> Result<ReceivedBody, Response> {
    let context = undecided.context.clone();
    let began = context.clock.now().elapsed;
    let mut body = Vec::new();
    let cut = loop {
        if body.len() as u64 > limit {
            break Cut::TooLarge;
        }
        if !memory.resize(body.capacity() as u64) {
            break Cut::OutOfMemory;
        }
        // As for the messages of every listener: the body has the time that its bytes take at the lowest rate.
        let seconds = (body.len() as u64).checked_div(context.options.min_message_rate).unwrap_or(0);
        let deadline = began + context.options.message_timeout + Duration::from_secs(seconds);
        let frame = tokio::select! {
            biased;
            frame = timeout_at(context.clock.instant(deadline), incoming.frame()) => frame,
            () = stopped(&context) => break Cut::Stopped,
        };
        match frame {
            Ok(None) => {
                body.shrink_to_fit();
                return Ok(ReceivedBody { body: body.into(), memory, undecided });
            }
            Ok(Some(Ok(frame))) => {
                // Trailers are ignored.
                if let Ok(data) = frame.into_data() {
                    undecided.received(data.len());
                    if body.capacity() - body.len() < data.len() {
                        // Grows by a quarter: unused capacity takes memory, too, and so do both copies while the old
                        // one moves into the new one.
                        let space = data.len().max(body.len() / 4);
                        if !memory.resize((body.capacity() + body.len() + space) as u64) {
                            break Cut::OutOfMemory;
                        }
                        body.reserve_exact(space);
                    }
                    body.extend_from_slice(&data);
                }
            }
            Ok(Some(Err(error))) => break Cut::Broken(error),
            Err(_) => break Cut::TimedOut,
        }
    };
    let received = undecided.account.buffered();
    show(&body);
    body.truncate(Loss::EXCERPT);
    body.shrink_to_fit();
    if let Cut::OutOfMemory = cut {
        memory.note_refusal(context.clock.now().elapsed);
    }
    drop(memory);
    if let Cut::TooLarge | Cut::OutOfMemory = cut {
        drain_body(&mut incoming, &mut undecided).await;
    }
    drop(incoming);
    let (reason, response) = match cut {
        Cut::TooLarge => (Reason::TooLarge, too_large(limit, key)),
        Cut::OutOfMemory => {
            let why = "the memory for requests is used up (limits.memory_bytes, limits.memory_per_address)";
            let (response, ignored_as) = overloaded(why);
            if let Some(endpoint) = ignored_as {
                undecided.ignore(endpoint);
                return Err(response);
            }
            (Reason::Failed, response)
        }
        Cut::TimedOut => (Reason::Truncated, Response::text(408, "the body did not arrive in time (message_timeout)")),
        Cut::Stopped => (Reason::Truncated, Response::unavailable("the collector is stopping")),
        Cut::Broken(error) => (Reason::Truncated, Response::text(400, format!("the body cannot be read: {error}"))),
    };
    let why = String::from_utf8_lossy(&response.body);
    let detail = format!("{received} bytes of a body were received: {}", why.trim_end());
    undecided.lose(reason, &detail, &body).await;
    Err(response)
}

/// Refuses a body because of its head: reads for a moment what arrives all the same, so that the peer receives the response
/// rather than a reset, and counts it as ignored or reports it lost. `is_expecting`: the peer waits for `100 Continue`, so nothing
/// arrives.
pub(super) async fn refuse_body(
    mut incoming: Incoming,
    is_expecting: bool,
    (reason, ignored_as): (Reason, Option<&'static str>),
    why: &str,
    mut undecided: UndecidedBytes,
) {
    if is_expecting {
        return;
    }
    let excerpt = drain_body(&mut incoming, &mut undecided).await;
    if let Some(endpoint) = ignored_as {
        undecided.ignore(endpoint);
    } else if undecided.account.buffered() > 0 {
        undecided.lose(reason, &format!("the request was refused: {why}"), &excerpt).await;
    }
}

/// Reads and drops for a moment what arrives; returns how it begins.
async fn drain_body(incoming: &mut Incoming, undecided: &mut UndecidedBytes) -> Vec<u8> {
    let clock = undecided.context.clock;
    let until = clock.instant(clock.now().elapsed + undecided.context.options.close_linger);
    let until_received = undecided.account.total_received() + MAX_DRAINED_BYTES;
    let mut excerpt = Vec::new();
    while undecided.account.total_received() < until_received
        && let Ok(Some(Ok(frame))) = timeout_at(until, incoming.frame()).await
    {
        if let Ok(data) = frame.into_data() {
            undecided.received(data.len());
            let space = Loss::EXCERPT - excerpt.len();
            excerpt.extend_from_slice(&data[..data.len().min(space)]);
        }
    }
    excerpt
}

/// The response to a body over its limit.
pub(super) fn too_large(limit: u64, key: &str) -> Response {
    Response::text(413, format!("the body is over the limit of {limit} bytes ({key})"))
}

/// The daemon stops, and has waited `close_linger` for the rest of the body.
async fn stopped(context: &ConnectionContext) {
    context.stop.cancelled().await;
    tokio::time::sleep(context.options.close_linger).await;
}
