//! The options of a `datadog` listener.
//!
//! Except for `list_layout` all of them limit what one connection can make the collector store or write.

use std::time::Duration;

use tributary_memory::Amplification;
use tributary_options::{LONGEST, Section};

/// Options of a `datadog` listener.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// How lists are laid out on the wire. Not detected: a guess on zero bytes could be forced by a hostile peer.
    pub list_layout: ListLayout,
    /// The strings that a connection has defined and may refer to.
    pub string_cache: StringCache,
    /// Bytes that are kept of a longer string; the rest is read and dropped. 64 KiB. 1 KiB to 16 MiB.
    pub kept_string_bytes: u64,
    /// The records that wait for strings which are not defined yet.
    pub waiting: WaitingLimits,
    /// Entries that one record may collect from its lists; further ones are counted and dropped. 4096. At least 1.
    pub max_record_entries: usize,
    /// Bytes of text that one record may have after its strings are resolved; further entries are counted and dropped.
    /// 1 MiB. At least 64 KiB, so that a record always has space for its own texts.
    pub max_record_bytes: u64,
    /// Traces whose meta is remembered for the spans that follow; the least recently used one is forgotten first. 4096.
    /// 0: none.
    pub max_traces: usize,
    /// Entries of the meta of a trace that are also written on each of its spans, whose cost they are; further ones are on the event
    /// of the trace alone. 256. 0: none.
    pub max_trace_entries: usize,
    /// A record is complete when another object follows. The last one counts as complete after this time without input,
    /// because its lists could still follow. 1 s. At least 1 ms.
    pub span_idle: Duration,
    /// The longest texts in the output.
    pub max_text: MaxText,
    /// How much output a peer may cause per byte that it sends. 64 bytes, saved up to 16 MiB; 4 MiB per second.
    pub amplification: Amplification,
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

/// Limits of the strings that a connection has defined. The size that a peer declares is clamped to them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StringCache {
    /// Strings kept even when the peer declares a smaller cache. 1024. 0: as few as it declares.
    pub min_entries: usize,
    /// The most strings kept, even when the peer declares a larger cache. 65,536. At least 1, and at least `min_entries`.
    pub max_entries: usize,
    /// Bytes of all of them; the least recently used one is evicted first. 8 MiB. At least 64 KiB.
    pub bytes: u64,
}

/// Limits of the records that wait for strings. A record over a limit is written with its raw ids and a warning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WaitingLimits {
    /// Number of records. 4096. 0: nothing waits.
    pub records: usize,
    /// Bytes of all of them, including the meta of traces. 8 MiB. 0: nothing waits, no trace is remembered.
    pub bytes: u64,
    /// How long each record may wait. 10 s. Zero: nothing waits.
    pub time: Duration,
}

/// The longest text of each kind, in bytes of UTF-8; a longer one is cut at a character. Each from 1 byte to 1 MiB.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MaxText {
    /// Span names. 100.
    pub name: usize,
    /// Services. 100.
    pub service: usize,
    /// Span types; the key is `type`. 100.
    pub type_: usize,
    /// Resources. 5000.
    pub resource: usize,
    /// Keys of meta and metrics. 200.
    pub key: usize,
    /// Values of meta. 25,000.
    pub value: usize,
}

impl Options {
    /// Reads the options; errors are reported to the section.
    pub fn read(section: &mut Section<'_>) -> Self {
        let default = Options::default();
        let layouts = [("exact", ListLayout::Exact), ("padded32", ListLayout::Padded32)];
        Options {
            list_layout: section.choice("list_layout", default.list_layout, &layouts),
            string_cache: section.section("string_cache", StringCache::read),
            kept_string_bytes: section.size("kept_string_bytes", default.kept_string_bytes, KIB..=16 * MIB),
            waiting: section.section("waiting", WaitingLimits::read),
            max_record_entries: section.count("max_record_entries", default.max_record_entries, 1..=1_000_000),
            max_record_bytes: section.size("max_record_bytes", default.max_record_bytes, 64 * KIB..=64 * MIB),
            max_traces: section.count("max_traces", default.max_traces, 0..=10_000_000),
            max_trace_entries: section.count("max_trace_entries", default.max_trace_entries, 0..=1_000_000),
            span_idle: section.duration("span_idle", default.span_idle, Duration::from_millis(1)..=LONGEST),
            max_text: section.section("max_text", MaxText::read),
            amplification: section
                .section("amplification", |section| Amplification::read(section, default.amplification)),
        }
    }
}

impl StringCache {
    fn read(section: &mut Section<'_>) -> Self {
        let default = StringCache::default();
        let cache = StringCache {
            min_entries: section.count("min_entries", default.min_entries, 0..=10_000_000),
            max_entries: section.count("max_entries", default.max_entries, 1..=10_000_000),
            bytes: section.size("bytes", default.bytes, 64 * KIB..=1024 * GIB),
        };
        if cache.min_entries > cache.max_entries {
            let message = format!("`max_entries` is {}, less than `min_entries`", cache.max_entries);
            section.error("max_entries", message, Some(format!("at least {}", cache.min_entries)));
        }
        cache
    }
}

impl WaitingLimits {
    fn read(section: &mut Section<'_>) -> Self {
        let default = WaitingLimits::default();
        WaitingLimits {
            records: section.count("records", default.records, 0..=10_000_000),
            bytes: section.size("bytes", default.bytes, 0..=1024 * GIB),
            time: section.duration("time", default.time, Duration::ZERO..=LONGEST),
        }
    }
}

impl MaxText {
    fn read(section: &mut Section<'_>) -> Self {
        let default = MaxText::default();
        let allowed = || 1..=1 << 20;
        MaxText {
            name: section.count("name", default.name, allowed()),
            service: section.count("service", default.service, allowed()),
            type_: section.count("type", default.type_, allowed()),
            resource: section.count("resource", default.resource, allowed()),
            key: section.count("key", default.key, allowed()),
            value: section.count("value", default.value, allowed()),
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Options {
            list_layout: ListLayout::Exact,
            string_cache: StringCache::default(),
            kept_string_bytes: 64 * KIB,
            waiting: WaitingLimits::default(),
            max_record_entries: 4096,
            max_record_bytes: 1024 * KIB,
            max_traces: 4096,
            max_trace_entries: 256,
            span_idle: Duration::from_secs(1),
            max_text: MaxText::default(),
            amplification: Amplification { ratio: 64, burst: 16 * MIB, rate: 4 * MIB },
        }
    }
}

impl Default for StringCache {
    fn default() -> Self {
        StringCache { min_entries: 1024, max_entries: 65_536, bytes: 8 << 20 }
    }
}

impl Default for WaitingLimits {
    fn default() -> Self {
        WaitingLimits { records: 4096, bytes: 8 << 20, time: Duration::from_secs(10) }
    }
}

impl Default for MaxText {
    fn default() -> Self {
        MaxText { name: 100, service: 100, type_: 100, resource: 5000, key: 200, value: 25_000 }
    }
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
