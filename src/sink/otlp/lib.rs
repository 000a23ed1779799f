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

use tokio::time::Instant;
use tracing::warn;

use tributary_event::Origin;
use tributary_memory::log_throttle::LogThrottle;
use tributary_sink::{RemoteStatus, Selection, Sink, SinkError, SinkFault, SinkProgress, Unwritten};
use tributary_sink_forward::{Outbox, Pace};

use destination::{ProfilesOff, Receiver};
pub use encode::{Body, Encoder, ExportRequest, Signal};
pub use options::{Options, Protocol};
use payload::HEAD_BYTES;
pub use probe::probe;
pub use tributary_options::Secret;
pub use tributary_sink_forward::client::ClientTls;
pub use tributary_sink_forward::{Compression, GiveUp, Proxy, SpoolOptions, WhenFull};

/// Sends events by OTLP.
#[derive(Debug)]
pub struct Otlp {
    options: Options,
    name: String,
    encoder: Encoder,
    /// Since when the encoder has events, and since when a heap dump that is not complete.
    since: Option<Instant>,
    heap_since: Option<Instant>,
    /// A peer waits for events in open requests.
    is_awaited: bool,
    /// No batch follows.
    is_finishing: bool,
    outbox: Outbox,
    profiles_off: ProfilesOff,
    /// Requests with heap dumps that the receiver did not take.
    refused_heaps: Arc<AtomicU64>,
    /// Events that are larger than a request may be, and those that are not reported yet.
    too_large: u64,
    lost: Vec<(Arc<Origin>, u64)>,
    /// Reports these events in the log.
    too_large_log: LogThrottle,
}

impl Otlp {
    /// A sink with these options. It opens its spool and connects when it runs.
    pub fn new(name: &str, options: Options) -> Otlp {
        let pace = Pace {
            max_in_flight: options.max_in_flight,
            request_timeout: options.timeout,
            retry: options.retry_min..=options.retry_max,
            max_retry_delay: options.max_retry_delay,
            give_up: options.give_up,
        };
        let mut encoder = Encoder::new(options.max_request_bytes, options.origin, HEAD_BYTES);
        encoder.set_heap_profiles(options.sends(Signal::Profiles), options.summed_heaps.clone());
        Otlp {
            name: name.to_owned(),
            encoder,
            since: None,
            heap_since: None,
            is_awaited: false,
            is_finishing: false,
            outbox: Outbox::new(name, options.endpoint.to_string(), options.spool.clone(), pace),
            profiles_off: ProfilesOff::default(),
            refused_heaps: Arc::default(),
            too_large: 0,
            lost: Vec::new(),
            too_large_log: LogThrottle::new(),
            options,
        }
    }

    /// Starts to send, on the first call that succeeds.
    fn start(&mut self) -> Result<(), SinkError> {
        let Otlp { options, name, outbox, profiles_off, refused_heaps, .. } = self;
        let fault =
            |source: io::Error| SinkFault { action: format!("prepare requests to {}", options.endpoint), source };
        outbox.start(|| Receiver::new(name, options, profiles_off.clone(), refused_heaps.clone()).map_err(fault))
    }

    fn is_due(&self, since: Option<Instant>) -> bool {
        since.is_some_and(|since| since.elapsed() >= self.options.max_request_delay)
    }

    /// Ends the requests that are due, or for which a peer waits.
    fn end_requests(&mut self) {
        if self.is_awaited || self.is_finishing || self.is_due(self.since) {
            self.encoder.end_requests();
            (self.since, self.is_awaited) = (None, false);
        }
        // The profiles of a heap dump do not count, so no peer waits for them.
        if self.is_finishing || self.is_due(self.heap_since) {
            self.encoder.end_heap();
            self.heap_since = None;
        }
    }

    /// Compresses the complete requests.
    fn push_requests(&mut self) -> Result<(), SinkError> {
        for ExportRequest { signal, body, events, origin } in self.encoder.take_requests() {
            match payload::store(signal, self.options.compression, body) {
                Ok(payload) => self.outbox.push(payload, events, Some(origin)),
                Err(source) => return Err(self.outbox.fault("compress a request for", source)),
            }
        }
        Ok(())
    }
}

impl Sink for Otlp {
    async fn write(&mut self, events: Selection<'_>) -> Result<(), SinkError> {
        let is_counted = events.is_counted();
        self.outbox.begin(&events);
        self.encoder.begin_batch();
        for event in events.events() {
            if self.encoder.push(event, is_counted) {
                self.outbox.hold(is_counted.into());
                continue;
            }
            if is_counted {
                self.too_large += 1;
                self.lost.push((event.origin().clone(), 1));
            }
            if let Some(suppressed) = self.too_large_log.permit() {
                let (name, limit) = (event.name().text(), self.options.max_request_bytes);
                warn!(
                    sink = self.name,
                    event = name,
                    max_request_bytes = limit,
                    suppressed,
                    "an event is larger than a request may be; it counts as failed"
                );
            }
        }
        self.is_awaited |= events.is_awaited() && events.count() > 0;
        let or_now = |since: Option<Instant>| since.unwrap_or_else(Instant::now);
        self.since = self.encoder.has_pending().then(|| or_now(self.since));
        self.heap_since = self.encoder.has_heap().then(|| or_now(self.heap_since));
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), SinkError> {
        self.end_requests();
        self.push_requests()?;
        self.start()?;
        self.outbox.flush().await
    }

    fn flush_due(&self) -> Option<Instant> {
        let first = [self.since, self.heap_since].into_iter().flatten().min();
        first.map(|first| first + self.options.max_request_delay)
    }

    fn finish(&mut self) {
        self.is_finishing = true;
    }

    async fn woken(&mut self) {
        self.outbox.woken().await;
    }

    async fn sync(&mut self) -> Result<(), SinkError> {
        self.outbox.sync();
        Ok(())
    }

    async fn tick(&mut self) -> Result<(), SinkError> {
        self.start()?;
        self.outbox.tick();
        Ok(())
    }

    fn unwritten(&mut self) -> Unwritten {
        let mut unwritten = self.outbox.unwritten();
        unwritten.lost.append(&mut self.lost);
        unwritten
    }

    async fn close(&mut self) -> Result<(), SinkError> {
        self.outbox.close().await
    }

    async fn give_up(&mut self) {
        self.outbox.give_up();
    }

    fn reopen(&mut self) {
        self.profiles_off.try_again();
    }

    fn is_queue_open(&self) -> bool {
        self.outbox.is_started()
    }

    fn remote(&self) -> Option<Arc<RemoteStatus>> {
        let status = self.outbox.remote()?;
        status.update(|state| state.refused_heap_profiles = self.refused_heaps.load(Relaxed));
        Some(status)
    }

    fn progress(&self) -> Option<SinkProgress> {
        let sent = self.outbox.progress();
        Some(SinkProgress { failed: sent.failed + self.too_large, ..sent })
    }
}
