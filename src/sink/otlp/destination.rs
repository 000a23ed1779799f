//! The client of the sink: one request, one answer.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, TE, USER_AGENT};
use hyper::{Response, Uri};
use tokio::time::Instant;
use tracing::{info, warn};

use super::encode::Signal;
use super::options::{Options, Protocol};
use super::payload::{HEAD_BYTES, Payload, events_of, split, store};
use super::response::{Meaning, of_grpc, of_http};
use tributary_options::Endpoint;
use tributary_sink_forward::client::{self, HttpClient, MAX_RESPONSE_BYTES, describe};
use tributary_sink_forward::{AttemptOutcome, Compression, Destination, EncodedRequest};

/// How often profiles are tried again that the receiver does not take.
const TRY_AGAIN: Duration = Duration::from_secs(300);
const GRPC_ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
const AGENT: HeaderValue = HeaderValue::from_static(concat!("tributary/", env!("CARGO_PKG_VERSION")));

/// A receiver of OTLP.
#[derive(Debug)]
pub struct Receiver {
    sink: String,
    endpoint: Endpoint,
    protocol: Protocol,
    headers: HeaderMap,
    client: HttpClient,
    off: ProfilesOff,
    /// A receiver of other signals need not take profiles: the configuration does not ask for them.
    are_profiles_optional: bool,
    /// Requests with heap dumps that were not taken.
    refused_heaps: Arc<AtomicU64>,
}

/// Until when no profiles are sent, because the receiver does not take them. A clone is the same.
#[derive(Clone, Debug, Default)]
pub(super) struct ProfilesOff(Arc<Mutex<Option<Instant>>>);

impl ProfilesOff {
    fn until(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Profiles are tried again with their next request.
    pub(super) fn try_again(&self) {
        if let Some(until) = &mut *self.until() {
            *until = Instant::now();
        }
    }
}

impl Receiver {
    /// A client for the endpoint of these options.
    ///
    /// # Errors
    /// A file or a variable of the environment cannot be used, or the system has no authorities for `https`.
    pub(super) fn new(
        sink: &str,
        options: &Options,
        off: ProfilesOff,
        refused_heaps: Arc<AtomicU64>,
    ) -> io::Result<Receiver> {
        let mut headers = options.header_map()?;
        headers.insert(USER_AGENT, AGENT);
        Ok(Receiver {
            sink: sink.to_owned(),
            client: client::client(
                &options.endpoint,
                options.version(),
                options.timeout,
                &options.tls,
                &options.proxy,
            )?,
            endpoint: options.endpoint.clone(),
            protocol: options.protocol,
            headers,
            off,
            are_profiles_optional: options.signals.is_empty(),
            refused_heaps,
        })
    }

    /// Sends a request of this signal without a record. `Err`: the receiver does not take it, in its words.
    pub(super) async fn take_nothing(&self, signal: Signal) -> Result<(), String> {
        let empty = store(signal, Compression::None, vec![0; HEAD_BYTES].into()).map_err(|error| error.to_string())?;
        let payload = Payload::of(&empty).ok_or("it cannot be made")?;
        match self.attempt(&payload).await {
            Meaning::Answer(AttemptOutcome::Accepted | AttemptOutcome::Duplicate | AttemptOutcome::Partial(..)) => {
                Ok(())
            }
            Meaning::Answer(
                AttemptOutcome::Away(why, _)
                | AttemptOutcome::Refusing(why)
                | AttemptOutcome::TooLarge(why)
                | AttemptOutcome::Bad(why),
            )
            | Meaning::NoSignal(why) => Err(why),
        }
    }

    async fn attempt(&self, payload: &Payload) -> Meaning {
        let post = match self.protocol {
            Protocol::Grpc => self.grpc_request(payload),
            Protocol::Http => self.http_request(payload),
        };
        let away = |why: String| Meaning::Answer(AttemptOutcome::Away(why, None));
        let Some(post) = post else {
            return Meaning::Answer(AttemptOutcome::Bad("the endpoint is not valid".to_owned()));
        };
        let response: Response<_> = match self.client.request(post).await {
            Ok(response) => response,
            Err(error) => return away(describe(&error)),
        };
        let (head, body) = response.into_parts();
        // Read to the end, so that the connection can be used again.
        let collected = match (Limited::new(body, MAX_RESPONSE_BYTES).collect().await, self.protocol) {
            (Ok(collected), _) => collected,
            // The status of gRPC comes last.
            (Err(error), Protocol::Grpc) => return away(format!("the response ended early: {error}")),
            (Err(_), Protocol::Http) => return of_http(head.status, &head.headers, b""),
        };
        let trailers = collected.trailers().cloned();
        let body = collected.to_bytes();
        match self.protocol {
            Protocol::Grpc => of_grpc(head.status, &head.headers, trailers.as_ref(), &body),
            Protocol::Http => of_http(head.status, &head.headers, &body),
        }
    }

