//! The options of a NATS sink.

use std::time::Duration;

use super::subject;
use tributary_event::MOST_BATCH_BYTES;
use tributary_nats::{ServerAddress, Servers, check_name};
use tributary_options::{Bounds, LONGEST, Section};
use tributary_sink_forward::{GiveUp, MAX_RETRY_DELAY, SpoolOptions};

/// Compressors' tables and the client's buffers.
const CLIENT_BYTES: u64 = 2 * 1024 * 1024;
/// When open messages of several subjects together have this many times `batch_bytes`, all are completed.
pub(super) const MAX_OPEN_BATCHES: usize = 4;

/// The options of a [`super::Nats`].
#[derive(Clone, PartialEq, Debug)]
pub struct Options {
    /// The servers, and how they are reached.
    pub servers: Servers,
    /// The stream. Default `TRIBUTARY`.
    pub stream: String,
    /// The subject of a message, with `{protocol}`, `{kind}`, `{listener}`. Default `tributary.{protocol}.{kind}`.
    pub subject: String,
    /// The stream is created if it does not exist. Default no.
    pub create: bool,
    /// The replicas of a stream that is created, and the fewest of one that exists. Default 1.
    pub replicas: usize,
    /// How long JetStream recognizes repeated messages: of a stream that is created, and the shortest of one that exists.
    /// Default 2 minutes.
    pub duplicate_window: Duration,
    /// How long a stream that is created keeps messages. 0: for ever. Default 0.
    pub max_age: Duration,
    /// How many bytes a stream that is created keeps. When it is full, it takes no more messages. 0: no limit. Default 0.
    pub max_bytes: u64,
    /// A message is complete when its lines have this many bytes before compression. Default 1 MiB.
    pub batch_bytes: usize,
    /// The longest body of a message, after compression. Default 512 KiB.
    pub max_message_bytes: usize,
    /// The time from the first event of a message until it is complete, at most. Default 100 milliseconds.
    pub max_message_delay: Duration,
    /// Uploads of Endless machines and traces of ZICO agents are in messages of their own, with ids that repeat when the same one is
    /// sent again, to this daemon or another. Default yes.
    pub content_ids: bool,
    /// Messages with more bytes are compressed, with Zstandard. Default 4 KiB.
    pub compress_above: usize,
    /// Messages that wait for JetStream's acknowledgement at the same time. Default 16.
    pub max_in_flight: usize,
    /// The pause after the first failed attempt. It doubles with each failure. Default 100 milliseconds.
    pub retry_min: Duration,
    /// The longest such pause. Default 5 seconds.
    pub retry_max: Duration,
    /// The longest pause while something is wrong that an operator must correct. Default 5 minutes.
    pub max_retry_delay: Duration,
    /// When a request is given up that the destination does not take, although it takes others.
    pub give_up: GiveUp,
    /// The queue on disk. Default none.
    pub spool: Option<SpoolOptions>,
}

impl Options {
    /// The default options of a sink that sends to these servers.
    pub fn to(servers: Vec<ServerAddress>) -> Options {
        Options {
            servers: Servers::new(servers),
            stream: "TRIBUTARY".to_owned(),
            subject: "tributary.{protocol}.{kind}".to_owned(),
            create: false,
            replicas: 1,
            duplicate_window: Duration::from_secs(120),
            max_age: Duration::ZERO,
            max_bytes: 0,
            batch_bytes: 1 << 20,
            max_message_bytes: 512 << 10,
            max_message_delay: Duration::from_millis(100),
            content_ids: true,
            compress_above: 4 << 10,
            max_in_flight: 16,
            retry_min: Duration::from_millis(100),
            retry_max: Duration::from_secs(5),
            max_retry_delay: MAX_RETRY_DELAY,
            give_up: GiveUp::default(),
            spool: None,
        }
    }

    /// Reads the options of `type = "nats"`; errors are reported to the section.
    pub fn read(section: &mut Section<'_>) -> Options {
        let default = Options::to(Vec::new());
        let positive = Duration::from_millis(1)..=LONGEST;
        let options = Options {
            servers: Servers::read(section),
            stream: section.text("stream", &default.stream),
            subject: section.text("subject", &default.subject),
            create: section.bool("create", default.create),
            replicas: section.count("replicas", default.replicas, 1..=5),
            duplicate_window: section.duration("duplicate_window", default.duplicate_window, positive.clone()),
            max_age: section.duration("max_age", default.max_age, Duration::ZERO..=LONGEST),
            max_bytes: section.size("max_bytes", default.max_bytes, 0..=1 << 50),
            batch_bytes: section.size("batch_bytes", default.batch_bytes, 1024..=16 << 20),
            max_message_bytes: section.size("max_message_bytes", default.max_message_bytes, 1024..=8 << 20),
            max_message_delay: section.duration("max_message_delay", default.max_message_delay, positive.clone()),
            content_ids: section.bool("content_ids", default.content_ids),
            compress_above: section.size("compress_above", default.compress_above, 0..=16 << 20),
            max_in_flight: section.count("max_in_flight", default.max_in_flight, 1..=256),
            retry_min: section.duration("retry_min", default.retry_min, positive.clone()),
            retry_max: section.duration("retry_max", default.retry_max, positive.clone()),
            max_retry_delay: section.duration("max_retry_delay", default.max_retry_delay, positive),
            give_up: GiveUp::read(section),
            spool: section.optional_section("spool", SpoolOptions::read),
        };
        options.check(section);
        options
    }

    fn check(&self, section: &mut Section<'_>) {
        section.check_retry(self.retry_min, self.retry_max);
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
