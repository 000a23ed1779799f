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

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tracing::warn;

use super::forward::{Forwarder, Pace, Store};
use super::{AckLevel, Progress, RemoteStatus, Selection, Sink, SinkError, SinkFault, Unwritten};
use crate::event::Origin;
use crate::log_throttle::LogThrottle;
use crate::spool::Spool;

pub use super::forward::client::ClientTls;
pub use super::forward::{Compression, SpoolOptions, WhenFull};
use destination::{Receiver, SignalsOff};
pub use encode::{Encoder, ExportRequest, Signal};
pub use options::{Options, Protocol};
use payload::HEAD_BYTES;

/// Without a spool: how long a flush waits for the receiver before it reports that it cannot write now.
const REPORT_AFTER: Duration = Duration::from_secs(1);
/// With a spool: how long a stopping sink waits for responses.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Reports what receivers refuse.
static REFUSED: LogThrottle = LogThrottle::new();
/// Reports events that are larger than a request may be.
static TOO_LARGE: LogThrottle = LogThrottle::new();

/// Sends events by OTLP.
#[derive(Debug)]
pub struct Otlp {
    options: Options,
    name: String,
    encoder: Encoder,
    /// Complete requests that are not appended yet.
    requests: VecDeque<(Bytes, u32, Arc<Origin>)>,
    forwarder: Option<Forwarder>,
    signals_off: SignalsOff,
    /// Since when the encoder has events.
    since: Option<Instant>,
    /// Batches that ask to be durable, and whose requests are not known to be on the disk.
    unsynced: BTreeSet<u64>,
    /// A sync has failed: the next flush tries it again.
    must_sync: bool,
    /// Events that are in the encoder and in `requests`.
    held: u64,
    /// Events that are larger than a request may be, and those that are not reported yet.
    too_large: u64,
    lost: Vec<(Arc<Origin>, u64)>,
    /// The grace period is over, and this many events were not sent.
    given_up: u64,
}

impl Otlp {
    /// A sink with these options. It opens its spool and connects when it runs.
    pub fn new(name: &str, options: Options) -> Otlp {
        Otlp {
            name: name.to_owned(),
            encoder: Encoder::new(options.max_request_bytes, options.origin, HEAD_BYTES),
            requests: VecDeque::new(),
            forwarder: None,
            signals_off: SignalsOff::default(),
            since: None,
            unsynced: BTreeSet::new(),
            must_sync: false,
            held: 0,
            too_large: 0,
            lost: Vec::new(),
            given_up: 0,
            options,
        }
    }

    /// Starts to send, on the first call.
    fn start(&mut self) -> Result<(), SinkError> {
        if self.forwarder.is_some() {
            return Ok(());
        }
        let retry = |action: String, source| SinkError::Retry(SinkFault { action, source });
        let receiver = Receiver::new(&self.name, &self.options, self.signals_off.clone())
            .map_err(|source| retry(format!("prepare requests to {}", self.options.endpoint), source))?;
        let store = match &self.options.spool {
            None => Store::memory(),
            Some(options) => {
                let directory = options.directory(&self.name);
                let opened = Spool::open(&directory, options.limits());
                let (spool, findings) =
                    opened.map_err(|(path, source)| retry(format!("open the spool {}", path.display()), source))?;
                for finding in findings {
                    warn!(sink = self.name, spool = %directory.display(), "{finding}");
                }
                Store::Spool(Box::new(spool), options.when_full)
            }
        };
        let pace = Pace {
            max_in_flight: self.options.max_in_flight,
            request_timeout: self.options.timeout,
            retry: self.options.retry_min..=self.options.retry_max,
        };
        self.forwarder = Some(Forwarder::start(store, pace, receiver));
        Ok(())
    }

    fn end_requests(&mut self) {
        self.encoder.end_requests();
        self.since = None;
    }

