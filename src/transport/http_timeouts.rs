//! What an HTTP connection waits for, and for how long: the time limits of every listener, applied from outside hyper.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, sleep_until};

use super::clock::Clock;
use super::context::ConnectionContext;
use super::http_head::RESPONSE_TIMEOUT;
use super::options::ListenerOptions;
use super::stream::ConnectionStream;

/// The time limits of one connection. Its stream, its requests and its task share them.
#[derive(Debug)]
pub(super) struct HttpTimeouts {
    clock: Clock,
    /// Several requests are answered at the same time, by tasks of their own: HTTP/2.
    is_multiplexed: bool,
    state: Mutex<TimeoutState>,
    has_written_since_read: AtomicBool,
}

#[derive(Debug)]
struct TimeoutState {
    phase: TimeoutPhase,
    /// The task of a multiplexed connection, which is woken when its last request was answered.
    connection: Option<Waker>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TimeoutPhase {
    /// It waits for the head of the first request, since the connection was opened.
    First(Duration),
    /// It waits for the first byte of the next request, since the last response was ready. If it is multiplexed: for its whole
    /// head, because other frames do not differ from it here.
    Idle(Duration),
    /// It waits for the rest of a head, since its first byte.
    Head(Duration),
    /// It reads the bodies of this many requests or works on them, which have limits of their own.
    InRequests(u32),
}

impl HttpTimeouts {
    /// The limits of a connection that was opened at `opened`.
    pub(super) fn new(clock: Clock, opened: Duration, is_multiplexed: bool) -> Arc<Self> {
        let state = Mutex::new(TimeoutState { phase: TimeoutPhase::First(opened), connection: None });
        Arc::new(HttpTimeouts { clock, is_multiplexed, state, has_written_since_read: AtomicBool::new(false) })
    }

    /// A head was received. The caller drops the result when the response is ready, or when no task waits for it: then the request
    /// ends.
    pub(super) fn request(self: &Arc<Self>) -> OpenRequest {
        let mut state = self.state();
        let others = if let TimeoutPhase::InRequests(others) = state.phase { others } else { 0 };
        state.phase = TimeoutPhase::InRequests(others + 1);
        OpenRequest(self.clone())
    }

    fn answered(&self) {
        let now = self.clock.now().elapsed;
        let mut state = self.state();
        state.phase = match state.phase {
            TimeoutPhase::InRequests(requests @ 2..) => TimeoutPhase::InRequests(requests - 1),
            _ => TimeoutPhase::Idle(now),
        };
        if let TimeoutPhase::Idle(_) = state.phase
            && let Some(connection) = state.connection.take()
        {
            connection.wake();
        }
    }

    /// Whether a request was received and is not answered yet.
    pub(super) fn is_in_request(&self) -> bool {
        matches!(self.state().phase, TimeoutPhase::InRequests(_))
    }

    /// Whether anything was written after the last bytes were read.
    pub(super) fn has_written_since_read(&self) -> bool {
        self.has_written_since_read.load(Relaxed)
    }

    /// Bytes were read.
    fn read(&self) {
        self.has_written_since_read.store(false, Relaxed);
        let mut state = self.state();
        if let TimeoutPhase::Idle(_) = state.phase
            && !self.is_multiplexed
        {
            state.phase = TimeoutPhase::Head(self.clock.now().elapsed);
        }
    }

    /// When the connection is closed, unless something happens before. `drain_deadline`: a connection that is to end waits until
    /// then for a head, and until its last response is read.
    fn deadline(
        &self,
        cx: &Context<'_>,
        options: &ListenerOptions,
        drain_deadline: Option<Instant>,
    ) -> Option<Instant> {
        let mut state = self.state();
        if self.is_multiplexed {
            state.connection = Some(cx.waker().clone());
        }
        let at = match (state.phase, drain_deadline) {
            (TimeoutPhase::First(since), _) => since + options.handshake_timeout,
            (TimeoutPhase::Head(since), _) => since + options.message_timeout,
            (TimeoutPhase::Idle(since), Some(drain_deadline)) => {
                return Some(drain_deadline.max(self.clock.instant(since + RESPONSE_TIMEOUT)));
            }
            (TimeoutPhase::Idle(_), None) if options.idle_timeout.is_zero() => return None,
            (TimeoutPhase::Idle(since), None) => since + options.idle_timeout,
            (TimeoutPhase::InRequests(_), _) => return None,
        };
        let at = self.clock.instant(at);
        Some(drain_deadline.map_or(at, |drain_deadline| at.min(drain_deadline)))
    }

    fn state(&self) -> MutexGuard<'_, TimeoutState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drives a connection of hyper to its end; `None`: a time limit passed. When the daemon stops, or immediately if `is_to_end`,
    /// `shut_down` tells it to take no further requests.
    pub(super) async fn drive<C: Future<Output = hyper::Result<()>> + Unpin>(
        &self,
        connection: &mut C,
        shut_down: impl Fn(Pin<&mut C>),
        is_to_end: bool,
        context: &ConnectionContext,
    ) -> Option<hyper::Result<()>> {
        let mut stopped = pin!(context.stop.cancelled());
        let mut drain_deadline = None;
        let mut alarm = pin!(sleep_until(Instant::now()));
        // hyper polls our stream and our requests, which move the deadline. So the deadline is read after every poll.
        poll_fn(|cx| {
            let mut passed = None;
            loop {
                if let Poll::Ready(result) = Pin::new(&mut *connection).poll(cx) {
                    return Poll::Ready(Some(result));
                }
                if drain_deadline.is_none() && (is_to_end || stopped.as_mut().poll(cx).is_ready()) {
                    drain_deadline = Some(Instant::now() + context.options.close_linger);
                    shut_down(Pin::new(&mut *connection));
                    continue;
                }
                let deadline = self.deadline(cx, &context.options, drain_deadline);
                let Some(at) = deadline else { return Poll::Pending };
                if passed == deadline {
                    return Poll::Ready(None);
                }
                if alarm.deadline() != at {
                    alarm.as_mut().reset(at);
                }
                if alarm.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
                // What other tasks have answered meanwhile is written before.
                passed = deadline;
            }
        })
        .await
    }
}

/// A request that is not answered yet.
#[derive(Debug)]
pub(super) struct OpenRequest(Arc<HttpTimeouts>);

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.0.answered();
    }
}

/// A stream that reports to the timeouts when it reads and writes.
#[derive(Debug)]
pub(super) struct TimedStream {
    pub(super) stream: ConnectionStream,
    /// Bytes that were read of it to know the version of HTTP, and are returned first.
    pub(super) first: Bytes,
    pub(super) timeouts: Arc<HttpTimeouts>,
}

impl AsyncRead for TimedStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !self.first.is_empty() && buffer.remaining() > 0 {
            let length = buffer.remaining().min(self.first.len());
            buffer.put_slice(&self.first.split_to(length));
            self.timeouts.read();
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            self.timeouts.read();
        }
        result
    }
}

impl AsyncWrite for TimedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        if let Poll::Ready(Ok(1..)) = written {
            self.timeouts.has_written_since_read.store(true, Relaxed);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
