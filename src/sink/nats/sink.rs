//! The sink.

use std::sync::Arc;

use tokio::time::Instant;
use tracing::warn;

use super::Options;
use super::destination::JetStream;
use super::open::{Complete, OpenMessages};
use tributary_event::Origin;
use tributary_memory::log_throttle::LogThrottle;
use tributary_sink::encode::json::JsonEncoder;
use tributary_sink::{RemoteStatus, Selection, Sink, SinkError, SinkProgress, Unwritten};
use tributary_sink_forward::{Outbox, Pace};

/// Publishes events to JetStream.
#[derive(Debug)]
pub struct Nats {
    options: Options,
    name: String,
    encoder: JsonEncoder,
    line: Vec<u8>,
    open: OpenMessages,
    /// Since when there are open messages.
    since: Option<Instant>,
    /// A peer waits for events in open messages.
    is_awaited: bool,
    /// No batch follows.
    is_finishing: bool,
    outbox: Outbox,
    /// Events that are larger than a message may be, and those that are not reported yet.
    too_large: u64,
    lost: Vec<(Arc<Origin>, u64)>,
    /// Reports these events in the log.
    too_large_log: LogThrottle,
}

impl Nats {
    /// A sink with these options. It opens its spool and connects when it runs.
    pub fn new(name: &str, options: Options) -> Nats {
        let pace = Pace {
            max_in_flight: options.max_in_flight,
            // Connecting, two requests about the stream, and the message itself.
            request_timeout: options.servers.connect_timeout + 3 * options.servers.request_timeout,
            retry: options.retry_min..=options.retry_max,
            max_retry_delay: options.max_retry_delay,
            give_up: options.give_up,
        };
        let endpoint = format!("the stream {} at {}", options.stream, options.servers.shown());
        Nats {
            name: name.to_owned(),
            encoder: JsonEncoder::default(),
            line: Vec::new(),
            open: OpenMessages::new(name, &options),
            since: None,
            is_awaited: false,
            is_finishing: false,
            outbox: Outbox::new(name, endpoint, options.spool.clone(), pace),
            too_large: 0,
            lost: Vec::new(),
            too_large_log: LogThrottle::new(),
            options,
        }
    }

    /// Starts to send, on the first call that succeeds.
    fn start(&mut self) -> Result<(), SinkError> {
        let Nats { options, name, outbox, .. } = self;
        outbox.start(|| Ok(JetStream::new(name, options)))
    }

    /// Hands complete messages over to be sent.
    fn push_complete(&mut self) {
        for Complete { payload, events, contents } in self.open.take_complete() {
            self.outbox.push_with(payload, events, contents);
        }
    }

    /// An event is larger than a message may be.
    fn lose(&mut self, origin: &Arc<Origin>, name: &str, is_counted: bool) {
        if is_counted {
            self.too_large += 1;
            self.lost.push((origin.clone(), 1));
        }
        if let Some(suppressed) = self.too_large_log.permit() {
            warn!(
                sink = self.name,
                event = name,
                max_message_bytes = self.options.max_message_bytes,
                suppressed,
                "an event is larger than a message may be; it counts as failed"
            );
        }
    }
}

impl Sink for Nats {
    async fn write(&mut self, events: Selection<'_>) -> Result<(), SinkError> {
        let is_counted = events.is_counted();
        let content = events.content().filter(|_| self.options.content_ids);
        self.outbox.begin(&events);
        for event in events.events() {
            self.line.clear();
            self.encoder.encode(event, &mut self.line);
            if self.open.push(&self.line, (event.origin(), event.kind()), content, is_counted) {
                self.outbox.hold(is_counted.into());
            } else {
                self.lose(event.origin(), event.name().text(), is_counted);
            }
        }
        self.open.complete_content();
        self.is_awaited |= events.is_awaited() && events.count() > 0;
        self.since = (!self.open.is_empty()).then(|| self.since.unwrap_or_else(Instant::now));
        self.push_complete();
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), SinkError> {
        let is_due = self.since.is_some_and(|since| since.elapsed() >= self.options.max_message_delay);
        if self.is_awaited || self.is_finishing || is_due {
            self.open.complete_all();
            (self.since, self.is_awaited) = (None, false);
        }
        self.push_complete();
        self.start()?;
        self.outbox.flush().await
    }

    fn flush_due(&self) -> Option<Instant> {
        self.since.map(|since| since + self.options.max_message_delay)
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

    fn is_queue_open(&self) -> bool {
        self.outbox.is_started()
    }

    fn remote(&self) -> Option<Arc<RemoteStatus>> {
        self.outbox.remote()
    }

    fn progress(&self) -> Option<SinkProgress> {
        let sent = self.outbox.progress();
        Some(SinkProgress { failed: sent.failed + self.too_large, ..sent })
    }
}