    /// Compresses complete requests and appends them to the store.
    fn append(&mut self) -> Result<(), SinkError> {
        for ExportRequest { signal, body, events, origin } in self.encoder.take_requests() {
            match payload::store(signal, self.options.compression, body) {
                Ok(payload) => self.requests.push_back((payload, events, origin)),
                Err(source) => return Err(self.fault("compress a request for", source)),
            }
        }
        self.start()?;
        let Some(forwarder) = &self.forwarder else { return Ok(()) };
        while let Some((payload, events, origin)) = self.requests.front() {
            if let Err(source) = forwarder.append_from(payload.clone(), *events, Some(origin.clone())) {
                return Err(self.fault("keep a request for", source));
            }
            self.held -= u64::from(*events);
            self.requests.pop_front();
        }
        Ok(())
    }

    /// Forces the appended requests to the disk, if they are kept there.
    fn sync_requests(&mut self) -> Result<(), SinkError> {
        let Some(forwarder) = &self.forwarder else { return Ok(()) };
        let synced = forwarder.sync();
        self.must_sync = synced.is_err();
        synced.map_err(|source| self.fault("keep a request for", source))?;
        self.unsynced.clear();
        Ok(())
    }

    fn fault(&self, action: &str, source: io::Error) -> SinkError {
        SinkError::Retry(SinkFault { action: format!("{action} {}", self.options.endpoint), source })
    }

    fn log_refusals(&self) {
        for refusal in self.forwarder.iter().flat_map(Forwarder::take_refusals) {
            if let Some(suppressed) = REFUSED.permit() {
                warn!(sink = self.name, endpoint = %self.options.endpoint, suppressed, "{refusal}");
            }
        }
    }
}

impl Sink for Otlp {
    async fn write(&mut self, events: Selection<'_>) -> Result<(), SinkError> {
        let is_counted = events.is_counted();
        if events.level() == AckLevel::Durable && self.options.spool.is_some() {
            self.unsynced.insert(events.number());
        }
        for event in events.events() {
            if self.encoder.push(event, is_counted) {
                self.held += u64::from(is_counted);
                continue;
            }
            if is_counted {
                self.too_large += 1;
                self.lost.push((event.origin().clone(), 1));
            }
            if let Some(suppressed) = TOO_LARGE.permit() {
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
        self.append()?;
        if self.options.spool.is_some() {
            return if self.must_sync { self.sync_requests() } else { Ok(()) };
        }
        loop {
            let Some(forwarder) = &self.forwarder else { return Ok(()) };
            if forwarder.settled_within(REPORT_AFTER).await {
                return Ok(());
            }
            if let Some(fault) = forwarder.fault() {
                return Err(self.fault("send to", io::Error::other(fault)));
            }
        }
    }

    async fn sync(&mut self) -> Result<(), SinkError> {
        self.sync_requests()
    }

    async fn tick(&mut self) -> Result<(), SinkError> {
        self.start()?;
        self.log_refusals();
        self.sync_requests()
    }

    fn unwritten(&mut self) -> Unwritten {
        let mut lost = std::mem::take(&mut self.lost);
        lost.extend(self.forwarder.iter().flat_map(Forwarder::take_lost));
        Unwritten { lost, unsynced: self.unsynced.clone(), ..Unwritten::default() }
    }

    async fn close(&mut self) -> Result<(), SinkError> {
        let Some(forwarder) = &self.forwarder else { return Ok(()) };
        forwarder.settled_within(CLOSE_TIMEOUT).await;
        forwarder.close().map_err(|source| self.fault("save what was sent to", source))?;
        self.log_refusals();
        Ok(())
    }

    async fn give_up(&mut self) {
        if let Some(forwarder) = &self.forwarder {
            // With a spool, what it has is sent after the next start.
            let _ = forwarder.close();
            if self.options.spool.is_none() {
                self.given_up = forwarder.progress().waiting;
            }
        }
        self.given_up += std::mem::take(&mut self.held);
    }

    fn reopen(&mut self) {
        self.signals_off.try_again();
    }

    fn remote(&self) -> Option<Arc<RemoteStatus>> {
        self.forwarder.as_ref().map(Forwarder::status)
    }

    fn progress(&self) -> Option<Progress> {
        let sent = self.forwarder.as_ref().map(Forwarder::progress).unwrap_or_default();
        let is_lost = self.given_up > 0 && self.options.spool.is_none();
        Some(Progress {
            waiting: self.held + if is_lost { 0 } else { sent.waiting },
            failed: sent.failed + self.given_up + self.too_large,
            ..sent
        })
    }
}
