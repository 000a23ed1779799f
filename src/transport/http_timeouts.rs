//! What an HTTP connection waits for, and how long it may: the limits of every listener, kept context hyper.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::clock::Clock;
use super::options::ListenerOptions;
use super::stream::Stream;

/// Shared by a connection's stream, its requests and whoever looks at the time.
#[derive(Debug)]
pub(super) struct HttpTimeouts {
    clock: Clock,
    phase: Mutex<Phase>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// The first request's head is to come, since the connection was opened.
    First(Duration),
    /// Nothing of a request is here, since the last answer.
    Idle(Duration),
    /// Part of a head is here, since its first byte.
    Head(Duration),
    /// A request is being worked on; that has limits of its own.
    Busy,
}

impl HttpTimeouts {
    /// Of a connection that was opened then.
    pub(super) fn new(clock: Clock, opened: Duration) -> Arc<Self> {
        Arc::new(HttpTimeouts { clock, phase: Mutex::new(Phase::First(opened)) })
    }

    /// A head is here.
    pub(super) fn request(&self) {
        self.set(|_| Phase::Busy);
    }

    /// The answer is on its way.
    pub(super) fn answer(&self) {
        let now = self.clock.now().elapsed;
        self.set(|_| Phase::Idle(now));
    }

    /// Something was read.
    fn read(&self) {
        let now = self.clock.now().elapsed;
        self.set(|phase| if let Phase::Idle(_) = phase { Phase::Head(now) } else { phase });
    }

    /// When the connection is to be given up, unless something happens. `drain_deadline`: a stopping daemon waits until
    /// then for a head.
    pub(super) fn deadline(&self, options: &ListenerOptions, drain_deadline: Option<Instant>) -> Option<Instant> {
        let at = match *self.phase.lock().unwrap_or_else(PoisonError::into_inner) {
            Phase::First(since) => since + options.handshake_timeout,
            Phase::Idle(_) if options.idle_timeout.is_zero() => return drain_deadline,
            Phase::Idle(since) => since + options.idle_timeout,
            Phase::Head(since) => since + options.message_timeout,
            Phase::Busy => return None,
        };
        let at = self.clock.instant(at);
        Some(drain_deadline.map_or(at, |drain_deadline| at.min(drain_deadline)))
    }

    fn set(&self, next: impl FnOnce(Phase) -> Phase) {
        let mut phase = self.phase.lock().unwrap_or_else(PoisonError::into_inner);
        *phase = next(*phase);
    }
}

/// A stream that tells its watch when something was read.
#[derive(Debug)]
pub(super) struct TimedStream {
    pub(super) stream: Stream,
    pub(super) watch: Arc<HttpTimeouts>,
}

impl AsyncRead for TimedStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            self.watch.read();
        }
        result
    }
}

impl AsyncWrite for TimedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
