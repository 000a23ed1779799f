//! The sink.

use std::io;
use std::time::Duration;

use tracing::warn;

use super::Options;
use super::destination::JetStream;
use super::open::OpenMessages;
use tributary_event::EventView;
use tributary_sink::encode::json::JsonEncoder;
use tributary_sink::{ActionError, Selection};
use tributary_sink_forward::{CompleteRequest, Pace, RemoteSink, RequestEncoder, SpoolOptions};

/// Publishes events to JetStream.
pub type Nats = RemoteSink<NatsEncoder>;

/// Makes messages of JSON lines.
#[derive(Debug)]
pub struct NatsEncoder {
    options: Options,
    sink: String,
    encoder: JsonEncoder,
    line: Vec<u8>,
    open: OpenMessages,
}

impl RequestEncoder for NatsEncoder {
    type Options = Options;
    type Destination = JetStream;

    fn new(sink: &str, options: Options) -> NatsEncoder {
        let open = OpenMessages::new(sink, &options);
        NatsEncoder { options, sink: sink.to_owned(), encoder: JsonEncoder::default(), line: Vec::new(), open }
    }

    fn delivery(&self) -> (String, Pace, Option<SpoolOptions>) {
        let options = &self.options;
        let pace = Pace {
            max_in_flight: options.max_in_flight,
            // Connecting, two requests about the stream, and the message itself.
            request_timeout: options.servers.connect_timeout + 3 * options.servers.request_timeout,
            retry: options.retry,
            give_up: options.give_up,
        };
        let endpoint = format!("the stream {} at {}", options.stream, options.servers.shown());
        (endpoint, pace, options.spool.clone())
    }

    fn destination(&self) -> Result<JetStream, ActionError> {
        Ok(JetStream::new(&self.sink, &self.options))
    }

    fn max_delay(&self) -> Duration {
        self.options.max_message_delay
    }

    fn push(&mut self, event: EventView<'_>, batch: &Selection<'_>) -> io::Result<bool> {
        let content = batch.content().filter(|_| self.options.content_ids);
        self.line.clear();
        self.encoder.encode(event, &mut self.line);
        Ok(self.open.push(&self.line, (event.origin(), event.kind()), content, batch.is_counted()))
    }

    fn end_batch(&mut self) {
        self.open.complete_content();
    }

    fn has_open(&self) -> bool {
        !self.open.is_empty()
    }

    fn end_requests(&mut self) {
        self.open.complete_all();
    }

    fn take_requests(&mut self) -> io::Result<Vec<CompleteRequest>> {
        Ok(self.open.take_complete())
    }

    fn log_too_large(&self, sink: &str, event: &str, suppressed: Option<u64>) {
        let max_message_bytes = self.options.max_message_bytes;
        warn!(
            sink,
            event, max_message_bytes, suppressed, "an event is larger than a message may be; it counts as failed"
        );
    }
}
