//! Delivery outcomes: a batch counts as delivered only when every sink has confirmed it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use tributary_event::Origin;
use tributary_sink::{AckLevel, LossCause};

use super::queue::SinkQueueState;

/// What became of a batch at one sink, ordered from best to worst.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum DeliveryOutcome {
    /// It has reached the level that the delivery asks for, and is synced where the sink's configuration says so.
    Written,
    /// Dropped because the queue was full, as configured; a `loss` event reports it.
    Shed,
    /// Not written, because of a fault on our side.
    Failed,
}

/// The level at which the requests of a listener are acknowledged. A reload can change it while the listener serves.
#[derive(Clone, Debug, Default)]
pub struct RequestedLevel(Arc<AtomicBool>);

impl RequestedLevel {
    /// This level.
    pub fn new(level: AckLevel) -> Self {
        let requested = RequestedLevel::default();
        requested.set(level);
        requested
    }

    /// From now on deliveries ask for this level.
    pub fn set(&self, level: AckLevel) {
        self.0.store(level == AckLevel::Durable, Ordering::Relaxed);
    }

    /// The level.
    pub fn get(&self) -> AckLevel {
        if self.0.load(Ordering::Relaxed) { AckLevel::Durable } else { AckLevel::Written }
    }
}

/// The sinks that have not confirmed a delivery yet.
#[derive(Clone, Debug, Default)]
pub struct Unconfirmed(Arc<Mutex<Vec<Arc<SinkQueueState>>>>);

impl Unconfirmed {
    /// Whether one of them is known to be unable to write.
    pub fn is_stuck(&self) -> bool {
        self.locked().iter().any(|queue| queue.is_down())
    }

    fn add(&self, queue: &Arc<SinkQueueState>) {
        self.locked().push(queue.clone());
    }

    fn remove(&self, queue: &Arc<SinkQueueState>) {
        let mut queues = self.locked();
        if let Some(index) = queues.iter().position(|known| Arc::ptr_eq(known, queue)) {
            queues.swap_remove(index);
        }
    }

    fn locked(&self) -> MutexGuard<'_, Vec<Arc<SinkQueueState>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Collects the outcomes of a delivery. When the last handle drops it, it sends the worst of them.
#[derive(Debug)]
pub(super) struct OutcomeSender {
    unconfirmed: Unconfirmed,
    level: AckLevel,
    worst: Mutex<DeliveryOutcome>,
    sender: Option<oneshot::Sender<DeliveryOutcome>>,
}

impl OutcomeSender {
    /// A sender and its receiver, for a delivery that asks for this level.
    pub(super) fn new(level: AckLevel) -> (Arc<Self>, oneshot::Receiver<DeliveryOutcome>) {
        let (sender, outcome) = oneshot::channel();
        let worst = Mutex::new(DeliveryOutcome::Written);
        let unconfirmed = Unconfirmed::default();
        (Arc::new(OutcomeSender { unconfirmed, level, worst, sender: Some(sender) }), outcome)
    }

    pub(super) fn unconfirmed(&self) -> Unconfirmed {
        self.unconfirmed.clone()
    }

    pub(super) fn level(&self) -> AckLevel {
        self.level
    }

    fn add(&self, outcome: DeliveryOutcome) {
        let mut worst = self.worst.lock().unwrap_or_else(PoisonError::into_inner);
        *worst = outcome.max(*worst);
    }
}

impl Drop for OutcomeSender {
    fn drop(&mut self) {
        let worst = *self.worst.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = self.sender.take() {
            // The receiver may be gone.
            let _ = sender.send(worst);
        }
    }
}

/// Accounts for one batch at one sink. If it is dropped without an outcome (an error, a panic, an aborted task), the outcome
/// is [`DeliveryOutcome::Failed`].
#[derive(Debug)]
pub(super) struct DeliveryHandle {
    queue: Arc<SinkQueueState>,
    origin: Option<Arc<Origin>>,
    events: u64,
    /// Of a batch that fails: how many of its events are not in the output. All of them, unless the sink says more.
    unwritten: u64,
    /// How many of them the sink has dropped. None: it has dropped none of the batch.
    dropped: Option<u64>,
    outcome_sender: Option<Arc<OutcomeSender>>,
    outcome: DeliveryOutcome,
    /// The sink has taken the events, and counts itself what becomes of them.
    is_counted_by_sink: bool,
}

impl DeliveryHandle {
    /// Counts `events` for the sink.
    pub(super) fn new(
        queue: Arc<SinkQueueState>,
        origin: Option<Arc<Origin>>,
        events: u64,
        outcome_sender: Option<Arc<OutcomeSender>>,
    ) -> Self {
        queue.sink.add_events(events);
        match &outcome_sender {
            Some(sender) => sender.unconfirmed.add(&queue),
            None => queue.add_unawaited(),
        }
        let outcome = DeliveryOutcome::Failed;
        let (unwritten, dropped) = (events, None);
        DeliveryHandle { queue, origin, events, unwritten, dropped, outcome_sender, outcome, is_counted_by_sink: false }
    }

