//! Batches that are made and find their queues full: counted, and no more made while there are many.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tokio::sync::Notify;

use crate::memory::{MemoryBudget, MemoryLease};

/// No further batch is made while so many bytes of a listener's wait.
const MOST_WAITING_BYTES: u64 = 1 << 20;

/// What of one listener waits for full queues.
#[derive(Debug)]
pub(super) struct Overflow {
    bytes: AtomicU64,
    less: Notify,
    memory: Arc<MemoryBudget>,
}

impl Default for Overflow {
    fn default() -> Self {
        Overflow::new(MemoryBudget::unlimited())
    }
}

impl Overflow {
    /// What waits takes its memory from `memory`.
    pub(super) fn new(memory: Arc<MemoryBudget>) -> Self {
        Overflow { bytes: AtomicU64::new(0), less: Notify::new(), memory }
    }

    #[inline]
    pub(super) fn has_capacity(&self) -> bool {
        self.bytes.load(Relaxed) < MOST_WAITING_BYTES
    }

    pub(super) async fn wait_for_capacity(&self) {
        loop {
            let less = self.less.notified();
            if self.has_capacity() {
                return;
            }
            less.await;
        }
    }

    /// A batch of so many bytes waits for as long as the answer lives. It is there, so it counts, also when the budget has
    /// no room for it: then nothing else gets any.
    pub(super) fn wait(&self, bytes: u64) -> Waiting<'_> {
        self.bytes.fetch_add(bytes, Relaxed);
        let mut lease = self.memory.passing(0);
        let _ = lease.resize(bytes);
        Waiting { overflow: self, bytes, _lease: lease }
    }
}

/// A batch that waits.
#[derive(Debug)]
pub(super) struct Waiting<'a> {
    overflow: &'a Overflow,
    bytes: u64,
    _lease: MemoryLease,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.overflow.bytes.fetch_sub(self.bytes, Relaxed);
        self.overflow.less.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::task::Poll;

    #[tokio::test]
    async fn who_would_make_more_waits_until_less_is_waiting_and_all_of_it_counts() {
        let memory = MemoryBudget::new(100);
        let overflow = Overflow::new(memory.clone());
        let (first, second) = (overflow.wait(MOST_WAITING_BYTES - 1), overflow.wait(1));
        assert!(!overflow.has_capacity());
        assert_eq!(memory.used(), MOST_WAITING_BYTES, "over its limit, and told so");
        let mut waits = Box::pin(overflow.wait_for_capacity());
        assert!(poll_fn(|context| Poll::Ready(waits.as_mut().poll(context))).await.is_pending());
        drop(second);
        waits.await;
        drop(first);
        assert_eq!(memory.used(), 0);
    }
}
