//! FLOOR 3 — batches in motion: from the connections to the sinks, bounded, counted, and never silently dropped.
//!
//! There is no central task that everything queues behind. A connection holds a [`Sender`] and puts its batches into
//! each sink's *queue*; a worker task per sink takes them off. A full queue makes the connection wait (it stops reading,
//! the window closes, the agent slows) or sheds, as configured.

pub mod accounting;
mod ack;
mod agent_registry;
pub mod options;
mod overflow;
mod queue;
pub mod tap;
mod worker;

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{RwLock, oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::event::Batch;
use crate::memory::MemoryBudget;
use crate::sink::{Sink, SinkError};

use accounting::SinkCounters;
pub use ack::DeliveryOutcome;
use ack::OutcomeSender;
pub(crate) use agent_registry::AGENT_REGISTRY_BYTES;
pub use agent_registry::Agent;
use options::QueueOptions;
use overflow::Overflow;
use queue::SinkQueue;
use tap::Taps;

/// The queues of all sinks. They are exchanged, seldom, while nobody hands anything over.
type SinkQueues = RwLock<Arc<[SinkQueue]>>;

/// The connections' end of every queue.
#[derive(Clone, Debug, Default)]
pub struct Sender {
    queues: Arc<SinkQueues>,
    max_wait: Option<Duration>,
    taps: Taps,
    overflow: Arc<Overflow>,
}

impl Sender {
    /// Who looks on.
    pub fn taps(&self) -> &Taps {
        &self.taps
    }

    /// A sender whose batches that wait for full queues count to `memory`, and to nobody else's: for the connections of one
    /// listener.
    pub fn counted(self, memory: Arc<MemoryBudget>) -> Self {
        Sender { overflow: Arc::new(Overflow::new(memory)), ..self }
    }

    /// Whether so little waits for full queues that another batch may be made.
    #[inline]
    pub fn has_capacity(&self) -> bool {
        self.overflow.has_capacity()
    }

    /// Waits until it does; no longer than the sender's max_wait, if it has any, for then what is made is shed.
    pub async fn wait_for_capacity(&self) {
        match self.max_wait {
            // Either way it is time to go on.
            Some(max_wait) => drop(timeout(max_wait, self.overflow.wait_for_capacity()).await),
            None => self.overflow.wait_for_capacity().await,
        }
    }

    /// A sender that waits for a full queue so long and no longer, and then sheds until there is room again. For peers
    /// that waiting would harm.
    pub fn with_max_wait(self, max_wait: Duration) -> Self {
        Sender { max_wait: Some(max_wait), ..self }
    }

    /// Hands a batch to every sink that takes it; waits while a queue that blocks is full.
    ///
    /// Dropped while waiting, the batch counts as failed where it did not get in.
    pub async fn send(&self, batch: Batch) {
        self.hand_over(Arc::new(batch), None).await;
    }

    /// Hands a batch over like [`Sender::send`], then waits for what becomes of it: the worst verdict of all sinks.
    /// A batch that no sink takes counts as written.
    pub async fn deliver(&self, batch: Batch) -> DeliveryOutcome {
        let delivery = self.delivery();
        delivery.send(batch).await;
        delivery.verdict().await
    }

    /// Begins a delivery of several batches that are answered for together.
    pub fn delivery(&self) -> Delivery {
        let (answer, verdict) = OutcomeSender::new();
        Delivery { sender: self.clone(), answer, verdict }
    }

    /// First offers the batch to every queue, so that a full one delays no other; then waits for those together.
    async fn hand_over(&self, batch: Arc<Batch>, answer: Option<&Arc<OutcomeSender>>) {
        self.taps.events(&batch);
        let queues = self.queues.read().await.clone();
        let offer = |queue| Some((queue, SinkQueue::offer(queue, &batch, answer, self.max_wait.is_some())?));
        let mut full: Vec<_> = queues.iter().filter_map(offer).collect();
        if full.is_empty() {
            return;
        }
        let _waits = self.overflow.wait(batch.memory_bytes() as u64);
        if full.len() == 1
            && let Some((queue, handle)) = full.pop()
        {
            return queue.wait(batch, handle, self.max_wait).await;
        }
        // Dropped while waiting, the set drops its tasks, and they their handles.
        let mut waiting = JoinSet::new();
        for (queue, handle) in full {
            let (queue, batch, max_wait) = (queue.clone(), batch.clone(), self.max_wait);
            waiting.spawn(async move { queue.wait(batch, handle, max_wait).await });
        }
        while waiting.join_next().await.is_some() {}
    }
}

/// Batches on their way whose fate somebody waits for.
#[derive(Debug)]
pub struct Delivery {
    sender: Sender,
    answer: Arc<OutcomeSender>,
    verdict: oneshot::Receiver<DeliveryOutcome>,
}

impl Delivery {
    /// Hands a further batch over, like [`Sender::send`].
    pub async fn send(&self, batch: Batch) {
        self.sender.hand_over(Arc::new(batch), Some(&self.answer)).await;
    }

    /// Waits for what becomes of all of them: the worst verdict of all sinks. What no sink takes counts as written.
    pub async fn verdict(self) -> DeliveryOutcome {
        let Delivery { answer, verdict, .. } = self;
        drop(answer);
        // It is always told: by the drop of the last that has it.
        verdict.await.unwrap_or(DeliveryOutcome::Failed)
    }
}

/// Builds the queues and starts the workers.
#[derive(Debug)]
pub struct Sinks {
    queues: Vec<SinkQueue>,
    counters: Vec<Arc<SinkCounters>>,
    /// Those of sinks that were taken away, and may come back.
    former: Vec<Arc<SinkCounters>>,
    workers: Vec<(String, JoinHandle<()>)>,
    reopen: watch::Sender<u64>,
    stop: CancellationToken,
    abort: CancellationToken,
}

impl Sinks {
    /// No sinks yet. A sink that cannot go on, or whose reader has left, cancels `stop`.
    pub fn new(stop: CancellationToken) -> Self {
        let (reopen, abort) = (watch::Sender::new(0), CancellationToken::new());
        let (queues, counters, former, workers) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Sinks { queues, counters, former, workers, reopen, stop, abort }
    }

    /// Adds a sink, which `make` makes anew whenever the last one has failed, and starts its worker.
    pub fn add<S: Sink>(
        &mut self,
        name: &str,
        options: QueueOptions,
        make: impl Fn() -> Result<S, SinkError> + Send + Sync + 'static,
    ) {
        // A sink that comes back with other options goes on with its counters.
        let former = self.former.iter().position(|counters| counters.name() == name);
        let counters = match former {
            Some(index) => self.former.swap_remove(index),
            None => {
                let counters = SinkCounters::new(name.into());
                self.counters.push(counters.clone());
                counters
            }
        };
        let (kinds, on_failure) = (options.kinds, options.on_failure);
        let (queue, queued_batches, queue_state) = SinkQueue::new(options, counters);
        let context = worker::WorkerContext {
            counters: queue_state,
            kinds,
            on_failure,
            reopen: self.reopen.subscribe(),
            stop: self.stop.clone(),
            abort: self.abort.clone(),
            observed: Default::default(),
            holding: Default::default(),
            ticking: Default::default(),
            failing: Default::default(),
        };
        self.workers.push((name.to_owned(), tokio::spawn(worker::supervise(make, queued_batches, context))));
        self.queues.push(queue);
    }

    /// The counters of every sink.
    pub fn counters(&self) -> &[Arc<SinkCounters>] {
        &self.counters
    }

    /// All sinks are there: the sender for the connections, and what remains to be waited for.
    pub fn start(self) -> (Sender, Workers) {
        let queues = Arc::new(SinkQueues::new(self.queues.into()));
        let workers = Workers {
            queues: Arc::downgrade(&queues),
            counters: self.counters,
            workers: self.workers,
            reopen: self.reopen,
            stop: self.stop,
            abort: self.abort,
        };
        (Sender { queues, ..Sender::default() }, workers)
    }
}

/// The running workers. They end when every [`Sender`] is dropped and everything is written.
#[derive(Debug)]
pub struct Workers {
    /// Held by senders alone: when the last of them is dropped, the queues are.
    queues: Weak<SinkQueues>,
    counters: Vec<Arc<SinkCounters>>,
    workers: Vec<(String, JoinHandle<()>)>,
    reopen: watch::Sender<u64>,
    stop: CancellationToken,
    abort: CancellationToken,
}

impl Workers {
    /// Every sink opens its files anew.
    pub fn reopen(&self) {
        self.reopen.send_modify(|count| *count += 1);
    }

    /// The counters of every sink that there is or was.
    pub fn counters(&self) -> &[Arc<SinkCounters>] {
        &self.counters
    }

    /// Takes the sinks of these names away, and puts in those that `add` adds. Who hands over meanwhile waits: the old
    /// ones write what they have first, for as long as `grace`; after that they go on beside the new ones.
    pub async fn replace(&mut self, names: &[String], grace: Duration, add: impl FnOnce(&mut Sinks)) {
        let Some(cell) = self.queues.upgrade() else { return };
        let mut queues = cell.write().await;
        let kept = queues.iter().filter(|queue| !names.iter().any(|name| name == queue.name())).cloned();
        let kept: Vec<_> = kept.collect();
        *queues = kept.clone().into();
        let deadline = Instant::now() + grace;
        for (name, worker) in &mut self.workers {
            if names.contains(name) && !worker.is_finished() {
                // A worker that panicked has told its handles so.
                let _ = timeout_at(deadline, worker).await;
            }
        }
        self.workers.retain(|(_, worker)| !worker.is_finished());
        let is_free = |counters: &&Arc<SinkCounters>| !kept.iter().any(|queue| queue.name() == counters.name());
        let former = self.counters.iter().filter(is_free).cloned().collect();
        let mut sinks = Sinks {
            queues: kept,
            former,
            counters: std::mem::take(&mut self.counters),
            workers: std::mem::take(&mut self.workers),
            reopen: self.reopen.clone(),
            stop: self.stop.clone(),
            abort: self.abort.clone(),
        };
        add(&mut sinks);
        (self.counters, self.workers) = (sinks.counters, sinks.workers);
        *queues = sinks.queues.into();
    }

    /// Waits until every worker has ended. May be given up and called again.
    pub async fn drained(&mut self) {
        while let Some((_, worker)) = self.workers.last_mut() {
            // A worker that panicked has told its handles so.
            if !worker.is_finished() {
                let _ = worker.await;
            }
            // It cannot be waited for a second time.
            self.workers.pop();
        }
    }

    /// Ends every worker at once: what it has not written counts as failed.
    pub async fn abort(&mut self) {
        self.abort.cancel();
        self.drained().await;
    }
}
