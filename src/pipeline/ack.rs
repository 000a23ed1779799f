//! Delivery verdicts: nothing counts as delivered unless a sink said so.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;

use crate::event::{Origin, Reason};

use super::lane::LaneBooks;

/// What became of a batch's events at one sink. Ordered from good to bad.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Verdict {
    /// Written, and synced where the sink's configuration says so.
    Written,
    /// Let go by a full lane, as configured; a `loss` event says so.
    Shed,
    /// Not written, for a fault of ours.
    Failed,
}

/// Where the tickets of a delivery say what became of them. Dropped with the last of them, it tells the worst to whoever
/// waits: once, and so wakes it once.
#[derive(Debug)]
pub(super) struct Answer {
    worst: Mutex<Verdict>,
    told: Option<oneshot::Sender<Verdict>>,
}

impl Answer {
    /// An answer, and where it comes.
    pub(super) fn new() -> (Arc<Self>, oneshot::Receiver<Verdict>) {
        let (told, verdict) = oneshot::channel();
        (Arc::new(Answer { worst: Mutex::new(Verdict::Written), told: Some(told) }), verdict)
    }

    fn add(&self, verdict: Verdict) {
        let mut worst = self.worst.lock().unwrap_or_else(PoisonError::into_inner);
        *worst = verdict.max(*worst);
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        let worst = *self.worst.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(told) = self.told.take() {
            // Whoever asked may have stopped listening.
            let _ = told.send(worst);
        }
    }
}

/// One batch's claim on one sink. Dropped without a word (an error, a panic, an aborted task) it says
/// [`Verdict::Failed`].
#[derive(Debug)]
pub(super) struct Ticket {
    lane: Arc<LaneBooks>,
    origin: Option<Arc<Origin>>,
    events: u64,
    answer: Option<Arc<Answer>>,
    verdict: Verdict,
}

impl Ticket {
    /// Enters `events` into the sink's books.
    pub(super) fn new(
        lane: Arc<LaneBooks>,
        origin: Option<Arc<Origin>>,
        events: u64,
        answer: Option<Arc<Answer>>,
    ) -> Self {
        lane.sink.add_events(events);
        Ticket { lane, origin, events, answer, verdict: Verdict::Failed }
    }

    /// The sink has them.
    pub(super) fn written(mut self) {
        self.verdict = Verdict::Written;
    }

    /// The lane was full.
    pub(super) fn shed(mut self) {
        self.verdict = Verdict::Shed;
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        match self.verdict {
            Verdict::Written => self.lane.sink.add_written(self.events),
            Verdict::Shed => {
                self.lane.sink.add_shed(self.events);
                self.lane.owe(self.origin.take(), Reason::Shed, self.events);
            }
            Verdict::Failed => {
                self.lane.sink.add_failed(self.events);
                self.lane.owe(self.origin.take(), Reason::Failed, self.events);
            }
        }
        if let Some(answer) = &self.answer {
            answer.add(self.verdict);
        }
    }
}
