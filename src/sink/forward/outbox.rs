//! The part of a sink that begins at a complete request: it opens the spool, starts to send, and answers what every sink is
//! asked.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tracing::warn;

use super::{Contents, Destination, Forwarder, Pace, SpoolOptions, Store};
use crate::event::{DataView, Origin};
use crate::log_throttle::LogThrottle;
use crate::sink::{AckLevel, LossCause, Progress, RemoteStatus, Selection, SinkError, SinkFault, Unwritten};
use crate::spool::Spool;

/// Without a spool: how long a flush waits for responses before it reports that the sink cannot write now.
const REPORT_AFTER: Duration = Duration::from_secs(1);
/// With a spool: how long a stopping sink waits for responses.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// With a spool: a request that is neither synced nor settled for so long is synced with the next tick.
const UNSYNCED_TIME: Duration = Duration::from_millis(500);

/// The protocol in the origin of losses whose connection is not known.
const OWN_PROTOCOL: &str = "tributary";

/// The complete requests of one sink.
///
/// With a spool, events are written when their request is in its file, and durable when that is synced. Without one they are
/// written when the destination has answered, and never durable.
#[derive(Debug)]
pub(crate) struct Outbox {
    sink: String,
    endpoint: String,
    spool: Option<SpoolOptions>,
    pace: Pace,
    /// What it does, for others.
    status: Arc<RemoteStatus>,
    /// The origin of missed events whose connection is not known.
    own: Arc<Origin>,
    /// What is known of the next request: the losses that it reports.
    next: Contents,
    /// Requests that are not appended yet.
    requests: VecDeque<(Bytes, u32, Contents)>,
    forwarder: Option<Forwarder>,
    /// Batches that ask to be durable, and whose requests are not known to be on the disk.
    unsynced: BTreeSet<u64>,
    /// A sync has failed: the next flush tries it again.
    must_sync: bool,
    /// Events that are in the sink's encoder and in `requests`.
    held: u64,
    /// The grace period is over, and this many events were not sent.
    given_up: u64,
    /// Reports what the destination refuses.
    refused: LogThrottle,
}

impl Outbox {
    /// An outbox of the sink with this name. It opens its spool in [`Outbox::start`].
    pub(crate) fn new(sink: &str, endpoint: String, spool: Option<SpoolOptions>, pace: Pace) -> Outbox {
        Outbox {
            sink: sink.to_owned(),
            status: Arc::new(RemoteStatus::new(sink, &endpoint)),
            own: Arc::new(Origin::new(OWN_PROTOCOL, sink.into(), endpoint.as_str().into(), 0)),
            next: Contents::default(),
            endpoint,
            spool,
            pace,
            requests: VecDeque::new(),
            forwarder: None,
            unsynced: BTreeSet::new(),
            must_sync: false,
            held: 0,
            given_up: 0,
            refused: LogThrottle::new(),
        }
    }

    /// Opens the spool and starts to send, on the first call that succeeds.
    ///
    /// # Errors
    /// That of `connect`, or the spool cannot be opened.
    pub(crate) fn start<D: Destination>(
        &mut self,
        connect: impl FnOnce() -> Result<D, SinkFault>,
    ) -> Result<(), SinkError> {
        if self.forwarder.is_some() {
            return Ok(());
        }
        let opened = connect().and_then(|destination| Ok((destination, self.open_store()?)));
        let fault = opened.as_ref().err().map(ToString::to_string);
        self.status.update(|status| status.cannot_start = fault);
        let (destination, store) = opened.map_err(SinkError::Retry)?;
        self.forwarder = Some(Forwarder::start(store, self.pace.clone(), destination, self.status.clone()));
        Ok(())
    }

    /// Whether it has started.
    pub(crate) fn is_started(&self) -> bool {
        self.forwarder.is_some()
    }

    fn open_store(&self) -> Result<Store, SinkFault> {
        let Some(options) = &self.spool else { return Ok(Store::memory()) };
        let directory = options.directory(&self.sink);
        let (spool, findings) = Spool::open(&directory, options.limits())
            .map_err(|(path, source)| SinkFault { action: format!("open the spool {}", path.display()), source })?;
        for finding in findings {
            warn!(sink = self.sink, spool = %directory.display(), %finding, "the spool is not as it was left");
        }
        Ok(Store::Spool(Box::new(spool), options.when_full))
    }

    /// Notes a batch whose events the sink encodes now.
    pub(crate) fn begin(&mut self, events: &Selection<'_>) {
        if events.level() == AckLevel::Durable && self.spool.is_some() {
            self.unsynced.insert(events.number());
        }
        if !events.is_counted() {
            for event in events.events() {
                if let DataView::Loss(loss) = event.data() {
                    self.next.report(event.origin(), LossCause::of(&loss), loss.events.unwrap_or(0));
                }
            }
        }
    }

    /// Counts events that the sink's encoder has taken.
    pub(crate) fn hold(&mut self, events: u64) {
        self.held += events;
    }

    /// The next complete request has this event.
    pub(crate) fn note_origin(&mut self, origin: &Arc<Origin>) {
        self.next.add(origin, 1);
    }

