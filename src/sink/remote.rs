//! What a sink that sends requests over a network does now, for metrics and readiness.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use crate::histogram::{DurationTotals, Durations};
use crate::options::units::format_duration;

/// The state of a sink that sends requests. The sink writes it, and others read it at any time: its lock is never held while
/// something waits.
#[derive(Debug, Default)]
pub struct RemoteStatus {
    state: Mutex<RemoteState>,
    attempts: Durations,
}

/// What a sink that sends requests does at one moment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RemoteState {
    /// What waits is on the disk.
    pub is_spooled: bool,
    /// Requests that wait or are being sent.
    pub requests: u64,
    /// The events in them.
    pub events: u64,
    /// The size of the spool on the disk, in bytes.
    pub bytes: u64,
    /// When the oldest of these requests was made, if the sink knows.
    pub oldest: Option<SystemTime>,
    /// Attempts that failed and were repeated.
    pub retries: u64,
    /// Requests that the destination has refused for good.
    pub refused: u64,
    /// Requests with the profiles of heap dumps that the destination did not take. Their objects count as logs.
    pub refused_heap_profiles: u64,
    /// Why the last attempt failed, if no request has been settled since.
    pub fault: Option<String>,
    /// The destination takes nothing until an operator corrects something, or has not been reached since the start while
    /// no spool keeps events for it.
    pub is_blocked: bool,
    /// Why the spool has no room, if it has none.
    pub full: Option<String>,
    /// Why the sink cannot begin, if it cannot: its spool or its TLS files cannot be opened.
    pub cannot_start: Option<String>,
}

impl RemoteStatus {
    /// The present state.
    pub fn state(&self) -> RemoteState {
        self.locked().clone()
    }

    /// How long attempts took.
    pub fn attempts(&self) -> DurationTotals {
        self.attempts.totals()
    }

    pub(crate) fn update(&self, change: impl FnOnce(&mut RemoteState)) {
        change(&mut self.locked());
    }

    pub(super) fn attempted(&self, took: Duration) {
        self.attempts.add(took);
    }

    fn locked(&self) -> MutexGuard<'_, RemoteState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RemoteState {
    /// For how long the oldest request has waited.
    pub fn age(&self) -> Option<Duration> {
        self.oldest.map(|oldest| SystemTime::now().duration_since(oldest).unwrap_or_default())
    }
}

impl fmt::Display for RemoteState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RemoteState { requests, events, .. } = self;
        if let Some(fault) = &self.cannot_start {
            return f.write_str(fault);
        }
        if let Some(full) = &self.full {
            write!(f, "{full}; ")?;
        }
        let place = if self.is_spooled { "the spool" } else { "memory" };
        let end = |number: u64| if number == 1 { "" } else { "s" };
        let verb = if *events == 1 { "waits" } else { "wait" };
        write!(f, "{events} event{} in {requests} request{} {verb} in {place}", end(*events), end(*requests))?;
        if let Some(age) = self.age() {
            write!(f, ", the oldest for {}", format_duration(Duration::from_secs(age.as_secs())))?;
        }
        match &self.fault {
            Some(fault) => write!(f, "; last error: {fault}"),
            None => Ok(()),
        }
    }
}
