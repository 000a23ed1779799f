//! Delivery verdicts: nothing counts as delivered unless a sink said so.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;

use crate::event::{Origin, Reason};

use super::queue::SinkQueueState;

/// What became of a batch's events at one sink. Ordered from good to bad.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum DeliveryOutcome {
    /// Written, and synced where the sink's configuration says so.
    Written,
    /// Let go by a full queue, as configured; a `loss` event says so.
    Shed,
    /// Not written, for a fault of ours.
    Failed,
}

/// Where the handles of a delivery say what became of them. Dropped with the last of them, it tells the worst to whoever
/// waits: once, and so wakes it once.
#[derive(Debug)]
pub(super) struct OutcomeSender {
    worst: Mutex<DeliveryOutcome>,
    told: Option<oneshot::Sender<DeliveryOutcome>>,
}

impl OutcomeSender {
    /// An answer, and where it comes.
    pub(super) fn new() -> (Arc<Self>, oneshot::Receiver<DeliveryOutcome>) {
        let (told, verdict) = oneshot::channel();
        (Arc::new(OutcomeSender { worst: Mutex::new(DeliveryOutcome::Written), told: Some(told) }), verdict)
    }

    fn add(&self, verdict: DeliveryOutcome) {
        let mut worst = self.worst.lock().unwrap_or_else(PoisonError::into_inner);
        *worst = verdict.max(*worst);
    }
}

impl Drop for OutcomeSender {
    fn drop(&mut self) {
        let worst = *self.worst.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(told) = self.told.take() {
            // Whoever asked may have stopped listening.
            let _ = told.send(worst);
        }
    }
}

/// One batch's claim on one sink. Dropped without a word (an error, a panic, an aborted task) it says
/// [`DeliveryOutcome::Failed`].
#[derive(Debug)]
pub(super) struct DeliveryHandle {
    queue: Arc<SinkQueueState>,
    origin: Option<Arc<Origin>>,
    events: u64,
    answer: Option<Arc<OutcomeSender>>,
    verdict: DeliveryOutcome,
}

impl DeliveryHandle {
    /// Enters `events` into the sink's counters.
    pub(super) fn new(
        queue: Arc<SinkQueueState>,
        origin: Option<Arc<Origin>>,
        events: u64,
        answer: Option<Arc<OutcomeSender>>,
    ) -> Self {
        queue.sink.add_events(events);
        DeliveryHandle { queue, origin, events, answer, verdict: DeliveryOutcome::Failed }
    }

    /// The connection that the batch comes from.
    pub(super) fn origin(&self) -> Option<&Arc<Origin>> {
        self.origin.as_ref()
    }

    /// The sink has them.
    pub(super) fn written(mut self) {
        self.verdict = DeliveryOutcome::Written;
    }

    /// The queue was full.
    pub(super) fn shed(mut self) {
        self.verdict = DeliveryOutcome::Shed;
    }
}

impl Drop for DeliveryHandle {
    fn drop(&mut self) {
        match self.verdict {
            DeliveryOutcome::Written => self.queue.sink.add_written(self.events),
            DeliveryOutcome::Shed => {
                self.queue.sink.add_shed(self.events);
                self.queue.add_pending_loss(self.origin.take(), Reason::Shed, self.events);
            }
            DeliveryOutcome::Failed => {
                self.queue.sink.add_failed(self.events);
                self.queue.add_pending_loss(self.origin.take(), Reason::Failed, self.events);
            }
        }
        if let Some(answer) = &self.answer {
            answer.add(self.verdict);
        }
    }
}
