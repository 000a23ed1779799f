//! The options of a `zico` listener, except those of registered agents.

use std::time::Duration;

use tributary_memory::Amplification;
use tributary_options::{Bounds, LONGEST, options};
use tributary_profile::limits::ProfileLimits;

options! {
    /// Options of a `zico` listener.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Options {
        /// The largest body of definitions or of a trace, as transmitted. The default is that of the original collector.
        pub max_body_bytes: u64 = size(64 << 20, 1 << 10..=1 << 30),
        /// The largest body of a form, after decompression.
        pub max_inflated_bytes: u64 = size(16 << 20, 1 << 10..=1 << 30),
        /// The largest body of a registration or session request.
        pub max_registration_bytes: u64 = size(64 << 10, 1 << 10..=1 << 20),
        /// The number of sessions whose definitions are kept. When it is reached, those unused for longest are removed, and
        /// their agents send their definitions again.
        pub max_sessions: usize = count(10_000, 1..=10_000_000),
        /// The number of strings and methods of one session.
        pub max_symbols: usize = count(1_000_000, 1..=100_000_000),
        /// Bytes of all strings of one session.
        pub max_symbol_bytes: u64 = size(16 << 20, 64 << 10..=1 << 30),
        /// The longest string of a session; a longer one is cut.
        pub max_text_bytes: u64 = size(64 << 10, 16..=1 << 20),
        /// The largest exception, and the largest attributes of one record, as sent and with their symbols filled in. The
        /// excess is lost.
        pub max_record_bytes: u64 = size(1 << 20, 1 << 10..=64 << 20),
        /// The memory of open records of one session. The default is enough for more than 200,000 nested calls.
        pub max_open_bytes: u64 = size(64 << 20, 64 << 10..=1 << 30),
        /// The largest packet of the binary protocol (Fressian over TCP). Agents send up to 8 MiB and one record.
        pub max_packet_bytes: u64 = size(16 << 20, 64 << 10..=1 << 30),
        /// How deep records of the binary protocol may nest; the records below are lost. Agents send about 1,000 at most, unless
        /// their threads have larger stacks.
        pub max_record_depth: usize = count(2_000, 1..=1_000_000),
        /// How long the records of the latest packet of a connection are remembered, so that they are recognised when an agent sends
        /// them again. Agents try for 128 s. "0s": they are not.
        pub resend_time: Duration = duration(Duration::from_secs(600), Duration::ZERO..=LONGEST),
        /// How long a trace in several parts waits for its next part; then its open records are emitted as they are.
        pub trace_timeout: Duration = duration(Duration::from_secs(300), Duration::from_secs(1)..=LONGEST),
        /// The number of delivered traces that are remembered per session, so that a copy inside another trace is recognised.
        /// Each takes about 200 bytes. 0: none.
        pub max_remembered: usize = count(4_096, 0..=10_000_000),
        /// What the records of traces become: "spans"; "profile", at intervals one sample for each stack, with its self time,
        /// and one with its number of calls; or "both".
        pub records: Records = choice(
            Records::Spans,
            &[("spans", Records::Spans), ("profile", Records::Profile), ("both", Records::Both)]
        ),
        /// A shorter record without an error, an exception, attributes or a begin is added to the record around it, whose span
        /// has zico.pruned.records and zico.pruned.duration_ns. "0s": none.
        pub min_duration: Duration = duration(Duration::ZERO, Duration::ZERO..=LONGEST),
        /// The limits of profiles.
        pub profile: ProfileLimits = flat(ProfileLimits::read),
        /// How much output a request may cause.
        pub amplification: Amplification = section(
            |section| Amplification::read(section, Amplification { ratio: 512, burst: 64 << 20, rate: 4 << 20 })
        ),
    }
}

/// What records become.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Records {
    /// A span for each.
    #[default]
    Spans,
    /// Samples of stacks, at intervals: the self time and the number of calls of each.
    Profile,
    /// Both.
    Both,
}

impl Options {
    /// Declares the most memory that a listener takes beside the shared budget.
    pub fn declare(&self, of: &str, bounds: &mut Bounds) {
        let what = format!("{} sessions, beside what they define (max_sessions)", self.max_sessions);
        bounds.add(of, what, (self.max_sessions as u64).saturating_mul(SESSION_BYTES));
        bounds.need(self.max_body_bytes.max(self.max_inflated_bytes).max(self.max_packet_bytes));
    }
}

/// The memory of a session without definitions: its key, its tables, its resource.
const SESSION_BYTES: u64 = 1 << 10;
