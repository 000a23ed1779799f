//! The bounded queue from the connections to one sink.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError, mpsc, watch};
use tokio::time::timeout;

use crate::event::{Batch, Origin, Reason, UnixNanos};
use crate::sink::{Kinds, Selection};

use super::accounting::{InQueue, SinkCounters};
use super::delivery::{DeliveryHandle, OutcomeSender};
use super::options::{QueueOptions, WhenFull};
use super::pending_losses::{LossReport, PendingLosses};
use super::shed_log::ShedLog;

/// The unit in which the memory of batches is counted.
const PERMIT_BYTES: usize = 1024;

/// A batch in the queue, with its share of the queue and its delivery handle.
#[derive(Debug)]
pub(super) struct QueuedBatch {
    contents: QueuedEvents,
    handle: DeliveryHandle,
}

/// A batch and its share of the queue.
#[derive(Debug)]
pub(super) struct QueuedEvents {
    batch: Arc<Batch>,
    _room: OwnedSemaphorePermit,
    _counted: InQueue,
}

impl QueuedBatch {
    fn new(batch: Arc<Batch>, handle: DeliveryHandle, room: OwnedSemaphorePermit, counters: &SinkQueueState) -> Self {
        let contents = QueuedEvents { batch, _room: room, _counted: counters.sink.in_queue() };
        QueuedBatch { contents, handle }
    }

    /// When the collector read the last of the events.
    pub(super) fn observed(&self) -> Option<UnixNanos> {
        self.contents.batch.events().last().map(|event| event.observed())
    }

    /// The batch, which is dropped when the sink has taken it, and the handle, which is kept until the sink has flushed it.
    pub(super) fn open(self) -> (QueuedEvents, DeliveryHandle) {
        (self.contents, self.handle)
    }
}

impl QueuedEvents {
    /// The events that the sink takes.
    pub(super) fn selection(&self, kinds: Kinds) -> Selection<'_> {
        Selection::new(&self.batch, kinds)
    }
}

/// The sending side of a queue. Cloned into every connection.
#[derive(Clone, Debug)]
pub(super) struct SinkQueue {
    options: Arc<QueueOptions>,
    queued_batches: mpsc::Sender<QueuedBatch>,
    room: Arc<Semaphore>,
    room_permits: u32,
    /// A batch has waited `max_wait` in vain, and the queue has had no room since.
    is_jammed: Arc<AtomicBool>,
    counters: Arc<SinkQueueState>,
}

/// What a queue's two sides share.
#[derive(Debug)]
pub(super) struct SinkQueueState {
    pub(super) sink: Arc<SinkCounters>,
    room: Arc<Semaphore>,
    pending: PendingLosses,
    shed_log: ShedLog,
    /// A connection of each listener whose events the sink holds because it cannot write them now. Connections of these
    /// listeners wait; those of others do not.
    held: watch::Sender<Vec<Arc<Origin>>>,
}

