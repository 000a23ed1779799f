//! HTTP listeners. hyper reads heads and frames bodies; admission, time limits, memory, delivery and responses are ours.

use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::task::TaskTracker;

use tributary_protocol::{DatagramReader, Exchange};

use super::context::ListenerContext;
use super::datagrams::DatagramListener;
use super::decode_buffers::DecodeBuffers;
use super::http_state::{HttpState, SMALL_BODY_BYTES};
use super::http_version::{Speaks, Spoken};
use super::http2::HTTP2_BYTES;
use super::options::HttpOptions;
use super::quarantine::Quarantine;
use super::read_buffer::CONNECTION_BYTES;
use super::request::HttpConnection;
use super::standstill::Standstill;
use super::tcp::{Accepted, Listener};
use super::ticker::Ticker;
use super::{http_version, http1, http2, packets};

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
        standstill: Standstill::default(),
    });
    let connections = TaskTracker::new();
    context.tasks.spawn(Ticker::new(http.clone(), &context).run(connections.clone()));
    // What they have read is there when the exchange finishes.
    for (listener, reader) in datagrams {
        connections.spawn(listener.serve(reader, context.clone()));
    }
    let mut bytes = HTTP_CONNECTION_BYTES + 2 * http.options.max_head_bytes as u64;
    if http.exchange.speaks_http2() {
        // Which version a connection speaks is not known when it is admitted.
        bytes += HTTP2_BYTES;
        let of_listeners = listeners.iter().filter_map(Listener::tls);
        of_listeners.for_each(|tls| tls.offer(&http_version::ALPN));
    }
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
    let Accepted { mut stream, origin, context, mut opened, .. } = accepted;
    if let Some(wait) = context.allowance.wait(context.clock.now().elapsed) {
        // The address has used its allowance up on other connections. This wait is not counted against the peer.
        let _ = tokio::time::timeout(wait, context.stop.cancelled()).await;
        opened = context.clock.now().elapsed;
    }
    let spoken = Spoken { http2: http.exchange.speaks_http2(), packet_magic: http.exchange.packet_magic() };
    // A recording of HTTP/2 contains no frames.
    let mut recording = if spoken.http2 { stream.take_recording() } else { None };
    let (first, speaks) = http_version::read_first(&mut stream, &context, opened, spoken).await;
    if let Some(recording) = recording.as_mut().filter(|_| speaks != Speaks::Http2 && !first.is_empty()) {
        recording.received(&first);
    }
    // Boxed: otherwise the future of each connection would have the size of the largest one.
    match speaks {
        Speaks::Http2 => Box::pin(http2::serve((stream, first, recording), origin, context, opened, http)).await,
        Speaks::Packets => {
            let Some(packets) = http.exchange.packets() else { return };
            let requests = HttpConnection::new(http, origin.clone(), context.clone(), None);
            Box::pin(packets::serve((stream, first), packets, requests, origin, context, opened)).await;
        }
        Speaks::Http1 => {
            if spoken.http2 {
                stream.record(recording);
            }
            Box::pin(http1::serve((stream, first), origin, context, opened, http)).await;
        }
    }
}
