//! A receiver of OTLP on loopback, over gRPC or HTTP, that accepts, rejects, refuses, hangs, disappears, or answers nonsense.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::channel::Channel;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::header::HeaderMap;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tributary::sink::otlp::{Options, Protocol, RetryOptions, Signal};

use crate::otlp_support::records::Decoded;

/// How long a receiver that is busy takes to accept a request.
const SLOW_REPLY: Duration = Duration::from_millis(100);

/// What a receiver does with a request.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Reply {
    Accept,
    /// It rejects this many records, with a message.
    Partial(u64),
    /// The status of gRPC, and what it is over HTTP.
    Refuse(&'static str, u16),
    /// It asks for a pause of a millisecond.
    Busy,
    Hang,
    /// It accepts after [`SLOW_REPLY`].
    Slow,
    /// The connection ends before the answer.
    Close,
    /// The connection ends inside the answer of an accepted request. With gRPC that is before the status.
    Half,
    Nonsense,
}

/// What a receiver does with a connection, before it is one that answers requests.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Raw {
    /// It does not speak HTTP.
    Garbage,
    /// It resets the connection inside the first request.
    Reset,
    /// HTTP/1.1: status 200, and the connection ends inside the body.
    HalfResponse,
}

#[derive(Default)]
pub(super) struct State {
    /// For the next requests, whatever they are; then the request is accepted.
    pub(super) replies: VecDeque<Reply>,
    /// For the next connections; then they are served.
    pub(super) raw: VecDeque<Raw>,
    /// For all requests whose path has this word.
    pub(super) of_path: Option<(&'static str, Reply)>,
    /// Longer messages are refused.
    pub(super) largest: Option<usize>,
    pub(super) accepted: Decoded,
    /// The path, the length and the headers of each request.
    pub(super) attempts: Vec<(String, usize, HeaderMap)>,
}

#[derive(Clone)]
pub(super) struct Receiver {
    pub(super) address: String,
    pub(super) protocol: Protocol,
    pub(super) state: Arc<Mutex<State>>,
}

type Body = http_body_util::combinators::UnsyncBoxBody<Bytes, Infallible>;

impl Receiver {
    pub(super) async fn start(protocol: Protocol) -> Receiver {
        Receiver::serve(TcpListener::bind("127.0.0.1:0").await.unwrap(), protocol, None)
    }

