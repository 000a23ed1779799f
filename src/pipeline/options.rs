//! The options of every sink, whatever its type: its queue.

use tributary_event::{Kind, MOST_BATCH_BYTES};
use tributary_options::bounds::size;
use tributary_options::{Bounds, Section, options};
use tributary_protocol::Protocol;
use tributary_sink::Kinds;

options! {
    /// The options of a sink's queue: which events enter it, how many may wait, and what happens when it is full or the sink fails.
    #[derive(Clone, Debug, PartialEq)]
    pub struct QueueOptions {
        /// Batches that may wait for the sink.
        pub buffer_batches: usize = count(256, 1..=1_000_000),
        /// Bytes of batches that may wait for the sink, in memory or in the output, whichever are more; a single larger batch may wait
        /// alone.
        pub buffer_bytes: u64 = size(8 << 20, 64 << 10..=1 << 40),
        /// When the queue is full: "block", connections wait and peers slow down, or "shed", further events are not written and a loss
        /// event reports them.
        pub when_full: WhenFull = choice(WhenFull::Block, &[("block", WhenFull::Block), ("shed", WhenFull::Shed)]),
        /// When the sink fails: "restart", it is started again after a pause that grows, or "fatal", the daemon drains the other sinks
        /// and exits with 1. A file sink whose path for some events cannot be a file fails for these events only.
        pub on_failure: OnFailure =
            choice(OnFailure::Restart, &[("restart", OnFailure::Restart), ("fatal", OnFailure::Fatal)]),
        /// Only events of these protocols, e.g. ["datadog"]. Empty: of all.
        pub protocols: Vec<Protocol> = choices(&Protocol::ALL.map(|protocol| (protocol.as_str(), protocol))),
        /// Only events of these kinds: "log", "span", "metric", "sample", "loss". Empty: of all.
        pub kinds: Kinds = flat(read_kinds),
    }
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

fn read_kinds(section: &mut Section<'_>) -> Kinds {
    match section.choices("kinds", &Kind::ALL.map(|kind| (kind.as_str(), kind))) {
        kinds if kinds.is_empty() => Kinds::ALL,
        kinds => kinds.into_iter().collect(),
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
