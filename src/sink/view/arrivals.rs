//! Batches that came and are not added to the view yet. Adding many at once costs far less than adding each of a few events when it
//! comes, and a connection does not wait for it.

use std::sync::Arc;

use tributary_event::{Batch, UnixNanos};

/// The most memory of them: adding them takes a connection less than a millisecond.
const MAX_BYTES: usize = 128 << 10;

/// Batches in the order in which they came.
#[derive(Debug)]
pub(super) struct Arrivals {
    batches: Vec<Arrival>,
    bytes: usize,
    limit: usize,
}

/// A batch, and when it was read.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) batch: Arc<Batch>,
    pub(super) at: UnixNanos,
}

impl Arrivals {
    pub(super) fn new(limit: usize) -> Arrivals {
        Arrivals { batches: Vec::new(), bytes: 0, limit: limit.min(MAX_BYTES) }
    }

    pub(super) fn set_limit(&mut self, limit: usize) {
        self.limit = limit.min(MAX_BYTES);
    }

    /// Adds a batch. Whether they have to be taken now, because they have all their memory.
    pub(super) fn push(&mut self, batch: &Arc<Batch>, at: UnixNanos) -> bool {
        self.bytes += batch.memory_bytes() + size_of::<Arrival>();
        self.batches.push(Arrival { batch: batch.clone(), at });
        self.bytes >= self.limit
    }

    /// All of them.
    pub(super) fn take(&mut self) -> Vec<Arrival> {
        self.bytes = 0;
        std::mem::take(&mut self.batches)
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.bytes
    }
}
