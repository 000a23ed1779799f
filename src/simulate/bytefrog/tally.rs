//! What one agent has sent, as far as all its connections must know.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::super::Counts;

/// The counts of an agent's connections.
#[derive(Debug, Default)]
pub(super) struct Tally {
    sent: Mutex<(Counts, u64)>,
    /// Buffers that hold something in the program.
    filling: AtomicUsize,
    /// Buffers on their way to the collector.
    queued: AtomicUsize,
    /// Whether every data connection has said hello.
    greeted: AtomicBool,
}

impl Tally {
    /// Counts what the system has taken: messages, events, and so many bytes.
    pub(super) fn sent(&self, counts: Counts, bytes: usize) {
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        sent.0 += counts;
        sent.1 += bytes as u64;
    }

    /// All that was counted: messages, events and bytes.
    pub(super) fn total(&self) -> (Counts, u64) {
        *self.sent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last data hello is with the system.
    pub(super) fn greet(&self) {
        self.greeted.store(true, Ordering::Relaxed);
    }

    /// Whether every data connection has said hello.
    pub(super) fn has_greeted(&self) -> bool {
        self.greeted.load(Ordering::Relaxed)
    }

    pub(super) fn set_filling(&self, buffers: usize) {
        self.filling.store(buffers, Ordering::Relaxed);
    }

    pub(super) fn queue(&self) {
        self.queued.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn unqueue(&self) {
        self.queued.fetch_sub(1, Ordering::Relaxed);
    }

    /// What heartbeats tell: buffers with something to send.
    pub(super) fn readable_buffers(&self) -> u16 {
        let buffers = self.filling.load(Ordering::Relaxed) + self.queued.load(Ordering::Relaxed);
        u16::try_from(buffers).unwrap_or(u16::MAX)
    }
}
