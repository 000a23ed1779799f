//! The options of every sink, whatever its type: its queue.

use tributary_event::{Kind, MOST_BATCH_BYTES};
use tributary_options::bounds::size;
use tributary_options::{Bounds, Section};
use tributary_protocol::Protocol;
use tributary_sink::Kinds;

/// The options of a sink's queue: which events enter it, how many may wait, and what happens when it is full or the sink fails.
#[derive(Clone, Debug, PartialEq)]
pub struct QueueOptions {
    /// Batches that may wait for the sink. 256. At least 1.
    pub buffer_batches: usize,
    /// Bytes of batches that may wait for the sink, in memory or in the output, whichever is more; a single larger batch may wait
    /// alone. 8 MiB. At least 64 KiB.
    pub buffer_bytes: u64,
    /// What happens to a batch when the queue is full.
    pub when_full: WhenFull,
    /// What happens when the sink fails.
    pub on_failure: OnFailure,
    /// Protocols whose events enter. Empty, as by default: all.
    pub protocols: Vec<Protocol>,
    /// Kinds of events that enter. All by default; an empty list in the file means all as well.
    pub kinds: Kinds,
}

/// What happens to a batch when its queue is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WhenFull {
    /// Its connection waits, and stops reading: the peer slows down. Nothing is lost.
    #[default]
    Block,
    /// It is dropped; a loss event reports it.
    Shed,
}

/// What happens when a sink fails for good.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnFailure {
    /// It is restarted after a pause that grows.
    #[default]
    Restart,
    /// The daemon drains the other sinks and exits with 1.
    Fatal,
}

impl QueueOptions {
    /// Reads the options; errors are reported to the section.
    pub fn read(section: &mut Section<'_>) -> Self {
        let default = QueueOptions::default();
        let protocols = Protocol::ALL.map(|protocol| (protocol.as_str(), protocol));
        QueueOptions {
            buffer_batches: section.count("buffer_batches", default.buffer_batches, 1..=1_000_000),
            buffer_bytes: section.size("buffer_bytes", default.buffer_bytes, 64 << 10..=1 << 40),
            when_full: section.choice(
                "when_full",
                default.when_full,
                &[("block", WhenFull::Block), ("shed", WhenFull::Shed)],
            ),
            on_failure: section.choice(
                "on_failure",
                default.on_failure,
                &[("restart", OnFailure::Restart), ("fatal", OnFailure::Fatal)],
            ),
            protocols: section.choices("protocols", &protocols),
            kinds: match section.choices("kinds", &Kind::ALL.map(|kind| (kind.as_str(), kind))) {
                kinds if kinds.is_empty() => Kinds::ALL,
                kinds => kinds.into_iter().collect(),
            },
        }
    }
}

impl QueueOptions {
    /// Declares the memory that the queue takes at most.
    pub fn declare(&self, of: &str, bounds: &mut Bounds) {
        let what = match self.buffer_bytes {
            bytes if bytes < MOST_BATCH_BYTES => format!("its queue: one batch of {}", size(MOST_BATCH_BYTES)),
            bytes => format!("its queue (buffer_bytes {})", size(bytes)),
        };
        let entries = (self.buffer_batches as u64).saturating_mul(ENTRY_BYTES);
        let bytes = self.buffer_bytes.max(MOST_BATCH_BYTES).saturating_add(entries).saturating_add(PENDING_LOSS_BYTES);
        bounds.add(of, what, bytes);
    }
}

/// Size of an entry of the queue besides its batch.
const ENTRY_BYTES: u64 = 256;
/// Size of the pending losses of a sink.
const PENDING_LOSS_BYTES: u64 = 1024 * 256;

impl Default for QueueOptions {
    fn default() -> Self {
        QueueOptions {
            buffer_batches: 256,
            buffer_bytes: 8 << 20,
            when_full: WhenFull::Block,
            on_failure: OnFailure::Restart,
            protocols: Vec::new(),
            kinds: Kinds::ALL,
        }
    }
}
