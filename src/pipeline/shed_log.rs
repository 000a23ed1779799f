//! The log line about events that a full sink sheds: at most one a minute for each listener.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tracing::warn;

use tributary_memory::log_throttle::LogThrottle;

/// What one sink has shed, by listener.
#[derive(Debug, Default)]
pub(super) struct ShedLog(Mutex<HashMap<Arc<str>, Shed>>);

#[derive(Debug, Default)]
struct Shed {
    throttle: LogThrottle,
    /// Events since the last line.
    events: u64,
}

impl ShedLog {
    /// Events of a listener were shed.
    pub(super) fn shed(&self, sink: &str, listener: &Arc<str>, events: u64) {
        if let Some(events) = self.add(listener, events) {
            let listener = &**listener;
            warn!(sink, listener, events, "the sink is full and its queue has shed events (when_full, max_stall)");
        }
    }

    /// The number of events to log: those since the last line.
    fn add(&self, listener: &Arc<str>, events: u64) -> Option<u64> {
        let mut listeners = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let shed = match listeners.get_mut(listener) {
            Some(shed) => shed,
            None => listeners.entry(listener.clone()).or_default(),
        };
        shed.events += events;
        shed.throttle.permit().map(|_| std::mem::take(&mut shed.events))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_listener_has_a_line_of_its_own_and_the_next_one_has_what_was_shed_meanwhile() {
        let log = ShedLog::default();
        let (one, two): (Arc<str>, Arc<str>) = ("one".into(), "two".into());
        assert_eq!((log.add(&one, 5), log.add(&one, 6), log.add(&two, 7)), (Some(5), None, Some(7)));
        assert_eq!(log.0.lock().unwrap()[&one].events, 6);
    }
}
