//! The memory of one request: its body, and of HTTP/2 its head and its stream.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use tributary_memory::{MemoryBudget, MemoryLease};
use tributary_protocol::RequestHead;

use super::http_state::SMALL_BODY_BYTES;

/// What the tasks and the state of a stream take.
const STREAM_BYTES: u64 = 8 << 10;

/// The memory of one request; given back when dropped.
#[derive(Debug)]
pub(super) struct RequestMemory {
    lease: MemoryLease,
    /// What the request takes beside its body.
    own_bytes: u64,
    /// That it uses what the connection was admitted with.
    _of_connection: Option<OwnedSemaphorePermit>,
}

impl RequestMemory {
    /// For the only request of a connection. The lease of the connection includes its head and a small body.
    pub(super) fn of_connection(memory: &Arc<MemoryBudget>) -> Self {
        RequestMemory { lease: memory.passing(SMALL_BODY_BYTES), own_bytes: 0, _of_connection: None }
    }

    /// For one of several requests of a connection. The one that has the only permit of `of_connection` uses the lease of the
    /// connection, which includes a head of `max_head_bytes`; the others take everything of the shared memory.
    pub(super) fn of_stream(
        memory: &Arc<MemoryBudget>,
        head: &RequestHead,
        max_head_bytes: usize,
        of_connection: &Arc<Semaphore>,
    ) -> Self {
        let permit = of_connection.clone().try_acquire_owned().ok();
        let floor = if permit.is_some() { SMALL_BODY_BYTES + 2 * max_head_bytes as u64 } else { 0 };
        let headers = head.headers.iter().map(|(name, value)| name.len() + value.len());
        // It exists twice: as hyper has read it, and as exchanges see it.
        let own_bytes = STREAM_BYTES + 2 * (head.target.len() + headers.sum::<usize>()) as u64;
        RequestMemory { lease: memory.passing(floor), own_bytes, _of_connection: permit }
    }

    /// Sets the size of the body. `false`: there is not enough memory for that.
    #[must_use]
    pub(super) fn resize(&mut self, body: u64) -> bool {
        self.lease.resize(self.own_bytes + body)
    }

    /// Remembers that the last size was refused at this time.
    pub(super) fn note_refusal(&self, elapsed: Duration) {
        self.lease.note_refusal(elapsed);
    }
}
