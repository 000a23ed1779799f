//! Batches that wait for full queues: they are counted, and while there are many, no further ones are made.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tokio::sync::Notify;

use tributary_memory::{MemoryBudget, MemoryLease};

/// While this many bytes of one listener wait, in memory or in the output, no further batch is made.
const MAX_WAITING_BYTES: u64 = 1 << 20;

/// The batches of one listener that wait for full queues.
#[derive(Debug)]
pub(super) struct Overflow {
    bytes: AtomicU64,
    has_shrunk: Notify,
    memory: Arc<MemoryBudget>,
}

impl Default for Overflow {
    fn default() -> Self {
        Overflow::new(MemoryBudget::unlimited())
    }
}

impl Overflow {
    /// Batches that wait are counted in `memory`.
    pub(super) fn new(memory: Arc<MemoryBudget>) -> Self {
        Overflow { bytes: AtomicU64::new(0), has_shrunk: Notify::new(), memory }
    }

    #[inline]
    pub(super) fn has_capacity(&self) -> bool {
        self.bytes.load(Relaxed) < MAX_WAITING_BYTES
    }

    pub(super) async fn wait_for_capacity(&self) {
        loop {
            let has_shrunk = self.has_shrunk.notified();
            if self.has_capacity() {
                return;
            }
            has_shrunk.await;
        }
    }

    /// Counts a batch of this size, in memory and in the output, as waiting until the guard is dropped. It is counted
    /// even if it exceeds the budget, since it exists: then the budget grants nothing else.
    pub(super) fn wait(&self, memory_bytes: u64, output_bytes: u64) -> OverflowGuard<'_> {
        let bytes = memory_bytes.max(output_bytes);
        self.bytes.fetch_add(bytes, Relaxed);
        let mut lease = self.memory.passing(0);
        let _ = lease.resize(memory_bytes);
        OverflowGuard { overflow: self, bytes, _lease: lease }
    }
}

/// Counts a batch as waiting until dropped.
#[derive(Debug)]
pub(super) struct OverflowGuard<'a> {
    overflow: &'a Overflow,
    bytes: u64,
    _lease: MemoryLease,
}

impl Drop for OverflowGuard<'_> {
    fn drop(&mut self) {
        self.overflow.bytes.fetch_sub(self.bytes, Relaxed);
        self.overflow.has_shrunk.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::task::Poll;

    #[tokio::test]
    async fn a_further_batch_waits_until_less_is_waiting_and_all_waiting_bytes_count() {
        let memory = MemoryBudget::new(100);
        let overflow = Overflow::new(memory.clone());
        let (first, second) = (overflow.wait(MAX_WAITING_BYTES - 1, 7), overflow.wait(1, 0));
        assert!(!overflow.has_capacity());
        assert_eq!(memory.used(), MAX_WAITING_BYTES, "more than its limit");
        let mut waits = Box::pin(overflow.wait_for_capacity());
        assert!(poll_fn(|context| Poll::Ready(waits.as_mut().poll(context))).await.is_pending());
        drop(second);
        waits.await;
        drop(first);
        let expanding = overflow.wait(100, MAX_WAITING_BYTES);
        assert_eq!((memory.used(), overflow.has_capacity()), (100, false), "its output is not memory, and counts too");
        drop(expanding);
        assert_eq!(memory.used(), 0);
    }
}
