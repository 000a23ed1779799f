//! The options of a `datadog` listener.
//!
//! Except for `list_layout` all of them limit what one connection can make the collector store or write.

use std::time::Duration;

use tributary_memory::Amplification;
use tributary_options::{LONGEST, Section, options};

options! {
    /// Options of a `datadog` listener.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Options {
        /// How lists are laid out on the wire: "exact", as many entries as they say, or "padded32", always 32 as the reference
        /// encoder writes them. It is not detected: a guess on zero bytes could be forced by a hostile peer.
        pub list_layout: ListLayout =
            choice(ListLayout::Exact, &[("exact", ListLayout::Exact), ("padded32", ListLayout::Padded32)]),
        /// The strings that a connection has defined and may name again. The peer declares how many; these bounds hold whatever it
        /// says.
        pub string_cache: StringCache = section(StringCache::read),
        /// The bytes that are kept of a longer string; the rest is read and dropped.
        pub kept_string_bytes: u64 = size(64 * KIB, KIB..=16 * MIB),
        /// The records that wait for strings which are not defined yet. What passes a limit is written with its raw ids.
        pub waiting: WaitingLimits = section(WaitingLimits::read),
        /// Entries that one record may collect from its lists; further ones are counted and dropped.
        pub max_record_entries: usize = count(4096, 1..=1_000_000),
        /// Bytes of text that one record may have with its strings filled in; further entries are counted and dropped. A record
        /// always has space for its own texts.
        pub max_record_bytes: u64 = size(1024 * KIB, 64 * KIB..=64 * MIB),
        /// Traces whose meta is remembered for the spans that follow; the one unused for longest is forgotten first. 0: none.
        pub max_traces: usize = count(4096, 0..=10_000_000),
        /// Entries of the meta of a trace that are also written on each of its spans, whose cost they are; further ones are on the
        /// event of the trace alone. 0: none.
        pub max_trace_entries: usize = count(256, 0..=1_000_000),
        /// A record is complete when another follows; the last one is written when nothing has followed for this long, for its own
        /// lists might.
        pub span_idle: Duration = duration(Duration::from_secs(1), Duration::from_millis(1)..=LONGEST),
        /// The longest text of each sort, in bytes of UTF-8; a longer one is cut at a character.
        pub max_text: MaxText = section(MaxText::read),
        /// How much output a peer may cause.
        pub amplification: Amplification = section(
            |section| Amplification::read(section, Amplification { ratio: 64, burst: 16 * MIB, rate: 4 * MIB })
        ),
    }
}

/// How lists are laid out on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ListLayout {
    /// As many entries as the count of the list says.
    #[default]
    Exact,
    /// Always 32 entries, the unused ones zero, as the reference encoder writes them.
    Padded32,
}

options! {
    /// Limits of the strings that a connection has defined. The size that a peer declares is clamped to them.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct StringCache checked by check {
        /// Strings that are kept even when the peer declares a smaller cache. 0: as few as it declares.
        pub min_entries: usize = count(1024, 0..=10_000_000),
        /// The most strings that are kept, even when the peer declares a larger cache. Not below `min_entries`.
        pub max_entries: usize = count(65_536, 1..=10_000_000),
        /// Bytes of all of them; the one unused for longest is dropped first.
        pub bytes: u64 = size(8 * MIB, 64 * KIB..=1024 * GIB),
    }
}

options! {
    /// Limits of the records that wait for strings. A record over a limit is written with its raw ids and a warning.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct WaitingLimits {
        /// The number of records that wait. 0: nothing waits.
        pub records: usize = count(4096, 0..=10_000_000),
        /// Bytes of all of them, with the meta of traces. 0: nothing waits, and no trace is remembered.
        pub bytes: u64 = size(8 * MIB, 0..=1024 * GIB),
        /// How long each record may wait. "0s": nothing waits.
        pub time: Duration = duration(Duration::from_secs(10), Duration::ZERO..=LONGEST),
    }
}

options! {
    /// The longest text of each kind, in bytes of UTF-8; a longer one is cut at a character.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct MaxText {
        /// Names of spans.
        pub name: usize = count(100, 1..=1 << 20),
        /// Services.
        pub service: usize = count(100, 1..=1 << 20),
        /// Types of spans.
        pub type_: usize as "type" = count(100, 1..=1 << 20),
        /// Resources.
        pub resource: usize = count(5000, 1..=1 << 20),
        /// Keys of meta and metrics.
        pub key: usize = count(200, 1..=1 << 20),
        /// Values of meta.
        pub value: usize = count(25_000, 1..=1 << 20),
    }
}

impl StringCache {
    fn check(&self, section: &mut Section<'_>) {
        if self.min_entries > self.max_entries {
            let message = format!("`max_entries` is {}, less than `min_entries`", self.max_entries);
            section.error("max_entries", message, Some(format!("at least {}", self.min_entries)));
        }
    }
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
