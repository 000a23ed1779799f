//! FLOOR 3 — batches in motion: from the connections to the sinks, bounded, counted, and never silently dropped.
//!
//! There is no central task that everything queues behind. A connection holds a [`Sender`] and puts its batches into
//! each sink's *lane*; a worker task per sink takes them off. A full lane makes the connection wait (it stops reading,
//! the window closes, the agent slows) or sheds, as configured.

mod ack;
mod lane;
pub mod ledger;
pub mod options;
mod overflow;
mod roster;
pub mod tap;
mod worker;

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{RwLock, oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::event::Batch;
use crate::protocol::MemoryBudget;
use crate::sink::{Sink, SinkError};

use ack::Answer;
pub use ack::Verdict;
use lane::Lane;
use ledger::SinkBooks;
use options::LaneOptions;
use overflow::Overflow;
pub use roster::Agent;
pub(crate) use roster::ROSTER_BYTES;
use tap::Taps;

/// The lanes of all sinks. They are exchanged, seldom, while nobody hands anything over.
type Lanes = RwLock<Arc<[Lane]>>;

/// The connections' end of every lane.
#[derive(Clone, Debug, Default)]
pub struct Sender {
    lanes: Arc<Lanes>,
    patience: Option<Duration>,
    taps: Taps,
    overflow: Arc<Overflow>,
}

impl Sender {
    /// Who looks on.
    pub fn taps(&self) -> &Taps {
        &self.taps
    }

    /// A sender whose batches that wait for full lanes count to `memory`, and to nobody else's: for the connections of one
    /// listener.
    pub fn counted(self, memory: Arc<MemoryBudget>) -> Self {
        Sender { overflow: Arc::new(Overflow::new(memory)), ..self }
    }

    /// Whether so little waits for full lanes that another batch may be made.
    #[inline]
    pub fn keeps_up(&self) -> bool {
        self.overflow.keeps_up()
    }

    /// Waits until it does; no longer than the sender's patience, if it has any, for then what is made is shed.
    pub async fn until_it_keeps_up(&self) {
        match self.patience {
            // Either way it is time to go on.
            Some(patience) => drop(timeout(patience, self.overflow.until_it_keeps_up()).await),
            None => self.overflow.until_it_keeps_up().await,
        }
    }

    /// A sender that waits for a full lane so long and no longer, and then sheds until there is room again. For peers
    /// that waiting would harm.
    pub fn with_patience(self, patience: Duration) -> Self {
        Sender { patience: Some(patience), ..self }
    }

    /// Hands a batch to every sink that takes it; waits while a lane that blocks is full.
    ///
    /// Dropped while waiting, the batch counts as failed where it did not get in.
    pub async fn send(&self, batch: Batch) {
        self.hand_over(Arc::new(batch), None).await;
    }

    /// Hands a batch over like [`Sender::send`], then waits for what becomes of it: the worst verdict of all sinks.
    /// A batch that no sink takes counts as written.
    pub async fn deliver(&self, batch: Batch) -> Verdict {
        let delivery = self.delivery();
        delivery.send(batch).await;
        delivery.verdict().await
    }

    /// Begins a delivery of several batches that are answered for together.
    pub fn delivery(&self) -> Delivery {
        let (answer, verdict) = Answer::new();
        Delivery { sender: self.clone(), answer, verdict }
    }

    /// First offers the batch to every lane, so that a full one delays no other; then waits for those together.
    async fn hand_over(&self, batch: Arc<Batch>, answer: Option<&Arc<Answer>>) {
        self.taps.events(&batch);
        let lanes = self.lanes.read().await.clone();
        let offer = |lane| Some((lane, Lane::offer(lane, &batch, answer, self.patience.is_some())?));
        let mut full: Vec<_> = lanes.iter().filter_map(offer).collect();
        if full.is_empty() {
            return;
        }
        let _waits = self.overflow.wait(batch.memory_bytes() as u64);
        if full.len() == 1
            && let Some((lane, ticket)) = full.pop()
        {
            return lane.wait(batch, ticket, self.patience).await;
        }
        // Dropped while waiting, the set drops its tasks, and they their tickets.
        let mut waiting = JoinSet::new();
        for (lane, ticket) in full {
            let (lane, batch, patience) = (lane.clone(), batch.clone(), self.patience);
            waiting.spawn(async move { lane.wait(batch, ticket, patience).await });
        }
        while waiting.join_next().await.is_some() {}
    }
}

/// Batches on their way whose fate somebody waits for.
#[derive(Debug)]
pub struct Delivery {
    sender: Sender,
    answer: Arc<Answer>,
    verdict: oneshot::Receiver<Verdict>,
}

impl Delivery {
    /// Hands a further batch over, like [`Sender::send`].
    pub async fn send(&self, batch: Batch) {
        self.sender.hand_over(Arc::new(batch), Some(&self.answer)).await;
    }

    /// Waits for what becomes of all of them: the worst verdict of all sinks. What no sink takes counts as written.
    pub async fn verdict(self) -> Verdict {
        let Delivery { answer, verdict, .. } = self;
        drop(answer);
        // It is always told: by the drop of the last that has it.
        verdict.await.unwrap_or(Verdict::Failed)
    }
}

/// Builds the lanes and starts the workers.
#[derive(Debug)]
pub struct Sinks {
    lanes: Vec<Lane>,
    books: Vec<Arc<SinkBooks>>,
    /// Those of sinks that were taken away, and may come back.
    former: Vec<Arc<SinkBooks>>,
    workers: Vec<(String, JoinHandle<()>)>,
    reopen: watch::Sender<u64>,
    stop: CancellationToken,
    abort: CancellationToken,
}

impl Sinks {
    /// No sinks yet. A sink that cannot go on, or whose reader has left, cancels `stop`.
    pub fn new(stop: CancellationToken) -> Self {
        let (reopen, abort) = (watch::Sender::new(0), CancellationToken::new());
        let (lanes, books, former, workers) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Sinks { lanes, books, former, workers, reopen, stop, abort }
    }

    /// Adds a sink, which `make` makes anew whenever the last one has failed, and starts its worker.
    pub fn add<S: Sink>(
        &mut self,
        name: &str,
        options: LaneOptions,
        make: impl Fn() -> Result<S, SinkError> + Send + Sync + 'static,
    ) {
        // A sink that comes back with other options goes on with its books.
        let former = self.former.iter().position(|books| books.name() == name);
        let books = match former {
            Some(index) => self.former.swap_remove(index),
            None => {
                let books = SinkBooks::new(name.into());
                self.books.push(books.clone());
                books
            }
        };
        let (kinds, on_failure) = (options.kinds, options.on_failure);
        let (lane, parcels, lane_books) = Lane::new(options, books);
        let context = worker::WorkerContext {
            books: lane_books,
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
        self.workers.push((name.to_owned(), tokio::spawn(worker::supervise(make, parcels, context))));
        self.lanes.push(lane);
    }

    /// The books of every sink.
    pub fn books(&self) -> &[Arc<SinkBooks>] {
        &self.books
    }

    /// All sinks are there: the sender for the connections, and what remains to be waited for.
    pub fn start(self) -> (Sender, Workers) {
        let lanes = Arc::new(Lanes::new(self.lanes.into()));
        let workers = Workers {
            lanes: Arc::downgrade(&lanes),
            books: self.books,
            workers: self.workers,
            reopen: self.reopen,
            stop: self.stop,
            abort: self.abort,
        };
        (Sender { lanes, ..Sender::default() }, workers)
    }
}

/// The running workers. They end when every [`Sender`] is dropped and everything is written.
#[derive(Debug)]
pub struct Workers {
    /// Held by senders alone: when the last of them is dropped, the lanes are.
    lanes: Weak<Lanes>,
    books: Vec<Arc<SinkBooks>>,
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

    /// The books of every sink that there is or was.
    pub fn books(&self) -> &[Arc<SinkBooks>] {
        &self.books
    }

    /// Takes the sinks of these names away, and puts in those that `add` adds. Who hands over meanwhile waits: the old
    /// ones write what they have first, for as long as `grace`; after that they go on beside the new ones.
    pub async fn replace(&mut self, names: &[String], grace: Duration, add: impl FnOnce(&mut Sinks)) {
        let Some(cell) = self.lanes.upgrade() else { return };
        let mut lanes = cell.write().await;
        let kept = lanes.iter().filter(|lane| !names.iter().any(|name| name == lane.name())).cloned();
        let kept: Vec<_> = kept.collect();
        *lanes = kept.clone().into();
        let deadline = Instant::now() + grace;
        for (name, worker) in &mut self.workers {
            if names.contains(name) && !worker.is_finished() {
                // A worker that panicked has told its tickets so.
                let _ = timeout_at(deadline, worker).await;
            }
        }
        self.workers.retain(|(_, worker)| !worker.is_finished());
        let is_free = |books: &&Arc<SinkBooks>| !kept.iter().any(|lane| lane.name() == books.name());
        let former = self.books.iter().filter(is_free).cloned().collect();
        let mut sinks = Sinks {
            lanes: kept,
            former,
            books: std::mem::take(&mut self.books),
            workers: std::mem::take(&mut self.workers),
            reopen: self.reopen.clone(),
            stop: self.stop.clone(),
            abort: self.abort.clone(),
        };
        add(&mut sinks);
        (self.books, self.workers) = (sinks.books, sinks.workers);
        *lanes = sinks.lanes.into();
    }

    /// Waits until every worker has ended. May be given up and called again.
    pub async fn drained(&mut self) {
        while let Some((_, worker)) = self.workers.last_mut() {
            // A worker that panicked has told its tickets so.
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
