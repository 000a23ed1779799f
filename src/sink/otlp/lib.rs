//! The sink that sends events to a backend of OpenTelemetry, by OTLP 1.10.
//!
//! With a spool, events are written when their request is in its file, and durable when that is synced. Without one they are
//! written when the receiver has answered, and never durable.
//!
//! A request stays open for more events until it has `max_request_bytes`, until `max_request_delay` after its first event, or
//! until a peer waits for the acknowledgement of its events.
//!
//! HTTP/2 and the framing of gRPC come from `hyper`: docs/decisions/0038 has the reasons against `tonic`.
#![forbid(unsafe_code)]

mod destination;
mod encode;
mod options;
mod payload;
mod probe;
mod response;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use std::time::Duration;

use tracing::warn;

use tributary_event::EventView;
use tributary_sink::{ActionError, RemoteState, Selection};
use tributary_sink_forward::{CompleteRequest, Contents, Pace, RemoteSink, RequestEncoder};

use destination::ProfilesOff;
pub use destination::Receiver;
pub use encode::{Body, Encoder, ExportRequest, Signal};
pub use options::{Options, Protocol};
use payload::HEAD_BYTES;
pub use probe::probe;
pub use tributary_options::Secret;
pub use tributary_sink_forward::client::ClientTls;
pub use tributary_sink_forward::{Compression, GiveUp, Proxy, RetryOptions, SpoolOptions, WhenFull};

/// Sends events by OTLP.
pub type Otlp = RemoteSink<OtlpEncoder>;

/// Makes requests of OTLP.
#[derive(Debug)]
pub struct OtlpEncoder {
    options: Options,
    sink: String,
    encoder: Encoder,
    profiles_off: ProfilesOff,
    /// Requests with heap dumps that the receiver did not take.
    refused_heaps: Arc<AtomicU64>,
}

impl RequestEncoder for OtlpEncoder {
    type Options = Options;
    type Destination = Receiver;

    fn new(sink: &str, options: Options) -> OtlpEncoder {
        let mut encoder = Encoder::new(options.max_request_bytes, options.origin, HEAD_BYTES);
        encoder.set_heap_profiles(options.sends(Signal::Profiles), options.summed_heaps.clone());
        let (profiles_off, refused_heaps) = (ProfilesOff::default(), Arc::default());
        OtlpEncoder { options, sink: sink.to_owned(), encoder, profiles_off, refused_heaps }
    }

    fn delivery(&self) -> (String, Pace, Option<SpoolOptions>) {
        let options = &self.options;
        let pace = Pace {
            max_in_flight: options.max_in_flight,
            request_timeout: options.timeout,
            retry: options.retry,
            give_up: options.give_up,
        };
        (options.endpoint.to_string(), pace, options.spool.clone())
    }

    fn destination(&self) -> Result<Receiver, ActionError> {
        let receiver = Receiver::new(&self.sink, &self.options, self.profiles_off.clone(), self.refused_heaps.clone());
        let action = || format!("prepare requests to {}", self.options.endpoint);
        receiver.map_err(|source| ActionError { action: action(), source })
    }

    fn max_delay(&self) -> Duration {
        self.options.max_request_delay
    }

    fn begin_batch(&mut self) {
        self.encoder.begin_batch();
    }

    fn push(&mut self, event: EventView<'_>, batch: &Selection<'_>) -> io::Result<bool> {
        Ok(self.encoder.push(event, batch.is_counted()))
    }

    fn has_open(&self) -> bool {
        self.encoder.has_pending()
    }

    fn end_requests(&mut self) {
        self.encoder.end_requests();
    }

    /// The profiles of a heap dump, whose objects are logs.
    fn has_open_copy(&self) -> bool {
        self.encoder.has_heap()
    }

    fn end_copies(&mut self) {
        self.encoder.end_heap();
    }

    fn take_requests(&mut self) -> io::Result<Vec<CompleteRequest>> {
        let complete = |ExportRequest { signal, body, events, origin }| {
            let payload = payload::store(signal, self.options.compression, body)?;
            Ok(CompleteRequest { payload, events, contents: Contents::of(&origin, events.into()) })
        };
        self.encoder.take_requests().into_iter().map(complete).collect()
    }

    fn log_too_large(&self, sink: &str, event: &str, suppressed: Option<u64>) {
        let max_request_bytes = self.options.max_request_bytes;
        warn!(
            sink,
            event, max_request_bytes, suppressed, "an event is larger than a request may be; it counts as failed"
        );
    }

    fn reopen(&mut self) {
        self.profiles_off.try_again();
    }

    fn update_status(&self, status: &mut RemoteState) {
        status.refused_heap_profiles = self.refused_heaps.load(Relaxed);
    }
}
