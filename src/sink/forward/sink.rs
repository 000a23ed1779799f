//! The one sink that sends requests: its protocol is an encoder, and the destination that the encoder connects to.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::{Contents, Destination, Outbox, Pace, SpoolOptions};
use tributary_event::{EventView, Origin};
use tributary_memory::log_throttle::LogThrottle;
use tributary_sink::{ActionError, RemoteState, RemoteStatus, Selection, Sink, SinkError, SinkProgress, Unwritten};

/// Makes requests of events, for one protocol.
pub trait RequestEncoder: fmt::Debug + Send + 'static {
    /// The options of the sink.
    type Options;
    /// Sends the requests.
    type Destination: Destination;

    /// The encoder of the sink with this name.
    fn new(sink: &str, options: Self::Options) -> Self;

    /// The destination in words, how its requests are sent, and where they are kept. Without a spool they are kept in memory.
    fn delivery(&self) -> (String, Pace, Option<SpoolOptions>);

    /// The destination. Called before the first request, until it succeeds.
    ///
    /// # Errors
    /// It cannot be used: its TLS files cannot be read.
    fn destination(&self) -> Result<Self::Destination, ActionError>;

    /// How long a request stays open for more events if no peer waits for it. Zero: it ends with each flush.
    fn max_delay(&self) -> Duration {
        Duration::ZERO
    }

    /// A batch begins.
    fn begin_batch(&mut self) {}

    /// Takes an event of a batch. Returns whether it is small enough for a request.
    ///
    /// # Errors
    /// A complete request cannot be compressed. The event is taken.
    fn push(&mut self, event: EventView<'_>, batch: &Selection<'_>) -> io::Result<bool>;

    /// All events of a batch are taken.
    fn end_batch(&mut self) {}

    /// Whether a request is open for more events.
    fn has_open(&self) -> bool;

    /// Ends the open requests.
    fn end_requests(&mut self);

    /// Whether a request is open that repeats parts of events, and for which no peer waits.
    fn has_open_copy(&self) -> bool {
        false
    }

    /// Ends the open requests with copies.
    fn end_copies(&mut self) {}

    /// The complete requests.
    ///
    /// # Errors
    /// One cannot be compressed.
    fn take_requests(&mut self) -> io::Result<Vec<CompleteRequest>>;

    /// Logs that an event is too large for a request, and counts as failed.
    fn log_too_large(&self, _sink: &str, _event: &str, _suppressed: Option<u64>) {}

    /// The operator wants what the destination has refused to be tried again.
    fn reopen(&mut self) {}

    /// Adds what only this protocol has to the status.
    fn update_status(&self, _status: &mut RemoteState) {}
}

/// A request that is complete, as it is sent.
#[derive(Debug)]
pub struct CompleteRequest {
    /// Its body.
    pub payload: Bytes,
    /// The number of its events that are counted.
    pub events: u32,
    /// Whose events it has.
    pub contents: Contents,
}

/// A sink that sends requests.
#[derive(Debug)]
pub struct RemoteSink<E> {
    name: String,
    encoder: E,
    outbox: Outbox,
    /// Since when requests are open, and since when requests with copies.
    since: Option<Instant>,
    copies_since: Option<Instant>,
    /// A peer waits for events in open requests.
    is_awaited: bool,
    /// No batch follows.
    is_finishing: bool,
    /// Events that are too large for a request, and those that are not reported yet.
    too_large: u64,
    lost: Vec<(Arc<Origin>, u64)>,
    /// Reports these events in the log.
    too_large_log: LogThrottle,
}

impl<E: RequestEncoder> RemoteSink<E> {
    /// A sink with these options. It opens its spool and connects when it runs.
    pub fn new(name: &str, options: E::Options) -> RemoteSink<E> {
        let encoder = E::new(name, options);
        let (endpoint, pace, spool) = encoder.delivery();
        RemoteSink {
            name: name.to_owned(),
            outbox: Outbox::new(name, endpoint, spool, pace),
            encoder,
            since: None,
            copies_since: None,
            is_awaited: false,
            is_finishing: false,
            too_large: 0,
            lost: Vec::new(),
            too_large_log: LogThrottle::new(),
        }
    }

    /// Starts to send, on the first call that succeeds.
    fn start(&mut self) -> Result<(), SinkError> {
        let RemoteSink { encoder, outbox, .. } = self;
        outbox.start(|| encoder.destination())
    }

    /// Hands complete requests over to be sent.
    fn push_requests(&mut self) -> Result<(), SinkError> {
        let requests = self.encoder.take_requests().map_err(|source| self.cannot_compress(source))?;
        for CompleteRequest { payload, events, contents } in requests {
            self.outbox.push(payload, events, contents);
        }
        Ok(())
    }

    fn cannot_compress(&self, source: io::Error) -> SinkError {
        self.outbox.fault("compress a request for", source)
    }

    /// An event is larger than a request may be.
    fn lose(&mut self, event: EventView<'_>, is_counted: bool) {
        if is_counted {
            self.too_large += 1;
            self.lost.push((event.origin().clone(), 1));
        }
        if let Some(suppressed) = self.too_large_log.permit() {
            self.encoder.log_too_large(&self.name, event.name().text(), suppressed);
        }
    }

    fn is_due(&self, since: Option<Instant>) -> bool {
        since.is_some_and(|since| since.elapsed() >= self.encoder.max_delay())
    }
}

impl<E: RequestEncoder> Sink for RemoteSink<E> {
    async fn write(&mut self, events: Selection<'_>) -> Result<(), SinkError> {
        let is_counted = events.is_counted();
        self.outbox.begin(&events);
        self.encoder.begin_batch();
        let mut result = Ok(());
        for event in events.events() {
            match self.encoder.push(event, &events) {
                Ok(false) => {
                    self.lose(event, is_counted);
                    continue;
                }
                Ok(true) => {}
                Err(source) => result = Err(self.cannot_compress(source)),
            }
            self.outbox.hold(is_counted.into());
        }
        self.encoder.end_batch();
        self.is_awaited |= events.is_awaited() && events.count() > 0;
        let or_now = |since: Option<Instant>| since.unwrap_or_else(Instant::now);
        self.since = self.encoder.has_open().then(|| or_now(self.since));
        self.copies_since = self.encoder.has_open_copy().then(|| or_now(self.copies_since));
        result.and(self.push_requests())
    }

    async fn flush(&mut self) -> Result<(), SinkError> {
        if self.is_awaited || self.is_finishing || self.is_due(self.since) {
            self.encoder.end_requests();
            (self.since, self.is_awaited) = (None, false);
        }
        if self.is_finishing || self.is_due(self.copies_since) {
            self.encoder.end_copies();
            self.copies_since = None;
        }
        self.push_requests()?;
        self.start()?;
        self.outbox.flush().await
    }

    fn flush_due(&self) -> Option<Instant> {
        let first = [self.since, self.copies_since].into_iter().flatten().min();
        let delay = self.encoder.max_delay();
        first.filter(|_| !delay.is_zero()).map(|first| first + delay)
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
        self.encoder.reopen();
    }

    fn is_queue_open(&self) -> bool {
        self.outbox.is_started()
    }

    fn remote(&self) -> Option<Arc<RemoteStatus>> {
        let status = self.outbox.remote();
        status.update(|state| self.encoder.update_status(state));
        Some(status)
    }

    fn progress(&self) -> Option<SinkProgress> {
        let sent = self.outbox.progress();
        Some(SinkProgress { failed: sent.failed + self.too_large, ..sent })
    }
}
