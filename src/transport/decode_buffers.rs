//! Outputs that requests of a listener use one after the other: most requests are too short to make their own.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::event::{BatchBuilder, Origin};
use crate::memory::Allowance;
use crate::protocol::{LossLimit, Output};

/// The number of outputs that are kept …
const MAX_OUTPUTS: usize = 16;
/// … and the largest that is kept.
const MAX_OUTPUT_BYTES: usize = 128 << 10;

/// The outputs that no request uses: each knows how much room the batch of a request needs. The
/// [`Ticker`](super::ticker::Ticker) clears them every second.
#[derive(Default)]
pub(super) struct DecodeBuffers {
    free: Mutex<Vec<Output>>,
}

impl DecodeBuffers {
    /// An output for a request of `origin`, with the limits of its connection.
    pub(super) fn take(&self, origin: &Arc<Origin>, allowance: &Allowance, losses: Option<Box<LossLimit>>) -> Output {
        let free = self.free().pop();
        let mut out = free.unwrap_or_else(|| Output::new(BatchBuilder::new(origin.clone())));
        out.batch.set_origin(origin.clone());
        out.batch.set_resource(Arc::default());
        // The pause that the last request asked for is not for this one.
        out.throttle = None;
        out.set_allowance(allowance.clone());
        out.set_loss_limit(losses);
        out
    }

    /// Keeps an output that a request has used.
    pub(super) fn put_back(&self, out: Output) {
        let mut free = self.free();
        if free.len() < MAX_OUTPUTS && out.batch.is_empty() && out.batch.memory_bytes() <= MAX_OUTPUT_BYTES {
            free.push(out);
        }
    }

    /// Releases all outputs.
    pub(super) fn clear(&self) {
        self.free().clear();
    }

    fn free(&self) -> MutexGuard<'_, Vec<Output>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
