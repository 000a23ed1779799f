//! One connection of HTTP/2: several requests at the same time, each on a stream of its own.
//!
//! What a connection may cost is bounded here: the streams that are open (`max_concurrent_streams`), their heads
//! (`max_head_bytes`), and by the flow control window the bytes of all bodies that were received and not read yet. Each body takes
//! memory when it is read, like one of HTTP/1.1. Peers that open streams and reset them are limited by the defaults of hyper: 20
//! reset streams that were not accepted yet, 1024 that we have reset because of errors.

use std::error::Error as _;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{Instrument, Span, debug};

use tributary_event::{Origin, Reason};
use tributary_protocol::{End, Exchange, Response};

use super::body::UndecidedBytes;
use super::capture::Recording;
use super::context::ConnectionContext;
use super::http_state::HttpState;
use super::http_timeouts::{HttpTimeouts, TimedStream};
use super::request::HttpConnection;
use super::response;
use super::stream::ConnectionStream;

/// Bytes of bodies that a peer may send before they are read; of one stream, and of all together. RFC 9113, 6.9.2, has the window
/// of a connection begin with this size.
const WINDOW_BYTES: u32 = 65_535;
/// Frames are of this size at most: the smallest limit that RFC 9113, 4.2, allows.
const FRAME_BYTES: u32 = 16 << 10;
/// What is buffered of the response of a stream.
const SEND_BYTES: usize = 16 << 10;
/// Both tables of compressed headers, of 4 KiB each.
const TABLES_BYTES: u64 = 8 << 10;
/// What a connection of HTTP/2 takes beside what one of HTTP/1.1 takes: its window, a frame that is read, one that is written.
pub(super) const HTTP2_BYTES: u64 = WINDOW_BYTES as u64 + 2 * FRAME_BYTES as u64 + TABLES_BYTES;

/// Serves a connection, opened at `opened`, to its end. `first` are bytes that were read of it. The recording gets the requests in
/// HTTP/1.1, so that captures are read and sent again like others.
pub(super) async fn serve<E: Exchange>(
    (stream, first, recording): (ConnectionStream, Bytes, Option<Recording>),
    origin: Arc<Origin>,
    context: ConnectionContext,
    opened: Duration,
    http: Arc<HttpState<E>>,
) {
    let timeouts = HttpTimeouts::new(context.clock, opened, true);
    let io = TokioIo::new(TimedStream { stream, first, timeouts: timeouts.clone() });
    let streams = http.options.max_concurrent_streams;
    let tasks = RequestTasks { tasks: context.tasks.clone(), abort: context.abort.clone() };
    let mut builder = http2::Builder::new(tasks.clone());
    builder
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES)
        .max_send_buf_size(SEND_BYTES)
        .max_concurrent_streams(u32::try_from(streams).unwrap_or(u32::MAX))
        .max_header_list_size(u32::try_from(http.options.max_head_bytes).unwrap_or(u32::MAX));
    let requests = HttpConnection::new(http, origin.clone(), context.clone(), recording);
    let places = Arc::new(Semaphore::new(streams));
    let service = service_fn(|request| {
        // Here, not in the task: streams are numbered in their order.
        let (number, open) = (requests.number(), timeouts.request());
        let answer = tasks.clone().answer(requests.clone(), request, number, places.clone());
        async move {
            let response = answer.await;
            drop(open);
            response.map(response::http2)
        }
    });
    let mut connection = builder.serve_connection(io, service);
    let shut_down = http2::Connection::graceful_shutdown;
    let mut ended = timeouts.drive(&mut connection, shut_down, false, &context).await;
    let was_in_time = ended.is_some();
    if !was_in_time && !context.stop.is_cancelled() {
        debug!("a time limit passed");
        // Nothing is in flight. Requests that arrive now are answered, or GOAWAY says that they were not received.
        ended = timeouts.drive(&mut connection, shut_down, true, &context).await;
    }
    drop(connection);
    let end = match &ended {
        _ if context.stop.is_cancelled() => End::Stopped,
        _ if !was_in_time => End::TimedOut,
        Some(Err(_)) => End::Reset,
        _ => End::Closed,
    };
    requests.record(|recording| recording.ended(end));
    match ended {
        None => debug!("a time limit passed"),
        Some(Ok(())) => debug!("connection ended"),
        Some(Err(error)) if is_invalid(&error) => {
            let why = error.source().map_or_else(|| error.to_string(), ToString::to_string);
            let detail = format!("the peer does not send valid HTTP/2: {why}");
            // The requests report their own bytes.
            UndecidedBytes::new(context, origin, false).lose(Reason::Malformed, &detail, &[]).await;
        }
        Some(Err(error)) => debug!(%error, "connection failed"),
    }
}

/// Whether a connection was ended by us because of what its peer has sent.
fn is_invalid(error: &hyper::Error) -> bool {
    error.source().and_then(|source| source.downcast_ref::<h2::Error>()).is_some_and(h2::Error::is_library)
}

/// Spawns what belongs to a connection.
#[derive(Clone)]
struct RequestTasks {
    tasks: TaskTracker,
    abort: CancellationToken,
}

impl RequestTasks {
    /// Answers a request in a task of its own. A stream that is reset ends its body; the task then reports its loss, or completes
    /// the message under way, as for HTTP/1.1. It holds one of `places` until its end: a peer that resets streams cannot have more tasks than places.
    async fn answer<E: Exchange>(
        self: RequestTasks,
        requests: Arc<HttpConnection<E>>,
        request: hyper::Request<Incoming>,
        number: u64,
        places: Arc<Semaphore>,
    ) -> io::Result<Response> {
        let place = places.acquire_owned().await.map_err(io::Error::other)?;
        let answer = async move {
            let _place = place;
            requests.answer(request, number).await
        };
        let answer = self.abort.run_until_cancelled_owned(answer.instrument(Span::current()));
        // Dropping the handle does not end the task.
        let answered = self.tasks.spawn(answer).await.map_err(io::Error::other)?;
        answered.ok_or_else(|| io::Error::other("the daemon ends"))
    }
}

/// hyper's part of each stream.
impl<F: Future<Output = ()> + Send + 'static> Executor<F> for RequestTasks {
    fn execute(&self, stream: F) {
        self.tasks.spawn(self.abort.clone().run_until_cancelled_owned(stream.instrument(Span::current())));
    }
}
