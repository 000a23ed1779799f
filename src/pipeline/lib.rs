//! The way of batches from the connections to the sinks: bounded, counted, and without silent drops.
//!
//! There is no central task. A connection has a [`Sender`] and puts its batches into the *queue* of every sink; one worker
//! per sink takes them out. When a queue is full, the connection waits (it stops reading, the TCP window closes, the agent
//! slows down), or the batch is shed, as configured.
#![forbid(unsafe_code)]

pub mod accounting;
mod agent_registry;
mod delivery;
mod fault_log;
mod in_flight;
mod loss_log;
pub mod options;
mod overflow;
mod pending_losses;
mod queue;
mod shed_log;
mod sink_counters;
mod stream_counters;
pub mod tap;
mod waits;
mod worker;

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use tributary_event::Batch;
use tributary_memory::MemoryBudget;
use tributary_select::Rules;
use tributary_sink::budget::TimeBudget;
use tributary_sink::{AckLevel, Sink, SinkError};

use accounting::SinkCounters;
pub use agent_registry::AGENT_REGISTRY_BYTES;
pub use agent_registry::{Agent, RecentEvents};
use delivery::OutcomeSender;
pub use delivery::{DeliveryOutcome, RequestedLevel, Unconfirmed};
use options::QueueOptions;
use overflow::Overflow;
use queue::{SinkQueue, WaitingBatch};
use tap::Taps;

/// The queues of all sinks, which a reload replaces. Nothing waits while this is locked.
#[derive(Debug, Default)]
struct SinkQueues(RwLock<Arc<[SinkQueue]>>);

impl SinkQueues {
    fn current(&self) -> Arc<[SinkQueue]> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn replace(&self, queues: Vec<SinkQueue>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = queues.into();
    }
}

/// Sees every batch before the sinks get it. It must be quick: the connection waits for it.
pub trait Observer: fmt::Debug + Send + Sync {
    /// A batch is handed to the sinks.
    fn observe(&self, batch: &Arc<Batch>);
}

/// The connections' end of every queue.
#[derive(Clone, Debug, Default)]
pub struct Sender {
    queues: Arc<SinkQueues>,
    max_wait: Option<Duration>,
    taps: Taps,
    observer: Option<Arc<dyn Observer>>,
    overflow: Arc<Overflow>,
    level: RequestedLevel,
    stop: CancellationToken,
}

impl Sender {
    /// The taps, which get a copy of every batch.
    pub fn taps(&self) -> &Taps {
        &self.taps
    }

