//! The admin endpoint of a running daemon, over HTTP: health, metrics, agents and their commands, live views, the page and its
//! API.
//!
//! It has tasks of its own, so it responds while listeners are busy and while the daemon stops. A connection is kept open for
//! further requests, within limits.

mod agents;
mod api;
mod connections;
mod exposition;
mod guard;
mod metrics;
mod page;
mod quarantine;
mod response;
mod stage;
mod tap;

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, warn};

use crate::commands::Directory;
use crate::health::Health;
use tributary_memory::MemoryBudget;
use tributary_memory::log_throttle::LogThrottle;
use tributary_pipeline::accounting::Accounting;
use tributary_pipeline::tap::Taps;
use tributary_sink_view::View;
use tributary_transport::tls::{Certificates, Tls};

use crate::config::admin::AdminOptions;
use connections::Connections;
use exposition::Exposition;
pub(crate) use guard::COMMAND_HEADER;
use guard::Guard;
use response::{AdminResponse, error, method_not_allowed, text};
use stage::{ConnectionStage, SharedStage, WatchedStream};
pub(crate) use tap::KEEP_ALIVE;

/// The longest head of a request.
const MAX_HEAD_BYTES: usize = 16 << 10;
/// What the system keeps of responses that a client has not received. With more, a client that reads nothing would have many
/// requests answered.
const SEND_BUFFER_BYTES: usize = 64 << 10;
/// When the daemon stops, connections have this much time for the rest of their responses.
const CLOSE_TIME: Duration = Duration::from_millis(500);
/// The pause after an error of `accept`.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// A peer has at least this time to acknowledge what was sent to it.
const MIN_ACKNOWLEDGE_TIME: Duration = Duration::from_secs(20);

/// An admin endpoint that is bound and does not serve yet.
pub(crate) struct Endpoint {
    socket: TcpListener,
    tls: Option<Tls>,
    guard: Guard,
    scope: Scope,
    limits: AdminLimits,
}

/// What an address of the endpoint answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Every request that the guard accepts.
    All,
    /// `/livez`, `/readyz` and `/metrics`, to everyone: they say nothing about agents, and command nothing.
    Metrics,
}

/// The limits of its connections.
#[derive(Clone, Copy, Debug)]
struct AdminLimits {
    connections: usize,
    head_time: Duration,
    response_time: Duration,
    idle_time: Duration,
    /// How long the reader of a live view may take nothing.
    tap_time: Duration,
    /// Requests of one connection.
    requests: u32,
}

impl AdminLimits {
    /// When a connection in this stage is closed, and the option that says so.
    fn deadline(self, stage: ConnectionStage) -> Option<(Instant, &'static str)> {
        match stage {
            ConnectionStage::Head(since) => Some((since + self.head_time, "head_timeout")),
            ConnectionStage::Response(since) => Some((since + self.response_time, "response_timeout")),
            ConnectionStage::Idle(since) => Some((since + self.idle_time, "idle_timeout")),
            ConnectionStage::Tap(since) => since.map(|since| (since + self.tap_time, "tap_timeout")),
        }
    }
}

/// The parts of the daemon that the endpoint shows and commands.
#[derive(Debug)]
pub(crate) struct Subject {
    pub(crate) accounting: Accounting,
    pub(crate) memory: Arc<MemoryBudget>,
    pub(crate) directory: Directory,
    pub(crate) health: Arc<Health>,
    pub(crate) taps: Taps,
    pub(crate) certificates: Certificates,
    /// What the page can look back on, if it may.
    pub(crate) view: Option<Arc<View>>,
    pub(crate) layout: SharedLayout,
}

/// What the daemon consists of, as the configuration says. A reload changes it.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedLayout(Arc<Mutex<Arc<DaemonLayout>>>);

/// What the daemon consists of.
#[derive(Debug, Default)]
pub(crate) struct DaemonLayout {
    pub(crate) listeners: Vec<LayoutListener>,
    pub(crate) sinks: Vec<LayoutSink>,
    pub(crate) memory_limit: u64,
    /// The part of the limit that peers do not share.
    pub(crate) memory_reserved: u64,
}

