//! HTTP/1.1 listeners. hyper reads heads and frames bodies; admission, time limits, memory, delivery and responses are ours.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::task::TaskTracker;
use tracing::debug;

use tributary_protocol::{DatagramReader, Exchange};

use super::context::ListenerContext;
use super::datagrams::DatagramListener;
use super::decode_buffers::DecodeBuffers;
use super::http_head::{BadHead, report_bad_head};
use super::http_state::{HttpState, SMALL_BODY_BYTES};
use super::http_timeouts::{HttpTimeouts, TimedStream};
use super::options::HttpOptions;
use super::quarantine::Quarantine;
use super::read_buffer::CONNECTION_BYTES;
use super::request::HttpConnection;
use super::tcp::{Accepted, Listener};
use super::ticker::Ticker;

/// The lease with which a connection is admitted, without its head, which is buffered twice, and TLS.
const HTTP_CONNECTION_BYTES: u64 = CONNECTION_BYTES + SMALL_BODY_BYTES;

/// Accepts connections of all sockets of a listener like [`Listener::serve`], and answers their requests with `exchange`. Sockets of
/// datagrams are served beside them.
pub async fn serve_http<E: Exchange>(
    listeners: Vec<Listener>,
    datagrams: Vec<(DatagramListener, Arc<dyn DatagramReader>)>,
    exchange: E,
    options: HttpOptions,
    context: ListenerContext,
) {
    let http = Arc::new(HttpState {
        exchange,
        permits: Arc::new(Semaphore::new(options.max_requests)),
        quarantine: Quarantine::new(&options.quarantine, context.counters.name()),
        options,
        decode_buffers: DecodeBuffers::default(),
    });
    let connections = TaskTracker::new();
    context.tasks.spawn(Ticker::new(http.clone(), &context).run(connections.clone()));
    // What they have read is there when the exchange finishes.
    for (listener, reader) in datagrams {
        connections.spawn(listener.serve(reader, context.clone()));
    }
    let bytes = HTTP_CONNECTION_BYTES + 2 * http.options.max_head_bytes as u64;
    let mut accepting = JoinSet::new();
    for listener in listeners {
        let (http, tasks) = (http.clone(), connections.clone());
        let serve = move |accepted| serve_connection(accepted, http.clone());
        accepting.spawn(listener.accept(serve, bytes, ListenerContext { tasks, ..context.clone() }));
    }
    accepting.join_all().await;
}

/// Serves one connection to its end.
async fn serve_connection<E: Exchange>(accepted: Accepted, http: Arc<HttpState<E>>) {
    let Accepted { stream, origin, context, mut opened, .. } = accepted;
    if let Some(wait) = context.allowance.wait(context.clock.now().elapsed) {
        // The address has used its allowance up on other connections. This wait is not counted against the peer.
        let _ = tokio::time::timeout(wait, context.stop.cancelled()).await;
        opened = context.clock.now().elapsed;
    }
    let timeouts = HttpTimeouts::new(context.clock, opened);
    let io = TokioIo::new(TimedStream { stream, timeouts: timeouts.clone() });
    let mut builder = http1::Builder::new();
    // A peer that has sent its last request may close its side before it reads the response. The limit of a head is one of
    // its own length: the buffer may contain more than one head.
    let max_head_bytes = http.options.max_head_bytes;
    builder.half_close(true).max_buf_size(max_head_bytes).max_header_size(max_head_bytes);
    let requests = HttpConnection::new(http.clone(), origin.clone(), context.clone(), timeouts.clone());
    let service = service_fn(move |request| {
        let requests = requests.clone();
        async move { Ok::<_, Infallible>(requests.answer(request).await) }
    });
    let mut connection = builder.serve_connection(io, service);
    let mut stopped = pin!(context.stop.cancelled());
    let mut drain_deadline = None;
    let mut alarm = pin!(sleep_until(Instant::now()));
    // hyper polls our stream and our requests, which move the deadline. So the deadline is read after every poll.
    let ended = poll_fn(|cx| {
        loop {
            if let Poll::Ready(result) = Pin::new(&mut connection).poll(cx) {
                return Poll::Ready(Some(result));
            }
            if drain_deadline.is_none() && stopped.as_mut().poll(cx).is_ready() {
                drain_deadline = Some(Instant::now() + context.options.close_linger);
                Pin::new(&mut connection).graceful_shutdown();
                continue;
            }
            let Some(deadline) = timeouts.deadline(&context.options, drain_deadline) else { return Poll::Pending };
            if alarm.deadline() != deadline {
                alarm.as_mut().reset(deadline);
            }
            return alarm.as_mut().poll(cx).map(|()| None);
        }
    })
    .await;
    let is_in_request = timeouts.is_in_request();
    let parts = connection.into_parts();
    let (TimedStream { stream, .. }, unread) = (parts.io.into_inner(), parts.read_buf);
    let bad = match ended {
        Some(Err(error)) if error.is_parse() => {
            BadHead::Malformed { error, is_answered: timeouts.has_written_since_read() }
        }
        // The body of a request reports its own loss.
        _ if is_in_request || unread.is_empty() => {
            match ended {
                None => debug!("a time limit passed"),
                Some(Ok(())) => debug!("connection ended"),
                Some(Err(error)) => debug!(%error, "connection failed"),
            }
            return;
        }
        None if context.stop.is_cancelled() => BadHead::Incomplete("the collector is stopping"),
        None => BadHead::Incomplete("a time limit passed"),
        Some(_) => BadHead::Incomplete("the connection ended"),
    };
    let recognise = |first: &[u8]| http.exchange.recognise(first);
    report_bad_head(bad, &unread, recognise, stream, &origin, &context).await;
}
