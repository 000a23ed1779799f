//! What a sink that sends over a network does now, for metrics, readiness and the log.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use super::outage_log::OutageLog;
use tributary_options::units::format_duration;
use tributary_system::counters::Counted as _;
use tributary_system::histogram::{DurationTotals, Durations};
use tributary_system::wall_clock;

/// A sink without a spool whose destination has taken nothing for this time is not ready.
const NOT_READY_AFTER: Duration = Duration::from_secs(1);
/// A longer pause before the next attempt is shown.
const SHOWN_PAUSE: Duration = Duration::from_secs(10);

/// The state of a sink that sends over a network. The sink writes it, and others read it at any time: its lock is never held
/// while something waits.
#[derive(Debug, Default)]
pub struct RemoteStatus {
    state: Mutex<RemoteState>,
    attempts: Durations,
    log: OutageLog,
    /// The next attempt is to be made now.
    again: Notify,
    /// The destination takes what is sent again.
    back: Arc<Notify>,
}

/// Whether a destination takes what is sent to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DestinationState {
    /// It does, as far as is known.
    #[default]
    Ready,
    /// It cannot be reached, or does not take anything now.
    Away,
    /// It takes nothing until an operator corrects something, here or there.
    Refusing,
}

impl DestinationState {
    /// Every state.
    pub const ALL: [DestinationState; 3] =
        [DestinationState::Ready, DestinationState::Away, DestinationState::Refusing];

    /// The name in metrics and on the page.
    pub fn as_str(self) -> &'static str {
        match self {
            DestinationState::Ready => "ready",
            DestinationState::Away => "away",
            DestinationState::Refusing => "refusing",
        }
    }
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
    /// Whether the destination takes what is sent to it.
    pub destination: DestinationState,
    /// Since when the destination is not ready.
    pub since: Option<SystemTime>,
    /// When the request whose attempt failed last is sent again.
    pub next_attempt: Option<SystemTime>,
    /// Why the spool has no space, if it has none.
    pub full: Option<String>,
    /// Why the sink cannot begin, if it cannot: its spool or its TLS files cannot be opened.
    pub cannot_start: Option<String>,
}

impl RemoteStatus {
    /// The status of a sink that sends to this endpoint.
    pub fn new(sink: &str, endpoint: &str) -> RemoteStatus {
        RemoteStatus { log: OutageLog::new(sink, endpoint), ..RemoteStatus::default() }
    }

    /// The name of the sink.
    pub fn sink(&self) -> &str {
        self.log.sink()
    }

    /// The present state.
    pub fn state(&self) -> RemoteState {
        self.locked().clone()
    }

    /// How long attempts took.
    pub fn attempts(&self) -> DurationTotals {
        self.attempts.value()
    }

    /// Changes the state.
    pub fn update(&self, change: impl FnOnce(&mut RemoteState)) {
        change(&mut self.locked());
    }

    /// Counts an attempt that took this long.
    pub fn attempted(&self, took: Duration) {
        self.attempts.add(took);
    }

    /// An attempt has failed; the next one is made after this pause.
    pub fn note_outage(&self, destination: DestinationState, why: String, pause: Duration) {
        let now = SystemTime::now();
        self.update(|state| {
            (state.destination, state.fault) = (destination, Some(why));
            state.since = state.since.or(Some(now));
            state.next_attempt = now.checked_add(pause);
        });
        self.log();
    }

    /// The destination has taken something, or has answered about one request only.
    pub fn note_ready(&self) {
        let mut before = DestinationState::Ready;
        self.update(|state| {
            before = std::mem::take(&mut state.destination);
            (state.fault, state.since, state.next_attempt) = (None, None, None);
        });
        if before != DestinationState::Ready {
            self.back.notify_waiters();
            self.log();
        }
    }

    /// Logs an outage as often as it is to be logged, and its end. To be called about once a second.
    pub fn log(&self) {
        self.log.note(&self.state());
    }

    /// An operator may have corrected something: what waits for its next attempt is sent now.
    pub fn try_again(&self) {
        self.again.notify_waiters();
    }

    /// Ready when the next attempt is to be made before its pause is over.
    pub fn asked_again(&self) -> Notified<'_> {
        self.again.notified()
    }

    /// Notified when the destination takes what is sent again.
    pub fn back(&self) -> Arc<Notify> {
        self.back.clone()
    }

    fn locked(&self) -> MutexGuard<'_, RemoteState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RemoteState {
    /// For how long the oldest request has waited.
    pub fn age(&self) -> Option<Duration> {
        self.oldest.map(wall_clock::age_of)
    }

    /// Whether the destination has taken nothing for some time, and no spool keeps events for it.
    pub fn is_not_ready(&self) -> bool {
        let lasts = self.since.is_some_and(|since| wall_clock::age_of(since) >= NOT_READY_AFTER);
        self.destination != DestinationState::Ready && !self.is_spooled && lasts
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
        let seconds = |duration: Duration| format_duration(Duration::from_secs(duration.as_secs()));
        let end = |number: u64| if number == 1 { "" } else { "s" };
        let verb = if *events == 1 { "waits" } else { "wait" };
        write!(f, "{events} event{} ", end(*events))?;
        // A stream has no requests.
        if *requests > 0 || *events == 0 {
            write!(f, "in {requests} request{} ", end(*requests))?;
        }
        write!(f, "{verb} in {place}")?;
        if let Some(age) = self.age() {
            write!(f, ", the oldest for {}", seconds(age))?;
        }
        if let Some(fault) = &self.fault {
            write!(f, "; last error: {fault}")?;
        }
        let pause = self.next_attempt.and_then(|at| at.duration_since(SystemTime::now()).ok());
        match pause.filter(|pause| *pause >= SHOWN_PAUSE) {
            Some(pause) => write!(f, "; the next attempt is in {}", seconds(pause)),
            None => Ok(()),
        }
    }
}
