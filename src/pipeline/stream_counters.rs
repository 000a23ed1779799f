//! What a listener counts of the stream of messages that it receives from.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// The counters of a stream. Those of listeners that receive from none stay 0.
#[derive(Debug, Default)]
pub struct StreamCounters {
    fault: Mutex<Option<String>>,
    pending: AtomicU64,
    unacknowledged: AtomicU64,
    redelivered: AtomicU64,
    redelivered_events: AtomicU64,
    quarantined: AtomicU64,
}

/// Their values at one moment, in messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamTotals {
    /// Not delivered to any daemon yet, when the server was asked last.
    pub pending: u64,
    /// Delivered to a daemon and not acknowledged, when the server was asked last.
    pub unacknowledged: u64,
    /// Received, and delivered before, to this daemon or another one.
    pub redelivered: u64,
    /// The events of these.
    pub redelivered_events: u64,
    /// Written to the quarantine.
    pub quarantined: u64,
}

impl StreamCounters {
    /// Why nothing can be received now. `None`: it can.
    pub fn set_fault(&self, why: Option<String>) {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    /// Why nothing can be received now. `None`: it can.
    pub fn fault(&self) -> Option<String> {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What the server says of its consumer.
    pub fn set_backlog(&self, pending: u64, unacknowledged: u64) {
        self.pending.store(pending, Relaxed);
        self.unacknowledged.store(unacknowledged, Relaxed);
    }

    /// Counts a message that was delivered before.
    pub fn add_redelivered(&self) {
        self.redelivered.fetch_add(1, Relaxed);
    }

    /// Counts events of such a message.
    pub fn add_redelivered_events(&self, events: u64) {
        self.redelivered_events.fetch_add(events, Relaxed);
    }

    /// Counts a message that was written to the quarantine.
    pub fn add_quarantined(&self) {
        self.quarantined.fetch_add(1, Relaxed);
    }

    /// The current values.
    pub fn totals(&self) -> StreamTotals {
        StreamTotals {
            pending: self.pending.load(Relaxed),
            unacknowledged: self.unacknowledged.load(Relaxed),
            redelivered: self.redelivered.load(Relaxed),
            redelivered_events: self.redelivered_events.load(Relaxed),
            quarantined: self.quarantined.load(Relaxed),
        }
    }
}
