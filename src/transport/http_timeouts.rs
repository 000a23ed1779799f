//! What an HTTP connection waits for, and for how long: the time limits of every listener, applied from outside hyper.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::clock::Clock;
use super::options::ListenerOptions;
use super::stream::ConnectionStream;

/// The time limits of one connection. Its stream, its requests and its task share them.
#[derive(Debug)]
pub(super) struct HttpTimeouts {
    clock: Clock,
    phase: Mutex<TimeoutPhase>,
    has_written_since_read: AtomicBool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TimeoutPhase {
    /// It waits for the head of the first request, since the connection was opened.
    First(Duration),
    /// It waits for the first byte of the next request, since the last response.
    Idle(Duration),
    /// It waits for the rest of a head, since its first byte.
    Head(Duration),
    /// It reads the body of a request or works on it, which have limits of their own.
    InRequest,
}

impl HttpTimeouts {
    /// The limits of a connection that was opened at `opened`.
    pub(super) fn new(clock: Clock, opened: Duration) -> Arc<Self> {
        let phase = Mutex::new(TimeoutPhase::First(opened));
        Arc::new(HttpTimeouts { clock, phase, has_written_since_read: AtomicBool::new(false) })
    }

    /// A head was received.
    pub(super) fn request(&self) {
        self.set(|_| TimeoutPhase::InRequest);
    }

    /// The response is complete.
    pub(super) fn answer(&self) {
        let now = self.clock.now().elapsed;
        self.set(|_| TimeoutPhase::Idle(now));
    }

    /// Whether a request was received and is not answered yet.
    pub(super) fn is_in_request(&self) -> bool {
        *self.phase.lock().unwrap_or_else(PoisonError::into_inner) == TimeoutPhase::InRequest
    }

    /// Whether anything was written after the last bytes were read.
    pub(super) fn has_written_since_read(&self) -> bool {
        self.has_written_since_read.load(Relaxed)
    }

    /// Bytes were read.
    fn read(&self) {
        self.has_written_since_read.store(false, Relaxed);
        let now = self.clock.now().elapsed;
        self.set(|phase| if let TimeoutPhase::Idle(_) = phase { TimeoutPhase::Head(now) } else { phase });
    }

    /// When the connection is closed, unless something happens before. `drain_deadline`: a stopping daemon waits until
    /// then for a head.
    pub(super) fn deadline(&self, options: &ListenerOptions, drain_deadline: Option<Instant>) -> Option<Instant> {
        let at = match *self.phase.lock().unwrap_or_else(PoisonError::into_inner) {
            TimeoutPhase::First(since) => since + options.handshake_timeout,
            TimeoutPhase::Idle(_) if options.idle_timeout.is_zero() => return drain_deadline,
            TimeoutPhase::Idle(since) => since + options.idle_timeout,
            TimeoutPhase::Head(since) => since + options.message_timeout,
            TimeoutPhase::InRequest => return None,
        };
        let at = self.clock.instant(at);
        Some(drain_deadline.map_or(at, |drain_deadline| at.min(drain_deadline)))
    }

    fn set(&self, next: impl FnOnce(TimeoutPhase) -> TimeoutPhase) {
        let mut phase = self.phase.lock().unwrap_or_else(PoisonError::into_inner);
        *phase = next(*phase);
    }
}

/// A stream that reports to the timeouts when it reads and writes.
#[derive(Debug)]
pub(super) struct TimedStream {
    pub(super) stream: ConnectionStream,
    pub(super) timeouts: Arc<HttpTimeouts>,
}

impl AsyncRead for TimedStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
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