    /// Takes a complete request. Its events were [held](Outbox::hold); `origin` is theirs if all have the same, unless their
    /// origins were [noted](Outbox::note_origin).
    pub(crate) fn push(&mut self, payload: Bytes, events: u32, origin: Option<Arc<Origin>>) {
        let mut contents = std::mem::take(&mut self.next);
        if let Some(origin) = origin {
            contents.add(&origin, events.into());
        }
        self.requests.push_back((payload, events, contents));
    }

    /// Takes a complete request with these contents. Its events were [held](Outbox::hold).
    pub(crate) fn push_with(&mut self, payload: Bytes, events: u32, contents: Contents) {
        let reports = std::mem::take(&mut self.next);
        self.requests.push_back((payload, events, contents.with_reports_of(reports)));
    }

    /// Appends the complete requests to the store; without a spool, waits for the responses.
    ///
    /// # Errors
    /// The requests cannot be kept, or the destination does not take them now. They stay here, or in the store.
    pub(crate) async fn flush(&mut self) -> Result<(), SinkError> {
        let Some(forwarder) = &self.forwarder else { return Ok(()) };
        while let Some((payload, events, contents)) = self.requests.front() {
            if let Err(source) = forwarder.append(payload.clone(), *events, contents) {
                return Err(self.fault("keep a request for", source));
            }
            self.held -= u64::from(*events);
            self.requests.pop_front();
        }
        if self.spool.is_some() {
            return if self.must_sync { self.sync() } else { Ok(()) };
        }
        while !forwarder.settled_within(REPORT_AFTER).await {
            if let Some(fault) = forwarder.fault() {
                return Err(self.fault("send to", io::Error::other(fault)));
            }
        }
        Ok(())
    }

    /// Forces the appended requests to the disk, if they are kept there.
    ///
    /// # Errors
    /// The system's. The requests since the last sync are not confirmed.
    pub(crate) fn sync(&mut self) -> Result<(), SinkError> {
        if self.forwarder.is_none() {
            // Nothing is appended before the start.
            return Ok(());
        }
        self.sync_by(Forwarder::sync)?;
        self.unsynced.clear();
        Ok(())
    }

    fn sync_by(&mut self, sync: impl FnOnce(&Forwarder) -> io::Result<()>) -> Result<(), SinkError> {
        let synced = self.forwarder.as_ref().map_or(Ok(()), sync);
        self.must_sync = synced.is_err();
        synced.map_err(|source| self.fault("keep a request for", source))
    }

    /// Logs refusals, and syncs. If no batch asks to be durable, requests are synced only when the destination has not settled them
    /// for some time.
    ///
    /// # Errors
    /// As for [`Outbox::sync`].
    pub(crate) fn tick(&mut self) -> Result<(), SinkError> {
        self.log_refusals();
        if self.unsynced.is_empty() {
            return self.sync_by(|forwarder| forwarder.sync_waiting(UNSYNCED_TIME));
        }
        self.sync()
    }

    /// Stops to send. What a spool has is sent after the next start.
    ///
    /// # Errors
    /// The system's.
    pub(crate) async fn close(&mut self) -> Result<(), SinkError> {
        let Some(forwarder) = &self.forwarder else { return Ok(()) };
        forwarder.settled_within(CLOSE_TIMEOUT).await;
        forwarder.close().map_err(|source| self.fault("save what was sent to", source))?;
        self.log_refusals();
        Ok(())
    }

    /// Stops to send immediately. What a spool has is sent after the next start, everything else has failed.
    pub(crate) fn give_up(&mut self) {
        if let Some(forwarder) = &self.forwarder {
            let _ = forwarder.close();
            if self.spool.is_none() {
                self.given_up = forwarder.progress().waiting;
            }
        }
        self.given_up += std::mem::take(&mut self.held);
    }

    /// What is not written, or not durable.
    pub(crate) fn unwritten(&self) -> Unwritten {
        let mut unwritten = Unwritten { unsynced: self.unsynced.clone(), ..Unwritten::default() };
        for missed in self.forwarder.iter().flat_map(Forwarder::take_missed) {
            let of_cause = match missed.cause {
                LossCause::QueueFull => &mut unwritten.shed,
                LossCause::Removed => &mut unwritten.removed,
                LossCause::Failed => &mut unwritten.lost,
            };
            of_cause.push((missed.origin.unwrap_or_else(|| self.own.clone()), missed.events));
        }
        unwritten
    }

    /// What it does, for others.
    pub(crate) fn remote(&self) -> Option<Arc<RemoteStatus>> {
        Some(self.status.clone())
    }

    /// The events until now.
    pub(crate) fn progress(&self) -> Progress {
        let sent = self.forwarder.as_ref().map(Forwarder::progress).unwrap_or_default();
        let is_lost = self.given_up > 0 && self.spool.is_none();
        Progress {
            waiting: self.held + if is_lost { 0 } else { sent.waiting },
            failed: sent.failed + self.given_up,
            ..sent
        }
    }

    /// A fault of the sink that another attempt can end.
    pub(crate) fn fault(&self, action: &str, source: io::Error) -> SinkError {
        SinkError::Retry(SinkFault { action: format!("{action} {}", self.endpoint), source })
    }

    fn log_refusals(&self) {
        for refusal in self.forwarder.iter().flat_map(Forwarder::take_refusals) {
            if let Some(suppressed) = self.refused.permit() {
                warn!(sink = self.sink, endpoint = self.endpoint, error = refusal, suppressed, "events are lost");
            }
        }
    }
}