/// A listener.
#[derive(Debug)]
pub(crate) struct LayoutListener {
    pub(crate) name: String,
    /// None: it dials.
    pub(crate) address: Option<SocketAddr>,
}

/// A sink.
#[derive(Debug)]
pub(crate) struct LayoutSink {
    pub(crate) name: String,
    pub(crate) kind: &'static str,
    pub(crate) text: String,
    /// The listeners whose events it can take.
    pub(crate) takes: Vec<String>,
}

impl SharedLayout {
    /// Replaces it.
    pub(crate) fn set(&self, layout: DaemonLayout) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(layout);
    }

    fn get(&self) -> Arc<DaemonLayout> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Endpoint {
    /// Binds the address, and reads the token and the TLS files.
    ///
    /// # Errors
    /// The address cannot be bound, or a file cannot be used; the message names the file.
    pub(crate) async fn bind(options: &AdminOptions, address: SocketAddr, scope: Scope) -> io::Result<Endpoint> {
        let token = match &options.token_file {
            Some(path) => {
                let with_path = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
                let token = std::fs::read(path).map_err(with_path)?.trim_ascii().to_vec();
                if token.is_empty() {
                    return Err(io::Error::other(format!("{}: the file has no token", path.display())));
                }
                Some(token)
            }
            None => None,
        };
        let tls = options.tls.as_ref().map(Tls::open).transpose().map_err(io::Error::other)?;
        let limits = AdminLimits {
            connections: options.max_connections,
            head_time: options.head_timeout,
            response_time: options.response_timeout,
            idle_time: options.idle_timeout,
            tap_time: options.tap_timeout,
            requests: options.max_requests_per_connection,
        };
        let guard = Guard::new(token, &options.hosts);
        Ok(Endpoint { socket: TcpListener::bind(address).await?, tls, guard, scope, limits })
    }

    /// The address that it is bound to.
    ///
    /// # Errors
    /// Those of the system.
    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Its TLS, whose files can be read again while it serves.
    pub(crate) fn tls(&self) -> Option<Tls> {
        self.tls.clone()
    }

    /// Serves until the handle is dropped.
    pub(crate) fn serve(self, subject: Arc<Subject>) -> Serving {
        let closing = CancellationToken::new();
        let shared = Arc::new(api::SharedApi::new(&subject));
        let sampling = tokio::spawn(api::sample_counters(shared.clone(), subject.accounting.clone()));
        let task = tokio::spawn(self.accept(subject, shared, closing.clone()));
        Serving { task: AbortOnDropHandle::new(task), closing, _sampling: AbortOnDropHandle::new(sampling) }
    }

    async fn accept(self, subject: Arc<Subject>, shared: Arc<api::SharedApi>, closing: CancellationToken) {
        let Endpoint { socket, tls, guard, scope, limits } = self;
        let (accept_errors, closed_early) = (LogThrottle::new(), LogThrottle::new());
        let mut connections = Connections::new(limits.connections);
        loop {
            let accept_from = connections.accepts_from();
            let accepted = tokio::select! {
                () = closing.cancelled() => break,
                () = connections.ended() => continue,
                () = sleep_until(accept_from.unwrap_or_else(Instant::now)), if accept_from.is_some() => continue,
                accepted = socket.accept(), if accept_from.is_none() => accepted,
            };
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    if let Some(suppressed) = accept_errors.permit() {
                        warn!(%error, suppressed, "the admin endpoint cannot accept connections; trying again");
                    }
                    sleep(ACCEPT_RETRY).await;
                    continue;
                }
            };
            // Without it the connection works as well.
            let socket = SockRef::from(&stream);
            let _ = socket.set_send_buffer_size(SEND_BUFFER_BYTES);
            // A peer that has vanished acknowledges nothing.
            let _ = socket.set_tcp_user_timeout(Some(limits.tap_time.max(MIN_ACKNOWLEDGE_TIME)));
            let tls = tls.as_ref().map(Tls::acceptor);
            let closed = connections.add(|progress| {
                let (subject, api, guard) = (subject.clone(), shared.clone(), guard.clone());
                let connection = AdminConnection { subject, api, guard, scope, limits, progress };
                connection.serve(stream, tls, closing.clone())
            });
            if closed.is_some_and(|stage| !matches!(stage, ConnectionStage::Idle(_)))
                && let Some(suppressed) = closed_early.permit()
            {
                let max_connections = limits.connections;
                warn!(max_connections, suppressed, "the admin endpoint is full; the slowest connection was closed");
            }
        }
        drop(socket);
        connections.all_ended().await;
    }
}

