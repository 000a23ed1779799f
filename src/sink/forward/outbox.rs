//! The part of a sink that begins at a complete request: it opens the spool, starts to send, and answers what every sink is
//! asked.

use std::collections::VecDeque;
use std::future::pending;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tracing::warn;

use super::{Contents, Destination, Forwarder, Pace, RequestStore, SpoolOptions, WhenFull};
use tributary_event::{DataView, Origin};
use tributary_memory::log_throttle::LogThrottle;
use tributary_sink::{AckLevel, ActionError, LossCause, RemoteStatus, Selection, SinkError, SinkProgress, Unwritten};
use tributary_spool::Spool;

/// Without a spool: how long a flush waits for responses before it reports that the sink cannot write now.
const REPORT_AFTER: Duration = Duration::from_secs(1);
/// With a spool: how long a stopping sink waits for responses.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// With a spool: a request that is neither synced nor settled for this time is synced with the next tick.
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
    /// With a spool: the numbers of the requests that were appended since the last complete flush.
    appended: Range<u64>,
    /// Batches whose peers wait, and whose events are in requests that are not appended yet.
    begun: Vec<(u64, AckLevel)>,
    /// With a spool: batches whose requests are not known to be safe enough for their peers.
    awaited: Vec<AwaitedBatch>,
    /// The store has not taken the first of the requests.
    is_stopped: bool,
    /// Without a spool: batches of the last flush that have a stuck request.
    unsettled: Vec<u64>,
    /// Events that are in the sink's encoder and in `requests`.
    held: u64,
    /// The grace period is over, and this many events were not sent.
    given_up: u64,
    /// Reports what the destination refuses.
    refused: LogThrottle,
    /// Reports that the disk takes nothing.
    short: LogThrottle,
}