    /// The connection that the batch comes from.
    pub(super) fn origin(&self) -> Option<&Arc<Origin>> {
        self.origin.as_ref()
    }

    /// The level at which the batch counts as delivered.
    pub(super) fn level(&self) -> AckLevel {
        self.outcome_sender.as_ref().map_or(AckLevel::Written, |sender| sender.level())
    }

    /// The number of its events, if a peer waits for the outcome: it sends them again until they are confirmed.
    pub(super) fn awaited_events(&self) -> u64 {
        if self.is_awaited() { self.events } else { 0 }
    }

    /// Whether a peer waits for the outcome.
    pub(super) fn is_awaited(&self) -> bool {
        self.outcome_sender.is_some()
    }

    /// The sink has taken the events, and counts itself what becomes of them: [`Sink::progress`](tributary_sink::Sink::progress).
    pub(super) fn counted_by_sink(&mut self) {
        self.queue.sink.add_taken(self.events);
        self.is_counted_by_sink = true;
    }

    /// The sink holds nothing of the batch any more: what it has not dropped, now or earlier, has reached the level that the
    /// delivery asks for. A batch with dropped events fails.
    pub(super) fn settled(mut self) {
        if self.dropped.is_some() {
            self.note_held(0);
        } else {
            self.outcome = DeliveryOutcome::Written;
        }
    }

    /// The sink has dropped `events` more, and the others are in its output or held.
    pub(super) fn note_dropped(&mut self, events: u64) {
        self.dropped = Some(self.dropped.unwrap_or(0) + events);
        self.note_held(0);
    }

    /// The sink holds `events` of the batch, and the others are in its output or dropped.
    pub(super) fn note_held(&mut self, events: u64) {
        self.unwritten = self.events.min(self.dropped.unwrap_or(0) + events);
    }

    /// The sink ends, and at most this many events more are in its output. Returns how many of this batch are.
    pub(super) fn written_up_to(mut self, events: u64) -> u64 {
        let written = self.unwritten.saturating_sub(self.dropped.unwrap_or(0)).min(events);
        self.unwritten -= written;
        if written == self.events && self.dropped.is_none() {
            self.outcome = DeliveryOutcome::Written;
        }
        written
    }

    /// The sink has no time for the events, and nothing is missing anywhere else. Returns their number.
    pub(super) fn skipped(mut self) -> u64 {
        self.outcome = DeliveryOutcome::Written;
        self.events
    }

    /// The queue was full.
    pub(super) fn shed(mut self) {
        self.outcome = DeliveryOutcome::Shed;
    }
}

impl Drop for DeliveryHandle {
    fn drop(&mut self) {
        match self.outcome {
            DeliveryOutcome::Written if self.is_counted_by_sink => {}
            DeliveryOutcome::Written => self.queue.sink.add_written(self.events),
            DeliveryOutcome::Shed => {
                self.queue.sink.add_shed(self.events);
                self.queue.add_pending_loss(self.origin.take(), LossCause::QueueFull, self.events);
            }
            DeliveryOutcome::Failed => {
                if !self.is_counted_by_sink {
                    self.queue.sink.add_written(self.events - self.unwritten);
                    self.queue.sink.add_failed(self.unwritten);
                }
                if self.unwritten > 0 {
                    self.queue.add_pending_loss(self.origin.take(), LossCause::Failed, self.unwritten);
                }
            }
        }
        match &self.outcome_sender {
            Some(sender) => {
                sender.unconfirmed.remove(&self.queue);
                sender.add(self.outcome);
            }
            None => self.queue.remove_unawaited(),
        }
    }
}
