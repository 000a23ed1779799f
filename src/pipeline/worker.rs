//! The task that drives one sink: takes batches off the lane, writes, flushes, waits, and tells what became of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::sync::{Mutex, mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::event::UnixNanos;
use crate::sink::{Kinds, Selection, Sink, SinkError};
use crate::sparing::{Sparing, Turn};

use super::ack::Ticket;
use super::lane::{Debt, LaneBooks, Parcel};
use super::options::OnFailure;

/// At most this many batches are written before a flush.
const MAX_UNFLUSHED: usize = 64;
/// How often a sink is asked to look after itself.
const TICK: Duration = Duration::from_secs(1);
/// Waits between tries of a sink that cannot write: the first, and the longest.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// What a worker needs beside its sink.
pub(super) struct WorkerContext {
    pub(super) books: Arc<LaneBooks>,
    pub(super) kinds: Kinds,
    pub(super) on_failure: OnFailure,
    /// Changes when the operator asks for files to be opened anew.
    pub(super) reopen: watch::Receiver<u64>,
    /// Cancelled by the worker when the daemon must stop.
    pub(super) stop: CancellationToken,
    /// Cancelled when the grace period is over: what is not written by then never will be.
    pub(super) abort: CancellationToken,
    /// When the last events that a sink got were read. Kept here because a sink that is made anew may have nothing to
    /// tell but what its predecessor lost.
    pub(super) observed: AtomicU64,
    /// Says that the sink cannot write now.
    pub(super) holding: Sparing,
    /// Says that it cannot look after itself now.
    pub(super) ticking: Sparing,
    /// Says that it has failed and is made anew.
    pub(super) failing: Sparing,
}

/// How a worker's work ended.
enum Outcome {
    /// The lane is closed and everything is written.
    Done,
    /// The reader left.
    Closed,
    /// The sink is dead.
    Failed(String),
}

/// Runs sinks made by `make` until the lane is closed and drained. A sink that fails or panics is replaced, or stops
/// the daemon, as configured; what it had counts as failed.
pub(super) async fn supervise<S: Sink>(
    make: impl Fn() -> Result<S, SinkError>,
    parcels: mpsc::Receiver<Parcel>,
    context: WorkerContext,
) {
    let parcels = Arc::new(Mutex::new(parcels));
    let context = Arc::new(context);
    let name = context.books.sink.name().to_owned();
    let mut wait = RETRY.0;
    loop {
        let began = Instant::now();
        // Its predecessor may have died while holding.
        context.books.sink.set_holding(false);
        let outcome = match make() {
            Ok(sink) => run(sink, &parcels, &context).await,
            Err(error) => Some(Outcome::Failed(error.to_string())),
        };
        let failure = match outcome {
            Some(Outcome::Done) => return,
            Some(Outcome::Closed) => {
                context.books.sink.set_closed();
                context.stop.cancel();
                break;
            }
            Some(Outcome::Failed(why)) => why,
            None => break,
        };
        match context.on_failure {
            OnFailure::Fatal => {
                error!(sink = name, "sink failed: {failure}");
                context.books.sink.set_dead();
                context.stop.cancel();
                break;
            }
            OnFailure::Restart => {
                wait = if began.elapsed() > RETRY.1 { RETRY.0 } else { (wait * 2).min(RETRY.1) };
                if let Some(Turn { unsaid }) = context.failing.turn() {
                    error!(sink = name, unsaid, "sink failed: {failure}; starting it again until it works");
                }
                tokio::select! {
                    () = sleep(wait) => {}
                    () = context.abort.cancelled() => break,
                }
            }
        }
    }
    // Nothing more will be written. Whatever still comes says so by its ticket.
    let mut parcels = parcels.lock().await;
    parcels.close();
    while parcels.recv().await.is_some() {}
}