    /// Whether the daemon stops. A connection that ends because its listener has changed has more time than that.
    pub fn is_stopping(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// A sender for the connections of one listener: their batches that wait for full queues are counted in `memory`, apart
    /// from those of other listeners.
    pub fn counted(self, memory: Arc<MemoryBudget>) -> Self {
        Sender { overflow: Arc::new(Overflow::new(memory)), ..self }
    }

    /// Whether another batch may be made: little of this listener waits for full queues.
    #[inline]
    pub fn has_capacity(&self) -> bool {
        self.overflow.has_capacity()
    }

    /// Waits until another batch may be made, at most for the sender's `max_wait`: after that batches are shed.
    pub async fn wait_for_capacity(&self) {
        match self.max_wait {
            // Another batch may be made in both cases.
            Some(max_wait) => drop(timeout(max_wait, self.overflow.wait_for_capacity()).await),
            None => self.overflow.wait_for_capacity().await,
        }
    }

    /// A sender that waits at most `max_wait` for a full queue, and then sheds until the queue has capacity again. For
    /// peers that a long wait would harm.
    pub fn with_max_wait(self, max_wait: Duration) -> Self {
        Sender { max_wait: Some(max_wait), ..self }
    }

    /// A sender whose deliveries ask for this level.
    pub fn with_level(self, level: RequestedLevel) -> Self {
        Sender { level, ..self }
    }

    /// Whether a sink that takes events of this batch is known to be unable to write.
    pub fn refuses(&self, batch: &Arc<Batch>) -> bool {
        self.queues.current().iter().any(|queue| queue.refuses(batch))
    }

    /// Whether a sink that takes events of this protocol is known to be unable to write.
    pub fn is_down_for(&self, protocol: &str) -> bool {
        self.queues.current().iter().any(|queue| queue.is_down_for(protocol))
    }

    /// Hands a batch to every sink that takes it; waits while a queue that blocks is full.
    ///
    /// When the future is dropped while it waits, the batch counts as failed for the queues that it did not enter.
    pub async fn send(&self, batch: impl Into<Arc<Batch>>) {
        self.hand_over(batch.into(), None).await;
    }

    /// Hands a batch over like [`Sender::send`], then waits for its outcome: the worst of all sinks. A batch that no sink
    /// takes counts as written.
    pub async fn deliver(&self, batch: Batch) -> DeliveryOutcome {
        let delivery = self.delivery();
        delivery.send(batch).await;
        delivery.outcome().await
    }

    /// A delivery of several batches that have one outcome together.
    pub fn delivery(&self) -> Delivery {
        let (sender, outcome) = OutcomeSender::new(self.level.get());
        Delivery { sender: self.clone(), outcome_sender: sender, outcome }
    }

    /// First offers the batch to every queue, so that a full one delays no other; then waits for the full ones together.
    async fn hand_over(&self, batch: Arc<Batch>, answer: Option<&Arc<OutcomeSender>>) {
        self.taps.events(&batch);
        if let Some(observer) = &self.observer {
            observer.observe(&batch);
        }
        let queues = self.queues.current();
        let offer = |queue| Some((queue, SinkQueue::offer(queue, &batch, answer, self.max_wait.is_some())?));
        let full: Vec<_> = queues.iter().filter_map(offer).collect();
        if !full.is_empty() {
            // Boxed, because few connections wait here: otherwise the future of each connection would contain this one.
            Box::pin(self.wait_for(full, &batch)).await;
        }
    }

    /// Waits until the full queues have taken the batch, or shed it.
    async fn wait_for(&self, mut full: Vec<(&SinkQueue, WaitingBatch)>, batch: &Arc<Batch>) {
        let copies: u64 = full.iter().map(|(_, waiting)| waiting.own_bytes(batch)).sum();
        let output = full.iter().map(|(_, waiting)| waiting.output_bytes()).max().unwrap_or(0);
        let _waits = self.overflow.wait(batch.memory_bytes() as u64 + copies, output);
        if full.len() == 1
            && let Some((queue, batch)) = full.pop()
        {
            return queue.wait(batch, self.max_wait).await;
        }
        // Dropping the set drops its tasks and their handles.
        let mut waiting = JoinSet::new();
        for (queue, batch) in full {
            let (queue, max_wait) = (queue.clone(), self.max_wait);
            waiting.spawn(async move { queue.wait(batch, max_wait).await });
        }
        while waiting.join_next().await.is_some() {}
    }
}

/// Batches with one common outcome.
#[derive(Debug)]
pub struct Delivery {
    sender: Sender,
    outcome_sender: Arc<OutcomeSender>,
    outcome: oneshot::Receiver<DeliveryOutcome>,
}

impl Delivery {
    /// The level at which its batches count as delivered.
    pub fn level(&self) -> AckLevel {
        self.outcome_sender.level()
    }

    /// The sinks that have not confirmed it yet.
    pub fn unconfirmed(&self) -> Unconfirmed {
        self.outcome_sender.unconfirmed()
    }

    /// Hands a further batch over, like [`Sender::send`].
    pub async fn send(&self, batch: impl Into<Arc<Batch>>) {
        self.sender.hand_over(batch.into(), Some(&self.outcome_sender)).await;
    }

    /// Waits for the outcome of all batches: the worst of all sinks. A batch that no sink takes counts as written.
    pub async fn outcome(self) -> DeliveryOutcome {
        let Delivery { outcome_sender, outcome, .. } = self;
        drop(outcome_sender);
        // The last handle sends it when it is dropped.
        outcome.await.unwrap_or(DeliveryOutcome::Failed)
    }
}

/// Builds the queues and starts the workers.
#[derive(Debug)]
pub struct Sinks {
    queues: Vec<SinkQueue>,
    counters: Vec<Arc<SinkCounters>>,
    /// Counters of removed sinks, which a sink of the same name continues.
    former: Vec<Arc<SinkCounters>>,
    /// The names of sinks that still write, and the token that is cancelled when they have ended: a sink of the same name
    /// starts then.
    predecessors: (Vec<String>, CancellationToken),
    observer: Option<Arc<dyn Observer>>,
    workers: Vec<(String, JoinHandle<()>)>,
    reopen: watch::Sender<u64>,
    runtime: Handle,
    stop: CancellationToken,
    abort: CancellationToken,
}

impl Sinks {
    /// No sinks yet; they will run on the current runtime. A sink that must not fail and does, or whose reader has closed
    /// it, cancels `stop`.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub fn new(stop: CancellationToken) -> Self {
        Sinks::on(Handle::current(), stop)
    }