impl SinkQueue {
    /// A queue and its receiving end.
    pub(super) fn new(
        options: QueueOptions,
        sink: Arc<SinkCounters>,
    ) -> (SinkQueue, mpsc::Receiver<QueuedBatch>, Arc<SinkQueueState>) {
        let (queued_batches, receiver) = mpsc::channel(options.buffer_batches.max(1));
        let permits = usize::try_from(options.buffer_bytes).unwrap_or(usize::MAX).div_ceil(PERMIT_BYTES);
        let permits = permits.clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize));
        let room = Arc::new(Semaphore::new(permits));
        let counters = Arc::new(SinkQueueState {
            sink,
            room: room.clone(),
            pending: PendingLosses::default(),
            shed_log: ShedLog::default(),
            held: watch::Sender::default(),
        });
        let queue = SinkQueue {
            options: Arc::new(options),
            queued_batches,
            room,
            room_permits: permits as u32,
            is_jammed: Arc::default(),
            counters: counters.clone(),
        };
        (queue, receiver, counters)
    }

    /// The sink's name.
    pub(super) fn name(&self) -> &str {
        self.counters.sink.name()
    }

    /// Puts the batch into the queue if the sink takes it and there is room. If the queue is full and does not shed, returns
    /// the batch's handle for [`SinkQueue::wait`].
    pub(super) fn offer(
        &self,
        batch: &Arc<Batch>,
        answer: Option<&Arc<OutcomeSender>>,
        has_max_wait: bool,
    ) -> Option<DeliveryHandle> {
        let origin = batch.origin();
        let protocols = &self.options.protocols;
        if !protocols.is_empty() && !protocols.iter().any(|p| origin.is_some_and(|o| o.protocol == p.as_str())) {
            return None;
        }
        let events = Selection::new(batch, self.options.kinds).count();
        if events == 0 {
            return None;
        }
        let handle = DeliveryHandle::new(self.counters.clone(), origin.cloned(), events, answer.cloned());
        if self.counters.is_held(handle.origin()) {
            return self.full(handle, has_max_wait);
        }
        let room = match self.room.clone().try_acquire_many_owned(self.weight(batch)) {
            Ok(room) => room,
            Err(TryAcquireError::NoPermits) => return self.full(handle, has_max_wait),
            // The queue is closed. The dropped handle counts the events as failed.
            Err(TryAcquireError::Closed) => return None,
        };
        match self.queued_batches.try_reserve() {
            Ok(place) => {
                self.is_jammed.store(false, Ordering::Relaxed);
                place.send(QueuedBatch::new(batch.clone(), handle, room, &self.counters));
                None
            }
            Err(mpsc::error::TrySendError::Full(())) => self.full(handle, has_max_wait),
            // As above.
            Err(mpsc::error::TrySendError::Closed(())) => None,
        }
    }

    /// Puts a batch into the queue as soon as there is room; sheds it after `max_wait`. Returns, and the batch counts as
    /// failed, when the queue is closed.
    pub(super) async fn wait(&self, batch: Arc<Batch>, handle: DeliveryHandle, max_wait: Option<Duration>) {
        let origin = handle.origin().cloned();
        let place = async {
            self.counters.released(origin.as_ref()).await;
            let room = self.room.clone().acquire_many_owned(self.weight(&batch)).await.ok()?;
            Some((room, self.queued_batches.reserve().await.ok()?))
        };
        let place = match max_wait {
            Some(max_wait) => timeout(max_wait, place).await,
            None => Ok(place.await),
        };
        match place {
            Ok(Some((room, place))) => place.send(QueuedBatch::new(batch, handle, room, &self.counters)),
            // The queue is closed. The dropped handle counts the events as failed.
            Ok(None) => {}
            Err(_) => {
                self.is_jammed.store(true, Ordering::Relaxed);
                handle.shed();
            }
        }
    }

    fn full(&self, handle: DeliveryHandle, has_max_wait: bool) -> Option<DeliveryHandle> {
        // After one batch has waited `max_wait` in vain, none waits until there is room.
        let is_jammed = has_max_wait && self.is_jammed.load(Ordering::Relaxed);
        match self.options.when_full {
            WhenFull::Block if !is_jammed => Some(handle),
            WhenFull::Block | WhenFull::Shed => {
                handle.shed();
                None
            }
        }
    }

    /// A batch larger than the whole queue takes all of it.
    fn weight(&self, batch: &Batch) -> u32 {
        u32::try_from(batch.memory_bytes().div_ceil(PERMIT_BYTES)).unwrap_or(u32::MAX).clamp(1, self.room_permits)
    }
}

impl SinkQueueState {
    /// Closes the queue: senders that wait for room return, and their events count as failed, like all that follow.
    pub(super) fn close(&self) {
        self.room.close();
    }

    /// Notes events that the sink did not get; it will report them in its own output.
    pub(super) fn add_pending_loss(&self, origin: Option<Arc<Origin>>, reason: Reason, events: u64) {
        let Some(origin) = origin else { return };
        if reason == Reason::Shed {
            self.shed_log.shed(self.sink.name(), &origin.listener, events);
        }
        self.pending.add(origin, reason, events);
    }

    /// Whether there are pending losses.
    pub(super) fn has_pending_losses(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The pending losses: a report for each listener that has any.
    pub(super) fn take_pending_losses(&self) -> Vec<LossReport> {
        self.pending.take()
    }

    /// From now on the sink holds events of the listeners of these connections, and of no others.
    pub(super) fn set_held(&self, origins: Vec<Arc<Origin>>) {
        if origins.is_empty() && self.held.borrow().is_empty() {
            return;
        }
        self.held.send_replace(origins);
    }

    /// Whether the sink holds events of this connection's listener.
    fn is_held(&self, origin: Option<&Arc<Origin>>) -> bool {
        is_among(&self.held.borrow(), origin)
    }

    /// Waits until the sink holds no event of this connection's listener.
    async fn released(&self, origin: Option<&Arc<Origin>>) {
        // The sender lives as long as `self`.
        let _ = self.held.subscribe().wait_for(|held| !is_among(held, origin)).await;
    }
}

fn is_among(held: &[Arc<Origin>], origin: Option<&Arc<Origin>>) -> bool {
    !held.is_empty() && origin.is_some_and(|origin| held.iter().any(|held| held.is_same_listener(origin)))
}
