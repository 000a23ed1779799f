//! The body of one request: gathered within its limits, and its bytes accounted for whatever happens.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::timeout_at;
use tracing::{debug, error};

use crate::event::{Loss, Origin, Reason};
use crate::log_throttle::LogThrottle;
use crate::memory::MemoryLease;
use crate::protocol::{Output, Response};

use super::connection::ConnectionContext;

/// Says that a bug of ours has cost a request.
static GIVEN_UP: LogThrottle = LogThrottle::new();
/// The most that is read of a body that is refused from its head.
const MOST_DRAINED_BYTES: u64 = 4 << 20;

/// Bytes of a body that nobody has decided about. Dropped with some left, it counters and tells them lost: a panic, or a
/// task that was given up.
#[derive(Debug)]
pub(super) struct UndecidedBytes {
    context: ConnectionContext,
    origin: Arc<Origin>,
    bytes: u64,
    /// Bytes received before those that are undecided.
    settled: u64,
    /// No loss may show them.
    is_secret: bool,
}

impl UndecidedBytes {
    /// `is_secret`: no loss may show how the body begins.
    pub(super) fn new(context: ConnectionContext, origin: Arc<Origin>, is_secret: bool) -> Self {
        UndecidedBytes { context, origin, bytes: 0, settled: 0, is_secret }
    }

    fn received(&mut self, bytes: usize) {
        self.context.counters.received(bytes as u64);
        self.bytes += bytes as u64;
    }

    /// Books what a decoder has decided.
    pub(super) fn settle(&mut self, out: &mut Output) {
        let settled = self.context.counters.settle(out);
        self.settled = self.settled.wrapping_add(settled);
        self.bytes = self.bytes.wrapping_sub(settled);
    }

    /// Everything undecided is lost, and says so.
    pub(super) async fn lose(&mut self, reason: Reason, detail: &str, excerpt: &[u8]) {
        let bytes = std::mem::take(&mut self.bytes);
        let excerpt = if self.is_secret { &[] } else { excerpt };
        let loss = Loss { reason, bytes, events: None, detail, excerpt };
        let batch = self.context.loss(&self.origin, 0, loss);
        self.context.sender.send(batch).await;
    }
}

impl Drop for UndecidedBytes {
    fn drop(&mut self) {
        if self.bytes == 0 {
            return;
        }
        let what = if std::thread::panicking() {
            if let Some(suppressed) = GIVEN_UP.permit() {
                error!(bytes = self.bytes, suppressed, "a request was given up: a bug of ours");
            }
            "a bug of ours"
        } else {
            debug!(bytes = self.bytes, "a request was given up");
            "no time was left, or the peer has gone"
        };
        let detail = format!("the request was given up: {what}");
        let loss = Loss { reason: Reason::Failed, bytes: self.bytes, events: None, detail: &detail, excerpt: &[] };
        let batch = self.context.loss(&self.origin, self.settled, loss);
        let sender = self.context.sender.clone();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            self.context.tasks.spawn_on(async move { sender.send(batch).await }, &runtime);
        }
    }
}

/// A body that is here whole.
#[derive(Debug)]
pub(super) struct ReceivedBody {
    pub(super) body: Bytes,
    /// The memory that it takes.
    pub(super) lease: MemoryLease,
    pub(super) undecided: UndecidedBytes,
}