/// A batch whose peer waits, with the numbers of the requests that its events are among.
#[derive(Debug)]
struct AwaitedBatch {
    number: u64,
    level: AckLevel,
    requests: Range<u64>,
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
            appended: 0..0,
            begun: Vec::new(),
            awaited: Vec::new(),
            is_stopped: false,
            unsettled: Vec::new(),
            held: 0,
            given_up: 0,
            refused: LogThrottle::new(),
            short: LogThrottle::new(),
        }
    }

    /// Opens the spool and starts to send, on the first call that succeeds.
    ///
    /// # Errors
    /// That of `connect`, or the spool cannot be opened.
    pub(crate) fn start<D: Destination>(
        &mut self,
        connect: impl FnOnce() -> Result<D, ActionError>,
    ) -> Result<(), SinkError> {
        if self.forwarder.is_some() {
            return Ok(());
        }
        let opened = connect().and_then(|destination| Ok((destination, self.open_store()?)));
        let fault = opened.as_ref().err().map(ToString::to_string);
        self.status.update(|status| status.cannot_start = fault);
        let (destination, store) = opened.map_err(SinkError::Retry)?;
        let first = store.last_number() + 1;
        self.appended = first..first;
        self.forwarder = Some(Forwarder::start(store, self.pace.clone(), destination, self.status.clone()));
        Ok(())
    }

    /// Whether it has started.
    pub(crate) fn is_started(&self) -> bool {
        self.forwarder.is_some()
    }

    fn open_store(&self) -> Result<RequestStore, ActionError> {
        let Some(options) = &self.spool else { return Ok(RequestStore::memory()) };
        let directory = options.directory(&self.sink);
        let (spool, warnings) = Spool::open(&directory, options.limits(&self.sink))
            .map_err(|(path, source)| ActionError { action: format!("open the spool {}", path.display()), source })?;
        if let Some(why) = options.never_keeps(&self.sink) {
            warn!(sink = self.sink, spool = %directory.display(), why, "the spool cannot work");
        }
        for warning in warnings {
            warn!(sink = self.sink, spool = %directory.display(), %warning, "the spool is not as it was left");
        }
        Ok(RequestStore::Spool(Box::new(spool), options.when_full))
    }

    /// Notes a batch whose events the sink encodes now.
    pub(crate) fn begin(&mut self, events: &Selection<'_>) {
        if events.is_awaited() && events.is_counted() {
            self.begun.push((events.number(), events.level()));
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

    /// Takes a complete request with these contents. Its events were [held](Outbox::hold).
    pub(crate) fn push(&mut self, payload: Bytes, events: u32, contents: Contents) {
        let reports = std::mem::take(&mut self.next);
        self.requests.push_back((payload, events, contents.with_reports_of(reports)));
    }

    /// Appends the complete requests to the store, and writes those to the disk for which a peer waits; without a spool, waits for
    /// the responses.
    ///
    /// # Errors
    /// The requests cannot be kept, or the destination does not take them now. They stay here, or in the store.
    pub(crate) async fn flush(&mut self) -> Result<(), SinkError> {
        let Some(forwarder) = &self.forwarder else { return Ok(()) };
        while let Some((payload, events, contents)) = self.requests.front() {
            let appended = forwarder.append(payload.clone(), *events, contents);
            self.is_stopped = appended.is_err();
            match appended {
                Ok(Some(number)) => self.appended.end = number + 1,
                Ok(None) => {}
                Err(source) => return Err(self.fault("keep a request for", source)),
            }
            self.held -= u64::from(*events);
            self.requests.pop_front();
        }
        if self.spool.is_some() {
            let requests = self.appended.clone();
            self.appended.start = requests.end;
            let begun = self.begun.drain(..);
            self.awaited.extend(begun.map(|(number, level)| AwaitedBatch {
                number,
                level,
                requests: requests.clone(),
            }));
            if !self.awaited.is_empty() {
                // What the disk does not take is written with the next flush, or the destination takes it.
                let _ = forwarder.write_out();
            }
            return Ok(());
        }
        while !forwarder.settled_but_stuck_within(REPORT_AFTER).await {
            if let Some(fault) = forwarder.fault() {
                return Err(self.fault("send to", io::Error::other(fault)));
            }
        }
        let begun = std::mem::take(&mut self.begun);
        if !forwarder.is_settled() {
            // Peers are not answered that these events are written. They are sent until the destination takes them, or
            // until they are given up.
            self.unsettled.extend(begun.into_iter().map(|(number, _)| number));
        }
        Ok(())
    }

    /// Waits until a flush can achieve more than the last one: the destination has taken a request, or has not, and a request
    /// or a peer waits for that.
    pub(crate) async fn woken(&mut self) {
        match &self.forwarder {
            Some(forwarder) if self.is_stopped || !self.awaited.is_empty() => forwarder.woken().await,
            _ => pending().await,
        }
    }

    /// Forces the appended requests to the disk, if they are kept there. What the disk does not take now stays in memory, and
    /// its batches stay unsynced.
    pub(crate) fn sync(&mut self) {
        if let Some(forwarder) = &self.forwarder {
            self.log_shortage(forwarder.sync());
        }
    }

    /// Logs refusals, and syncs what the destination has not settled for some time.
    pub(crate) fn tick(&mut self) {
        self.log_refusals();
        if let Some(forwarder) = &self.forwarder {
            self.log_shortage(forwarder.sync_waiting(UNSYNCED_TIME));
        }
    }

    /// Stops to send. What a spool has is sent after the next start.
    ///
    /// # Errors
    /// The system's.
    pub(crate) async fn close(&mut self) -> Result<(), SinkError> {
        let Some(forwarder) = &self.forwarder else { return Ok(()) };
        forwarder.settled_within(CLOSE_TIMEOUT).await;
        // What the disk does not take is sent, while the destination takes it.
        while forwarder.write_out().is_err()
            && !forwarder.is_failing()
            && !forwarder.settled_within(CLOSE_TIMEOUT).await
        {}
        forwarder.close().map_err(|source| self.fault("save what was sent to", source))?;
        if self.spool.is_none() {
            self.given_up += forwarder.progress().waiting;
        }
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

    /// What is not safe enough for its peers. A request that neither the disk nor the destination takes now fails for them, and
    /// is sent all the same as soon as it can be.
    pub(crate) fn unwritten(&mut self) -> Unwritten {
        let mut unwritten = Unwritten::default();
        let mut awaited = std::mem::take(&mut self.awaited);
        if let Some(forwarder) = &self.forwarder {
            awaited.retain(|batch| !forwarder.has_kept(batch.requests.clone(), batch.level));
            if forwarder.is_short() && forwarder.is_failing() {
                let given_up = awaited.drain(..).map(|batch| (batch.number, 0));
                // A policy that drops events answers as if they were kept.
                if self.spool.as_ref().is_some_and(|spool| spool.when_full == WhenFull::Block) {
                    unwritten.failed.extend(given_up);
                }
            }
        }
        // Before the start nothing is appended.
        let begun = self.begun.iter().filter(|_| self.spool.is_some()).map(|(number, _)| *number);
        unwritten.unsynced = begun.chain(awaited.iter().map(|batch| batch.number)).collect();
        self.awaited = awaited;
        unwritten.failed.extend(self.unsettled.drain(..).map(|number| (number, 0)));
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
    pub(crate) fn remote(&self) -> Arc<RemoteStatus> {
        self.status.clone()
    }

    /// The events until now.
    pub(crate) fn progress(&self) -> SinkProgress {
        let sent = self.forwarder.as_ref().map(Forwarder::progress).unwrap_or_default();
        let is_lost = self.given_up > 0 && self.spool.is_none();
        SinkProgress {
            waiting: self.held + if is_lost { 0 } else { sent.waiting },
            failed: sent.failed + self.given_up,
            ..sent
        }
    }

    /// A fault of the sink that another attempt can end.
    pub(crate) fn fault(&self, action: &str, source: io::Error) -> SinkError {
        SinkError::Retry(ActionError { action: format!("{action} {}", self.endpoint), source })
    }

    /// Logs why the disk does not take requests. Nothing stops for that: they are in memory.
    fn log_shortage(&self, kept: io::Result<()>) {
        if let Err(error) = kept
            && let Some(suppressed) = self.short.permit()
        {
            let (sink, events) = (&self.sink, self.status.state().events);
            warn!(
                sink, waiting = events, %error, suppressed,
                "the spool takes no requests; they wait in memory while the destination takes them"
            );
        }
    }

    fn log_refusals(&self) {
        for refusal in self.forwarder.iter().flat_map(Forwarder::take_refusals) {
            if let Some(suppressed) = self.refused.permit() {
                warn!(sink = self.sink, endpoint = self.endpoint, error = refusal, suppressed, "events are lost");
            }
        }
    }
}
