//! The sink that sends events as JSON lines in HTTP requests.
//!
//! With a spool, events are written when their request is in its file, and durable when that is synced. Without one they are
//! written when the server has answered with a 2xx, and never durable.
#![forbid(unsafe_code)]

mod destination;
mod options;

use std::io;
use std::time::Duration;

pub use destination::Server;
pub use destination::lines;
pub use options::Options;
use tributary_event::EventView;
use tributary_sink::encode::json::JsonEncoder;
use tributary_sink::{ActionError, Selection};
pub use tributary_sink_forward::client::ClientTls;
use tributary_sink_forward::{self as forward, CompleteRequest, Contents, Pace, RemoteSink, RequestEncoder, client};
pub use tributary_sink_forward::{Compression, GiveUp, Proxy, RetryOptions, SpoolOptions, WhenFull};

/// A request is at most this many bytes longer than `batch_bytes`, if its last line is no longer.
const LONG_LINE: usize = 16 * 1024;

/// Sends events over HTTP.
pub type Http = RemoteSink<HttpEncoder>;

/// Makes requests of JSON lines.
#[derive(Debug)]
pub struct HttpEncoder {
    options: Options,
    encoder: JsonEncoder,
    /// Lines of the request that is being made, how many of them are counted events, and whose.
    lines: Vec<u8>,
    events: u32,
    contents: Contents,
    /// The request that is being made is complete.
    is_ended: bool,
    complete: Vec<CompleteRequest>,
}

impl HttpEncoder {
    /// The lines become a request.
    fn complete(&mut self) -> io::Result<()> {
        let payload = match self.options.compression {
            // The buffer is full: it is sent itself.
            Compression::None if self.lines.len() >= self.options.batch_bytes => {
                std::mem::replace(&mut self.lines, Vec::with_capacity(self.options.batch_bytes + LONG_LINE))
            }
            compression => {
                let body = compression.compress_to(&self.lines, Vec::new())?;
                self.lines.clear();
                body
            }
        };
        let (events, contents) = (std::mem::take(&mut self.events), std::mem::take(&mut self.contents));
        self.complete.push(CompleteRequest { payload: payload.into(), events, contents });
        Ok(())
    }
}

impl RequestEncoder for HttpEncoder {
    type Options = Options;
    type Destination = Server;

    fn new(_sink: &str, options: Options) -> HttpEncoder {
        HttpEncoder {
            options,
            encoder: JsonEncoder::default(),
            lines: Vec::new(),
            events: 0,
            contents: Contents::default(),
            is_ended: false,
            complete: Vec::new(),
        }
    }

    fn delivery(&self) -> (String, Pace, Option<SpoolOptions>) {
        let options = &self.options;
        let pace = Pace {
            max_in_flight: options.max_in_flight,
            request_timeout: options.request_timeout,
            retry: options.retry,
            give_up: options.give_up,
        };
        (options.endpoint.to_string(), pace, options.spool.clone())
    }

    fn destination(&self) -> Result<Server, ActionError> {
        Server::new(&self.options).map_err(|source| ActionError { action: "use the TLS files".to_owned(), source })
    }

    fn push(&mut self, event: EventView<'_>, batch: &Selection<'_>) -> io::Result<bool> {
        self.encoder.encode(event, &mut self.lines);
        if batch.is_counted() {
            self.events += 1;
            self.contents.add(event.origin(), 1);
        }
        if self.lines.len() >= self.options.batch_bytes {
            self.complete()?;
        }
        Ok(true)
    }

    fn has_open(&self) -> bool {
        !self.lines.is_empty()
    }

    fn end_requests(&mut self) {
        self.is_ended = self.has_open();
    }

    fn take_requests(&mut self) -> io::Result<Vec<CompleteRequest>> {
        if self.is_ended && self.has_open() {
            self.complete()?;
        }
        self.is_ended = false;
        Ok(std::mem::take(&mut self.complete))
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