/// Why a body is not here whole.
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
/// It is not to be had; the answer says why, and a loss says it too.
pub(super) async fn gather(
    mut incoming: Incoming,
    (limit, key): (u64, &'static str),
    mut lease: MemoryLease,
    mut undecided: UndecidedBytes,
) -> Result<ReceivedBody, Response> {
    let context = undecided.context.clone();
    let began = context.clock.now().elapsed;
    let mut body = Vec::new();
    let cut = loop {
        if body.len() as u64 > limit {
            break Cut::TooLarge;
        }
        if !lease.hold(body.capacity() as u64) {
            break Cut::OutOfMemory;
        }
        // The time that its bytes take at the least rate, as for messages of every listener.
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
                return Ok(ReceivedBody { body: body.into(), lease, undecided });
            }
            Ok(Some(Ok(frame))) => {
                // Trailers say nothing that anybody here would want to know.
                if let Ok(data) = frame.into_data() {
                    undecided.received(data.len());
                    if body.capacity() - body.len() < data.len() {
                        // A quarter at a time: what is not used must find room, too, and so must both copies while the
                        // old one moves into the new.
                        let room = data.len().max(body.len() / 4);
                        if !lease.hold((body.capacity() + body.len() + room) as u64) {
                            break Cut::OutOfMemory;
                        }
                        body.reserve_exact(room);
                    }
                    body.extend_from_slice(&data);
                }
            }
            Ok(Some(Err(error))) => break Cut::Broken(error),
            Err(_) => break Cut::TimedOut,
        }
    };
    let received = undecided.bytes;
    body.truncate(Loss::EXCERPT);
    body.shrink_to_fit();
    drop(lease);
    if let Cut::TooLarge | Cut::OutOfMemory = cut {
        read_away(&mut incoming, &mut undecided).await;
    }
    drop(incoming);
    let (reason, response) = match cut {
        Cut::TooLarge => (Reason::TooLarge, too_large(limit, key)),
        Cut::OutOfMemory => {
            context.memory.refused(context.clock.now().elapsed);
            let sentence = "the memory for requests is used up (limits.memory_bytes)";
            (Reason::Failed, Response::unavailable(sentence))
        }
        Cut::TimedOut => (Reason::Truncated, Response::text(408, "the body did not come in time (message_timeout)")),
        Cut::Stopped => (Reason::Truncated, Response::unavailable("the collector is stopping")),
        Cut::Broken(error) => (Reason::Truncated, Response::text(400, format!("the body cannot be read: {error}"))),
    };
    let why = String::from_utf8_lossy(&response.body);
    let detail = format!("{received} bytes of a body are here: {}", why.trim_end());
    undecided.lose(reason, &detail, &body).await;
    Err(response)
}

/// Refuses a body from its head: reads for a moment what comes all the same, so that the peer sees the answer rather
/// than a reset, and reports it lost. `is_expecting`: the peer waits to be asked for the body, so nothing comes.
pub(super) async fn drain(
    mut incoming: Incoming,
    is_expecting: bool,
    reason: Reason,
    why: &str,
    undecided: UndecidedBytes,
) {
    let mut undecided = undecided;
    if is_expecting {
        return;
    }
    let excerpt = read_away(&mut incoming, &mut undecided).await;
    if undecided.bytes > 0 {
        undecided.lose(reason, &format!("the request was refused: {why}"), &excerpt).await;
    }
}

/// Reads for a moment what nobody wants; answers how it begins.
async fn read_away(incoming: &mut Incoming, undecided: &mut UndecidedBytes) -> Vec<u8> {
    let clock = undecided.context.clock;
    let until = clock.instant(clock.now().elapsed + undecided.context.options.close_linger);
    let most = undecided.bytes + MOST_DRAINED_BYTES;
    let mut excerpt = Vec::new();
    while undecided.bytes < most
        && let Ok(Some(Ok(frame))) = timeout_at(until, incoming.frame()).await
    {
        if let Ok(data) = frame.into_data() {
            undecided.received(data.len());
            let room = Loss::EXCERPT - excerpt.len();
            excerpt.extend_from_slice(&data[..data.len().min(room)]);
        }
    }
    excerpt
}

/// The answer to a body over its limit.
pub(super) fn too_large(limit: u64, key: &str) -> Response {
    Response::text(413, format!("the body is over the limit of {limit} bytes ({key})"))
}

/// The daemon stops, and has waited for as long as it waits for what is on its way.
async fn stopped(context: &ConnectionContext) {
    context.stop.cancelled().await;
    tokio::time::sleep(context.options.close_linger).await;
}
