//! What an operator can set on a `datadog` listener.

use std::time::Duration;

/// Options of a `datadog` listener.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct Options {
    pub list_layout: ListLayout,
    pub string_cache: StringCache,
    pub kept_string_bytes: u64,
    pub waiting: Waiting,
    pub max_record_entries: usize,
    pub max_record_bytes: u64,
    pub max_traces: usize,
    pub span_idle: Duration,
    pub max_text: MaxText,
    pub amplification: Amplification,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub enum ListLayout {
    #[default]
    Exact,
    Padded32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct StringCache {
    pub min_entries: usize,
    pub max_entries: usize,
    pub bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Waiting {
    pub records: usize,
    pub bytes: u64,
    pub time: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct MaxText {
    pub name: usize,
    pub service: usize,
    pub type_: usize,
    pub resource: usize,
    pub key: usize,
    pub value: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Amplification {
    pub ratio: u64,
    pub burst: u64,
    pub rate: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            list_layout: ListLayout::Exact,
            string_cache: StringCache { min_entries: 1024, max_entries: 65_536, bytes: 8 << 20 },
            kept_string_bytes: 64 << 10,
            waiting: Waiting { records: 4096, bytes: 8 << 20, time: Duration::from_secs(10) },
            max_record_entries: 4096,
            max_record_bytes: 1 << 20,
            max_traces: 4096,
            span_idle: Duration::from_secs(1),
            max_text: MaxText { name: 100, service: 100, type_: 100, resource: 5000, key: 200, value: 25_000 },
            amplification: Amplification { ratio: 64, burst: 16 << 20, rate: 4 << 20 },
        }
    }
}