/// An endpoint that serves.
#[derive(Debug)]
pub(crate) struct Serving {
    task: AbortOnDropHandle<()>,
    /// Cancelled to accept no further connections.
    closing: CancellationToken,
    _sampling: AbortOnDropHandle<()>,
}

impl Serving {
    /// Stops accepting connections, and returns when the open ones have ended or [`CLOSE_TIME`] has passed. Then the
    /// address is free.
    pub(crate) async fn finish(mut self) {
        self.closing.cancel();
        if timeout(CLOSE_TIME, &mut self.task).await.is_err() {
            self.task.abort();
            let _ = self.task.await;
        }
    }
}

/// One connection.
#[derive(Clone)]
struct AdminConnection {
    subject: Arc<Subject>,
    api: Arc<api::SharedApi>,
    guard: Guard,
    scope: Scope,
    limits: AdminLimits,
    progress: SharedStage,
}

impl AdminConnection {
    /// Serves the connection within its time limits, until `closing`. A live view may last, but must be read.
    async fn serve(self, stream: TcpStream, tls: Option<TlsAcceptor>, closing: CancellationToken) {
        let (progress, limits) = (self.progress.clone(), self.limits);
        let mut serving = pin!(self.serve_stream(stream, tls, closing));
        let mut timer = pin!(sleep_until(Instant::now()));
        // The stage changes only while the connection is polled.
        poll_fn(|context| {
            if serving.as_mut().poll(context).is_ready() {
                return Poll::Ready(());
            }
            let Some((deadline, option)) = limits.deadline(progress.stage()) else { return Poll::Pending };
            if timer.deadline() != deadline {
                timer.as_mut().reset(deadline);
            }
            timer.as_mut().poll(context).map(|()| debug!(option, "an admin connection was closed at a time limit"))
        })
        .await;
    }

    async fn serve_stream(self, stream: TcpStream, tls: Option<TlsAcceptor>, closing: CancellationToken) {
        // A socket without an address is closed already.
        let Ok(local) = stream.local_addr() else { return };
        match tls {
            None => self.serve_http(stream, local, closing).await,
            Some(tls) => match tls.accept(stream).await {
                Ok(stream) => self.serve_http(stream, local, closing).await,
                Err(error) => debug!(%error, "the TLS handshake of an admin connection failed"),
            },
        }
    }

