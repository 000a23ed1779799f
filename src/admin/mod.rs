//! The admin endpoint: an operator's door into the running daemon, over HTTP.
//!
//! Whether it lives and makes progress, what its counters say, which agents it knows, and what they are to be told. It is
//! served apart from the listeners, by tasks of its own, so that it answers when they are busy and while they drain.

mod agents;
mod metrics;
pub mod options;
mod tap;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{ALLOW, AUTHORIZATION, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use subtle::ConstantTimeEq;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, warn};

use crate::commands::Directory;
use crate::health::Health;
use crate::log_throttle::LogThrottle;
use crate::memory::MemoryBudget;
use crate::pipeline::accounting::Accounting;
use crate::pipeline::tap::Taps;
use crate::transport::tls::Tls;

use options::AdminOptions;

/// Connections served at once; further ones wait.
const MAX_CONNECTIONS: usize = 16;
/// What a connection takes of memory, with its request, its answer and TLS.
const CONNECTION_BYTES: u64 = 128 << 10;
/// The longest head of a request.
const MAX_HEAD_BYTES: usize = 16 << 10;
/// A connection has so long for its one request and the answer.
const CONNECTION_TIME: Duration = Duration::from_secs(30);
/// When the daemon has stopped, answers still have so long.
const LAST_ANSWERS: Duration = Duration::from_millis(500);
/// After an error of `accept` the next try waits.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// An admin endpoint that is bound and not yet serving.
pub(crate) struct Endpoint {
    socket: TcpListener,
    tls: Option<Tls>,
    token: Option<Vec<u8>>,
}

/// What the endpoint shows and commands.
#[derive(Debug)]
pub(crate) struct Subject {
    pub(crate) accounting: Accounting,
    pub(crate) memory: Arc<MemoryBudget>,
    pub(crate) directory: Directory,
    pub(crate) health: Arc<Health>,
    pub(crate) taps: Taps,
}

type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

impl Endpoint {
    /// Binds the address; reads the token and the TLS files.
    ///
    /// # Errors
    /// The address cannot be bound, or a file cannot be used; the message names which.
    pub(crate) async fn bind(options: &AdminOptions, address: SocketAddr) -> io::Result<Endpoint> {
        let token = match &options.token_file {
            Some(path) => {
                let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
                let token = std::fs::read(path).map_err(named)?.trim_ascii().to_vec();
                if token.is_empty() {
                    return Err(io::Error::other(format!("{}: it holds no token", path.display())));
                }
                Some(token)
            }
            None => None,
        };
        let tls = options.tls.as_ref().map(Tls::open).transpose().map_err(io::Error::other)?;
        Ok(Endpoint { socket: TcpListener::bind(address).await?, tls, token })
    }

    /// Where it listens.
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
    pub(crate) fn serve(self, subject: Subject) -> Serving {
        let closing = CancellationToken::new();
        let task = tokio::spawn(self.accept(Arc::new(subject), closing.clone()));
        Serving { task: AbortOnDropHandle::new(task), closing }
    }

    async fn accept(self, subject: Arc<Subject>, closing: CancellationToken) {
        let Endpoint { socket, tls, token } = self;
        let token: Option<Arc<[u8]>> = token.map(Into::into);
        let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let trouble = LogThrottle::new();
        let mut connections = tokio::task::JoinSet::new();
        loop {
            let accepted = async {
                let place = places.clone().acquire_owned().await.map_err(io::Error::other)?;
                Ok::<_, io::Error>((place, socket.accept().await?.0))
            };
            let accepted = tokio::select! {
                () = closing.cancelled() => break,
                Some(_) = connections.join_next() => continue,
                accepted = accepted => accepted,
            };
            let (place, stream) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    if let Some(suppressed) = trouble.permit() {
                        warn!(%error, suppressed, "the admin endpoint cannot accept connections; trying again");
                    }
                    tokio::time::sleep(ACCEPT_RETRY).await;
                    continue;
                }
            };
            let room = Room { subject: subject.clone(), token: token.clone(), has_tap: Arc::default() };
            let (tls, has_tap) = (tls.as_ref().map(Tls::acceptor), room.has_tap.clone());
            connections.spawn(async move {
                let _place = place;
                let mut serving = pin!(room.serve(stream, tls));
                if timeout(CONNECTION_TIME, &mut serving).await.is_ok() {
                    return;
                }
                match has_tap.load(Ordering::Relaxed) {
                    true => serving.await,
                    false => debug!("an admin connection took too long"),
                }
            });
        }
        drop(socket);
        while connections.join_next().await.is_some() {}
    }
}

