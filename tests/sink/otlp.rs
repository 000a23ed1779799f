//! The sink `otlp` against receivers on loopback, over gRPC and HTTP, that accept, reject, refuse, hang, disappear, or answer
//! nonsense. What they accept is decoded by prost.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::header::HeaderMap;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message as _;
use rcgen::{CertificateParams, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tributary::event::{
    Batch, BatchBuilder, Header, MetricData, MetricType, Number, Origin, Position, Severity, SpanData, SpanId, Status,
    TraceId, UnixNanos,
};
use tributary::options::Secret;
use tributary::pipeline::accounting::{SinkCounters, SinkTotals};
use tributary::pipeline::options::QueueOptions;
use tributary::pipeline::{DeliveryOutcome, Sender, Sinks, Workers};
use tributary::sink::otlp::{ClientTls, Compression, Options, Otlp, Protocol, SpoolOptions, WhenFull};

use crate::live::{until, within};
use crate::otlp_support::{Requests, requests, sorted};

/// What a receiver does with a request.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Reply {
    Accept,
    /// It rejects this many records, with a message.
    Partial(u64),
    /// The status of gRPC, and what it is over HTTP.
    Refuse(&'static str, u16),
    /// It asks for a pause of a millisecond.
    Busy,
    Hang,
    /// The connection ends before the answer.
    Close,
    Nonsense,
}

#[derive(Default)]
struct State {
    /// For the next requests, whatever they are; then the request is accepted.
    replies: VecDeque<Reply>,
    /// For all requests whose path has this word.
    of_path: Option<(&'static str, Reply)>,
    /// Longer messages are refused.
    largest: Option<usize>,
    accepted: Requests,
    /// The path, the length and the headers of each request.
    attempts: Vec<(String, usize, HeaderMap)>,
}

#[derive(Clone)]
struct Receiver {
    address: String,
    protocol: Protocol,
    state: Arc<Mutex<State>>,
}

type Body = http_body_util::combinators::UnsyncBoxBody<Bytes, Infallible>;

impl Receiver {
    async fn start(protocol: Protocol) -> Receiver {
        Receiver::serve(TcpListener::bind("127.0.0.1:0").await.unwrap(), protocol, None)
    }

    fn serve(listener: TcpListener, protocol: Protocol, tls: Option<TlsAcceptor>) -> Receiver {
        let address = listener.local_addr().unwrap().to_string();
        let receiver = Receiver { address, protocol, state: Arc::default() };
        let accepting = receiver.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (serving, tls) = (accepting.clone(), tls.clone());
                tokio::spawn(async move {
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

    fn state(&self) -> MutexGuard<'_, State> {
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
            Reply::Nonsense => match self.protocol {
                Protocol::Grpc => respond(200, &[("content-type", "text/html")], b"<html>", &[]),
                Protocol::Http => {
                    self.accept(head.uri.path(), &message);
                    respond(200, &[], b"<html>", &[])
                }
            },
            Reply::Busy => self.respond("14", 503, "busy", &[("retry-after", "0")]),
            Reply::Refuse(code, status) => self.respond(code, status, "this is not wanted", &[]),
            Reply::Accept | Reply::Partial(_) => {
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
        let accepted = &mut self.state().accepted;
        match path {
            "/v1/logs" | "/opentelemetry.proto.collector.logs.v1.LogsService/Export" => accepted.logs.merge(message),
            "/v1/traces" | "/opentelemetry.proto.collector.trace.v1.TraceService/Export" => {
                accepted.traces.merge(message)
            }
            "/v1/metrics" | "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export" => {
                accepted.metrics.merge(message)
            }
            other => panic!("{other}"),
        }
        .unwrap();
    }

    /// The names of accepted logs, sorted; losses are told apart.
    fn names(&self) -> Vec<String> {
        let state = self.state();
        let scopes = state.accepted.logs.resource_logs.iter().flat_map(|group| &group.scope_logs);
        let records = scopes.flat_map(|scope| &scope.log_records);
        let mut names: Vec<_> = records.map(|record| record.event_name.clone()).collect();
        names.sort();
        names
    }

    fn options(&self) -> Options {
        let millisecond = Duration::from_millis(1);
        let endpoint = format!("http://{}", self.address).parse().unwrap();
        Options {
            protocol: self.protocol,
            retry_min: millisecond,
            retry_max: millisecond * 20,
            ..Options::to(endpoint)
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

/// An OTLP sink with its queue, on a thread of its own, as the daemon runs it.
pub(crate) struct Sending {
    sender: Sender,
    workers: Workers,
    counters: Arc<SinkCounters>,
}

impl Sending {
    pub(crate) fn start(options: Options) -> Sending {
        let mut sinks = Sinks::new(CancellationToken::new());
        sinks.add("remote", QueueOptions::default(), move || Ok(Otlp::new("remote", options.clone())));
        let counters = sinks.counters()[0].clone();
        let (sender, workers) = sinks.start();
        Sending { sender, workers, counters }
    }

    pub(crate) async fn deliver(&self, batch: Batch) -> DeliveryOutcome {
        within("the batch is delivered", self.sender.deliver(batch)).await
    }

    pub(crate) async fn finish(mut self) -> SinkTotals {
        drop(self.sender);
        within("the sink ends", self.workers.drained()).await;
        let totals = self.counters.totals();
        assert_eq!(totals.in_flight(), 0, "{totals:?}");
        totals
    }

    async fn abort(mut self) -> SinkTotals {
        within("the sink ends", self.workers.abort()).await;
        drop(self.sender);
        self.counters.totals()
    }
}

fn builder(listener: &str) -> BatchBuilder {
    BatchBuilder::new(Arc::new(Origin::new("datadog", listener.into(), "127.0.0.1:40112".into(), 9)))
}

fn header(builder: &mut BatchBuilder, name: &str) -> Header {
    let name = builder.push_text(name).into();
    Header { name, time: Some(UnixNanos(5)), observed: UnixNanos(7), position: Position::default() }
}

/// Logs of these names.
fn logs(names: &[String]) -> Batch {
    let mut builder = builder("apm");
    for name in names {
        let header = header(&mut builder, name);
        builder.event(header).log(Severity::Info, None);
    }
    builder.take()
}

fn names(count: usize, length: usize) -> Vec<String> {
    (0..count).map(|number| format!("{number:0>length$}")).collect()
}

/// A log, a span and a metric of each number.
fn mixed(numbers: std::ops::Range<u64>) -> Batch {
    let mut builder = builder("apm");
    for number in numbers {
        let head = header(&mut builder, &format!("log {number}"));
        let mut event = builder.event(head);
        event.text(tributary::event::semconv::DATADOG_TYPE, "web");
        event.log(Severity::Warn, None);
        let head = header(&mut builder, "GET /");
        let span = SpanData {
            trace_id: TraceId([1; 16]),
            span_id: SpanId(number.to_be_bytes()),
            parent: None,
            end: Some(UnixNanos(9)),
            duration_nanos: Some(4),
            status: Status::Error,
        };
        builder.event(head).span(span);
        let head = header(&mut builder, "queue");
        let metric = MetricData { metric_type: MetricType::Gauge, unit: "By", value: Number::U64(number), start: None };
        builder.event(head).metric(metric);
    }
    builder.take()
}

/// With the groups and records of equal resources and scopes together, in an order of their own.
fn canonical(requests: Requests) -> Vec<String> {
    let requests = sorted(requests);
    let mut records = Vec::new();
    for group in &requests.logs.resource_logs {
        let scopes = group.scope_logs.iter();
        let all = scopes.flat_map(|scope| scope.log_records.iter().map(move |record| (&scope.scope, record)));
        records.extend(all.map(|(scope, record)| format!("{:?} {scope:?} {record:?}", group.resource)));
    }
    for group in &requests.traces.resource_spans {
        let scopes = group.scope_spans.iter();
        let all = scopes.flat_map(|scope| scope.spans.iter().map(move |span| (&scope.scope, span)));
        records.extend(all.map(|(scope, span)| format!("{:?} {scope:?} {span:?}", group.resource)));
    }
    for group in &requests.metrics.resource_metrics {
        for scope in &group.scope_metrics {
            for metric in &scope.metrics {
                use opentelemetry_proto::tonic::metrics::v1::metric::Data;
                let Some(Data::Gauge(gauge)) = &metric.data else { panic!("{metric:?}") };
                let head = format!("{:?} {:?} {} {}", group.resource, scope.scope, metric.name, metric.unit);
                records.extend(gauge.data_points.iter().map(|point| format!("{head} {point:?}")));
            }
        }
    }
    records.sort();
    records
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_arrive_by_each_protocol_in_each_compression_and_size() {
    for protocol in Protocol::ALL {
        for (compression, max_request_bytes) in
            [(Compression::None, 4 << 10), (Compression::Gzip, 3 << 20), (Compression::Zstd, 10_000)]
        {
            let receiver = Receiver::start(protocol).await;
            let headers = vec![("X-Scope-OrgID".to_owned(), Secret::Text("shop".to_owned()))];
            let sending = Sending::start(Options { compression, max_request_bytes, headers, ..receiver.options() });
            let batches = || [mixed(0..300), mixed(300..301), mixed(301..400)];
            for batch in batches() {
                assert_eq!(sending.deliver(batch).await, DeliveryOutcome::Written);
            }
            let totals = sending.finish().await;
            assert_eq!((totals.events, totals.written, totals.failed), (1200, 1200, 0));
            let state = receiver.state();
            let batches = batches();
            let expected = requests(batches.iter().flat_map(Batch::events), true);
            assert_eq!(canonical(state.accepted.clone()), canonical(expected), "{protocol:?} {compression:?}");
            for (path, bytes, headers) in &state.attempts {
                assert_eq!(headers["x-scope-orgid"], "shop");
                assert!(*bytes <= max_request_bytes + 5, "{path}: {bytes}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_that_can_pass_are_retried_until_the_events_are_accepted_once() {
    for protocol in Protocol::ALL {
        for fault in [Reply::Busy, Reply::Close, Reply::Hang, Reply::Refuse("4", 502)] {
            let receiver = Receiver::start(protocol).await;
            receiver.state().replies = [fault, fault].into();
            let options = Options { timeout: Duration::from_millis(300), ..receiver.options() };
            let sending = Sending::start(options);
            assert_eq!(sending.deliver(logs(&names(5, 4))).await, DeliveryOutcome::Written);
            let totals = sending.finish().await;
            assert_eq!((totals.written, totals.failed), (5, 0), "{protocol:?} {fault:?}");
            assert_eq!(receiver.names(), names(5, 4), "{protocol:?} {fault:?}");
            assert!(receiver.state().attempts.len() >= 3);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_starts_later_gets_everything() {
    for protocol in Protocol::ALL {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let options = Receiver { address: address.to_string(), protocol, state: Arc::default() }.options();
        let sending = Sending::start(options);
        let sender = sending.sender.clone();
        let delivering = tokio::spawn(async move { sender.deliver(logs(&names(5, 4))).await });
        until("the sink retries", || sending.counters.totals().is_retrying.then_some(())).await;
        assert!(!delivering.is_finished());
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind(address).unwrap();
        let receiver = Receiver::serve(socket.listen(16).unwrap(), protocol, None);
        assert_eq!(within("it is delivered", delivering).await.unwrap(), DeliveryOutcome::Written);
        assert_eq!(sending.finish().await.written, 5);
        assert_eq!(receiver.names(), names(5, 4));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_receiver_refuses_or_rejects_counts_as_failed_and_is_reported_as_a_loss() {
    for protocol in Protocol::ALL {
        for (reply, failed) in [(Reply::Refuse("3", 400), 5), (Reply::Refuse("7", 403), 5), (Reply::Partial(2), 2)] {
            let receiver = Receiver::start(protocol).await;
            receiver.state().replies = [reply].into();
            let sending = Sending::start(receiver.options());
            sending.deliver(logs(&names(5, 4))).await;
            until("it failed", || (sending.counters.totals().failed == failed).then_some(())).await;
            assert_eq!(sending.deliver(logs(&["next".to_owned()])).await, DeliveryOutcome::Written);
            let totals = sending.finish().await;
            assert_eq!(
                (totals.events, totals.written, totals.failed),
                (6, 6 - failed, failed),
                "{protocol:?} {reply:?}"
            );
            let names = receiver.names();
            assert!(names.contains(&"next".to_owned()) && names.contains(&"tributary.loss".to_owned()), "{names:?}");
            let state = receiver.state();
            let records = state.accepted.logs.resource_logs.iter().flat_map(|group| &group.scope_logs);
            let mut records = records.flat_map(|scope| &scope.log_records);
            let loss = records.find(|record| record.event_name == "tributary.loss").unwrap();
            let attributes = format!("{:?}", loss.attributes);
            assert!(attributes.contains("\"failed\"") && attributes.contains("apm"), "{attributes}");
            assert!(attributes.contains(&format!("IntValue({failed})")), "{attributes}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_is_no_otlp_loses_nothing() {
    for protocol in Protocol::ALL {
        let receiver = Receiver::start(protocol).await;
        receiver.state().replies = [Reply::Nonsense].into();
        let sending = Sending::start(receiver.options());
        assert_eq!(sending.deliver(logs(&names(5, 4))).await, DeliveryOutcome::Written);
        assert_eq!(sending.finish().await.written, 5);
        assert_eq!(receiver.names(), names(5, 4));
        // Over HTTP the status says that the request was accepted.
        assert_eq!(receiver.state().attempts.len(), if protocol == Protocol::Grpc { 2 } else { 1 });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_that_the_receiver_does_not_take_is_left_alone_and_the_others_go_on() {
    for protocol in Protocol::ALL {
        let receiver = Receiver::start(protocol).await;
        receiver.state().of_path = Some(("trace", Reply::Refuse("12", 404)));
        let sending = Sending::start(receiver.options());
        for start in 0..4 {
            sending.deliver(mixed(start * 10..start * 10 + 10)).await;
        }
        let totals = sending.finish().await;
        assert_eq!((totals.events, totals.written, totals.failed), (120, 80, 40), "{protocol:?}");
        let attempts = receiver.state().attempts.iter().filter(|(path, ..)| path.contains("trace")).count();
        assert_eq!(attempts, 1, "it is not asked for every request");
        assert_eq!(receiver.names().iter().filter(|name| name.starts_with("log ")).count(), 40);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_is_too_large_for_the_receiver_is_divided_down_to_one_event() {
    for protocol in Protocol::ALL {
        for compression in Compression::ALL {
            let receiver = Receiver::start(protocol).await;
            receiver.state().largest = Some(1500);
            let sending = Sending::start(Options { compression, origin: false, ..receiver.options() });
            sending.deliver(mixed(0..40)).await;
            let long = "x".repeat(3000);
            let some = ["a".to_owned(), long, "b".to_owned()];
            sending.deliver(logs(&some)).await;
            let totals = sending.finish().await;
            assert_eq!((totals.events, totals.written, totals.failed), (123, 122, 1), "{protocol:?} {compression:?}");
            let batches = [mixed(0..40), logs(&["a".to_owned(), "b".to_owned()])];
            let mut accepted = receiver.state().accepted.clone();
            let groups = accepted.logs.resource_logs.iter_mut().flat_map(|group| &mut group.scope_logs);
            groups.for_each(|scope| scope.log_records.retain(|record| record.event_name != "tributary.loss"));
            let expected = requests(batches.iter().flat_map(Batch::events), false);
            assert_eq!(canonical(accepted), canonical(expected));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_that_is_larger_than_a_request_may_be_is_reported_as_a_loss() {
    let receiver = Receiver::start(Protocol::Grpc).await;
    let sending = Sending::start(Options { max_request_bytes: 4096, ..receiver.options() });
    sending.deliver(logs(&["a".to_owned(), "x".repeat(5000), "b".to_owned()])).await;
    sending.deliver(logs(&["c".to_owned()])).await;
    let totals = sending.finish().await;
    assert_eq!((totals.events, totals.written, totals.failed), (4, 3, 1));
    assert_eq!(receiver.names(), ["a", "b", "c", "tributary.loss"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_spool_keeps_the_signal_of_each_request_until_the_next_start() {
    for protocol in Protocol::ALL {
        let directory = tempfile::tempdir().unwrap();
        let receiver = Receiver::start(protocol).await;
        receiver.state().of_path = Some(("/", Reply::Busy));
        let sending = Sending::start(spooled(&receiver, directory.path()));
        assert_eq!(sending.deliver(mixed(0..50)).await, DeliveryOutcome::Written, "it is on the disk");
        let totals = sending.abort().await;
        assert_eq!((totals.written, totals.failed, totals.waiting), (0, 0, 150));
        receiver.state().of_path = None;
        let sending = Sending::start(spooled(&receiver, directory.path()));
        until("everything is sent", || (sending.counters.totals().written == 150).then_some(())).await;
        let totals = sending.finish().await;
        assert_eq!((totals.resumed, totals.waiting), (150, 0));
        let batch = mixed(0..50);
        assert_eq!(canonical(receiver.state().accepted.clone()), canonical(requests(batch.events(), true)));
    }
}

fn spooled(receiver: &Receiver, dir: &Path) -> Options {
    let spool = SpoolOptions { dir: dir.to_owned(), max_bytes: 1 << 20, when_full: WhenFull::Block, min_free_bytes: 0 };
    Options { spool: Some(spool), ..receiver.options() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_tls_the_certificate_of_the_receiver_must_be_valid_for_its_name() {
    for protocol in Protocol::ALL {
        let directory = tempfile::tempdir().unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate =
            CertificateParams::new(vec!["receiver.example".to_owned()]).unwrap().self_signed(&key).unwrap();
        let path = directory.path().join("ca.pem");
        std::fs::write(&path, certificate.pem()).unwrap();
        let der = CertificateDer::from_pem_slice(certificate.pem().as_bytes()).unwrap();
        let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![der], key)
            .unwrap();
        config.alpn_protocols = vec![if protocol == Protocol::Grpc { b"h2".to_vec() } else { b"http/1.1".to_vec() }];
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let receiver = Receiver::serve(listener, protocol, Some(TlsAcceptor::from(Arc::new(config))));
        let endpoint: hyper::Uri = format!("https://{}", receiver.address).parse().unwrap();
        let options = |server_name: Option<&str>| {
            let server_name = server_name.map(str::to_owned);
            let tls = ClientTls { ca: Some(path.clone()), identity: None, server_name };
            Options { endpoint: endpoint.clone(), tls, ..receiver.options() }
        };
        let sending = Sending::start(options(None));
        let sender = sending.sender.clone();
        let delivering = tokio::spawn(async move { sender.deliver(logs(&names(5, 4))).await });
        until("the sink retries", || sending.counters.totals().is_retrying.then_some(())).await;
        let totals = sending.abort().await;
        assert_eq!((totals.written, totals.failed), (0, 5));
        assert_eq!(within("it has an outcome", delivering).await.unwrap(), DeliveryOutcome::Failed);
        assert!(receiver.state().attempts.is_empty());
        let sending = Sending::start(options(Some("receiver.example")));
        assert_eq!(sending.deliver(logs(&names(5, 4))).await, DeliveryOutcome::Written);
        assert_eq!(sending.finish().await.written, 5);
        assert_eq!(receiver.names(), names(5, 4));
    }
}
