//! `[view]`: what the page and its API can look back on.

use std::time::Duration;

use tributary_event::MOST_BATCH_BYTES;
use tributary_options::bounds::size;
use tributary_options::{Bounds, defaults, options};

options! {
    /// Options of the view, of a daemon with this memory.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Options(memory_bytes: u64) {
        /// Whether events are kept in memory for the page and /api/v1. It needs the admin endpoint. With false the endpoint stays on,
        /// and the page shows counters, agents and live events only.
        pub enabled: bool = bool(true),
        /// The most memory of the events and tables that are kept. When it is full, of much traffic only every second trace and every
        /// second batch of other events is kept, then every fourth, and so on. The default is 4MiB if limits.memory_bytes is less than 128MiB, or can be no more.
        pub memory: u64 = size(if memory_bytes < SMALL { 4 << 20 } else { 32 << 20 }, LEAST_MEMORY..=16 << 30),
        /// How long events are kept, as far as `memory` allows.
        pub window: Duration =
            duration(Duration::from_secs(15 * 60), Duration::from_secs(10)..=Duration::from_secs(24 * 3600)),
        /// The processor time that keeping them may take, in percent of one processor. What there is no time for is counted only.
        pub cpu_percent: u64 = count(5, 1..=100),
        /// How often requests, errors and durations of each operation of a service become metrics (traces.span.metrics.calls and
        /// traces.span.metrics.duration), which all sinks get. Empty: never.
        pub export: Option<Duration> = duration_or_none(Duration::from_secs(1)..=Duration::from_secs(3600)),
        /// The most bytes of an answer and of what it is made of; lists that would be longer are cut, or refused. One answer is made at
        /// a time. The default is 2MiB if limits.memory_bytes is less than 128MiB, or can be no more.
        pub max_answer: u64 = size(if memory_bytes < SMALL { 2 << 20 } else { 16 << 20 }, LEAST_ANSWER..=1 << 30),
    }
}

impl Options {
    /// Declares the memory that the view can use.
    pub fn declare(&self, bounds: &mut Bounds) {
        bounds.add("view", "its queue", QUEUE_BYTES);
        bounds.add("view", format!("events and tables (memory {})", size(self.memory)), self.memory);
        bounds.add("view", format!("one answer (max_answer {})", size(self.max_answer)), self.max_answer);
    }
}

/// A daemon with less memory has a smaller view by default.
const SMALL: u64 = 128 << 20;
const LEAST_MEMORY: u64 = 256 << 10;
const LEAST_ANSWER: u64 = 64 << 10;

/// Batches that wait for the view, each with its entry.
pub const QUEUE_BATCHES: usize = 64;
/// Their memory.
pub const QUEUE_BYTES: u64 = MOST_BATCH_BYTES;

impl Default for Options {
    fn default() -> Self {
        defaults(|section| Options::read(section, u64::MAX))
    }
}
