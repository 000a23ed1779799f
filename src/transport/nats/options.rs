//! The options of a listener `nats`.

use std::time::Duration;

use crate::options::QuarantineOptions;
use tributary_nats::subject::is_pattern;
use tributary_nats::{Servers, check_name};
use tributary_options::{Bounds, LONGEST, Section, options};
use tributary_protocol::nats::MessageLimits;
use tributary_sink::AckLevel;

/// What decompressing a message takes: a window, and the tables of the decompressor.
const DECOMPRESSOR_BYTES: u64 = 2 << 20;

options! {
    /// The options of a listener that takes messages from a stream.
    #[derive(Clone, Debug, PartialEq)]
    pub struct NatsOptions checked by check {
        /// The servers, and how they are reached.
        pub servers: Servers = flat(|section| Servers::read(section, true)),
        /// The stream.
        pub stream: String = text("TRIBUTARY"),
        /// The durable consumer, which is created if it does not exist. Daemons with the same consumer share its messages.
        pub consumer: String = text("writers"),
        /// The subjects whose messages are taken, with `*` and `>`: "tributary.*.span". Several need servers of version 2.10. Empty:
        /// all subjects of the stream.
        pub subjects: Vec<String> = list_of_text(),
        /// How long JetStream waits for an acknowledgement before it delivers a message again, of a consumer that is created here. A
        /// message that is being worked on does not come again.
        pub ack_wait: Duration = duration(Duration::from_secs(30), Duration::from_secs(1)..=LONGEST),
        /// A message that was delivered this often without success goes to the quarantine.
        pub max_deliver: usize = count(20, 1..=1_000_000),
        /// Messages that are decoded and delivered at the same time.
        pub max_in_flight: usize = count(16, 1..=1024),
        /// Limits of one message.
        pub limits: MessageLimits = flat(MessageLimits::read),
        /// The level that the events of a message must have reached at every sink that takes them, before it is acknowledged. Not set:
        /// "durable" if all sinks of these events can be, otherwise "written".
        pub acknowledge: Option<AckLevel> = optional_choice(&AckLevel::ALL.map(|level| (level.as_str(), level))),
        /// Where messages are kept that cannot be read or delivered.
        pub quarantine: QuarantineOptions = section(QuarantineOptions::read),
        /// The pause before a message is delivered again that a sink could not write, and before another attempt to connect. It
        /// doubles with each failure.
        pub retry_min: Duration = duration(Duration::from_millis(100), Duration::from_millis(1)..=LONGEST),
        /// The longest such pause.
        pub retry_max: Duration = duration(Duration::from_secs(5), Duration::from_millis(1)..=LONGEST),
    }
}

impl NatsOptions {
    /// The default options with these servers.
    pub fn new(servers: Servers) -> NatsOptions {
        NatsOptions { servers, ..NatsOptions::default() }
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
