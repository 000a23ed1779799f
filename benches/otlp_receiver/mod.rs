//! A server of gRPC that takes every request of OTLP: it counts them, and notes how old their logs are.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use hdrhistogram::Histogram;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::header::{HeaderMap, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use prost::Message as _;
use tokio::net::TcpListener;

/// The bytes before a message.
const FRAME: usize = 5;
/// The upper bound of the histogram: ten minutes.
const MAX_NANOS: u64 = 600_000_000_000;

pub(crate) struct Receiver {
    pub(crate) address: SocketAddr,
    state: Arc<State>,
    _runtime: tokio::runtime::Runtime,
}

struct State {
    received: Mutex<Received>,
    decodes: AtomicBool,
}

/// What was received.
pub(crate) struct Received {
    pub(crate) requests: u64,
    /// Of the messages, as they were sent.
    pub(crate) bytes: u64,
    /// Nanoseconds since logs were observed.
    pub(crate) times: Histogram<u64>,
}

impl Default for Received {
    fn default() -> Received {
        Received { requests: 0, bytes: 0, times: Histogram::new_with_max(MAX_NANOS, 3).unwrap() }
    }
}

impl Receiver {
    pub(crate) fn start() -> Receiver {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State { received: Mutex::default(), decodes: AtomicBool::new(false) });
        let serving = state.clone();
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let state = serving.clone();
                let service = service_fn(move |request| respond(request, state.clone()));
                let http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                tokio::spawn(http.serve_connection(TokioIo::new(stream), service));
            }
        });
        Receiver { address, state, _runtime: runtime }
    }

    /// What was received since the last call.
    pub(crate) fn take(&self) -> Received {
        std::mem::take(&mut *self.state.received.lock().unwrap())
    }

    /// Sets whether the times of logs are noted.
    pub(crate) fn decode_times(&self, decodes: bool) {
        self.state.decodes.store(decodes, Ordering::Relaxed);
    }
}

async fn respond(request: Request<Incoming>, state: Arc<State>) -> Result<Response<Body>, Infallible> {
    let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let observed = if state.decodes.load(Ordering::Relaxed) { observed(&body[FRAME..]) } else { Vec::new() };
    {
        let mut received = state.received.lock().unwrap();
        received.requests += 1;
        received.bytes += (body.len() - FRAME) as u64;
        observed.into_iter().for_each(|time| received.times.record(now.saturating_sub(time)).unwrap());
    }
    let trailers = HeaderMap::from_iter([("grpc-status".parse().unwrap(), HeaderValue::from_static("0"))]);
    let body = Full::new(Bytes::from_static(&[0; FRAME])).with_trailers(std::future::ready(Some(Ok(trailers))));
    let response = Response::builder().header("content-type", "application/grpc");
    Ok(response.body(body.boxed_unsync()).unwrap())
}

type Body = http_body_util::combinators::UnsyncBoxBody<Bytes, Infallible>;

/// When the logs of a request were observed.
fn observed(message: &[u8]) -> Vec<u64> {
    let request = ExportLogsServiceRequest::decode(message).unwrap();
    let scopes = request.resource_logs.iter().flat_map(|group| &group.scope_logs);
    scopes.flat_map(|scope| &scope.log_records).map(|record| record.observed_time_unix_nano).collect()
}
