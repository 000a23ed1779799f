//! `[view]`: what the page and its API can look back on.

use std::time::Duration;

use tributary_event::MOST_BATCH_BYTES;
use tributary_options::bounds::size;
use tributary_options::{Bounds, Section};

/// Options of the view.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Whether events are kept for the page. It needs the admin endpoint. Default: true.
    pub enabled: bool,
    /// The most memory of the events and tables that are kept. Default: 32 MiB; of a daemon with less than
    /// 128 MiB 4 MiB. 256 KiB to 16 GiB.
    pub memory: u64,
    /// How long events are kept, as far as `memory` allows. Default: 15 min. 10 s to 24 h.
    pub window: Duration,
    /// The processor time that the view may use, in percent of one processor. What it has no time for is counted only.
    /// Default: 5. 1 to 100.
    pub cpu_percent: u64,
    /// The most bytes of an answer and of what it is made of; one is made at a time. Default: 16 MiB; of a daemon with less than 128 MiB 2 MiB.
    /// 64 KiB to 1 GiB.
    pub max_answer: u64,
}

impl Options {
    /// Reads the options of a daemon with `memory_bytes`. Errors are reported to the section.
    pub fn read(section: &mut Section<'_>, memory_bytes: u64) -> Self {
        let default = Options::default();
        let is_small = memory_bytes < SMALL;
        let memory = if is_small { 4 << 20 } else { default.memory };
        let max_answer = if is_small { 2 << 20 } else { default.max_answer };
        let window = Duration::from_secs(10)..=Duration::from_secs(24 * 3600);
        Options {
            enabled: section.bool("enabled", default.enabled),
            memory: section.size("memory", memory, LEAST_MEMORY..=16 << 30),
            window: section.duration("window", default.window, window),
            cpu_percent: section.count("cpu_percent", default.cpu_percent, 1..=100),
            max_answer: section.size("max_answer", max_answer, LEAST_ANSWER..=1 << 30),
        }
    }

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
        Options {
            enabled: true,
            memory: 32 << 20,
            window: Duration::from_secs(15 * 60),
            cpu_percent: 5,
            max_answer: 16 << 20,
        }
    }
}
