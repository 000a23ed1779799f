//! The state that the two sockets of a process share.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::time::Instant;

use super::super::Counts;
use super::dialect::RbkitDialect;
use super::report::Received;

/// One process.
#[derive(Debug)]
pub(super) struct SharedProcess {
    pub(super) dialect: RbkitDialect,
    state: Mutex<ProcessState>,
    /// A request has changed something.
    pub(super) changed: Notify,
}

#[derive(Debug, Default)]
struct ProcessState {
    requested: Requested,
    counts: Counts,
    bytes: u64,
    received: Received,
}

/// What collectors have requested.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Requested {
    /// The memory profile is on.
    pub(super) memory: bool,
    /// The CPU profile is on.
    pub(super) cpu: bool,
    /// The clock of the next CPU profile is the wall clock.
    pub(super) wall_clock: bool,
    /// Garbage collections to do.
    pub(super) collections: u32,
    /// Heap dumps to send.
    pub(super) dumps: u32,
    /// When a profile was switched on or off last.
    pub(super) switched: Option<Instant>,
}

impl SharedProcess {
    pub(super) fn new(dialect: RbkitDialect) -> Self {
        SharedProcess { dialect, state: Mutex::default(), changed: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, ProcessState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn requested(&self) -> Requested {
        self.state().requested
    }

    /// Applies a request. Returns the result of `change`.
    pub(super) fn request<T>(&self, change: impl FnOnce(&mut Requested) -> T) -> T {
        let mut state = self.state();
        let Requested { memory, cpu, .. } = state.requested;
        let result = change(&mut state.requested);
        if (state.requested.memory, state.requested.cpu) != (memory, cpu) {
            state.requested.switched = Some(Instant::now());
        }
        drop(state);
        self.changed.notify_one();
        result
    }

    /// What is requested. Collections and dumps are taken: the next call does not return them.
    pub(super) fn take_requested(&self) -> Requested {
        let mut state = self.state();
        let taken = state.requested;
        state.requested = Requested { collections: 0, dumps: 0, ..taken };
        taken
    }

    /// Counts what was sent.
    pub(super) fn count(&self, counts: Counts) {
        self.state().counts += counts;
    }

    pub(super) fn count_bytes(&self, bytes: usize) {
        self.state().bytes += bytes as u64;
    }

    pub(super) fn count_received(&self, change: impl FnOnce(&mut Received)) {
        change(&mut self.state().received);
    }

    pub(super) fn received(&self) -> Received {
        self.state().received.clone()
    }

    /// Everything counted so far, and the bytes.
    pub(super) fn total(&self) -> (Counts, u64) {
        let state = self.state();
        (state.counts, state.bytes)
    }
}