/// An endpoint that serves.
#[derive(Debug)]
pub(crate) struct Serving {
    task: AbortOnDropHandle<()>,
    /// Cancelled when nobody is to come any more.
    closing: CancellationToken,
}

impl Serving {
    /// Ends once those who are being answered have their answers, or have not taken them in a moment. The address is
    /// free then.
    pub(crate) async fn finish(mut self) {
        self.closing.cancel();
        if timeout(LAST_ANSWERS, &mut self.task).await.is_err() {
            self.task.abort();
            let _ = self.task.await;
        }
    }
}

/// What serves one connection.
#[derive(Clone)]
struct Room {
    subject: Arc<Subject>,
    token: Option<Arc<[u8]>>,
    /// The answer goes on for as long as somebody looks on.
    has_tap: Arc<AtomicBool>,
}

impl Room {
    async fn serve(self, stream: TcpStream, tls: Option<TlsAcceptor>) {
        match tls {
            None => self.converse(stream).await,
            Some(tls) => match tls.accept(stream).await {
                Ok(stream) => self.converse(stream).await,
                Err(error) => debug!(%error, "the TLS handshake of an admin connection failed"),
            },
        }
    }

    async fn converse(self, stream: impl AsyncRead + AsyncWrite + Unpin) {
        let service = service_fn(move |request| {
            let room = self.clone();
            async move { Ok::<_, Infallible>(room.answer(request).await) }
        });
        let connection = http1::Builder::new()
            .keep_alive(false)
            .max_buf_size(MAX_HEAD_BYTES)
            .serve_connection(TokioIo::new(stream), service);
        if let Err(error) = connection.await {
            debug!(%error, "an admin connection broke");
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> Answer {
        let path = request.uri().path();
        let is_probe = matches!(path, "/livez" | "/readyz");
        if !is_probe && !self.is_authorized(&request) {
            let mut answer = text(StatusCode::UNAUTHORIZED, "the token is missing or wrong (Authorization: Bearer …)");
            answer.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            return answer;
        }
        let segments: Vec<_> = path.split('/').skip(1).collect();
        match (request.method(), segments.as_slice()) {
            (&Method::GET | &Method::HEAD, ["livez"]) => text(StatusCode::OK, "alive"),
            (&Method::GET | &Method::HEAD, ["readyz"]) => match self.subject.health.not_ready() {
                None => text(StatusCode::OK, "ready"),
                Some(why) => text(StatusCode::SERVICE_UNAVAILABLE, &why),
            },
            (&Method::GET | &Method::HEAD, ["metrics"]) => metrics::answer(&self.subject),
            (&Method::GET | &Method::HEAD, ["agents"]) => agents::list(&self.subject),
            (&Method::GET, ["tap"]) => {
                self.has_tap.store(true, Ordering::Relaxed);
                tap::open(&self.subject, request.uri().query().unwrap_or_default())
            }
            (&Method::POST, ["agents", id, "commands", command]) => agents::command(&self.subject, id, command).await,
            (_, ["livez" | "readyz" | "metrics" | "agents"]) => not_allowed("GET, HEAD"),
            (_, ["agents", _, "commands", _]) => not_allowed("POST"),
            (_, ["tap"]) => not_allowed("GET"),
            _ => {
                let help =
                    "no such path; there are /livez, /readyz, /metrics, /tap, /agents and /agents/ID/commands/COMMAND";
                text(StatusCode::NOT_FOUND, help)
            }
        }
    }

    fn is_authorized(&self, request: &Request<Incoming>) -> bool {
        let Some(token) = &self.token else { return true };
        let Some((scheme, given)) =
            request.headers().get(AUTHORIZATION).and_then(|it| it.as_bytes().split_at_checked(7))
        else {
            return false;
        };
        // The name of a scheme is case-insensitive (RFC 9110, 11.1).
        scheme.eq_ignore_ascii_case(b"Bearer ") && given.trim_ascii().ct_eq(token).into()
    }
}

fn not_allowed(methods: &'static str) -> Answer {
    let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, &format!("this path takes {methods}"));
    answer.headers_mut().insert(ALLOW, HeaderValue::from_static(methods));
    answer
}

fn text(status: StatusCode, words: &str) -> Answer {
    answer(status, "text/plain; charset=utf-8", format!("{words}\n"))
}

fn json(status: StatusCode, value: &serde_json::Value) -> Answer {
    answer(status, "application/json", format!("{value}\n"))
}

fn answer(status: StatusCode, content_type: &'static str, body: String) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::from(body)).boxed_unsync());
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer
}
