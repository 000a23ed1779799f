//! The sink that sends events as JSON lines in HTTP requests.
//!
//! With a spool, events are written when their request is in its file, and durable when that is synced. Without one they are
//! written when the server has answered with a 2xx, and never durable.
#![forbid(unsafe_code)]

mod destination;
mod options;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use destination::Server;
pub use destination::lines;
pub use options::Options;
use tributary_sink::encode::json::JsonEncoder;
use tributary_sink::{RemoteStatus, Selection, Sink, SinkError, SinkFault, SinkProgress, Unwritten};
pub use tributary_sink_forward::client::ClientTls;
use tributary_sink_forward::{self as forward, Outbox, Pace, client};
pub use tributary_sink_forward::{Compression, GiveUp, Proxy, SpoolOptions, WhenFull};

/// A request is at most this many bytes longer than `batch_bytes`, if its last line is no longer.
const LONG_LINE: usize = 16 * 1024;

/// Sends events over HTTP.
#[derive(Debug)]
pub struct Http {
    options: Options,
    encoder: JsonEncoder,
    /// Lines of the request that is being made, and how many of them are counted events.
    lines: Vec<u8>,
    events: u32,
    outbox: Outbox,
}

impl Http {
    /// A sink with these options. It opens its spool and connects when it runs.
    pub fn new(name: &str, options: Options) -> Http {
        let pace = Pace {
            max_in_flight: options.max_in_flight,
            request_timeout: options.request_timeout,
            retry: options.retry_min..=options.retry_max,
            max_retry_delay: options.max_retry_delay,
            give_up: options.give_up,
        };
        Http {
            encoder: JsonEncoder::default(),
            lines: Vec::new(),
            events: 0,
            outbox: Outbox::new(name, options.endpoint.to_string(), options.spool.clone(), pace),
            options,
        }
    }

    /// Starts to send, on the first call that succeeds.
    fn start(&mut self) -> Result<(), SinkError> {
        let Http { options, outbox, .. } = self;
        let fault = |source: io::Error| SinkFault { action: "use the TLS files".to_owned(), source };
        outbox.start(|| Server::new(options).map_err(fault))
    }

    /// The lines become a request.
    fn end_request(&mut self) -> Result<(), SinkError> {
        if self.lines.is_empty() {
            return Ok(());
        }
        let body = match self.options.compression {
            // The buffer is full: it is sent itself.
            Compression::None if self.lines.len() >= self.options.batch_bytes => {
                std::mem::replace(&mut self.lines, Vec::with_capacity(self.options.batch_bytes + LONG_LINE))
            }
            compression => {
                let body = compression.compress_to(&self.lines, Vec::new());
                let body = body.map_err(|source| self.outbox.fault("compress a request for", source))?;
                self.lines.clear();
                body
            }
        };
        self.outbox.push(body.into(), self.events, None);
        self.events = 0;
        Ok(())
    }
}

/// Connects to the server of these options, with the handshake of TLS. Sends nothing: every request is a request of events.
///
/// # Errors
/// There is no connection in this time.
pub fn probe(options: &Options, connect_time: Duration, time: Duration) -> io::Result<()> {
    let connect =
        client::connect(&options.endpoint, client::HttpVersion::Http1, connect_time, &options.tls, &options.proxy);
    forward::probe::run(time, connect)
}

impl Sink for Http {
    async fn write(&mut self, events: Selection<'_>) -> Result<(), SinkError> {
        self.outbox.begin(&events);
        for event in events.events() {
            self.encoder.encode(event, &mut self.lines);
            self.events += u32::from(events.is_counted());
            self.outbox.hold(events.is_counted().into());
            if events.is_counted() {
                self.outbox.note_origin(event.origin());
            }
            if self.lines.len() >= self.options.batch_bytes {
                self.end_request()?;
            }
        }
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), SinkError> {
        self.end_request()?;
        self.start()?;
        self.outbox.flush().await
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
        self.outbox.unwritten()
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
        Some(self.outbox.progress())
    }
}