/// Runs one sink, in a task of its own, so that a panic in it ends there. `None`: the daemon has no more time.
async fn run<S: Sink>(
    sink: S,
    parcels: &Arc<Mutex<mpsc::Receiver<Parcel>>>,
    context: &Arc<WorkerContext>,
) -> Option<Outcome> {
    let mut worker = tokio::spawn(work(sink, parcels.clone(), context.clone()));
    let ended = tokio::select! {
        ended = &mut worker => ended,
        () = context.abort.cancelled() => {
            worker.abort();
            worker.await
        }
    };
    match ended {
        Ok(outcome) => Some(outcome),
        Err(error) if error.is_panic() => Some(Outcome::Failed("it panicked, which is a bug of ours".to_owned())),
        Err(_) => None,
    }
}

async fn work<S: Sink>(
    mut sink: S,
    parcels: Arc<Mutex<mpsc::Receiver<Parcel>>>,
    context: Arc<WorkerContext>,
) -> Outcome {
    let mut parcels = parcels.lock().await;
    let result = take_parcels(&mut sink, &mut parcels, &context).await;
    result.err().unwrap_or(Outcome::Done)
}

async fn take_parcels<S: Sink>(
    sink: &mut S,
    parcels: &mut mpsc::Receiver<Parcel>,
    context: &WorkerContext,
) -> Result<(), Outcome> {
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
                continue;
            }
            parcel = parcels.recv() => parcel,
        };
        // Everything that is there goes into one flush; nothing waits for more to come.
        let (mut tickets, mut debts) = (Vec::new(), Vec::new());
        let mut next = first;
        let is_last = next.is_none();
        while let Some(parcel) = next {
            if let Some(observed) = parcel.observed() {
                context.observed.store(observed.0, Relaxed);
            }
            write_owed(sink, context, &mut debts).await?;
            let written = sink.write(parcel.selection(context.kinds)).await;
            let ticket = parcel.into_ticket();
            hold(sink, written, context).await?;
            tickets.push(ticket);
            next = if tickets.len() < MAX_UNFLUSHED { parcels.try_recv().ok() } else { None };
        }
        if is_last {
            write_owed(sink, context, &mut debts).await?;
        }
        let flushed = sink.flush().await;
        hold(sink, flushed, context).await?;
        tickets.drain(..).for_each(Ticket::written);
        debts.drain(..).for_each(Debt::paid);
        if is_last {
            return close(sink, context).await;
        }
    }
}

/// Lets the sink look after itself. What it cannot put right just now is mentioned, and tried again with the next tick;
/// everything is written, so there is nothing to hold.
async fn tick<S: Sink>(sink: &mut S, context: &WorkerContext) -> Result<(), Outcome> {
    match sink.tick().await {
        Err(SinkError::Retry(fault)) => {
            if let Some(Turn { unsaid }) = context.ticking.turn() {
                warn!(sink = context.books.sink.name(), unsaid, "{fault}; trying again");
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
            warn!(sink = context.books.sink.name(), "{fault}");
            Ok(())
        }
        closed => hold(sink, closed, context).await,
    }
}

/// What the sink did not get is told in its own output, before what follows it.
async fn write_owed<S: Sink>(sink: &mut S, context: &WorkerContext, debts: &mut Vec<Debt>) -> Result<(), Outcome> {
    let Some(debt) = context.books.take_owed() else { return Ok(()) };
    let Some(batch) = debt.batch(UnixNanos(context.observed.load(Relaxed))) else { return Ok(()) };
    debts.push(debt);
    let written = sink.write(Selection::new(&batch, context.kinds)).await;
    hold(sink, written, context).await
}

/// While the sink's answer is "not now": waits and flushes again. The lane fills meanwhile, and the agents slow down.
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
                context.books.sink.set_holding(false);
                if is_told {
                    info!(sink = context.books.sink.name(), "writing again after {:.1?}", began.elapsed());
                }
                return Ok(());
            }
            Err(SinkError::Retry(fault)) => {
                context.books.sink.set_holding(true);
                if let Some(Turn { unsaid }) = context.holding.turn() {
                    warn!(sink = context.books.sink.name(), unsaid, "{fault}; holding everything until it can");
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
