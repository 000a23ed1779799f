//! The options of a NATS sink.

use std::time::Duration;

use super::subject;
use tributary_event::MOST_BATCH_BYTES;
use tributary_nats::{ServerAddress, Servers, check_name};
use tributary_options::{Bounds, LONGEST, Section, options};
use tributary_sink_forward::{GiveUp, RetryOptions, SpoolOptions};

/// Compressors' tables and the client's buffers.
const CLIENT_BYTES: u64 = 2 * 1024 * 1024;
/// When open messages of several subjects together have this many times `batch_bytes`, all are completed.
pub(super) const MAX_OPEN_BATCHES: usize = 4;

options! {
    /// The options of a [`super::Nats`].
    #[derive(Clone, PartialEq, Debug)]
    pub struct Options checked by check {
        /// The servers, and how they are reached.
        pub servers: Servers = flat(|section| Servers::read(section, true)),
        /// The stream.
        pub stream: String = text("TRIBUTARY"),
        /// The subject of a message, in which {protocol}, {kind} and {listener} stand for those of its events.
        pub subject: String = text("tributary.{protocol}.{kind}"),
        /// Whether the stream is created if it does not exist. A stream that exists is never changed: with fewer replicas or a shorter
        /// duplicate_window than configured here, the sink does not use it, and says so.
        pub create: bool = bool(false),
        /// The replicas of a stream that is created, and the fewest of one that exists.
        pub replicas: usize = count(1, 1..=5),
        /// How long JetStream recognizes repeated messages: of a stream that is created, and the shortest of one that exists.
        pub duplicate_window: Duration = duration(Duration::from_secs(120), Duration::from_millis(1)..=LONGEST),
        /// How long a stream that is created keeps messages. "0s": for ever.
        pub max_age: Duration = duration(Duration::ZERO, Duration::ZERO..=LONGEST),
        /// How many bytes a stream that is created keeps. A stream that is full takes no more, and the events wait here. 0: no limit.
        pub max_bytes: u64 = size(0, 0..=1 << 50),
        /// A message is complete when its lines have this many bytes before compression, after `max_message_delay`, or when an agent
        /// waits for the answer to its request.
        pub batch_bytes: usize = size(1 << 20, 1024..=16 << 20),
        /// The longest body of a message, after compression; a longer one is divided. An event that is longer alone counts as failed.
        pub max_message_bytes: usize = size(512 << 10, 1024..=8 << 20),
        /// The time from the first event of a message until it is complete, at most.
        pub max_message_delay: Duration = duration(Duration::from_millis(100), Duration::from_millis(1)..=LONGEST),
        /// Uploads of Endless machines and traces of ZICO agents are in messages of their own, with ids that repeat when the same one
        /// is sent again to this daemon or another: JetStream drops it. Without, they share messages with others, and each daemon has
        /// ids of its own.
        pub content_ids: bool = bool(true),
        /// Messages of more bytes are compressed with Zstandard.
        pub compress_above: usize = size(4 << 10, 0..=16 << 20),
        /// Messages that wait for their acknowledgement at the same time.
        pub max_in_flight: usize = count(16, 1..=256),
        /// The pauses between attempts.
        pub retry: RetryOptions =
            flat(|section| RetryOptions::read(section, Duration::from_millis(100), Duration::from_secs(5))),
        /// When a request is given up that the destination does not take, although it takes others.
        pub give_up: GiveUp = flat(GiveUp::read),
        /// A queue on disk for the time in which the destination is away. Not set: there is none.
        pub spool: Option<SpoolOptions> = optional_section(SpoolOptions::read),
    }
}

impl Options {
    /// The default options of a sink that sends to these servers.
    pub fn to(servers: Vec<ServerAddress>) -> Options {
        Options { servers: Servers::new(servers), ..Options::default() }
    }

    fn check(&self, section: &mut Section<'_>) {
        check_name(section, "stream", &self.stream);
        if let Err(why) = subject::check(&self.subject) {
            section.error("subject", why, Some("write subject = \"tributary.{protocol}.{kind}\"".into()));
        }
        if self.max_age > Duration::ZERO && self.max_age < self.duplicate_window {
            section.error("duplicate_window", "is more than max_age, which JetStream does not allow", None);
        }
    }

    /// Declares the memory that such a sink takes at most.
    pub fn declare(&self, of: &str, bounds: &mut Bounds) {
        let made = (MAX_OPEN_BATCHES * self.batch_bytes) as u64 + 2 * MOST_BATCH_BYTES;
        let message = self.max_message_bytes as u64;
        // While they are sent, the client has a copy.
        let sent = 2 * message * (2 + self.max_in_flight as u64);
        bounds.add(of, "messages being made and sent", 2 * made + sent + CLIENT_BYTES);
        if self.spool.is_some() {
            bounds.add(of, "messages that are not synced yet", tributary_spool::MAX_UNSYNCED_BYTES + message);
        }
    }
}