    fn grpc_request(&self, payload: &Payload) -> Option<hyper::Request<Full<Bytes>>> {
        let service = match payload.signal {
            Signal::Logs => "logs.v1.LogsService",
            Signal::Traces => "trace.v1.TraceService",
            Signal::Metrics => "metrics.v1.MetricsService",
            Signal::Profiles => "profiles.v1development.ProfilesService",
        };
        let uri = self.uri(&format!("/opentelemetry.proto.collector.{service}/Export"))?;
        let mut post = hyper::Request::post(uri).body(Full::new(payload.framed.clone())).ok()?;
        let headers = post.headers_mut();
        headers.extend(self.headers.clone());
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(TE, HeaderValue::from_static("trailers"));
        if payload.compression != Compression::None {
            headers.insert(GRPC_ENCODING, HeaderValue::from_static(payload.compression.as_str()));
        }
        Some(post)
    }

    fn http_request(&self, payload: &Payload) -> Option<hyper::Request<Full<Bytes>>> {
        let path = payload.signal.path();
        let uri = self.uri(&format!("{}{path}", self.endpoint.path().trim_end_matches('/')))?;
        let mut post = hyper::Request::post(uri).body(Full::new(payload.message())).ok()?;
        let headers = post.headers_mut();
        headers.extend(self.headers.clone());
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        if payload.compression != Compression::None {
            headers.insert(CONTENT_ENCODING, HeaderValue::from_static(payload.compression.as_str()));
        }
        Some(post)
    }

    fn uri(&self, path: &str) -> Option<Uri> {
        let mut parts = Uri::clone(&self.endpoint).into_parts();
        parts.path_and_query = Some(path.parse().ok()?);
        Uri::from_parts(parts).ok()
    }

    fn is_off(&self, signal: Signal) -> bool {
        signal == Signal::Profiles && self.off.until().is_some_and(|until| Instant::now() < until)
    }

    /// Notes whether the receiver takes profiles, and logs when that changes.
    fn note_profiles(&self, refusal: Option<&str>) {
        let until = refusal.map(|_| Instant::now() + TRY_AGAIN);
        let before = std::mem::replace(&mut *self.off.until(), until);
        let (sink, endpoint) = (&self.sink, &self.endpoint);
        match (before, refusal) {
            (None, Some(answer)) => warn!(
                sink, %endpoint, answer,
                "the receiver takes no profiles, so none are sent, and their events count as failed; trying again every 5 minutes; `signals` without \"profiles\" leaves them out"
            ),
            (Some(_), None) => info!(sink, %endpoint, "the receiver takes profiles now"),
            _ => {}
        }
    }

    /// Whether the receiver takes another signal than profiles: an empty request.
    async fn takes_other_signals(&self) -> bool {
        for signal in [Signal::Logs, Signal::Traces, Signal::Metrics] {
            if self.take_nothing(signal).await.is_ok() {
                return true;
            }
        }
        false
    }
}

impl Destination for Receiver {
    async fn send(&self, request: &EncodedRequest) -> AttemptOutcome {
        let Some(payload) = Payload::of(&request.payload) else {
            return AttemptOutcome::Bad("the stored request is not of this version".to_owned());
        };
        let all = u64::from(request.events);
        // A request with heap dumps has no events that count.
        let is_heap = payload.signal == Signal::Profiles && all == 0;
        let note_heap = |is_refused: bool| self.refused_heaps.fetch_add((is_heap && is_refused).into(), Relaxed);
        if self.is_off(payload.signal) {
            note_heap(true);
            return AttemptOutcome::Partial(all, None);
        }
        match self.attempt(&payload).await {
            Meaning::NoSignal(why) => {
                let is_optional = self.are_profiles_optional && payload.signal == Signal::Profiles;
                if !is_optional || !self.takes_other_signals().await {
                    return AttemptOutcome::Refusing(why);
                }
                self.note_profiles(Some(&why));
                note_heap(true);
                AttemptOutcome::Partial(all, None)
            }
            Meaning::Answer(answer) => {
                let is_taken = matches!(answer, AttemptOutcome::Accepted | AttemptOutcome::Partial(..));
                if is_taken && payload.signal == Signal::Profiles {
                    self.note_profiles(None);
                }
                note_heap(matches!(answer, AttemptOutcome::Bad(_) | AttemptOutcome::Partial(1.., _)));
                match answer {
                    AttemptOutcome::Partial(rejected, why) => {
                        AttemptOutcome::Partial(events_of(&payload, request.events, rejected), why)
                    }
                    other => other,
                }
            }
        }
    }

    fn split(&self, request: &EncodedRequest) -> Option<[EncodedRequest; 2]> {
        let parts = split(request);
        let is_heap =
            request.events == 0 && Payload::of(&request.payload).is_some_and(|of| of.signal == Signal::Profiles);
        // It is too large and refused.
        self.refused_heaps.fetch_add((is_heap && parts.is_none()).into(), Relaxed);
        parts
    }
}
