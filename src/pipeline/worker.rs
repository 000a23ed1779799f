//! Driving one sink: batches are taken off the queue, written, flushed, waited for, and their in_flight answered.
//!
//! A *worker* does that, on a thread of its own if the sink may block: an event becomes a line and reaches the system on the
//! same processor. A *supervisor*, a task beside the others, makes the sink and puts a new one in its place. It
//! never waits for a thread that is stuck: it takes that one's in_flight away and goes on.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::runtime;
use tokio::sync::{Mutex, mpsc, oneshot, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::event::{Origin, Reason, UnixNanos};
use crate::log_throttle::LogThrottle;
use crate::sink::{Kinds, Selection, Sink, SinkError, Unwritten};

use super::ack::DeliveryHandle;
use super::options::OnFailure;
use super::queue::{LossReport, QueuedBatch, SinkQueueState};

/// At most this many batches are written before a flush.
const MAX_UNFLUSHED: usize = 64;
/// How often a sink is asked to look after itself.
const TICK: Duration = Duration::from_secs(1);
/// Waits between tries of a sink that cannot write: the first, and the longest.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// How long a sink may take to end its output after a whole record when the grace period is over.
const GIVE_UP: Duration = Duration::from_millis(250);

/// What a worker needs beside its sink.
pub(super) struct WorkerContext {
    pub(super) counters: Arc<SinkQueueState>,
    pub(super) kinds: Kinds,
    pub(super) on_failure: OnFailure,
    /// Changes when the operator asks for files to be opened anew.
    pub(super) reopen: watch::Receiver<u64>,
    /// Cancelled by the worker when the daemon must stop.
    pub(super) stop: CancellationToken,
    /// Cancelled when the grace period is over: what is not written by then counts as failed.
    pub(super) abort: CancellationToken,
    /// When the last events that a sink got were read. Kept here because a sink that is made anew may have nothing to
    /// tell but what its predecessor lost.
    pub(super) observed: AtomicU64,
    /// Says that the sink cannot write now.
    pub(super) holding: LogThrottle,
    /// Says that it cannot look after itself now.
    pub(super) ticking: LogThrottle,
    /// Says that it has failed and is made anew.
    pub(super) failing: LogThrottle,
}

/// How a worker's work ended.
enum Outcome {
    /// The queue is closed and everything is written.
    Done,
    /// The reader left.
    Closed,
    /// The sink is dead.
    Failed(String),
}

/// Runs sinks made by `make` until the queue is closed and drained. A sink that fails or panics is replaced, or stops
/// the daemon, as configured; what it had counts as failed.
pub(super) async fn supervise<S: Sink>(
    make: impl Fn() -> Result<S, SinkError>,
    queued_batches: mpsc::Receiver<QueuedBatch>,
    context: WorkerContext,
) {
    let queued_batches = Arc::new(Mutex::new(queued_batches));
    let context = Arc::new(context);
    let name = context.counters.sink.name().to_owned();
    let mut wait = RETRY.0;
    loop {
        let began = Instant::now();
        // Its predecessor may have died while holding.
        context.counters.sink.set_holding(false);
        let outcome = match make() {
            Ok(sink) => run(sink, &queued_batches, &context).await,
            Err(error) => Some(Outcome::Failed(error.to_string())),
        };
        let failure = match outcome {
            Some(Outcome::Done) => return,
            Some(Outcome::Closed) => {
                context.counters.sink.set_closed();
                context.stop.cancel();
                break;
            }
            Some(Outcome::Failed(why)) => why,
            None => break,
        };
        match context.on_failure {
            OnFailure::Fatal => {
                error!(sink = name, "sink failed: {failure}");
                context.counters.sink.set_dead();
                context.stop.cancel();
                break;
            }
            OnFailure::Restart => {
                wait = if began.elapsed() > RETRY.1 { RETRY.0 } else { (wait * 2).min(RETRY.1) };
                if let Some(suppressed) = context.failing.permit() {
                    error!(sink = name, suppressed, "sink failed: {failure}; starting it again until it works");
                }
                tokio::select! {
                    () = sleep(wait) => {}
                    () = context.abort.cancelled() => break,
                }
            }
        }
    }
    // Nothing more will be written. Whatever still comes says so by its handle.
    let mut queued_batches = queued_batches.lock().await;
    queued_batches.close();
    while queued_batches.recv().await.is_some() {}
}

/// What a worker has taken off the queue, and not flushed yet: who drops it says that it failed.
#[derive(Debug, Default)]
struct InFlightBatches(std::sync::Mutex<InFlight>);

#[derive(Debug, Default)]
struct InFlight {
    /// With the numbers by which the sink names the batches.
    handles: Vec<(u64, DeliveryHandle)>,
    reports: Vec<(u64, LossReport)>,
    last_number: u64,
}

impl InFlightBatches {
    /// Adds a batch; returns its number.
    fn add(&self, handle: DeliveryHandle) -> u64 {
        let mut taken = self.locked();
        taken.last_number += 1;
        let number = taken.last_number;
        taken.handles.push((number, handle));
        number
    }

    /// Adds a batch of losses; returns its number.
    fn add_pending_loss(&self, report: LossReport) -> u64 {
        let mut taken = self.locked();
        taken.last_number += 1;
        let number = taken.last_number;
        taken.reports.push((number, report));
        number
    }

    /// A flush returned `Ok`: everything is written except what `unwritten` names. Returns the origins of held batches.
    fn settle(&self, unwritten: &Unwritten) -> Vec<Arc<Origin>> {
        let mut taken = self.locked();
        if unwritten.held.is_empty() && unwritten.failed.is_empty() {
            taken.handles.drain(..).for_each(|(_, handle)| handle.written());
            taken.reports.drain(..).for_each(|(_, report)| report.reported());
            return Vec::new();
        }
        let (handles, reports) = (std::mem::take(&mut taken.handles), std::mem::take(&mut taken.reports));
        let is_held = |number: &u64| unwritten.held.contains(number);
        let (mut origins, mut listeners) = (Vec::new(), BTreeSet::new());
        for (number, handle) in handles {
            match number {
                // Dropped without an outcome, it counts as failed.
                number if unwritten.failed.contains(&number) => drop(handle),
                number if is_held(&number) => {
                    if let Some(origin) = handle.origin()
                        && listeners.insert((origin.protocol, origin.listener.clone()))
                    {
                        origins.push(origin.clone());
                    }
                    taken.handles.push((number, handle));
                }
                _ => handle.written(),
            }
        }
        for (number, report) in reports {
            match number {
                number if unwritten.failed.contains(&number) => drop(report),
                number if is_held(&number) => taken.reports.push((number, report)),
                _ => report.reported(),
            }
        }
        origins
    }

    /// Nobody waits any longer.
    fn give_up(&self) {
        *self.locked() = InFlight::default();
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, InFlight> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs one sink by itself: what panics or blocks in it does so there. `None`: the daemon has no more time.
async fn run<S: Sink>(
    sink: S,
    queued_batches: &Arc<Mutex<mpsc::Receiver<QueuedBatch>>>,
    context: &Arc<WorkerContext>,
) -> Option<Outcome> {
    let in_flight = Arc::<InFlightBatches>::default();
    let worker =
        Worker { queued_batches: queued_batches.clone(), in_flight: in_flight.clone(), context: context.clone() };
    // Cancelled, too, when nobody waits for the thread any more.
    let abort = context.abort.child_token();
    let _guard = abort.clone().drop_guard();
    let outcome = match start(sink, worker, abort.clone()) {
        Ok(mut ended) => tokio::select! {
            // A panic drops the sender.
            ended = &mut ended => ended.unwrap_or_else(|_| Some(Outcome::Failed("it panicked, which is a bug of ours".to_owned()))),
            () = abort.cancelled() => {
                // It may end its output after a whole record, unless its thread is blocked.
                let _ = timeout(GIVE_UP * 2, ended).await;
                None
            }
        },
        Err(error) => Some(Outcome::Failed(format!("no thread for it: {error}"))),
    };
    in_flight.give_up();
    context.counters.set_held(Vec::new());
    outcome
}

/// Starts the work, on a thread if the sink may block, else as a task; it tells its outcome when the sink is dropped. `None`:
/// it was cancelled.
fn start<S: Sink>(sink: S, worker: Worker, abort: CancellationToken) -> io::Result<oneshot::Receiver<Option<Outcome>>> {
    let (telling, ended) = oneshot::channel();
    let name = format!("sink {}", worker.context.counters.sink.name());
    let work = async move {
        let mut sink = sink;
        let outcome = tokio::select! {
            biased;
            () = abort.cancelled() => None,
            outcome = worker.work(&mut sink) => Some(outcome),
        };
        if outcome.is_none() {
            let _ = timeout(GIVE_UP, sink.give_up()).await;
        }
        outcome
    };
    // Nobody listens to the outcome any more when it took too long.
    if !S::BLOCKS {
        tokio::spawn(async move { telling.send(work.await) });
        return Ok(ended);
    }
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    thread::Builder::new().name(name).spawn(move || {
        // Dropped last, should this panic: after the sink and its files.
        let telling = telling;
        let outcome = runtime.block_on(work);
        // Without waiting for a compression in progress.
        runtime.shutdown_background();
        let _ = telling.send(outcome);
    })?;
    Ok(ended)
}

/// The work on one sink, until the queue is closed and drained or the sink cannot go on.
struct Worker {
    queued_batches: Arc<Mutex<mpsc::Receiver<QueuedBatch>>>,
    in_flight: Arc<InFlightBatches>,
    context: Arc<WorkerContext>,
}

impl Worker {
    async fn work<S: Sink>(self, sink: &mut S) -> Outcome {
        let result = self.take_batches(sink).await;
        result.err().unwrap_or(Outcome::Done)
    }

    async fn take_batches<S: Sink>(&self, sink: &mut S) -> Result<(), Outcome> {
        let context = &*self.context;
        let mut reopen = context.reopen.clone();
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let first = tokio::select! {
                biased;
                Ok(()) = reopen.changed() => {
                    sink.reopen();
                    continue;
                }
                _ = ticks.tick() => {
                    tick(sink, context).await?;
                    self.settle(sink)?;
                    continue;
                }
                queued_batch = self.next_batch() => queued_batch,
            };
            // Everything that is there goes into one flush; nothing waits for more to come.
            let mut next = first;
            let is_last = next.is_none();
            let mut taken = 0;
            while let Some(queued_batch) = next {
                self.write(sink, queued_batch).await?;
                taken += 1;
                next = if taken < MAX_UNFLUSHED { self.queued_batches.lock().await.try_recv().ok() } else { None };
            }
            if is_last {
                self.write_pending_losses(sink).await?;
            }
            let flushed = sink.flush().await;
            hold(sink, flushed, context).await?;
            let mut is_held = self.settle(sink)?;
            if is_last {
                while is_held {
                    sleep(RETRY.0).await;
                    let flushed = sink.flush().await;
                    hold(sink, flushed, context).await?;
                    is_held = self.settle(sink)?;
                }
                return close(sink, context).await;
            }
        }
    }

    /// The queue is locked no longer than this takes: a sink that is stuck locks nobody out.
    async fn next_batch(&self) -> Option<QueuedBatch> {
        self.queued_batches.lock().await.recv().await
    }

    async fn write<S: Sink>(&self, sink: &mut S, queued_batch: QueuedBatch) -> Result<(), Outcome> {
        if let Some(observed) = queued_batch.observed() {
            self.context.observed.store(observed.0, Relaxed);
        }
        let (contents, handle) = queued_batch.open();
        let number = self.in_flight.add(handle);
        self.write_pending_losses(sink).await?;
        let written = sink.write(contents.selection(self.context.kinds).numbered(number)).await;
        // The sink has what it needs of the batch, even if it must wait.
        drop(contents);
        hold(sink, written, &self.context).await
    }

    /// What the sink did not get is told in its own output, before what follows it.
    async fn write_pending_losses<S: Sink>(&self, sink: &mut S) -> Result<(), Outcome> {
        let context = &*self.context;
        // A report for each listener: their losses can have different destinations.
        for report in context.counters.take_pending_losses() {
            let Some(batch) = report.batch(UnixNanos(context.observed.load(Relaxed))) else { continue };
            let number = self.in_flight.add_pending_loss(report);
            let written = sink.write(Selection::new(&batch, context.kinds).numbered(number)).await;
            hold(sink, written, context).await?;
        }
        Ok(())
    }

    /// After a flush that returned `Ok`: completes the batches that are written, fails those that the sink has dropped,
    /// and keeps those that it holds, whose listeners wait. Returns whether there are any.
    fn settle<S: Sink>(&self, sink: &mut S) -> Result<bool, Outcome> {
        let context = &*self.context;
        let unwritten = sink.unwritten();
        let name = context.counters.sink.name();
        context.counters.set_held(self.in_flight.settle(&unwritten));
        let is_held = !unwritten.held.is_empty();
        context.counters.sink.set_holding(is_held);
        if let Some(fault) = unwritten.held_fault.filter(|_| is_held)
            && let Some(suppressed) = context.holding.permit()
        {
            warn!(sink = name, suppressed, "{fault}; its events are buffered and retried, others are written");
        }
        if let Some(fault) = unwritten.lost_fault
            && let Some(suppressed) = context.failing.permit()
        {
            let events: u64 = unwritten.lost.iter().map(|(_, events)| events).sum();
            error!(sink = name, suppressed, events, "{fault}; written events are lost");
        }
        for (origin, events) in unwritten.lost {
            context.counters.add_pending_loss(Some(origin), Reason::Failed, events);
        }
        match (unwritten.failed_fault, context.on_failure) {
            (Some(fault), OnFailure::Fatal) => return Err(Outcome::Failed(fault.to_string())),
            (Some(fault), OnFailure::Restart) => {
                if let Some(suppressed) = context.failing.permit() {
                    error!(sink = name, suppressed, "{fault}; its events count as failed until it can be written");
                }
            }
            (None, _) => {}
        }
        Ok(is_held)
    }
}

/// Lets the sink look after itself. What it cannot put right just now is mentioned, and tried again with the next tick;
/// everything is written, so there is nothing to hold.
async fn tick<S: Sink>(sink: &mut S, context: &WorkerContext) -> Result<(), Outcome> {
    match sink.tick().await {
        Err(SinkError::Retry(fault)) => {
            if let Some(suppressed) = context.ticking.permit() {
                warn!(sink = context.counters.sink.name(), suppressed, "{fault}; trying again");
            }
            Ok(())
        }
        ticked => hold(sink, ticked, context).await,
    }
}

/// Everything is written; what else should have been done is mentioned where it could not be.
async fn close<S: Sink>(sink: &mut S, context: &WorkerContext) -> Result<(), Outcome> {
    match sink.close().await {
        Err(SinkError::Retry(fault)) => {
            warn!(sink = context.counters.sink.name(), "{fault}");
            Ok(())
        }
        closed => hold(sink, closed, context).await,
    }
}

/// While the sink's answer is "not now": waits and flushes again. The queue fills meanwhile, and the agents slow down.
async fn hold<S: Sink>(
    sink: &mut S,
    mut result: Result<(), SinkError>,
    context: &WorkerContext,
) -> Result<(), Outcome> {
    let began = Instant::now();
    let mut is_told = false;
    let mut wait = RETRY.0;
    loop {
        match result {
            Ok(()) => {
                if wait > RETRY.0 {
                    context.counters.sink.set_holding(false);
                }
                if is_told {
                    info!(sink = context.counters.sink.name(), "writing again after {:.1?}", began.elapsed());
                }
                return Ok(());
            }
            Err(SinkError::Retry(fault)) => {
                context.counters.sink.set_holding(true);
                if let Some(suppressed) = context.holding.permit() {
                    warn!(sink = context.counters.sink.name(), suppressed, "{fault}; holding everything until it can");
                    is_told = true;
                }
                sleep(wait).await;
                wait = (wait * 2).min(RETRY.1);
                result = sink.flush().await;
            }
            Err(SinkError::Closed) => return Err(Outcome::Closed),
            Err(SinkError::Failed(fault)) => return Err(Outcome::Failed(fault.to_string())),
        }
    }
}
