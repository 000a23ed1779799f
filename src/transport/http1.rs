//! One connection of HTTP/1.1: a request after another.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tracing::debug;

use tributary_event::Origin;
use tributary_protocol::Exchange;

use super::context::ConnectionContext;
use super::http_head::{BadHead, report_bad_head};
use super::http_state::HttpState;
use super::http_timeouts::{HttpTimeouts, TimedStream};
use super::request::HttpConnection;
use super::response;
use super::stream::ConnectionStream;

/// Serves a connection, opened at `opened`, to its end. `first` are bytes that were read of it.
pub(super) async fn serve<E: Exchange>(
    (stream, first): (ConnectionStream, Bytes),
    origin: Arc<Origin>,
    context: ConnectionContext,
    opened: Duration,
    http: Arc<HttpState<E>>,
) {
    let timeouts = HttpTimeouts::new(context.clock, opened, false);
    let io = TokioIo::new(TimedStream { stream, first, timeouts: timeouts.clone() });
    let mut builder = http1::Builder::new();
    // A peer that has sent its last request may close its side before it reads the response. The limit of a head is one of
    // its own length: the buffer may contain more than one head.
    let max_head_bytes = http.options.max_head_bytes;
    builder.half_close(true).max_buf_size(max_head_bytes).max_header_size(max_head_bytes);
    let requests = HttpConnection::new(http.clone(), origin.clone(), context.clone(), None);
    let service = service_fn(|request| {
        let (requests, open) = (requests.clone(), timeouts.request());
        async move {
            let number = requests.number();
            let response = requests.answer(request, number).await;
            drop(open);
            Ok::<_, Infallible>(response::http1(response))
        }
    });
    let mut connection = builder.serve_connection(io, service);
    let ended = timeouts.drive(&mut connection, |connection| connection.graceful_shutdown(), false, &context).await;
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
    report_bad_head(bad, &unread, stream, &origin, &context).await;
}
