//! Whether the daemon makes progress: a process that takes in and gives nothing out is not well, however busy it is.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::pipeline::ledger::SinkAccount;

use super::Subject;

/// What was seen of each sink's progress.
#[derive(Debug)]
pub(super) struct Health {
    stall_time: Duration,
    sinks: Mutex<Vec<Seen>>,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    /// Events that the sink is done with, one way or another.
    done: u64,
    /// Since when nothing has been added to them although there are more; None: there are none.
    stalled_since: Option<Instant>,
}

impl Health {
    pub(super) fn new(subject: &Subject) -> Self {
        let fresh = |sink: &SinkAccount| Seen { done: done(sink), stalled_since: None };
        let sinks = subject.ledger.accounts().sinks.iter().map(fresh).collect();
        Health { stall_time: subject.stall_time, sinks: Mutex::new(sinks) }
    }

    /// Looks whether the sinks have moved; from time to time.
    pub(super) fn look(&self, subject: &Subject) {
        let mut sinks = self.sinks.lock().unwrap_or_else(PoisonError::into_inner);
        for (seen, sink) in sinks.iter_mut().zip(subject.ledger.accounts().sinks) {
            let done = done(&sink);
            let has_moved = done != seen.done;
            let is_owing = sink.in_motion() > 0;
            seen.done = done;
            seen.stalled_since = match seen.stalled_since {
                Some(since) if is_owing && !has_moved => Some(since),
                _ => is_owing.then(Instant::now),
            };
        }
    }

    /// Why the daemon should not be sent anything just now; None: it should.
    pub(super) fn not_ready(&self, subject: &Subject) -> Option<String> {
        if subject.stop.is_cancelled() {
            return Some("the daemon is stopping".to_owned());
        }
        if subject.memory.used() >= subject.memory.limit() {
            return Some("memory is at its limit (limits.memory_bytes)".to_owned());
        }
        self.look(subject);
        let sinks = self.sinks.lock().unwrap_or_else(PoisonError::into_inner);
        subject.ledger.accounts().sinks.iter().zip(sinks.iter()).find_map(|(sink, seen)| {
            let stalled = seen.stalled_since.map(|since| since.elapsed()).filter(|time| *time >= self.stall_time);
            match (sink, stalled) {
                (sink, _) if sink.dead => Some(format!("sink {} has failed for good", sink.name)),
                (sink, _) if sink.holding => Some(format!("sink {} cannot write", sink.name)),
                (sink, Some(time)) => Some(format!(
                    "sink {} has {} events and has taken none for {} s",
                    sink.name,
                    sink.in_motion(),
                    time.as_secs()
                )),
                _ => None,
            }
        })
    }
}

fn done(sink: &SinkAccount) -> u64 {
    sink.written + sink.shed + sink.failed
}
