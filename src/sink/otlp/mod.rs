//! The sink that sends events to a backend of OpenTelemetry, by OTLP 1.10.
//!
//! With a spool, events are written when their request is in its file, and durable when that is synced. Without one they are
//! written when the receiver has answered, and never durable.
//!
//! HTTP/2 and the framing of gRPC come from `hyper`: docs/decisions/0038 tells why not from `tonic`.

mod destination;
mod encode;
mod options;
mod payload;
mod response;

use std::io;
use std::sync::Arc;
use std::time::Instant;

use tracing::warn;

use super::forward::{Outbox, Pace};
use super::{Progress, RemoteStatus, Selection, Sink, SinkError, SinkFault, Unwritten};
use crate::event::Origin;
use crate::log_throttle::LogThrottle;

pub use super::forward::client::ClientTls;
pub use super::forward::{Compression, SpoolOptions, WhenFull};
use destination::{Receiver, SignalsOff};
pub use encode::{Encoder, ExportRequest, Signal};
pub use options::{Options, Protocol};
use payload::HEAD_BYTES;

/// Sends events by OTLP.
#[derive(Debug)]
pub struct Otlp {
    options: Options,
    name: String,
    encoder: Encoder,
    /// Since when the encoder has events.
    since: Option<Instant>,
    outbox: Outbox,
    signals_off: SignalsOff,
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
        };
        Otlp {
            name: name.to_owned(),
            encoder: Encoder::new(options.max_request_bytes, options.origin, HEAD_BYTES),
            since: None,
            outbox: Outbox::new(name, options.endpoint.to_string(), options.spool.clone(), pace),
            signals_off: SignalsOff::default(),
            too_large: 0,
            lost: Vec::new(),
            too_large_log: LogThrottle::new(),
            options,
        }
    }

    /// Starts to send, on the first call that succeeds.
    fn start(&mut self) -> Result<(), SinkError> {
        let Otlp { options, name, outbox, signals_off, .. } = self;
        let fault =
            |source: io::Error| SinkFault { action: format!("prepare requests to {}", options.endpoint), source };
        outbox.start(|| Receiver::new(name, options, signals_off.clone()).map_err(fault))
    }

    fn end_requests(&mut self) {
        self.encoder.end_requests();
        self.since = None;
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
        if self.encoder.has_pending()
            && self.since.get_or_insert_with(Instant::now).elapsed() >= self.options.max_request_delay
        {
            self.end_requests();
        }
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), SinkError> {
        self.end_requests();
        self.push_requests()?;
        self.start()?;
        self.outbox.flush().await
    }

    async fn sync(&mut self) -> Result<(), SinkError> {
        self.outbox.sync()
    }

    async fn tick(&mut self) -> Result<(), SinkError> {
        self.start()?;
        self.outbox.tick()
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
        self.signals_off.try_again();
    }

    fn remote(&self) -> Option<Arc<RemoteStatus>> {
        self.outbox.remote()
    }

    fn progress(&self) -> Option<Progress> {
        let sent = self.outbox.progress();
        Some(Progress { failed: sent.failed + self.too_large, ..sent })
    }
}