    async fn serve_http(
        self,
        stream: impl AsyncRead + AsyncWrite + Unpin,
        local: SocketAddr,
        closing: CancellationToken,
    ) {
        let stream = WatchedStream::new(stream, self.progress.clone());
        let service = service_fn(move |request| {
            let connection = self.clone();
            async move { Ok::<_, Infallible>(connection.serve_request(request, local).await) }
        });
        let connection = http1::Builder::new()
            .half_close(true)
            .max_buf_size(MAX_HEAD_BYTES)
            .serve_connection(TokioIo::new(stream), service);
        let mut connection = pin!(connection);
        let result = tokio::select! {
            result = connection.as_mut() => result,
            () = closing.cancelled() => {
                // An idle connection is closed, any other after its response.
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = result {
            debug!(%error, "an admin connection failed");
        }
    }

    /// Responds. The connection is closed after its last request, and after a live view.
    async fn serve_request(&self, request: Request<Incoming>, local: SocketAddr) -> AdminResponse {
        let is_last = self.progress.begin_response() >= self.limits.requests;
        let mut response = self.progress.watch(self.respond(request, local).await);
        if is_last || matches!(self.progress.stage(), ConnectionStage::Tap(_)) {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }

    /// Whether the request is accepted.
    ///
    /// # Errors
    /// Why it is refused.
    fn check(&self, request: &Request<Incoming>, local: SocketAddr) -> Result<(), Box<guard::GuardError>> {
        let path = request.uri().path();
        let is_page = page::has(path);
        let is_public = is_page || matches!(path, "/livez" | "/readyz");
        self.guard.check(request, local, is_public, is_page)?;
        match *request.method() {
            Method::GET | Method::HEAD => Ok(()),
            _ => guard::check_command(request),
        }
    }

    async fn respond(&self, request: Request<Incoming>, local: SocketAddr) -> AdminResponse {
        let path = request.uri().path();
        let is_api = path.starts_with("/api/");
        if self.scope == Scope::Metrics {
            if !matches!(path, "/livez" | "/readyz" | "/metrics") {
                return text(StatusCode::NOT_FOUND, "no such path; this address has /livez, /readyz and /metrics");
            }
        } else if let Err(refused) = self.check(&request, local) {
            return refused.response(is_api);
        }
        let segments: Vec<_> = path.split('/').skip(1).collect();
        match (request.method(), segments.as_slice()) {
            (_, ["api", "v1", ..]) => api::respond(self, &request).await,
            (&Method::GET | &Method::HEAD, ["livez"]) => text(StatusCode::OK, "alive"),
            (&Method::GET | &Method::HEAD, ["readyz"]) => match self.subject.health.not_ready() {
                None => {
                    let notes = self.subject.health.notes();
                    let lines: Vec<&str> = std::iter::once("ready").chain(notes.iter().map(String::as_str)).collect();
                    text(StatusCode::OK, &lines.join("\n"))
                }
                Some(why) => text(StatusCode::SERVICE_UNAVAILABLE, &why),
            },
            (&Method::GET | &Method::HEAD, ["metrics"]) => {
                metrics::respond(&self.subject, Exposition::wanted(request.headers()))
            }
            (&Method::GET | &Method::HEAD, ["agents"]) => agents::list(&self.subject),
            (&Method::GET, ["tap"]) => {
                let keep_alive = self.limits.tap_time / 4;
                let response = tap::open(&self.subject, request.uri().query().unwrap_or_default(), keep_alive);
                if response.status() == StatusCode::OK {
                    self.progress.begin_tap();
                }
                response
            }
            (&Method::POST, ["agents", id, "commands", command]) => agents::command(&self.subject, id, command).await,
            (&Method::GET | &Method::HEAD, ["quarantine"]) => quarantine::list(&self.subject).await,
            (&Method::POST, ["quarantine", listener, id, "retry"]) => {
                quarantine::retry(&self.subject, listener, id).await
            }
            (&Method::GET | &Method::HEAD, _) if page::has(path) => {
                page::respond(path, request.headers()).unwrap_or_else(|| unknown_path(is_api))
            }
            (_, ["livez" | "readyz" | "metrics" | "agents" | "quarantine"]) => method_not_allowed(is_api, "GET, HEAD"),
            (_, ["agents", _, "commands", _] | ["quarantine", _, _, "retry"]) => method_not_allowed(is_api, "POST"),
            (_, ["tap"]) => method_not_allowed(is_api, "GET"),
            _ if page::has(path) => method_not_allowed(is_api, "GET, HEAD"),
            _ => unknown_path(is_api),
        }
    }
}

fn unknown_path(is_api: bool) -> AdminResponse {
    let help = "no such path; the paths are / (the page), /livez, /readyz, /metrics, /tap, /agents, \
                /agents/ID/commands/COMMAND, /quarantine, /quarantine/LISTENER/ID/retry and those of /api/v1/openapi.json";
    error(is_api, StatusCode::NOT_FOUND, help)
}