    /// The same for sinks that run on `runtime`.
    pub fn on(runtime: Handle, stop: CancellationToken) -> Self {
        let (reopen, abort) = (watch::Sender::new(0), CancellationToken::new());
        let (queues, counters, former, workers) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let predecessors = (Vec::new(), CancellationToken::new());
        Sinks { queues, counters, former, predecessors, observer: None, workers, reopen, runtime, stop, abort }
    }

    /// Sets who sees every batch.
    pub fn observe(&mut self, observer: Arc<dyn Observer>) {
        self.observer = Some(observer);
    }

    /// Adds a sink without rules, which takes all events of its protocols and kinds, and starts its worker. `make` makes the
    /// sink, and another one whenever it has failed.
    pub fn add<S: Sink>(
        &mut self,
        name: &str,
        options: QueueOptions,
        make: impl Fn() -> Result<S, SinkError> + Send + Sync + 'static,
    ) {
        self.add_with(name, options, None, make);
    }

    /// The same with rules: what the sink takes of these events, and what it may show of them.
    pub fn add_with<S: Sink>(
        &mut self,
        name: &str,
        options: QueueOptions,
        rules: Option<Arc<Rules>>,
        make: impl Fn() -> Result<S, SinkError> + Send + Sync + 'static,
    ) {
        let counters = self.counters_of(name);
        self.start_worker(name, options, rules, None, counters, make);
    }

    /// Adds a sink that only observes: it takes what its budget allows, nothing ever waits for it, and no delivery, total or
    /// health check depends on it.
    pub fn add_observer<S: Sink>(
        &mut self,
        name: &str,
        options: QueueOptions,
        budget: Arc<TimeBudget>,
        make: impl Fn() -> Result<S, SinkError> + Send + Sync + 'static,
    ) {
        self.start_worker(name, options, None, Some(budget), SinkCounters::new(name.into()), make);
    }

    /// The counters of a sink. One that returns with other options continues its counters.
    fn counters_of(&mut self, name: &str) -> Arc<SinkCounters> {
        let former = self.former.iter().position(|counters| counters.name() == name);
        match former {
            Some(index) => self.former.swap_remove(index),
            None => {
                let counters = SinkCounters::new(name.into());
                self.counters.push(counters.clone());
                counters
            }
        }
    }

    fn start_worker<S: Sink>(
        &mut self,
        name: &str,
        options: QueueOptions,
        rules: Option<Arc<Rules>>,
        budget: Option<Arc<TimeBudget>>,
        counters: Arc<SinkCounters>,
        make: impl Fn() -> Result<S, SinkError> + Send + Sync + 'static,
    ) {
        let (kinds, on_failure) = (options.kinds, options.on_failure);
        rules.iter().for_each(|rules| counters.has_rules(rules.filters()));
        let (queue, queued_batches, queue_state) = SinkQueue::new(options, rules.clone(), budget, counters);
        let context = worker::WorkerContext {
            counters: queue_state,
            kinds,
            rules,
            on_failure,
            reopen: self.reopen.subscribe(),
            stop: self.stop.clone(),
            abort: self.abort.clone(),
            observed: Default::default(),
            retrying: Default::default(),
            faults: Default::default(),
            ticking: Default::default(),
            failing: Default::default(),
        };
        let (names, have_ended) = &self.predecessors;
        let may_start = names.iter().any(|of| of == name).then(|| have_ended.clone());
        let supervisor = worker::supervise(make, queued_batches, context, may_start);
        self.workers.push((name.to_owned(), self.runtime.spawn(supervisor)));
        self.queues.push(queue);
    }

