//! What a connection of the endpoint is doing: it is seen by its stream, its service and the bodies of its responses.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::BodyExt as _;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::response::AdminResponse;

/// What a connection is doing.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum ConnectionStage {
    /// Its TLS handshake and the head of a request, since this moment.
    Head(Instant),
    /// A response, since this moment, until the system has taken all of it.
    Response(Instant),
    /// Nothing, since this moment: it is kept open for a further request.
    Idle(Instant),
    /// A live view, which ends when its reader or the daemon ends it; since when the reader has taken nothing of what
    /// waits for it. None: nothing waits.
    Tap(Option<Instant>),
}

/// The stage of a connection, shared by what sees it.
#[derive(Clone, Debug)]
pub(super) struct SharedStage(Arc<Mutex<ConnectionActivity>>);

#[derive(Debug)]
struct ConnectionActivity {
    stage: ConnectionStage,
    /// The last response is made completely.
    is_made: bool,
    requests: u32,
}

impl SharedStage {
    pub(super) fn new() -> SharedStage {
        SharedStage(Arc::new(Mutex::new(ConnectionActivity {
            stage: ConnectionStage::Head(Instant::now()),
            is_made: false,
            requests: 0,
        })))
    }

    fn state(&self) -> MutexGuard<'_, ConnectionActivity> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn stage(&self) -> ConnectionStage {
        self.state().stage
    }

    /// A request has arrived. Returns how many have.
    pub(super) fn begin_response(&self) -> u32 {
        let mut state = self.state();
        let requests = state.requests.saturating_add(1);
        *state = ConnectionActivity { stage: ConnectionStage::Response(Instant::now()), is_made: false, requests };
        requests
    }

    /// The response is a live view.
    pub(super) fn begin_tap(&self) {
        self.state().stage = ConnectionStage::Tap(None);
    }

    /// The response, whose end is noted.
    pub(super) fn watch(&self, response: AdminResponse) -> AdminResponse {
        response.map(|body| WatchedBody { body, progress: self.clone() }.boxed_unsync())
    }

    fn end_response(&self) {
        self.state().is_made = true;
    }

    fn received(&self) {
        let mut state = self.state();
        if let ConnectionStage::Idle(_) = state.stage {
            state.stage = ConnectionStage::Head(Instant::now());
        }
    }

    /// Something was written, and nothing of it waits any more.
    fn flushed(&self) {
        let mut state = self.state();
        match *state {
            ConnectionActivity { stage: ConnectionStage::Response(_), is_made: true, .. } => {
                state.stage = ConnectionStage::Idle(Instant::now());
            }
            ConnectionActivity { stage: ConnectionStage::Tap(Some(_)), .. } => state.stage = ConnectionStage::Tap(None),
            _ => {}
        }
    }

    /// The system takes no more now, or has taken a part.
    fn written<T>(&self, result: &Poll<io::Result<T>>) {
        let mut state = self.state();
        if let ConnectionStage::Tap(since) = &mut state.stage {
            *since = if result.is_pending() { since.or_else(|| Some(Instant::now())) } else { None };
        }
    }
}

/// The body of a response.
struct WatchedBody {
    body: UnsyncBoxBody<Bytes, Infallible>,
    progress: SharedStage,
}

impl Body for WatchedBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for WatchedBody {
    fn drop(&mut self) {
        self.progress.end_response();
    }
}

/// The stream of a connection.
pub(super) struct WatchedStream<S> {
    stream: S,
    progress: SharedStage,
}

impl<S> WatchedStream<S> {
    pub(super) fn new(stream: S, progress: SharedStage) -> WatchedStream<S> {
        WatchedStream { stream, progress }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WatchedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let filled = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > filled {
            self.progress.received();
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WatchedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, data);
        self.progress.written(&written);
        written
    }

    /// Called when everything that was made so far is written.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        match flushed {
            Poll::Ready(Ok(())) => self.progress.flushed(),
            _ => self.progress.written(&flushed),
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, data);
        self.progress.written(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
