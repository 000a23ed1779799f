//! The bounded queue from the connections to one sink.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError, mpsc, watch};
use tokio::time::timeout;

use tributary_event::{Batch, Origin, UnixNanos};
use tributary_select::{Choice, Rules};
use tributary_sink::budget::TimeBudget;
use tributary_sink::{Chosen, Kinds, LossCause, Selection};

use super::accounting::QueueCapacity;
use super::delivery::{DeliveryHandle, OutcomeSender};
use super::options::{QueueOptions, WhenFull};
use super::pending_losses::{LossReport, PendingLosses};
use super::shed_log::ShedLog;
use super::sink_counters::{InQueue, SinkCounters};

/// Of a batch at least so large, of whose events a sink takes at most this part, it gets a copy: the rest would only fill its
/// queue.
const SPARSE: (usize, u64) = (16 << 10, 4);
/// The unit in which batches are counted.
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
    taken: TakenEvents,
    _capacity: OwnedSemaphorePermit,
    _counted: InQueue,
}

/// The events of a batch that the rules of a sink let through.
#[derive(Debug)]
pub(super) struct TakenEvents {
    batch: Arc<Batch>,
    /// `None`: all of the sink's kinds.
    chosen: Option<Chosen>,
}

/// A batch that waits for capacity of a queue.
#[derive(Debug)]
pub(super) struct WaitingBatch {
    taken: TakenEvents,
    handle: DeliveryHandle,
}

impl WaitingBatch {
    /// What it takes of a queue: its memory, or its output if that is more. Otherwise few small batches whose events share long
    /// texts would keep a sink busy for seconds, and every batch behind them would wait.
    fn queue_bytes(&self) -> usize {
        let batch = &self.taken.batch;
        batch.memory_bytes().max(batch.output_bytes())
    }

    /// Bytes of its events in the output, approximately.
    pub(super) fn output_bytes(&self) -> u64 {
        self.taken.batch.output_bytes() as u64
    }

    /// Memory of its events, if they are not those of `batch`.
    pub(super) fn own_bytes(&self, batch: &Arc<Batch>) -> u64 {
        if Arc::ptr_eq(&self.taken.batch, batch) { 0 } else { self.taken.batch.memory_bytes() as u64 }
    }
}

impl QueuedBatch {
    fn new(waiting: WaitingBatch, capacity: OwnedSemaphorePermit, counters: &SinkQueueState) -> Self {
        let WaitingBatch { taken, handle } = waiting;
        let counted = counters.sink.in_queue((capacity.num_permits() * PERMIT_BYTES) as u64);
        let contents = QueuedEvents { taken, _capacity: capacity, _counted: counted };
        QueuedBatch { contents, handle }
    }

    /// When the collector read the last of the events.
    pub(super) fn observed(&self) -> Option<UnixNanos> {
        self.contents.taken.batch.events().last().map(|event| event.observed())
    }

    /// Bytes of its events in the output, approximately.
    pub(super) fn output_bytes(&self) -> usize {
        self.contents.taken.batch.output_bytes()
    }

    /// The batch, which is dropped when the sink has taken it, and the handle, which is kept until the sink has flushed it.
    pub(super) fn open(self) -> (QueuedEvents, DeliveryHandle) {
        (self.contents, self.handle)
    }
}

impl QueuedEvents {
    /// The events that the sink takes.
    pub(super) fn selection(&self, kinds: Kinds) -> Selection<'_> {
        Selection::of_shared(&self.taken.batch, kinds).chosen(self.taken.chosen.as_ref())
    }
}

/// The sending side of a queue. Cloned into every connection.
#[derive(Clone, Debug)]
pub(super) struct SinkQueue {
    options: Arc<QueueOptions>,
    rules: Option<Arc<Rules>>,
    /// Nothing waits for the sink: it gets what its budget allows and its queue has capacity for. The rest is skipped.
    budget: Option<Arc<TimeBudget>>,
    queued_batches: mpsc::Sender<QueuedBatch>,
    capacity: Arc<Semaphore>,
    capacity_permits: u32,
    /// A batch has waited `max_wait` in vain, and the queue has had no capacity since.
    is_jammed: Arc<AtomicBool>,
    counters: Arc<SinkQueueState>,
}

/// What a queue's two sides share.
#[derive(Debug)]
pub(super) struct SinkQueueState {
    pub(super) sink: Arc<SinkCounters>,
    capacity: Arc<Semaphore>,
    pending: PendingLosses,
    shed_log: ShedLog,
    /// A connection of each listener whose events the sink holds because it cannot write them now. Connections of these
    /// listeners wait; those of others do not.
    held: watch::Sender<Vec<Arc<Origin>>>,
    /// The sink as a whole cannot write now, which is known by more than one attempt.
    is_down: AtomicBool,
    /// Batches that no peer waits for, so that no peer sends them again.
    unawaited: AtomicU64,
}

