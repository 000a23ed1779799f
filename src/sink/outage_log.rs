//! The log lines about a destination that takes nothing: the first at once, then one a minute, and one when it is back.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::{info, warn};

use super::remote::{DestinationState, RemoteState};

/// The shortest time between two lines about the same state.
const INTERVAL: Duration = Duration::from_secs(60);

/// Logs the outages of one destination. One that comes and goes several times a minute has a line a minute.
#[derive(Debug, Default)]
pub(super) struct OutageLog {
    sink: String,
    endpoint: String,
    lines: Mutex<LoggedOutage>,
}

#[derive(Debug, Default)]
struct LoggedOutage {
    /// When the last line was logged: that it is away, and that it refuses.
    last: [Option<Instant>; 2],
    /// The beginning of the present outage is logged.
    is_open: bool,
}

impl OutageLog {
    pub(super) fn new(sink: &str, endpoint: &str) -> OutageLog {
        OutageLog { sink: sink.to_owned(), endpoint: endpoint.to_owned(), lines: Mutex::default() }
    }

    pub(super) fn sink(&self) -> &str {
        &self.sink
    }

    /// Logs the present state if it is time to.
    pub(super) fn note(&self, state: &RemoteState) {
        let is_due =
            self.lines.lock().unwrap_or_else(PoisonError::into_inner).is_due(state.destination, Instant::now());
        if !is_due {
            return;
        }
        let OutageLog { sink, endpoint, .. } = self;
        let (waiting, error) = (state.events, state.fault.as_deref().unwrap_or_default());
        let since = state.since.and_then(|since| jiff::Timestamp::try_from(since).ok());
        let since = since.map(|since| since.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
        match state.destination {
            DestinationState::Ready => info!(sink, endpoint, waiting, "the destination takes what is sent again"),
            DestinationState::Away => {
                warn!(
                    sink,
                    endpoint, error, waiting, since, "the destination is away; what waits is sent when it is back"
                );
            }
            DestinationState::Refusing => warn!(
                sink,
                endpoint,
                error,
                waiting,
                since,
                "the destination refuses what is sent; correct the configuration, here or there; it is tried again, and at once after a reload"
            ),
        }
    }
}

impl LoggedOutage {
    fn is_due(&mut self, state: DestinationState, now: Instant) -> bool {
        let last = match state {
            DestinationState::Ready => return std::mem::take(&mut self.is_open),
            DestinationState::Away => &mut self.last[0],
            DestinationState::Refusing => &mut self.last[1],
        };
        let is_due = last.is_none_or(|last| now.saturating_duration_since(last) >= INTERVAL);
        if is_due {
            *last = Some(now);
            self.is_open = true;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_logged_at_once_then_once_a_minute_and_its_end_once() {
        use DestinationState::{Away, Ready, Refusing};
        let (mut lines, start) = (LoggedOutage::default(), Instant::now());
        let mut is_due = |state, seconds| lines.is_due(state, start + Duration::from_secs(seconds));
        assert!(!is_due(Ready, 0));
        assert!(is_due(Away, 1) && !is_due(Away, 60) && is_due(Away, 61));
        assert!(is_due(Refusing, 62) && !is_due(Away, 63), "another state is logged at once, and each once a minute");
        assert!(is_due(Ready, 64) && !is_due(Ready, 65));
        assert!(!is_due(Away, 66) && !is_due(Ready, 67), "an outage without a line has no end with one");
        assert!(is_due(Away, 121) && is_due(Ready, 122));
    }
}
