//! The sink that sends events as JSON lines in HTTP requests.
//!
//! With a spool, events are written when their request is in its file, and durable when that is synced. Without one they are
//! written when the server has answered with a 2xx, and never durable.

mod destination;
mod options;

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tracing::warn;

use super::encode::json::JsonEncoder;
pub use super::forward::client::ClientTls;
pub use super::forward::{Compression, SpoolOptions, WhenFull};
use super::forward::{Forwarder, Pace, Store};
use super::{AckLevel, Progress, RemoteStatus, Selection, Sink, SinkError, SinkFault, Unwritten};
use crate::log_throttle::LogThrottle;
use crate::spool::Spool;
use destination::Server;
pub use destination::lines;
pub use options::Options;

/// Without a spool: how long a flush waits for the server before it reports that it cannot write now.
const REPORT_AFTER: Duration = Duration::from_secs(1);
/// With a spool: how long a stopping sink waits for responses.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Reports requests that the server refuses.
static REFUSED: LogThrottle = LogThrottle::new();

/// Sends events over HTTP.
#[derive(Debug)]
pub struct Http {
    options: Options,
    name: String,
    encoder: JsonEncoder,
    /// Lines of the request that is being made, and how many of them are counted events.
    lines: Vec<u8>,
    events: u32,
    /// Complete requests that are not appended yet.
    requests: VecDeque<(Bytes, u32)>,
    forwarder: Option<Forwarder>,
    /// Batches that ask to be durable, and whose requests are not known to be on the disk.
    unsynced: BTreeSet<u64>,
    /// A sync has failed: the next flush tries it again.
    must_sync: bool,
    /// Events that are in `lines` and `requests`.
    held: u64,
    /// The grace period is over, and this many events were not sent.
    given_up: u64,
}

impl Http {
    /// A sink with these options. It opens its spool and connects when it runs.
    pub fn new(name: &str, options: Options) -> Http {
        Http {
            name: name.to_owned(),
            encoder: JsonEncoder::default(),
            lines: Vec::new(),
            events: 0,
            requests: VecDeque::new(),
            forwarder: None,
            unsynced: BTreeSet::new(),
            must_sync: false,
            held: 0,
            given_up: 0,
            options,
        }
    }

    /// Starts to send, on the first call.
    fn forwarder(&mut self) -> Result<&Forwarder, SinkError> {
        if self.forwarder.is_none() {
            let retry = |action: String, source| SinkError::Retry(SinkFault { action, source });
            let server = Server::new(&self.options).map_err(|source| retry("use the TLS files".to_owned(), source))?;
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
                request_timeout: self.options.request_timeout,
                retry: self.options.retry_min..=self.options.retry_max,
            };
            self.forwarder = Some(Forwarder::start(store, pace, server));
        }
        self.forwarder.as_ref().ok_or(SinkError::Closed)
    }

    /// The lines become a request.
    fn end_request(&mut self) -> Result<(), SinkError> {
        if self.lines.is_empty() {
            return Ok(());
        }
        let body = self.options.compression.compress_to(&self.lines, Vec::new());
        let body = body.map_err(|source| self.fault("compress a request for", source))?;
        self.requests.push_back((body.into(), self.events));
        self.lines.clear();
        self.events = 0;
        Ok(())
    }

    /// Appends the complete requests to the store.
    fn append(&mut self) -> Result<(), SinkError> {
        self.forwarder()?;
        let Some(forwarder) = &self.forwarder else { return Ok(()) };
        while let Some((body, events)) = self.requests.front() {
            if let Err(source) = forwarder.append(body.clone(), *events) {
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

impl Sink for Http {
    async fn write(&mut self, events: Selection<'_>) -> Result<(), SinkError> {
        if events.level() == AckLevel::Durable && self.options.spool.is_some() {
            self.unsynced.insert(events.number());
        }
        for event in events.events() {
            self.encoder.encode(event, &mut self.lines);
            self.events += u32::from(events.is_counted());
            self.held += u64::from(events.is_counted());
            if self.lines.len() >= self.options.batch_bytes {
                self.end_request()?;
            }
        }
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), SinkError> {
        self.end_request()?;
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
        self.forwarder()?;
        self.log_refusals();
        self.sync_requests()
    }

    fn unwritten(&mut self) -> Unwritten {
        Unwritten { unsynced: self.unsynced.clone(), ..Unwritten::default() }
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

    fn remote(&self) -> Option<Arc<RemoteStatus>> {
        self.forwarder.as_ref().map(Forwarder::status)
    }

    fn progress(&self) -> Option<Progress> {
        let sent = self.forwarder.as_ref().map(Forwarder::progress).unwrap_or_default();
        let is_lost = self.given_up > 0 && self.options.spool.is_none();
        Some(Progress {
            waiting: self.held + if is_lost { 0 } else { sent.waiting },
            failed: sent.failed + self.given_up,
            ..sent
        })
    }
}