impl SinkQueue {
    /// A queue and its receiving end.
    pub(super) fn new(
        options: QueueOptions,
        rules: Option<Arc<Rules>>,
        budget: Option<Arc<TimeBudget>>,
        sink: Arc<SinkCounters>,
    ) -> (SinkQueue, mpsc::Receiver<QueuedBatch>, Arc<SinkQueueState>) {
        let (queued_batches, receiver) = mpsc::channel(options.buffer_batches.max(1));
        let permits = usize::try_from(options.buffer_bytes).unwrap_or(usize::MAX).div_ceil(PERMIT_BYTES);
        let permits = permits.clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize));
        let capacity = Arc::new(Semaphore::new(permits));
        sink.set_queue_capacity(QueueCapacity {
            batches: options.buffer_batches.max(1) as u64,
            bytes: (permits * PERMIT_BYTES) as u64,
        });
        let counters = Arc::new(SinkQueueState {
            sink,
            capacity: capacity.clone(),
            pending: PendingLosses::default(),
            shed_log: ShedLog::default(),
            held: watch::Sender::default(),
            is_down: AtomicBool::new(false),
            unawaited: AtomicU64::new(0),
        });
        let queue = SinkQueue {
            options: Arc::new(options),
            rules,
            budget,
            queued_batches,
            capacity,
            capacity_permits: permits as u32,
            is_jammed: Arc::default(),
            counters: counters.clone(),
        };
        (queue, receiver, counters)
    }

    /// The sink's name.
    pub(super) fn name(&self) -> &str {
        self.counters.sink.name()
    }

    /// Whether the sink is known to be unable to write, and takes events of this batch.
    pub(super) fn refuses(&self, batch: &Arc<Batch>) -> bool {
        self.counters.is_down() && self.budget.is_none() && self.takes_protocol_of(batch) && self.has_events_of(batch)
    }

    /// Whether the sink is known to be unable to write, and takes events of this protocol.
    pub(super) fn is_down_for(&self, protocol: &str) -> bool {
        let protocols = &self.options.protocols;
        let takes = protocols.is_empty() || protocols.iter().any(|of| of.as_str() == protocol);
        self.counters.is_down() && self.budget.is_none() && takes
    }

    fn takes_protocol_of(&self, batch: &Batch) -> bool {
        let protocols = &self.options.protocols;
        protocols.is_empty() || protocols.iter().any(|p| batch.origin().is_some_and(|o| o.protocol == p.as_str()))
    }

    fn has_events_of(&self, batch: &Arc<Batch>) -> bool {
        let of_kinds = Selection::new(batch, self.options.kinds).count();
        of_kinds > 0 && self.rules.as_ref().is_none_or(|rules| rules.choose(batch, self.options.kinds).events > 0)
    }

    /// Puts the events that the sink takes into the queue if it has capacity. If the queue is full and does not shed,
    /// returns them for [`SinkQueue::wait`]. A queue with a budget neither blocks nor sheds, and no delivery depends on
    /// it.
    pub(super) fn offer(
        &self,
        batch: &Arc<Batch>,
        answer: Option<&Arc<OutcomeSender>>,
        has_max_wait: bool,
    ) -> Option<WaitingBatch> {
        let origin = batch.origin();
        if !self.takes_protocol_of(batch) {
            return None;
        }
        if let Some(budget) = &self.budget
            && !budget.admits()
        {
            budget.skip(Selection::new(batch, self.options.kinds).count());
            return None;
        }
        let (taken, events) = self.take(batch)?;
        let answer = answer.filter(|_| self.budget.is_none());
        let handle = DeliveryHandle::new(self.counters.clone(), origin.cloned(), events, answer.cloned());
        let waiting = WaitingBatch { taken, handle };
        if self.counters.is_held(waiting.handle.origin()) {
            return self.full(waiting, has_max_wait);
        }
        let capacity = match self.capacity.clone().try_acquire_many_owned(self.weight(&waiting)) {
            Ok(capacity) => capacity,
            Err(TryAcquireError::NoPermits) => return self.full(waiting, has_max_wait),
            // The queue is closed. The dropped handle counts the events as failed.
            Err(TryAcquireError::Closed) => return None,
        };
        match self.queued_batches.try_reserve() {
            Ok(place) => {
                self.is_jammed.store(false, Ordering::Relaxed);
                place.send(QueuedBatch::new(waiting, capacity, &self.counters));
                None
            }
            Err(mpsc::error::TrySendError::Full(())) => self.full(waiting, has_max_wait),
            // As above.
            Err(mpsc::error::TrySendError::Closed(())) => None,
        }
    }

    /// The events of a batch that the sink takes, and their number; `None`: there are none. Counts those that its rules
    /// leave out.
    fn take(&self, batch: &Arc<Batch>) -> Option<(TakenEvents, u64)> {
        let of_kinds = Selection::new(batch, self.options.kinds).count();
        let Some(rules) = self.rules.as_ref().filter(|_| of_kinds > 0) else {
            return (of_kinds > 0).then(|| (TakenEvents { batch: batch.clone(), chosen: None }, of_kinds));
        };
        let Choice { chosen, events, filtered } = rules.choose(batch, self.options.kinds);
        self.counters.sink.add_filtered(&filtered);
        if events == 0 {
            return None;
        }
        let (least_bytes, part) = SPARSE;
        let is_sparse = events * part <= batch.len() as u64 && batch.memory_bytes() >= least_bytes;
        let taken = match chosen {
            Some(few) if is_sparse => {
                TakenEvents { batch: Arc::new(batch.copy_of(|index| few.contains(index))), chosen: None }
            }
            chosen => TakenEvents { batch: batch.clone(), chosen },
        };
        Some((taken, events))
    }

    /// Puts a batch into the queue as soon as there is capacity; sheds it after `max_wait`. Returns, and the batch
    /// counts as failed, when the queue is closed.
    pub(super) async fn wait(&self, waiting: WaitingBatch, max_wait: Option<Duration>) {
        let origin = waiting.handle.origin().cloned();
        let weight = self.weight(&waiting);
        let place = async {
            self.counters.released(origin.as_ref()).await;
            let capacity = self.capacity.clone().acquire_many_owned(weight).await.ok()?;
            Some((capacity, self.queued_batches.reserve().await.ok()?))
        };
        let place = match max_wait {
            Some(max_wait) => timeout(max_wait, place).await,
            None => Ok(place.await),
        };
        match place {
            Ok(Some((capacity, place))) => place.send(QueuedBatch::new(waiting, capacity, &self.counters)),
            // The queue is closed. The dropped handle counts the events as failed.
            Ok(None) => {}
            Err(_) => {
                self.is_jammed.store(true, Ordering::Relaxed);
                waiting.handle.shed();
            }
        }
    }

    fn full(&self, waiting: WaitingBatch, has_max_wait: bool) -> Option<WaitingBatch> {
        if let Some(budget) = &self.budget {
            budget.skip(waiting.handle.skipped());
            return None;
        }
        // After one batch has waited `max_wait` in vain, none waits until there is capacity.
        let is_jammed = has_max_wait && self.is_jammed.load(Ordering::Relaxed);
        match self.options.when_full {
            WhenFull::Block if !is_jammed => Some(waiting),
            WhenFull::Block | WhenFull::Shed => {
                waiting.handle.shed();
                None
            }
        }
    }

    /// A batch larger than the whole queue takes all of it.
    fn weight(&self, waiting: &WaitingBatch) -> u32 {
        u32::try_from(waiting.queue_bytes().div_ceil(PERMIT_BYTES)).unwrap_or(u32::MAX).clamp(1, self.capacity_permits)
    }
}

impl SinkQueueState {
    /// Closes the queue: senders that wait for capacity return, and their events count as failed, like all that follow.
    pub(super) fn close(&self) {
        self.capacity.close();
    }

    /// Whether the sink as a whole cannot write now.
    pub(super) fn is_down(&self) -> bool {
        self.is_down.load(Ordering::Relaxed)
    }

    pub(super) fn set_down(&self, is_down: bool) {
        self.is_down.store(is_down, Ordering::Relaxed);
    }

    /// Whether there are batches for which no peer waits.
    pub(super) fn has_unawaited(&self) -> bool {
        self.unawaited.load(Ordering::Relaxed) > 0
    }

    pub(super) fn add_unawaited(&self) {
        self.unawaited.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn remove_unawaited(&self) {
        self.unawaited.fetch_sub(1, Ordering::Relaxed);
    }

    /// Notes events that the sink did not get; it will report them in its own output.
    pub(super) fn add_pending_loss(&self, origin: Option<Arc<Origin>>, cause: LossCause, events: u64) {
        let Some(origin) = origin else { return };
        if cause == LossCause::QueueFull {
            self.shed_log.shed(self.sink.name(), &origin.listener, events);
        }
        self.pending.add(origin, cause, events);
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