    pub(super) fn serve(listener: TcpListener, protocol: Protocol, tls: Option<TlsAcceptor>) -> Receiver {
        let address = listener.local_addr().unwrap().to_string();
        let receiver = Receiver { address, protocol, state: Arc::default() };
        let accepting = receiver.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (serving, tls) = (accepting.clone(), tls.clone());
                let raw = accepting.state().raw.pop_front();
                tokio::spawn(async move {
                    if let Some(raw) = raw {
                        return raw.serve(stream).await;
                    }
                    match tls {
                        None => serving.connection(stream).await,
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                serving.connection(stream).await;
                            }
                        }
                    }
                });
            }
        });
        receiver
    }

    /// Serves one connection.
    async fn connection<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static>(self, stream: S) {
        let closed = CancellationToken::new();
        let protocol = self.protocol;
        let close = closed.clone();
        let service = service_fn(move |request| {
            let (receiver, close) = (self.clone(), close.clone());
            async move { Ok::<_, Infallible>(receiver.answer(request, close).await) }
        });
        let io = TokioIo::new(stream);
        let serve = async {
            match protocol {
                Protocol::Grpc => {
                    let _ = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                        .serve_connection(io, service)
                        .await;
                }
                Protocol::Http => {
                    let _ = hyper::server::conn::http1::Builder::new().serve_connection(io, service).await;
                }
            }
        };
        closed.run_until_cancelled(serve).await;
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    async fn answer(&self, request: Request<Incoming>, close: CancellationToken) -> Response<Body> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        let reply = {
            let mut state = self.state();
            state.attempts.push((head.uri.path().to_owned(), body.len(), head.headers.clone()));
            match state.of_path {
                Some((word, reply)) if head.uri.path().contains(word) => reply,
                _ => state.replies.pop_front().unwrap_or(Reply::Accept),
            }
        };
        let message = self.message(&head.headers, &body);
        match reply {
            Reply::Hang => std::future::pending().await,
            Reply::Close => {
                close.cancel();
                std::future::pending().await
            }
            Reply::Half if self.protocol == Protocol::Grpc => {
                tokio::spawn(async move { close.cancel() });
                let (mut sender, body) = Channel::<Bytes, Infallible>::new(1);
                sender.send_data(Bytes::from_static(&[0, 0, 0])).await.unwrap();
                // It never ends.
                std::mem::forget(sender);
                Response::builder().header("content-type", "application/grpc").body(body.boxed_unsync()).unwrap()
            }
            Reply::Half => panic!("see Raw::HalfResponse"),
            Reply::Nonsense => match self.protocol {
                Protocol::Grpc => respond(200, &[("content-type", "text/html")], b"<html>", &[]),
                Protocol::Http => {
                    self.accept(head.uri.path(), &message);
                    respond(200, &[], b"<html>", &[])
                }
            },
            Reply::Busy => self.respond("14", 503, "busy", &[("retry-after", "0")]),
            Reply::Refuse(code, status) => self.respond(code, status, "this is not wanted", &[]),
            Reply::Accept | Reply::Partial(_) | Reply::Slow => {
                if reply == Reply::Slow {
                    tokio::time::sleep(SLOW_REPLY).await;
                }
                let largest = self.state().largest;
                if largest.is_some_and(|largest| message.len() > largest) {
                    return self.respond("8", 413, "received message larger than max", &[]);
                }
                self.accept(head.uri.path(), &message);
                let rejected = if let Reply::Partial(rejected) = reply { rejected } else { 0 };
                let partial = [0x0a, 6, 8, rejected as u8, 0x12, 2, b'n', b'o'];
                let partial: &[u8] = if rejected > 0 { &partial } else { &[] };
                match self.protocol {
                    Protocol::Http => respond(200, &[("content-type", "application/x-protobuf")], partial, &[]),
                    Protocol::Grpc => {
                        let framed = [&[0, 0, 0, 0, partial.len() as u8], partial].concat();
                        respond(200, &[("content-type", "application/grpc")], &framed, &[("grpc-status", "0")])
                    }
                }
            }
        }
    }

    fn respond(&self, code: &str, status: u16, text: &str, headers: &[(&str, &str)]) -> Response<Body> {
        match self.protocol {
            Protocol::Http => respond(status, headers, text.as_bytes(), &[]),
            Protocol::Grpc => {
                let head = [("content-type", "application/grpc"), ("grpc-status", code), ("grpc-message", text)];
                respond(200, &head, b"", &[])
            }
        }
    }

    /// The message of a request, as its headers describe it.
    fn message(&self, headers: &HeaderMap, body: &[u8]) -> Vec<u8> {
        let encoding = |name: &str| headers.get(name).map_or("none", |value| value.to_str().unwrap());
        let (encoding, body) = match self.protocol {
            Protocol::Http => {
                assert_eq!(headers["content-type"], "application/x-protobuf");
                (encoding("content-encoding"), body)
            }
            Protocol::Grpc => {
                assert_eq!(
                    (&headers["content-type"], &headers["te"]),
                    (&"application/grpc".parse().unwrap(), &"trailers".parse().unwrap())
                );
                assert_eq!(u32::from_be_bytes(body[1..5].try_into().unwrap()) as usize, body.len() - 5);
                let encoding = encoding("grpc-encoding");
                assert_eq!(body[0] == 1, encoding != "none");
                (encoding, &body[5..])
            }
        };
        let mut message = Vec::new();
        match encoding {
            "gzip" => drop(std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(body), &mut message).unwrap()),
            "zstd" => message = zstd::stream::decode_all(body).unwrap(),
            _ => message = body.to_vec(),
        }
        message
    }

    fn accept(&self, path: &str, message: &[u8]) {
        let signal = match path {
            "/v1/logs" | "/opentelemetry.proto.collector.logs.v1.LogsService/Export" => Signal::Logs,
            "/v1/traces" | "/opentelemetry.proto.collector.trace.v1.TraceService/Export" => Signal::Traces,
            "/v1/metrics" | "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export" => Signal::Metrics,
            "/v1development/profiles"
            | "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export" => Signal::Profiles,
            other => panic!("{other}"),
        };
        self.state().accepted.add(signal, message);
    }

    /// What was accepted since the last call.
    pub(super) fn take(&self) -> Decoded {
        std::mem::take(&mut self.state().accepted)
    }

    /// The names of accepted logs, sorted, also of those that report losses.
    pub(super) fn names(&self) -> Vec<String> {
        let state = self.state();
        let scopes = state.accepted.requests.logs.resource_logs.iter().flat_map(|group| &group.scope_logs);
        let records = scopes.flat_map(|scope| &scope.log_records);
        let mut names: Vec<_> = records.map(|record| record.event_name.clone()).collect();
        names.sort();
        names
    }

    pub(super) fn options(&self) -> Options {
        let millisecond = Duration::from_millis(1);
        let endpoint = format!("http://{}", self.address).parse().unwrap();
        Options {
            protocol: self.protocol,
            retry: RetryOptions { shortest: millisecond, longest: millisecond * 20, max_delay: millisecond * 20 },
            ..Options::to(endpoint)
        }
    }
}

impl Raw {
    async fn serve(self, mut stream: TcpStream) {
        // A request has more than this.
        let mut begin = [0; 40];
        if self != Raw::Garbage {
            let _ = stream.read_exact(&mut begin).await;
        }
        match self {
            Raw::Garbage => {
                let _ = stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").await;
            }
            Raw::Reset => crate::live::reset(stream),
            Raw::HalfResponse => {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n\x0a").await;
                let _ = stream.shutdown().await;
                // Everything is read, so that closing does not reset the connection.
                let _ = stream.read_to_end(&mut Vec::new()).await;
            }
        }
    }
}

fn respond(status: u16, headers: &[(&str, &str)], body: &[u8], trailers: &[(&'static str, &str)]) -> Response<Body> {
    let mut response = Response::builder().status(status);
    for (name, value) in headers {
        response = response.header(*name, *value);
    }
    let trailers: HeaderMap =
        trailers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
    let body = Full::new(Bytes::copy_from_slice(body));
    let body = match trailers.is_empty() {
        true => body.boxed_unsync(),
        false => body.with_trailers(async move { Some(Ok(trailers)) }).boxed_unsync(),
    };
    response.body(body).unwrap()
}