    /// The counters of every sink.
    pub fn counters(&self) -> &[Arc<SinkCounters>] {
        &self.counters
    }

    /// All sinks are added: returns the sender for the connections, and the running workers.
    pub fn start(self) -> (Sender, Workers) {
        let queues = Arc::new(SinkQueues(RwLock::new(self.queues.into())));
        let workers = Workers {
            queues: Arc::downgrade(&queues),
            counters: self.counters,
            workers: self.workers,
            reopen: self.reopen,
            runtime: self.runtime,
            stop: self.stop.clone(),
            abort: self.abort,
        };
        (Sender { queues, observer: self.observer, stop: self.stop, ..Sender::default() }, workers)
    }
}

/// The running workers. They end when every [`Sender`] is dropped and everything is written.
#[derive(Debug)]
pub struct Workers {
    /// Weak, so that the queues are dropped with the last sender.
    queues: Weak<SinkQueues>,
    counters: Vec<Arc<SinkCounters>>,
    workers: Vec<(String, JoinHandle<()>)>,
    reopen: watch::Sender<u64>,
    runtime: Handle,
    stop: CancellationToken,
    abort: CancellationToken,
}

impl Workers {
    /// Lets every sink close its files; the next write opens them again.
    pub fn reopen(&self) {
        self.reopen.send_modify(|count| *count += 1);
    }

    /// What waits for its next attempt at a destination is sent now: an operator may have corrected something.
    pub fn try_again(&self) {
        self.counters.iter().for_each(|counters| counters.try_again());
    }

    /// The counters of every sink, including removed ones.
    pub fn counters(&self) -> &[Arc<SinkCounters>] {
        &self.counters
    }

    /// Removes the sinks with these names and adds those of `add`. The removed ones first write what they have, for as long
    /// as `grace` and until the daemon stops; after that they continue beside the new ones. Batches that are handed over
    /// meanwhile enter the queues of the new sinks; a new sink with the name of a removed one starts when that one has ended.
    pub async fn replace(&mut self, names: &[String], grace: Duration, add: impl FnOnce(&mut Sinks)) {
        let Some(queues) = self.queues.upgrade() else { return };
        let mut kept = queues.current().to_vec();
        kept.retain(|queue| !names.iter().any(|name| name == queue.name()));
        let is_free = |counters: &&Arc<SinkCounters>| !kept.iter().any(|queue| queue.name() == counters.name());
        let former = self.counters.iter().filter(is_free).cloned().collect();
        let have_ended = CancellationToken::new();
        // Cancelled in any case, also when this future is dropped.
        let _may_start = have_ended.clone().drop_guard();
        let mut sinks = Sinks {
            queues: kept,
            former,
            predecessors: (names.to_vec(), have_ended),
            // Senders keep theirs.
            observer: None,
            counters: std::mem::take(&mut self.counters),
            workers: Vec::new(),
            reopen: self.reopen.clone(),
            runtime: self.runtime.clone(),
            stop: self.stop.clone(),
            abort: self.abort.clone(),
        };
        add(&mut sinks);
        self.counters = sinks.counters;
        let of_before = self.workers.len();
        self.workers.append(&mut sinks.workers);
        // Removed sinks end when the last sender that still has the old queues has handed its batch over.
        queues.replace(sinks.queues);
        let deadline = Instant::now() + grace;
        for (name, worker) in &mut self.workers[..of_before] {
            if names.contains(name) && !worker.is_finished() {
                // After a panic its handles were dropped, and count as failed.
                let _ = self.stop.run_until_cancelled(timeout_at(deadline, worker)).await;
            }
        }
        self.workers.retain(|(_, worker)| !worker.is_finished());
    }

    /// Waits until every worker has ended. Dropping the future loses nothing: it may be called again.
    pub async fn drained(&mut self) {
        while let Some((_, worker)) = self.workers.last_mut() {
            // After a panic its handles were dropped, and count as failed.
            if !worker.is_finished() {
                let _ = worker.await;
            }
            // A finished task cannot be awaited a second time.
            self.workers.pop();
        }
    }

    /// Ends every worker immediately, and closes the queues: events that are not written count as failed, and senders that
    /// wait for a queue return.
    pub async fn abort(&mut self) {
        self.abort.cancel();
        self.drained().await;
    }
}
