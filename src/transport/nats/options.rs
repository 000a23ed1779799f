//! The options of a listener `nats`.

use std::time::Duration;

use crate::options::QuarantineOptions;
use tributary_nats::subject::is_pattern;
use tributary_nats::{Servers, check_name};
use tributary_options::{Bounds, LONGEST, Section};
use tributary_protocol::nats::MessageLimits;
use tributary_sink::AckLevel;

/// What decompressing a message takes: a window, and the tables of the decompressor.
const DECOMPRESSOR_BYTES: u64 = 2 << 20;

/// The options of a listener that takes messages from a stream.
#[derive(Clone, Debug, PartialEq)]
pub struct NatsOptions {
    /// The servers, and how they are reached.
    pub servers: Servers,
    /// The stream. Default `TRIBUTARY`.
    pub stream: String,
    /// The durable consumer, which is created if it does not exist. Daemons with the same consumer share its messages. Default
    /// `writers`.
    pub consumer: String,
    /// The subjects whose messages are taken, with `*` and `>`. Several need servers of version 2.10. Default none: all subjects
    /// of the stream.
    pub subjects: Vec<String>,
    /// How long JetStream waits for the acknowledgement of a message, or a sign that the daemon works on it, until it delivers
    /// the message again: of a consumer that is created. Default 30 seconds. At least 1 second.
    pub ack_wait: Duration,
    /// A message that was delivered so often without success goes to the quarantine. Default 20. At least 1.
    pub max_deliver: usize,
    /// Messages that are decoded and delivered at the same time. Default 16. 1 to 1,024.
    pub max_in_flight: usize,
    /// Limits of one message.
    pub limits: MessageLimits,
    /// The level that the events of a message must have reached at every sink that takes them, before it is acknowledged.
    /// None, as by default: durable if every sink that takes events of the listener can be durable, otherwise written.
    pub acknowledge: Option<AckLevel>,
    /// Where messages are kept that cannot be read.
    pub quarantine: QuarantineOptions,
    /// The pause after the first failed attempt to connect, or to deliver a message. It doubles with each failure. Default 100
    /// milliseconds.
    pub retry_min: Duration,
    /// The longest such pause. Default 5 seconds.
    pub retry_max: Duration,
}

impl NatsOptions {
    /// The default options with these servers.
    pub fn new(servers: Servers) -> NatsOptions {
        NatsOptions {
            servers,
            stream: "TRIBUTARY".to_owned(),
            consumer: "writers".to_owned(),
            subjects: Vec::new(),
            ack_wait: Duration::from_secs(30),
            max_deliver: 20,
            max_in_flight: 16,
            limits: MessageLimits::default(),
            acknowledge: None,
            quarantine: QuarantineOptions::default(),
            retry_min: Duration::from_millis(100),
            retry_max: Duration::from_secs(5),
        }
    }

    /// Reads the options; errors are reported to the section.
    pub fn read(section: &mut Section<'_>) -> NatsOptions {
        let default = NatsOptions::new(Servers::read(section));
        let positive = Duration::from_millis(1)..=LONGEST;
        let limits = default.limits;
        let options = NatsOptions {
            stream: section.text("stream", &default.stream),
            consumer: section.text("consumer", &default.consumer),
            subjects: section.list_of_text("subjects"),
            ack_wait: section.duration("ack_wait", default.ack_wait, Duration::from_secs(1)..=LONGEST),
            max_deliver: section.count("max_deliver", default.max_deliver, 1..=1_000_000),
            max_in_flight: section.count("max_in_flight", default.max_in_flight, 1..=1024),
            limits: MessageLimits {
                max_message_bytes: section.size("max_message_bytes", limits.max_message_bytes, 1 << 10..=64 << 20),
                max_inflated_bytes: section.size("max_inflated_bytes", limits.max_inflated_bytes, 1 << 10..=1 << 30),
                max_line_bytes: section.size("max_line_bytes", limits.max_line_bytes, 1 << 10..=64 << 20),
            },
            acknowledge: section.optional_choice("acknowledge", &AckLevel::ALL.map(|level| (level.as_str(), level))),
            quarantine: section.section("quarantine", QuarantineOptions::read),
            retry_min: section.duration("retry_min", default.retry_min, positive.clone()),
            retry_max: section.duration("retry_max", default.retry_max, positive),
            servers: default.servers,
        };
        options.check(section);
        options
    }

    fn check(&self, section: &mut Section<'_>) {
        section.check_retry(self.retry_min, self.retry_max);
        check_name(section, "stream", &self.stream);
        check_name(section, "consumer", &self.consumer);
        for subject in &self.subjects {
            if !is_pattern(subject) {
                let help = "write subjects = [\"tributary.*.span\"]".to_owned();
                section.error("subjects", format!("`{subject}` is not a subject"), Some(help));
            }
        }
    }

    /// Where it receives from, for messages.
    pub fn shown(&self) -> String {
        format!("the stream {} at {}", self.stream, self.servers.shown())
    }

    /// Declares the memory that it takes at most, beside its messages, which take of the shared memory.
    pub fn declare(&self, of: &str, bounds: &mut Bounds) {
        let what = format!("{} messages being decompressed (max_in_flight)", self.max_in_flight);
        bounds.add(of, what, self.max_in_flight as u64 * DECOMPRESSOR_BYTES);
        self.quarantine.declare(of, bounds);
        bounds.need(self.limits.max_message_bytes + self.limits.max_line_bytes);
    }
}
