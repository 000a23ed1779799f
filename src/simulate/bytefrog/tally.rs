//! The counts of one agent that all its connections share.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::super::Counts;

/// The counts of an agent's connections.
#[derive(Debug, Default)]
pub(super) struct Tally {
    sent: Mutex<(Counts, u64)>,
    /// Buffers with content in the program.
    filling: AtomicUsize,
    /// Buffers that are being sent.
    queued: AtomicUsize,
}

impl Tally {
    /// Counts what the system has accepted: messages, events and bytes.
    pub(super) fn sent(&self, counts: Counts, bytes: usize) {
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        sent.0 += counts;
        sent.1 += bytes as u64;
    }

    /// All counts: messages, events and bytes.
    pub(super) fn total(&self) -> (Counts, u64) {
        *self.sent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_filling(&self, buffers: usize) {
        self.filling.store(buffers, Ordering::Relaxed);
    }

    pub(super) fn queue(&self) {
        self.queued.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn buffer_sent(&self) {
        self.queued.fetch_sub(1, Ordering::Relaxed);
    }

    /// The number in heartbeats: buffers with something to send.
    pub(super) fn readable_buffers(&self) -> u16 {
        let buffers = self.filling.load(Ordering::Relaxed) + self.queued.load(Ordering::Relaxed);
        u16::try_from(buffers).unwrap_or(u16::MAX)
    }
}
