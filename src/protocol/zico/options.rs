//! The options of a `zico` listener, except those of registered agents.

use std::time::Duration;

use tributary_memory::Amplification;
use tributary_options::{Bounds, LONGEST, Section};
use tributary_profile::limits::ProfileLimits;

/// Options of a `zico` listener.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The largest body of definitions or of a trace, as transmitted. 64 MiB, as in the original collector. 1 KiB to 1 GiB.
    pub max_body_bytes: u64,
    /// The largest body of a form, after decompression. 16 MiB. 1 KiB to 1 GiB.
    pub max_inflated_bytes: u64,
    /// The largest body of a registration or session request. 64 KiB. 1 KiB to 1 MiB.
    pub max_registration_bytes: u64,
    /// The number of sessions whose definitions are kept. When it is reached, those unused for longest are removed, and
    /// their agents send their definitions again. 10,000. At least 1.
    pub max_sessions: usize,
    /// The number of strings and methods of one session. 1,000,000. At least 1.
    pub max_symbols: usize,
    /// Bytes of all strings of one session. 16 MiB. 64 KiB to 1 GiB.
    pub max_symbol_bytes: u64,
    /// The longest string of a session; a longer one is cut. 64 KiB. 16 bytes to 1 MiB.
    pub max_text_bytes: u64,
    /// The largest exception, and the largest attributes of one record, as sent and with their symbols filled in. The
    /// excess is lost. 1 MiB. 1 KiB to 64 MiB.
    pub max_record_bytes: u64,
    /// The memory of open records of one session. 64 MiB: more than 200,000 nested calls. 64 KiB to 1 GiB.
    pub max_open_bytes: u64,
    /// How long a trace in several parts waits for its next part; then its open records are emitted as they are. 5 min. At
    /// least 1 s.
    pub trace_timeout: Duration,
    /// The number of delivered traces that are remembered per session, so that a copy inside another trace is recognised.
    /// Each takes about 200 bytes. 4,096. 0: none.
    pub max_remembered: usize,
    /// What records become. Spans by default.
    pub records: Records,
    /// A shorter record without an error, an exception, attributes or a begin is added to its parent. Zero, the default: none.
    pub min_duration: Duration,
    /// The limits of profiles.
    pub profile: ProfileLimits,
    /// How much output a request may cause per byte that was transmitted. 512; 64 MiB; 4 MiB.
    pub amplification: Amplification,
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
    /// Reads the options; faults are reported to the section.
    pub fn read(section: &mut Section<'_>) -> Self {
        let default = Options::default();
        let bodies = || 1 << 10..=1 << 30;
        Options {
            max_body_bytes: section.size("max_body_bytes", default.max_body_bytes, bodies()),
            max_inflated_bytes: section.size("max_inflated_bytes", default.max_inflated_bytes, bodies()),
            max_registration_bytes: section.size(
                "max_registration_bytes",
                default.max_registration_bytes,
                1 << 10..=1 << 20,
            ),
            max_sessions: section.count("max_sessions", default.max_sessions, 1..=10_000_000),
            max_symbols: section.count("max_symbols", default.max_symbols, 1..=100_000_000),
            max_symbol_bytes: section.size("max_symbol_bytes", default.max_symbol_bytes, 64 << 10..=1 << 30),
            max_text_bytes: section.size("max_text_bytes", default.max_text_bytes, 16..=1 << 20),
            max_record_bytes: section.size("max_record_bytes", default.max_record_bytes, 1 << 10..=64 << 20),
            max_open_bytes: section.size("max_open_bytes", default.max_open_bytes, 64 << 10..=1 << 30),
            trace_timeout: section.duration("trace_timeout", default.trace_timeout, Duration::from_secs(1)..=LONGEST),
            max_remembered: section.count("max_remembered", default.max_remembered, 0..=10_000_000),
            records: section.choice(
                "records",
                default.records,
                &[("spans", Records::Spans), ("profile", Records::Profile), ("both", Records::Both)],
            ),
            min_duration: section.duration("min_duration", default.min_duration, Duration::ZERO..=LONGEST),
            profile: ProfileLimits::read(section),
            amplification: section
                .section("amplification", |section| Amplification::read(section, default.amplification)),
        }
    }
}

impl Options {
    /// Declares the most memory that a listener takes beside the shared budget.
    pub fn declare(&self, of: &str, bounds: &mut Bounds) {
        let what = format!("{} sessions, beside what they define (max_sessions)", self.max_sessions);
        bounds.add(of, what, (self.max_sessions as u64).saturating_mul(SESSION_BYTES));
        bounds.need(self.max_body_bytes.max(self.max_inflated_bytes));
    }
}

/// The memory of a session without definitions: its key, its tables, its resource.
const SESSION_BYTES: u64 = 1 << 10;

impl Default for Options {
    fn default() -> Self {
        Options {
            max_body_bytes: 64 << 20,
            max_inflated_bytes: 16 << 20,
            max_registration_bytes: 64 << 10,
            max_sessions: 10_000,
            max_symbols: 1_000_000,
            max_symbol_bytes: 16 << 20,
            max_text_bytes: 64 << 10,
            max_record_bytes: 1 << 20,
            max_open_bytes: 64 << 20,
            trace_timeout: Duration::from_secs(300),
            max_remembered: 4_096,
            records: Records::default(),
            min_duration: Duration::ZERO,
            profile: ProfileLimits::default(),
            amplification: Amplification { ratio: 512, burst: 64 << 20, rate: 4 << 20 },
        }
    }
}
