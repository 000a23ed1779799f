//! What a listener counts of the stream of messages that it receives from.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use tributary_system::counters;
use tributary_system::counters::Counted;

counters! {
    /// The counters of a stream. Those of listeners that receive from none stay 0.
    #[derive(Default)]
    pub struct StreamCounters();
    /// Their values at one moment, in messages.
    pub struct StreamTotals {
        /// Why nothing can be received now. `None`: it can.
        fault: Mutex<Option<String>>,
        /// Not delivered to any daemon yet, when the server was asked last.
        pending: AtomicU64,
        /// Delivered to a daemon and not acknowledged, when the server was asked last.
        unacknowledged: AtomicU64,
        /// Received, and delivered before, to this daemon or another one.
        redelivered: AtomicU64,
        /// The events of these.
        redelivered_events: AtomicU64,
        /// Written to the quarantine.
        quarantined: AtomicU64,
    }
}

impl StreamCounters {
    /// Why nothing can be received now. `None`: it can.
    pub fn set_fault(&self, why: Option<String>) {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    /// Why nothing can be received now. `None`: it can.
    pub fn fault(&self) -> Option<String> {
        self.fault.value()
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
}
