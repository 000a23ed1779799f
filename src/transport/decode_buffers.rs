//! Outputs that requests of a listener use one after the other: most requests are too short to allocate their own.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::event::{BatchBuilder, Origin};
use crate::memory::{Allowance, MemoryBudget, MemoryLease};
use crate::protocol::{LossLimit, Output};

/// The number of buffers that are kept …
const MAX_BUFFERS: usize = 16;
/// … and the largest that is kept.
const MAX_BUFFER_BYTES: usize = 128 << 10;

/// The buffers that no request uses. The [`Ticker`](super::ticker::Ticker) clears them every second.
pub(super) struct DecodeBuffers {
    free: Mutex<Vec<DecodeBuffer>>,
    memory: Arc<MemoryBudget>,
}

/// Where a request writes its events.
pub(super) struct DecodeBuffer {
    pub(super) out: Output,
    /// The memory that the output keeps for its next batch.
    pub(super) lease: MemoryLease,
}

impl DecodeBuffers {
    pub(super) fn new(memory: Arc<MemoryBudget>) -> Self {
        DecodeBuffers { free: Mutex::default(), memory }
    }

    /// A buffer for a request of `origin`, with the limits of its connection.
    pub(super) fn take(
        &self,
        origin: &Arc<Origin>,
        allowance: &Allowance,
        losses: Option<Box<LossLimit>>,
    ) -> DecodeBuffer {
        let free = self.free().pop();
        let mut buffer = free.unwrap_or_else(|| {
            let out = Output::new(BatchBuilder::new(origin.clone()));
            DecodeBuffer { out, lease: self.memory.passing(0) }
        });
        buffer.out.batch.set_origin(origin.clone());
        buffer.out.batch.set_resource(Arc::default());
        // The pause that the last request asked for is not for this one.
        buffer.out.throttle = None;
        buffer.out.set_allowance(allowance.clone());
        buffer.out.set_loss_limit(losses);
        buffer
    }

    /// Keeps a buffer that a request has used.
    pub(super) fn put_back(&self, buffer: DecodeBuffer) {
        let mut free = self.free();
        if free.len() < MAX_BUFFERS
            && buffer.out.batch.is_empty()
            && buffer.out.batch.memory_bytes() <= MAX_BUFFER_BYTES
        {
            free.push(buffer);
        }
    }

    /// Releases the memory of all buffers.
    pub(super) fn clear(&self) {
        self.free().clear();
    }

    fn free(&self) -> MutexGuard<'_, Vec<DecodeBuffer>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
